"""Simulated fleets of boards and nodes: calibration from node meters, and the excess of slow and hungry GPUs.

`calibration` and `excess` are sections of `benchmarks.energy`, which says what they compare.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.boards import BoardErrors
from whorl.analysis.energy.calibration import NodeWindows, calibrated_boards, windows_of_nodes
from whorl.analysis.energy.excess import BUSY, add_excess
from whorl.analysis.energy.excess import excess as excess_of
from whorl.analysis.energy.levels import levels
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.benchmarks.fleets import COMPUTE, MEMORY, began_s, gpu_name, stored
from whorl.benchmarks.harness import BenchOptions, say, scratch, share
from whorl.store import Store
from whorl.store.instants import times_of_ns
from whorl.store.power_sensors import MEASURED_BOARDS, NORMAL_95
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import PowerMeter, PowerOf
from whorl.tests.stores import new_store

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = dict[str, tuple[int, int] | float]

# -- gains of boards from the power of their nodes -----------------------------------------------------------------


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
    with scratch() as folder:
        simulated = fleet(folder / "store", population, seed, hours)
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


def together(simulated: list[Any]) -> Any:
    """Of several fleets: of counts the share of all, of figures the median."""
    if isinstance(simulated[0], tuple):
        return share(*map(sum, zip(*simulated, strict=True)))
    return round(float(np.median(simulated)), 2)


def calibration(options: BenchOptions) -> dict[str, Any]:
    """What is found of each population of meters and hosts."""
    fleets, hours = options.pick(1, 3, 3), 24.0 if options.size != "quick" else 4.0
    rows: dict[str, Any] = {}
    for name, population in POPULATIONS.items() if options.size != "quick" else [("pdu", POPULATIONS["pdu"])]:
        say(f"calibration: {name}")
        counts = [measured(population, seed, hours) for seed in range(1, fleets + 1)]
        keys = dict.fromkeys(key for of_fleet in counts for key in of_fleet)
        rows[name] = {"description": population.description} | {
            key: together([of_fleet[key] for of_fleet in counts if key in of_fleet]) for key in keys
        }
    return {"hours": hours, "fleets": fleets, "boards": NODES * PER_NODE, "populations": rows}


# -- what the place of jobs costs ----------------------------------------------------------------------------------


WORK = {"gemm": (297.0, COMPUTE), "fma": (220.0, COMPUTE), "stream": (145.0, MEMORY), "copy": (150.0, MEMORY)}
"""Power (W) and what it stresses."""
WORK_LIMIT_W = 300.0
SENSOR_POPULATIONS = (
    "normal",
    "alike",
    "t5 silicon",
    "narrow sensors",
    "wide sensors",
    "held by the limit",
    "one sitting",
)
"""GPUs differ by 1.7 % in gemm, 0.5 % in others, 2 % in power (robustly); no differences at all; heavy tails; sensors
that differ by 1 %; by twice as much as the measured ones, with t3 tails; gemm at the power limit, held by the board's
own sensor; each GPU measured in one sitting only."""
SLOW, HUNGRY = 0.12, 0.20
_RUN, _DAY = 0.0015, 0.002
_JOBS = 14
_DAY_S = 86_400.0


@dataclass(frozen=True)
class ExcessFleet:
    """A fleet, what is seen of it, and its true excess."""

    fingerprints: pl.DataFrame
    pieces: pl.DataFrame
    busy: pl.DataFrame
    energy_j: Floats
    """(gpus,) the true excess of each."""
    time_s: Floats
    slow: Bools
    hungry: Bools


def excess_fleet(random: np.random.Generator, gpus: int, population: str, planted: float = 0.0) -> ExcessFleet:
    """A fleet of one model; `planted`: the share of its GPUs that is slow, and that is hungry."""
    time, power, gain, offset = _boards(random, gpus, population)
    order = random.permutation(gpus)
    n = round(planted * gpus)
    slow, hungry = (np.isin(np.arange(gpus), chosen) for chosen in (order[:n], order[n : 2 * n]))
    time = time + np.log1p(SLOW) * slow[:, None]
    power = power + np.log1p(HUNGRY) * hungry[:, None]
    watts = np.array([watts for watts, _ in WORK.values()]) * np.exp(power)
    if population == "held by the limit":  # the board's own sensor holds what it draws, and the clock follows
        held = (WORK_LIMIT_W - offset) / (1 + gain)
        time[:, 0] += np.log(watts[:, 0] / held).clip(min=-0.2) / 2.4
        watts[:, 0] = held
    read = (1 + gain)[:, None] * watts + offset[:, None]
    fingerprints = _fingerprints(random, time, read, 1 if population == "one sitting" else 3)
    return _with_jobs(random, fingerprints, time, watts, gain, offset, slow, hungry)


def _boards(random: np.random.Generator, gpus: int, population: str) -> tuple[Floats, Floats, Floats, Floats]:
    def drawn(shape: tuple[int, ...]) -> Floats:
        return (
            random.standard_t(5, shape) / np.sqrt(5 / 3)
            if population == "t5 silicon"
            else random.standard_normal(shape)
        )

    differ = 0.0 if population == "alike" else 1.0
    silicon, silicon_own = drawn((gpus, 1)), drawn((gpus, len(WORK)))
    time = differ * (np.array([0.016, 0.003, 0.001, 0.001]) * silicon + 0.004 * silicon_own)
    power = differ * 0.02 * drawn((gpus, 1)) + differ * 0.004 * random.standard_normal((gpus, len(WORK)))
    if population == "narrow sensors" or population == "alike":
        return time, power, 0.01 * random.standard_normal(gpus), 0.5 * random.standard_normal(gpus)
    if population == "wide sensors":
        return time, power, (0.05 * random.standard_t(3, gpus)).clip(-0.5, 0.5), 8 * random.standard_normal(gpus)
    measured = np.array([[gain / 100, offset] for _, gain, offset in MEASURED_BOARDS])
    gain, offset = random.multivariate_normal(measured.mean(axis=0), np.cov(measured.T), gpus).T
    return time, power, gain, offset


def _fingerprints(random: np.random.Generator, time: Floats, read: Floats, sittings: int) -> pl.DataFrame:
    """What whorl stores of the GPUs: times and powers as read, three runs of each workload in each sitting."""
    gpus, runs = len(time), 3
    times, columns = {}, {}
    for place, (name, (_, conditions)) in enumerate(WORK.items()):
        of_day = (_DAY * random.standard_normal((gpus, sittings))).repeat(runs, axis=1)
        moved = of_day + _RUN * random.standard_normal((gpus, sittings * runs))
        watts = read[:, [place]] * np.exp(0.002 * random.standard_normal(moved.shape))
        times[name] = np.exp(3.0 + time[:, [place]] + moved)
        columns[name] = {"sm_clock_mhz": 1400.0, "power_w": watts, "temperature_c": 60.0, "conditions": conditions}
    with scratch() as folder:
        store = stored(new_store(folder / "S"), times, began_s(sittings, runs, days_apart=15.0), columns=columns)
        return fingerprint(Model(probed(store, every=True)))


def _with_jobs(
    random: np.random.Generator, fingerprints: pl.DataFrame, time: Floats, watts: Floats, gain: Floats, offset: Floats,
    slow: Bools, hungry: Bools,
) -> ExcessFleet:  # fmt: skip
    """Each GPU has jobs of a day: the truth of each, and what is read of it."""
    gpus = len(time)
    kind = random.integers(2, size=(gpus, _JOBS))  # compute or memory
    mix = random.random((gpus, _JOBS))
    busy = random.uniform(0.5, 1.0, (gpus, _JOBS))

    def mixed(levels_of: Floats) -> Floats:
        first = np.where(kind == 0, levels_of[:, [0]], levels_of[:, [2]])
        second = np.where(kind == 0, levels_of[:, [1]], levels_of[:, [3]])
        return mix * first + (1 - mix) * second

    usual_time, usual_energy = np.median(time, axis=0), np.median(time + np.log(watts), axis=0)
    t, e = mixed(time - usual_time), mixed(time + np.log(watts) - usual_energy)
    work_j = busy * _DAY_S * mixed(watts)
    true_j = work_j + (1 - busy) * _DAY_S * IDLE_W
    read_j = (1 + gain)[:, None] * true_j + offset[:, None] * _DAY_S
    rows = gpus * _JOBS
    names = np.repeat([gpu_name(gpu) for gpu in range(gpus)], _JOBS)
    began = 1_791_000_000_000_000_000 + np.tile(np.arange(_JOBS) * int(_DAY_S * 1e9), gpus)
    since = times_of_ns(pl.Series(began))
    idle_j = np.repeat((1 + gain) * IDLE_W + offset, _JOBS) * _DAY_S
    pieces = {
        "cluster": ["made"] * rows, "gpu": names, "node": [f"n{at // 4}" for at in np.repeat(np.arange(gpus), _JOBS)],
        "began": since, "ended": since + timedelta(seconds=_DAY_S),
        "kind": ["job"] * rows, "allocation": [str(at) for at in range(rows)], "share": [1.0] * rows,
        "energy_j": read_j.ravel(), "idle_j": idle_j, "idle_low_j": idle_j, "idle_high_j": idle_j,
        "idle_source": [None] * rows,
        "below_j": [0.0] * rows, "above_j": [0.0] * rows, "variance_j2": [0.0] * rows, "sensed_j": read_j.ravel(),
        "sensed_s": [_DAY_S] * rows, "measured_s": [_DAY_S] * rows, "method": ["power"] * rows, "reason": [None] * rows,
    }  # fmt: skip
    use = {
        "cluster": ["made"] * rows, "gpu": names, "allocation": pieces["allocation"], "busy": busy.ravel(),
        "memory": (busy * np.where(kind == 0, 0.15, 0.8)).ravel(), "workload": [None] * rows,
    }  # fmt: skip
    excess_j, excess_s = (work_j * -np.expm1(-e)).sum(axis=1), (busy * _DAY_S * -np.expm1(-t)).sum(axis=1)
    return ExcessFleet(
        fingerprints,
        pl.DataFrame(pieces, schema=PIECES),
        pl.DataFrame(use, schema=BUSY),
        excess_j,
        excess_s,
        slow,
        hungry,
    )


RULES = ("whorl", "above the median", "5 % above the median", "Tukey's fence")
"""Who costs, of energy: by whorl, and by the energy for the same work, the mean over the workloads, of readings alone.
"""


def by_rules(fleet: ExcessFleet) -> dict[str, Bools]:
    """The GPUs that others would name."""
    wide = fleet.fingerprints.filter(pl.col("figure") == "work_per_joule").sort("gpu", "workload")
    values = -np.log(wide["value"].to_numpy().reshape(-1, len(WORK)))
    x = (values - np.median(values, axis=0)).mean(axis=1)
    low, high = np.quantile(x, (0.25, 0.75))
    return dict(zip(RULES[1:], (x > 0, x > np.log(1.05), x > high + 1.5 * (high - low)), strict=True))


def named_in(fleet: ExcessFleet, number: int) -> tuple[pl.DataFrame, bool]:
    """A row for each GPU and measure (j, s): what is true, what was said, who names it; and whether the interval of the
    whole fleet's energy holds."""
    limits = fleet.pieces.select("cluster", "gpu").unique().with_columns(limit_w=pl.lit(WORK_LIMIT_W))
    rows = excess_of(fleet.pieces, levels(fleet.fingerprints, limits), fleet.busy)
    by_gpu = add_excess(rows, ["cluster", "gpu"]).sort("gpu")
    fault = np.where(fleet.slow, "slow", np.where(fleet.hungry, "hungry", ""))
    energy_j = fleet.pieces["energy_j"].to_numpy().reshape(-1, _JOBS).sum(axis=1)
    busy_s = _DAY_S * fleet.busy["busy"].to_numpy().reshape(-1, _JOBS).sum(axis=1)
    parts = []
    for unit, truth, scale in (("j", fleet.energy_j, energy_j), ("s", fleet.time_s, busy_s)):
        rules = by_rules(fleet) if unit == "j" else dict.fromkeys(RULES[1:])
        parts.append(
            by_gpu.select(
                pl.lit(number).alias("fleet"), pl.lit(unit).alias("unit"), pl.Series("fault", fault),
                pl.Series("truth", truth), pl.col(f"excess_{unit}").alias("said"),
                pl.col(f"excess_low_{unit}").alias("low"), pl.col(f"excess_high_{unit}").alias("high"),
                pl.Series("scale", scale), pl.col(f"excess_{unit}_shown").fill_null(value=False).alias("whorl"),
                *(pl.lit(None, pl.Boolean).alias(rule) if named is None else pl.Series(rule, named)
                  for rule, named in rules.items()),
            )
        )  # fmt: skip
    total = add_excess(rows, ["cluster"]).row(0, named=True)
    return pl.concat(parts), bool(total["excess_low_j"] <= fleet.energy_j.sum() <= total["excess_high_j"])


