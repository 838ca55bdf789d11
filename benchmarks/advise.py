"""How far advice is right: gains that are promised, nodes that are excluded, and what others would choose.

    python -m benchmarks.advise [--only SECTION] [--quick | --long]

gains     fleets of 128 GPUs whose scores are known: how often a gain is promised where there is none, how often the
          90 % intervals of gains and scores hold, how often a slow GPU is found, the promised gain and the true one.
          Beside it the same choice by the plain medians of the runs, believed as they are.
nodes     fleets that break what is usually assumed (heavy tails, node effects, revisions, few nodes), healthy or with a
          node 1.4 and a GPU elsewhere 1.25 times as slow: fleets in which a healthy node is excluded, and planted nodes
          that are found. Beside it the rule of sites: a GPU's median above 1.1 times the median of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from whorl.analysis.placement import Scores, advise, scores, sets, together
from whorl.analysis.placement.evidence import HARD
from whorl.analysis.placement.posterior import Mask
from whorl.benchmarks.fleets import PER_NODE, Floats, Random, began_s, gpu_number, gpu_rows, node_name, stored
from whorl.benchmarks.harness import BenchOptions, run, say, scratch, share_of
from whorl.store import Store
from whorl.store.names import plain_workload

JOB = 8

# -- gains -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of fleet: the standard deviations of GPUs and of runs, the runs a GPU, and what goes wrong."""

    says: str
    between: float
    within: float
    runs: int
    slow: tuple[float, ...] = ()
    glitches: float = 0.0
    gpus: int | None = None
    day: float = 0.0
    """Standard deviation of a GPU from day to day."""
    per_day: int = 0
    """Runs a day; 0: all runs are of one day, an hour apart."""


KINDS = {
    "noise": Kind("no GPU differs", 0.0, 0.03, 4),
    "glitches": Kind("no GPU differs; a tenth of the runs takes half as long again", 0.0, 0.02, 3, glitches=0.1),
    "one_slow": Kind("one GPU takes 2.8 times as long, the others do not differ", 0.0, 0.03, 3, slow=(2.8,)),
    "one_slow_glitches": Kind("the same with glitches", 0.0, 0.02, 3, slow=(2.8,), glitches=0.1),
    "all_differ": Kind("GPUs differ by 3 %, runs by 2 %", 0.03, 0.02, 4),
    "all_differ_little": Kind("GPUs differ by 1 %, runs by 3 %", 0.01, 0.03, 4),
    "differ_and_slow": Kind("GPUs differ by 2 %, one takes 1.5 times as long", 0.02, 0.02, 4, slow=(1.5,)),
    "braked": Kind(
        "32 GPUs differ by 1.2 %, runs by 0.2 %, one takes 1.17 times as long", 0.012, 0.002, 2, slow=(1.17,), gpus=32
    ),
    "few_gpus": Kind("32 GPUs differ by 3 %, runs by 3 %", 0.03, 0.03, 3, gpus=32),
    "days": Kind(
        "no GPU differs, but by 2 % from day to day, runs by 0.5 %; 4 runs on each of 3 days",
        between=0.0,
        within=0.005,
        runs=12,
        day=0.02,
        per_day=4,
    ),
    "differ_and_days": Kind(
        "GPUs differ by 3 %, from day to day by 2 %, runs by 0.5 %; 4 runs on each of 3 days",
        between=0.03,
        within=0.005,
        runs=12,
        day=0.02,
        per_day=4,
    ),
}


