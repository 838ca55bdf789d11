"""What the first page and the navigation read of a store. It needs no Dash, so it is read while Dash is loaded."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...analysis.contents import held, judged_gpus, newest_campaigns, not_judged, places
from ...analysis.verdicts.judgements import Newer, stored
from ..documents.fleet import JudgedFleet
from .reading import STILL, Reading

if TYPE_CHECKING:
    from ...store import Store

MOST_CAMPAIGNS = 12


@dataclass(frozen=True)
class JudgedCluster:
    """The newest judgement of a cluster, its GPUs, and what came since."""

    judged_at: datetime | None
    fleet: JudgedFleet
    newer: Newer


def judged_clusters(store: Store) -> tuple[JudgedCluster, ...]:
    """The newest judgement of each cluster, of all runs; clusters in which something is wrong come first."""
    clusters = []
    for newest in stored(store):
        judgement = newest.judgement
        fleet = JudgedFleet(places(store, judgement.cluster), judgement, judged_gpus(store, judgement.cluster))
        clusters.append(JudgedCluster(newest.judged_at, fleet, newest.newer(store)))
    return tuple(sorted(clusters, key=lambda cluster: not cluster.fleet.odd))


QUESTIONS: tuple[tuple[Callable[..., Any], *tuple[Hashable, ...]], ...] = (
    (held,),
    (judged_clusters,),
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
