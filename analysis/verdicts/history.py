"""The history of a cluster: what changed when, what drifts, what is unstable, and what else changed then.

`histories` reads runs and answers with findings; `telling` gives these names and dates, and the statistics are in
`past` and below it. docs/history.md says how often it is right.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

from ..measurements import coupled_jobs
from .finding import Finding, Histories, Shape
from .online import Expected, expected
from .regimes import neighbours, with_regimes
from .telling import Telling
from .verdict import NotJudged, State

if TYPE_CHECKING:
    from ...store import Store
    from ..probing import Probed

__all__ = ["Finding", "Histories", "Shape", "histories"]

_NODE_SHARE = 0.75  # of a node's GPUs that must change on one date for it to be the node's
_NODE_GPUS = 2


def histories(campaign: Probed, store: Store | None = None, *, now: datetime | None = None) -> Histories:
    """What changed, in all runs of `campaign` (take `probed(store, every=True)`).

    With its `store` it is also told what driver, firmware, place and neighbours changed then. Runs after `now` (UTC;
    the present where None) are left out, and `not_judged` says so.
    """
    runs, said = _usable(campaign, now or datetime.now(UTC))
    found: list[Finding] = []
    watched: list[Finding] = []
    looks = 0
    known: dict[str, Expected] = {}
    if runs.height:
        runs = with_regimes(campaign, store, coupled_jobs(runs))
        beside = neighbours(campaign, store)
        parts = runs.partition_by("workload", as_dict=True, maintain_order=True)
        for (workload,), of_it in sorted(parts.items(), key=str):
            told = Telling(campaign.cluster, str(workload), of_it, beside)
            said += told.said
            found += told.findings()
            watched += told.watched()
            looks += told.past.looks
            if told.past.noise is not None:
                known[str(workload)] = expected(told.past.noise)
    found = _nodes_together(found, campaign)
    by_kind = {kind: tuple(sorted((one for one in found if one.kind is kind), key=_clear)) for kind in Shape}
    return Histories(
        by_kind[Shape.STEP],
        by_kind[Shape.CHANGE],
        by_kind[Shape.DRIFT],
        by_kind[Shape.UNSTABLE],
        tuple(sorted(watched, key=_clear)),
        tuple(said),
        looks,
        known,
    )


def _clear(one: Finding) -> tuple[float, float, str, str]:
    return (one.p, -abs(one.effect_pct), one.gpu or one.group or "", one.workload)


def _usable(campaign: Probed, now: datetime) -> tuple[pl.DataFrame, list[NotJudged]]:
    """The runs with a time and a duration, and a sentence for each kind of run that is left out."""
    until = now.astimezone(UTC).replace(tzinfo=None) if now.tzinfo else now
    at = pl.col("began").cast(pl.Datetime("ns"))
    duration = pl.col("value").cast(pl.Float64)
    fits = {
        "have no date": at.is_not_null(),
        "have a date in the future: correct the clock of their node": at.is_null() | (at <= until),
        "have no duration above 0": duration.is_finite().fill_null(False) & (duration > 0).fill_null(False),
    }
    runs = campaign.sound.with_columns(
        pl.lit(campaign.cluster).alias("cluster"), at.alias("began"), pl.col("workload").cast(pl.String)
    )
    said = []
    for why, fit in fits.items():
        for workload, n in runs.filter(~fit).group_by("workload").len().sort("workload").iter_rows():
            many = "1 run was" if n == 1 else f"{n:,} runs were"
            of_it = why.replace("have", "it has", 1) if n == 1 else f"they {why}"
            said.append(NotJudged(campaign.cluster, str(workload), f"history: {many} left out, as {of_it}"))
        runs = runs.filter(fit)
    return runs, said


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
        joined.append(_of_node(node, sorted(members, key=_clear)))
    return [one for one in found if id(one) not in gone] + joined


def _of_node(node: str, members: list[Finding]) -> Finding:
    """The change of a node: the middle one of its GPUs stands for it."""
    middle = sorted(members, key=lambda one: one.effect_pct)[len(members) // 2]
    names = tuple(sorted({one.gpu for one in members if one.gpu is not None}))
    shared = [what for what in members[0].joined_with if all(what in one.joined_with for one in members)]
    ways = "slower" if middle.effect_pct > 0 else "faster"
    return replace(
        middle,
        kind=Shape.STEP,
        gpu=None,
        group=f"node {node}",
        gpus=names,
        p=members[0].p,
        q=max(one.q for one in members),
        n=len(names),
        at=min((one.at for one in members if one.at is not None), default=None),
        since=max((one.since for one in members if one.since is not None), default=None),
        state=State.CONFIRMED if all(one.state is State.CONFIRMED for one in members) else State.SUSPECTED,
        runs=tuple(run for one in members for run in one.runs),
        looks=f"{len(names)} GPUs of node {node} became {ways} between the same sittings: {middle.looks}",
        joined_with=tuple(shared),
    )
