"""Whether boards' power sensors are simulated from the power of their nodes, on simulated fleets with known gains.

    python benchmarks/energy_calibration.py [--seeds N] [--hours H] [--only NAME]

A fleet has 8 nodes of 8 boards. Jobs of 1 to 8 GPUs of a node, with a power of their own, come and go within 2 to 40
minutes. Each board reads gain x true + offset, of a board drawn from the 19 that were held against an external meter.
A node draws (host + true power of its boards) / efficiency; its host has a base and noise that lasts some minutes.
Populations differ in what the node's meter does, and in which assumption of the fit is broken.

Of each population: how many boards have their gain within ±3 %, how many intervals of the gain hold it, and how many
windows of 10 s to 10 minutes of a board, and of all boards of a node, have their true energy in the interval. Beside it
stand the prior without calibration, ordinary least squares of each node (numpy.linalg.lstsq: node power on the readings
of its boards and a constant, with the efficiency taken as known), and readings ±5 %. Prints JSON; it asserts nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whorl.analysis.energy.boards import BoardErrors
from whorl.analysis.energy.calibration import NodeWindows, calibrated_boards, windows_of_nodes
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, share
from whorl.store import Store
from whorl.store.power_sensors import MEASURED_BOARDS, NORMAL_95
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import PowerMeter, PowerOf

Floats = NDArray[np.float64]
Counts = dict[str, tuple[int, int] | float]

NODES, PER_NODE, CLUSTER, MODEL = 8, 8, "c", "NVIDIA H100 80GB HBM3"
IDLE_W, LIMIT_W, BASE_W = 70.0, 700.0, 900.0
READ_S = 5  # between two readings of a GPU
BEGAN_NS = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1e9)
WITHIN = 0.03
WINDOWS = 40  # of each board
LONGEST_S = 600


@dataclass(frozen=True)
class Population:
    """What a fleet does. Powers in W."""

    description: str
    meter: PowerMeter = PowerMeter.PDU
    meter_gain: float = 0.005
    """Standard deviation of the gain of the nodes' meters."""
    efficiency: float = 0.94
    every_s: int = 10
    lag_s: int = 0
    averaged_s: int = 10
    says_window: bool = True
    noise_w: float = 25.0
    """Of the host: standard deviation of what lasts some minutes."""
    follows: float = 0.0
    """What the host draws more for each W of its GPUs."""
    cpu_jobs_w: float = 0.0
    """What jobs without GPUs draw."""
    counters: bool = False
    """Whether the CPUs have counters."""
    all_together: bool = False
    drift: float = 0.0
    """By how much the gain of one board in four changes in the whole time."""


POPULATIONS = {
    "pdu": Population("a PDU within 1 %, mean of 10 s"),
    "ipmi": Population("a BMC every 30 s that says no window", PowerMeter.IPMI, 0.01, every_s=30, says_window=False),
    "gain 3 %": Population("a BMC whose gain is wrong by 3 %", PowerMeter.IPMI, 0.03, every_s=10),
    "late": Population(
        "a BMC 12 s late, mean of 30 s, and it says neither", PowerMeter.IPMI, 0.01, lag_s=12, averaged_s=30,
        says_window=False,
    ),
    "cpu follows": Population("CPUs and fans draw 6 % of the GPUs' power more", follows=0.06),
    "cpu counted": Population("the same, and CPUs have counters", follows=0.06, counters=True),
    "cpu jobs": Population("jobs without GPUs come and go with 400 W", cpu_jobs_w=400.0),
    "efficiency": Population("power supplies of 0.92", efficiency=0.92),
    "together": Population("all GPUs of a node always work together", all_together=True),
    "drift": Population("the gain of one board in four changes by 2 %", drift=0.02),
}  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """The truth of a fleet: arrays over boards and seconds."""

    true_w: Floats
    read_w: Floats
    gain: Floats
    """(boards, seconds)"""
    store: Store


