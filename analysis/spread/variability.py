"""How the GPUs of a fleet vary: one row for each cluster, workload and level, with all its figures; and whether a GPU
that is slow in one workload is slow in another.

These describe a sample, as published studies do: the medians of all runs of each GPU, whatever their day. What a GPU's
level is, and will be in another sitting, the judge says (`verdicts/levels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from ...errors import InputError
from ..runs.measurements import OTHERS, SPOKEN, Runs, gpu_medians, measurements, numbers, workloads
from ..runs.sittings import groups_median, sorted_in_groups
from ..statistics import bootstrap
from ..statistics.modes import ModesTest, modes_test, places, quantum
from ..statistics.ordering import (
    FIGURES,
    Correlation,
    Floats,
    Ints,
    Spread,
    bounds,
    correlate,
    ranks,
    spearman_interval,
    spread,
)
from ..statistics.repeatability import Moments, Repeatability, Shares, shares
from .repeats import (
    JOBS_COUPLE,
    Belongs,
    Leading,
    belongs_to,
    by_job,
    finding,
    icc_of,
    leading,
    split_half,
    with_interval,
)

if TYPE_CHECKING:
    from ...store import Store


SEED = 2022
REPLICATES = 1000
LEVELS = ("run", "gpu")
"""Of rows: every run, and the median of each GPU."""

Progress = Callable[[str, int, int], None]
"""Called with what is being resampled, the replicates done and the replicates wanted."""


class Outlier(NamedTuple):
    """A run or a GPU outside the fences, and how far: its time over the median."""

    gpu: str
    ratio: float | None


@dataclass(frozen=True)
class Variability:
    """How one workload's times spread over one cluster, over its runs or over its GPUs' medians.

    docs/how-we-know/statistics.md has the definitions. Percentages are of the median (`cov_pct`: of the mean). A figure
    that is undefined is None and has its reason in `reasons` or in its own `reason`.
    """

    cluster: str
    workload: str
    level: str
    """"run": every run counts once; "gpu": every GPU counts once, with the median of its runs."""
    n: int
    gpus: int
    unit: str | None
    median: float
    fence_pct: float | None
    whisk_pct: float | None
    range_pct: float | None
    p95p5_pct: float | None
    cov_pct: float | None
    rcov_pct: float | None
    worst_over_median: float | None
    slow: tuple[Outlier, ...]
    fast: tuple[Outlier, ...]
    icc: Repeatability
    """Of a single run, by GPU; the same at both levels."""
    icc_job: Repeatability
    correlation: dict[str, Correlation]
    modes: tuple[dict[str, float | int], ...]
    modes_test: ModesTest
    split_half: dict[str, Any]
    shares: dict[str, Any]
    interval: dict[str, tuple[float, float] | None]
    seed: int
    replicates: int
    belongs: Belongs
    """Whether the spread belongs to the GPUs: what `finding` says in words."""
    finding: str
    left_out: int
    reasons: dict[str, str] = field(default_factory=dict)
    imported: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON-ready values under the keys of `whorl.variability/1`."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("slow", "fast"):
            fields[name] = [{"gpu": gpu, "ratio": ratio} for gpu, ratio in fields[name]]
        for name in ("icc", "icc_job", "modes_test"):
            fields[name] = fields[name].as_dict()
        fields["correlation"] = {name: c.as_dict() for name, c in self.correlation.items()}
        fields["modes"] = [dict(mode) for mode in self.modes]
        fields["interval"] = {name: None if i is None else list(i) for name, i in self.interval.items()}
        return fields


def variability(
    runs: pl.DataFrame,
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    progress: Progress | None = None,
    imported: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
    levels: Sequence[str] = LEVELS,
) -> list[Variability]:
    """Two rows, level "run" then "gpu", for each (cluster, workload) of `runs`, in sorted order; or only those of
    `levels`, as a large fleet has many runs for each GPU, and each replicate orders them all.

    `runs`: one row a run with `cluster`, `workload`, `gpu`, `value` (a time: lower is better), `unit`, and where
    known `sm_clock_mhz`, `power_w`, `temperature_c`, `job_id`, `cabinet`, `node`, `began`; exact duplicates are
    already dropped. `replicates`: bootstrap replicates, 0 for no intervals; the same seed gives the same
    intervals whatever the order of the rows. `imported`: for (cluster, workload), how many rows were imported,
    dropped as duplicates and refused; put into the rows as it is.

    Raises `InputError` for a missing column, a row without cluster or workload, and mixed units.
    """
    places_by_cluster: dict[str, pl.DataFrame | None] = {}
    rows: list[Variability] = []
    for of_workload in workloads(runs):
        if of_workload.cluster not in places_by_cluster:
            places_by_cluster[of_workload.cluster] = _places(runs, of_workload.cluster)
        counted = (imported or {}).get((of_workload.cluster, of_workload.workload))
        gpu_places = places_by_cluster[of_workload.cluster]
        of_levels = _rows(of_workload, gpu_places, replicates, seed=seed, progress=progress, levels=levels)
        rows += [replace(row, imported=dict(counted)) for row in of_levels] if counted else of_levels
    return rows


def leading_workload(store: Store, cluster: str) -> Leading | None:
    """The workload of a cluster to lead with: over all its runs the widest spread that belongs to the GPUs.

    Without intervals, which take long: so it is the same wherever it is shown. None where fewer than two GPUs have
    times.
    """
    try:
        return leading(map(width, workloads(measurements(store, clusters=[cluster]))))
    except InputError:  # a workload mixes units
        return None


def leading_of(rows: Iterable[Variability]) -> Leading | None:
    """The same of rows of `variability`."""
    return leading((row.workload, row.fence_pct, row.belongs) for row in rows if row.level == "gpu" and row.n > 1)


@dataclass(frozen=True)
class _Repeating:
    """How far the runs of a workload repeat, by GPU and by job."""

    moments: Moments
    fences: Spread
    """Of all runs."""
    middle: Floats
    """(gpus,) the median of each GPU."""
    icc: Repeatability
    icc_job: Repeatability
    of_jobs: Moments | None

    @classmethod
    def of(cls, runs: Runs) -> _Repeating:
        starts, fences = bounds(runs.gpu, len(runs.names)), spread(np.sort(runs.value))
        by_gpu = sorted_in_groups(runs.value, runs.gpu, np.diff(starts))
        moments = Moments.of(by_gpu, starts)
        icc_job, of_jobs = by_job(runs, fences)
        middle = groups_median(runs.value, runs.gpu, len(runs.names))
        return cls(moments, fences, middle, icc_of(moments, by_gpu, starts, fences, "gpu"), icc_job, of_jobs)

    @property
    def usual_runs(self) -> float:
        """The median number of runs of a GPU."""
        return float(np.median(self.moments.size))


Width = tuple[str, float | None, Belongs]
"""A workload, the width of the spread of its GPUs in %, and whether it belongs to them: what `leading` asks for."""


def width(runs: Runs) -> Width:
    """How wide the spread of the GPUs is in one workload, without intervals, which take long."""
    if len(runs.names) < 2:
        return runs.workload, None, Belongs.UNKNOWN
    repeating = _Repeating.of(runs)
    belongs = belongs_to("gpu", repeating.icc, repeating.icc_job, repeating.usual_runs)
    return runs.workload, spread(np.sort(repeating.middle)).figures["fence_pct"], belongs


def _rows(
    runs: Runs, gpu_places: pl.DataFrame | None, replicates: int, *, seed: int, progress: Progress | None,
    levels: Sequence[str],
) -> list[Variability]:  # fmt: skip
    """The rows of one workload."""
    gpus, repeating = len(runs.names), _Repeating.of(runs)
    moments, middle, icc_gpu, icc_job = repeating.moments, repeating.middle, repeating.icc, repeating.icc_job
    order = np.argsort(middle, kind="stable")
    ordered, owners = {"run": np.sort(runs.value), "gpu": middle[order]}, {"gpu": order}
    if "run" in levels:
        owners["run"] = runs.gpu[np.argsort(runs.value, kind="stable")]
    test = modes_test(ordered["gpu"], quantum(ordered["run"]))
    intervals_of: dict[str, dict[str, bootstrap.Interval | None]] = {
        level: dict.fromkeys(bootstrap.FIGURES) for level in levels
    }
    drawn = units(runs.names, middle, gpu_places)
    reason = None if replicates >= 1 else "the bootstrap was switched off"
    if reason is None and gpus < 2:
        reason = "a bootstrap needs more than one GPU"
    if reason is None:
        resampled = {level: bootstrap.Resampled(ordered[level], owners[level], gpus, drawn.of) for level in levels}
        of_icc = bootstrap.GroupMoments(moments, drawn.of)
        tell = progress and partial(progress, f"{runs.cluster} {runs.workload}")
        again = bootstrap.replicate({**resampled, "icc": of_icc}, seed, drawn.count, replicates, tell)
        intervals_of = {level: intervals(resampled[level], again[level], drawn) for level in levels}
        icc_gpu = with_interval(icc_gpu, of_icc.interval(again["icc"], drawn.count))
        if repeating.of_jobs is not None:
            icc_job = with_interval(icc_job, bootstrap.replicate_icc(repeating.of_jobs, seed, replicates))
    correlations, halves, share = (
        _correlations(runs, middle, levels),
        split_half(runs),
        _shares(runs, moments, gpu_places).as_dict(),
    )
    rows = []
    for level in levels:
        values = ordered[level]
        of_level = repeating.fences if level == "run" else spread(values)
        slow, fast = _outliers(of_level, values, owners[level], runs.names)
        about = (level, icc_gpu, icc_job, repeating.usual_runs)
        interval_says = reason or _about(drawn, intervals_of[level], icc_job)
        rows.append(
            Variability(
                cluster=runs.cluster, workload=runs.workload, level=level, n=of_level.n, gpus=gpus, unit=runs.unit,
                median=of_level.median, **{name: of_level.figures[name] for name in FIGURES}, slow=slow, fast=fast,
                icc=icc_gpu, icc_job=icc_job, correlation=correlations[level],
                modes=tuple(places(values, test.splits)), modes_test=test, split_half=halves, shares=share,
                interval=intervals_of[level], seed=seed, replicates=replicates, belongs=belongs_to(*about),
                finding=finding(*about), left_out=runs.left_out, imported=None,
                reasons={**of_level.reasons, "interval": interval_says},
            )
        )  # fmt: skip
    return rows


def _about(drawn: Units, intervals_found: dict[str, bootstrap.Interval | None], icc_job: Repeatability) -> str:
    """What was resampled, and why the intervals are too narrow, if they are."""
    narrow = drawn.narrow
    if icc_job.value is not None and icc_job.value >= JOBS_COUPLE:
        narrow = f"the runs of one job share their time, but each {drawn.what} counts as independent"
    return f"{'' if narrow is None else f'too narrow: {narrow}; '}{drawn.says(intervals_found)}"


def _outliers(
    figures: Spread, values: Floats, owners: Ints, names: list[str]
) -> tuple[tuple[Outlier, ...], tuple[Outlier, ...]]:
    """The slow and the fast ones, each worst first; `values` ascending, `owners` the GPU of each."""

    def listed(positions: range) -> tuple[Outlier, ...]:
        pairs = [(float(values[i]), names[owners[i]]) for i in positions]
        worst = sorted(pairs, key=lambda pair: (-abs(pair[0] - figures.median), pair[1]))
        return tuple(Outlier(gpu, x / figures.median if figures.median else None) for x, gpu in worst)

    return listed(range(figures.n - figures.slow, figures.n)), listed(range(figures.fast))


def _correlations(runs: Runs, middle: Floats, levels: Sequence[str]) -> dict[str, dict[str, Correlation]]:
    """The correlation of time with each other column, at these levels. `middle`: (gpus,) the medians of GPUs."""
    by_level: dict[str, dict[str, Correlation]] = {level: {} for level in levels}
    for name in OTHERS:
        column = runs.other(name)
        if "run" in levels:
            by_level["run"][name] = correlate(runs.value, column, SPOKEN[name])
        if "gpu" in levels:
            typical = None if column is None else gpu_medians(column, runs.gpu, len(middle))
            by_level["gpu"][name] = correlate(middle, typical, SPOKEN[name]).with_interval()
    return by_level


def _places(runs: pl.DataFrame, cluster: str) -> pl.DataFrame | None:
    """Each GPU's cabinet and node from any of its runs in the cluster: the pair that it was seen at most often."""
    columns = [name for name in ("cabinet", "node") if name in runs.columns and runs[name].null_count() < runs.height]
    if not columns:
        return None
    sightings = runs.filter(pl.col("cluster").cast(pl.String) == cluster).select("gpu", *columns).drop_nulls()
    if sightings.is_empty():
        return None
    counted = sightings.group_by("gpu", *columns).len().with_columns(pl.col("gpu", *columns).cast(pl.String))
    counted = counted.sort(pl.col("len"), *columns, descending=[True, *[False] * len(columns)])
    return counted.group_by("gpu", maintain_order=True).first()


