"""Passive fingerprints: how GPUs rank in compute speed, from the telemetry of ordinary jobs alone.

A GPU that needs less power for the same work at the same clock has more room under its power limit. So it holds a
higher clock in work that the limit holds down, such as large matrix products. The score of a GPU is its power at full
load and full clock, in % of the median GPU's: less power, faster. No time and no label is used.

The figure is the highest power of each run, because the load is full then; means also count the waiting for input. Of
telemetry that was collected, it is the 95th percentile of the readings in the run. What is not taken out, and why:
temperature, because a warm place costs clock too; jobs and nodes, because the GPUs of a node often share all their
jobs, and with the jobs the node's own level would go. docs/how-we-know/verdicts.md has the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.metrics import board_power_mw
from ..engines import HERE, Coverage, Engine
from ..runs.measurements import identities, measurements
from ..runs.probing import has_rows
from ..runs.windows import TRUSTED, PartRows, Progress, WindowPart, made, up_to_end, window_parts
from ..statistics.ordering import correlate, spearman_interval
from .variability import linked_names

if TYPE_CHECKING:
    from ...store import Store

POWER = ("power_max", "power_p99", "power_p95", "power_p90", "power_mean", "power_w")
"""Figures of a run that can be used, the best first; the last is the median power, a column of `runs`."""
CEILING = 0.99
"""The share of the highest clock from which a clock counts as full."""
LOADED = 0.9
"""The share of the highest SM activity of a workload from which a run has loaded its GPU, where profiling tells."""
COLUMNS = {
    "cluster": pl.String,
    "gpu": pl.String,
    "name": pl.String,
    "workload": pl.String,
    "score": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "rank": pl.Int64,
    "runs": pl.Int64,
    "jobs": pl.Int64,
    "reason": pl.String,
}
_READ = {"read_w": pl.Float64, "read_mhz": pl.Float64, "active": pl.Float64}
_READINGS = 5  # of telemetry in a run, at least
_MOST_RUNS = 0.5  # share of a workload's runs that must have a figure, or a full clock
_STUCK = 1e-3  # the chance below which a power that never changes is taken for a sensor that stands still
_JUDGED = 10  # GPUs from which the repeatability of their ranks is known
_SPLITS, _DRAWS, _SEED = 20, 2000, 1
_MANY, _FEW_SPLITS = 100_000, 3  # of so many jobs, every half is as good as another
_DRAWN_JOBS = 64  # of a GPU with more, the interval narrows by the square root


@dataclass(frozen=True)
class Evidence:
    """What the score is known to be worth: its rank correlation with times that were measured elsewhere."""

    spearman: float
    low: float
    high: float
    n: int
    source: str


_RESNET = "Longhorn's V100: {} power of ResNet-50 jobs in 2022 against SGEMM times in 2020"
_PEAK = Evidence(0.83, 0.75, 0.88, 123, _RESNET.format("highest"))
LONGHORN = dict.fromkeys(POWER[:4], _PEAK) | {
    "power_mean": Evidence(0.61, 0.47, 0.72, 123, _RESNET.format("mean")),
    "power_w": Evidence(
        0.67,
        0.57,
        0.74,
        168,
        "Longhorn's V100 in 2022: median power of PageRank, which loads them little, against SGEMM",
    ),
}
"""By figure of power, what it was worth on a fleet where the speed is known: benchmarks/results/passive.json."""


@dataclass(frozen=True)
class Worth:
    """How far the scores of a workload can be trusted."""

    cluster: str
    workload: str
    figure: str | None
    """The figure of power that was used, one of `POWER`; None where there are no scores."""
    gpus: int
    """GPUs with a score."""
    split_half: float | None
    """Median rank correlation of the scores from one half of the jobs with those from the other, over random halves."""
    split_half_gpus: int
    reason: str | None
    """Why there are no scores, or no `split_half`."""
    expected: Evidence | None
    """The rank correlation with compute speed to expect, 95 % interval and source; None where there are no scores."""


@dataclass(frozen=True)
class Passive:
    """The passive fingerprints of a store: a row for each GPU and workload, and what each workload's are worth."""

    rows: pl.DataFrame
    """Columns as `COLUMNS`. `score`: power in % above the median GPU's, with its 95 % interval `low` to `high`; null
    with a `reason`. `rank` 1 draws least and is expected to be fastest. `runs` and `jobs` are those used."""
    worth: tuple[Worth, ...]
    coverage: Coverage
    """Of the telemetry of the runs: those of a part that could not be read count as runs without it."""


