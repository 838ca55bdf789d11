"""Made fleets: GPUs with runs of probes, as a store has them; healthy populations and faults of a stated size.

`stored` is the one way in which the benchmarks store runs. `figures_of` draws those of four probes: `gemm` (its clock
is held by the power cap, so silicon shows in it), `fma` (full clock), `stream` and `spmv` (memory). Sizes are those of
the Longhorn files: GPUs differ by 1.7 % in `gemm`, all but 0.25 % of it by their clocks, and by 0.12 % in memory; a run
by 0.08 %, a day by 0.1 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whorl.analysis.runs.probing import Probed, probed
from whorl.benchmarks.harness import scratch
from whorl.store import Store
from whorl.tests.stores import new_store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Random = np.random.Generator

CLUSTER, PER_NODE, BEGAN_S, DAY_S = "made", 4, 1_790_000_000, 86_400
MODEL = "Tesla V100-SXM2-16GB"
COMPUTE = {"path": "none", "flop": 1e12, "bytes": 1e9}
"""The conditions of a probe that stresses arithmetic."""
MEMORY = {"path": "dram", "flop": 0.0, "bytes": 1e9}


# -- the rows of a store -----------------------------------------------------------------------------------------------


def gpu_name(gpu: int) -> str:
    """The UUID of the GPU of a number."""
    return f"GPU-{gpu:08x}-0000-4000-8000-{gpu:012x}"


def gpu_number(name: str) -> int:
    """The number of the GPU that has this UUID."""
    return int(name[-12:], 16)


def node_name(node: int) -> str:
    return f"h{node:04d}"


def place_name(gpu: int) -> str:
    """How verdicts call the GPU of a number."""
    return f"{node_name(gpu // PER_NODE)}/{gpu % PER_NODE}"


def gpu_rows(gpus: int, per_node: int = PER_NODE, **columns: Any) -> pa.Table:
    """Rows of `gpus`: V100s of 300 W, so many a node. `columns` are added, or stand instead."""
    places = np.arange(gpus)
    shared = {
        "cluster": [CLUSTER] * gpus, "gpu": [gpu_name(gpu) for gpu in range(gpus)],
        "node": [node_name(gpu // per_node) for gpu in range(gpus)], "slot": pa.array(places % per_node, pa.int32()),
        "model": [MODEL] * gpus, "power_limit_mw": pa.array([300_000] * gpus, pa.int64()),
        "sm_clock_max_mhz": pa.array([1530] * gpus, pa.int32()),
        "temperature_slowdown_c": pa.array([87] * gpus, pa.int32()),
        "temperature_max_operating_c": pa.array([83] * gpus, pa.int32()),
        "first_seen": pa.array([BEGAN_S * 10**6] * gpus, pa.timestamp("us")),
    }  # fmt: skip
    return pa.table(shared | columns)


def began_s(sittings: int, runs: int, *, days_apart: float = 1.0, apart_s: float = 60.0) -> Floats:
    """(sittings x runs,) when the runs of a GPU begin, s since 1970."""
    day, turn = (index.ravel() for index in np.indices((sittings, runs)))
    return np.asarray(BEGAN_S + days_apart * DAY_S * day + apart_s * turn, np.float64)


def stored(
    store: Store, times_ms: Mapping[str, Floats], began: Floats, *, gpus: pa.Table | None = None,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> Store:  # fmt: skip
    """Store runs of these workloads: times (gpus, runs), begun at `began` (runs,), s since 1970. Returns the store.

    `gpus` are rows of `gpus`; `columns` by workload further columns of `runs`, each (gpus, runs), (gpus, 1) or a value.
    """
    tables = list[tuple[pa.Table, pa.Table]]()
    for number, (workload, times) in enumerate(times_ms.items()):
        shape, n = times.shape, times.size
        if gpus is None:
            gpus = gpu_rows(shape[0])
        gpu = np.repeat(np.arange(shape[0]), shape[1])
        since_us = np.tile((1e6 * (began + 10 * number)).astype(np.int64), shape[0])
        keys = {
            "run_id": [f"{number:04x}{place:012x}" for place in range(n)], "cluster": same(CLUSTER, n),
            "workload": same(workload, n), "gpu": gpus["gpu"].combine_chunks().take(pa.array(gpu)),
        }  # fmt: skip
        run: dict[str, Any] = {
            "began": pa.array(since_us, pa.timestamp("us")), "status": same("ok", n),
            "ended": pa.array(since_us + 10 * 10**6, pa.timestamp("us")),
        }  # fmt: skip
        for name, values in (columns or {}).get(workload, {}).items():
            spread_out = np.broadcast_to(np.array(values, object if isinstance(values, dict) else None), shape)
            run[name] = pa.array(spread_out.ravel().tolist() if spread_out.dtype == object else spread_out.ravel())
        result = {
            "repeat": pa.array(np.zeros(n, np.int32)), "figure": same("time", n), "unit": same("ms", n),
            "value": times.ravel(),
        }  # fmt: skip
        tables.append((pa.table(keys | run), pa.table(keys | result)))
    runs, results = (pa.concat_tables(parts) for parts in zip(*tables, strict=True))
    assert gpus is not None
    store.append({"gpus": gpus, "runs": runs, "results": results}, "made")
    return store


def same(text: str, n: int) -> pa.Array:
    """A column with one text in all rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text])).cast(pa.string())


