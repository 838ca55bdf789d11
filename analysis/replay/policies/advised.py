"""Placements that follow `whorl advise` as Slurm follows it: whole nodes are excluded, or have one of three weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..beliefs import Request
from ..cluster import Cluster, Places
from .packed import pack
from .queue import Queued


class AdviceExclude(Queued):
    """Packed among the nodes that are not excluded for the job's workload and size."""

    name = "advice-exclude"
    summary = "packed, off the nodes that `whorl advise` excludes for the job's workload and size"

    def bars(self, request: Request) -> NDArray[np.bool_] | None:
        advised = self.view.beliefs.advised
        if advised is None or not request.workload:
            return None
        nodes = advised.barred(request.workload, request.gpus)
        return nodes if nodes.any() else None

    def place(self, request: Request) -> Places | None:
        nodes = self.bars(request)
        if nodes is None:
            return pack(self.cluster, request.gpus)
        return pack_by_weight(self.cluster, request.gpus, np.where(nodes, np.int32(-1), np.int32(0)))


class AdviceWeights(Queued):
    """Packed among the nodes of the least weight that hold the job; a job that no node holds fills the least first."""

    name = "advice-weights"
    summary = "packed, on nodes that `whorl advise` calls usual before soft ones, and on these before hard ones"

    def place(self, request: Request) -> Places | None:
        advised = self.view.beliefs.advised
        if advised is None:
            return pack(self.cluster, request.gpus)
        return pack_by_weight(self.cluster, request.gpus, advised.weights)


def pack_by_weight(cluster: Cluster, count: int, weight: NDArray[np.int32]) -> Places | None:
    """As `packed.pack`, weight by weight. `weight`: (nodes,), below 0 for a node that is not to be used."""
    counts = np.where(weight < 0, 0, cluster.counts)
    step = cluster.largest + 1  # one more of weight outdoes any number of free GPUs
    holding = np.flatnonzero(counts >= count)
    if len(holding):
        return cluster.first_free(int(holding[np.argmin(step * weight[holding] + counts[holding])]), count)
    usable = np.flatnonzero(counts)
    if count > counts[usable].sum():
        return None
    return cluster.first_of(usable[np.argsort(step * weight[usable] - counts[usable], kind="stable")], count)