def _shares(runs: Runs, moments: Moments, gpu_places: pl.DataFrame | None) -> Shares:
    """The shares of variance over the GPUs whose place is known, or over all when no place is."""
    if gpu_places is None:
        return shares(moments, None, None)
    placed = (
        pl.DataFrame({"gpu": runs.names})
        .with_row_index("number")
        .join(gpu_places, on="gpu", how="inner")
        .sort("number")
    )
    if placed.is_empty():
        return shares(moments, None, None)
    numbers_of_placed = placed["number"].to_numpy()
    of_placed = Moments(
        moments.size[numbers_of_placed], moments.mean[numbers_of_placed], moments.squares[numbers_of_placed]
    )
    group = {name: numbers(placed[name])[0] if name in placed.columns else None for name in ("cabinet", "node")}
    return shares(of_placed, group["cabinet"], group["node"])


FEW = 20
"""Units below which every interval is too narrow."""
_WIDEST = 5.0
"""Times its lower end, the most that the upper end of the coefficient of variation may be: beyond it a few values
decide the figure, and no resampling says what others would do."""
LEAST_GROUPS = 6
"""Nodes or cabinets below which the data can hardly show that they differ: they count as different, unless they are
more alike than chance makes them."""
FEW_FOR_TAILS = 50
"""Units below which there is no interval for what rests on the outer twentieth of the values."""


