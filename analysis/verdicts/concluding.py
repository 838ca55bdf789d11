"""Judge the clusters of a store, and store what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

from ..probing import campaigns
from .judging import judge
from .recording import record
from .verdict import Judgement

if TYPE_CHECKING:
    from ...store import Store


@dataclass(frozen=True)
class Concluded:
    """What was concluded about the clusters of a store."""

    judgements: tuple[Judgement, ...]
    judged_at: datetime
    notes: tuple[str, ...] = ()
    """Sentences about the judging itself, as that nothing could be stored."""


def conclude(
    store: Store, *, cluster: str | None = None, campaign: str | None = None, since: datetime | None = None
) -> Concluded:
    """Judge a cluster, or every cluster that has runs, and store what was found. InputError as `judge` raises it.

    A store that this user may not write to is read; a note says that nothing was stored.
    """
    judgements = [
        judge(store, cluster=name, campaign=campaign, since=since) for name in _clusters(store, cluster, campaign)
    ]
    at = datetime.now(UTC).replace(tzinfo=None)
    return Concluded(tuple(judgements), at, record(store, judgements, at, campaign=campaign, since=since))


def judgements(store: Store, cluster: str) -> tuple[Judgement, ...]:
    """What all runs of a cluster say, not stored; nothing where it has no runs."""
    return (judge(store, cluster=cluster),) if cluster in campaigns(store)["cluster"].to_list() else ()


def _clusters(store: Store, cluster: str | None, campaign: str | None) -> Sequence[str | None]:
    """The clusters to judge; None for `judge` to say what is wrong."""
    if cluster is not None:
        return [cluster]
    known = campaigns(store)
    if campaign is not None:
        known = known.filter(pl.col("campaign") == campaign)
    return known["cluster"].unique().sort().to_list() or [None]
