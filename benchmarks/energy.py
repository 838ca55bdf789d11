"""What the meter of GPU energy holds, what its books cost, and what a span costs.

    python -m benchmarks.energy [--only SECTION] [--quick | --long] [--peers PYTHON]

populations  boards of known power under twelve kinds of load, seven sensors with the gain and offset of real boards,
             polled every 8 ms to 60 s, with gaps and faults; windows of 1 s to an hour. How many intervals hold the
             truth (a board counted once), how wide they are. Beside it the trapezoid plus and minus 5 %.
metered      streams of nvidia-smi beside an external meter (the public one, two of known load, simulated ones): windows
             of 2 to 10 s. Beside it the trapezoid and the correction that SC24 published, plus and minus 5 %.
calibration  64 boards on 8 nodes whose meters are known: how many gains are found within 3 %, and windows that hold.
             Beside it ordinary least squares of each node, and the prior alone (`before`).
excess       fleets in which 2 % of the GPUs are slow and 2 % hungry: how many are shown to cost, how many others are.
             Beside it "5 % above the median" and Tukey's fence of the same fingerprints.
quote        the effect of a power cap on a training that never ran under one, on Zeus's public sweeps: each training
             left out. Beside it the usual rule: a cap costs no time, and power is the cap or what it was.
minutes      CPU of `energy --by user` over some days of 400 GPUs (a month with --long) from stored minutes, beside the
             same from the readings
spans        CPU of the calling thread for a span, beside bare counter readings, zeus (with --peers), and nothing
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from whorl.analysis.energy.options import CAPS, CapModel, cap_points
from whorl.analysis.power_classes import Curve, curves
from whorl.benchmarks import peers
from whorl.benchmarks.energy_fleets import calibration, excess
from whorl.benchmarks.harness import DATA, ROOT, BenchOptions, child, in_turns, run, scratch, share
from whorl.benchmarks.metered import NOT_THERE, metered, populations
from whorl.store import Store

# -- quotes ----------------------------------------------------------------------------------------------------------


def zeus_sweeps(model: str) -> list[Curve]:
    """The curves of a sweep: a family is data set and network, a setting adds batch size and optimizer."""
    table = pl.read_csv(DATA / "power" / f"zeus_power_limits_{model}.csv.gz")
    family = pl.concat_str("dataset", "network", separator="/")
    return curves(
        table.select(
            family.alias("family"),
            pl.concat_str(family, "batch_size", "optimizer", separator="/").alias("setting"),
            pl.col("power_limit").cast(pl.Float64).alias("cap"),
            pl.col("time_per_epoch").alias("time"),
            pl.col("average_power").alias("power_w"),
        )
    )


def fitted(sweeps: list[Curve]) -> CapModel:
    """The model of caps of some trainings, each of which counts once."""
    points = defaultdict(list)
    for curve in sweeps:
        points[curve.family].append(cap_points(curve))
    joined = [np.concatenate(parts, axis=1) for parts in points.values()]
    means = np.array([values.mean(axis=1) for values in joined if values.size])
    (slow, below), (slow_sd, below_sd) = means.mean(axis=0), means.std(axis=0, ddof=1)
    return CapModel(float(slow), float(slow_sd), float(below), float(below_sd), len(means))


def quote(_options: BenchOptions) -> dict[str, Any]:
    """Each training left out with all its settings, on each model of GPU."""
    if not (DATA / "power").is_dir():
        return NOT_THERE
    sweeps = {model: zeus_sweeps(model) for model in ("v100", "rtx6000")}
    every_curve = [curve for of_model in sweeps.values() for curve in of_model]
    answer: dict[str, Any] = {"published": vars(fitted(every_curve))}
    for model, of_model in sweeps.items():
        errors: dict[str, list[tuple[float, float, float]]] = {"time": [], "energy": []}
        for family in sorted({curve.family for curve in of_model}):
            fit = fitted([curve for curve in every_curve if curve.family != family])
            for curve, cap in product([curve for curve in of_model if curve.family == family], CAPS):
                if cap >= curve.share[0]:
                    time_x, power_x = (np.log(np.interp(cap, curve.share, v)) for v in (curve.time, curve.power))
                    multiple, usual = fit.multiple(curve.load, cap), np.log(min(1.0, cap / curve.load)) - power_x
                    errors["time"].append((abs(time_x - multiple.time), multiple.time_half, abs(time_x)))
                    energy = abs(time_x + power_x - multiple.energy)
                    errors["energy"].append((energy, multiple.energy_half, abs(usual - time_x)))
        answer[model] = {"trainings": len({curve.family for curve in of_model}), "quotes": len(errors["time"])}
        for figure, rows in errors.items():
            error, half, by_rule = np.array(rows).T
            answer[model][figure] = {
                "holds": share(int((error <= half).sum()), len(rows)),
                "median_half_width_pct": round(100 * float(np.median(half)), 1),
                "error_pct": round(100 * float(error.mean()), 2),
                "error_pct_of_the_rule": round(100 * float(by_rule.mean()), 2),
            }
    return answer


# -- minutes ---------------------------------------------------------------------------------------------------------

BEGAN_NS, S, DAY_S = 1_748_736_000 * 10**9, 10**9, 86_400  # 2025-06-01
USERS, PAUSE_S, WORK_S = 20, 900.0, 7_200.0


def make_month(root: Path, gpus: int, days: int, step_s: int) -> int:
    """A compacted store of readings and jobs of two hours, one after another, with pauses; returns how many jobs."""
    store, random = Store.create(root), np.random.default_rng(43)
    names = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(gpus)]
    turns = int(days * DAY_S / (WORK_S / 2 + PAUSE_S / 2))
    pauses, works = random.uniform(60, PAUSE_S, (gpus, turns)), 60 + random.exponential(WORK_S, (gpus, turns))
    stops = np.cumsum(pauses + works, axis=1)
    begins, level = stops - works, random.uniform(120, 300, (gpus, turns))
    gpu_of, turn = np.nonzero(stops < days * DAY_S)
    stamps = {
        name: pa.array(BEGAN_NS // 1000 + (1e6 * times[gpu_of, turn]).astype(np.int64), pa.timestamp("us"))
        for name, times in (("began", begins), ("ended", stops))
    }
    ids = [f"{gpu}-{number}" for gpu, number in zip(gpu_of.tolist(), turn.tolist(), strict=True)]
    jobs = {
        "cluster": ["c"] * len(ids), "allocation": ids, "job_id": ids, "gpu": np.array(names)[gpu_of],
        "node": [f"n{gpu // 4}" for gpu in gpu_of.tolist()], "share": np.ones(len(ids)), "recorded": stamps["ended"],
        "user": [f"u{number}" for number in random.integers(0, USERS, len(ids)).tolist()], **stamps,
    }  # fmt: skip
    boards = {"cluster": ["c"] * gpus, "gpu": names, "power_limit_mw": [350_000] * gpus}
    boards["node"] = [f"n{number // 4}" for number in range(gpus)]
    store.append({"jobs": pa.table(jobs), "gpus": pa.table(boards)}, "facts")
    for day in range(days):
        seconds = np.arange(day * DAY_S, (day + 1) * DAY_S, step_s)
        watts = np.full((gpus, len(seconds)), 50.0)
        for gpu in range(gpus):
            at = np.searchsorted(begins[gpu], seconds, "right") - 1
            busy = (at >= 0) & (seconds < stops[gpu][np.maximum(at, 0)])
            watts[gpu, busy] = level[gpu][at[busy]]
        worked = watts > 80
        watts += random.normal(0, 1, watts.shape) * np.where(worked, 8.0, 0.5)
        codes = np.repeat(np.arange(gpus, dtype=np.int32), len(seconds))
        readings = {
            "ts": pa.array(np.tile(BEGAN_NS + seconds * S, gpus), pa.timestamp("ns")),
            "cluster": pa.DictionaryArray.from_arrays(np.zeros(len(codes), np.int32), ["c"]).cast(pa.string()),
            "gpu": pa.DictionaryArray.from_arrays(codes, names).cast(pa.string()),
            "power_mw": np.rint(1000 * watts).astype(np.int64).ravel(),
            "utilization": np.where(worked, 100, 0).ravel(),
        }
        store.append({"telemetry": pa.table(readings)}, f"day-{day}")
    store.compact(offline=True)
    return len(ids)


def by_user(root: str) -> Callable[[], dict[str, list[float]]]:
    """`energy --by user` of a store; joules with both ends of the interval."""
    from whorl.analysis.energy.answers import energy

    store = Store.open(root)

    def answer() -> dict[str, list[float]]:
        rows = energy(store, "user").rows.to_dicts()
        return {str(row["user"] or row["kind"]): [row["energy_j"], row["low_j"], row["high_j"]] for row in rows}

    return answer


def write(root: str) -> Callable[[], int]:
    """What `whorl store compact` does besides: joules for each GPU and minute."""
    from whorl.analysis.energy.minutes import write_minutes

    store = Store.open(root)
    return lambda: write_minutes(store, offline=True, now_ns=time.time_ns())


def minutes(options: BenchOptions) -> dict[str, Any]:
    """From the readings, then writing, then from the minutes; and by how much the joules differ at most."""
    gpus, days, step_s = options.pick(20, 400, 400), options.pick(1, 5, 30), 20
    with scratch() as folder:
        jobs = make_month(folder / "store", gpus, days, step_s)
        first = child("energy", "by_user", folder / "store")
        written = child("energy", "write", folder / "store")
        table = in_turns(
            {"minutes": lambda: child("energy", "by_user", folder / "store")}, options.pick(1, 3, 3), against="minutes"
        )
    from_readings, from_minutes = first.pop("answer"), table["minutes"].pop("answer")
    pairs = np.array([[from_readings[name], from_minutes[name]] for name in from_readings])
    differ = dict(zip(("energy_j", "low_j", "high_j"), np.abs(pairs[:, 1] / pairs[:, 0] - 1).max(axis=0), strict=True))
    return {"gpus": gpus, "days": days, "rows": gpus * days * DAY_S // step_s, "jobs": jobs, "users": USERS,
            "readings": first, "write": written, **table, "differ": differ}  # fmt: skip


# -- spans -----------------------------------------------------------------------------------------------------------


def spans(options: BenchOptions) -> dict[str, Any]:
    """Empty spans one after another, over a driver whose calls cost next to nothing: the software's own cost."""
    simulated = runpy.run_path(str(ROOT / "tests" / "nvml_library.py"))
    count, tables = options.pick(500, 10_000, 20_000), {}
    ways = [variant for variant in peers.SPANS if variant not in peers.OTHERS or options.peers]
    with scratch() as folder:
        library = simulated["NvmlLibrary"](simulated["compile_library"](folder), folder)

        def way_of(variant: str) -> Callable[[], dict[str, Any]]:
            python = str(options.peers) if variant in peers.OTHERS else sys.executable
            command = [python, peers.__file__, "spans", variant, str(count)]
            environment = os.environ | library.environment()

            def take() -> dict[str, Any]:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                figures: dict[str, Any] = json.loads(done.stdout)
                return figures

            return take

        for gpus in (1, 8):
            library.write(f"gpus {gpus}", "model H100", "load 10 1")
            contenders = {variant: way_of(variant) for variant in ways}
            tables[f"{gpus} GPUs"] = in_turns(contenders, options.pick(1, 5, 7), against="plain", figure="caller_us")
    return {"spans": count, "ways": tables}


SECTIONS = {
    "populations": populations, "metered": metered, "calibration": calibration, "excess": excess, "quote": quote,
    "minutes": minutes, "spans": spans,
}  # fmt: skip

if __name__ == "__main__":
    run("energy", SECTIONS, {"by_user": by_user, "write": write}, ("numpy", "polars", "scipy", "duckdb"))