@dataclass(frozen=True)
class Units:
    """What the bootstrap draws."""

    what: str
    """"GPU", "node" or "cabinet"."""
    count: int
    of: Ints | None = None
    """(gpus,) the unit of each GPU; None where each GPU is one."""

    @property
    def narrow(self) -> str | None:
        """Why the intervals may be too narrow; None if they are not."""
        return f"they come from fewer than {FEW} {self.what}s" if self.count < FEW else None

    def says(self, intervals_found: dict[str, bootstrap.Interval | None]) -> str:
        """What was resampled and what has no interval, a sentence."""
        text = f"from {self.count:,} {self.what}s that were resampled"
        if self.what != "GPU":
            text += f", because GPUs of a {self.what} are alike"
        why = {
            "whisk_pct": "its ends are two single values",
            "worst_over_median": "it is one value, and no resample has a larger one",
            "cov_pct": "a few values decide it",
        }
        if self.count < LEAST_GROUPS:
            why["fence_pct"] = f"fewer than {LEAST_GROUPS} {self.what}s"
        if self.count < FEW_FOR_TAILS:
            why["p95p5_pct"] = f"fewer than {FEW_FOR_TAILS} {self.what}s"
        none = [f"{name} ({why[name]})" for name in why if intervals_found[name] is None]
        return f"{text}; none for {', '.join(none)}"


