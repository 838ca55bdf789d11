"""Placements that keep a job on few nodes."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..beliefs import Beliefs, Request, View
from ..cluster import Cluster, Places
from ..fleet import Floats, Ints
from .queue import Queued

WEIGHT_STEP = 0.01
WORTH_DRAINING = 1.1
"""Times the median: an operator leaves a node in service that is less slow. `whorl advise` excludes from it on."""
FAR_SD = 5.0


def pack(cluster: Cluster, count: int, weight: Ints | None = None) -> Places | None:
    """A node that is then full; else the node that it fits most snugly; else the nodes with most free GPUs.

    The first node on ties, and of a node its first free GPUs. As in PAL's simulator (SC'24). `weight`: (nodes,), by
    which the nodes of the least come first in each of these; below 0 for a node that is not to be used. None where
    the others have too few free GPUs.
    """
    counts = cluster.counts
    weighty: NDArray[np.signedinteger] | int = 0
    if weight is not None:
        counts = np.where(weight < 0, 0, counts)
        weighty = weight * (cluster.largest + 1)  # one more of weight outdoes any number of free GPUs
    holding = np.flatnonzero(counts >= count)
    if len(holding):
        return cluster.first_free(int(holding[(weighty + counts)[holding].argmin()]), count)
    if weight is not None and count > counts.sum():
        return None
    usable = np.flatnonzero(counts)
    return cluster.first_of(usable[np.argsort((weighty - counts)[usable], kind="stable")], count)


class Packed(Queued):
    """See `pack`."""

    name = "packed"
    summary = "on the fullest node that has room for the job; jobs keep their GPUs"
    aliases: ClassVar[tuple[str, ...]] = ("packed-sticky",)
    blind = True

    def place(self, request: Request) -> Places | None:
        return pack(self.cluster, request.gpus)


class PackedAnew(Packed):
    """`Packed`, in every round."""

    name = "packed-nonsticky"
    summary = "packed; all jobs are placed again in every round"
    aliases = ()
    sticky = False
    by_rounds = True


class Weights(Queued):
    """The first node in the order of weights that holds the job; else as many of the first nodes as it needs."""

    name = "weights"
    summary = "on the nodes whose worst GPU is best: a weight for every node, finer than advice-weights"

    def begin(self, view: View) -> None:
        super().begin(view)
        self._order = np.argsort(node_weights(view.beliefs, view.classes), kind="stable")

    def place(self, request: Request) -> Places:
        cluster, count = self.cluster, request.gpus
        fits = cluster.counts[self._order] >= count
        if fits.any():
            return cluster.first_free(int(self._order[fits.argmax()]), count)
        return cluster.first_of(self._order, count)


class DrainOutliers(Packed):
    """`Packed` on the nodes that `on_drained_nodes` leaves."""

    name = "drain-outliers"
    summary = "packed, without the nodes that have a GPU which is far off"
    aliases = ()
    blind = False

    def avoids(self, view: View) -> NDArray[np.bool_]:
        return on_drained_nodes(view.beliefs, view.classes, view.widest)


def node_weights(beliefs: Beliefs, classes: Set[str]) -> Ints:
    """(nodes,) a weight as Slurm has it, least first: the worst believed score of the node's GPUs over these classes,
    in hundredths."""
    fleet, scores = beliefs.rates.fleet, beliefs.rates.scores
    worst = np.max([scores[name] for name in classes & set(scores)] or [np.ones(len(fleet))], axis=0)
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


def on_drained_nodes(beliefs: Beliefs, classes: Set[str], widest: int) -> NDArray[np.bool_]:
    """(gpus,) the GPUs of the nodes that have one which is far off in one of these classes.

    The slowest nodes first, never more than half of the nodes, and while enough GPUs are left for the widest job.
    """
    fleet, scores = beliefs.rates.fleet, beliefs.rates.scores
    worst = np.zeros(len(fleet))
    for name in classes & set(scores):
        # A GPU is slow beside its like: nobody drains a board variant.
        belief = scores[name] if beliefs.usual is None else scores[name] / beliefs.usual[name]
        worst = np.where(far_off(belief), np.maximum(worst, belief), worst)
    nodes = len(fleet.node_names)
    of_node = np.zeros(nodes)
    np.maximum.at(of_node, fleet.node, worst)
    size, room = np.bincount(fleet.node), len(fleet)
    drained: list[int] = []
    for node in np.argsort(-of_node, kind="stable")[: nodes // 2].tolist():
        room -= int(size[node])
        if not of_node[node] or room < widest:
            break
        drained.append(node)
    return np.isin(fleet.node, drained)
