"""Simulated fleets of boards and nodes: calibration from node meters, and the excess of slow and hungry GPUs.

`calibration` and `excess` are sections of `benchmarks.energy`, which says what they compare.
"""

from __future__ import annotations

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
from whorl.benchmarks.harness import BenchOptions, say, scratch, share_of
from whorl.store import Store
from whorl.store.instants import times_of_ns
from whorl.store.power_sensors import MEASURED_BOARDS, NORMAL_95
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import PowerMeter, PowerOf
from whorl.tests.stores import new_store

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# -- gains of boards from the power of their nodes -----------------------------------------------------------------


NODES, PER_NODE, CLUSTER, MODEL = 8, 8, "c", "NVIDIA H100 80GB HBM3"
IDLE_W, LIMIT_W, BASE_W = 70.0, 700.0, 900.0
READ_S, METER_S, HOST_NOISE_W, EFFICIENCY = 5, 10, 25.0, 0.94
"""Between two readings of a GPU and of a node's meter; of the host, what lasts some minutes; of its power supplies."""
BEGAN_NS = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1e9)
WITHIN = 0.03
WINDOWS = 40  # of each board
LONGEST_S = 600


@dataclass(frozen=True)
class Population:
    """What a fleet does."""

    description: str
    meter: PowerMeter = PowerMeter.PDU
    meter_gain: float = 0.005
    """Standard deviation of the gain of the nodes' meters."""
    late_s: int = 0
    mean_s: int = METER_S
    says_mean: bool = True
    """How late the nodes' meters are, over what time they average, and whether they say so."""
    follows: float = 0.0
    """What the host draws more for each W of its GPUs."""
    counters: bool = False
    """Whether the CPUs have counters."""
    all_together: bool = False


POPULATIONS = {
    "pdu": Population("a PDU within 1 %, mean of 10 s"),
    "gain 3 %": Population("a BMC whose gain is wrong by 3 %", PowerMeter.IPMI, 0.03),
    "late": Population("a BMC 12 s late, mean of 30 s, and it says neither", PowerMeter.IPMI, 0.01, 12, 30, False),
    "cpu follows": Population("CPUs and fans draw 6 % of the GPUs' power more", follows=0.06),
    "cpu counted": Population("the same, and CPUs have counters", follows=0.06, counters=True),
    "together": Population("all GPUs of a node always work together", all_together=True),
}


@dataclass(frozen=True)
class Fleet:
    """The truth of a fleet: power (boards, seconds), gains (boards,)."""

    true_w: Floats
    read_w: Floats
    gain: Floats
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