# -- probes of populations ---------------------------------------------------------------------------------------------

POPULATIONS = (
    "normal", "t4 runs", "gamma silicon", "t5 silicon", "nodes share", "dust", "revision", "glitches", "days",
)  # fmt: skip
"""Healthy fleets: normal; runs with tails; skewed and heavy-tailed silicon; a host effect shared by a node; nodes with
dust (hot and slow as a whole: a node may be named, its GPUs may not); 16 % of the GPUs 3 % faster, nobody recorded why;
one run in 1,000 is 5 to 50 % longer; days that differ by 1 % for all."""
FAULTS = ("memory", "compute", "heat")
"""`stream` is slower; `gemm` and `fma` are slower at the same clock; heat holds the clock of `gemm`."""


@dataclass(frozen=True)
class MadeProbe:
    """A probe of the made fleets: by how much silicon differs in it (log), its power (W) and warmth (K over the inlet),
    and what it stresses."""

    spread: float
    watts: float
    kelvin: float
    conditions: Mapping[str, Any]


MADE_PROBES = {
    "gemm": MadeProbe(0.017, 297.0, 64.0, COMPUTE), "fma": MadeProbe(0.0012, 220.0, 57.0, COMPUTE),
    "stream": MadeProbe(0.0012, 145.0, 45.0, MEMORY), "spmv": MadeProbe(0.0012, 180.0, 50.0, MEMORY),
}  # fmt: skip
PROBES = ("gemm", "fma", "stream")
_AT_CLOCK = 0.0025  # of gemm: what the clock does not explain
_RUN, _DAY = 0.0008, 0.001
_KAPPA = 0.95
_POWER = 2.4  # exponent of the power on the clock


