"""The history of a cluster: what changed when, what drifts, what is unstable, and what else changed then.

`histories` reads runs and gives departures of GPUs from their own past as codes and numbers; `changes` has the
statistics. docs/how-we-know/verdicts.md says how often it is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.vocabulary import EventKind
from ..runs.measurements import codes, coupled_jobs, numbers
from ..runs.sittings import PAUSE, Floats, Ints, date_of, groups_median
from ..statistics.ordering import poisson_at_least
from .changes import LevelChange, SharedStep, own_past
from .levels import in_pct
from .model import Model, without
from .verdict import Gap, Level, Measured, NotJudged, Quantity, State

if TYPE_CHECKING:
    from ...store import Store
    from ..runs.probing import Probed

_SOFTWARE = ("driver", "vbios", "cublas", "kernel", "probe_version")
"""What makes a regime: a change of it may move the times of every GPU alike."""
_SEEN = ("driver", "vbios", "node", "slot")  # what identities of GPUs say
_STATED = ("driver", "cublas", "kernel")  # what runs themselves say
_READ = {
    "temperature_c": (Quantity.TEMPERATURE, "degC"),
    "sm_clock_mhz": (Quantity.CLOCK, "MHz"),
    "power_w": (Quantity.POWER, "W"),
}
_KELVIN = 5.0  # what is told beside a change: so much warmer or colder
_SHARE = {"sm_clock_mhz": 0.01, "power_w": 0.05}  # or so much of its clock or power
_NEWEST_RUNS = 40
_NODE_SHARE, _NODE_GPUS = 0.75, 2  # of a node's GPUs that must change on one date for it to be the node's
_BATCH_GPUS, _BATCH_NODES, _BATCH_DATES = 6, 3, 3  # changes on one date, of so many dates, to be one departure
_BATCH_P = 1e-3  # and the chance of so many on one date, by the number on others


class DepartureKind(StrEnum):
    """What a departure is."""

    STEP = "step"
    """Many GPUs changed at one date."""
    CHANGE = "change"
    """A GPU's level changed at a date."""
    DRIFT = "drift"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A GPU, or several together, left their own past. Slower is positive. Times are UTC without a zone."""

    kind: DepartureKind
    level: Level
    name: str
    """The GPU, as in `Probed.gpus`, the node, or what a batch shares: a new driver, or the date."""
    gpus: tuple[str, ...]
    workload: str
    effect_pct: float
    """Of a step or change: after against before. Of a drift: from the first sitting to the last. Of an unstable GPU:
    how much slower its runs are, or how far away its sittings, when they are."""
    low_pct: float
    high_pct: float
    """95 % interval: of the level in another sitting against the level before; of a step, of the GPUs' shared effect;
    of a drift, of the drift; of an unstable GPU, of the median of how far they are away."""
    p: float
    q: float
    """The share of false ones among those of its kind that are at least as clear."""
    n: int
    """Sittings of the GPU; of a group, its GPUs."""
    since: datetime | None = None
    """Of a step or change: the last sitting before it."""
    at: datetime | None = None
    """Of a step or change: the first sitting after it. It happened between the two."""
    state: State
    first_seen: datetime
    last_seen: datetime
    runs: tuple[str, ...]
    """Ids of runs that show it: the newest, where there are many."""
    measured: tuple[Measured, ...]
    """The numbers that tell it: dates, sittings."""
    joined_with: tuple[Measured, ...] = ()
    """What else changed then."""

    @property
    def gpu(self) -> str | None:
        """The GPU; None where it is of a node or a batch."""
        return self.name if self.level is Level.GPU else None


@dataclass(frozen=True)
class Histories:
    """All departures of a cluster's GPUs from their past. The clearest first."""

    steps: tuple[Departure, ...]
    """Of many GPUs at once; they were taken out before the others were looked for."""
    changes: tuple[Departure, ...]
    drifts: tuple[Departure, ...]
    unstable: tuple[Departure, ...]
    watch: tuple[Departure, ...]
    """Changes that are not sure enough: the newest sitting is slower. Measure these GPUs again. At most 2 of 1,000
    sittings of healthy GPUs are among them."""
    not_judged: tuple[NotJudged, ...]
    comparisons: int
    """GPUs and workloads that were compared with their own past."""


