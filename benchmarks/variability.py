"""How long `variability` takes, against the same statistics as plain Polars expressions. Prints JSON.

    python benchmarks/variability.py [--gpus 27648] [--runs 100] [--replicates 1000] [--repeats 5]

(a) The four published Longhorn files through the command line: import, and `variability` without and with the
bootstrap. (b) A fleet of the size of Summit, generated once into a temporary file. One process times the Polars
expressions and `variability` turn by turn, so that a busy machine is busy for both; a `ratio` is the median over
the turns. Peak memory is that of further processes, one for each variant alone.

The generated runs have no place, job or time: shares by node and ICC by job are not in the timed work of either.
It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.benchmarks.machine import machine, peak_bytes
from whorl.benchmarks.reporting import alone, as_json, wall_times

SEED = 20260
LONGHORN = Path(__file__).resolve().parents[2] / "shared" / "data" / "longhorn"
OTHERS = ("sm_clock_mhz", "power_w", "temperature_c")


def fleet(gpus: int, runs: int, seed: int = SEED) -> pl.DataFrame:
    """A fleet whose clocks follow temperature and silicon: `gpus` x `runs` rows in random order.

    Times are continuous, clocks come in steps of 7.5 MHz, power in mW, temperatures in whole degrees.
    """
    rng = np.random.default_rng(seed)
    gpu = np.repeat(np.arange(gpus), runs)
    rng.shuffle(gpu)
    n = len(gpu)
    warm = rng.normal(0.0, 6.0, gpus)
    silicon = rng.normal(0.0, 0.015, gpus)
    temperature = np.rint(66.0 + warm[gpu] + rng.normal(0.0, 1.0, n))
    clock = np.rint(1357.0 * (1.0 - silicon[gpu] - 0.0008 * (temperature - 66.0)) / 7.5) * 7.5
    value = 2440.0 * 1357.0 / clock * (1.0 + rng.normal(0.0, 0.0025, n))
    power = np.round(297.0 + rng.normal(0.0, 1.5, gpus)[gpu] + rng.normal(0.0, 0.5, n), 3)
    names = pl.Series([f"GPU-{bits.hex()}" for bits in (rng.bytes(16) for _ in range(gpus))])
    return pl.DataFrame(
        {
            "cluster": pl.Series(["generated"]).new_from_index(0, n),
            "workload": pl.Series(["sgemm"]).new_from_index(0, n),
            "gpu": names.gather(gpu),
            "value": value,
            "unit": pl.Series(["ms"]).new_from_index(0, n),
            "sm_clock_mhz": clock,
            "power_w": power,
            "temperature_c": temperature,
        }
    )


def plain(frame: pl.DataFrame) -> tuple[float, ...]:
    """The same statistics as a person would write them: quartiles, group medians, sums of the ICC, Spearman."""
    value = pl.col("value")
    figures = frame.lazy().select(
        *(value.quantile(q, "linear").alias(f"q{q}") for q in (0.25, 0.5, 0.75)),
        *(pl.corr("value", other, method="spearman").alias(other) for other in OTHERS),
    )
    groups = (
        frame.lazy()
        .group_by("gpu")
        .agg(value.median().alias("median"), pl.len().alias("n"), value.mean().alias("mean"), value.var().alias("var"))
    )
    one, by_gpu = pl.collect_all([figures, groups])
    n, k = frame.height, by_gpu.height
    between, within, squares, *quartiles = by_gpu.select(
        (pl.col("n") * (pl.col("mean") - (pl.col("n") * pl.col("mean")).sum() / n) ** 2).sum().alias("between"),
        ((pl.col("n") - 1) * pl.col("var").fill_null(0.0)).sum().alias("within"),
        (pl.col("n").cast(pl.Float64) ** 2).sum().alias("squares"),
        *(pl.col("median").quantile(q, "linear").alias(f"q{q}") for q in (0.25, 0.5, 0.75)),
    ).row(0)
    msb, msw = between / (k - 1), within / (n - k)
    variance = max(0.0, (msb - msw) / ((n - squares / n) / (k - 1)))
    return (*one.row(0), *quartiles, variance / (variance + msw))


def ours(frame: pl.DataFrame, replicates: int) -> list[Any]:
    from whorl.analysis import variability

    return list(variability(frame, replicates=replicates))


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def agreement(frame: pl.DataFrame) -> float:
    """The largest relative difference between the two ways, over the figures that both give."""
    run, gpu = ours(frame, 0)
    theirs = plain(frame)
    quartiles = [400.0 * (theirs[2] - theirs[0]) / theirs[1], 400.0 * (theirs[8] - theirs[6]) / theirs[7]]
    mine = [run.median, run.fence_pct, gpu.median, gpu.fence_pct, run.icc.value]
    mine += [run.correlation[name].spearman for name in ("sm_clock", "power", "temperature")]
    other = [theirs[1], quartiles[0], theirs[7], quartiles[1], theirs[9], *theirs[3:6]]
    return float(max(abs(a - b) / abs(b) for a, b in zip(mine, other, strict=True)))


def variant(name: str, path: Path, replicates: int, repeats: int) -> dict[str, Any]:
    """One variant in this process: what it measured, with the peak memory of the process."""
    frame = pl.read_parquet(path)
    frame = frame.rechunk()
    before = peak_bytes()
    seconds: dict[str, list[float]] = {"plain": [], "variability": []}
    result: dict[str, Any] = {}
    for turn in range(repeats + 1):
        if name in ("plain", "both"):
            seconds["plain"].append(timed(lambda: plain(frame)))
        if name in ("variability", "both"):
            seconds["variability"].append(timed(lambda: ours(frame, replicates)))
        if turn == 0:  # the first turn warms imports and thread pools up
            result["first_s"] = {key: round(times.pop(), 4) for key, times in seconds.items() if times}
    result |= {key: wall_times(times, "repeats") for key, times in seconds.items() if times}
    result |= {"peak_rss_bytes": peak_bytes(), "rss_with_data_bytes": before}
    if name == "both":
        pairs = zip(seconds["variability"], seconds["plain"], strict=True)
        result["ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
        result["largest_relative_difference"] = agreement(frame)
    return result


def generated(gpus: int, runs: int, replicates: int, repeats: int) -> dict[str, Any]:
    """Part (b): the generated fleet, each variant in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.parquet"
        fleet(gpus, runs).write_parquet(path)

        def by_itself(name: str, replicates: int, repeats: int) -> dict[str, Any]:
            of = ("--replicates", str(replicates), "--repeats", str(repeats))
            found: dict[str, Any] = alone(__file__, "--variant", name, "--data", str(path), *of)
            return found

        point = by_itself("both", 0, repeats)
        bootstrap = by_itself("both", replicates, max(3, repeats - 2))
        peaks = {
            "plain": by_itself("plain", 0, 1)["peak_rss_bytes"],
            "variability": by_itself("variability", 0, 1)["peak_rss_bytes"],
            "variability_with_bootstrap": by_itself("variability", replicates, 1)["peak_rss_bytes"],
        }
    return {
        "gpus": gpus,
        "runs_per_gpu": runs,
        "rows": gpus * runs,
        "replicates": replicates,
        "without_bootstrap": point,
        "with_bootstrap": bootstrap,
        "peak_rss_bytes": peaks,
        "ratio": point["ratio"],
        "ratio_with_bootstrap": bootstrap["ratio"],
    }


