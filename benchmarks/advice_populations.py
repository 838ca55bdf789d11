"""How often advice excludes a healthy node and finds a slow one, in fleets that break what is usually assumed.

    python benchmarks/advice_populations.py [--fleets 100]

Fleets are drawn whose true times are known: with heavy tails, node effects, several models, boards of several
revisions, models with a single node. Half of them have no fault; in the others one node takes 1.4 times as long as its
model's, and one GPU elsewhere 1.25 times. Advice is taken as a user would take it, without a limit on the share.
Beside it stands the rule that sites often use: exclude a node if the median of a GPU's runs is more than 1.1 times the
median of all GPUs. A node is healthy if no GPU on it takes more than 1.1 times as long as the median GPU of its model
and board revision. Prints JSON, with the 95 % interval of each share (Wilson); it asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whorl.analysis.placement import Scores, advise, scores, together
from whorl.analysis.placement.evidence import HARD
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, ends
from whorl.store import Store
from whorl.store.names import plain_workload

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
PER_NODE = 4
RUNS = 4
DAY_NS = 86_400 * 10**9
NODE_SLOW, GPU_SLOW = 1.4, 1.25


def usual(rng: Random, gpus: int) -> Floats:
    """Log times of GPUs about the usual one: normal, 1 %."""
    return rng.normal(0.0, 0.01, gpus)


def noise(rng: Random, gpus: int) -> Floats:
    """(gpus, runs) deviations of runs: normal, 0.5 %."""
    return rng.normal(0.0, 0.005, (gpus, RUNS))


@dataclass(frozen=True)
class Population:
    """How GPUs and runs of a fleet differ; by node, its model, its VBIOS (None: not recorded), and its kind's time."""

    says: str
    nodes: int = 16
    own: Callable[[Random, int], Floats] = usual
    runs: Callable[[Random, int], Floats] = noise
    model: Callable[[int], str] = lambda _: "A100"
    vbios: Callable[[int], str | None] = lambda _: None
    time: Callable[[int], float] = lambda _: 1.0