def fleet(folder: Path, population: Population, seed: int, hours: float) -> Fleet:
    """A fleet, and its store: what boards and nodes' meters read."""
    rng, seconds = np.random.default_rng(seed), round(hours * 3600)
    boards = NODES * PER_NODE
    measured_boards = np.array([(1 + gain / 100, offset) for _, gain, offset in MEASURED_BOARDS])
    gain, offset = measured_boards[rng.integers(len(MEASURED_BOARDS), size=boards)].T
    true_w = np.concatenate([jobs_w(rng, seconds, together=population.all_together) for _ in range(NODES)])
    read_w = np.maximum(gain[:, None] * true_w + offset[:, None], 0.0)
    store, at = Store.create(folder), np.arange(READ_S, seconds, READ_S)
    gpus = [f"GPU-{number:03d}" for number in range(boards)]
    columns: dict[str, Any] = {
        "cluster": [CLUSTER] * (boards * len(at)), "gpu": np.repeat(gpus, len(at)),
        "ts": BEGAN_NS + np.tile(at, boards) * 10**9,
        "utilization": np.where(true_w[:, at - 1].ravel() > IDLE_W, 100, 0),
        "power_mw": np.rint(1e3 * read_w[:, at - 1]).astype(np.int64).ravel(),
    }  # fmt: skip
    boards_of = {"cluster": [CLUSTER] * boards, "gpu": gpus, "slot": list(range(PER_NODE)) * NODES}
    boards_of |= {"model": [MODEL] * boards, "first_seen": [BEGAN_NS] * boards}
    boards_of |= {"node": [f"n{number // PER_NODE}" for number in range(boards)]}
    rows = {"gpus": arrow_rows("gpus", boards_of), "telemetry": arrow_rows("telemetry", columns)}
    store.append(rows, f"fleet-{seed}")
    ends = np.arange(120, seconds, METER_S)
    for number in range(NODES):
        of_gpus = true_w[number * PER_NODE : (number + 1) * PER_NODE].sum(axis=0)
        cpu_w = 150 + population.follows * of_gpus + 15 * slow(rng, seconds, 120.0)
        host_w = BASE_W + HOST_NOISE_W * slow(rng, seconds, 300.0) + 5 * rng.standard_normal(seconds)
        wall_w = (1.15 * cpu_w + host_w + of_gpus) / EFFICIENCY * (1 + population.meter_gain * rng.standard_normal())
        wall_j = np.append(0.0, np.cumsum(wall_w))
        common = {"cluster": [CLUSTER] * len(ends), "node": [f"n{number}"] * len(ends), "ts": BEGAN_NS + ends * 10**9}
        power = common | {"source": [population.meter] * len(ends), "covers": [PowerOf.NODE_WALL] * len(ends)}
        until, mean_s = ends - population.late_s, population.mean_s
        power |= {"power_mw": (1e3 * (wall_j[until] - wall_j[until - mean_s]) / mean_s).astype(np.int64)}
        power |= {"window_ms": [1000 * mean_s if population.says_mean else None] * len(ends)}
        store.append({"node_power": arrow_rows("node_power", power)}, f"wall-{number}")
        if population.counters:
            cpu = common | {"source": [PowerMeter.RAPL] * len(ends), "covers": [PowerOf.CPU] * len(ends)}
            cpu |= {"energy_mj": (1e3 * np.cumsum(cpu_w)[ends - 1]).astype(np.int64)}
            store.append({"node_power": arrow_rows("node_power", cpu)}, f"cpu-{number}")
    return Fleet(true_w, read_w, gain, store)


def least_squares(windows: NodeWindows) -> Floats:
    """The gain to apply to each board of a node, by ordinary least squares."""
    x = np.column_stack([*windows.gpu_w, np.ones(len(windows.node_w))])
    return np.asarray(np.linalg.lstsq(x, EFFICIENCY * windows.node_w, rcond=None)[0][:-1])


def held_windows(simulated: Fleet, errors: BoardErrors, applied: pl.DataFrame, seed: int) -> Bools:
    """Of windows of each board, whether the interval has their true energy."""
    rng, (boards, seconds) = np.random.default_rng(1000 + seed), simulated.true_w.shape
    true, read = (np.pad(np.cumsum(watts, axis=1), ((0, 0), (1, 0))) for watts in (simulated.true_w, simulated.read_w))
    lasts = np.exp(rng.uniform(np.log(10), np.log(LONGEST_S), WINDOWS)).astype(int)
    began = rng.integers(0, seconds - LONGEST_S, WINDOWS)
    by_gpu = {row["gpu"]: (row["h"], row["p"]) for row in applied.iter_rows(named=True)}
    gpus = [f"GPU-{board:03d}" for board in range(boards)]
    h, p = np.array([by_gpu.get(gpu, (0.0, 0.0)) for gpu in gpus]).T
    read_j, lasted_s = (read[:, began + lasts] - read[:, began]).ravel(), np.tile(lasts, boards).astype(float)
    frame = pl.DataFrame(
        {
            "window": np.tile(np.arange(WINDOWS), boards), "cluster": CLUSTER, "gpu": np.repeat(gpus, WINDOWS),
            "sensed_j": read_j, "sensed_s": lasted_s, "true_j": (true[:, began + lasts] - true[:, began]).ravel(),
            "energy_j": (1 + np.repeat(h, WINDOWS)) * read_j + np.repeat(p, WINDOWS) * lasted_s,
        }
    )  # fmt: skip
    keys = ["window", "gpu"]
    total = frame.join(errors.added(frame, keys), on=keys)
    middle = total["energy_j"] + total["error_j"]
    return np.asarray((total["true_j"] - middle).abs() <= NORMAL_95 * total["board_j2"].sqrt())


