"""Whether differences repeat: by GPU, by job and between halves of the runs; whether a spread belongs to the GPUs; and
which probes add a column of their own.

A probe stays if (1) its ICC over sittings is at least `LEAST_ICC`, and (2) a regression on the probes before it in the
list leaves more than `LEAST_UNEXPLAINED` of its variance between GPUs. docs/how-we-know/statistics.md states the
formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from ...store.names import SIMULATED
from ..runs.measurements import Runs, measurements, numbers
from ..runs.sittings import days, groups_median, numbered
from ..statistics import bootstrap
from ..statistics.ordering import Floats, Ints, Spread, bounds, correlate, quantile
from ..statistics.repeatability import Moments, Repeatability, icc, mean_of

if TYPE_CHECKING:
    from ...store import Store


SOME = 0.25
MOST = 0.5


class Belongs(StrEnum):
    """Whether a spread belongs to the GPUs. docs/how-we-know/statistics.md has the table of cases."""

    GPUS = "gpus"
    """The GPUs differ and the difference repeats."""
    HIDDEN = "hidden"
    """The same, but a few extreme runs hide it."""
    OUTLIERS = "outliers"
    """Only the GPUs outside the fences differ in a way that repeats."""
    PART = "part"
    """A part of it repeats."""
    UNKNOWN = "unknown"
    """There are no repetitions, or too few GPUs."""
    TOO_FEW = "too few"
    """The interval is too wide to say."""
    NONE = "none"
    """It belongs to something else: the runs, or their jobs."""
    ALIKE = "alike"
    """There is no spread."""


_ORDER = (
    (Belongs.GPUS, Belongs.HIDDEN),
    (Belongs.OUTLIERS, Belongs.PART),
    (Belongs.UNKNOWN, Belongs.TOO_FEW),
    (Belongs.NONE, Belongs.ALIKE),
)


class Leading(NamedTuple):
    """The workload to lead with, and whether its spread belongs to the GPUs."""

    workload: str
    belongs: Belongs


def leading(spreads: Iterable[tuple[str, float | None, Belongs]]) -> Leading | None:
    """Of (workload, width of the spread of its GPUs in %, whether it belongs to them) the one to lead with.

    It is the widest spread that belongs to the GPUs; without one, the widest of which a part does, then the widest of
    which nobody knows. None where no spread has a width.
    """
    measured = [(workload, width, belongs) for workload, width, belongs in spreads if width is not None]
    for several in _ORDER:
        widths = {workload: (width, belongs) for workload, width, belongs in measured if belongs in several}
        if widths:
            workload = max(widths, key=lambda name: widths[name][0])
            return Leading(workload, widths[workload][1])
    return None


class _Repeats(NamedTuple):
    """How much of a spread repeats: all rows, those inside the fences, and the 95 % interval of the first."""

    every: float
    inside: float
    low: float | None
    high: float | None
    belongs: Belongs
    coupled: bool
    """Whether the runs of one job share their time."""


def _repeats(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> _Repeats | None:
    """None where the ICC is not known. At GPU level both are turned into the repeatability of a GPU's median of `runs`
    runs (Spearman-Brown formula; it holds for a mean, and nearly for a median under symmetric noise)."""
    if icc.value is None:
        return None
    trimmed = icc.value if icc.trimmed is None else icc.trimmed
    every, inside, low, high = (
        None if part is None else part if level == "run" else mean_of(part, runs)
        for part in (icc.value, trimmed, icc.low, icc.high)
    )
    assert every is not None
    assert inside is not None
    coupled = icc_job.value is not None and icc_job.value >= MOST
    if coupled and max(every, inside) < MOST and inside < SOME:
        low = high = None  # what the jobs take cannot belong to the GPUs, however wide the interval
    if low is not None and high is not None and low < SOME and high > MOST:
        belongs = Belongs.TOO_FEW
    elif every >= MOST and inside >= MOST:
        belongs = Belongs.GPUS
    elif every >= MOST:
        belongs = Belongs.OUTLIERS
    elif inside >= MOST:
        belongs = Belongs.HIDDEN
    elif min(every, inside) < SOME:
        belongs = Belongs.NONE
    else:
        belongs = Belongs.PART
    return _Repeats(every, inside, low, high, belongs, coupled)


def belongs_to(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> Belongs:
    """Whether the spread of one level belongs to the GPUs. `runs`: the median number of runs per GPU.

    It depends on two numbers: the ICC by GPU, and the ICC of the rows inside the fences.
    """
    repeats = _repeats(level, icc, icc_job, runs)
    if repeats is None:
        return Belongs.ALIKE if icc.alike else Belongs.UNKNOWN
    return repeats.belongs


def finding(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> str:
    """The sentence of `belongs_to`, with its numbers."""
    repeats = _repeats(level, icc, icc_job, runs)
    if repeats is None or icc.value is None:
        if icc.alike:
            return "Every run took the same time: there is no spread."
        return f"It is not known whether the spread belongs to the GPUs: {icc.reason}."
    trimmed = icc.value if icc.trimmed is None else icc.trimmed
    numbers_said = f"ICC by GPU {icc.value:.2f}"
    if icc.low is not None and icc.high is not None:
        numbers_said += f", 95 % interval {icc.low:.2f} to {icc.high:.2f}"
    numbers_said += f"; inside the fences {trimmed:.2f}"
    if level != "run":
        numbers_said += f"; of a median of {runs:g} runs {repeats.every:.2f}"
    jobs = f"the runs of one job share their time (ICC by job {icc_job.value:.2f})" if repeats.coupled else ""
    text = {
        Belongs.TOO_FEW: "There are too few data to say whether the spread belongs to the GPUs",
        Belongs.GPUS: "The GPUs differ and the difference repeats",
        Belongs.OUTLIERS: "Only the GPUs outside the fences differ in a way that repeats; the others differ less",
        Belongs.HIDDEN: "The GPUs differ and the difference repeats, but a few extreme runs hide it",
        Belongs.NONE: "The spread is real but does not belong to the GPUs",
        Belongs.PART: "Part of the spread belongs to the GPUs, part does not repeat",
    }[repeats.belongs]
    text += f" ({numbers_said})"
    if repeats.belongs is Belongs.TOO_FEW and jobs:
        text += f"; {jobs}"
    if repeats.belongs is Belongs.NONE:
        text += f": {jobs}; do not rank GPUs by it" if jobs else "; do not rank GPUs by it"
    return text + "."


JOBS_COUPLE = 0.5
"""The ICC by job from which the runs of a job are near-copies of one another."""


def icc_of(moments: Moments, values: Floats, starts: Ints, fences: Spread, by: str) -> Repeatability:
    """The ICC with its trimmed value. `values`: laid out by group."""
    repeatability = icc(moments, by)
    if repeatability.value is None:
        return repeatability
    inside = (values >= fences.lower) & (values <= fences.upper)
    inside_counts = np.add.reduceat(inside.astype(np.intp), starts[:-1])
    kept_starts = np.concatenate(([0], np.cumsum(inside_counts[inside_counts > 0])))
    return replace(repeatability, trimmed=icc(Moments.of(values[inside], kept_starts), by).value)


def with_interval(repeatability: Repeatability, interval: bootstrap.Interval | None) -> Repeatability:
    return (
        repeatability
        if interval is None or repeatability.value is None
        else replace(repeatability, low=interval[0], high=interval[1])
    )


def by_job(runs: Runs, fences: Spread) -> tuple[Repeatability, Moments | None]:
    """The ICC by job and the jobs' moments; neither when few runs share their job with another GPU."""
    if "job_id" not in runs.frame.columns or runs.frame["job_id"].null_count() == runs.frame.height:
        return Repeatability("job", reason="no run names its job"), None
    in_job = runs.frame["job_id"].is_not_null().to_numpy()
    job, names = numbers(runs.frame["job_id"].drop_nulls())
    gpu, value = runs.gpu[in_job], runs.value[in_job]
    layout = np.lexsort((value, gpu, job))
    job, gpu, value = job[layout], gpu[layout], value[layout]
    starts = bounds(job, len(names))
    # Inside a job the GPUs ascend, so a job with several has different ones first and last.
    several = gpu[starts[:-1]] != gpu[starts[1:] - 1]
    if not several.any():
        return Repeatability("job", groups=len(names), reason="no job holds several GPUs"), None
    # A chance repeat of one id among thousands would otherwise pass for a sample of jobs.
    if 2 * int(np.diff(starts)[several].sum()) < len(value):
        reason = "fewer than half of the runs share their job with another GPU"
        return Repeatability("job", groups=len(names), reason=reason), None
    moments = Moments.of(value, starts)
    return icc_of(moments, value, starts, fences, "job"), moments


