"""How often the 95 % intervals of `whorl variability` hold the figure of the population. Prints JSON.

    python benchmarks/variability_intervals.py [--fleets 200] > benchmarks/results/variability_intervals.json

Fleets of 24 to 400 GPUs, four a node, five runs each, drawn from populations whose figures are known (from a million
GPUs of the same population). `held` is the share of the fleets whose interval holds the figure, in %, with its 95 %
Wilson interval; `given` is the share that had an interval. `nodes_resampled` is the share whose nodes were resampled.
`gpus_percentile` is the alternative on the same fleets: GPUs are resampled and every interval is the percentile
interval, as whorl did before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis import variability
from whorl.analysis.statistics import bootstrap
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, wilson

Floats = npt.NDArray[np.float64]
PER_NODE = 4
RUNS = 5
SIZES = (24, 48, 100, 400)
LARGE = 1_000_000
FIGURES = ("median", "fence_pct", "p95p5_pct", "cov_pct")


def t5(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    found: Floats = rng.standard_t(5, size) / np.sqrt(5 / 3)
    return found


def gamma(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Skewed to the slow side."""
    found: Floats = (rng.gamma(2.0, 1.0, size) - 2.0) / np.sqrt(2.0)
    return found


def normal(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    return rng.standard_normal(size)


POPULATIONS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, ...]], Floats], float]] = {
    "normal": (normal, 0.0),
    "t5": (t5, 0.0),
    "gamma": (gamma, 0.0),
    "node, normal": (normal, 0.5),
    "node, t5": (t5, 0.5),
}
"""How GPUs (and runs) are distributed, and the share of the variance between GPUs that is their node's."""


def drawn(name: str, gpus: int, rng: np.random.Generator) -> Floats:
    """(gpus, runs) times: GPUs differ by 2 %, runs by 1 %."""
    of, share = POPULATIONS[name]
    node = np.repeat(of(rng, (gpus // PER_NODE,)), PER_NODE)
    gpu = 2.0 * (np.sqrt(share) * node + np.sqrt(1.0 - share) * of(rng, (gpus,)))
    found: Floats = 100.0 + gpu[:, None] + (normal if of is gamma else of)(rng, (gpus, RUNS))
    return found


def frame(times: Floats) -> pl.DataFrame:
    gpu = np.repeat(np.arange(len(times)), RUNS)
    columns = {"gpu": pl.Series(gpu).cast(pl.String), "node": pl.Series(gpu // PER_NODE).cast(pl.String)}
    same = {"cluster": pl.lit("c"), "workload": pl.lit("w"), "unit": pl.lit("ms")}
    return pl.DataFrame({**columns, "value": times.ravel()}).with_columns(**same)


def truth(name: str) -> dict[str, float]:
    times = drawn(name, LARGE, np.random.default_rng(1))
    found = {"icc": 0.8}
    for level, values in (("run", times.ravel()), ("gpu", np.median(times, axis=1))):
        p5, q1, median, q3, p95 = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
        found |= {
            f"{level} median": median,
            f"{level} fence_pct": 400.0 * (q3 - q1) / median,
            f"{level} p95p5_pct": 100.0 * (p95 - p5) / median,
            f"{level} cov_pct": 100.0 * values.std() / values.mean(),
        }
    return {key: float(value) for key, value in found.items()}


def before(times: Floats, replicates: int) -> dict[str, bootstrap.Interval | None]:
    """The percentile intervals with GPUs resampled."""
    gpu = np.repeat(np.arange(len(times)), RUNS)
    found: dict[str, bootstrap.Interval | None] = {}
    for level, values, owner in (
        ("run", times.ravel(), gpu),
        ("gpu", np.median(times, axis=1), np.arange(len(times))),
    ):
        order = np.argsort(values)
        one = bootstrap.Resampled(values[order], owner[order], len(times))
        again = bootstrap.replicate({level: one}, 2022, len(times), replicates)[level]
        found |= {f"{level} {name}": bootstrap.percentile_interval(again[name]) for name in FIGURES}
        if level == "run":
            found["icc"] = bootstrap.percentile_interval(again["icc"])
    return found


def coverage(name: str, gpus: int, fleets: int, replicates: int, true: dict[str, float]) -> dict[str, Any]:
    tries: dict[str, list[dict[str, bootstrap.Interval | None]]] = {"whorl": [], "gpus_percentile": []}
    nodes = 0
    for seed in range(fleets):
        times = drawn(name, gpus, np.random.default_rng([seed, gpus]))
        rows = variability(frame(times), replicates=replicates)
        mine = {f"{row.level} {figure}": row.interval[figure] for row in rows for figure in FIGURES}
        low, high = rows[0].icc.low, rows[0].icc.high
        mine["icc"] = None if low is None or high is None else (low, high)
        nodes += "nodes" in rows[0].reasons["interval"]
        tries["whorl"].append(mine)
        tries["gpus_percentile"].append(before(times, replicates))
    found: dict[str, Any] = {"fleets": fleets, "nodes_resampled_pct": round(100 * nodes / fleets)}
    for way, its in tries.items():
        found[way] = {}
        for figure, value in true.items():
            given = [one for one in (of[figure] for of in its) if one is not None]
            held = sum(low <= value <= high for low, high in given)
            found[way][figure] = {
                "given_pct": round(100 * len(given) / fleets),
                **(wilson(held, len(given)) if given else {"pct": None, "low": None, "high": None}),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=200, help="of each population and size")
    parser.add_argument("--replicates", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    given = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "variability_intervals",
        "machine": machine("numpy", "polars"),
        "replicates": given.replicates,
    }
    for name in POPULATIONS:
        true = truth(name)
        for gpus in given.sizes:
            say(f"{name}, {gpus} GPUs")
            result[f"{name}, {gpus} GPUs"] = coverage(name, gpus, given.fleets, given.replicates, true)
    print(as_json(result))


if __name__ == "__main__":
    main()
