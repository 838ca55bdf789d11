"""What the first page and the navigation read of a store. It needs no Dash, so it is read while Dash is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from ...analysis.contents import held, last_findings, last_judgements, newest_campaigns, not_judged
from .reading import STILL, Reading

if TYPE_CHECKING:
    from ...store import Store

MOST_CAMPAIGNS = 12
ASKED: tuple[tuple[Callable[..., Any], *tuple[Hashable, ...]], ...] = (
    (held,),
    (last_judgements,),
    (last_findings,),
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
