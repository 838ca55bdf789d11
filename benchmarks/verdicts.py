"""How often verdicts are right: populations that break assumptions, an oracle, a rival and the rules of peers.

    python -m benchmarks.verdicts [--only SECTION] [--quick | --long]

campaign    fleets that run three probes: healthy ones, ones of which 1 % have a fault of 1 to 10 % (in memory,
            compute, heat), and ones of which 15 % are 10 % slower. The share of fleets in which a healthy GPU is named,
            of faults that are found, of the healthy among the named (realised FDR), and whether the first cause is
            right. Beside it the oracle that knows the law of healthy GPUs, and rules used elsewhere, on the same draws.
one_figure  the same for one figure of one workload, with a rival that knows no law either
shifted     64 nodes of four GPUs, 0 to 6 of them slower as a whole, three GPUs elsewhere 7 or 10 % slower: the share of
            GPUs and of nodes that is found; and 4 nodes with a revision that nobody recorded
ranks       training jobs that break what is assumed of ranks, beside the rule "1.1 times the median of its peers"
longhorn    who is named in the public files (TACC, SC'22), and which names recur in the later half of the dates

Shares have n and 95 % Wilson intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from scipy import special, stats

from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.statistics.ordering import discoveries
from whorl.analysis.verdicts import Level, State
from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.judge import ERROR_RATE, ERROR_RATE_ALONE, MOST_P, judged
from whorl.analysis.verdicts.levels import RELEVANT, levels
from whorl.analysis.verdicts.ranks import ClusterContext, judged_job
from whorl.analysis.verdicts.verdict import Part
from whorl.benchmarks.fleets import (
    FAULTS,
    PER_NODE,
    POPULATIONS,
    PROBES,
    Bools,
    Floats,
    Ints,
    Oracle,
    Random,
    figures_of,
    place_name,
)
from whorl.benchmarks.harness import BenchOptions, public_file, run, say, scratch, share, share_of
from whorl.store import Store
from whorl.store.importing import Options, import_file

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
FILES = ("sgemm", "pagerank", "resnet50", "bert")
_RIGHT = {"memory": {Part.MEMORY}, "compute": {Part.UNEXPLAINED, Part.CAP}, "heat": {Part.HEAT}}


def _tukey(times: Floats) -> float:
    low, high = np.quantile(times, (0.25, 0.75))
    return float(high + 1.5 * (high - low))


def _modified_z(times: Floats) -> float:
    middle = float(np.median(times))
    return middle + 3.5 * 1.4826 * float(np.median(np.abs(times - middle)))


RULES: dict[str, Callable[[Floats], float]] = {
    "5 % above the median": lambda times: 1.05 * float(np.median(times)), "Tukey's fence": _tukey,
    "modified z above 3.5": _modified_z,
    "mean + 3 sd": lambda times: float(times.mean() + 3 * times.std(ddof=1)),
}  # fmt: skip
"""The time above which rules used elsewhere name a GPU, from their documentation: if one probe says so."""


# -- a campaign of three probes -------------------------------------------------------------------------------------


class RuleCounts:
    """Counts of one rule over the fleets of a cell."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.false_shares: list[float] = []

    def add(self, names: Bools, faulty: Bools) -> None:
        """Count a fleet: (gpus,) whom the rule names, and who is faulty."""
        hits, false = int((names & faulty).sum()), int((names & ~faulty).sum())
        self.counts.update(fleets=1, faulty=int(faulty.sum()), healthy=int((~faulty).sum()), hits=hits, false=false)
        self.counts["fleets with false"] += false > 0
        self.false_shares.append(false / max(1, hits + false))

    def as_dict(self) -> dict[str, Any]:
        """Rates: fleets with a healthy GPU named, its number for 1,000, realised FDR (mean over fleets), power."""
        n = self.counts
        return {
            "fleets_with_a_healthy_gpu_named": share(n["fleets with false"], n["fleets"]),
            "named_per_1000_healthy": round(1000 * n["false"] / max(1, n["healthy"]), 3),
            "false_among_named": round(float(np.mean(self.false_shares)), 4), "found": share(n["hits"], n["faulty"]),
        }  # fmt: skip


oracle = cache(Oracle)
"""The oracle of a population; it draws many fleets."""