def units(names: list[str], medians: Floats, gpu_places: pl.DataFrame | None) -> Units:
    """Cabinets, if several nodes are in one and those of a cabinet are more alike than others; else nodes, if that is
    so of the GPUs of a node; else GPUs.

    `medians`: (gpus,) of the GPUs; `gpu_places`: `gpu`, `node` and `cabinet`.
    """
    chosen = Units("GPU", len(names))
    if gpu_places is None:
        return chosen
    rank = ranks(medians)
    places = pl.DataFrame({"gpu": names}).join(gpu_places, on="gpu", how="left", maintain_order="left")
    unit = np.arange(len(names))
    for kind in ("node", "cabinet"):
        if kind not in places.columns:
            continue
        is_placed = places[kind].is_not_null().to_numpy()
        group, groups = numbers(places[kind].drop_nulls())
        # Of what was found to be alike, the mean is one value.
        lower, first, of_lower = np.unique(unit[is_placed], return_index=True, return_inverse=True)
        mean = np.bincount(of_lower, rank[is_placed]) / np.bincount(of_lower)
        if not 1 < len(groups) < len(lower) or not _alike(mean, group[first], len(groups)):
            continue
        unit = np.full(len(names), -1)
        unit[is_placed] = group
        unit[~is_placed] = len(groups) + np.arange(int((~is_placed).sum()))
        chosen = Units(kind, len(groups) + int((~is_placed).sum()), unit)
    return chosen


