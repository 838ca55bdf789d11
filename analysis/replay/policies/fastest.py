"""Policies that go by scores: PM-First and PAL (SC'24), and both for a scheduler that does not move running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..fleet import Floats
from ..job import Job
from .row import Policy

if TYPE_CHECKING:
    from ..view import View


def pm_first(view: View, job: Job) -> Sequence[int] | None:
    """The fastest free GPUs, wherever they are; of alike ones those whose node has nearest to as many as wanted."""
    if job.gpus > view.free_count:
        return None
    return _fastest(view, np.flatnonzero(view.free), view.sf(job.workload), job.gpus)


def pal(view: View, job: Job) -> Sequence[int] | None:
    """The GPUs with the least slowdown, being the slowest GPU's score times the locality penalty if they span nodes.

    That is PAL's walk through its list of (score, within a node or across) by ascending slowdown, whose end can be
    told at once: the best that one node offers is the least of the nodes' n-th fastest free GPUs, the best across is
    the n-th fastest of all. Jobs of one GPU, and jobs wider than a node, are placed as by PM-First.
    """
    wanted = job.gpus
    if wanted > view.free_count:
        return None
    sf = view.sf(job.workload)
    free = np.flatnonzero(view.free)
    if wanted == 1 or wanted > view.cluster.largest:
        return _fastest(view, free, sf, wanted)
    score, node = sf[free], view.node[free]
    across = float(np.partition(score, wanted - 1)[wanted - 1])
    within = _best_within(score, node, wanted)
    # An equal slowdown goes to the entry of the lower score, of one score to the one within a node.
    if within * 1.0 < across * view.locality or (within == across and view.locality == 1.0):
        fast = free[score <= within]
        counts = np.bincount(view.node[fast])
        best = int(np.argmax(counts))
        chosen: list[int] = fast[view.node[fast] == best][:wanted].tolist()
        return chosen
    return _fastest(view, free[score <= across], sf, wanted)


def _best_within(score: Floats, node: NDArray[np.int32], wanted: int) -> float:
    """The least, over nodes, of the score of the node's `wanted`-th fastest free GPU; infinite if no node has it."""
    order = np.lexsort((score, node))
    # In this order GPU i and GPU i + wanted - 1 of one node: the latter is at least the node's wanted-th fastest.
    last = order[wanted - 1 :]
    same = node[last] == node[order[: len(last)]]
    return float(score[last[same]].min()) if same.any() else np.inf


def _fastest(view: View, candidates: NDArray[np.intp], sf: Floats, wanted: int) -> list[int]:
    """The first by (score, distance between the alike candidates of its node and `wanted`), in the order of GPUs."""
    score, node = sf[candidates], view.node[candidates]
    if wanted < len(candidates):
        # Only the GPUs that are no slower than the wanted-th can be chosen.
        enough = np.flatnonzero(score <= np.partition(score, wanted - 1)[wanted - 1])
        candidates, score, node = candidates[enough], score[enough], node[enough]
    order = np.lexsort((score, node))
    ordered_score, ordered_node = score[order], node[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered_score[1:] != ordered_score[:-1]) | (ordered_node[1:] != ordered_node[:-1])
    group = np.cumsum(new) - 1
    alike = np.empty(len(order), dtype=np.intp)
    alike[order] = np.bincount(group)[group]
    chosen: list[int] = candidates[np.lexsort((np.abs(alike - wanted), score))[:wanted]].tolist()
    return chosen


def by_class(view: View, jobs: Sequence[int]) -> Sequence[int]:
    """The jobs of the most sensitive class first, in the order of the queue within a class."""
    return sorted(jobs, key=lambda number: view.class_rank(view.job(number).workload))


POLICIES = (
    Policy(
        "pm-first",
        "the fastest free GPUs; all jobs are placed again in every round",
        place=pm_first,
        sticky=False,
        by_rounds=True,
        arrange=by_class,
    ),
    Policy(
        "pal",
        "where score times locality penalty is lowest; all jobs are placed again in every round",
        place=pal,
        sticky=False,
        by_rounds=True,
        arrange=by_class,
    ),
    Policy("pm-first-sticky", "the fastest free GPUs; jobs keep their GPUs", place=pm_first),
    Policy("pal-sticky", "where score times locality penalty is lowest; jobs keep their GPUs", place=pal),
)
