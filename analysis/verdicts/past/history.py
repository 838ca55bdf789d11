"""The history of a cluster: what changed when, what drifts, what is unstable, and what else changed then.

`histories` reads runs and answers with findings; `telling` gives these names and dates, and the statistics are in
`past` and below it. docs/history.md says how often it is right.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...runs.measurements import coupled_jobs
from ...runs.probing import parted
from ..model import usable, without
from ..verdict import Gap, State
from .finding import Finding, Histories, Shape
from .regimes import identities_seen, neighbours, with_regimes
from .scatter import poisson_tail
from .telling import Telling

if TYPE_CHECKING:
    from ....store import Store
    from ...runs.probing import Probed

__all__ = ["Finding", "Histories", "Shape", "histories"]

_COLUMNS = (
    "run_id", "workload", "gpu", "node", "slot", "job_id", "began", "value", "temperature_c", "sm_clock_mhz", "power_w",
    "versions", "probe_version",
)  # fmt: skip
"""Of a run, what history looks at: to copy and part all columns of millions of runs takes seconds."""
_NODE_SHARE = 0.75  # of a node's GPUs that must change on one date for it to be the node's
_NODE_GPUS = 2
_BATCH_GPUS, _BATCH_NODES, _BATCH_DATES = 6, 3, 3  # changes on one date, of so many dates, to be one finding
_BATCH_P = 1e-3  # and the chance of so many on one date, by the number on others


def histories(campaign: Probed, store: Store | None = None, *, now: datetime | None = None) -> Histories:
    """What changed, in all runs of `campaign` (take `probed(store, every=True)`).

    With its `store` it is also told what driver, firmware, place and neighbours changed then. Runs after `now` (UTC;
    the present and an hour where None) are left out, and `not_judged` says so.
    """
    runs, said = usable(campaign, now, _COLUMNS)
    runs = without(runs, pl.col("began").is_null(), Gap.NO_DATE, campaign.cluster, said)
    runs = runs.with_columns(pl.lit(campaign.cluster).alias("cluster"))
    found: list[Finding] = []
    watched: list[Finding] = []
    looks = 0
    if runs.height:
        beside, seen = neighbours(campaign, store), identities_seen(campaign, store)
        for (workload,), of_it in parted(runs, "workload"):
            told = Telling(campaign.cluster, str(workload), with_regimes(seen, coupled_jobs(of_it)), beside)
            said += told.said
            found += told.findings()
            watched += told.watched()
            looks += told.past.looks
    found = _nodes_together(_dates_together(found, campaign), campaign)
    by_kind = {kind: tuple(sorted((one for one in found if one.kind is kind), key=_clear)) for kind in Shape}
    return Histories(
        by_kind[Shape.STEP],
        by_kind[Shape.CHANGE],
        by_kind[Shape.DRIFT],
        by_kind[Shape.UNSTABLE],
        tuple(sorted(watched, key=_clear)),
        tuple(said),
        looks,
    )


def _clear(one: Finding) -> tuple[float, float, str, str]:
    return (one.p, -abs(one.effect_pct), one.gpu or one.group or "", one.workload)


def _dates_together(found: list[Finding], campaign: Probed) -> list[Finding]:
    """Changes of many more GPUs on one date than on others, the same way and alike in size, are one finding.

    A part of the fleet got something that nobody recorded.
    """
    places = dict(campaign.gpus.select("gpu", "node").iter_rows())
    kinds: dict[tuple[str, bool], list[Finding]] = {}
    for one in found:
        if one.kind is Shape.CHANGE and one.gpu is not None and one.at is not None:
            kinds.setdefault((one.workload, one.effect_pct > 0), []).append(one)
    joined: list[Finding] = []
    gone: set[int] = set()
    for changes in kinds.values():
        dates = {one.at.date() for one in changes if one.at is not None}
        for day in sorted(dates):
            then = [one for one in changes if id(one) not in gone and _spans_date(one, day)]
            members = _alike(then)
            nodes = {places.get(one.gpu or "") or one.gpu for one in members}
            usual = 1 + (len(changes) - len(members)) / max(len(dates) - 1, 1)
            few = len(members) < _BATCH_GPUS or len(nodes) < _BATCH_NODES or len(dates) < _BATCH_DATES
            if few or poisson_tail(np.array([len(members)]), np.array([usual]))[0] > _BATCH_P:
                continue
            gone |= {id(one) for one in members}
            joined.append(_together(f"{len(members)} GPUs of {len(nodes)} nodes", members))
    return [one for one in found if id(one) not in gone] + joined


def _spans_date(one: Finding, day: date) -> bool:
    """Whether the change can have been then."""
    return one.at is not None and one.since is not None and one.since.date() < day <= one.at.date()


def _alike(changes: list[Finding]) -> list[Finding]:
    """Those whose interval holds the middle one's size."""
    if not changes:
        return []
    middle = sorted(one.effect_pct for one in changes)[len(changes) // 2]

    def holds(one: Finding) -> bool:
        return one.low_pct is not None and one.high_pct is not None and one.low_pct <= middle <= one.high_pct

    return [one for one in changes if holds(one)]


def _nodes_together(found: list[Finding], campaign: Probed) -> list[Finding]:
    """Changes of most GPUs of a node, the same way and between the same sittings, are one finding of the node."""
    places = {gpu: node for gpu, node in campaign.gpus.select("gpu", "node").iter_rows() if node is not None}
    sizes: dict[str, int] = {}
    for node in places.values():
        sizes[node] = sizes.get(node, 0) + 1
    alike: dict[tuple[str, str, bool, object], list[Finding]] = {}
    for one in found:
        node = places.get(one.gpu or "")
        if one.kind is Shape.CHANGE and node is not None and one.at is not None:
            alike.setdefault((node, one.workload, one.effect_pct > 0, one.at.date()), []).append(one)
    joined: list[Finding] = []
    gone: set[int] = set()
    for (node, *_), members in alike.items():
        if len({one.gpu for one in members}) < max(_NODE_GPUS, _NODE_SHARE * sizes[node]):
            continue
        gone |= {id(one) for one in members}
        joined.append(_together(f"node {node}", members))
    return [one for one in found if id(one) not in gone] + joined


def _together(group: str, members: list[Finding]) -> Finding:
    """The change of GPUs together: the middle one of them stands for it."""
    members = sorted(members, key=_clear)
    middle = sorted(members, key=lambda one: one.effect_pct)[len(members) // 2]
    names = tuple(sorted({one.gpu for one in members if one.gpu is not None}))
    shared = [what for what in members[0].joined_with if all(what in one.joined_with for one in members)]
    at = min((one.at for one in members if one.at is not None), default=None)
    since = [one.since for one in members if one.since is not None and at is not None and one.since < at]
    return replace(
        middle,
        kind=Shape.STEP,
        gpu=None,
        group=group,
        gpus=names,
        p=members[0].p,
        q=max(one.q for one in members),
        n=len(names),
        at=at,
        since=max(since, default=None),
        state=State.CONFIRMED if all(one.state is State.CONFIRMED for one in members) else State.SUSPECTED,
        runs=tuple(run for one in members for run in one.runs),
        joined_with=tuple(shared),
    )