def _alike(value: Floats, group: Ints, groups: int) -> bool:
    """Whether values of a group are more alike than others: the mean square between groups over that within is 1, give
    or take its standard error, if groups do not matter."""
    size = np.bincount(group, minlength=groups)
    away = value - value.mean()
    between = float((np.bincount(group, away, groups) ** 2 / size).sum())
    within = float((away**2).sum()) - between
    freedom = groups - 1, len(value) - groups
    clear = 1.0 if groups < LEAST_GROUPS else 1.0 + np.sqrt(2.0 / freedom[0] + 2.0 / freedom[1])
    return bool(between / freedom[0] > clear * within / freedom[1])


def intervals(
    resampled: bootstrap.Resampled, replicated: dict[str, Floats], drawn_units: Units
) -> dict[str, bootstrap.Interval | None]:
    """The intervals of the headline figures."""
    once = resampled.figures(np.ones((1, drawn_units.count), dtype=np.int32))
    by_figure = {
        name: bootstrap.percentile_interval(replicated[name], float(once[name][0]), drawn_units.count)
        for name in bootstrap.FIGURES
    }
    by_figure["cov_pct"] = cov = bootstrap.cov_interval(once, replicated, drawn_units.count)
    if cov is not None and cov[1] > _WIDEST * cov[0]:
        by_figure["cov_pct"] = None
    by_figure["whisk_pct"] = by_figure["worst_over_median"] = None
    if drawn_units.count < LEAST_GROUPS:  # the quartiles of its resamples are those of a few units, in few combinations
        by_figure["fence_pct"] = None
    if drawn_units.count < FEW_FOR_TAILS:
        by_figure["p95p5_pct"] = None
    return by_figure


TIME = "time"


@dataclass(frozen=True)
class Across:
    """The Spearman correlation between a figure of one workload and a figure of another, over GPU medians.

    `n` GPUs are known in both; `low` and `high` are a 95 % interval (Bonett and Wright's, see
    `correlation.spearman_interval`, which takes the GPUs as independent). `ambiguous` counts the GPU names of
    the two workloads that could not be used as a link because they lead to several GPUs.
    """

    cluster: str
    workload_a: str
    workload_b: str
    figure_a: str
    figure_b: str
    n: int
    spearman: float | None
    low: float | None
    high: float | None
    ambiguous: int
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class Names:
    """What every name of a GPU in one cluster leads to; an ambiguous one leads to itself."""

    identity: dict[str, str]
    ambiguous: frozenset[str]


def across(runs: pl.DataFrame, *, identities: pl.DataFrame | None = None) -> list[Across]:
    """The rank correlations between each two workloads of each cluster, in sorted order.

    `runs`: as for `variability`. `identities`: where known, `cluster`, `gpu`, `uuid`, `place` (the last two may be
    null); a row with both says that they are one GPU, so that a GPU named by its place in one workload and by its
    UUID in another is found in both. A place with two UUIDs or a UUID with two places links nothing.

    First time against time; then each figure (time, sm_clock, power, temperature) of the one against each of the
    other, where both workloads have it. Raises `InputError` as `variability` does.
    """
    rows: list[Across] = []
    clusters: dict[str, list[Runs]] = {}
    for of_workload in workloads(runs):
        clusters.setdefault(of_workload.cluster, []).append(of_workload)
    for cluster, members in clusters.items():
        names = linked_names(identities, cluster)
        tables = [_medians(of_workload, names) for of_workload in members]
        for (a, table_a), (b, table_b) in combinations(zip(members, tables, strict=True), 2):
            ambiguous = len((set(a.names) | set(b.names)) & names.ambiguous)
            rows += _pair(a, b, table_a, table_b, ambiguous)
    return rows


