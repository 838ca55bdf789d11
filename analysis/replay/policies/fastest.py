"""Placements that go by scores: PM-First and PAL (SC'24), and both for a scheduler that does not move running jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..beliefs import Request, View
from ..fleet import Floats
from .queue import Queued


class PmFirstSticky(Queued):
    """The fastest free GPUs anywhere; of alike ones those whose node has nearest to as many as the job wants."""

    name = "pm-first-sticky"
    summary = "the fastest free GPUs; jobs keep their GPUs"

    def begin(self, view: View) -> None:
        super().begin(view)
        self._sf: dict[str, Floats] = {}
        order = view.options.class_order
        if order is None:
            scores = view.beliefs.rates.scores
            spread = {name: float(np.std(values) / np.mean(values)) for name, values in scores.items()}
            order = tuple(sorted((name for name in spread if spread[name] > 0), key=lambda name: (-spread[name], name)))
        self._class_order = {name: rank for rank, name in enumerate(order)}

    def place(self, request: Request) -> Sequence[int]:
        sf = self.sf(request.workload)
        return _fastest(self.view.fleet.node, np.flatnonzero(self.cluster.free), sf, request.gpus)

    def arrange(self, numbers: Sequence[int]) -> Sequence[int]:
        """The jobs of the most sensitive class first, in the order of the queue within a class.

        Last, together, those whose GPUs do not differ.
        """
        requests, ranks = self.view.requests, self._class_order
        return sorted(numbers, key=lambda number: ranks.get(requests[number].workload, len(ranks)))

    def sf(self, workload: str) -> Floats:
        """(gpus,) the believed scores of a class in levels (`Options.bins`), so that alike GPUs have one score."""
        if workload not in self._sf:
            scores = self.view.beliefs.rates.score(workload)
            self._sf[workload] = self.view.options.bins(scores) if workload else scores
        return self._sf[workload]


class PmFirst(PmFirstSticky):
    """`PmFirstSticky`, in every round."""

    name = "pm-first"
    summary = "the fastest free GPUs; all jobs are placed again in every round"
    sticky = False
    by_rounds = True


class PalSticky(PmFirstSticky):
    """The GPUs with the least slowdown, being the slowest GPU's score times the locality penalty if they span nodes.

    That is PAL's walk through its list of (score, within a node or across) by ascending slowdown, whose end can be
    told at once: the best that one node offers is the least of the nodes' n-th fastest free GPUs, the best across is
    the n-th fastest of all. Jobs of one GPU, and jobs wider than a node, are placed as by PM-First.
    """

    name = "pal-sticky"
    summary = "where score times locality penalty is lowest; jobs keep their GPUs"

    def place(self, request: Request) -> Sequence[int]:
        count, cluster = request.gpus, self.cluster
        if count == 1 or count > cluster.largest:
            return super().place(request)
        sf, node_of, locality = self.sf(request.workload), self.view.fleet.node, self.view.beliefs.rates.locality
        free = np.flatnonzero(cluster.free)
        score, node = sf[free], node_of[free]
        across = float(np.partition(score, count - 1)[count - 1])
        within = _best_within(score, node, count)
        # An equal slowdown goes to the entry of the lower score, of one score to the one within a node.
        if within * 1.0 < across * locality or (within == across and locality == 1.0):
            fast = free[score <= within]
            best = int(np.argmax(np.bincount(node_of[fast])))
            chosen: list[int] = fast[node_of[fast] == best][:count].tolist()
            return chosen
        return _fastest(node_of, free[score <= across], sf, count)


class Pal(PalSticky):
    """`PalSticky`, in every round."""

    name = "pal"
    summary = "where score times locality penalty is lowest; all jobs are placed again in every round"
    sticky = False
    by_rounds = True


def _best_within(score: Floats, node: NDArray[np.int32], count: int) -> float:
    """The least, over nodes, of the score of the node's `count`-th fastest free GPU; infinite if no node has it."""
    order = np.lexsort((score, node))
    # In this order GPU i and GPU i + count - 1 of one node: the latter is at least the node's count-th fastest.
    last = order[count - 1 :]
    same = node[last] == node[order[: len(last)]]
    return float(score[last[same]].min()) if same.any() else np.inf


def _fastest(node_of: NDArray[np.int32], candidates: NDArray[np.intp], sf: Floats, count: int) -> list[int]:
    """The first by (score, distance between the alike candidates of its node and `count`), in the order of GPUs."""
    score, node = sf[candidates], node_of[candidates]
    if count < len(candidates):
        # Only the GPUs that are no slower than the count-th can be chosen.
        enough = np.flatnonzero(score <= np.partition(score, count - 1)[count - 1])
        candidates, score, node = candidates[enough], score[enough], node[enough]
    order = np.lexsort((score, node))
    ordered_score, ordered_node = score[order], node[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered_score[1:] != ordered_score[:-1]) | (ordered_node[1:] != ordered_node[:-1])
    group = np.cumsum(new) - 1
    similar = np.empty(len(order), dtype=np.intp)
    similar[order] = np.bincount(group)[group]
    chosen: list[int] = candidates[np.lexsort((np.abs(similar - count), score))[:count]].tolist()
    return chosen
