"""How often verdicts are right: on made fleets that break assumptions, and on the Longhorn files. Prints JSON.

    python benchmarks/verdicts.py --longhorn FOLDER > benchmarks/results/verdicts.json

    healthy      fleets without a fault: the share of fleets in which a GPU is named, and how many GPUs of 1,000. Beside
                 it, on the same fleets, rules used elsewhere, each with the figures of every probe.
    faulty       1 % of the GPUs have a fault that costs 1 to 10 %: the share found, and the share of false ones among
                 the named; whether the cause is right; the same for the other rules.
    masking      15 % of the GPUs are 10 % slower.
    longhorn     who is named, and which names recur from one half of the dates to the other.

docs/operating-characteristics.md is made from the result. Shares have 95 % Wilson intervals. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Level, State
from whorl.analysis.verdicts.groups import modes
from whorl.analysis.verdicts.judge import judged
from whorl.analysis.verdicts.verdict import Part
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, share
from whorl.benchmarks.verdict_fleets import FAULTS, PER_NODE, POPULATIONS, PROBES, MadeFleet, Oracle, made
from whorl.dashboards.answers.mappings import finding as verdict_row
from whorl.dashboards.documents.evidence import why_not
from whorl.store import Store
from whorl.store.importing import Options, import_file

Floats = npt.NDArray[np.float64]
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
FILES = ("sgemm", "pagerank", "resnet50", "bert")
_RIGHT = {"memory": {Part.MEMORY}, "compute": {Part.UNEXPLAINED, Part.CAP}, "heat": {Part.HEAT}}
Rule = Callable[[Floats], npt.NDArray[np.bool_]]


def _node_best(times: Floats) -> npt.NDArray[np.bool_]:
    """Less than 90 % of the speed of the best of its node."""
    best = np.repeat([part.min() for part in np.split(times, range(PER_NODE, len(times), PER_NODE))], PER_NODE)
    return times > best[: len(times)] / 0.9


def _beyond(limit: Callable[[Floats], float]) -> Rule:
    return lambda times: times > limit(times)


def _tukey(times: Floats) -> float:
    low, high = np.quantile(times, (0.25, 0.75))
    return float(high + 1.5 * (high - low))


def _modified_z(times: Floats) -> float:
    middle = float(np.median(times))
    return middle + 3.5 * 1.4826 * float(np.median(np.abs(times - middle)))


RULES: dict[str, Rule] = {
    "10 % below the node's best": _node_best,
    "5 % above the median": _beyond(lambda times: 1.05 * float(np.median(times))),
    "25 % above the median": _beyond(lambda times: 1.25 * float(np.median(times))),
    "Tukey's fence": _beyond(_tukey),
    "modified z above 3.5": _beyond(_modified_z),
    "mean + 3 sd": _beyond(lambda times: float(times.mean() + 3 * times.std(ddof=1))),
}
"""Rules used elsewhere, from their documentation: a GPU is named if one probe says so."""


class FleetTally:
    """Counts over fleets of one kind."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.fleets = self.fleets_with_false = self.gpus = self.faulty = 0
        self.found: Counter[str] = Counter()
        self.false: Counter[str] = Counter()
        self.with_false: Counter[str] = Counter()
        self.discovered: dict[str, list[float]] = {}
        self.right = self.told = self.nodes = self.batches = self.confirmed = 0

    def add(self, fleet: MadeFleet, fault: str | None) -> None:
        found = judged(fleet.campaign)
        place = {name: number for number, name in enumerate(fleet.names)}
        named = np.zeros(len(fleet.names), dtype=bool)
        for row in found.rows:
            self.nodes += row.level is Level.NODE
            self.batches += row.level is Level.BATCH
            if row.level is not Level.GPU:
                continue
            at = place[row.name]
            named[at] = True
            if fault is not None and fleet.faulty[at] and row.causes:
                self.told += 1
                self.right += row.causes[0].what in _RIGHT[fault]
            self.confirmed += bool(fleet.faulty[at]) and row.state is State.CONFIRMED
        self.fleets += 1
        self.gpus += int((~fleet.faulty).sum())
        self.faulty += int(fleet.faulty.sum())
        self._count("whorl", named, fleet.faulty)
        levels = fleet.drawn.levels()
        self._count("oracle", self._oracle.names(levels, int(fleet.faulty.sum())), fleet.faulty)
        for name, rule in RULES.items():
            said = np.zeros(len(named), dtype=bool)
            for probe in PROBES:
                said |= rule(np.exp(levels[probe]))
            self._count(name, said, fleet.faulty)

    def _count(self, name: str, named: npt.NDArray[np.bool_], faulty: npt.NDArray[np.bool_]) -> None:
        false = int((named & ~faulty).sum())
        self.found[name] += int((named & faulty).sum())
        self.false[name] += false
        self.with_false[name] += false > 0
        self.discovered.setdefault(name, []).append(false / max(1, int(named.sum())))

    def as_dict(self) -> dict[str, Any]:
        rules = {
            name: {
                "fleets_with_a_healthy_gpu_named": share(self.with_false[name], self.fleets),
                "named_per_1000_healthy": round(1000 * self.false[name] / max(1, self.gpus), 3),
                "false_among_named": round(float(np.mean(self.discovered[name])), 4),
                "found": share(self.found[name], self.faulty),
            }
            for name in ("whorl", "oracle", *RULES)
        }
        return {
            "fleets": self.fleets, "healthy_gpus": self.gpus, "faulty_gpus": self.faulty, "rules": rules,
            "cause_right": share(self.right, self.told), "node_verdicts": self.nodes, "batch_verdicts": self.batches,
        }  # fmt: skip


