"""Placements: packed, by scores, at random, after the advice of whorl, and with clocks that match the slowest GPU.

`PmFirst` and `Pal` go by scores (SC'24); their sticky forms are for a scheduler that does not move running jobs.
`AdviceExclude` and `AdviceWeights` follow `whorl advise` as Slurm follows it: whole nodes are excluded, or have one of
three weights.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..fleet import Cluster, Floats, Ints, Places
from ..world import Beliefs, Request, View
from .policy import Decision
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


class Drawn(Queued):
    """Free GPUs drawn without putting back, each set being as likely as any other."""

    name = "random"
    summary = "any free GPUs; jobs keep them"
    aliases: ClassVar[tuple[str, ...]] = ("random-sticky",)
    redraws = True
    blind = True

    def place(self, request: Request) -> Sequence[int]:
        return self.view.random.sample(np.flatnonzero(self.cluster.free).tolist(), request.gpus)


class DrawnAnew(Drawn):
    """`Drawn`, in every round."""

    name = "random-nonsticky"
    summary = "any free GPUs; all jobs are placed again in every round"
    aliases = ()
    sticky = False
    by_rounds = True


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


LOWEST = 0.5
"""Of the default clock. Voltage is flat below 0.45 to 0.6 of it (`simulation/models.py`): less saves little there."""


def matched(beliefs: Beliefs, request: Request, gpus: Sequence[int]) -> tuple[float, ...]:
    """(gpus,) the clock of each, relative to the default, at which all are believed to be as fast as the slowest.

    () if none can go slower: believed scores are equal, or the job has stages, in which GPUs wait for other reasons.
    """
    score = beliefs.rates.score(request.workload)[list(gpus)]
    behind = score / score.max()
    if request.stages or behind.min() == 1:
        return ()
    gain = beliefs.rates.clock_gain.get(request.workload, 1.0)
    clocks = behind ** (1 / gain) if gain > 0 else np.where(behind < 1, 0.0, 1.0)
    return tuple(np.maximum(clocks, LOWEST).tolist())


class Clocks(Packed):
    """Packed, first come first served; jobs keep their GPUs, and fast GPUs are slowed to the slowest of their job.

    All GPUs of a synchronous job wait in each step for the slowest one. If a GPU of score s works as fast as one of the
    largest score m at the clock x with x ** gain = s / m, the step takes as long as before and the GPU draws less. The
    gain is that of the believed rates: 1 for work that is bound by the clock, near 0 for work that is bound by memory;
    1 where it is not known, which is safe: a GPU whose work depends less on the clock is then faster than it needs.

    What a lower clock saves is the world's to say (`Power.clock_exponent`, 2 by default: what a GPU draws above idle
    goes with the square of the clock). That is cautious: in the published sweeps of Zeus (NSDI'23) over power limits,
    the power of a whole board goes with the speed to the power of 3.1 on a V100 (median of 51 sweeps within 15 % of the
    highest speed; half of them between 2.6 and 3.6), and of 3.2 on an RTX 6000 (41 sweeps; 2.5 to 3.7).
    """

    name = "clocks"
    summary = "packed; the fast GPUs of a job are clocked down to its slowest, which saves energy and no time"
    aliases = ()
    blind = False
    whole = True

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        changes = {
            number: allocation
            and replace(allocation, clocks=matched(view.beliefs, view.requests[number], allocation.gpus))
            for number, allocation in decision.changes.items()
        }
        return replace(decision, changes=changes)
