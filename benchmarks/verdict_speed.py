"""What verdicts, answers from stored verdicts, and `variability` cost on a fleet of the size of Summit.

    python -m benchmarks.verdict_speed [--only SECTION] [--quick | --long]

judge        27,648 GPUs, 20 runs of each in 4 workloads (12 figures), 1 % faulty: from an opened store to verdicts and
             fingerprints. Beside it a modified z-score of the medians in each figure, by Polars: the least that can be
             done, without sittings, intervals, batches, causes or history.
stored       on the same store the commands as a user types them, imports included: `verdicts` judges and stores,
             `explain`, `advise` and `report` answer from what is stored; and `verdicts` on a store of 64 GPUs
variability  27,648 GPUs x 100 runs: `variability` without and with 1,000 replicates, beside the same quartiles, group
             medians, ICC sums and Spearman correlations as plain Polars expressions
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.benchmarks.fleets import MADE_PROBES, figures_of
from whorl.benchmarks.harness import BenchOptions, child, in_turns, run, say, scratch
from whorl.store import Store

FIGURES = ("value", "sm_clock_mhz", "power_w")
OTHERS = ("sm_clock_mhz", "power_w", "temperature_c")
SITTINGS, RUNS, PER_CABINET = 5, 20, 108
_Z = 3.5


def make(root: Path, gpus: int) -> Store:
    """A store of 20 runs of each GPU in four workloads, five a week; a hundredth of the GPUs is slow in arithmetic."""
    random, faults = np.random.default_rng(2026), max(1, gpus // 100)
    fleet = figures_of(
        random, gpus, "normal", faults=faults, fault="compute", effect=0.05, sittings=SITTINGS,
        runs=RUNS // SITTINGS, probes=tuple(MADE_PROBES),
    )  # fmt: skip
    cabinets = [f"r{gpu // PER_CABINET:03d}" for gpu in range(gpus)]
    return fleet.stored(Store.create(root), random, days_apart=7.0, cabinet=cabinets)


# -- the work of processes -------------------------------------------------------------------------------------------


def whorl(root: str) -> Callable[[], dict[str, Any]]:
    """Verdicts and fingerprints of all runs of a store."""
    from whorl.analysis.runs.probing import probed
    from whorl.analysis.verdicts.fingerprint import fingerprint
    from whorl.analysis.verdicts.judge import judged
    from whorl.analysis.verdicts.model import Model

    store = Store.open(root)

    def work() -> dict[str, Any]:
        campaign = probed(store, every=True)
        model = Model(campaign, store)
        answer = judged(campaign, store, model=model)
        return {"runs": campaign.runs.height, "fingerprints": fingerprint(model).height, "verdicts": len(answer.rows)}

    return work


def by_polars(root: str) -> Callable[[], dict[str, Any]]:
    """The GPUs whose median is far out in a figure, by Polars."""
    store = Store.open(root)

    def work() -> dict[str, Any]:
        times = store.scan("results").filter(pl.col("figure") == "time").select("run_id", "value")
        runs = store.scan("runs").select("run_id", "workload", "gpu", "sm_clock_mhz", "power_w")
        medians = runs.join(times, on="run_id").group_by("workload", "gpu").agg(pl.col(FIGURES).median())
        away = [(pl.col(name) - pl.col(name).median().over("workload")).alias(name) for name in FIGURES]
        spreads = [1.4826 * pl.col(name).abs().median().over("workload") for name in FIGURES]
        scaled = [(pl.col(name) / width).alias(name) for name, width in zip(FIGURES, spreads, strict=True)]
        rows = store.collect(medians.with_columns(away).with_columns(scaled))
        far = rows.filter(pl.any_horizontal(pl.col(FIGURES).is_finite() & (pl.col(FIGURES).abs() > _Z)))
        return {"gpus_named": far["gpu"].n_unique()}

    return work


def command(root: str, *words: str) -> Callable[[], dict[str, Any]]:
    """A command of whorl on the store, in this process; `process_cpu_s` has all since the process began."""

    def work() -> dict[str, Any]:
        import time

        from whorl.cli import cli

        with contextlib.redirect_stdout(io.StringIO()) as output:
            cli([*words, "--store", root], standalone_mode=False)
        return {"process_cpu_s": round(time.process_time(), 2), "lines": output.getvalue().count("\n")}

    return work


# -- sections --------------------------------------------------------------------------------------------------------


def judge(options: BenchOptions) -> dict[str, Any]:
    """Verdicts beside z-scores."""
    gpus = options.pick(600, 27_648, 27_648)
    with scratch() as folder:
        say("making the store")
        make(folder / "store", gpus)
        contenders = {name: partial(child, "verdict_speed", name, folder / "store") for name in ("whorl", "by_polars")}
        table = in_turns(contenders, options.pick(1, 3, 5), against="by_polars")
    return {"gpus": gpus, "runs_of_each_in_a_workload": RUNS, "4 workloads": table}


def stored(options: BenchOptions) -> dict[str, Any]:
    """Commands that answer from stored verdicts: CPU seconds of the whole process."""
    gpus, rows = options.pick(600, 27_648, 27_648), {}
    questions = {
        "verdicts": ("verdicts",), "explain": ("explain", "h0010/3"),
        "advise": ("advise", "--workload", "gemm", "--no-scheduler"), "report": ("report", "--out", os.devnull),
    }  # fmt: skip
    for name, size in (("large", gpus), ("64 GPUs", 64)):
        with scratch() as folder:
            make(folder / "store", size)
            for question, words in questions.items() if name == "large" else [("verdicts", ("verdicts",))]:
                say(f"{name}: {question}")
                figures = child("verdict_speed", "command", folder / "store", *words)
                rows[f"{question}, {name}"] = {"gpus": size, "peak_mb": figures["peak_mb"], **figures["answer"]}
    return {"n": 1, **rows}


def variability_speed(options: BenchOptions) -> dict[str, Any]:
    """`variability` beside plain Polars, each in processes of its own."""
    gpus, runs = options.pick(500, 27_648, 27_648), options.pick(10, 100, 100)
    with scratch() as folder:
        say("making the runs")
        spread_fleet(gpus, runs).write_parquet(folder / "fleet.parquet")
        contenders = {
            "plain": partial(child, "verdict_speed", "plain", folder / "fleet.parquet"),
            "variability": partial(child, "verdict_speed", "variability_of", folder / "fleet.parquet", 0),
            "with 1,000 replicates": partial(child, "verdict_speed", "variability_of", folder / "fleet.parquet", 1000),
        }
        return {"gpus": gpus, "rows": gpus * runs, **in_turns(contenders, options.pick(1, 3, 5), against="plain")}


def spread_fleet(gpus: int, runs: int) -> pl.DataFrame:
    """`gpus` x `runs` rows in random order, whose clocks follow temperature and silicon."""
    random = np.random.default_rng(20260)
    gpu = np.repeat(np.arange(gpus), runs)
    random.shuffle(gpu)
    n = len(gpu)
    temperature = np.rint(66.0 + random.normal(0.0, 6.0, gpus)[gpu] + random.normal(0.0, 1.0, n))
    slower = random.normal(0.0, 0.015, gpus)[gpu] + 0.0008 * (temperature - 66.0)
    clock = np.rint(1357.0 * (1.0 - slower) / 7.5) * 7.5
    names = pl.Series([f"GPU-{bits.hex()}" for bits in (random.bytes(16) for _ in range(gpus))])
    columns = {
        "gpu": names.gather(gpu), "value": 2440.0 * 1357.0 / clock * (1.0 + random.normal(0.0, 0.0025, n)),
        "sm_clock_mhz": clock, "power_w": np.round(297.0 + random.normal(0.0, 1.5, n), 3), "temperature_c": temperature,
    }  # fmt: skip
    constants = {"cluster": "simulated", "workload": "sgemm", "unit": "ms"}
    return pl.DataFrame(columns).with_columns(pl.lit(value).alias(name) for name, value in constants.items())


def plain(path: str) -> Callable[[], list[float]]:
    """The same statistics as a person would write them: quartiles, group medians, sums of the ICC, Spearman."""
    frame = pl.read_parquet(path).rechunk()

    def work() -> list[float]:
        value = pl.col("value")
        figures = frame.lazy().select(
            *(value.quantile(q, "linear").alias(f"q{q}") for q in (0.25, 0.5, 0.75)),
            *(pl.corr("value", name, method="spearman").alias(name) for name in OTHERS),
        )
        groups = frame.lazy().group_by("gpu").agg(
            value.median().alias("median"), pl.len().alias("n"), value.mean().alias("mean"), value.var().alias("var")
        )  # fmt: skip
        of_runs, by_gpu = pl.collect_all([figures, groups])
        n, k = frame.height, by_gpu.height
        between, within, squares, median = by_gpu.select(
            (pl.col("n") * (pl.col("mean") - (pl.col("n") * pl.col("mean")).sum() / n) ** 2).sum().alias("between"),
            ((pl.col("n") - 1) * pl.col("var").fill_null(0.0)).sum().alias("within"),
            (pl.col("n").cast(pl.Float64) ** 2).sum().alias("squares"), pl.col("median").median(),
        ).row(0)  # fmt: skip
        variance = max(0.0, (between / (k - 1) - within / (n - k)) / ((n - squares / n) / (k - 1)))
        return [*of_runs.row(0), median, variance / (variance + within / (n - k))]

    return work


def variability_of(path: str, replicates: int) -> Callable[[], list[Any]]:
    """whorl's statistics: median, fence and ICC are returned."""
    from whorl.analysis import variability

    frame = pl.read_parquet(path).rechunk()

    def work() -> list[Any]:
        rows = list(variability(frame, replicates=replicates))
        return [rows[0].median, rows[0].fence_pct, rows[0].icc.value]

    return work


CHILDREN: dict[str, Callable[..., Any]] = {
    "whorl": whorl, "by_polars": by_polars, "command": command, "plain": plain, "variability_of": variability_of,
}  # fmt: skip
SECTIONS = {"judge": judge, "stored": stored, "variability": variability_speed}

if __name__ == "__main__":
    run("verdict_speed", SECTIONS, CHILDREN)