@cache
def oracle(population: str, sittings: int) -> Oracle:
    return Oracle(population, sittings=sittings)


def _tally(fleets: int, seed: int, gpus: int, population: str, **more: Any) -> dict[str, Any]:
    tally = FleetTally(oracle(population, more.get("sittings", 2)))
    for number in range(fleets):
        random = np.random.default_rng([seed, number, gpus, POPULATIONS.index(population)])
        tally.add(made(random, gpus, population, **more), more.get("fault") if more.get("faults") else None)
    return tally.as_dict()


def healthy(fleets: Callable[[int], int], sizes: Iterable[int], seed: int) -> list[dict[str, Any]]:
    rows = []
    for gpus in sizes:
        for population in POPULATIONS:
            for sittings in (1, 2):
                say(f"healthy: {gpus} GPUs, {population}, {sittings} sittings")
                row = _tally(fleets(gpus), seed, gpus, population, sittings=sittings)
                rows.append({"gpus": gpus, "population": population, "sittings": sittings, **row})
    return rows


def faulty(fleets: Callable[[int], int], sizes: Iterable[int], seed: int) -> list[dict[str, Any]]:
    rows = []
    for gpus in sizes:
        for population in POPULATIONS if gpus == 256 else ("normal", "t5 silicon"):
            for fault in FAULTS:
                for effect in EFFECTS:
                    say(f"faulty: {gpus} GPUs, {population}, {fault} {100 * effect:g} %")
                    row = _tally(
                        max(2, fleets(gpus) // 8), seed + 1, gpus, population,
                        faults=max(1, gpus // 100), fault=fault, effect=effect,
                    )  # fmt: skip
                    rows.append({"gpus": gpus, "population": population, "fault": fault, "effect": effect, **row})
    return rows


def masking(fleets: Callable[[int], int], sizes: Iterable[int], seed: int) -> list[dict[str, Any]]:
    rows = []
    for gpus in sizes:
        for fault in FAULTS:
            say(f"masking: {gpus} GPUs, {fault}")
            row = _tally(
                max(2, fleets(gpus) // 8), seed + 2, gpus, "normal",
                faults=int(0.15 * gpus), fault=fault, effect=0.10,
            )  # fmt: skip
            rows.append({"gpus": gpus, "fault": fault, **row})
    return rows


def longhorn(folder: Path) -> dict[str, Any]:
    """The Longhorn files, whole and by half of the dates."""
    with tempfile.TemporaryDirectory() as place:
        store = Store.create(Path(place) / "store")
        for name in FILES:
            import_file(store, folder / f"{name}.csv.gz", Options(cluster="longhorn"))
        whole = probed(store, every=True)
    found = judged(whole)
    sgemm = whole.runs.filter((pl.col("workload") == "sgemm") & pl.col("began").is_not_null())
    cut = sgemm["began"].median()
    assert isinstance(cut, datetime)
    halves = _parted(whole, sgemm, cut)
    said = [judged(half) for half in halves]
    names = [{row.name for row in one.rows if row.level is Level.GPU} for one in said]
    there = [set(half.gpus["gpu"]) for half in halves]
    recur = {}
    for ours, other in ((0, 1), (1, 0)):
        confirmed = {
            row.name for row in said[ours].rows if row.level is Level.GPU and row.state is State.CONFIRMED
        }  # fmt: skip
        key = {_name(halves[ours], gpu): gpu for gpu in there[ours]}
        again = {name for name in confirmed if key[name] in there[other]}
        recur["first to second" if ours == 0 else "second to first"] = {
            "confirmed": sorted(confirmed), "measured_again": len(again), "named_again": len(again & names[other]),
        }  # fmt: skip
    return {
        "rows": [{**verdict_row(row), "gpus": len(row.gpus), "runs": len(row.runs)} for row in found.rows],
        "not_judged": [f"{one.subject}: {why_not(one)}" for one in found.not_judged],
        "cut": cut.isoformat(),
        "recurs": recur,
    }


def _parted(whole: Probed, runs: pl.DataFrame, cut: datetime) -> list[Probed]:
    before = pl.col("began") < cut
    return [_of_runs(whole, runs.filter(before)), _of_runs(whole, runs.filter(~before))]


def _name(campaign: Probed, gpu: str) -> str:
    row = campaign.gpus.filter(pl.col("gpu") == gpu).row(0, named=True)
    return gpu if row["node"] is None or row["slot"] is None else f"{row['node']}/{row['slot']}"


def _of_runs(whole: Probed, runs: pl.DataFrame) -> Probed:
    gpus = whole.gpus.filter(pl.col("gpu").is_in(runs["gpu"].unique().implode()))
    return Probed(whole.cluster, "", gpus, runs, whole.events.clear())


def valleys(seed: int) -> list[dict[str, Any]]:
    """The test for a second mode: how often one is seen where there is one, and where there is none."""
    random = np.random.default_rng(seed)
    rows = []
    for gpus in (64, 128, 256, 1000, 10_000):
        times = 1000 if gpus < 2000 else 100
        none: dict[str, Callable[[int], Floats]] = {
            "normal": random.standard_normal, "t5": lambda n: random.standard_t(5, n),
            "gamma": lambda n: random.gamma(2, 1, n), "uniform": random.random,
        }  # fmt: skip
        for shape, draw in none.items():
            hits = sum(bool(modes(draw(gpus)).any()) for _ in range(times))
            rows.append({"gpus": gpus, "population": shape, "two_modes_seen": share(hits, times)})
        for apart in (3, 4, 5, 6):
            hits = 0
            for _ in range(times // 5):
                values = random.standard_normal(gpus)
                values[: int(0.16 * gpus)] -= apart
                hits += bool(modes(values).any())
            rows.append({"gpus": gpus, "population": f"16 % at {apart} sd", "two_modes_seen": share(hits, times // 5)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longhorn", type=Path, help="folder of the Longhorn files")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1000, 10_000])
    parser.add_argument("--gpus", type=int, default=51_200, help="in all fleets of a kind together")
    parser.add_argument("--fleets", type=int, default=400, help="of a kind at most")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--parts", nargs="+", default=["longhorn", "valleys", "masking", "healthy", "faulty"])
    given = parser.parse_args()

    def fleets(gpus: int) -> int:
        return int(max(4, min(given.fleets, given.gpus // gpus)))

    parts: dict[str, Callable[[], Any]] = {
        "longhorn": lambda: longhorn(given.longhorn) if given.longhorn else None,
        "valleys": lambda: valleys(given.seed),
        "masking": lambda: masking(fleets, given.sizes, given.seed),
        "healthy": lambda: healthy(fleets, given.sizes, given.seed),
        "faulty": lambda: faulty(fleets, given.sizes, given.seed),
    }
    start = time.perf_counter()
    found = {name: parts[name]() for name in given.parts}
    took = round(time.perf_counter() - start)
    print(as_json({"benchmark": "verdicts", "machine": machine(), "took_s": took, **found}))


if __name__ == "__main__":
    main()