def histories(model: Model, store: Store | None = None) -> Histories:
    """What changed, in all runs of `model` (take `probed(store, every=True)`).

    With its `store` it is also known what driver, firmware, place and neighbours changed then.
    """
    campaign, not_judged = model.campaign, [*model.left_out]
    runs = without(model.runs, pl.col("began").is_null(), Gap.NO_DATE, cluster=campaign.cluster, left_out=not_judged)
    departures: list[Departure] = []
    watch: list[Departure] = []
    comparisons = 0
    if runs.height:
        cluster = _Cluster(campaign, runs, store)
        for workload, rows in cluster.by_workload():
            past = _Past(cluster, workload, rows)
            departures += past.departures()
            watch += (past.change(step, is_newest=True) for step in past.found.watch)
            not_judged += past.not_judged()
            comparisons += past.found.compared
    departures = _grouped(departures, campaign)
    by_kind = {kind: tuple(sorted((d for d in departures if d.kind is kind), key=_clearest)) for kind in DepartureKind}
    return Histories(
        by_kind[DepartureKind.STEP], by_kind[DepartureKind.CHANGE], by_kind[DepartureKind.DRIFT],
        by_kind[DepartureKind.UNSTABLE], tuple(sorted(watch, key=_clearest)), tuple(not_judged), comparisons,
    )  # fmt: skip


def _clearest(departure: Departure) -> tuple[float, float, str, str]:
    return departure.p, -abs(departure.effect_pct), departure.name, departure.workload


# -- what each run ran under -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """What each run had of something: the number of its value, -1 where that is unknown."""

    numbers: Ints
    values: Sequence[str]