def drawn(kind: Kind, gpus: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """The scores of a fleet's GPUs, its times (gpus, runs), and the level of each GPU in another sitting."""
    rng = np.random.default_rng([seed, 2026])
    true_scores = np.exp(rng.normal(0.0, kind.between, gpus))
    for number, factor in enumerate(kind.slow):
        true_scores[PER_NODE * number + 1] = factor
    strayed = rng.normal(0.0, kind.within, (gpus, kind.runs))
    if kind.per_day:
        strayed += np.repeat(rng.normal(0.0, kind.day, (gpus, kind.runs // kind.per_day)), kind.per_day, axis=1)
    strayed += np.where(rng.random(strayed.shape) < kind.glitches, np.log(1.5), 0.0)
    again = rng.normal(0.0, kind.within, (gpus, kind.per_day or kind.runs)) + rng.normal(0.0, kind.day, (gpus, 1))
    again += np.where(rng.random(again.shape) < kind.glitches, np.log(1.5), 0.0)
    usual = np.median(true_scores)
    level = true_scores * np.exp(np.median(again, axis=1))
    return true_scores / usual, 100.0 * true_scores[:, None] * np.exp(strayed), level / np.median(level)


def calibration(kind: Kind, fleets: int, gpus: int) -> dict[str, Any]:
    """What came true over many fleets of a kind."""
    gpus = kind.gpus or gpus
    true_scores, times, again = {}, {}, {}
    for seed in range(fleets):
        name = f"w{seed:04d}"
        true_scores[name], times[name], again[name] = drawn(kind, gpus, seed)
    sittings = kind.runs // kind.per_day if kind.per_day else 1
    began = began_s(sittings, kind.runs // sittings, apart_s=600.0 if kind.per_day else 3600.0)
    with scratch() as folder:
        scored = scores(stored(Store.create(folder / "S"), times, began))
    rows = [
        judged(kind, scored, name, true_scores=true_scores[name], times=times[name], again=again[name])
        for name in times
    ]
    return {
        "says": kind.says, "fleets": fleets, "gpus": gpus, "runs": kind.runs,
        "told_to_differ": mean(rows, "repeatable"),
        "scores_within_long_run": mean(rows, "scores_within"),
        "another_sitting_within_interval": mean(rows, "another_within"),
        "hard_found": mean(rows, "hard_found"), "hard_false_nodes": sum(row["hard_false"] for row in rows),
        "packed_against_drained": {
            name: mean(rows, name)
            for name in ("measurable", "within_interval", "promised", "true", "plain_promised", "plain_true")
        },
    }  # fmt: skip


def judged(
    kind: Kind, fleet_scores: Scores, name: str, *, true_scores: Floats, times: Floats, again: Floats
) -> dict[str, float]:
    """What was promised for a job of `JOB` GPUs, in the best packed set against a random one off all hard nodes, and
    what is true; and the same by plain medians."""
    scored = fleet_scores.of[name]
    advice = advise(fleet_scores, name, gpus=JOB, max_share=1.0)
    node = np.array([node_name(gpu // PER_NODE) for gpu in range(len(true_scores))])
    hard = {row.node for row in advice.nodes if row.tier == "hard"}
    truly = set(node[true_scores > HARD])
    row: dict[str, float] = {"repeatable": scored.repeatable, "hard_false": len(hard - truly)}
    slow = set(node[PER_NODE * np.arange(len(kind.slow)) + 1])
    if slow:
        row["hard_found"] = len(hard & slow) / len(slow)
    row["another_within"] = float(np.mean((scored.lower <= again) & (again <= scored.upper)))
    gain = next((gain for gain in advice.gains if (gain.choice, gain.against) == ("packed", "drained")), None)
    off = ~np.isin(node, list(hard))
    row |= {"measurable": gain is not None and gain.measurable, "promised": gain.median if gain else 0.0, "true": 0.0}
    if scored.repeatable:
        low, high = scored.posterior.lower[scored.unit], scored.posterior.upper[scored.unit]
        row["scores_within"] = float(np.mean((low <= true_scores) & (true_scores <= high)))
        if gain is not None and advice.packed is not None:
            row["true"] = came_true(true_scores, np.array(list(map(gpu_number, advice.packed.gpus))), off)
            row["within_interval"] = gain.lower - 1e-9 <= row["true"] <= gain.upper + 1e-9
    plain = np.median(times, axis=1) / np.median(np.median(times, axis=1))
    by_plain = sets.best_packed(plain, ground(len(plain)), JOB)
    assert by_plain is not None
    return row | {
        "plain_promised": came_true(plain, by_plain, off), "plain_true": came_true(true_scores, by_plain, off),
    }  # fmt: skip


def ground(gpus: int) -> sets.NodeLayout:
    return sets.NodeLayout(np.arange(gpus) // PER_NODE)


def came_true(score: Floats, chosen: npt.NDArray[np.intp], mask: Mask) -> float:
    """The share of time that a packed set saves against a random one off some nodes, if GPUs have these scores."""
    draws, layout = score[None, mask].astype(np.float32), ground(len(score)).only(mask)
    random = sets.random_packed(draws, layout, JOB, np.random.default_rng(0))
    assert random is not None
    return 1.0 - float(score[chosen].max() / random[0])


def mean(rows: list[dict[str, float]], name: str) -> float | None:
    values = [float(row[name]) for row in rows if name in row]
    return round(sum(values) / len(values), 4) if values else None


def gains(options: BenchOptions) -> dict[str, Any]:
    """Every kind of fleet."""
    fleets, tables = options.pick(2, 40, 100), {}
    for name, kind in KINDS.items():
        say(f"gains: {name}")
        tables[name] = calibration(kind, fleets, 128)
    return {"kinds": tables}


# -- nodes -----------------------------------------------------------------------------------------------------------


RUNS = 4
NODE_SLOW, GPU_SLOW = 1.4, 1.25


def usual(rng: Random, gpus: int) -> Floats:
    """Log times of GPUs about the usual one: normal, 1 %."""
    return rng.normal(0.0, 0.01, gpus)


def noise(rng: Random, gpus: int) -> Floats:
    """(gpus, runs) deviations of runs: normal, 0.5 %."""
    return rng.normal(0.0, 0.005, (gpus, RUNS))


@dataclass(frozen=True)
class FleetPopulation:
    """How GPUs and runs of a fleet differ; and by node its model, its VBIOS (None: not recorded), its kind's time."""

    says: str
    own: Callable[[Random, int], Floats] = usual
    runs: Callable[[Random, int], Floats] = noise
    times: tuple[float, ...] = (1.0,) * 16
    models: tuple[str, ...] = ("A100",) * 16
    vbios: tuple[str | None, ...] = (None,) * 16


def by_node(rng: Random, gpus: int, sd: float) -> Floats:
    return np.repeat(rng.normal(0.0, sd, gpus // PER_NODE), PER_NODE)


def few_models(v100: int, a100: int, says: str) -> FleetPopulation:
    """So many nodes of either; A100s take 0.6 of the time."""
    nodes = v100 + a100
    models = ("V100",) * v100 + ("A100",) * a100
    return FleetPopulation(says, times=(2.5,) * v100 + (1.5,) * a100, models=models, vbios=(None,) * nodes)


EVERY_THIRD = tuple(1.15 if node % 3 == 1 else 1.0 for node in range(16))
POPULATIONS = {
    "normal": FleetPopulation("GPUs differ by 1 %, runs by 0.5 %, both normal"),
    "heavy_tails": FleetPopulation(
        "GPUs: Student's t with 2 degrees of freedom", own=lambda r, n: 0.01 * r.standard_t(2, n)
    ),
    "skewed": FleetPopulation("GPUs: exponential on the slow side, 2 %", own=lambda r, n: r.exponential(0.02, n)),
    "node_effects": FleetPopulation("nodes differ by 2.5 %, too", own=lambda r, n: usual(r, n) + by_node(r, n, 0.025)),
    "heavy_noise": FleetPopulation(
        "runs: Student's t with 2 degrees of freedom", runs=lambda r, n: 0.01 * r.standard_t(2, (n, RUNS))
    ),
    "glitches": FleetPopulation(
        "one run of ten takes half as long again",
        runs=lambda r, n: noise(r, n) + np.log(1.5) * (r.random((n, RUNS)) < 0.1),
    ),
    "fast_boards": FleetPopulation(
        "boards of 3 of 16 nodes have another VBIOS and are 3 % faster",
        times=(0.97,) * 3 + (1.0,) * 13, vbios=("B",) * 3 + ("A",) * 13,
    ),
    "slow_boards": FleetPopulation(
        "boards of every third node have another VBIOS and are 15 % slower",
        times=EVERY_THIRD, vbios=tuple("B" if time > 1 else "A" for time in EVERY_THIRD),
    ),
    "slow_boards_unrecorded": FleetPopulation("the same, and the VBIOS is not recorded", times=EVERY_THIRD),
    "two_models": few_models(8, 8, "8 nodes of V100, 8 of A100, which take 0.6 of the time"),
    "seven_nodes": few_models(3, 4, "3 nodes of V100 and 4 of A100"),
    "single_node": few_models(1, 7, "1 node of V100 and 7 of A100"),
}  # fmt: skip


def judged_nodes(population: FleetPopulation, fleets: int) -> dict[str, Any]:
    """The realised rates of one population.

    Faults are planted on nodes of the commonest kind: with one node of a kind nobody can tell.
    """
    kind = list(zip(population.models, population.times, strict=True))
    gpus = PER_NODE * len(kind)
    log_time = np.log(population.times).repeat(PER_NODE)
    usual_nodes = [node for node in range(len(kind)) if kind[node] == max(set(kind), key=kind.count)]
    times, relative = {}, {}
    planted: dict[str, set[int]] = {}
    for number in range(2 * fleets):
        rng = np.random.default_rng([number, 14])
        own_times = population.own(rng, gpus)
        name = f"w{number:04d}"
        planted[name] = set()
        if number >= fleets:
            bad, second = rng.choice(usual_nodes, 2, replace=False)
            own_times[PER_NODE * bad : PER_NODE * (bad + 1)] += math.log(NODE_SLOW)
            own_times[PER_NODE * second + 1] += math.log(GPU_SLOW)
            planted[name] = {int(bad), int(second)}
        relative[name] = beside(own_times, kind)
        times[name] = np.exp(own_times[:, None] + log_time[:, None] + population.runs(rng, gpus))
    about = {name: np.repeat(getattr(population, name), PER_NODE).tolist() for name in ("models", "vbios")}
    rows = gpu_rows(gpus, model=about["models"], vbios=about["vbios"])
    with scratch() as folder:
        scored = scores(stored(Store.create(folder / "S"), times, began_s(RUNS, 1), gpus=rows))
    false_nodes: dict[tuple[str, bool], list[bool]] = {}
    found: dict[str, list[bool]] = {"whorl": [], "plain": []}
    for number, name in enumerate(times):
        ill = {int(gpu) // PER_NODE for gpu in np.flatnonzero(relative[name] > HARD)}
        medians = np.median(times[name], axis=1)
        plain = {int(gpu) // PER_NODE for gpu in np.flatnonzero(medians > HARD * np.median(medians))}
        for rule, names in (("whorl", advised(scored, name)), ("plain", plain)):
            false_nodes.setdefault((rule, number >= fleets), []).append(bool(names - ill - planted[name]))
            found[rule] += [node in names for node in planted[name]]
    return {"says": population.says, "nodes": len(kind)} | {
        rule: {
            "healthy_fleets_with_a_false_node": share_of(false_nodes[rule, False]),
            "faulty_fleets_with_a_false_node": share_of(false_nodes[rule, True]),
            "planted_nodes_found": share_of(found[rule]),
        }
        for rule in ("whorl", "plain")
    }


def beside(own_times: Floats, kind: list[tuple[str, float]]) -> Floats:
    """(gpus,) each GPU's true time over that of the median GPU of its kind."""
    kind_of_gpu = [group for group in kind for _ in range(PER_NODE)]
    relative = np.empty(len(own_times))
    for group in set(kind):
        members = np.array([gpu_kind == group for gpu_kind in kind_of_gpu])
        relative[members] = np.exp(own_times[members] - np.median(own_times[members]))
    return relative


def advised(scored: Scores, name: str) -> set[int]:
    """The nodes that the advice would exclude."""
    kinds = [kind for kind in scored.of if plain_workload(kind) == name]
    advice = together([advise(scored, kind, gpus=1, max_share=1.0) for kind in kinds])
    return {int(node.node[1:]) for node in advice.nodes if node.tier == "hard"}


def nodes(options: BenchOptions) -> dict[str, Any]:
    """Every population, healthy and with faults."""
    fleets, tables = options.pick(2, 40, 100), {}
    for name, population in POPULATIONS.items():
        say(f"nodes: {name}")
        tables[name] = judged_nodes(population, fleets)
    return {"fleets": fleets, "populations": tables}


SECTIONS = {"gains": gains, "nodes": nodes}

if __name__ == "__main__":
    run("advise", SECTIONS, packages=("numpy", "polars"))
