"""Policies that keep a job on few nodes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..binning import outlying
from ..fleet import Fleet, Ints
from ..job import Job
from .policy import Policy

if TYPE_CHECKING:
    from ..view import View

WEIGHT_STEP = 0.01


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


def outliers(fleet: Fleet, classes: Set[str], widest: int) -> NDArray[np.bool_]:
    """(gpus,) GPUs whose believed score in one of these classes is an outlier (mean + 3 sd).

    Where too few GPUs would be left for the widest job, the least slow of them are kept.
    """
    known = sorted(classes & set(fleet.belief))
    avoided = np.zeros(len(fleet), dtype=np.bool_)
    worst = np.zeros(len(fleet))
    for name in known:
        avoided |= outlying(fleet.belief[name])
        worst = np.maximum(worst, fleet.belief[name])
    lacking = widest - int(np.count_nonzero(~avoided))
    if lacking > 0:
        candidates = np.flatnonzero(avoided)
        avoided[candidates[np.argsort(worst[candidates], kind="stable")][:lacking]] = False
    return avoided


POLICIES = (
    Policy(
        "packed",
        "on the fullest node that has room for the job; jobs keep their GPUs",
        place=pack,
        aliases=("packed-sticky",),
    ),
    Policy(
        "packed-nonsticky",
        "packed; all jobs are placed again in every round",
        place=pack,
        sticky=False,
        by_rounds=True,
    ),
    Policy(
        "weights",
        "on the nodes whose worst GPU is best, like Slurm's node weights",
        place=pack_by_rank,
        ranks=node_weights,
    ),
    Policy(
        "drain-outliers",
        "packed on the fleet without GPUs beyond mean + 3 sd",
        place=pack,
        avoids=outliers,
    ),
)