def summary(rows: pl.DataFrame, totals: list[bool]) -> dict[str, Any]:
    """The figures of the fleets of one kind."""
    holds = (pl.col("low") <= pl.col("truth")) & (pl.col("truth") <= pl.col("high"))
    answer: dict[str, Any] = {"fleets": len(totals), "gpus": rows.filter(unit="j").height}
    for (unit,), part in rows.with_columns(holds=holds).group_by("unit", maintain_order=True):
        is_known = part.drop_nulls("said")
        width = is_known.select((pl.col("high") - pl.col("low")).median() / pl.col("scale").median()).item()
        of_unit: dict[str, Any] = {
            "interval_holds_the_truth": share(int(is_known["holds"].sum()), is_known.height),
            "median_width_of_busy": round(float(width), 4),
        }
        innocent = part.filter((pl.col("fault") == "") & (pl.col("truth") <= 0))
        for rule in RULES:
            if part[rule].null_count() == 0:
                false = innocent.filter(pl.col(rule))
                of_unit[f"fleets_with_a_false_one: {rule}"] = share(false["fleet"].n_unique(), len(totals))
                of_unit[f"false_per_1000_gpus: {rule}"] = round(1000 * false.height / part.height, 2)
        answer[f"excess_{unit}"] = of_unit
        for fault in ("slow", "hungry") if unit == "j" else ("slow",):
            faulty = part.filter(fault=fault)
            if faulty.height:
                ratios = faulty.select(pl.col("said") / pl.col("truth")).to_series().drop_nulls().to_numpy()
                answer[f"excess_{unit} {fault}"] = {
                    **{f"shown: {rule}": share(int(faulty[rule].sum()), faulty.height)
                       for rule in RULES if faulty[rule].null_count() == 0},
                    "interval_holds_the_truth": share(int(faulty["holds"].sum()), faulty.height),
                    "said_over_true": [round(float(q), 4) for q in np.quantile(ratios, (0.05, 0.5, 0.95))],
                }  # fmt: skip
    answer["total_interval_holds_the_truth"] = share(sum(totals), len(totals))
    return answer


def excess(options: BenchOptions) -> dict[str, Any]:
    """Fleets of 128 GPUs: healthy, and with faults."""
    fleets = options.pick(2, 25, 300)
    tables: dict[str, Any] = {"slow": SLOW, "hungry": HUNGRY, "gpus_of_a_fleet": 128}
    for name, planted in (("healthy", 0.0), ("planted", 0.02)):
        rows = []
        for place, population in enumerate(SENSOR_POPULATIONS):
            say(f"excess: {name}, {population}")
            seeds = ([2026 + bool(planted), place, number] for number in range(fleets))
            drawn_fleets = (excess_fleet(np.random.default_rng(seed), 128, population, planted) for seed in seeds)
            frames, totals = zip(*(named_in(fleet, number) for number, fleet in enumerate(drawn_fleets)), strict=True)
            rows.append({"population": population, **summary(pl.concat(frames), list(totals))})
        tables[name] = rows
    return tables