def measured(population: Population, seed: int, hours: float) -> dict[str, Bools]:
    """By what is asked of one fleet, whether it is so of each board or window."""
    with scratch() as folder:
        simulated = fleet(folder / "store", population, seed, hours)
        windows = list(windows_of_nodes(simulated.store))
        rows = calibrated_boards(windows, {(CLUSTER, f"GPU-{number:03d}"): MODEL for number in range(NODES * PER_NODE)})
    errors = BoardErrors.of_rows(rows)
    right = 1 / simulated.gain[[int(gpu[4:]) for gpu in rows["gpu"]]] - 1
    h = rows["h"].to_numpy()
    shared = rows["shared"].list.eval(pl.element().struct.field("h") ** 2).list.sum().to_numpy()
    half = NORMAL_95 * np.sqrt(rows["hh"].to_numpy() + shared)
    plain = np.concatenate([least_squares(of_node) for of_node in windows])
    return {
        "gain within 3 %": np.abs(h - right) <= WITHIN, "gain in interval": np.abs(h - right) <= half,
        "least squares within 3 %": np.abs(plain - 1 - right) <= WITHIN,
        "windows of a board held": held_windows(simulated, errors, errors.calibrated, seed),
    }  # fmt: skip


def calibration(options: BenchOptions) -> dict[str, Any]:
    """What is found of each population of meters and hosts."""
    fleets, hours = options.pick(1, 3, 3), 24.0 if options.size != "quick" else 4.0
    rows: dict[str, Any] = {}
    for name, population in POPULATIONS.items() if options.size != "quick" else [("pdu", POPULATIONS["pdu"])]:
        say(f"calibration: {name}")
        of_fleets = [measured(population, seed, hours) for seed in range(1, fleets + 1)]
        rates = {key: share_of(np.concatenate([of_fleet[key] for of_fleet in of_fleets])) for key in of_fleets[0]}
        rows[name] = {"description": population.description} | rates
    return {"hours": hours, "fleets": fleets, "boards": NODES * PER_NODE, "populations": rows}


# -- what the place of jobs costs ----------------------------------------------------------------------------------


WORK = {"gemm": (297.0, COMPUTE), "fma": (220.0, COMPUTE), "stream": (145.0, MEMORY), "copy": (150.0, MEMORY)}
"""Power (W) and what it stresses."""
WORK_LIMIT_W = 300.0
SENSOR_POPULATIONS = ("normal", "wide sensors", "held by the limit", "one sitting")
"""GPUs differ by 1.7 % in gemm, 0.5 % in others, 2 % in power (robustly); sensors that differ by twice as much as the
measured ones, with t3 tails; gemm at the power limit, held by the board's own sensor; each GPU measured in one sitting
only."""
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
    """By GPU and workload the logarithms of time and power over the usual ones; gain and offset of its sensor."""
    silicon, silicon_own = random.standard_normal((gpus, 1)), random.standard_normal((gpus, len(WORK)))
    time = np.array([0.016, 0.003, 0.001, 0.001]) * silicon + 0.004 * silicon_own
    power = 0.02 * random.standard_normal((gpus, 1)) + 0.004 * random.standard_normal((gpus, len(WORK)))
    if population == "wide sensors":
        return time, power, (0.05 * random.standard_t(3, gpus)).clip(-0.5, 0.5), 8 * random.standard_normal(gpus)
    sensors = np.array([[gain / 100, offset] for _, gain, offset in MEASURED_BOARDS])
    gain, offset = random.multivariate_normal(sensors.mean(axis=0), np.cov(sensors.T), gpus).T
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


