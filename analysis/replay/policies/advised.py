"""Policies that follow `whorl advise` as Slurm follows it: whole nodes are excluded, or have one of three weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..job import Job
from .packed import pack
from .row import Policy

if TYPE_CHECKING:
    from ..view import View


def barred(view: View, job: Job) -> NDArray[np.bool_] | None:
    """(nodes,) the nodes that `--exclude` keeps the job off; None if it may have all of them."""
    if view.advised is None or not job.workload:
        return None
    nodes = view.advised.barred(job.workload, job.gpus)
    return nodes if nodes.any() else None


def pack_off_the_excluded(view: View, job: Job) -> Sequence[int] | None:
    """Packed among the nodes that are not excluded for the job's workload and size."""
    nodes = barred(view, job)
    return (
        pack(view, job)
        if nodes is None
        else _pack_by_weight(view, job.gpus, np.where(nodes, np.int32(-1), np.int32(0)))
    )


def pack_by_weight(view: View, job: Job) -> Sequence[int] | None:
    """Packed among the nodes of the least weight that hold the job; a job that no node holds fills the least first."""
    if view.advised is None:
        return pack(view, job)
    return _pack_by_weight(view, job.gpus, view.advised.weights)


def _pack_by_weight(view: View, wanted: int, weight: NDArray[np.int32]) -> Sequence[int] | None:
    """As `packed.pack`, weight by weight. `weight`: (nodes,), below 0 for a node that is not to be used."""
    cluster = view.cluster
    free = np.add.reduceat(view.free, view.first, dtype=np.int32)
    free[weight < 0] = 0
    step = cluster.largest + 1  # one more of weight outdoes any number of free GPUs
    holding = np.flatnonzero(free >= wanted)
    if len(holding):
        best = holding[np.argmin(step * weight[holding] + free[holding])]
        return cluster.first_free(int(best), wanted)
    some = np.flatnonzero(free)
    if wanted > free[some].sum():
        return None
    order = some[np.argsort(step * weight[some] - free[some], kind="stable")][:wanted]
    found: list[int] = []
    for node in order.tolist():
        found += cluster.first_free(node, min(int(free[node]), wanted - len(found)))
        if len(found) == wanted:
            break
    return found


POLICIES = (
    Policy(
        "advice-exclude",
        "packed, off the nodes that `whorl advise` excludes for the job's workload and size",
        place=pack_off_the_excluded,
        bars=barred,
    ),
    Policy(
        "advice-weights",
        "packed, on nodes that `whorl advise` calls usual before soft ones, and on these before hard ones",
        place=pack_by_weight,
    ),
)
