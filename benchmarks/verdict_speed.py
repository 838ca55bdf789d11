"""What verdicts and answers from stored verdicts cost on a fleet of the size of Summit.

    python -m benchmarks.verdict_speed [--only SECTION] [--quick | --long]

judge        27,648 GPUs, 20 runs of each in 4 workloads (12 figures), 1 % faulty: from an opened store to verdicts and
             fingerprints. Beside it a modified z-score of the medians in each figure, by Polars: the least that can be
             done, without sittings, intervals, batches, causes or history.
stored       on the same store the commands as a user types them, imports included: `verdicts` judges and stores,
             `explain`, `advise` and `report` answer from what is stored; and `verdicts` on a store of 64 GPUs
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


CHILDREN: dict[str, Callable[..., Any]] = {
    "whorl": whorl, "by_polars": by_polars, "command": command,
}  # fmt: skip
SECTIONS = {"judge": judge, "stored": stored}

if __name__ == "__main__":
    run("verdict_speed", SECTIONS, CHILDREN)
