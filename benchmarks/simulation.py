"""How long it takes to simulate a fleet. Prints JSON.

    python benchmarks/simulation.py [--gpus 256] [--hours 1] [--turns 5]

(a) 27,648 GPUs to steady state under SGEMM, drawn anew each time, beside the same equations closed by plain
bisection over the clocks with a fixed point for the temperature, one GPU at a time in Python: on fewer GPUs, and
scaled by their number. (b) The same fleet's campaign into a store, as `whorl demo sim --steady` writes it. (c) 256
GPUs through a simulated hour with a reading a second, all of it stored, beside the same control law written
plainly, one GPU at a time in Python and without storing anything: for a shorter span, and scaled per GPU and
simulated second. Each turn of ours runs beside one of the other; a `ratio` is the median over the turns.

It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, wall_times
from whorl.probes.loads import run_load, run_steady
from whorl.simulation.control import BLOCK, DIE_S, DIE_SHARE, FILTER_S, SINK_S, SINK_SHARE, STEP_NS, STEP_S
from whorl.simulation.fleet import CAP_SETTLES_AT, Fleet
from whorl.simulation.load import find_load
from whorl.simulation.models import V100
from whorl.simulation.stepping import Simulation
from whorl.simulation.workloads import IDLE, SGEMM, Workload
from whorl.store import Store

STEADY_GPUS = 27_648
PLAIN_STEADY_GPUS = 200
PLAIN_GPUS, PLAIN_S = 8, 60.0
SEED = 1


class PlainGpu:
    """One GPU of a fleet, as a person would write its physics: numbers and `math`, no arrays."""

    def __init__(self, fleet: Fleet, gpu: int) -> None:
        silicon = fleet.silicon
        self.model = fleet.model
        self.bins: list[float] = fleet.model.clocks_mhz.tolist()
        self.voltage, self.leakage = float(silicon.voltage[gpu]), float(silicon.leakage[gpu])
        self.capacitance, self.board = float(silicon.capacitance[gpu]), float(silicon.board[gpu])
        self.sensor, self.cap = float(silicon.sensor[gpu]), float(silicon.cap_w[gpu])
        self.inlet, self.resistance = float(silicon.inlet_c[gpu]), float(silicon.resistance_k_w[gpu])
        self.preheat = float(silicon.preheat_k_w[gpu])
        self.own = self.resistance - self.preheat
        self.top = max(i for i, clock in enumerate(self.bins) if clock <= silicon.ceiling_mhz[gpu] + 1e-6)

    def watts(self, clock: float, celsius: float, work: Workload) -> float:
        model = self.model
        above = max(0.0, (clock - model.knee_mhz) / (model.max_clock_mhz - model.knee_mhz))
        volts = (model.min_v + (model.max_v - model.min_v) * above) * self.voltage
        dynamic = work.activity * model.dynamic_w * self.capacitance
        dynamic *= (volts / model.max_v) ** 2 * clock / model.max_clock_mhz
        leakage = model.leakage_w * self.leakage * (volts / model.leakage_v) ** 3
        leakage *= math.exp(model.leakage_per_k * (celsius - 60.0))
        memory = model.memory_w_per_gb_s * work.bandwidth_share * model.bandwidth_gb_s
        return model.board_w * self.board + dynamic + leakage + memory

    def settle(self, clock: float, work: Workload) -> tuple[float, float]:
        celsius = 60.0
        for _ in range(40):
            watts = self.watts(clock, celsius, work)
            celsius += 0.7 * (min(self.inlet + self.resistance * watts, 125.0) - celsius)
        return watts, celsius

    def steady(self, work: Workload) -> float:
        """The clock (MHz) at which the GPU settles."""
        low, high = 0, self.top
        while low < high:
            middle = (low + high + 1) // 2
            watts, celsius = self.settle(self.bins[middle], work)
            fits = watts * self.sensor <= CAP_SETTLES_AT * self.cap and celsius <= self.model.slowdown_c
            low, high = (middle, high) if fits else (low, middle - 1)
        return self.bins[low]


def plain_hour(fleet: Fleet, gpus: int, seconds: float) -> list[float]:
    """The control law, one GPU after the other in each step; returns the filtered power (W) of each at the end."""
    every = [PlainGpu(fleet, gpu) for gpu in range(gpus)]
    bins = [0] * gpus
    slots = []
    for one in every:
        watts, _ = one.settle(one.bins[0], IDLE)
        slots.append([DIE_SHARE * one.own * watts, (SINK_SHARE * one.own + one.preheat) * watts, watts * one.sensor])
    heat, sum_w, upstream = 1 - math.exp(-STEP_S / DIE_S), [0.0] * gpus, 0.0
    block, lag = 1 - math.exp(-STEP_S * BLOCK / SINK_S), 1 - math.exp(-STEP_S / FILTER_S)
    energy = [0.0] * gpus
    for step in range(1, round(seconds / STEP_S) + 1):
        for i, one in enumerate(every):
            bin_, (die, sink, filtered) = bins[i], slots[i]
            celsius = one.inlet + die + sink
            watts = one.watts(one.bins[bin_], celsius, SGEMM)
            energy[i] += watts * STEP_S
            sum_w[i] += watts
            die += heat * (DIE_SHARE * one.own * watts - die)
            filtered += lag * (watts * one.sensor - filtered)
            if filtered > 0.9975 * one.cap or celsius > one.model.slowdown_c:
                bin_ -= 8 if filtered > 1.05 * one.cap else 1
            elif filtered < 0.985 * one.cap and celsius < one.model.slowdown_c - 1:
                bin_ += 1
            bins[i], slots[i] = min(max(bin_, 0), one.top), [die, sink, filtered]
        if step % BLOCK == 0:
            for i, one in enumerate(every):
                mean = sum_w[i] / BLOCK
                goal = SINK_SHARE * one.own * mean + one.preheat * upstream
                slots[i][1] += block * (goal - slots[i][1])
                upstream, sum_w[i] = mean, 0.0
    return [slot[2] for slot in slots]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = function()
    return time.perf_counter() - start, answer


def steady(turns: int) -> dict[str, Any]:
    """Part (a), and the largest difference between the two ways."""
    ours, plain = [], []
    for turn in range(turns + 1):
        seconds, found = timed(lambda: Fleet.draw(V100, STEADY_GPUS, SEED).steady(SGEMM))
        fleet = Fleet.draw(V100, STEADY_GPUS, SEED)
        healthy = np.flatnonzero(fleet.fault < 0)[:PLAIN_STEADY_GPUS].tolist()
        other, clocks = timed(lambda: [PlainGpu(fleet, gpu).steady(SGEMM) for gpu in healthy])  # noqa: B023
        if turn:  # the first turn warms imports up
            ours.append(seconds)
            plain.append(other * STEADY_GPUS / len(healthy))
    off = np.abs(found.clock_mhz[healthy] - np.array(clocks))
    return {
        "gpus": STEADY_GPUS,
        "whorl": wall_times(ours, "turns"),
        "plain_python_scaled": wall_times(plain, "turns") | {"gpus_run": len(healthy)},
        "ratio": round(statistics.median(b / a for a, b in zip(ours, plain, strict=True)), 1),
        "largest_difference_mhz": float(off.max()),
        "gpus_that_differ": int((off > 0).sum()),
    }


def steady_stored(turns: int) -> dict[str, Any]:
    """Part (b)."""
    seconds = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:

            def campaign(root: str = folder) -> Any:
                fleet = Fleet.draw(V100, STEADY_GPUS, SEED)
                return run_steady(Store.create(Path(root) / "S"), fleet, find_load("gemm"))

            took, stored = timed(campaign)
            seconds.append(took)
    return {"gpus": STEADY_GPUS, "rows": stored.rows, "whorl": wall_times(seconds, "turns")}


def in_time(gpus: int, hours: float, turns: int) -> dict[str, Any]:
    """Part (c), with the time without storing and the size on disk."""
    load = find_load("gemm")
    stored_s, bare_s, plain_s = [], [], []
    for _ in range(turns):
        fleet = Fleet.draw(V100, gpus, SEED, faults=0)
        with tempfile.TemporaryDirectory() as folder:
            store = Store.create(Path(folder) / "S")
            took, stored = timed(lambda: run_load(store, fleet, load, hours=hours))  # noqa: B023
            stored_s.append(took)
            size = sum(path.stat().st_size for path in (store.root / "telemetry").rglob("*.parquet"))
            rows = store.arrow("telemetry")
            columns = sum(rows[name].null_count < len(rows) for name in rows.column_names)
            del rows
        simulation = Simulation(fleet, load, began_ns=0)
        bare_s.append(timed(lambda: simulation.advance(round(hours * 3.6e12)))[0])  # noqa: B023
        other, watts = timed(lambda: plain_hour(fleet, PLAIN_GPUS, PLAIN_S))  # noqa: B023
        plain_s.append(other * gpus * hours * 3600 / (PLAIN_GPUS * PLAIN_S))
    same = Simulation(fleet, find_load("constant"), began_ns=-round(find_load("constant").begins_s * 1e9))
    same.advance(round(PLAIN_S * 1e9))
    off = np.abs(same.filtered_power_w[:PLAIN_GPUS] - np.array(watts))
    steps = round(hours * 3.6e12 / STEP_NS)
    return {
        "gpus": gpus,
        "hours": hours,
        "steps": steps,
        "rows": stored.rows,
        "telemetry_columns": columns,
        "telemetry_bytes_per_row": round(size / stored.rows["telemetry"], 2),
        "whorl_stored": wall_times(stored_s, "turns"),
        "whorl_without_storing": wall_times(bare_s, "turns"),
        "us_per_step": round(1e6 * statistics.median(bare_s) / steps, 1),
        "plain_python_scaled": wall_times(plain_s, "turns") | {"gpus_run": PLAIN_GPUS, "seconds_run": PLAIN_S},
        "ratio": round(statistics.median(b / a for a, b in zip(stored_s, plain_s, strict=True)), 1),
        "largest_difference_of_filtered_power_w": round(float(off.max()), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=256, help="of part (c)")
    parser.add_argument("--hours", type=float, default=1.0, help="of part (c)")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    result = {
        "schema": "whorl.benchmark.simulation/1",
        "benchmark": "simulation",
        "machine": machine("numpy", "pyarrow"),
        "steady_state": steady(given.turns),
        "steady_state_stored": steady_stored(given.turns),
        "in_time": in_time(given.gpus, given.hours, given.turns),
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