def by_node(rng: Random, gpus: int, sd: float) -> Floats:
    return np.repeat(rng.normal(0.0, sd, gpus // PER_NODE), PER_NODE)


POPULATIONS = {
    "normal": Population("GPUs differ by 1 %, runs by 0.5 %, both normal"),
    "heavy_tails": Population(
        "GPUs: Student's t with 2 degrees of freedom", own=lambda r, n: 0.01 * r.standard_t(2, n)
    ),
    "skewed": Population("GPUs: exponential on the slow side, 2 %", own=lambda r, n: r.exponential(0.02, n)),
    "node_effects": Population("nodes differ by 2.5 %, too", own=lambda r, n: usual(r, n) + by_node(r, n, 0.025)),
    "heavy_noise": Population(
        "runs: Student's t with 2 degrees of freedom", runs=lambda r, n: 0.01 * r.standard_t(2, (n, RUNS))
    ),
    "glitches": Population(
        "one run of ten takes half as long again",
        runs=lambda r, n: noise(r, n) + np.log(1.5) * (r.random((n, RUNS)) < 0.1),
    ),
    "fast_boards": Population(
        "boards of 3 of 16 nodes have another VBIOS and are 3 % faster",
        vbios=lambda node: "B" if node % 16 < 3 else "A", time=lambda node: 0.97 if node % 16 < 3 else 1.0,
    ),
    "slow_boards": Population(
        "boards of every third node have another VBIOS and are 15 % slower",
        vbios=lambda node: "B" if node % 3 == 1 else "A", time=lambda node: 1.15 if node % 3 == 1 else 1.0,
    ),
    "slow_boards_unrecorded": Population(
        "the same, and the VBIOS is not recorded", time=lambda node: 1.15 if node % 3 == 1 else 1.0
    ),
    "two_models": Population(
        "8 nodes of V100, 8 of A100, which take 0.6 of the time",
        model=lambda node: "V100" if node < 8 else "A100", time=lambda node: 2.5 if node < 8 else 1.5,
    ),
    "seven_nodes": Population(
        "3 nodes of V100 and 4 of A100", nodes=7,
        model=lambda node: "V100" if node < 3 else "A100", time=lambda node: 2.5 if node < 3 else 1.5,
    ),
    "single_node": Population(
        "1 node of V100 and 7 of A100", nodes=8,
        model=lambda node: "V100" if node < 1 else "A100", time=lambda node: 2.5 if node < 1 else 1.5,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=100, help="of each population, healthy, and as many with faults")
    arguments = parser.parse_args()
    rates = {name: judged(population, arguments.fleets) for name, population in POPULATIONS.items()}
    print(as_json({"benchmark": "advice_populations", "machine": machine("numpy", "polars"), "populations": rates}))


def judged(population: Population, fleets: int) -> dict[str, Any]:
    """The realised rates of one population.

    Faults are planted on nodes of the commonest kind: with one node of a kind nobody can tell.
    """
    nodes = np.arange(population.nodes)
    kind = [(population.model(int(node)), population.time(int(node))) for node in nodes]
    log_time = np.log([time for _, time in kind]).repeat(PER_NODE)
    usual_nodes = [node for node in nodes if kind[node] == max(set(kind), key=kind.count)]
    times, relative = {}, {}
    planted: dict[str, set[int]] = {}
    for number in range(2 * fleets):
        rng = np.random.default_rng([number, 14])
        own_times = population.own(rng, PER_NODE * population.nodes)
        name = f"w{number:04d}"
        planted[name] = set()
        if number >= fleets:
            bad, second = rng.choice(usual_nodes, 2, replace=False)
            own_times[PER_NODE * bad : PER_NODE * (bad + 1)] += math.log(NODE_SLOW)
            own_times[PER_NODE * second + 1] += math.log(GPU_SLOW)
            planted[name] = {int(bad), int(second)}
        relative[name] = beside(own_times, kind)
        times[name] = np.exp(own_times[:, None] + log_time[:, None] + population.runs(rng, len(own_times)))
    with tempfile.TemporaryDirectory() as folder:
        scored = scores(stored(Path(folder), population, times))
    rows = []
    for number, name in enumerate(times):
        ill = {int(gpu) // PER_NODE for gpu in np.flatnonzero(relative[name] > HARD)}
        medians = np.median(times[name], axis=1)
        plain = {int(gpu) // PER_NODE for gpu in np.flatnonzero(medians > HARD * np.median(medians))}
        for rule, named_nodes in (("whorl", advised(scored, name)), ("plain", plain)):
            planted_nodes = planted[name]
            rows.append(
                (
                    rule,
                    number >= fleets,
                    bool(named_nodes - ill - planted_nodes),
                    [node in named_nodes for node in planted_nodes],
                )
            )
    return {"says": population.says, "nodes": population.nodes} | {
        rule: {
            "healthy_fleets_with_a_false_node": share([row[2] for row in rows if row[0] == rule and not row[1]]),
            "faulty_fleets_with_a_false_node": share([row[2] for row in rows if row[0] == rule and row[1]]),
            "planted_nodes_found": share([hit for row in rows if row[0] == rule for hit in row[3]]),
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


def share(hits: list[bool]) -> dict[str, Any]:
    n, k = len(hits), sum(hits)
    if n == 0:
        return {"n": 0, "share": None}
    low, high = ends(k, n)
    return {"n": n, "hits": k, "share": round(k / n, 3), "low": round(low, 3), "high": round(high, 3)}


def stored(root: Path, population: Population, times: dict[str, Floats]) -> Store:
    """A store whose workloads are these fleets, a run a day."""
    store = Store.create(root / "S")
    gpus = PER_NODE * population.nodes
    node = [gpu // PER_NODE for gpu in range(gpus)]
    names = [f"g{gpu:04d}" for gpu in range(gpus)]
    about = {
        "cluster": ["c"] * gpus,
        "gpu": names,
        "node": [f"n{number:03d}" for number in node],
        "slot": pa.array([gpu % PER_NODE for gpu in range(gpus)], pa.int32()),
        "model": [population.model(number) for number in node],
        "vbios": pa.array([population.vbios(number) for number in node], pa.string()),
    }
    shape = (len(times), gpus, RUNS)
    fleet, gpu, run = (index.ravel() for index in np.indices(shape))
    workloads = list(times)
    keys = {
        "run_id": [str(number) for number in range(len(fleet))],
        "cluster": ["c"] * len(fleet),
        "workload": [workloads[number] for number in fleet],
        "gpu": [names[number] for number in gpu],
    }
    began = pa.array(1_800_000_000 * 10**9 + DAY_NS * run, pa.timestamp("ns"))
    result = {
        "figure": ["time"] * len(fleet),
        "unit": ["ms"] * len(fleet),
        "repeat": pa.array([0] * len(fleet), pa.int32()),
    }
    values = np.array([times[name] for name in workloads]).ravel()
    store.append(
        {
            "gpus": pa.table(about),
            "runs": pa.table({**keys, "began": began, "status": ["ok"] * len(fleet)}),
            "results": pa.table({**keys, **result, "value": values}),
        },
        "fleets",
    )
    return store


if __name__ == "__main__":
    main()
