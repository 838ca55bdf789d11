"""One figure of one workload: who is named, by whorl, a rival, an oracle and the rules of peers. Prints JSON.

    python benchmarks/verdict_one_figure.py [--fleets 100] > benchmarks/results/verdict_one_figure.json

    populations   healthy fleets, and fleets of which three GPUs on nodes of their own are slower by 3 to 10 %, or by 7
                  standard deviations of the healthy: the share that each rule finds, the share of fleets in which it
                  names a healthy GPU, and the mean share of the healthy among those that it names.
    shifted       64 nodes of four GPUs, 0 to 6 of which are slower as a whole, and three GPUs on other nodes that are 7
                  or 10 % slower: the share of the GPUs and of the nodes that whorl finds, and how many healthy ones it
                  names.
    revisions     4 of 64 nodes are slower by 2 to 10 % for a reason that nobody recorded: the share of them that is
                  named, as a node or in a batch.

Log time of a run = own(GPU) + node + day + run: two days (sd 0.12 %), three runs a day (0.08 % times t with 4 degrees
of freedom). All rules see the same draws. The oracle knows the law of healthy GPUs and what each node adds. Shares have
95 % Wilson intervals. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from whorl.analysis.statistics.multiplicity import discoveries
from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.judge import ERROR_RATE, ERROR_RATE_ALONE, MOST_P
from whorl.analysis.verdicts.levels import RELEVANT, levels
from whorl.benchmarks.machine import machine
from whorl.benchmarks.one_figure_rules import PEERS, of_oracle, of_peers, of_rival
from whorl.benchmarks.reporting import as_json, say, share

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Random = np.random.Generator
PER_NODE, DAYS, RUNS, FAULTS = 4, 2, 3, 3
_DAY, _RUN = 0.0012, 0.0008
_LAW = 2_000_000


def _two_kinds(random: Random, n: int) -> Floats:
    return random.normal(0, np.where(random.random(n) < 0.1, 0.018, 0.006))


SILICON: dict[str, Callable[[Random, int], Floats]] = {
    "normal": lambda random, n: random.normal(0, 0.010, n),
    "t5": lambda random, n: 0.008 * random.standard_t(5, n),
    "t3": lambda random, n: 0.006 * random.standard_t(3, n),
    "gamma": lambda random, n: 0.006 * (random.gamma(2, 1, n) - 2),
    "lognormal": lambda random, n: 0.004 * (np.exp(random.normal(0, 1, n)) - 1),
    "two kinds": _two_kinds,
    "shifted": lambda random, n: random.normal(0, 0.008, n),
}
"""How healthy GPUs differ; one in ten of "two kinds" varies three times as much. Other populations have normal GPUs."""
NODES: dict[str, Callable[[Random, int], Floats]] = {
    "nodes share": lambda random, n: random.normal(0, 0.012, n),
    "dust": lambda random, n: 0.02 * _few(random, n, 2),
    "revision": lambda random, n: 0.03 * _few(random, n, max(1, n // 16)),
    "shifted": lambda random, n: 0.03 * _few(random, n, max(1, n // 16)),
}
"""What the GPUs of a node have in common. Nodes of other populations add nothing."""
POPULATIONS = (*SILICON, "nodes share", "dust", "revision", "glitches")
SIZES = (16, 64, 250)
EFFECTS: dict[str, float] = {"none": 1.0, "7 sd": 0.6, "10 %": 0.6, "7 %": 0.25, "5 %": 0.25, "3 %": 0.25}
"""Of three GPUs, and of `--fleets` the share that is drawn."""
SHIFTS, SHIFTED_NODES, REVISIONS = (0.03, 0.10), (0, 1, 2, 3, 4, 6), (0.02, 0.03, 0.05, 0.10)


def _few(random: Random, n: int, count: int) -> Floats:
    """(n,) 1 for some of them, 0 for the others."""
    return np.isin(np.arange(n), random.permutation(n)[:count]).astype(np.float64)


@dataclass(frozen=True)
class DrawnFleet:
    """A fleet."""

    log_times: Floats
    """(gpus, days, runs)"""
    node: Ints
    """(gpus,)"""
    node_effects: Floats
    """(gpus,) what its node adds."""

    @property
    def deviations(self) -> Floats:
        """(gpus,) a level each, for rules that look at no more."""
        level = np.median(self.log_times, axis=2).mean(axis=1)
        return np.asarray(level - np.median(level))


def draw(random: Random, own: Floats, node_effects: Floats, *, glitches: bool = False) -> DrawnFleet:
    """Runs of GPUs with these effects of their own (gpus,) and of their nodes (nodes,)."""
    gpus = len(own)
    node = np.repeat(np.arange(gpus // PER_NODE), PER_NODE)
    day = random.normal(0, _DAY, (gpus, DAYS, 1))
    run = _RUN * random.standard_t(4, (gpus, DAYS, RUNS))
    if glitches:
        run = run + np.where(random.random(run.shape) < 1 / 250, random.uniform(0, 0.08, run.shape), 0.0)
    return DrawnFleet((own + node_effects[node])[:, None, None] + day + run, node, node_effects[node])


def named(fleet: DrawnFleet) -> tuple[Bools, Bools, Bools]:
    """(gpus,) and (nodes,) what whorl names of this one figure, and (gpus,) those of a batch that it names."""
    gpus, nodes = len(fleet.node), int(fleet.node.max()) + 1
    gpu = np.repeat(np.arange(gpus), DAYS * RUNS)
    at = 20_000.0 + np.arange(DAYS)[:, None] + np.arange(RUNS)[None, :] / 1440
    compared = compare(levels(gpu, np.tile(at.ravel(), gpus), fleet.log_times.ravel(), gpus), Fleet(fleet.node))
    assert isinstance(compared, Compared)
    p_of_nodes, in_batch = np.ones(nodes), np.zeros(gpus, dtype=bool)
    for shift in compared.shifts:
        if abs(shift.effect) < RELEVANT:
            continue
        if shift.what == "node":
            p_of_nodes[shift.value] = shift.p
        else:
            in_batch[shift.gpus] = True
    p_of_gpus = np.where(np.abs(compared.effect) >= RELEVANT, compared.p, 1.0)
    of_gpus, of_nodes = (
        (discoveries(p, len(p)) <= rate) & (p <= MOST_P)
        for p, rate in ((p_of_gpus, ERROR_RATE_ALONE), (p_of_nodes, ERROR_RATE))
    )
    return of_gpus, of_nodes, in_batch


@cache
def healthy_law(population: str) -> Floats:
    """Ascending draws of a healthy GPU's deviation from the median, without what its node adds."""
    random = np.random.default_rng([20, POPULATIONS.index(population)])
    own = SILICON.get(population, SILICON["normal"])(random, _LAW)
    of_days = random.normal(0, _DAY / np.sqrt(DAYS), _LAW)
    of_runs = np.median(_RUN * random.standard_t(4, (_LAW, RUNS)), axis=1) / np.sqrt(DAYS)
    return np.sort(own - np.median(own) + of_days + of_runs)


