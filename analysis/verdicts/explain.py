"""One GPU explained: its place among its peers, its past sitting by sitting, what was found about it, what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.names import by_number
from ..choosing import find
from ..runs.probing import Probed, probed
from ..runs.sittings import UNKNOWN, numbered
from .levels import in_pct
from .model import usable
from .standing import Standing, standings, table
from .verdict import Judgement, Level, NotJudged, Smallest, Verdict

if TYPE_CHECKING:
    from ...store import Store

_EVENTS = 20  # the newest ones
_FEWEST = 3  # GPUs of a day, before their median says what was usual on it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU stands in a workload. Slower is positive; None where it is unknown."""

    workload: str
    effect_pct: float | None
    """Of the median of the peers."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of its level in another sitting; None where no GPU has two runs."""
    rank: int
    """From the fastest, 1."""
    rank_low: int | None
    rank_high: int | None
    peers: int
    """GPUs compared, itself included."""
    n: int
    """Its runs."""
    sittings: int


@dataclass(frozen=True, slots=True)
class Sitting:
    """A GPU's runs of one workload without a pause of 6 hours. Slower is positive."""

    workload: str
    began: datetime | None
    n: int
    effect_pct: float | None
    """Against the median of the peers over all time."""
    that_day_pct: float | None
    """Against the median of the peers that were measured on the same day; None for fewer than three of them."""
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the GPU."""

    ts: datetime | None
    kind: str
    detail: str | None


@dataclass(frozen=True)
class Explained:
    """All that a store says of one GPU."""

    cluster: str
    gpu: str
    name: str
    identity: Mapping[str, Any]
    """node, slot, cabinet, model, uuid, serial, vbios, driver, power_limit_w, and others; None where unknown."""
    verdicts: tuple[Verdict, ...]
    not_judged: tuple[NotJudged, ...]
    places: tuple[Place, ...]
    """The workload in which it is slowest first."""
    history: tuple[Sitting, ...]
    """By workload in the order of `places`, and time."""
    conditions: Mapping[str, Sequence[str]]
    """What its runs and those of its peers differ in, in words, by subject."""
    events: tuple[Happened, ...]
    """The newest first."""
    simulated: bool = False
    smallest: tuple[Smallest, ...] = ()
    """In its workloads, the smallest effect that could have been named."""
    judged: int = 0
    """How many GPUs of its cluster were judged."""


@dataclass(frozen=True)
class SharedFinding:
    """What was found about a node or a batch, and which GPUs it is about."""

    cluster: str
    name: str
    """Of the node, or what the batch shares, as the findings have it."""
    gpus: tuple[str, ...]
    """Names of the GPUs that it covers."""
    verdicts: tuple[Verdict, ...]


def shared_finding(name: str, judgements: Sequence[Judgement]) -> SharedFinding | None:
    """What was found about the node or batch of this name; None where no finding has it, in upper or lower case.

    InputError where findings of several clusters have it.
    """
    wanted = name.strip().lower()
    rows = [row for one in judgements for row in one.rows if row.level is not Level.GPU and row.name.lower() == wanted]
    clusters = sorted({row.cluster for row in rows})
    if len(clusters) > 1:
        raise InputError(f"{name!r} has findings on {', '.join(clusters)}: choose one with --cluster")
    if not rows:
        return None
    gpus = dict.fromkeys(gpu for row in rows for gpu in row.gpus)
    return SharedFinding(clusters[0], rows[0].name, tuple(sorted(gpus, key=by_number)), tuple(rows))


def explain(store: Store, said: str, judgements: Sequence[Judgement], *, cluster: str | None = None) -> Explained:
    """Explain the GPU that `said` means. `judgements`: of its cluster, if there are any.

    InputError where no GPU or several fit. A GPU without runs is explained by what else is known of it.
    """
    row = find(store, said, cluster)
    where, gpu = str(row["cluster"]), str(row["gpu"])
    mine = [one for one in judgements if one.cluster == where]
    has_runs = store.collect(store.scan("runs").filter((pl.col("cluster") == where) & (pl.col("gpu") == gpu)).head(1))
    places: list[Place] = []
    history: list[Sitting] = []
    conditions: dict[str, list[str]] = {}
    simulated = False
    if has_runs.height:
        campaign = probed(store, cluster=where, every=True)
        simulated = campaign.simulated
        places, history, conditions = _measured(campaign, gpu)
    names = {row["name"], gpu}
    workloads = {one.workload for one in places}
    return Explained(
        where,
        gpu,
        str(row["name"]),
        {key: value for key, value in row.items() if key not in ("cluster", "gpu", "name", "names", "keys")},
        tuple(one for each in mine for one in each.rows if names & set(one.gpus)),
        tuple(no for each in mine for no in each.not_judged if no.subject in names | workloads | {where}),
        tuple(places),
        tuple(history),
        conditions,
        _events(store, where, gpu),
        simulated,
        tuple(
            one
            for each in mine
            for one in each.smallest
            if one.workload in workloads and one.model in (None, row["model"])
        ),
        sum(each.gpus for each in mine),
    )


def _measured(campaign: Probed, gpu: str) -> tuple[list[Place], list[Sitting], dict[str, list[str]]]:
    runs, _ = usable(campaign, columns=campaign.runs.columns)
    own = runs.filter(pl.col("gpu") == gpu)
    peers = runs.join(own.select("workload", "model").unique(), on=["workload", "model"], how="semi", nulls_equal=True)
    stood = standings(peers, campaign.gpus)
    mine = table(stood, campaign.gpus["gpu"].to_list()).filter(pl.col("gpu") == gpu)
    places = [
        Place(
            row["workload"],
            _pct(row["ratio"]) if row["peers"] > 1 else None,
            _pct(row["ratio_low"]) if row["peers"] > 1 else None,
            _pct(row["ratio_high"]) if row["peers"] > 1 else None,
            *(row[name] for name in ("rank", "rank_low", "rank_high", "peers", "n", "sittings")),
        )
        for row in mine.sort("ratio", descending=True, nulls_last=True).iter_rows(named=True)
    ]
    of = {one.workload: one for one in stood}
    history = [sitting for one in places for sitting in _history(of[one.workload], own)]
    return places, history, _conditions(runs, own)


def _history(stood: Standing, own: pl.DataFrame) -> Iterator[Sitting]:
    """The sittings of a GPU in a workload. `own`: its runs."""
    sat, number = stood.levels.sat, int(own["gpu_no"][0])
    runs = own.filter(pl.col("workload") == stood.workload)
    runs = runs.with_columns(pl.Series("sitting", numbered(np.zeros(runs.height, np.int64), runs["at"].to_numpy())))
    figures = (pl.col(name).cast(pl.Float64) for name in ("sm_clock_mhz", "power_w", "temperature_c"))
    each = runs.group_by("sitting").agg(
        pl.col("began").min(), pl.len(), *(one.filter(one.is_finite()).median() for one in figures)
    )
    alone = stood.peers[number] < 2
    for place, row in zip(np.flatnonzero(sat.series == number), each.sort("sitting").iter_rows(), strict=True):
        day = np.floor(sat.at) == np.floor(sat.at[place])
        beside = len(np.unique(sat.series[day])) if sat.at[place] > UNKNOWN else 0
        value = float(sat.value[place])
        yield Sitting(
            stood.workload,
            row[1],
            row[2],
            None if alone else in_pct(value - stood.centre[number]),
            None if beside < _FEWEST else in_pct(value - float(np.median(sat.value[day]))),
            *row[3:],
        )


def _conditions(runs: pl.DataFrame, own: pl.DataFrame) -> dict[str, list[str]]:
    """What is recorded of the GPU's runs, value by value, where its model's other GPUs have other values as well."""
    found = {}
    named = (("driver", "driver"), ("vbios", "VBIOS"), ("power_limit_w", "power limit, W"))
    model = runs.join(own.select("model").unique(), on="model", how="semi", nulls_equal=True)
    for column, word in named:
        mine = own[column].drop_nulls().unique().sort().to_list()
        counted = model.select("gpu", column).drop_nulls().unique().group_by(column).len().sort(column)
        if mine and counted.height:
            others = {str(value): int(n) for value, n in counted.iter_rows()}
            found[word] = [f"{value}: {others[str(value)]:,} of {sum(others.values()):,} GPUs" for value in mine]
    return found


def _events(store: Store, cluster: str, gpu: str) -> tuple[Happened, ...]:
    of = (pl.col("cluster") == cluster) & (pl.col("gpu") == gpu)
    rows = store.scan("events").filter(of).select("ts", "kind", "detail").sort("ts", descending=True, nulls_last=True)
    return tuple(Happened(*row) for row in store.collect(rows.head(_EVENTS)).iter_rows())


def _pct(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


def stands_in(places: Sequence[Place], verdicts: Sequence[Verdict]) -> list[str]:
    """The workloads worth showing first: those of the findings, else those in which it is farthest from its peers."""
    named = [workload for one in verdicts for workload in one.workloads]
    far = sorted(places, key=lambda one: -abs(one.effect_pct or 0.0))
    return list(dict.fromkeys([*named, *(one.workload for one in far)]))