@dataclass(frozen=True)
class FleetFigures:
    """Figures of a fleet and the truth about it: arrays of shape (gpus,), or (gpus, runs) for what differs by run."""

    faulty: Bools
    log_times: dict[str, Floats]
    """By probe, (gpus, runs)."""
    clocks: dict[str, Floats]
    """By probe, (gpus,) MHz."""
    heat: dict[str, Floats]
    """By probe, (gpus,) what heat costs, as a logarithm of the time."""
    inlet: Floats
    """(gpus,) kelvin above the usual inlet."""
    sittings: int

    def levels(self) -> dict[str, Floats]:
        """By figure, (gpus,) the median of the runs; `gemm at its clock` is what the clock does not explain."""
        levels = {probe: np.median(times, axis=1) for probe, times in self.log_times.items()}
        return levels | {"gemm at its clock": levels["gemm"] + _KAPPA * np.log(self.clocks["gemm"])}

    def stored(self, store: Store, random: Random, *, days_apart: float = 1.0, **about_gpus: Any) -> Store:
        """Store the fleet. `about_gpus`: further columns of its GPUs."""
        columns = {}
        for name, times in self.log_times.items():
            probe, heat, shape = MADE_PROBES[name], self.heat[name], times.shape
            power = probe.watts * np.exp(-_POWER * heat / _KAPPA)[:, None]
            hot = np.where(heat > 0, np.maximum(83.0 - probe.kelvin - self.inlet, 0.0), 0.0)
            columns[name] = {
                "sm_clock_mhz": self.clocks[name][:, None], "mem_clock_mhz": 877.0,
                "power_w": power * np.exp(0.002 * random.standard_normal(shape)),
                "temperature_c": np.round(
                    probe.kelvin + (self.inlet + hot)[:, None] + 0.5 * random.standard_normal(shape)
                ),
                "conditions": probe.conditions,
            }  # fmt: skip
        gpus, runs = self.log_times["gemm"].shape
        began = began_s(self.sittings, runs // self.sittings, days_apart=days_apart)
        times_ms = {name: np.exp(log_times) for name, log_times in self.log_times.items()}
        return stored(store, times_ms, began, gpus=gpu_rows(gpus, **about_gpus), columns=columns)

    def probed(self, random: Random) -> Probed:
        """The fleet as the judge reads it."""
        with scratch() as folder:
            return probed(self.stored(new_store(folder / "S"), random), every=True)


def figures_of(
    random: Random, gpus: int, population: str, *, faults: int = 0, fault: str = "memory", effect: float = 0.0,
    sittings: int = 2, runs: int = 3, probes: Sequence[str] = PROBES,
) -> FleetFigures:  # fmt: skip
    """Figures of a population, `faults` of whose GPUs have a `fault` that costs `effect` (a share of the time)."""
    nodes = -(-gpus // PER_NODE)
    node = np.repeat(np.arange(nodes), PER_NODE)[:gpus]
    faulty = np.zeros(gpus, dtype=bool)
    faulty[random.permutation(gpus)[:faults]] = True
    cost = np.log1p(effect) * faulty
    revision = random.random(gpus) < 0.16
    dust = (random.random(nodes) < 0.02)[node]
    shared = random.standard_normal(nodes)[node]
    inlet = 4.2 * random.standard_normal(nodes)[node] + np.where(dust, 12.0, 0.0)
    day = np.repeat(np.arange(sittings), runs)
    of_all = 0.01 * random.standard_normal(sittings) if population == "days" else np.zeros(sittings)
    log_times, clocks, heats = {}, {}, {}
    for name in probes:
        probe, is_gemm = MADE_PROBES[name], name == "gemm"
        healthy = probe.spread * _silicon(random, gpus, population)
        if population == "nodes share":
            healthy = healthy + probe.spread * shared
        if population == "dust":
            healthy = healthy + np.where(dust, 0.03 * is_gemm, 0.0)
        if population == "revision":
            healthy = healthy - 0.03 * revision
        slow = cost * ((fault == "memory") == (probe.conditions is MEMORY) and fault != "heat")
        heat = cost * (fault == "heat" and is_gemm)
        held = healthy / _KAPPA * is_gemm
        beside = _AT_CLOCK * random.standard_normal(gpus) if is_gemm else np.zeros(gpus)
        size = gpus, sittings * runs
        noise = _RUN * (random.standard_t(4, size) if population == "t4 runs" else random.standard_normal(size))
        if population == "glitches":
            noise = noise + np.where(random.random(size) < 1e-3, random.uniform(0.05, 0.5, size), 0.0)
        of_day = (_DAY * random.standard_normal((gpus, sittings)) + of_all)[:, day]
        log_times[name] = 3.0 + (healthy + beside + slow + heat)[:, None] + of_day + noise
        clocks[name] = (1365.0 if is_gemm else 1530.0) * np.exp(-held - heat / _KAPPA)
        heats[name] = heat
    return FleetFigures(faulty, log_times, clocks, heats, inlet, sittings)


def _silicon(random: Random, gpus: int, population: str) -> Floats:
    """(gpus,) how GPUs differ, in standard deviations."""
    if population == "gamma silicon":
        return np.asarray((random.gamma(2, 1, gpus) - 2) / np.sqrt(2))
    if population == "t5 silicon":
        return np.asarray(random.standard_t(5, gpus) / np.sqrt(5 / 3))
    return random.standard_normal(gpus) * (0.3 if population == "revision" else 1.0)


class Oracle:
    """Who knows the law of the healthy levels of a population: the best that any rule at its error rate can reach.

    It names a GPU that is slower, in any figure of a time, than the quantile at which one healthy GPU of a fleet lies
    beyond it 3 times in 100 for each fault that there is. The law is that of many drawn GPUs. What the other GPUs of a
    node tell of a healthy one is taken out, by the best line. Of heat it knows no more than times show.
    """

    def __init__(self, population: str, *, sittings: int, runs: int = 3, seed: int = 1) -> None:
        random = np.random.default_rng([seed, POPULATIONS.index(population), sittings])
        healthy = [
            figures_of(random, 2000, population, sittings=sittings, runs=runs).levels() for _ in range(_ORACLE_FLEETS)
        ]
        self._lines: dict[str, float] = {}
        self._law: dict[str, Floats] = {}
        for figure in healthy[0]:
            pairs = [_beside(fleet[figure]) for fleet in healthy]
            off, others = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
            self._lines[figure] = float(np.cov(off, others)[0, 1] / np.var(others))
            self._law[figure] = np.sort(off - self._lines[figure] * others)

    def names(self, levels: dict[str, Floats], faults: int) -> Bools:
        """(gpus,) whom it names, from the levels of a fleet with so many faults."""
        named = np.zeros(len(levels["gemm"]), dtype=bool)
        share = _RATE * max(faults, 1) / len(named) / len(PROBES)
        for figure, level in levels.items():
            off, others = _beside(level)
            named |= off - self._lines[figure] * others > np.quantile(self._law[figure], 1 - share)
        return named


_RATE = 0.03
_ORACLE_FLEETS = 100


def _beside(level: Floats) -> tuple[Floats, Floats]:
    """(gpus,) deviations from the fleet's median, and the median of those of the others on the node."""
    off = level - np.median(level)
    by_node = off[: len(off) // PER_NODE * PER_NODE].reshape(-1, PER_NODE)
    others = np.stack([np.median(np.delete(by_node, place, axis=1), axis=1) for place in range(PER_NODE)], axis=1)
    return off, np.concatenate([others.ravel(), np.zeros(len(off) % PER_NODE)])