class Tally:
    """Counts of one rule over the fleets of a cell."""

    def __init__(self) -> None:
        self.found = self.healthy_named = self.with_healthy_named = self.fleets = self.faulty = 0
        self.false_shares: list[float] = []

    def add(self, names: Bools, faulty: Bools) -> None:
        wrong = int((names & ~faulty).sum())
        self.fleets, self.faulty = self.fleets + 1, self.faulty + int(faulty.sum())
        self.found += int((names & faulty).sum())
        self.healthy_named += wrong
        self.with_healthy_named += wrong > 0
        self.false_shares.append(wrong / max(1, int(names.sum())))

    def as_dict(self) -> dict[str, Any]:
        return {
            "found": self.found, "healthy_named": self.healthy_named, "fleets_with_one": self.with_healthy_named,
            "false_among_named": round(float(np.mean(self.false_shares)), 4),
        }  # fmt: skip


def of_population(fleets: int, nodes: int, population: str, effect: str) -> dict[str, Any]:
    """All rules on fleets of one population and size, with faults of one size."""
    gpus, law = nodes * PER_NODE, healthy_law(population)
    size, unit = effect.split() if effect != "none" else ("0", "%")
    slower = float(size) * float(law.std()) if unit == "sd" else float(size) / 100
    tallies = {name: Tally() for name in ("whorl", "rival", "oracle", *PEERS)}
    of_oracles = hits = 0
    for number in range(fleets):
        random = np.random.default_rng([21, nodes, POPULATIONS.index(population), number, int(100 * slower)])
        own = SILICON.get(population, SILICON["normal"])(random, gpus)
        node_effects = NODES[population](random, nodes) if population in NODES else np.zeros(nodes)
        faulty = np.zeros(gpus, dtype=bool)
        if slower:
            places = random.permutation(np.flatnonzero(node_effects == 0) if population != "nodes share" else nodes)
            faulty[places[:FAULTS] * PER_NODE + random.integers(PER_NODE, size=FAULTS)] = True
        fleet = draw(random, own + slower * faulty, node_effects, glitches=population == "glitches")
        deviations = fleet.deviations
        names = {
            "whorl": named(fleet)[0], "rival": of_rival(deviations, fleet.node),
            "oracle": of_oracle(deviations - fleet.node_effects, law), **of_peers(deviations),
        }  # fmt: skip
        for name, tally in tallies.items():
            tally.add(names[name], faulty)
        of_oracles += int((names["oracle"] & faulty).sum())
        hits += int((names["oracle"] & names["whorl"] & faulty).sum())
    return {
        "population": population, "gpus": gpus, "effect": effect, "fleets": fleets, "faulty": tallies["whorl"].faulty,
        "found_of_what_the_oracle_finds": share(hits, of_oracles),
        "rules": {name: tally.as_dict() for name, tally in tallies.items()},
    }  # fmt: skip