def split_half(runs: Runs) -> dict[str, Any]:
    """The rank correlation of the medians of each GPU's even and odd runs, in the order in which they began."""
    gpus, n = len(runs.names), len(runs.value)
    sequence = np.arange(n)
    if "began" in runs.frame.columns:
        sequence = runs.frame["began"].arg_sort(nulls_last=True).to_numpy().astype(np.intp)
    narrow = runs.gpu.astype(np.min_scalar_type(gpus))  # of 16 bits and less, numpy sorts by radix
    layout = sequence[np.argsort(narrow[sequence], kind="stable")]
    starts = bounds(runs.gpu, gpus)
    odd = np.empty(n, dtype=np.intp)
    odd[layout] = (np.arange(n) - np.repeat(starts[:-1], np.diff(starts))) & 1
    half = runs.gpu * 2 + odd
    pair = groups_median(runs.value, half, 2 * gpus).reshape(gpus, 2)
    pair = pair[np.isfinite(pair).all(axis=1)]
    if len(pair) == 0:
        return {"spearman": None, "gpus": 0, "reason": "no GPU has two runs"}
    correlation = correlate(pair[:, 0], pair[:, 1], "half")
    result: dict[str, Any] = {"spearman": correlation.spearman, "gpus": len(pair)}
    return result if correlation.reason is None else {**result, "reason": correlation.reason}


