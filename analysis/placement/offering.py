"""Which nodes are offered to jobs: the fastest, or to jobs that do not mind those that are slow for others."""

from __future__ import annotations

import numpy as np

from ...store.names import by_number
from .scores import Scores
from .tiers import Nodes, nodes_of, tier
from .workload_scores import WorkloadScores

_FAST = 0.25
"""The share of the nodes that is offered as fast."""


def fast(nodes: Nodes, one: WorkloadScores, gpus: int, exclude: set[str]) -> tuple[str, ...]:
    """The fastest nodes, best first: a quarter of all nodes, or twice as many as the job needs if that is more."""
    score = nodes.scores(one.belief)
    best = sorted((name for name in score if name not in exclude), key=lambda name: (score[name], by_number(name)))
    size = {name: len(its) for name, its in zip(nodes.names, nodes.gpus, strict=True)}
    enough = int(np.searchsorted(np.cumsum([size[name] for name in best]), 2 * gpus)) + 1
    usual = float(np.median(list(score.values()))) if score else 0.0
    count = max(int(_FAST * len(score)), enough)
    return tuple(name for name in best[:count] if score[name] < usual)


def slow_elsewhere(
    scores: Scores, own: WorkloadScores, nodes: Nodes, hard: float, soft: float, notes: list[str]
) -> tuple[str, ...]:
    """The nodes that are soft in another, sensitive workload: a job that is not sensitive leaves the good ones to it.

    Hard nodes are never offered. Nor are nodes that are or may be slow in the job's `own` workload: if its differences
    repeat, the whole interval of a node's slowest GPU must lie below `soft`. If it is not known whether they repeat,
    no node is offered.
    """
    if own.p is None:
        return ()
    worst: dict[str, float] = {}
    broken: set[str] = set()
    for name, its in zip(nodes.names, nodes.gpus, strict=True):
        if own.repeatable and not max(own.upper[gpu] for gpu in its) < soft:
            broken.add(name)
    for other, one in scores.of.items():
        if one is own or not one.repeatable:
            continue
        theirs = nodes_of(scores, other, nodes.names)
        for name, its in zip(theirs.names, theirs.gpus, strict=True):
            found = tier(one, its, hard, soft)
            if found is not None and found[0] == "hard":
                broken.add(name)
            elif found is not None:
                worst[name] = max(worst.get(name, 0.0), float(one.belief[found[1]]))
    listed = tuple(sorted(worst.keys() - broken, key=lambda name: (-worst[name], by_number(name))))
    if listed:
        which = f"1 node ({listed[0]}) is" if len(listed) == 1 else f"{len(listed):,} nodes are"
        serve = "serves" if len(listed) == 1 else "serve"
        notes.append(f"{which} slow in other workloads, but {serve} {own.workload} as well as any other")
    return listed