def of_fleets(fleets: int, seed: int, gpus: int, population: str, **faults: Any) -> dict[str, Any]:
    """The rates of all rules over fleets of one kind, and whether the first cause of a faulty GPU is right."""
    rules = {name: RuleCounts() for name in ("whorl", "oracle", *RULES)}
    places = {place_name(gpu): gpu for gpu in range(gpus)}
    causes: list[bool] = []
    node_verdicts = 0
    law, fault = oracle(population, sittings=faults.get("sittings", 2)), faults.get("fault")
    for number in range(fleets):
        random = np.random.default_rng([seed, number, gpus, POPULATIONS.index(population)])
        fleet = figures_of(random, gpus, population, **faults)
        level, names = fleet.levels(), np.zeros(gpus, dtype=bool)
        for row in judged(fleet.probed(random)).rows:
            node_verdicts += row.level is Level.NODE
            if row.level is Level.GPU:
                names[places[row.name]] = True
                if fault is not None and fleet.faulty[places[row.name]] and row.causes:
                    causes.append(row.causes[0].what in _RIGHT[fault])
        rules["whorl"].add(names, fleet.faulty)
        rules["oracle"].add(law.names(level, int(fleet.faulty.sum())), fleet.faulty)
        for name, limit in RULES.items():
            times = [np.exp(level[probe]) for probe in PROBES]
            rules[name].add(np.any([of_probe > limit(of_probe) for of_probe in times], axis=0), fleet.faulty)
    return {
        "population": population, "gpus": gpus, **faults, "fleets": fleets,
        "healthy_gpus": rules["whorl"].counts["healthy"], "faulty_gpus": rules["whorl"].counts["faulty"],
        "cause_right": share_of(causes), "node_verdicts": node_verdicts,
        "rules": {name: figures.as_dict() for name, figures in rules.items()},
    }  # fmt: skip