LEAST_ICC, LEAST_UNEXPLAINED = 0.5, 0.3
MORE_GPUS = 10
"""There must be so many GPUs more than columns in a regression."""
_PARTS = 20  # GPUs are left out of the regression in so many parts, for its interval
_REPLICATES, _SEED = 1000, 1


@dataclass(frozen=True)
class Column:
    """A probe on the GPUs of one model in a cluster. Shares from 0 to 1; None where there are too few data."""

    cluster: str
    workload: str
    """The probe, with the kind of its runs where there are several: `gemm-fp32 [A100]`."""
    simulated: bool
    gpus: int
    sittings: int
    """The most that a GPU has."""
    icc: float | None = None
    icc_low: float | None = None
    icc_high: float | None = None
    unexplained: float | None = None
    """What of the variance between GPUs the probes before it leave unexplained."""
    unexplained_low: float | None = None
    unexplained_high: float | None = None
    explained_by: int = 0
    """How many probes before it were measured on the same GPUs."""

    @property
    def stays(self) -> bool | None:
        """Whether the rule keeps it; None where that is not known yet."""
        repeats = None if self.icc is None else self.icc >= LEAST_ICC
        adds = None if self.unexplained is None else self.unexplained > LEAST_UNEXPLAINED
        return False if False in (repeats, adds) else None if None in (repeats, adds) else True

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON."""
        return {**asdict(self), "stays": self.stays}


def keep_rule(store: Store, probes: Sequence[str]) -> list[Column]:
    """A row for each probe that was measured, by cluster and model; `probes`: the list, in its order."""
    runs = measurements(store, workloads=probes).filter(pl.col("value") > 0)
    gpu_rows = store.arrow("gpus", columns=["cluster", "gpu", "driver"]).to_pylist()
    simulated = {(row["cluster"], row["gpu"]) for row in gpu_rows if row["driver"] == SIMULATED}
    runs = runs.with_columns(pl.col("cluster", "workload", "gpu").cast(pl.String), at=days())
    runs = runs.with_columns(
        value=pl.col("value").log(),
        probe=pl.col("workload").str.split(" [").list.first(),
        kind=pl.col("workload").str.extract(r"\[(.*)\]$").fill_null(""),
    )
    order = {name: place for place, name in enumerate(probes)}
    columns: list[Column] = []
    for (cluster, _), part in runs.group_by("cluster", "kind", maintain_order=True):
        of_probe = {str(name): rows for (name,), rows in part.group_by("probe", maintain_order=True)}
        names = sorted(of_probe, key=lambda name: order.get(name, len(order)))
        sittings = {name: _sittings(of_probe[name]) for name in names}
        for place, name in enumerate(names):
            workload, gpu = of_probe[name].row(0, named=True)["workload"], of_probe[name]["gpu"][0]
            before = [sittings[earlier] for earlier in names[:place]]
            columns.append(_column(str(cluster), workload, sittings[name], before, (cluster, gpu) in simulated))
    return columns


def _sittings(runs: pl.DataFrame) -> dict[str, Floats]:
    """By GPU: the median of each of its sittings, ln time."""
    gpu = runs["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    sitting = pl.Series("sitting", numbered(gpu, runs["at"].to_numpy()))
    medians = runs.with_columns(sitting).group_by("gpu", "sitting").agg(pl.col("value").median()).sort("gpu", "sitting")
    return {str(name): rows["value"].to_numpy() for (name,), rows in medians.group_by("gpu", maintain_order=True)}


def _column(
    cluster: str, workload: str, sittings: dict[str, Floats], before: list[dict[str, Floats]], simulated: bool
) -> Column:  # fmt: skip
    counts = np.array([len(values) for values in sittings.values()])
    values, starts = np.concatenate(list(sittings.values())), np.append(0, np.cumsum(counts))
    moments = Moments.of(values, starts)
    repeats = icc(moments, "gpu")
    interval = bootstrap.replicate_icc(moments, _SEED, _REPLICATES) if repeats.value is not None else None
    within = float(moments.squares.sum() / max(1, (counts - 1).sum())) if counts.max() > 1 else None
    usable = [predictor for predictor in before if sittings.keys() <= predictor.keys()]
    y = np.array([level.mean() for level in sittings.values()])
    x = np.array([[predictor[gpu].mean() for gpu in sittings] for predictor in usable]).reshape(len(usable), len(y)).T
    unexplained = unexplained_low = unexplained_high = None
    if within is not None and len(y) >= x.shape[1] + MORE_GPUS:
        noise = within * float((1 / counts).mean())
        unexplained = _unexplained(y, x, noise)
        if unexplained is not None:
            unexplained_low, unexplained_high = _interval(y, x, noise, unexplained)
    low, high = interval if interval is not None else (None, None)
    return Column(
        cluster, workload, simulated, len(y), int(counts.max()), icc=repeats.value, icc_low=low, icc_high=high,
        unexplained=unexplained, unexplained_low=unexplained_low, unexplained_high=unexplained_high,
        explained_by=len(usable),
    )  # fmt: skip


def _unexplained(y: Floats, x: Floats, noise: float) -> float | None:
    """(s_res^2 - noise) / (s_y^2 - noise), from 0 to 1; None where the GPUs do not differ by more than noise.

    s_res^2 is the residual variance of the regression of `y` (gpus,) on `x` (gpus, columns), s_y^2 the variance of
    `y`, each over its degrees of freedom; `noise` is the variance of the mean of a GPU's sittings about its level.
    """
    centred, design = y - y.mean(), x - x.mean(axis=0)
    total = float(centred @ centred) / (len(y) - 1) - noise
    if total <= 0:
        return None
    scale = np.linalg.norm(design, axis=0)
    solution, _, rank, _ = np.linalg.lstsq(design[:, scale > 0] / scale[scale > 0], centred, rcond=1e-10)
    residual = centred - design[:, scale > 0] / scale[scale > 0] @ solution
    residual_variance = float(residual @ residual) / (len(y) - 1 - int(rank)) - noise
    return float(np.clip(residual_variance / total, 0.0, 1.0))


def _interval(y: Floats, x: Floats, noise: float, share: float) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval, by leaving out GPUs a part at a time (the delete-a-group jackknife, Student's t)."""
    parts = min(_PARTS, len(y) // 2)
    part = np.random.default_rng(_SEED).permutation(np.arange(len(y)) % parts)
    left_out = [_unexplained(y[part != group], x[part != group], noise) for group in range(parts)]
    shares = np.array([value for value in left_out if value is not None])
    if len(shares) < parts:
        return None, None
    error = float(np.sqrt((parts - 1) / parts * ((shares - shares.mean()) ** 2).sum()))
    half = float(quantile(0.025, parts - 1)) * error
    return max(0.0, share - half), min(1.0, share + half)