RULES = ("whorl", "5 % above the median", "Tukey's fence")


def by_rules(fleet: ExcessFleet) -> dict[str, Bools]:
    """The GPUs that others would name: by energy for the same work, the mean over the workloads, of readings alone."""
    wide = fleet.fingerprints.filter(pl.col("figure") == "work_per_joule").sort("gpu", "workload")
    values = -np.log(wide["value"].to_numpy().reshape(-1, len(WORK)))
    x = (values - np.median(values, axis=0)).mean(axis=1)
    low, high = np.quantile(x, (0.25, 0.75))
    return dict(zip(RULES[1:], (x > np.log(1.05), x > high + 1.5 * (high - low)), strict=True))


def rates_of(population: str, fleets: int, planted: float) -> dict[str, Any]:
    """Fleets of one kind: in how many an innocent GPU is shown, how many planted ones are, and whether intervals of
    energy (j) and time (s), of GPUs and of the whole fleet, hold the truth."""
    held: dict[str, list[bool]] = {"excess_j": [], "excess_s": [], "total": []}
    false_fleets: dict[str, list[bool]] = {rule: [] for rule in (*RULES, "whorl, in time")}
    planted_shown: dict[str, list[bool]] = {"slow, in time": [], "hungry, in energy": []}
    for number in range(fleets):
        seed = [2026 + bool(planted), SENSOR_POPULATIONS.index(population), number]
        fleet = excess_fleet(np.random.default_rng(seed), 128, population, planted)
        limits = fleet.pieces.select("cluster", "gpu").unique().with_columns(limit_w=pl.lit(WORK_LIMIT_W))
        rows = excess_of(fleet.pieces, levels(fleet.fingerprints, limits), fleet.busy)
        by_gpu = add_excess(rows, ["cluster", "gpu"]).sort("gpu")
        in_time, in_energy = (by_gpu[f"excess_{unit}_shown"].fill_null(value=False).to_numpy() for unit in ("s", "j"))
        healthy = ~(fleet.slow | fleet.hungry)
        innocent_j, innocent_s = healthy & (fleet.energy_j <= 0), healthy & (fleet.time_s <= 0)
        for rule, names in {"whorl": in_energy, **by_rules(fleet)}.items():
            false_fleets[rule].append(bool((names & innocent_j).any()))
        false_fleets["whorl, in time"].append(bool((in_time & innocent_s).any()))
        planted_shown["slow, in time"] += in_time[fleet.slow].tolist()
        planted_shown["hungry, in energy"] += in_energy[fleet.hungry].tolist()
        for unit, truth in (("j", fleet.energy_j), ("s", fleet.time_s)):
            low, high = (by_gpu[f"excess_{end}_{unit}"].to_numpy() for end in ("low", "high"))
            held[f"excess_{unit}"] += ((low <= truth) & (truth <= high))[np.isfinite(low)].tolist()
        total = add_excess(rows, ["cluster"]).row(0, named=True)
        held["total"].append(bool(total["excess_low_j"] <= fleet.energy_j.sum() <= total["excess_high_j"]))
    return {
        "population": population, "fleets": fleets,
        "fleets_with_a_false_one": {rule: share_of(flags) for rule, flags in false_fleets.items()},
        "interval_holds_the_truth": {name: share_of(flags) for name, flags in held.items()},
        "shown": {name: share_of(flags) for name, flags in planted_shown.items() if flags},
    }  # fmt: skip


def excess(options: BenchOptions) -> dict[str, Any]:
    """Fleets of 128 GPUs: healthy, and with faults."""
    fleets = options.pick(2, 25, 300)
    tables: dict[str, Any] = {"slow": SLOW, "hungry": HUNGRY, "gpus_of_a_fleet": 128}
    for name, planted in (("healthy", 0.0), ("planted", 0.02)):
        say(f"excess: {name}")
        tables[name] = [rates_of(population, fleets, planted) for population in SENSOR_POPULATIONS]
    return tables
