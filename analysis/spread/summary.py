"""How the GPUs of a fleet vary: one row for each cluster, workload and level, with all its figures.

These describe a sample, as published studies do: the medians of all runs of each GPU, whatever their day. What a GPU's
level is, and will be in another sitting, the judge says (`verdicts/levels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from ...errors import InputError
from ..runs.columns import OTHERS, SPOKEN, Runs, numbers, workloads
from ..runs.measurements import measurements
from ..statistics import bootstrap
from ..statistics.correlation import Correlation, correlate
from ..statistics.dip import quantum
from ..statistics.modes import ModesTest, modes_test, places
from ..statistics.ordering import Floats, Ints, ascending, bounds, by_group, medians, tie_ranks
from ..statistics.repeatability import Moments, Repeatability
from ..statistics.shares import Shares, shares
from ..statistics.spread import FIGURES, Spread, spread
from .findings import Belongs, Leading, belongs_to, finding, leading
from .repeats import JOBS_COUPLE, by_job, icc_of, split_half, with_interval
from .resampling import Units, intervals, units

if TYPE_CHECKING:
    from ...store import Store

SEED = 2022
REPLICATES = 1000

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
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("slow", "fast"):
            found[name] = [{"gpu": gpu, "ratio": ratio} for gpu, ratio in found[name]]
        for name in ("icc", "icc_job", "modes_test"):
            found[name] = found[name].as_dict()
        found["correlation"] = {name: c.as_dict() for name, c in self.correlation.items()}
        found["modes"] = [dict(mode) for mode in self.modes]
        found["interval"] = {name: None if i is None else list(i) for name, i in self.interval.items()}
        return found


def variability(
    runs: pl.DataFrame,
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    progress: Progress | None = None,
    imported: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
) -> list[Variability]:
    """Two rows, level "run" then "gpu", for each (cluster, workload) of `runs`, in sorted order.

    `runs`: one row a run with `cluster`, `workload`, `gpu`, `value` (a time: lower is better), `unit`, and where
    known `sm_clock_mhz`, `power_w`, `temperature_c`, `job_id`, `cabinet`, `node`, `began`; exact duplicates are
    already dropped. `replicates`: bootstrap replicates, 0 for no intervals; the same seed gives the same
    intervals whatever the order of the rows. `imported`: for (cluster, workload), how many rows were imported,
    dropped as duplicates and refused; put into the rows as it is.

    Raises `InputError` for a missing column, a row without cluster or workload, and mixed units.
    """
    where: dict[str, pl.DataFrame | None] = {}
    rows: list[Variability] = []
    for one in workloads(runs):
        if one.cluster not in where:
            where[one.cluster] = _places(runs, one.cluster)
        counted = (imported or {}).get((one.cluster, one.workload))
        rows += _rows(one, where[one.cluster], replicates, seed, progress, dict(counted) if counted else None)
    return rows


def leading_workload(
    store: Store, cluster: str, among: Collection[str] | None = None, frame: pl.DataFrame | None = None
) -> Leading | None:
    """The workload of a cluster to lead with: over all its runs the widest spread that belongs to the GPUs.

    `among`: only these workloads, as `measurements` names them. Without intervals, which take long: so it is the same
    wherever it is shown. None where fewer than two GPUs have times. `frame`: of `measurements`, where it is
    read already.
    """
    frame = measurements(store, clusters=[cluster]) if frame is None else frame
    try:
        return leading(_width(runs) for runs in workloads(frame) if among is None or runs.workload in among)
    except InputError:  # a workload mixes units
        return None


def leading_of(rows: Iterable[Variability]) -> Leading | None:
    """The same of rows of `variability`."""
    return leading((row.workload, row.fence_pct, row.belongs) for row in rows if row.level == "gpu" and row.n > 1)


def _width(runs: Runs) -> tuple[str, float | None, Belongs]:
    """A workload, the width of the spread of its GPUs in %, and whether it belongs to them."""
    gpus = len(runs.names)
    if gpus < 2:
        return runs.workload, None, Belongs.UNKNOWN
    order = ascending(runs.value)
    by_gpu, starts = runs.value[by_group(runs.gpu, order, gpus)], bounds(runs.gpu, gpus)
    moments, fences = Moments.of(by_gpu, starts), spread(runs.value[order])
    icc_gpu, (icc_job, _) = icc_of(moments, by_gpu, starts, fences, "gpu"), by_job(runs, fences)
    belongs = belongs_to("gpu", icc_gpu, icc_job, float(np.median(moments.size)))
    return runs.workload, spread(np.sort(medians(by_gpu, starts))).figures["fence_pct"], belongs


def _rows(
    runs: Runs,
    where: pl.DataFrame | None,
    replicates: int,
    seed: int,
    progress: Progress | None,
    imported: dict[str, int] | None,
) -> list[Variability]:
    """The two rows of one workload."""
    gpus = len(runs.names)
    order = ascending(runs.value)
    ordered, owner = runs.value[order], runs.gpu[order]
    layout = by_group(runs.gpu, order, gpus)
    starts = bounds(runs.gpu, gpus)
    by_gpu = runs.value[layout]
    middle = medians(by_gpu, starts)
    middle_order = np.argsort(middle, kind="stable")
    middle_ordered = middle[middle_order]
    levels = {"run": spread(ordered), "gpu": spread(middle_ordered)}
    moments = Moments.of(by_gpu, starts)
    fences = levels["run"]
    icc_gpu = icc_of(moments, by_gpu, starts, fences, "gpu")
    icc_job, job_moments = by_job(runs, fences)
    correlations = _correlations(runs, order, ordered, middle)
    test = modes_test(middle_ordered, quantum(ordered))
    found: dict[str, dict[str, bootstrap.Interval | None]] = {
        level: dict.fromkeys(bootstrap.FIGURES) for level in levels
    }
    drawn = units(runs.names, middle_ordered, middle_order, where)
    reason = (
        "the bootstrap was switched off"
        if replicates < 1
        else "a bootstrap needs more than one GPU"
        if gpus < 2
        else None
    )
    if reason is None:
        resampled = {
            "run": bootstrap.Resampled(ordered, owner, gpus, drawn.of),
            "gpu": bootstrap.Resampled(middle_ordered, middle_order, gpus, drawn.of),
        }
        label = f"{runs.cluster} {runs.workload}"
        again = bootstrap.replicate(resampled, seed, drawn.count, replicates, progress and _labelled(progress, label))
        for level, one in resampled.items():
            found[level], of_icc = intervals(one, again[level], drawn)
            if level == "run":
                icc_gpu = with_interval(icc_gpu, of_icc)
        if job_moments is not None:
            icc_job = with_interval(icc_job, bootstrap.replicate_icc(job_moments, seed, replicates))
    halves = split_half(runs, order)
    share = _shares(runs, moments, where).as_dict()
    rows = []
    for level, figures_of in levels.items():
        at_runs = level == "run"
        values, owners = (ordered, owner) if at_runs else (middle_ordered, middle_order)
        slow, fast = _outliers(figures_of, values, owners, runs.names)
        modes = tuple(places(values, test.splits))
        reasons = dict(figures_of.reasons)
        reasons["interval"] = reason or _about(drawn, found[level], icc_job)
        rows.append(
            Variability(
                cluster=runs.cluster,
                workload=runs.workload,
                level=level,
                n=figures_of.n,
                gpus=gpus,
                unit=runs.unit,
                median=figures_of.median,
                **{name: figures_of.figures[name] for name in FIGURES},
                slow=slow,
                fast=fast,
                icc=icc_gpu,
                icc_job=icc_job,
                correlation=correlations[level],
                modes=modes,
                modes_test=test,
                split_half=halves,
                shares=share,
                interval=found[level],
                seed=seed,
                replicates=replicates,
                belongs=belongs_to(level, icc_gpu, icc_job, float(np.median(moments.size))),
                finding=finding(level, icc_gpu, icc_job, float(np.median(moments.size))),
                left_out=runs.left_out,
                reasons=reasons,
                imported=imported,
            )
        )
    return rows


def _about(drawn: Units, found: dict[str, bootstrap.Interval | None], icc_job: Repeatability) -> str:
    """What was resampled, and why the intervals are too narrow, if they are."""
    narrow = drawn.narrow
    if icc_job.value is not None and icc_job.value >= JOBS_COUPLE:
        narrow = f"the runs of one job share their time, but each {drawn.what} counts as independent"
    return f"{'' if narrow is None else f'too narrow: {narrow}; '}{drawn.says(found)}"


def _labelled(progress: Progress, label: str) -> Callable[[int, int], None]:
    return lambda done, wanted: progress(label, done, wanted)


def _outliers(
    figures: Spread, values: Floats, owners: Ints, names: list[str]
) -> tuple[tuple[Outlier, ...], tuple[Outlier, ...]]:
    """The slow and the fast ones, each worst first; `values` ascending, `owners` the GPU of each."""

    def listed(positions: range) -> tuple[Outlier, ...]:
        pairs = [(float(values[i]), names[owners[i]]) for i in positions]
        worst = sorted(pairs, key=lambda pair: (-abs(pair[0] - figures.median), pair[1]))
        return tuple(Outlier(gpu, x / figures.median if figures.median else None) for x, gpu in worst)

    return listed(range(figures.n - figures.slow, figures.n)), listed(range(figures.fast))


def _correlations(runs: Runs, order: Ints, ordered: Floats, middle: Floats) -> dict[str, dict[str, Correlation]]:
    """The correlation of time with each other column, at both levels."""
    gpus = len(runs.names)
    time_ranks = np.empty(len(ordered))
    time_ranks[order] = tie_ranks(ordered)
    found: dict[str, dict[str, Correlation]] = {"run": {}, "gpu": {}}
    for name in OTHERS:
        other = runs.other(name)
        if other is None or not (known := np.isfinite(other)).any():
            found["run"][name] = found["gpu"][name] = correlate(ordered, None, SPOKEN[name])
            continue
        if known.all():
            by_other = ascending(other)
            found["run"][name] = correlate(runs.value, other, SPOKEN[name], time_ranks=time_ranks, order=by_other)
            gpu = runs.gpu
        else:
            found["run"][name] = correlate(runs.value, other, SPOKEN[name])
            gpu, other = runs.gpu[known], other[known]
            by_other = ascending(other)
        typical = medians(other[by_group(gpu, by_other, gpus)], bounds(gpu, gpus))
        found["gpu"][name] = correlate(middle, typical, SPOKEN[name]).with_interval()
    return found


def _places(runs: pl.DataFrame, cluster: str) -> pl.DataFrame | None:
    """Each GPU's cabinet and node from any of its runs in the cluster: the pair that it was seen at most often."""
    columns = [name for name in ("cabinet", "node") if name in runs.columns and runs[name].null_count() < runs.height]
    if not columns:
        return None
    seen = runs.filter(pl.col("cluster").cast(pl.String) == cluster).select(
        pl.col("gpu").cast(pl.String), *(pl.col(name).cast(pl.String) for name in columns)
    )
    seen = seen.drop_nulls()
    if seen.is_empty():
        return None
    counted = (
        seen.group_by("gpu", *columns).len().sort([pl.col("len"), *columns], descending=[True, *[False] * len(columns)])
    )
    return counted.group_by("gpu", maintain_order=True).first()


def _shares(runs: Runs, moments: Moments, where: pl.DataFrame | None) -> Shares:
    """The shares of variance over the GPUs whose place is known, or over all when no place is."""
    if where is None:
        return shares(moments, None, None)
    named = pl.DataFrame({"gpu": runs.names}).with_row_index("number").join(where, on="gpu", how="inner").sort("number")
    if named.is_empty():
        return shares(moments, None, None)
    kept = named["number"].to_numpy()
    known = Moments(moments.size[kept], moments.mean[kept], moments.squares[kept])
    group = {name: numbers(named[name])[0] if name in named.columns else None for name in ("cabinet", "node")}
    return shares(known, group["cabinet"], group["node"])
