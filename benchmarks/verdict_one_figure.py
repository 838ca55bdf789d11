"""One figure of one workload: shifted nodes beside faulty GPUs, and healthy fleets of many populations. Prints JSON.

    python benchmarks/verdict_one_figure.py [--fleets 100] > benchmarks/results/verdict_one_figure.json

    shifted   64 nodes of four GPUs, 0 to 6 of which are slower as a whole, and three GPUs on other nodes that are 7 or
              10 % slower: the share of the GPUs and of the nodes that is found, and how many healthy ones are named.
    healthy   fleets without a fault: in how many a GPU is named. The tail of one figure is hardly known.
    faulty    three GPUs that are 10 % slower among others with heavy tails: how many of the named are healthy.

Log time of a run = own(GPU) + node + day + run: two days (sd 0.12 %), three runs a day (0.08 % times t with 4 degrees
of freedom). Shares have 95 % Wilson intervals. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.judge import ERROR_RATE, ERROR_RATE_HEAVY, HEAVY, MOST_P
from whorl.analysis.verdicts.levels import RELEVANT, levels
from whorl.analysis.verdicts.past.own_past import discoveries
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, share

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Random = np.random.Generator
PER_NODE, DAYS, RUNS = 4, 2, 3
SILICON: dict[str, Callable[[Random, int], Floats]] = {
    "normal": lambda random, n: random.normal(0, 0.010, n),
    "t5": lambda random, n: 0.008 * random.standard_t(5, n),
    "t3": lambda random, n: 0.006 * random.standard_t(3, n),
    "gamma": lambda random, n: 0.006 * (random.gamma(2, 1, n) - 2),
    "lognormal": lambda random, n: 0.004 * (np.exp(random.normal(0, 1, n)) - 1),
}
"""How healthy GPUs differ. Other populations have normal GPUs."""
POPULATIONS = (*SILICON, "nodes share", "dust", "revision", "glitches")
SHIFTS, SHIFTED_NODES, NODES = (0.03, 0.10), (0, 1, 2, 3, 4, 6), (16, 64, 250)


@dataclass(frozen=True)
class Drawn:
    """A fleet: (gpus, days, runs) log times, and the node of each GPU."""

    log_times: Floats
    node: npt.NDArray[np.int64]


def draw(random: Random, nodes: int, own: Floats, *, node_effects: Floats, glitches: bool = False) -> Drawn:
    """Runs of GPUs with these effects of their own and of their nodes."""
    gpus = nodes * PER_NODE
    node = np.repeat(np.arange(nodes), PER_NODE)
    day = random.normal(0, 0.0012, (gpus, DAYS, 1))
    run = 0.0008 * random.standard_t(4, (gpus, DAYS, RUNS))
    if glitches:
        run = run + np.where(random.random(run.shape) < 1 / 250, random.uniform(0, 0.08, run.shape), 0.0)
    return Drawn((own + node_effects[node])[:, None, None] + day + run, node)


def named(fleet: Drawn) -> tuple[Bools, Bools]:
    """(gpus,) and (nodes,) what the judge names of this one figure."""
    gpus, nodes = len(fleet.node), int(fleet.node.max()) + 1
    gpu = np.repeat(np.arange(gpus), DAYS * RUNS)
    at = 20_000.0 + np.arange(DAYS)[:, None] + np.arange(RUNS)[None, :] / 1440
    found = compare(levels(gpu, np.tile(at.ravel(), gpus), fleet.log_times.ravel(), gpus), Fleet(fleet.node))
    assert isinstance(found, Compared)
    rate = ERROR_RATE_HEAVY if found.chances.null.heavy > HEAVY else ERROR_RATE
    of_nodes = np.ones(nodes)
    for shift in found.shifts:
        if shift.what == "node" and abs(shift.effect) >= RELEVANT:
            of_nodes[shift.value] = shift.p
    of_gpus = np.where(np.abs(found.effect) >= RELEVANT, found.p, 1.0)
    first, second = ((discoveries(p, len(p)) <= rate) & (p <= MOST_P) for p in (of_gpus, of_nodes))
    return first, second


def shifted(fleets: int, shift: float, count: int) -> dict[str, Any]:
    """`count` of 64 nodes are slower by `shift`, and three GPUs on other nodes by 7 or 10 %."""
    nodes, hits, node_hits, healthy_gpus, healthy_nodes = 64, 0, 0, 0, 0
    for number in range(fleets):
        random = np.random.default_rng([9, count, number])
        own = random.normal(0, 0.008, nodes * PER_NODE)
        places = random.permutation(nodes)
        slow_nodes, slow_gpus = places[:count], places[count : count + 3] * PER_NODE + random.integers(PER_NODE, size=3)
        own[slow_gpus] += 0.07 if number % 2 else 0.10
        node_effects = np.zeros(nodes)
        node_effects[slow_nodes] = shift
        gpus, of_nodes = named(draw(random, nodes, own, node_effects=node_effects))
        hits, node_hits = hits + int(gpus[slow_gpus].sum()), node_hits + int(of_nodes[slow_nodes].sum())
        healthy_gpus += int(np.delete(gpus, slow_gpus).sum())
        healthy_nodes += int(np.delete(of_nodes, slow_nodes).sum())
    return {
        "shift": shift, "nodes_shifted": count, "fleets": fleets, "gpus_found": share(hits, 3 * fleets),
        "nodes_found": share(node_hits, count * fleets) if count else None,
        "healthy_gpus_named": healthy_gpus, "healthy_nodes_named": healthy_nodes,
    }  # fmt: skip


def healthy(fleets: int, nodes: int, population: str) -> dict[str, Any]:
    """Fleets without a fault."""
    hits = 0
    for number in range(fleets):
        random = np.random.default_rng([10, nodes, number])
        own = SILICON.get(population, SILICON["normal"])(random, nodes * PER_NODE)
        node_effects = np.zeros(nodes)
        if population == "nodes share":
            node_effects = random.normal(0, 0.012, nodes)
        elif population in ("dust", "revision"):
            few, effect = (2, 0.02) if population == "dust" else (4, 0.03)
            node_effects[random.permutation(nodes)[:few]] = effect
        glitches = population == "glitches"
        hits += bool(named(draw(random, nodes, own, node_effects=node_effects, glitches=glitches))[0].any())
    return {"gpus": nodes * PER_NODE, "population": population, "fleets_with_a_gpu_named": share(hits, fleets)}


def faulty(fleets: int, nodes: int, population: str) -> dict[str, Any]:
    """Fleets with three GPUs, on nodes of their own, that are 10 % slower."""
    hits, healthy_gpus = 0, 0
    for number in range(fleets):
        random = np.random.default_rng([11, nodes, number])
        own = SILICON[population](random, nodes * PER_NODE)
        slow = random.permutation(nodes)[:3] * PER_NODE + random.integers(PER_NODE, size=3)
        own[slow] += 0.10
        gpus, _ = named(draw(random, nodes, own, node_effects=np.zeros(nodes)))
        hits += int(gpus[slow].sum())
        healthy_gpus += int(np.delete(gpus, slow).sum())
    of_named = hits + healthy_gpus
    return {
        "gpus": nodes * PER_NODE, "population": population, "found": share(hits, 3 * fleets),
        "healthy_of_named": share(healthy_gpus, of_named) if of_named else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=100, help="of a kind")
    given = parser.parse_args()
    start = time.perf_counter()
    found = {
        "shifted": [shifted(given.fleets, shift, count) for shift in SHIFTS for count in SHIFTED_NODES],
        "healthy": [healthy(given.fleets, nodes, population) for nodes in NODES for population in POPULATIONS],
        "faulty": [faulty(given.fleets, nodes, population) for nodes in NODES for population in SILICON],
    }
    took_s = round(time.perf_counter() - start)
    print(as_json({"benchmark": "verdict_one_figure", "machine": machine(), "took_s": took_s, **found}))


if __name__ == "__main__":
    main()
