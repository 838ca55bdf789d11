"""What the meter of GPU energy holds, what its books cost, and what a span costs.

    python -m benchmarks.energy [--only SECTION] [--quick | --long]

populations  boards of known power under twelve kinds of load, seven sensors with the gain and offset of real boards,
             polled every 8 ms to 60 s, with gaps and faults; windows of 1 s to an hour. How many intervals hold the
             truth (a board counted once), how wide they are. Beside it the trapezoid plus and minus 5 %.
metered      streams of nvidia-smi beside an external meter (the public one, two of known load, simulated ones): windows
             of 2 to 10 s. Beside it the trapezoid and the correction that SC24 published, plus and minus 5 %.
calibration  64 boards on 8 nodes whose meters are known: how many gains are found within 3 %, and windows that hold.
             Beside it ordinary least squares of each node.
excess       fleets in which 2 % of the GPUs are slow and 2 % hungry: how many are shown to cost, how many others are.
             Beside it "5 % above the median" and Tukey's fence of the same fingerprints.
quote        the effect of a power cap on a training that never ran under one, on Zeus's public sweeps: each training
             left out. Beside it the usual rule: a cap costs no time, and power is the cap or what it was.
minutes      CPU of `energy --by user` over some days of 400 GPUs (a month with --long) from stored minutes, beside the
             same from the readings
spans        CPU of the calling thread for a span, beside bare counter readings
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
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.energy.options import CAPS, CapModel, cap_points
from whorl.analysis.power_classes import Curve, curves
from whorl.benchmarks import peers
from whorl.benchmarks.energy_fleets import calibration, excess
from whorl.benchmarks.fleets import PER_NODE, gpu_rows
from whorl.benchmarks.harness import ROOT, BenchOptions, child, in_turns, public_file, run, scratch, share
from whorl.benchmarks.metered import metered, populations
from whorl.benchmarks.readings import BEGAN_NS, USERS, FleetReadings, FleetShape
from whorl.store import Store

# -- quotes ----------------------------------------------------------------------------------------------------------


def zeus_sweeps(model: str) -> list[Curve]:
    """The curves of a sweep: a family is data set and network, a setting adds batch size and optimizer."""
    table = pl.read_csv(public_file(f"power/zeus_power_limits_{model}.csv.gz"))
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

DAY_S, STEP_S, BLOCK = 86_400, 20, 25
"""A reading each 20 s; so many nodes are made at a time."""


def make_month(root: Path, gpus: int, days: int) -> int:
    """A compacted store of readings and jobs of two hours, one after another; returns how many rows of jobs."""
    store, jobs, nodes = Store.create(root), 0, gpus // PER_NODE
    store.append({"gpus": gpu_rows(gpus)}, "gpus")
    for day, first in product(range(days), range(0, nodes, BLOCK)):
        block = range(first, min(first + BLOCK, nodes))
        began_ns = BEGAN_NS + day * DAY_S * 10**9
        readings = FleetReadings(FleetShape(block, DAY_S, work_s=7200.0, step_s=STEP_S, began_ns=began_ns))
        tables = {"telemetry": readings.table(("power_mw", "utilization")), "jobs": readings.jobs()}
        jobs += tables["jobs"].num_rows
        store.append(tables, f"{day}-{first}")
    store.compact(offline=True)
    return jobs


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
    gpus, days = options.pick(20, 400, 400), options.pick(1, 5, 30)
    with scratch() as folder:
        jobs = make_month(folder / "store", gpus, days)
        first = child("energy", "by_user", folder / "store")
        written = child("energy", "write", folder / "store")
        table = in_turns(
            {"minutes": lambda: child("energy", "by_user", folder / "store")}, options.pick(1, 3, 3), against="minutes"
        )
    from_readings, from_minutes = first.pop("answer"), table["minutes"].pop("answer")
    pairs = np.array([[from_readings[name], from_minutes[name]] for name in from_readings])
    differ = dict(zip(("energy_j", "low_j", "high_j"), np.abs(pairs[:, 1] / pairs[:, 0] - 1).max(axis=0), strict=True))
    return {"gpus": gpus, "days": days, "rows": gpus * days * DAY_S // STEP_S, "jobs": jobs, "users": USERS,
            "readings": first, "write": written, **table, "differ": differ}  # fmt: skip


# -- spans -----------------------------------------------------------------------------------------------------------


def spans(options: BenchOptions) -> dict[str, Any]:
    """Empty spans one after another, over a driver whose calls cost next to nothing: the software's own cost."""
    simulated = runpy.run_path(str(ROOT / "tests" / "nvml_library.py"))
    count, tables = options.pick(500, 10_000, 20_000), {}
    with scratch() as folder:
        library = simulated["NvmlLibrary"](simulated["compile_library"](folder), folder)

        def take(way: str) -> dict[str, Any]:
            command, environment = [sys.executable, peers.__file__, "spans", way, str(count)], library.environment()
            done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
            return dict(json.loads(done.stdout))

        for gpus in (1, 8):
            library.write(f"gpus {gpus}", "model H100", "load 10 1")
            contenders = {way: partial(take, way) for way in peers.SPANS}
            tables[f"{gpus} GPUs"] = in_turns(contenders, options.pick(1, 5, 7), against="plain", figure="caller_us")
    return {"spans": count, "ways": tables}


SECTIONS = {
    "populations": populations, "metered": metered, "calibration": calibration, "excess": excess, "quote": quote,
    "minutes": minutes, "spans": spans,
}  # fmt: skip

if __name__ == "__main__":
    run("energy", SECTIONS, {"by_user": by_user, "write": write}, ("numpy", "polars", "scipy", "duckdb"))
