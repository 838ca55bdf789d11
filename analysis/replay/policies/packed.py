"""Policies that keep a job on few nodes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..fleet import Fleet, Floats, Ints
from ..job import Job
from .row import Policy

if TYPE_CHECKING:
    from ..view import View

WEIGHT_STEP = 0.01
WORTH_DRAINING = 1.1
"""Times the median: an operator leaves a node in service that is less slow. `whorl advise` excludes from it on."""
FAR_SD = 5.0


def pack(view: View, job: Job) -> Sequence[int] | None:
    """A node that is then full; else the node that it fits most snugly; else the nodes with most free GPUs.

    The first node on ties, and of a node its first free GPUs. As in PAL's simulator (SC'24).
    """
    cluster, wanted = view.cluster, job.gpus
    if wanted > cluster.free_count:
        return None
    if wanted <= cluster.largest:
        node = cluster.nodes.snuggest(wanted)  # one that it fills comes first
        if node is not None:
            return cluster.first_free(node, wanted)
    return _from_nodes(view, cluster.nodes.fullest(wanted), wanted)


def pack_by_rank(view: View, job: Job) -> Sequence[int] | None:
    """The first node in the order of ranks that holds the job; else as many of the first nodes as it needs."""
    cluster, wanted = view.cluster, job.gpus
    if wanted > cluster.free_count:
        return None
    if wanted <= cluster.largest:
        node = cluster.nodes.earliest(wanted)
        if node is not None:
            return cluster.first_free(node, wanted)
    return _from_nodes(view, cluster.nodes.in_order(wanted), wanted)


def _from_nodes(view: View, nodes: Sequence[int], wanted: int) -> list[int]:
    cluster, found = view.cluster, list[int]()
    for node in nodes:
        found += cluster.first_free(node, min(cluster.counts[node], wanted - len(found)))
    return found


def node_weights(fleet: Fleet, classes: Set[str]) -> Ints:
    """(nodes,) a weight as Slurm has it, least first: the worst believed score of the node's GPUs over these classes,
    in hundredths."""
    worst = np.ones(len(fleet)) if not classes & set(fleet.belief) else np.zeros(len(fleet))
    for name in classes & set(fleet.belief):
        worst = np.maximum(worst, fleet.belief[name])
    by_node = np.zeros(len(fleet.node_names))
    np.maximum.at(by_node, fleet.node, worst)
    weights: Ints = np.round(by_node / WEIGHT_STEP).astype(np.int32)
    return weights


def far_off(belief: Floats) -> NDArray[np.bool_]:
    """(gpus,) whether each of these believed scores (gpus,) is slow by more than 10 %, and by 5 robust deviations.

    Both are counted from the median, and the deviation is 1.4826 times the median absolute one. Unlike the mean and
    its deviation, they stay as they are however slow a few GPUs are, so that one of these cannot hide another. Of a
    hundred thousand normal scores none is so far off.
    """
    median = float(np.median(belief))
    robust_sd = 1.4826 * float(np.median(np.abs(belief - median)))
    return np.asarray(belief > max(WORTH_DRAINING * median, median + FAR_SD * robust_sd))


def on_drained_nodes(fleet: Fleet, classes: Set[str], widest: int) -> NDArray[np.bool_]:
    """(gpus,) the GPUs of the nodes that have one which is far off in one of these classes.

    The slowest nodes first, never more than half of the nodes, and while enough GPUs are left for the widest job.
    """
    worst = np.zeros(len(fleet))
    for name in classes & set(fleet.belief):
        # A GPU is slow beside its like: nobody drains a board variant.
        belief = fleet.belief[name] if fleet.usual is None else fleet.belief[name] / fleet.usual[name]
        worst = np.where(far_off(belief), np.maximum(worst, belief), worst)
    nodes = len(fleet.node_names)
    of_node = np.zeros(nodes)
    np.maximum.at(of_node, fleet.node, worst)
    size, left = np.bincount(fleet.node), len(fleet)
    drained: list[int] = []
    for node in np.argsort(-of_node, kind="stable")[: nodes // 2].tolist():
        left -= int(size[node])
        if not of_node[node] or left < widest:
            break
        drained.append(node)
    return np.isin(fleet.node, drained)


POLICIES = (
    Policy(
        "packed",
        "on the fullest node that has room for the job; jobs keep their GPUs",
        place=pack,
        blind=True,
        aliases=("packed-sticky",),
    ),
    Policy(
        "packed-nonsticky",
        "packed; all jobs are placed again in every round",
        place=pack,
        sticky=False,
        by_rounds=True,
        blind=True,
    ),
    Policy(
        "weights",
        "on the nodes whose worst GPU is best: a weight for every node, finer than advice-weights",
        place=pack_by_rank,
        ranks=node_weights,
    ),
    Policy(
        "drain-outliers",
        "packed, without the nodes that have a GPU which is far off",
        place=pack,
        avoids=on_drained_nodes,
    ),
)