def longhorn(folder: Path, replicates: int, repeats: int) -> dict[str, Any]:
    """Part (a): the four published files through the command line, import and `variability`, as a person runs them."""
    files = sorted(str(path) for path in folder.glob("*.csv.gz"))
    if not files:
        return {"did_not_run": f"there are no *.csv.gz files in {folder}"}
    commands: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as store:
            for name, verb in (
                ("import", ["import", "--store", store, "--cluster", "longhorn", *files]),
                ("variability", ["verdicts", "variability", "--store", store, "--replicates", "0", "--json"]),
                (
                    "variability_with_bootstrap",
                    ["verdicts", "variability", "--store", store, "--replicates", str(replicates), "--json"],
                ),
            ):
                commands.setdefault(name, []).append(command(["-m", "whorl", *verb]))
    return {
        name: wall_times([run["wall_s"] for run in runs], "repeats")
        | {"peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs)}
        for name, runs in commands.items()
    }


def command(arguments: list[str]) -> dict[str, Any]:
    """Wall time and peak memory of one Python command, start of the interpreter included."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments[:3])} ended with status {process.returncode}")
    return {"wall_s": wall, "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=27_648)
    parser.add_argument("--runs", type=int, default=100, help="runs a GPU")
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longhorn", type=Path, default=LONGHORN, help="folder of the published Longhorn files")
    parser.add_argument("--variant", choices=("both", "plain", "variability"), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        print(json.dumps(variant(given.variant, given.data, given.replicates, given.repeats)))
        return
    result = {
        "benchmark": "variability",
        "machine": machine("numpy", "polars"),
        "longhorn": longhorn(given.longhorn, given.replicates, given.repeats),
        "generated": generated(given.gpus, given.runs, given.replicates, given.repeats),
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
