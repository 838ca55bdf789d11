"""Simulated fleets for benchmarks and tests: healthy populations that break assumptions, and faults of a stated size.

A GPU runs three probes: `gemm` (its clock is held by the power cap, so silicon shows in it), `fma` (full clock) and
`stream` (memory). Sizes are those of the Longhorn files: GPUs differ by 1.7 % in `gemm`, all but 0.25 % of it by their
clocks, and by 0.12 % in memory; a run by 0.08 %, a day by 0.1 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis.runs.probing import COMPUTE, MEMORY, Probed
from whorl.store.schema import arrow_schema

Floats = npt.NDArray[np.float64]

POPULATIONS = (
    "normal", "t4 runs", "gamma silicon", "t5 silicon", "nodes share", "dust", "revision", "glitches", "days",
)  # fmt: skip
"""Healthy fleets: normal; runs with tails; skewed and heavy-tailed silicon; a host effect shared by a node; nodes with
dust (hot and slow as a whole: a node may be named, its GPUs may not); 16 % of the GPUs 3 % faster, nobody recorded why;
one run in 1,000 is 5 to 50 % longer; days that differ by 1 % for all."""
FAULTS = ("memory", "compute", "heat")
"""`stream` is slower; `gemm` and `fma` are slower at the same clock; heat holds the clock of `gemm`."""
PROBES = ("gemm", "fma", "stream")
PER_NODE = 4
_SPREAD = {"gemm": 0.017, "fma": 0.0012, "stream": 0.0012}
_AT_CLOCK = 0.0025  # of gemm: what the clock does not explain
_RUN, _DAY = 0.0008, 0.001
_KAPPA = 0.95
_TEXTS = ("job_id", "status_detail")
_OF_RUNS = pl.DataFrame(arrow_schema("runs").empty_table()).schema
_POWER = 2.4  # exponent of the power on the clock


@dataclass(frozen=True)
class FleetFigures:
    """Figures of a fleet and the truth about it: arrays of shape (gpus,), or (gpus, runs) for what differs by run."""

    faulty: npt.NDArray[np.bool_]
    log_times: dict[str, Floats]
    """By probe, (gpus, runs)."""
    clocks: dict[str, Floats]
    """By probe, (gpus,) MHz."""
    heat: dict[str, Floats]
    """By probe, (gpus,) what heat costs, as a logarithm of the time."""
    inlet: Floats
    """(gpus,) kelvin above the usual inlet."""

    def levels(self) -> dict[str, Floats]:
        """By figure, (gpus,) the median of the runs; `gemm at its clock` is what the clock does not explain."""
        levels = {probe: np.median(times, axis=1) for probe, times in self.log_times.items()}
        return levels | {"gemm at its clock": levels["gemm"] + _KAPPA * np.log(self.clocks["gemm"])}


@dataclass(frozen=True)
class MadeFleet:
    """A fleet and the truth about it."""

    campaign: Probed
    figures: FleetFigures
    names: list[str]

    @property
    def faulty(self) -> npt.NDArray[np.bool_]:
        return self.figures.faulty


def figures_of(
    random: np.random.Generator, gpus: int, population: str, *, faults: int = 0, fault: str = "memory",
    effect: float = 0.0, sittings: int = 2, runs: int = 3,
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
    for probe in PROBES:
        spread = _SPREAD[probe]
        healthy = spread * _silicon(random, gpus, population)
        if population == "nodes share":
            healthy = healthy + spread * shared
        if population == "dust":
            healthy = healthy + np.where(dust, 0.03 if probe == "gemm" else 0.0, 0.0)
        if population == "revision":
            healthy = healthy - 0.03 * revision
        slow = cost if (fault == "memory") == (probe == "stream") and fault != "heat" else np.zeros(gpus)
        heat = cost if fault == "heat" and probe == "gemm" else np.zeros(gpus)
        held = healthy / _KAPPA if probe == "gemm" else np.zeros(gpus)
        beside = _AT_CLOCK * random.standard_normal(gpus) if probe == "gemm" else np.zeros(gpus)
        size = gpus, sittings * runs
        noise = _RUN * (random.standard_t(4, size) if population == "t4 runs" else random.standard_normal(size))
        if population == "glitches":
            noise = noise + np.where(random.random(size) < 1e-3, random.uniform(0.05, 0.5, size), 0.0)
        of_day = (_DAY * random.standard_normal((gpus, sittings)) + of_all)[:, day]
        log_times[probe] = 3.0 + (healthy + beside + slow + heat)[:, None] + of_day + noise
        clocks[probe] = (1365.0 if probe == "gemm" else 1530.0) * np.exp(-held - heat / _KAPPA)
        heats[probe] = heat
    return FleetFigures(faulty, log_times, clocks, heats, inlet)


def fleet_of(
    random: np.random.Generator, gpus: int, population: str, *, sittings: int = 2, runs: int = 3, **faults: Any
) -> MadeFleet:
    """A fleet as `figures_of`, with its runs as a store has them."""
    fleet = figures_of(random, gpus, population, sittings=sittings, runs=runs, **faults)
    node = np.repeat(np.arange(-(-gpus // PER_NODE)), PER_NODE)[:gpus]
    gpu = np.repeat(np.arange(gpus), sittings * runs)
    day = np.tile(np.repeat(np.arange(sittings), runs), gpus)
    at = 1_790_000_000_000_000 + day * 86_400_000_000 + np.tile(np.arange(runs), gpus * sittings) * 60_000_000
    frames = []
    for place, probe in enumerate(PROBES):
        heat, clock = fleet.heat[probe], fleet.clocks[probe]
        watts, kelvin = {"gemm": (297.0, 64.0), "fma": (220.0, 57.0), "stream": (145.0, 45.0)}[probe]
        power = watts * np.exp(-_POWER * heat / _KAPPA)[gpu] * np.exp(0.002 * random.standard_normal(len(gpu)))
        hot = np.where(heat > 0, np.maximum(83.0 - kelvin - fleet.inlet, 0.0), 0.0)
        warmth = kelvin + (fleet.inlet + hot)[gpu] + 0.5 * random.standard_normal(len(gpu))
        frames.append(
            pl.DataFrame(
                {
                    "run_id": np.arange(len(gpu)) + place * len(gpu), "gpu_at": gpu, "workload": [probe] * len(gpu),
                    "began": at + place * 10_000_000, "value": np.exp(fleet.log_times[probe].ravel()),
                    "sm_clock_mhz": clock[gpu], "power_w": power, "temperature_c": np.round(warmth),
                    "stresses": [MEMORY if probe == "stream" else COMPUTE] * len(gpu),
                }
            )
        )  # fmt: skip
    names = [f"n{number // PER_NODE}/{number % PER_NODE}" for number in range(gpus)]
    return MadeFleet(campaign_of(pl.concat(frames), node, gpus), fleet, names)


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

    def names(self, levels: dict[str, Floats], faults: int) -> npt.NDArray[np.bool_]:
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


def _silicon(random: np.random.Generator, gpus: int, population: str) -> Floats:
    """(gpus,) how GPUs differ, in standard deviations."""
    if population == "gamma silicon":
        return np.asarray((random.gamma(2, 1, gpus) - 2) / np.sqrt(2))
    if population == "t5 silicon":
        return np.asarray(random.standard_t(5, gpus) / np.sqrt(5 / 3))
    if population == "revision":
        return 0.3 * random.standard_normal(gpus)
    return random.standard_normal(gpus)


def campaign_of(runs: pl.DataFrame, node: npt.NDArray[Any], gpus: int) -> Probed:
    """The runs as `probed` reads them from a store."""
    text, number = pl.String(), pl.Float64()
    identity = pl.DataFrame(
        {"gpu": [f"GPU-{number:05d}" for number in range(gpus)], "node": [f"n{number}" for number in node]}
    ).with_columns(
        pl.lit("Tesla V100-SXM2-16GB").alias("model"), pl.Series("slot", np.arange(gpus) % PER_NODE, dtype=pl.Int64),
        pl.lit(300.0).alias("power_limit_w"), pl.lit(87, pl.Int64).alias("temperature_slowdown_c"),
        pl.lit(83, pl.Int64).alias("temperature_max_operating_c"), pl.lit(1530, pl.Int64).alias("sm_clock_max_mhz"),
        *(pl.lit(None, text).alias(name) for name in ("cabinet", "uuid", "vbios", "driver")),
    )  # fmt: skip
    began = pl.col("began").cast(pl.Datetime("us"))
    runs = runs.with_columns(
        pl.lit("GPU-").add(pl.col("gpu_at").cast(pl.String).str.zfill(5)).alias("gpu"), began,
        (began + pl.duration(seconds=10)).alias("ended"), pl.col("run_id").cast(pl.String),
        pl.lit(877.0).alias("mem_clock_mhz"), pl.lit("ok").alias("status"), pl.lit("1").alias("probe_version"),
        *(pl.lit(None, text).alias(name) for name in _TEXTS),
        *(pl.lit(None, _OF_RUNS[name]).alias(name) for name in ("conditions", "versions", "clock_events")),
        *(
            pl.lit(None, number).alias(name)
            for name in ("low", "high", "energy", "efficiency", "latency", "wrong_elements", "checked_elements")
        ),
    ).drop("gpu_at")  # fmt: skip
    nothing: dict[str, Any] = {"gpu": text, "node": text, "kind": text, "code": pl.Int64, "detail": text}
    events = pl.DataFrame(schema={"ts": pl.Datetime("us"), **nothing})
    return Probed("made", "", identity, runs.join(identity, on="gpu", how="left"), events)
