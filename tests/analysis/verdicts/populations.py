"""Fleets of healthy GPUs that break a detector's assumptions, as plain runs: one figure of each GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whorl.analysis.runs.sittings import step_of
from whorl.analysis.statistics.ordering import discoveries
from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.judge import ERROR_RATE_ALONE, MOST_P
from whorl.analysis.verdicts.levels import RELEVANT, levels

PER_NODE = 4


@dataclass(frozen=True)
class Runs:
    """(runs,) the number of the GPU, days since 1970, and the log time."""

    gpu: npt.NDArray[np.int64]
    at: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    fleet: Fleet


def draw(
    random: np.random.Generator,
    gpus: int,
    population: str,
    *,
    spread: float = 0.017,
    sittings: int = 2,
    runs: int = 3,
    run: float = 0.0008,
    day: float = 0.001,
) -> Runs:
    """Runs of healthy GPUs of a population; `spread`, `run` and `day` are standard deviations of log times."""
    nodes = -(-gpus // PER_NODE)
    node = np.repeat(np.arange(nodes), PER_NODE)[:gpus]
    of_gpus = spread * random.standard_normal(gpus)
    if population == "gamma silicon":
        of_gpus = spread * (random.gamma(2, 1, gpus) - 2) / np.sqrt(2)
    elif population == "t5 silicon":
        of_gpus = spread * random.standard_t(5, gpus) / np.sqrt(5 / 3)
    elif population == "nodes share":
        of_gpus = of_gpus + (spread * random.standard_normal(nodes))[node]
    elif population == "node tails":
        of_gpus = of_gpus + (spread * random.standard_t(3, nodes))[node]
    elif population == "dust":
        of_gpus = of_gpus + np.where(random.random(nodes) < 0.03, random.uniform(0.02, 0.1, nodes), 0.0)[node]
    elif population == "revision":
        of_gpus = 0.3 * of_gpus - 0.03 * (random.random(gpus) < 0.16)
    gpu = np.repeat(np.arange(gpus), sittings * runs)
    noise = run * random.standard_normal(len(gpu))
    if population == "t4 runs":
        noise = run * random.standard_t(4, len(gpu))
    elif population == "glitches":
        noise = noise + np.where(random.random(len(gpu)) < 1e-3, random.uniform(0.05, 0.5, len(gpu)), 0.0)
    days = np.tile(np.repeat(np.arange(sittings), runs), gpus)
    of_day = day * random.standard_normal((gpus, sittings))
    x = of_gpus[gpu] + of_day[gpu, days] + noise
    at = 20_000.0 + days + np.tile(np.arange(runs), gpus * sittings) / 1440
    return Runs(gpu, at, x, Fleet(node))


POPULATIONS = (
    "normal", "t4 runs", "gamma silicon", "t5 silicon", "nodes share", "node tails", "dust", "revision", "glitches",
)  # fmt: skip


def compared(runs: Runs) -> Compared:
    """The comparison of a fleet's GPUs; there must be enough of them."""
    comparison = compare(levels(runs.gpu, runs.at, runs.x, len(runs.fleet), step_of(runs.x)), runs.fleet)
    assert comparison is not None
    return comparison


def named(comparison: Compared) -> npt.NDArray[np.bool_]:
    """(gpus,) those that a judge with this one look names."""
    large = np.abs(comparison.effect) >= RELEVANT
    p = np.where(large, comparison.p, 1.0)
    return np.asarray((discoveries(p, len(p)) <= ERROR_RATE_ALONE) & (p <= MOST_P))
