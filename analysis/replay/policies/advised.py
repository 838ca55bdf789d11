"""Placements that follow `whorl advise` as Slurm follows it: whole nodes are excluded, or have one of three weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..beliefs import Request
from ..cluster import Places
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
        return pack(self.cluster, request.gpus, None if nodes is None else -nodes.astype(np.int32))


class AdviceWeights(Queued):
    """Packed among the nodes of the least weight that hold the job; a job that no node holds fills the least first."""

    name = "advice-weights"
    summary = "packed, on nodes that `whorl advise` calls usual before soft ones, and on these before hard ones"

    def place(self, request: Request) -> Places | None:
        advised = self.view.beliefs.advised
        return pack(self.cluster, request.gpus, None if advised is None else advised.weights)