class _Cluster:
    """The runs of a cluster as arrays, by time."""

    def __init__(self, campaign: Probed, runs: pl.DataFrame, store: Store | None) -> None:
        self.cluster, self.gpus = campaign.cluster, campaign.gpus["gpu"].to_list()
        if not runs["began"].is_sorted():
            runs = runs.sort("began", maintain_order=True)
        runs = coupled_jobs(runs.with_columns(pl.lit(campaign.cluster, pl.Categorical).alias("cluster")))
        self.gpu, self.at, self.x = (runs[name].to_numpy() for name in ("gpu_no", "at", "x"))
        self.run_id, self.workload = runs["run_id"], runs["workload"]
        self.job, _ = numbers(runs["job_id"].cast(pl.String))
        self.read = {name: runs[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in _READ}
        stated = {name: runs["versions"].struct.field(name) for name in _STATED}
        stated["probe_version"] = runs["probe_version"].cast(pl.String)
        stated = {name: column for name, column in stated.items() if column.null_count() < len(column)}
        sightings = _sightings(campaign, store)
        for name in _SEEN:  # what no GPU has changed tells nothing
            seen = sightings.drop_nulls(name)
            if name in stated or seen.select("gpu_no", name).n_unique() > seen["gpu_no"].n_unique():
                stated[name] = _last_seen(runs, seen, name, stated.get(name))
        self.settings = {name: _Setting(*numbers(column)) for name, column in stated.items()}
        node = _Setting(*numbers(campaign.gpus["node"].cast(pl.String)))
        self.place = _Setting(node.numbers[self.gpu], node.values)
        self.arrivals = _arrivals(campaign, store)

    def by_workload(self) -> Iterator[tuple[str, Ints]]:
        """Each workload with the places of its runs."""
        workload_of_run, workloads = numbers(self.workload)
        for number, workload in enumerate(workloads):
            yield workload, np.flatnonzero(workload_of_run == number)


def _last_seen(runs: pl.DataFrame, seen: pl.DataFrame, name: str, stated: pl.Series | None) -> pl.Series:
    """What each run stated, or else what was last seen of its GPU when it began; before the first sight, that one.

    `seen`: gpu_no, at and the value, by GPU and time.
    """
    sights = seen.select("gpu_no", "at", pl.col(name).alias("last"))
    first = sights.group_by("gpu_no").agg(pl.col("last").first().alias("first"))
    rows = runs.select("gpu_no", "at").join_asof(sights.sort("at"), on="at", by="gpu_no", check_sortedness=False)
    rows = rows.join(first, on="gpu_no", how="left", maintain_order="left")
    own = pl.repeat(None, runs.height, dtype=pl.String, eager=True) if stated is None else stated
    return rows.select(pl.coalesce(own.alias("stated"), "last", "first").alias(name)).to_series()


def _sightings(campaign: Probed, store: Store | None) -> pl.DataFrame:
    """gpu_no, at (days) and `_SEEN`, by GPU and time: identities with a time, and drivers that events tell of."""
    frames = [pl.DataFrame(schema={"gpu": pl.String, "at": pl.Float64, **dict.fromkeys(_SEEN, pl.String)})]
    if store is not None:
        of_cluster, of_gpu = pl.col("cluster") == campaign.cluster, pl.col("gpu").is_not_null()
        identities = store.scan("gpus").filter(of_cluster).drop_nulls("first_seen").sort("first_seen")
        frames.append(store.collect(identities.select("gpu", _days("first_seen"), pl.col(_SEEN).cast(pl.String))))
        reloads = pl.col("kind") == EventKind.DRIVER_RELOADED.value, pl.col("version").is_not_null()
        events = store.scan("events").filter(of_cluster, *reloads)
        drivers = store.collect(events.select("gpu", "node", _days("ts"), pl.col("version").alias("driver")))
        frames.append(drivers.filter(of_gpu).drop("node"))
        frames.append(drivers.filter(~of_gpu).drop("gpu").join(campaign.gpus.select("gpu", "node"), on="node"))
        frames[-1] = frames[-1].drop("node")
    sightings = pl.concat(frames, how="diagonal")
    numbers = pl.Series("gpu_no", codes(sightings["gpu"], campaign.gpus["gpu"].to_list()))
    return sightings.with_columns(numbers).filter(numbers >= 0).sort("gpu_no", "at", maintain_order=True)


def _days(name: str) -> pl.Expr:
    return (pl.col(name).dt.epoch("us") / 86_400e6).alias("at")


def _arrivals(campaign: Probed, store: Store | None) -> dict[str, list[tuple[datetime, str]]]:
    """By node, when each GPU was seen there first; those that a node was first seen with did not come to it."""
    came: dict[str, list[tuple[datetime, str]]] = {}
    if store is None:
        return came
    rows = store.scan("gpus").filter(pl.col("cluster") == campaign.cluster).drop_nulls(["node", "first_seen"])
    rows = rows.group_by("node", "gpu").agg(pl.col("first_seen").min())
    later = pl.col("first_seen") > pl.col("first_seen").min().over("node")
    for node, gpu, at in store.collect(rows.filter(later).sort("first_seen", "gpu")).iter_rows():
        came.setdefault(node, []).append((at, gpu))
    return came


# -- one workload ----------------------------------------------------------------------------------------------------


class _Past:
    """The past of one workload, with the way back from sittings to runs."""

    def __init__(self, cluster: _Cluster, workload: str, rows: Ints) -> None:
        self.cluster, self.workload = cluster, workload
        self.of_nodes = 2 * int((cluster.job[rows] >= 0).sum()) > len(rows)
        if self.of_nodes:
            rows, x, owner, self.members = _by_job(cluster, rows)
        else:
            x, owner = cluster.x[rows], cluster.gpu[rows]
        present = np.bincount(owner) > 0
        numbers, series = np.flatnonzero(present), (np.cumsum(present) - 1)[owner]
        names = cluster.place.values if self.of_nodes else cluster.gpus
        self.names = [names[number] for number in numbers.tolist()]
        if not self.of_nodes:
            self.members = {name: (name,) for name in self.names}
        self.node = np.full(len(numbers), -1)
        self.node[series] = cluster.place.numbers[rows]
        regime, self.examples = self._regimes(rows)
        self.found = own_past(
            series, cluster.at[rows], x, count=len(numbers), node=self.node, regime=regime,
            warmth=cluster.read["temperature_c"][rows],
        )  # fmt: skip
        self.at = self.found.sittings.at
        self.rows, self.series = rows[self.found.runs.order], series[self.found.runs.order]
        """The runs by series and time, as places in those of the cluster."""
        self.begins = np.searchsorted(self.found.runs.sitting, np.arange(len(self.at) + 1))

    def _regimes(self, rows: Ints) -> tuple[Ints | None, Ints]:
        """The number of each run's software, None where all runs have the same; and of each a run that has it."""
        number = np.zeros(len(rows), np.int64)
        for setting in (self.cluster.settings[name] for name in _SOFTWARE if name in self.cluster.settings):
            number = number * (len(setting.values) + 1) + setting.numbers[rows] + 1
        if not number.any() or not np.ptp(number):
            return None, rows[:0]
        _, first, regime = np.unique(number, return_index=True, return_inverse=True)
        return regime, rows[first]

    def not_judged(self) -> Iterator[NotJudged]:
        """What of the workload could not be compared."""
        level = Level.NODE if self.of_nodes else Level.GPU
        alone, total = int((self.found.sittings.per_series == 1).sum()), len(self.names)
        if self.of_nodes:
            yield NotJudged(self.cluster.cluster, self.workload, Gap.PAST_OF_NODES, level=level)
        if alone:
            yield NotJudged(
                self.cluster.cluster, self.workload, Gap.PAST_ONE_SITTING, n=alone, total=total, level=level
            )
        if self.found.noise is None and alone < total:
            yield NotJudged(self.cluster.cluster, self.workload, Gap.PAST_TOO_FEW, level=level)

    def departures(self) -> Iterator[Departure]:
        """Steps that GPUs share, changes, drifts and unstable GPUs."""
        yield from map(self.step, self.found.shared)
        yield from map(self.change, self.found.steps)
        yield from map(self.drift, self.found.drifts)
        yield from map(self.unstable, self.found.unstable)

    def step(self, step: SharedStep) -> Departure:
        names = [self.names[series] for series in step.series.tolist()]
        gpus = tuple(gpu for name in names for gpu in self.members[name])
        joined = () if step.regimes is None else tuple(self._renewed(*self.examples[list(step.regimes)].tolist()))
        before, began = date_of(step.before), date_of(step.began)
        places = np.flatnonzero((self.at >= step.began) & np.isin(self.found.sittings.series, step.series))
        several = bool(len(places)) and float(self.at[places].max()) - step.began >= PAUSE
        until = () if step.lasts else (Measured(Quantity.UNTIL),)
        versions = (f"{c.figure} {c.text_before or 'unknown'} to {c.text or 'unknown'}" for c in joined)
        return self._departure(
            DepartureKind.STEP, step, places, level=Level.BATCH, gpus=gpus, n=len(gpus), q=step.p,
            name=" and ".join(versions) or f"all, on {began:%Y-%m-%d}", since=before, at=began,
            state=_state(is_confirmed=several and step.lasts), first_seen=began,
            measured=(Measured(Quantity.LAST_BEFORE, at=before), *until), joined_with=joined,
        )  # fmt: skip

    def change(self, change: LevelChange, *, is_newest: bool = False) -> Departure:
        since, at = date_of(self.at[change.place - 1]), date_of(self.at[change.place])
        after = change.end - change.place
        measured = [Measured(Quantity.LAST_BEFORE, at=since), Measured(Quantity.SITTINGS, after)]
        last = self.found.sittings.first[change.series] + self.found.sittings.per_series[change.series]
        if change.end < last:
            measured.append(Measured(Quantity.UNTIL, at=date_of(self.at[change.end])))
        return self._departure(
            DepartureKind.CHANGE, change, np.arange(change.place, change.end), measured=tuple(measured), since=since,
            at=at, joined_with=tuple(self._beside(change.series, change.begin, change.place, change.end)),
            state=_state(is_confirmed=after >= 2 and not is_newest),
        )  # fmt: skip

    def drift(self, drift: LevelChange) -> Departure:
        span = Measured(Quantity.SPAN, float(self.at[drift.end - 1] - self.at[drift.begin]), unit="d")
        measured = span, Measured(Quantity.SITTINGS, drift.end - drift.begin)
        joined = tuple(self._beside(drift.series, drift.begin, (drift.begin + drift.end) // 2, drift.end))
        return self._departure(
            DepartureKind.DRIFT, drift, np.arange(drift.begin, drift.end), measured=measured, joined_with=joined,
            state=State.CONFIRMED,
        )  # fmt: skip

    def unstable(self, change: LevelChange) -> Departure:
        row = self.found.instability[change.series]
        quantity = Quantity.SLOWER_RUNS if row["by_runs"] else Quantity.FAR_SITTINGS
        measured = Measured(quantity, int(row["far"]), float(row["rate"]), limit=int(row["total"]))
        return self._departure(
            DepartureKind.UNSTABLE, change, np.arange(change.begin, change.end), measured=(measured,),
            state=_state(is_confirmed=change.end - change.begin >= 2),
        )  # fmt: skip

    def _departure(
        self, kind: DepartureKind, change: LevelChange | SharedStep, places: Ints, **fields: Any
    ) -> Departure:
        """`places`: the sittings that show it; `fields`: of `Departure`."""
        if isinstance(change, LevelChange):
            name, n = self.names[change.series], int(self.found.sittings.per_series[change.series])
            fields |= {"name": name, "gpus": self.members[name], "n": n, "q": change.q}
            fields |= {"level": Level.NODE if self.of_nodes else Level.GPU, "first_seen": date_of(self.at[places[0]])}
        effect, low, high = map(in_pct, (change.effect, change.low, change.high))
        newest = [self._runs(place, place + 1) for place in places[-_NEWEST_RUNS:].tolist()]
        rows = np.concatenate(newest)[-_NEWEST_RUNS:]
        runs = tuple(self.cluster.run_id.gather(rows).cast(pl.String))
        return Departure(
            kind=kind, workload=self.workload, effect_pct=effect, low_pct=low, high_pct=high, p=change.p,
            last_seen=date_of(self.cluster.at[rows].max()), runs=runs, **fields,
        )  # fmt: skip

    def _runs(self, begin: int, end: int) -> Ints:
        """The runs of the sittings from one place to another."""
        return self.rows[self.begins[begin] : self.begins[end]]

    # -- what else changed

    def _renewed(self, old: int, new: int) -> Iterator[Measured]:
        """The software that differs between two runs."""
        for name in _SOFTWARE:
            if name in self.cluster.settings:
                yield from self._differs(name, *self.cluster.settings[name].numbers[[old, new]].tolist())

    def _differs(self, name: str, old: int, new: int) -> Iterator[Measured]:
        if old != new:
            values = [*self.cluster.settings[name].values, None]  # the last one is that of -1
            yield Measured(Quantity(name), text=values[new], text_before=values[old])

    def _beside(self, series: int, begin: int, place: int, end: int) -> Iterator[Measured]:
        """What is different from `place` on: software, place, neighbours, temperature, clock, power."""
        before, after = self._runs(begin, place), self._runs(place, end)
        last, first = self._runs(place - 1, place), self._runs(place, place + 1)
        for name, setting in self.cluster.settings.items():
            olds, news = ([n for n in setting.numbers[rows].tolist() if n >= 0] for rows in (last, first))
            if olds and news:
                yield from self._differs(name, olds[-1], news[0])
        node = self.node[series]
        if not self.of_nodes and node >= 0:
            since, until = date_of(self.at[place - 1]), date_of(self.at[place])
            came = self.cluster.arrivals.get(self.cluster.place.values[node], ())
            others = {gpu for at, gpu in came if since < at <= until and gpu != self.names[series]}
            yield from (Measured(Quantity.NEIGHBOUR, text=gpu) for gpu in sorted(others))
        for name, (quantity, unit) in _READ.items():
            old, new = self._medians(name, before, after)
            is_large = abs(new - old) >= _KELVIN if name not in _SHARE else abs(new / old - 1) >= _SHARE[name]
            if is_large and (old > 0 or name not in _SHARE):
                yield Measured(quantity, new, old, unit)
            if is_large and quantity is Quantity.TEMPERATURE and node >= 0 and not self.of_nodes:
                others_old, others_new = self._neighbours(series, begin, place, end)
                if (others_new - others_old) * (new - old) > 0:
                    yield Measured(Quantity.NEIGHBOURS_TEMPERATURE, others_new, others_old, unit)

    def _neighbours(self, series: int, begin: int, place: int, end: int) -> tuple[float, float]:
        """The median temperatures of the node's other GPUs in the same days."""
        others = self.rows[(self.node[self.series] == self.node[series]) & (self.series != series)]
        at = self.cluster.at[others]
        spells = ((self.at[begin], self.at[place - 1]), (self.at[place], self.at[end - 1]))
        before, after = (others[(at >= low) & (at <= high + 1.0)] for low, high in spells)
        return self._medians("temperature_c", before, after)

    def _medians(self, name: str, before: Ints, after: Ints) -> tuple[float, float]:
        """The medians of what was read in these runs; NaN where nothing was."""
        read = self.cluster.read[name]
        old, new = (values[np.isfinite(values)].tolist() for values in (read[before], read[after]))
        return (median(old), median(new)) if old and new else (np.nan, np.nan)


def _state(*, is_confirmed: bool) -> State:
    return State.CONFIRMED if is_confirmed else State.SUSPECTED


def _by_job(cluster: _Cluster, rows: Ints) -> tuple[Ints, Floats, Ints, dict[str, tuple[str, ...]]]:
    """Of each job on one node: its first run, the median of its log times, and its node; and the GPUs of each node."""
    rows = rows[(cluster.job[rows] >= 0) & (cluster.place.numbers[rows] >= 0)]
    _, first, job = np.unique(cluster.job[rows], return_index=True, return_inverse=True)
    node = cluster.place.numbers[rows]
    on_one = np.ones(len(first), bool)
    on_one[job[node != node[first][job]]] = False
    gpus: dict[int, set[int]] = {}
    for number, gpu in set(zip(node[on_one[job]].tolist(), cluster.gpu[rows[on_one[job]]].tolist(), strict=True)):
        gpus.setdefault(number, set()).add(gpu)
    members = {
        cluster.place.values[n]: tuple(sorted(cluster.gpus[gpu] for gpu in of_node)) for n, of_node in gpus.items()
    }
    x = groups_median(cluster.x[rows], job, len(first))
    return rows[first][on_one], x[on_one], node[first][on_one], members


# -- several together ------------------------------------------------------------------------------------------------


def _grouped(departures: Sequence[Departure], campaign: Probed) -> list[Departure]:
    """The departures, of which changes of several GPUs the same way may be one.

    Changes of many more GPUs on one date than on others, alike in size, are one of a batch: a part of the fleet got
    something that nobody recorded. Changes of most GPUs of a node between the same sittings are one of the node.
    """
    nodes = dict(campaign.gpus.select("gpu", "node").iter_rows())
    gpus_of_node = Counter(nodes.values())
    single = {
        id(departure): departure
        for departure in departures
        if departure.kind is DepartureKind.CHANGE and departure.level is Level.GPU
    }
    groups = [departure for departure in departures if id(departure) not in single]

    def join(name: str, level: Level, members: list[Departure]) -> None:
        groups.append(_joined(name, level, members))
        for change in members:
            del single[id(change)]

    for changes in _by_key(single.values(), lambda change: (change.workload, change.effect_pct > 0)):
        dates = sorted({change.at.date() for change in changes if change.at is not None})
        for day in dates:
            members = _alike([change for change in changes if id(change) in single and _spans(change, day)])
            on_nodes = len({nodes.get(change.name) or change.name for change in members})
            usual = 1 + (len(changes) - len(members)) / max(len(dates) - 1, 1)
            few = len(members) < _BATCH_GPUS or on_nodes < _BATCH_NODES or len(dates) < _BATCH_DATES
            if not few and poisson_at_least(len(members), usual) <= _BATCH_P:
                join(f"{len(members)} GPUs of {on_nodes} nodes", Level.BATCH, members)
    for changes in _by_key(
        single.values(), lambda c: (nodes.get(c.name), c.workload, c.effect_pct > 0, c.at and c.at.date())
    ):
        node = nodes.get(changes[0].name)
        together = len({change.name for change in changes})
        if node is not None and together >= max(_NODE_GPUS, _NODE_SHARE * gpus_of_node[node]):
            join(node, Level.NODE, changes)
    return [*groups, *single.values()]


def _by_key(changes: Iterable[Departure], key: Callable[[Departure], object]) -> list[list[Departure]]:
    by_key: dict[object, list[Departure]] = {}
    for change in changes:
        by_key.setdefault(key(change), []).append(change)
    return list(by_key.values())


def _spans(change: Departure, day: date) -> bool:
    """Whether the change can have been then."""
    return change.at is not None and change.since is not None and change.since.date() < day <= change.at.date()


def _alike(changes: list[Departure]) -> list[Departure]:
    """Those whose interval holds the middle one's size."""
    middle = sorted(change.effect_pct for change in changes)[len(changes) // 2] if changes else 0.0
    return [change for change in changes if change.low_pct <= middle <= change.high_pct]


def _joined(name: str, level: Level, members: list[Departure]) -> Departure:
    """The change of GPUs together: the middle one of them stands for it."""
    members = sorted(members, key=_clearest)
    middle = sorted(members, key=lambda change: change.effect_pct)[len(members) // 2]
    gpus = tuple(sorted({change.name for change in members}))
    at = min(change.at for change in members if change.at is not None)
    since = [change.since for change in members if change.since is not None and change.since < at]
    return replace(
        middle, kind=DepartureKind.STEP, level=level, name=name, gpus=gpus, p=members[0].p,
        q=max(change.q for change in members), n=len(gpus), at=at, since=max(since, default=None),
        state=_state(is_confirmed=all(change.state is State.CONFIRMED for change in members)),
        runs=tuple(run for change in members for run in change.runs),
        joined_with=tuple(c for c in members[0].joined_with if all(c in change.joined_with for change in members)),
    )  # fmt: skip
