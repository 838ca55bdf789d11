"""What the first page and the navigation read of a store. It needs no Dash, so it is read while Dash is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from ...analysis.contents import held, judged_gpus, newest_campaigns, not_judged, places
from ...analysis.verdicts.judgements import StoredJudgement, stored
from ..documents.fleet import JudgedFleet
from .reading import STILL, Reading

if TYPE_CHECKING:
    from ...store import Store

MOST_CAMPAIGNS = 12


def judged_fleets(store: Store) -> tuple[tuple[StoredJudgement, JudgedFleet], ...]:
    """The newest judgement of each cluster, with the places of its GPUs; those with the worst findings come first."""
    fleets = [
        (newest, JudgedFleet(places(store, cluster), newest.judgement, judged_gpus(store, cluster)))
        for newest in stored(store)
        if (cluster := newest.judgement.cluster) is not None
    ]
    return tuple(sorted(fleets, key=lambda pair: not pair[1].odd))


QUESTIONS: tuple[tuple[Callable[..., Any], *tuple[Hashable, ...]], ...] = (
    (held,),
    (judged_fleets,),
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
    for question, *arguments in QUESTIONS:
        reading.answer(question, *arguments)