def passive_fingerprints(
    store: Store, *, cluster: str | None = None, workload: str | None = None, engine: Engine = HERE
) -> pl.DataFrame:
    """A label-free score of each GPU from ordinary jobs' power, by workload: the rows of `passive`."""
    return passive(store, cluster=cluster, workload=workload, engine=engine).rows


def passive(
    store: Store, *, cluster: str | None = None, workload: str | None = None, figure: str | None = None,
    engine: Engine = HERE, progress: Progress | None = None,
) -> Passive:  # fmt: skip
    """The passive fingerprints of a store, or of one cluster or workload, with what they are worth.

    `figure`: of `POWER`; without it, for each workload the best that half of its runs have. Runs of several models,
    power limits or locked clocks are workloads of their own, as in `measurements`. Telemetry is read in parts.
    """
    runs = _runs(store, cluster, workload)
    runs, coverage = _with_telemetry(store, runs, engine, progress)
    runs = _with_names(store, runs)
    rows, worth = [pl.DataFrame(schema=COLUMNS)], []
    for (on, work), part in runs.group_by("cluster", "workload", maintain_order=True):
        rows_of_gpus, worth_of = _of_workload(str(on), str(work), part, POWER if figure is None else (figure,))
        rows.append(rows_of_gpus.select(*COLUMNS))
        worth.append(worth_of)
    all_rows = pl.concat(rows).sort("cluster", "workload", "rank", "gpu", nulls_last=True)
    return Passive(all_rows, tuple(sorted(worth, key=lambda rank: (rank.cluster, rank.workload))), coverage)


def _runs(store: Store, cluster: str | None, workload: str | None) -> pl.DataFrame:
    """The runs with their job and the figures of `POWER`."""
    these = {"clusters": [cluster] if cluster else [], "workloads": [workload] if workload else []}
    runs = measurements(store, **these, run_ids=True, untimed=True)
    texts = ("cluster", "workload", "gpu", "job_id")
    measured = pl.col("sm_clock_mhz", "power_w").fill_nan(None)
    runs = runs.select(pl.col(*texts).cast(pl.String), "run_id", measured).drop_nulls(texts[:3])
    jobs = store.scan("runs").select("run_id", pl.col("job_id").cast(pl.String).alias("own"))
    of_runs = pl.col("figure").is_in(POWER) & pl.col("value").is_finite()
    figures = store.collect(store.scan("results").filter(of_runs).select("run_id", "figure", "value"))
    wide = figures.pivot(on="figure", on_columns=POWER[:-1], index="run_id", values="value", aggregate_function="first")
    return runs.join(store.collect(jobs), on="run_id", how="left").join(wide, on="run_id", how="left")