def campaign(options: BenchOptions) -> dict[str, Any]:
    """Healthy, faulty and masking fleets of all populations."""
    fleets, sizes = options.pick(2, 30, 200), (64,) if options.size == "quick" else (64, 256)
    healthy, faulty = [], []
    for population in POPULATIONS:
        say(population)
        for gpus in sizes:
            healthy += [of_fleets(fleets, 2026, gpus, population, sittings=sittings) for sittings in (1, 2)]
        faulty += [
            of_fleets(max(1, fleets // 4), 2027, 256, population, faults=2, fault=fault, effect=effect)
            for fault in FAULTS
            for effect in (EFFECTS if options.size == "long" else (0.02, 0.05, 0.10))
        ]
    masking = [
        of_fleets(max(1, fleets // 4), 2028, 256, "normal", faults=38, fault=fault, effect=0.10) for fault in FAULTS
    ]
    return {"healthy": healthy, "faulty": faulty, "masking": masking}


# -- one figure of one workload --------------------------------------------------------------------------------------

DAYS, RUNS, FEW_FAULTS = 2, 3, 3
_DAY, _RUN, _LAW = 0.0012, 0.0008, 500_000
SILICON: dict[str, Callable[[Random, int], Floats]] = {
    "normal": lambda random, n: random.normal(0, 0.010, n),
    "t5": lambda random, n: 0.008 * random.standard_t(5, n),
    "t3": lambda random, n: 0.006 * random.standard_t(3, n),
    "gamma": lambda random, n: 0.006 * (random.gamma(2, 1, n) - 2),
    "lognormal": lambda random, n: 0.004 * (np.exp(random.normal(0, 1, n)) - 1),
    "two kinds": lambda random, n: random.normal(0, np.where(random.random(n) < 0.1, 0.018, 0.006)),
}
"""How healthy GPUs differ; one in ten of "two kinds" varies three times as much. Other populations have normal GPUs."""
NODES: dict[str, Callable[[Random, int], Floats]] = {
    "nodes share": lambda random, n: random.normal(0, 0.012, n),
    "dust": lambda random, n: 0.02 * few(random, n, 2),
    "revision": lambda random, n: 0.03 * few(random, n, max(1, n // 16)),
}
"""What the GPUs of a node have in common."""
ONE_FIGURE = (*SILICON, *NODES, "glitches")
SLOWER = {"none": 1.0, "7 sd": 0.6, "10 %": 0.6, "5 %": 0.3, "3 %": 0.3}
"""Of three GPUs, with the part of the fleets that is drawn."""
RATE = 0.03


def few(random: Random, n: int, count: int) -> Floats:
    """(n,) 1 for some of them, 0 for the others."""
    return np.isin(np.arange(n), random.permutation(n)[:count]).astype(np.float64)


@dataclass(frozen=True)
class OneFigure:
    """A fleet in one figure of one workload."""

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


def draw(random: Random, effects: Floats, node_effects: Floats, *, glitches: bool = False) -> OneFigure:
    """Runs of GPUs with these effects of themselves (gpus,) and of their nodes (nodes,)."""
    gpus = len(effects)
    node = np.repeat(np.arange(gpus // PER_NODE), PER_NODE)
    runs = _RUN * random.standard_t(4, (gpus, DAYS, RUNS))
    if glitches:
        runs = runs + np.where(random.random(runs.shape) < 1 / 250, random.uniform(0, 0.08, runs.shape), 0.0)
    days = random.normal(0, _DAY, (gpus, DAYS, 1))
    return OneFigure((effects + node_effects[node])[:, None, None] + days + runs, node, node_effects[node])


def named_by_whorl(fleet: OneFigure) -> tuple[Bools, Bools, Bools]:
    """(gpus,) and (nodes,) what whorl names of this one figure, and (gpus,) those of a batch that it names."""
    gpus, nodes = len(fleet.node), int(fleet.node.max()) + 1
    gpu = np.repeat(np.arange(gpus), DAYS * RUNS)
    at = 20_000.0 + np.arange(DAYS)[:, None] + np.arange(RUNS)[None, :] / 1440
    compared = compare(levels(gpu, np.tile(at.ravel(), gpus), fleet.log_times.ravel(), gpus), Fleet(fleet.node))
    assert isinstance(compared, Compared)
    p_of_nodes, in_batch = np.ones(nodes), np.zeros(gpus, dtype=bool)
    for shift in compared.shifts:
        if abs(shift.effect) >= RELEVANT and shift.what == "node":
            p_of_nodes[shift.value] = shift.p
        elif abs(shift.effect) >= RELEVANT:
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
    random = np.random.default_rng([20, ONE_FIGURE.index(population)])
    silicon = SILICON.get(population, SILICON["normal"])(random, _LAW)
    of_days = random.normal(0, _DAY / np.sqrt(DAYS), _LAW)
    of_runs = np.median(_RUN * random.standard_t(4, (_LAW, RUNS)), axis=1) / np.sqrt(DAYS)
    return np.sort(silicon - np.median(silicon) + of_days + of_runs)


def by_rival(deviations: Floats, node: Ints) -> Bools:
    """(gpus,) whom a rival names that knows no law either: nodes that are far out as a whole are centred, then one
    Student's t is averaged over its degrees of freedom and a uniform share of faults; Benjamini and Hochberg's rule."""
    by_node = (deviations - np.median(deviations)).reshape(-1, np.bincount(node)[0])
    middle = np.median(by_node, axis=1)
    between = 1.4826 * np.median(np.abs(middle - np.median(middle)))
    together = (np.sign(by_node) == np.sign(middle)[:, None]) & (np.abs(by_node) >= np.abs(middle)[:, None] / 2)
    shifted_nodes = together.all(axis=1) & (np.abs(middle) > 3 * between)
    x = (by_node - np.where(shifted_nodes, middle, 0.0)[:, None]).ravel()
    unit = np.abs(x - np.median(x)) / (1.4826 * float(np.median(np.abs(x - np.median(x)))))
    far, faults, freedom = unit > 2.0, np.array([0.002, 0.01, 0.03, 0.1]), np.array([2.5, 3, 4, 5, 7, 10, 20, 1000])
    log_weights, tails = [], []
    for size in np.exp(np.linspace(-0.5, 0.5, 7)):
        density = 2 * stats.t.pdf(unit / size, freedom[:, None]) / size
        tails.append(2 * stats.t.sf(unit[far] / size, freedom[:, None]))
        mixed = (1 - faults[:, None, None]) * density + faults[:, None, None] * 0.5 / max(unit.max(), 20.0)
        log_weights.append(np.log(mixed).sum(axis=2))
    weights = special.softmax(np.array(log_weights) + np.log([0.4, 0.3, 0.2, 0.1])[:, None]).sum(axis=1)
    p = np.ones(len(x))
    p[far] = np.minimum(1.0, np.einsum("sf,sfn->n", weights, np.array(tails)))
    return np.asarray((stats.false_discovery_control(p) <= RATE) & (p <= 1e-3))


def cell(fleets: int, nodes: int, population: str, effect: str) -> dict[str, Any]:
    """All rules on fleets of one population and size, with faults of one size."""
    gpus, law = nodes * PER_NODE, healthy_law(population)
    size, unit = effect.split() if effect != "none" else ("0", "%")
    slower = float(size) * float(law.std()) if unit == "sd" else float(size) / 100
    cut = float(law[int(len(law) * (1 - RATE / gpus))])  # beyond it lie 3 healthy GPUs in 100 fleets
    rules = {name: RuleCounts() for name in ("whorl", "rival", "oracle", *RULES)}
    of_oracle = in_common = 0
    for number in range(fleets):
        random = np.random.default_rng([21, nodes, ONE_FIGURE.index(population), number, int(100 * slower)])
        silicon = SILICON.get(population, SILICON["normal"])(random, gpus)
        node_effects = NODES[population](random, nodes) if population in NODES else np.zeros(nodes)
        faulty = np.zeros(gpus, dtype=bool)
        if slower:
            places = random.permutation(np.flatnonzero(node_effects == 0) if population != "nodes share" else nodes)
            faulty[places[:FEW_FAULTS] * PER_NODE + random.integers(PER_NODE, size=FEW_FAULTS)] = True
        fleet = draw(random, silicon + slower * faulty, node_effects, glitches=population == "glitches")
        off = fleet.deviations
        names = {
            "whorl": named_by_whorl(fleet)[0], "rival": by_rival(off, fleet.node),
            "oracle": off - fleet.node_effects > cut,
            **{name: np.exp(off) > limit(np.exp(off)) for name, limit in RULES.items()},
        }  # fmt: skip
        for name, counts in rules.items():
            counts.add(names[name], faulty)
        of_oracle += int((names["oracle"] & faulty).sum())
        in_common += int((names["oracle"] & names["whorl"] & faulty).sum())
    return {
        "population": population, "gpus": gpus, "effect": effect, "fleets": fleets,
        "faulty": rules["whorl"].counts["faulty"],
        "found_of_what_the_oracle_finds": share(in_common, of_oracle),
        "rules": {name: counts.as_dict() for name, counts in rules.items()},
    }  # fmt: skip


def one_figure(options: BenchOptions) -> dict[str, Any]:
    """All populations and effects."""
    fleets, rows = options.pick(4, 100, 200), []
    for population in ONE_FIGURE:
        say(population)
        for nodes in (64,) if options.size != "long" else (16, 64, 250):
            rows += [cell(max(1, round(part * fleets)), nodes, population, effect) for effect, part in SLOWER.items()]
        healthy_law.cache_clear()
    return {"cells": rows}


def shifted(options: BenchOptions) -> dict[str, Any]:
    """Nodes that are slower as a whole beside slow GPUs, and a revision that nobody recorded."""
    nodes, fleets = 64, options.pick(4, 100, 200)
    rows, revisions = [], []
    for shift in (0.03, 0.10):
        for count in (0, 1, 2, 3, 4, 6):
            totals: Counter[str] = Counter()
            for number in range(fleets):
                random = np.random.default_rng([9, count, number])
                effects, places = random.normal(0, 0.008, nodes * PER_NODE), random.permutation(nodes)
                slow_nodes = places[:count]
                slow_gpus = places[count : count + 3] * PER_NODE + random.integers(4, size=3)
                effects[slow_gpus] += 0.07 if number % 2 else 0.10
                node_effects = shift * np.isin(np.arange(nodes), slow_nodes).astype(np.float64)
                of_gpus, of_nodes, _ = named_by_whorl(draw(random, effects, node_effects))
                totals.update(gpus=int(of_gpus[slow_gpus].sum()), nodes=int(of_nodes[slow_nodes].sum()))
                totals.update(false_gpus=int(np.delete(of_gpus, slow_gpus).sum()))
                totals.update(false_nodes=int(np.delete(of_nodes, slow_nodes).sum()))
            rows.append(
                {"shift": shift, "nodes_shifted": count, "fleets": fleets,
                 "gpus_found": share(totals["gpus"], 3 * fleets), "nodes_found": share(totals["nodes"], count * fleets),
                 "healthy_gpus_named": totals["false_gpus"],
                 "healthy_nodes_named": totals["false_nodes"]}
            )  # fmt: skip
    for effect in (0.02, 0.03, 0.05, 0.10):
        totals = Counter()
        for number in range(max(1, fleets // 4)):
            random = np.random.default_rng([12, int(1000 * effect), number])
            slower = few(random, nodes, 4)
            fleet = draw(random, random.normal(0, 0.010, nodes * PER_NODE), effect * slower)
            of_gpus, of_nodes, in_batch = named_by_whorl(fleet)
            on_slow = np.flatnonzero(slower)
            all_of_node = in_batch.reshape(nodes, PER_NODE).all(axis=1)
            totals.update(nodes=int(of_nodes[on_slow].sum()), batch=int((all_of_node & ~of_nodes)[on_slow].sum()))
            totals.update(false_gpus=int(of_gpus.sum()))
        slow = 4 * max(1, fleets // 4)
        revisions.append({"effect": effect, "nodes_named": share(totals["nodes"], slow),
                          "in_a_batch": share(totals["batch"], slow), "gpus_named": totals["false_gpus"]})  # fmt: skip
    return {"shifted": rows, "revisions": revisions}


# -- ranks of training jobs ------------------------------------------------------------------------------------------

_NO_GPUS = pl.DataFrame(schema={"gpu": pl.String, "name": pl.String, "model": pl.String})
_OPERATIONS = {"forward-compute": 0.2, "backward-compute": 0.4}  # s
JOBS: dict[str, dict[str, Any]] = {
    "equal work": {}, "three peers, one stage": {"peers": 3, "stages": 1}, "ranks differ by 2 %": {"ranks": 0.02},
    "three peers that differ by 2 % as t3": {"peers": 3, "stages": 1, "ranks": 0.02, "heavy": True},
    "ranks differ as t3": {"heavy": True}, "neighbouring steps alike": {"neighbours": 0.95, "operations": 0.03},
    "pauses of the host": {"pauses": 0.1}, "unequal sequences": {"sequences": 0.4},
    "lastingly longer sequences": {"sequences": 0.4, "lasting": 0.5},
}  # fmt: skip
"""What breaks the assumptions: spreads are standard deviations of logarithms. Healthy ranks differ by 0.8 %."""


def operations_of(random: Random, slower: float, kind: dict[str, Any]) -> pl.DataFrame:
    """The operations of a job; the first rank of stage 0 takes `slower` times as long."""
    peers, stages, steps = kind.get("peers", 4), kind.get("stages", 4), 40
    shape = (stages, peers, steps, 8)
    lasting = kind.get("lasting", 0.0)
    work = kind.get("sequences", 0.0) * (
        lasting * random.standard_normal((1, peers, 1, 1))
        + np.sqrt(1 - lasting**2) * random.standard_normal((1, peers, *shape[2:]))
    )
    # The last stage also has the loss, and the first the embedding, which do not depend on the sequence as others do.
    fixed = np.where(np.isin(np.arange(stages), (0, stages - 1)), 0.3, 0.1)[:, None, None, None]
    parts = []
    for optype, seconds in _OPERATIONS.items():
        differ = random.standard_t(3, shape[:2]) if kind.get("heavy") else random.standard_normal(shape[:2])
        y = np.log(seconds * (fixed + (1 - fixed) * np.exp(work))) + kind.get("ranks", 0.008) * differ[:, :, None, None]
        y = y + random.normal(0, 0.3, (stages, 1, 1, 1)) + kind.get("operations", 0.01) * random.standard_t(4, shape)
        if lasts := kind.get("neighbours"):
            series = random.standard_normal(shape[:3])
            for step in range(1, steps):
                series[..., step] = lasts * series[..., step - 1] + np.sqrt(1 - lasts**2) * series[..., step]
            y = y + kind["operations"] * series[..., None]
        y = y + np.where(random.random(shape) < kind.get("pauses", 0.0), random.random(shape) * np.log(2), 0.0)
        y[0, 0] += np.log(slower)
        stage, peer, step_of, microbatch = (place.ravel() for place in np.indices(shape))
        columns = {"stage": stage, "dp_rank": peer, "rank": stage * peers + peer, "step": step_of}
        columns |= {"microbatch": microbatch, "duration_s": np.exp(y).ravel()}
        parts.append(pl.DataFrame(columns).with_columns(pl.lit(optype).alias("optype")))
    missing = {"model_chunk": pl.Int64, "tp_size": pl.Int64, "gpu": pl.String}
    return pl.concat(parts).with_columns(pl.lit(None, dtype).alias(name) for name, dtype in missing.items())


def ranks(options: BenchOptions) -> dict[str, Any]:
    """Jobs in which a healthy rank was named, and jobs in which the slow one was."""
    jobs, context, rows = options.pick(4, 60, 200), ClusterContext("c", _NO_GPUS, only_job=True), []
    for name, kind in JOBS.items():
        say(name)
        random = np.random.default_rng(1)
        for slower in (1.0, 1.1, 1.3):
            counts: Counter[str] = Counter()
            slow = {"rank 0"} if slower > 1 else set()
            count = jobs if slower == 1 else max(1, jobs // 2)
            for _ in range(count):
                operations = operations_of(random, slower, kind)
                medians = operations.group_by("optype", "stage", "rank").agg(pl.col("duration_s").median())
                usual = pl.col("duration_s").median().over("optype", "stage")
                by_rule = medians.filter(pl.col("duration_s") > 1.1 * usual)["rank"].unique()
                for rule, suspects in (
                    ("whorl", {verdict.name for verdict in judged_job("j", operations, context).rows}),
                    ("rule", {f"rank {rank}" for rank in by_rule}),
                ):
                    counts[f"{rule} found"] += bool(suspects & slow)
                    counts[f"{rule} false"] += bool(suspects - slow)
            row = {f"{rule}_names_a_healthy_rank": share(counts[f"{rule} false"], count) for rule in ("whorl", "rule")}
            if slow:
                row |= {f"{rule}_finds_it": share(counts[f"{rule} found"], count) for rule in ("whorl", "rule")}
            rows.append({"jobs_of": name, "slower": slower, **row})
    return {"jobs": rows}


# -- the public files ------------------------------------------------------------------------------------------------


def longhorn(_options: BenchOptions) -> dict[str, Any]:
    """Who is named in the whole, and which names of one half of the dates are named in the other."""
    files = public_file("longhorn")
    with scratch() as folder:
        store = Store.create(folder / "store")
        for name in FILES:
            import_file(store, files / f"{name}.csv.gz", Options(cluster="longhorn"))
        whole = probed(store, every=True)
    dated = whole.runs.filter((pl.col("workload") == "sgemm") & pl.col("began").is_not_null())
    before = pl.col("began") < dated["began"].median()
    halves = [part_of(whole, dated.filter(mask)) for mask in (before, ~before)]
    verdicts = [judged(half) for half in halves]
    by_half = [{row.gpus: row for row in answer.rows if row.level is Level.GPU} for answer in verdicts]
    recurs = {}
    for first, second, direction in ((0, 1, "first to second"), (1, 0, "second to first")):
        confirmed = {gpus for gpus, row in by_half[first].items() if row.state is State.CONFIRMED}
        names = halves[second].gpus.select(pl.coalesce(pl.format("{}/{}", "node", "slot"), "gpu")).to_series()
        again = {gpus for gpus in confirmed if gpus[0] in names.to_list()}
        recurs[direction] = {"confirmed": len(confirmed), "measured_again": len(again),
                        "named_again": share(len(again & by_half[second].keys()), len(again))}  # fmt: skip
    answer = judged(whole)
    rows = [
        {"level": str(row.level), "name": row.name, "kind": str(row.kind), "state": str(row.state),
         "workload": row.workloads[0] if row.workloads else None, "effect_pct": row.effect_pct, "runs": len(row.runs)}
        for row in answer.rows
    ]  # fmt: skip
    return {"gpus": whole.gpus.height, "runs": whole.runs.height, "rows": rows, "recurs": recurs}


def part_of(whole: Probed, runs: pl.DataFrame) -> Probed:
    """The campaign with these runs only."""
    gpus = whole.gpus.filter(pl.col("gpu").is_in(runs["gpu"].unique().implode()))
    return Probed(whole.cluster, "", gpus, runs, whole.events.clear())


SECTIONS = {"campaign": campaign, "one_figure": one_figure, "shifted": shifted, "ranks": ranks, "longhorn": longhorn}

if __name__ == "__main__":
    run("verdicts", SECTIONS, packages=("numpy", "polars", "scipy"))
