"""What the first page and the navigation read of a store. It needs no Dash, so it is read while Dash is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import polars as pl

from ...analysis.contents import held, last_findings, last_judgements, newest_campaigns, not_judged
from ...analysis.verdicts import Level
from ...analysis.verdicts.judgements import is_known, verdict_of
from ..documents.evidence import action, because, reference
from .reading import STILL, Reading

if TYPE_CHECKING:
    from ...store import Store

MOST_CAMPAIGNS = 12


def worded_findings(store: Store) -> pl.DataFrame:
    """The newest findings of each cluster, the worst first, with what people read of them.

    `gpu`: the name where it is that of one GPU; `gpus`: the names of all that it covers.
    """
    found = last_findings(store)
    words: list[dict[str, Any]] = []
    for row in found.iter_rows(named=True):
        verdict = verdict_of(row) if is_known(row) else None
        words.append(
            {
                "gpu": row["name"] if row["level"] == Level.GPU else None,
                "gpus": [gpu["name"] for gpu in row["gpus"] or ()],
                "reference": None if verdict is None else reference(verdict) or None,
                "action": None if verdict is None else action(verdict),
                "looks": None if verdict is None else because(verdict),
            }
        )
    schema: dict[str, Any] = dict.fromkeys(("gpu", "gpus", "reference", "action", "looks"), pl.String())
    schema["gpus"] = pl.List(pl.String)
    numbers = found.select("name", "cluster", "kind", "state", "effect_pct", "low_pct", "high_pct")
    return numbers.hstack(pl.DataFrame(words, schema))


ASKED: tuple[tuple[Callable[..., Any], *tuple[Hashable, ...]], ...] = (
    (held,),
    (last_judgements,),
    (worded_findings,),
    (not_judged,),
    (newest_campaigns, MOST_CAMPAIGNS),
)
"""The questions of the first page."""
NEEDED = ("gpus", "runs", "telemetry")
"""The tables that a page needs: the navigation says which are empty."""


def begin(store: Store) -> Reading:
    """Read a store for pages. What the first one shows is read at once, beside what the caller does."""
    reading = Reading(store)
    reading.soon(lambda: read(reading))
    return reading


def read(reading: Reading) -> None:
    """Make the answers that the first page asks for, so that they are kept."""
    reading.store.ready({*STILL, *NEEDED})
    for table in NEEDED:
        reading.has(table)
    for ask, *asked in ASKED:
        reading.answer(ask, *asked)