def _with_names(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """The same with the key and the name of their physical GPU, and their job."""
    identity_rows = identities(store)
    one_name: list[pl.DataFrame] = []
    for (on,), part in runs.group_by("cluster", maintain_order=True):
        names = linked_names(identity_rows, str(on))
        several = pl.col("gpu").is_in(sorted(names.ambiguous))
        one_name.append(part.filter(~several).with_columns(pl.col("gpu").replace(names.identity)))
    if not one_name:
        return runs.with_columns(name=pl.col("gpu"), job=pl.col("job_id"))
    now = store.sql("select cluster, gpu, name from gpus_now").polars()
    return (
        pl.concat(one_name)
        .join(now, on=["cluster", "gpu"], how="left", maintain_order="left")
        .with_columns(pl.coalesce("name", "gpu").alias("name"), pl.coalesce("job_id", "own", "run_id").alias("job"))
    )


def _with_telemetry(
    store: Store, runs: pl.DataFrame, engine: Engine, progress: Progress | None
) -> tuple[pl.DataFrame, Coverage]:
    """The same, with the 95th percentile of the collected power and the median clock where a run has no figure."""
    read, coverage = read_in_runs(store, engine=engine, progress=progress)
    return runs.join(read, on="run_id", how="left").with_columns(
        pl.coalesce("power_p95", "read_w").alias("power_p95"),
        pl.coalesce("sm_clock_mhz", "read_mhz").alias("sm_clock_mhz"),
    ), coverage


def read_in_runs(
    store: Store, *, engine: Engine = HERE, progress: Progress | None = None
) -> tuple[pl.DataFrame, Coverage]:
    """What telemetry says of each run's window, where it has enough readings, and what that covers: run_id, read_w
    (95th percentile of the board power), read_mhz (median SM clock), active (highest share of the time in which SMs
    were active; NULL where profiling does not tell). Made in parts; benchmarks/store.py says what it costs.
    """
    timed = pl.all_horizontal(pl.col("run_id", "cluster", "gpu").is_not_null()) & (pl.col("ended") >= pl.col("began"))
    runs = store.collect(store.scan("runs").filter(timed).select("run_id", "cluster", "gpu", "began", "ended"))
    runs = runs if has_rows(store, "telemetry") else runs.clear()
    parts = window_parts(store, runs.with_columns(up_to_end()))
    results, coverage = made(store, engine, _read_in_part, [part for part, _ in parts], progress)
    pieces = [pl.DataFrame(schema={"run_id": pl.String, **_READ})]
    for (_, chosen), result in zip(parts, results, strict=True):
        if result is not None:
            run_ids = runs["run_id"].gather(chosen).gather(result.rows["window"])
            pieces.append(result.rows.select(run_ids, *_READ))
    return pl.concat(pieces), coverage


def _read_in_part(part: WindowPart) -> PartRows:
    """The same of the windows of a part, by `window`."""
    milliwatts, mhz, ppm = board_power_mw(), pl.col("sm_clock_mhz"), pl.col("sm_active_ppm")
    columns = {"mw": milliwatts, "mhz": mhz.cast(pl.Int32), "ppm": ppm.cast(pl.Int32)}
    figures = (
        (pl.col("mw").quantile(0.95, "linear") / 1e3).alias("read_w"),
        pl.col("mhz").median().alias("read_mhz"),
        (pl.col("ppm").max() / 1e6).alias("active"),
    )
    read = part.readings(columns, milliwatts.is_not_null() & TRUSTED)
    by_run = read.rows.group_by("window").agg(pl.len(), *figures)
    return replace(read, rows=by_run.filter(pl.col("len") >= _READINGS).select("window", *_READ))


def _of_workload(cluster: str, workload: str, runs: pl.DataFrame, figures: Sequence[str]) -> tuple[pl.DataFrame, Worth]:
    """The rows of a workload's GPUs, and what they are worth."""
    gpus = (
        runs.group_by("gpu")
        .agg(pl.col("name").first())
        .with_columns(cluster=pl.lit(cluster), workload=pl.lit(workload))
    )

    def without(reason: str, split: tuple[float | None, int] = (None, 0)) -> tuple[pl.DataFrame, Worth]:
        empty = {"score": None, "low": None, "high": None, "rank": None, "runs": 0, "jobs": 0, "reason": reason}
        rows = gpus.with_columns(pl.lit(value, COLUMNS[key]).alias(key) for key, value in empty.items())
        return rows, Worth(cluster, workload, None, 0, *split, reason, None)

    figure = next((name for name in figures if runs[name].count() >= _MOST_RUNS * runs.height), None)
    if figure is None:
        return without("most runs have no power")
    if runs["sm_clock_mhz"].count() < _MOST_RUNS * runs.height:
        return without("most runs have no SM clock, so nobody knows whether it was full")
    ceiling = runs["sm_clock_mhz"].quantile(0.99, "higher")
    full = pl.col("sm_clock_mhz") >= CEILING * (ceiling or 0.0)
    runs = runs.with_columns(pl.col(figure).alias("power")).filter(pl.col("power") > 0)
    at_full = runs.filter(full)
    if at_full.height < _MOST_RUNS * runs.height:
        return without(
            f"the clock is below its highest, {ceiling:.0f} MHz, in most runs: something holds it down, and the power "
            "does not rank these GPUs"
        )
    loaded = pl.col("active") >= LOADED * (runs["active"].quantile(0.99, "higher") or 0.0)
    at_full = at_full.filter(pl.col("active").is_null() | loaded)
    if at_full["power"].n_unique() == 1:
        return without("the power is the same in every run")
    jobs = at_full.group_by("gpu", "job").agg(pl.col("power").log().median(), pl.len().alias("runs")).sort("gpu", "job")
    counted = jobs.group_by("gpu").agg(pl.col("power").median(), pl.col("runs").sum(), pl.len().alias("jobs"))
    counted = counted.join(_never_changes(jobs), on="gpu")
    rows = gpus.join(counted, on="gpu", how="left").with_columns(pl.col("runs", "jobs").fill_null(0))
    has_activity = runs["active"].count() > 0
    reason = (
        pl.when(pl.col("jobs") == 0)
        .then(pl.lit(f"no run with power at full clock ({ceiling:.0f} MHz)" + " and full load" * has_activity))
        .when("stuck")
        .then(pl.lit("its power never changes: the sensor may be stuck"))
        .when(pl.col("jobs") == 1)
        .then(pl.lit("only one job: nothing shows how far it repeats"))
    )
    rows = rows.with_columns(reason.alias("reason"))
    scored = rows.filter(pl.col("reason").is_null())
    if scored.height < 2:
        return without("fewer than two GPUs have two jobs with power at full clock")
    jobs = jobs.join(scored.select("gpu"), on="gpu", how="semi")
    split, n = _split_half(jobs)
    interval = None if split is None else spearman_interval(split, n)
    if interval is not None and interval[0] <= 0:
        why = f"the ranks do not repeat from job to job (rank correlation of two halves {split:.2f}, {n} GPUs)"
        return without(why, (split, n))
    apart = pl.when(pl.col("reason").is_null()).then(pl.col("power")) - scored["power"].median()
    half = pl.col("jobs").cast(pl.Int64).replace_strict(_half_widths(jobs), default=None, return_dtype=pl.Float64)
    rows = rows.with_columns(apart.alias("apart")).with_columns(
        (100 * (pl.col("apart").exp() - 1)).alias("score"),
        (100 * ((pl.col("apart") - half).exp() - 1)).alias("low"),
        (100 * ((pl.col("apart") + half).exp() - 1)).alias("high"),
        pl.col("apart").rank("min").cast(pl.Int64).alias("rank"),
        pl.col("runs", "jobs").cast(pl.Int64),
    )
    few = None if split is not None else f"fewer than {_JUDGED} GPUs have jobs in both halves"
    return rows, Worth(cluster, workload, figure, scored.height, split, n, few, LONGHORN[figure])


def _never_changes(jobs: pl.DataFrame) -> pl.DataFrame:
    """GPUs whose power is the same in every job, by chance in fewer than one of a thousand: gpu, stuck.

    A power in coarse steps repeats by chance: how often is seen in two jobs of one GPU.
    """
    same = jobs.select((pl.col("power").diff() == 0).over("gpu").drop_nulls())["power"]
    chance = (same.sum() + 1) / (len(same) + 1)
    unlikely = pl.lit(chance).pow(pl.len() - 1) < _STUCK
    return jobs.group_by("gpu").agg(((pl.col("power").n_unique() == 1) & unlikely).alias("stuck"))


def _split_half(jobs: pl.DataFrame) -> tuple[float | None, int]:
    """The rank correlation of the scores of two random halves of the jobs, and the GPUs in both."""
    rng = np.random.default_rng(_SEED)
    names = jobs["job"].unique().sort()
    correlations, gpus = [], []
    for _ in range(_SPLITS if jobs.height < _MANY else _FEW_SPLITS):
        side = pl.DataFrame({"job": names, "side": rng.permutation(len(names)) % 2})
        halves = jobs.join(side, on="job").group_by("gpu", "side").agg(pl.col("power").median())
        first_half, second_half = (halves.filter(pl.col("side") == which).select("gpu", "power") for which in (0, 1))
        in_both = first_half.join(second_half, on="gpu").sort("gpu")
        value = correlate(in_both["power"].to_numpy(), in_both["power_right"].to_numpy(), "other half").spearman
        if value is not None and in_both.height >= _JUDGED:
            correlations.append(value)
            gpus.append(in_both.height)
    return (float(np.median(correlations)), int(np.median(gpus))) if correlations else (None, 0)


def _half_widths(jobs: pl.DataFrame) -> dict[int, float]:
    """Half of the 95 % interval of a GPU's median, by its number of jobs, from jobs drawn again.

    A few jobs of one GPU say little of how far jobs scatter, so the differences between jobs of all GPUs are pooled:
    the difference of two jobs of one GPU, over the square root of 2, scatters as a job does about its GPU's level.
    """
    following = jobs.with_columns((pl.col("power").diff().over("gpu") / np.sqrt(2)).alias("apart"))
    pool = following["apart"].drop_nulls().to_numpy()
    pool = np.concatenate([pool, -pool])
    rng = np.random.default_rng(_SEED)
    half_widths = {}
    for n in jobs["gpu"].value_counts()["count"].unique().sort():
        drawn = min(n, _DRAWN_JOBS)
        medians = np.median(rng.choice(pool, (_DRAWS, drawn)), axis=1)
        half_widths[int(n)] = float(np.quantile(np.abs(medians), 0.95)) * float(np.sqrt(drawn / n))
    return half_widths