def shifted(fleets: int, shift: float, count: int) -> dict[str, Any]:
    """`count` of 64 nodes are slower by `shift`, and three GPUs on other nodes by 7 or 10 %."""
    nodes, hits, node_hits, healthy_gpus, healthy_nodes, batches = 64, 0, 0, 0, 0, 0
    for number in range(fleets):
        random = np.random.default_rng([9, count, number])
        own = random.normal(0, 0.008, nodes * PER_NODE)
        places = random.permutation(nodes)
        slow_nodes, slow_gpus = places[:count], places[count : count + 3] * PER_NODE + random.integers(PER_NODE, size=3)
        own[slow_gpus] += 0.07 if number % 2 else 0.10
        node_effects = np.zeros(nodes)
        node_effects[slow_nodes] = shift
        of_gpus, of_nodes, in_batch = named(draw(random, own, node_effects))
        hits, node_hits = hits + int(of_gpus[slow_gpus].sum()), node_hits + int(of_nodes[slow_nodes].sum())
        healthy_gpus += int(np.delete(of_gpus, slow_gpus).sum())
        healthy_nodes += int(np.delete(of_nodes, slow_nodes).sum())
        batches += bool(in_batch.any())
    return {
        "shift": shift, "nodes_shifted": count, "fleets": fleets, "gpus_found": share(hits, 3 * fleets),
        "nodes_found": share(node_hits, count * fleets) if count else None,
        "healthy_gpus_named": healthy_gpus, "healthy_nodes_named": healthy_nodes, "fleets_with_a_batch": batches,
    }  # fmt: skip


def revision(fleets: int, effect: float) -> dict[str, Any]:
    """4 of 64 nodes are slower by `effect`."""
    nodes, count, as_nodes, in_batches, healthy_gpus = 64, 4, 0, 0, 0
    for number in range(fleets):
        random = np.random.default_rng([12, int(1000 * effect), number])
        slower = _few(random, nodes, count)
        of_gpus, of_nodes, in_batch = named(draw(random, random.normal(0, 0.010, nodes * PER_NODE), effect * slower))
        on_slow = np.flatnonzero(slower)
        as_nodes += int(of_nodes[on_slow].sum())
        in_batches += int((in_batch.reshape(nodes, PER_NODE).all(axis=1) & ~of_nodes)[on_slow].sum())
        healthy_gpus += int(of_gpus.sum())
    return {
        "effect": effect, "fleets": fleets, "nodes_named": share(as_nodes, count * fleets),
        "nodes_in_a_batch": share(in_batches, count * fleets), "single_gpus_named": healthy_gpus,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=100, help="of a kind; of most faults it is a part of that")
    parser.add_argument("--parts", nargs="+", default=["shifted", "revisions", "populations"])
    parser.add_argument("--populations", nargs="+", default=list(POPULATIONS))
    parser.add_argument("--nodes", nargs="+", type=int, default=list(SIZES), help="of four GPUs each")
    parser.add_argument("--effects", nargs="+", default=list(EFFECTS))
    given = parser.parse_args()
    start, cpu = time.perf_counter(), time.process_time()
    rows: dict[str, Any] = {}
    if "shifted" in given.parts:
        rows["shifted"] = [shifted(given.fleets, shift, count) for shift in SHIFTS for count in SHIFTED_NODES]
    if "revisions" in given.parts:
        rows["revisions"] = [revision(max(1, given.fleets // 4), effect) for effect in REVISIONS]
    if "populations" in given.parts:
        rows["populations"] = []
        for population in given.populations:
            say(population)
            rows["populations"] += [
                of_population(max(1, round(EFFECTS[effect] * given.fleets)), nodes, population, effect)
                for nodes in given.nodes
                for effect in given.effects
            ]
            healthy_law.cache_clear()
    took_s, cpu_s = round(time.perf_counter() - start), round(time.process_time() - cpu)
    print(as_json({"benchmark": "verdict_one_figure", "machine": machine(), "took_s": took_s, "cpu_s": cpu_s, **rows}))


if __name__ == "__main__":
    main()