def jobs_w(rng: np.random.Generator, seconds: int, *, together: bool) -> Floats:
    """The true power of the boards of a node, second by second."""
    watts = np.full((PER_NODE, seconds), IDLE_W)
    free_at = np.zeros(PER_NODE, int)
    level = rng.uniform(0.9, 1.1, PER_NODE)
    while (at := int(free_at.min())) < seconds:
        free = np.flatnonzero(free_at <= at)
        lasts = int(np.exp(rng.uniform(np.log(120), np.log(2400))))
        busy = rng.random() < 0.75
        size = PER_NODE if together else int(min(len(free), rng.choice([1, 1, 2, 4, 8])))
        chosen = rng.choice(free, size, replace=False)
        if busy:
            power = rng.uniform(200, LIMIT_W) * level[chosen]
            watts[chosen, at : at + lasts] = np.minimum(power, LIMIT_W)[:, None]
        free_at[chosen] = at + lasts
    swing = rng.normal(0, 0.02, (PER_NODE, seconds // 5 + 1)).repeat(5, axis=1)[:, :seconds]
    return np.where(watts > IDLE_W, np.minimum(watts * (1 + swing), LIMIT_W), watts)


def slow(rng: np.random.Generator, seconds: int, lasts_s: float) -> Floats:
    """Noise of standard deviation 1 whose correlation falls to 1/e in `lasts_s`."""
    rho, steps = np.exp(-10 / lasts_s), rng.standard_normal(seconds // 10 + 2)
    simulated = np.empty(len(steps))
    simulated[0] = steps[0]
    for number in range(1, len(steps)):
        simulated[number] = rho * simulated[number - 1] + np.sqrt(1 - rho**2) * steps[number]
    return np.interp(np.arange(seconds), 10 * np.arange(len(simulated)), simulated)


def before(watts: Floats, ends: NDArray[np.int64], lasts: int) -> Floats:
    """The mean of so many seconds before each second."""
    upto = np.append(0.0, np.cumsum(watts))
    return np.asarray((upto[ends] - upto[ends - lasts]) / lasts)


def fleet(folder: Path, population: Population, seed: int, hours: float) -> Fleet:
    """A fleet, and its store: what boards and nodes' meters read."""
    rng, seconds = np.random.default_rng(seed), round(hours * 3600)
    boards = NODES * PER_NODE
    drawn = np.array([(1 + gain / 100, offset) for _, gain, offset in MEASURED_BOARDS])[
        rng.integers(len(MEASURED_BOARDS), size=boards)
    ]
    drifting = (rng.random(boards) < 0.25) * population.drift * rng.choice([-1, 1], boards)
    gain = drawn[:, :1] * (1 + drifting[:, None] * np.linspace(-0.5, 0.5, seconds))
    true_w = np.concatenate([jobs_w(rng, seconds, together=population.all_together) for _ in range(NODES)])
    read_w = np.maximum(gain * true_w + drawn[:, 1:], 0.0)
    store = Store.create(folder)
    at = np.arange(READ_S, seconds, READ_S)
    gpus = [f"GPU-{number:03d}" for number in range(boards)]
    nodes = [f"n{number // PER_NODE}" for number in range(boards)]
    shown_mw = np.rint(1e3 * read_w[:, at - 1]).astype(np.int64).ravel()
    instants = BEGAN_NS + np.tile(at, boards) * 10**9
    columns: dict[str, Any] = {
        "cluster": [CLUSTER] * len(instants), "gpu": np.repeat(gpus, len(at)), "ts": instants,
        "power_mw": shown_mw,
        "utilization": np.where(true_w[:, at - 1].ravel() > IDLE_W, 100, 0),
    }  # fmt: skip
    boards_of = {"cluster": [CLUSTER] * boards, "gpu": gpus, "node": nodes, "slot": list(range(PER_NODE)) * NODES}
    boards_of |= {"model": [MODEL] * boards, "first_seen": [BEGAN_NS] * boards}
    rows = {"gpus": arrow_rows("gpus", boards_of), "telemetry": arrow_rows("telemetry", columns)}
    store.append(rows, f"fleet-{seed}")
    for number in range(NODES):
        of_gpus = true_w[number * PER_NODE : (number + 1) * PER_NODE].sum(axis=0)
        cpu_w = 150 + population.follows * of_gpus + 15 * slow(rng, seconds, 120.0)
        cpu_w = cpu_w + population.cpu_jobs_w * (slow(rng, seconds, 900.0) > 1.0)
        host_w = BASE_W + population.noise_w * slow(rng, seconds, 300.0) + 5 * rng.standard_normal(seconds)
        wall_w = (1.15 * cpu_w + host_w + of_gpus) / population.efficiency
        wall_w = wall_w * (1 + population.meter_gain * rng.standard_normal())
        ends = np.arange(120, seconds, population.every_s)
        read_w_of_node = before(wall_w, ends - population.lag_s, population.averaged_s)
        common = {"cluster": [CLUSTER] * len(ends), "node": [f"n{number}"] * len(ends), "ts": BEGAN_NS + ends * 10**9}
        power = common | {"source": [population.meter] * len(ends), "covers": [PowerOf.NODE_WALL] * len(ends)}
        power |= {"power_mw": (1e3 * read_w_of_node).astype(np.int64)}
        if population.says_window:
            power |= {"window_ms": [1000 * population.averaged_s] * len(ends)}
        store.append({"node_power": arrow_rows("node_power", power)}, f"wall-{number}")
        if population.counters:
            counted = np.cumsum(cpu_w)[ends - 1]
            cpu = common | {"source": [PowerMeter.RAPL] * len(ends), "covers": [PowerOf.CPU] * len(ends)}
            cpu |= {"energy_mj": (1e3 * counted).astype(np.int64)}
            store.append({"node_power": arrow_rows("node_power", cpu)}, f"cpu-{number}")
    return Fleet(true_w, read_w, gain, store)


def least_squares(windows: NodeWindows, efficiency: float) -> Floats:
    """The gain to apply to each board of a node, by ordinary least squares."""
    x = np.column_stack([*windows.gpu_w, np.ones(len(windows.node_w))])
    return np.asarray(np.linalg.lstsq(x, efficiency * windows.node_w, rcond=None)[0][:-1])


def judged(simulated: Fleet, errors: BoardErrors, applied: pl.DataFrame, seed: int) -> Counts:
    """Of windows of a board, and of all boards of a node, how many have their true energy in the interval."""
    rng, (boards, seconds) = np.random.default_rng(1000 + seed), simulated.true_w.shape
    true, read = (np.pad(np.cumsum(watts, axis=1), ((0, 0), (1, 0))) for watts in (simulated.true_w, simulated.read_w))
    lasts = np.exp(rng.uniform(np.log(10), np.log(LONGEST_S), WINDOWS)).astype(int)
    began = rng.integers(0, seconds - LONGEST_S, WINDOWS)
    by_gpu = {row["gpu"]: (row["h"], row["p"]) for row in applied.iter_rows(named=True)}
    h, p = np.array([by_gpu.get(f"GPU-{board:03d}", (0.0, 0.0)) for board in range(boards)]).T
    read_j = (read[:, began + lasts] - read[:, began]).ravel()
    seconds_s = np.tile(lasts, boards).astype(float)
    frame = pl.DataFrame(
        {
            "window": np.tile(np.arange(WINDOWS), boards),
            "node": np.repeat([f"n{board // PER_NODE}" for board in range(boards)], WINDOWS),
            "cluster": CLUSTER,
            "gpu": np.repeat([f"GPU-{board:03d}" for board in range(boards)], WINDOWS),
            "sensed_j": read_j,
            "sensed_s": seconds_s,
            "energy_j": (1 + np.repeat(h, WINDOWS)) * read_j + np.repeat(p, WINDOWS) * seconds_s,
            "true_j": (true[:, began + lasts] - true[:, began]).ravel(),
        }
    )
    counts: Counts = {}
    for name, by in (("board", ["window", "gpu"]), ("node", ["window", "node"])):
        sums = frame.group_by(by, maintain_order=True).agg(pl.col("energy_j", "true_j").sum())
        total = sums.join(errors.added(frame, by), on=by)
        half = NORMAL_95 * total["board_j2"].sqrt()
        middle = total["energy_j"] + total["error_j"]
        counts[f"windows of a {name} held"] = (int(((total["true_j"] - middle).abs() <= half).sum()), total.height)
        counts[f"windows of a {name}, half width, %"] = 100 * float(np.median(half / total["true_j"]))
        five = (total["true_j"] / total["energy_j"] - 1).abs() <= 0.05
        counts[f"windows of a {name} within 5 %"] = (int(five.sum()), total.height)
    return counts


def measured(population: Population, seed: int, hours: float) -> Counts:
    """The counts of one fleet."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = fleet(Path(folder) / "store", population, seed, hours)
        began = time.process_time()
        windows = list(windows_of_nodes(simulated.store))
        rows = calibrated_boards(windows, {(CLUSTER, f"GPU-{number:03d}"): MODEL for number in range(NODES * PER_NODE)})
        cpu_s = time.process_time() - began
    errors = BoardErrors.of_rows(rows)
    prior = BoardErrors.of_models([(CLUSTER, gpu, MODEL) for gpu in rows["gpu"]])
    board = np.array([int(gpu[4:]) for gpu in rows["gpu"]])
    ends = simulated.gain[board][:, [0, -1]].T  # of a gain that drifts, both ends
    right = 1 / ends - 1
    h = rows["h"].to_numpy()
    shared = rows["shared"].list.eval(pl.element().struct.field("h") ** 2).list.sum().to_numpy()
    half = NORMAL_95 * np.sqrt(rows["hh"].to_numpy() + shared)
    apart = np.abs(h - right).max(axis=0)
    plain = np.concatenate([least_squares(of_node, 0.94) for of_node in windows])
    counts: Counts = {
        "gain within 3 %": (int((apart <= WITHIN).sum()), len(h)),
        "gain in interval": (int((np.abs(h - right) <= half).all(axis=0).sum()), len(h)),
        "least squares within 3 %": (int((np.abs(plain - 1 - right).max(axis=0) <= WITHIN).sum()), len(h)),
        "largest error of a gain, %": 100 * float(apart.max()),
        "mean error of the gains, %": 100 * float((h - right.mean(axis=0)).mean()),
        "half width of a gain, %": 100 * float(np.median(half)),
        "windows of a node": float(np.median([len(of_node.node_w) for of_node in windows])),
        "cpu_s": cpu_s,
    }
    for finding, n in rows["finding"].value_counts().rows():
        counts[f"finding {finding}"] = (n, len(h))
    counts |= judged(simulated, errors, errors.calibrated, seed)
    counts |= {f"before: {name}": pair for name, pair in judged(simulated, prior, rows.clear(), seed).items()}
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--only", choices=POPULATIONS)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, population in POPULATIONS.items():
        if options.only in (None, name):
            each = [measured(population, seed, options.hours) for seed in range(1, options.seeds + 1)]
            keys = dict.fromkeys(key for counts in each for key in counts)
            rows[name] = {"what": population.description} | {
                key: together([counts[key] for counts in each if key in counts]) for key in keys
            }
    print(as_json({"hours": options.hours, "fleets": options.seeds, "machine": machine(), "populations": rows}))


def together(simulated: list[Any]) -> Any:
    """Of several fleets: of counts the share of all, of figures the median."""
    if isinstance(simulated[0], tuple):
        return share(*map(sum, zip(*simulated, strict=True)))
    return round(float(np.median(simulated)), 2)


if __name__ == "__main__":
    main()