def linked_names(identities: pl.DataFrame | None, cluster: str) -> Names:
    """What the names of a cluster's GPUs lead to: a UUID where one is known, else a place, else the name."""
    if identities is None:
        return Names({}, frozenset())
    of_cluster = identities.filter(pl.col("cluster").cast(pl.String) == cluster)
    rows = list(of_cluster.select(pl.col("gpu", "uuid", "place").cast(pl.String)).unique().iter_rows())
    linked = {(place, uuid) for _, uuid, place in rows if uuid is not None and place is not None}
    places = _groups(linked)
    uuids = _groups((uuid, place) for place, uuid in linked)
    # Of a UUID seen at two places neither place is a link; the UUID itself still names one GPU.
    ambiguous = {place for place, uuid in linked if len(places[place]) > 1 or len(uuids[uuid]) > 1}
    identity = {place: uuid for place, uuid in linked if place not in ambiguous}
    # A GPU may go by a third name, such as an index on a host.
    aliases: dict[str, set[str]] = {}
    for gpu, uuid, place in rows:
        leads_to = uuid if uuid is not None else place if place is None else identity.get(place, place)
        if leads_to is not None and gpu not in places and gpu not in uuids:
            aliases.setdefault(gpu, set()).add(leads_to)
    for gpu, others in aliases.items():
        if len(others) > 1 or not others.isdisjoint(ambiguous):
            ambiguous.add(gpu)
        else:
            identity[gpu] = next(iter(others))
    return Names(identity, frozenset(ambiguous))


def _groups(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, set()).add(value)
    return groups


def _medians(runs: Runs, names: Names) -> tuple[list[str], dict[str, Floats]]:
    """The GPUs of a workload by identity, sorted, and for each figure the median of each."""
    identity = [names.identity.get(name, name) for name in runs.names]
    distinct = sorted(set(identity))
    number = {name: i for i, name in enumerate(distinct)}
    gpu: Ints = np.array([number[name] for name in identity], dtype=np.intp)[runs.gpu]
    figures = {TIME: gpu_medians(runs.value, gpu, len(distinct))}
    for name in OTHERS:
        values = runs.other(name)
        if values is not None and np.isfinite(values).any():
            figures[name] = gpu_medians(values, gpu, len(distinct))
    return distinct, figures


def _pair(
    a: Runs,
    b: Runs,
    table_a: tuple[list[str], dict[str, Floats]],
    table_b: tuple[list[str], dict[str, Floats]],
    ambiguous: int,
) -> list[Across]:
    """The rows of two workloads."""
    shared, in_a, in_b = np.intersect1d(
        np.array(table_a[0], dtype=object), np.array(table_b[0], dtype=object), return_indices=True
    )
    rows = []
    pairs = [(x, y) for x in (TIME, *OTHERS) for y in (TIME, *OTHERS) if x in table_a[1] and y in table_b[1]]
    for figure_a, figure_b in pairs:
        x, y = table_a[1][figure_a][in_a], table_b[1][figure_b][in_b]
        in_both = np.isfinite(x) & np.isfinite(y)
        x, y = x[in_both], y[in_both]
        result = correlate(x, y, f"{figure_b} of {b.workload}", time_is=f"{figure_a} of {a.workload}")
        interval = None if result.spearman is None else spearman_interval(result.spearman, result.n)
        rows.append(
            Across(
                cluster=a.cluster,
                workload_a=a.workload,
                workload_b=b.workload,
                figure_a=figure_a,
                figure_b=figure_b,
                n=result.n,
                spearman=result.spearman,
                low=interval[0] if interval else None,
                high=interval[1] if interval else None,
                ambiguous=ambiguous,
                reason=result.reason if len(shared) else "no GPU is known in both",
            )
        )
    return rows
