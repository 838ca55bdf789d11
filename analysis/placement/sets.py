"""Sets of GPUs for a synchronous job, whose time is that of its slowest GPU: the best, a random one, and what is saved.

Packed sets fill whole nodes before they open another, as schedulers do; spread sets take GPUs wherever they are.
A set over several nodes pays the locality penalty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints
from .posterior import Mask
from .scores import SEED, Scores, WorkloadScores, numbered

Draws = npt.NDArray[np.float32]

DRAWS = 400
_ORDERS, _MANY = 400, 100_000
"""Random orders of nodes that stand for all of them, where no formula does: in each draw, and for the mean draw."""
_CELLS, _MANY_CELLS, _AT_ONCE = 1 << 28, 1 << 25, 1 << 22


@dataclass(frozen=True)
class NodeLayout:
    """The GPUs that a job may have, by number, and how they stand in nodes."""

    node: Ints  # (gpus,) the number of each GPU's node; -1 for none
    locality: float = 1.0  # factor on the time of a job that spans nodes

    @classmethod
    def of(cls, nodes: Iterable[str | None], locality: float = 1.0) -> NodeLayout:
        """From the name of each GPU's node."""
        return cls(numbered(nodes), locality)

    def only(self, gpus: Mask | Ints) -> NodeLayout:
        """The same with some of the GPUs."""
        return NodeLayout(self.node[gpus], self.locality)

    def members(self) -> list[Ints]:
        """The GPUs of each node."""
        order = np.argsort(self.node, kind="stable")
        order = order[self.node[order] >= 0]
        edges = np.flatnonzero(np.diff(self.node[order])) + 1
        return [part for part in np.split(order, edges) if len(part)]

    def spans(self, chosen: Ints) -> bool:
        """Whether a set lies on several nodes; GPUs without a node are taken as apart."""
        nodes = self.node[chosen]
        return len(chosen) > 1 and (bool((nodes < 0).any()) or len(np.unique(nodes)) > 1)


# -- the best set ----------------------------------------------------------------------------------------------------


def best_packed(score: Floats, layout: NodeLayout, gpus: int) -> Ints | None:
    """The packed set of `gpus` whose slowest member is fastest, on as few nodes as can be; None where none fits."""
    placed = np.flatnonzero(layout.node >= 0)
    reach = np.cumsum(np.sort(np.bincount(layout.node[placed]))[::-1])
    if len(placed) < gpus:
        return None
    nodes = int(np.searchsorted(reach, gpus)) + 1
    order = placed[np.lexsort((placed, score[placed]))]
    fastest_first, node = score[order], layout.node[order]

    def room(fastest: int) -> Ints:
        """(nodes,) how many of so many fastest GPUs each node has."""
        return np.bincount(node[:fastest], minlength=len(reach))

    limits = np.unique(np.searchsorted(fastest_first, fastest_first, side="right")).tolist()
    fast = limits[bisect_left(limits, gpus, key=lambda fastest: np.sort(room(fastest))[::-1][:nodes].sum())]
    room_there = room(fast)
    # Of nodes with equal room the faster ones; whichever GPU is not needed is the slowest of the last.
    mean = np.bincount(node[:fast], fastest_first[:fast], minlength=len(reach)) / np.maximum(room_there, 1)
    rank = np.empty(len(reach), dtype=np.intp)
    rank[np.lexsort((mean, -room_there))] = np.arange(len(reach))
    chosen = np.flatnonzero(rank[node[:fast]] < nodes)
    return order[chosen[np.argsort(rank[node[chosen]], kind="stable")]][:gpus]


def best_spread(score: Floats, gpus: int) -> Ints:
    """The `gpus` fastest GPUs, wherever they are."""
    return np.argsort(score, kind="stable")[:gpus]


def time_of(draws: Draws, layout: NodeLayout, chosen: Ints) -> Floats:
    """(draws,) the slowdown of a set: its slowest GPU, with the locality penalty."""
    penalty = layout.locality if layout.spans(chosen) else 1.0
    slowest: Floats = draws[:, chosen].max(axis=1).astype(np.float64) * penalty
    return slowest


# -- a random set ----------------------------------------------------------------------------------------------------


def chances(size: int, gpus: int) -> Floats:
    """Of `size` GPUs in ascending order, how likely each is the slowest of a random set of `gpus`: (size,)."""
    rank = np.arange(size, gpus, -1, dtype=np.float64)
    falling = np.cumprod(np.concatenate(([gpus / size], (rank - gpus) / (rank - 1.0))))
    return np.concatenate((np.zeros(gpus - 1), falling[::-1]))


def random_spread(draws: Draws, layout: NodeLayout, gpus: int) -> Floats:
    """(draws,) the mean slowdown of a random set of `gpus`: exact, by order statistics."""
    if gpus == 1:
        return np.asarray(draws.mean(axis=1, dtype=np.float64))
    size = draws.shape[1]
    slowest: Floats = np.sort(draws, axis=1) @ chances(size, gpus) * layout.locality
    if layout.locality == 1.0:
        return slowest
    for part in layout.members():  # the sets that happen to lie on one node pay no penalty
        if len(part) >= gpus:
            on_node = float(np.prod((len(part) - np.arange(gpus)) / (size - np.arange(gpus))))
            slowest_there = np.sort(draws[:, part], axis=1) @ chances(len(part), gpus)
            slowest -= (layout.locality - 1.0) * on_node * slowest_there
    return slowest


def random_packed(draws: Draws, layout: NodeLayout, gpus: int, rng: np.random.Generator) -> Floats | None:
    """(draws,) the mean slowdown of `gpus` on random nodes, each filled before the next; None where they do not fit.

    Exact where the set fits a node (any of those that it fits) or fills nodes of one size; else over random orders
    of the nodes.
    """
    members = layout.members()
    sizes = np.array([len(part) for part in members])
    if sizes.sum() < gpus:
        return None
    if sizes.max() >= gpus:
        total = np.zeros(len(draws))
        for size in np.unique(sizes[sizes >= gpus]):
            inside = draws[:, np.array([part for part in members if len(part) == size])]
            ascending = np.sort(inside, axis=2) if gpus > 1 else inside
            total += (ascending @ chances(int(size), gpus)).sum(axis=1)
        return total / int((sizes >= gpus).sum())
    if sizes.min() == sizes.max() and gpus % int(sizes[0]) == 0:
        of_nodes = np.sort(draws[:, np.array(members)].max(axis=2), axis=1)
        by_nodes: Floats = of_nodes @ chances(len(members), gpus // int(sizes[0])) * layout.locality
        return by_nodes
    # A slow GPU of many is in few orders, so many orders tell what the mean draw takes. As far as a draw goes with it
    # from order to order, its own mean is moved by what the few orders are off (control variates).
    usual = draws.mean(axis=0, dtype=np.float64)
    orders = max(50, min(_ORDERS, _CELLS // (len(draws) * gpus)))
    few = _packed_sets(members, gpus, orders, rng)
    of_few = usual[few].max(axis=1)
    total, along = np.zeros(len(draws)), np.zeros(len(draws))
    for chosen, apart in zip(few, of_few - of_few.mean(), strict=True):
        slowest = draws[:, chosen].max(axis=1)
        total += slowest
        along += apart * slowest
    more_orders = max(orders, min(_MANY, _MANY_CELLS // len(usual)))
    at_once = max(1, _AT_ONCE // len(usual))
    of_many = 0.0
    for first in range(0, more_orders, at_once):
        count = min(at_once, more_orders - first)
        of_many += float(usual[_packed_sets(members, gpus, count, rng)].max(axis=1).sum()) / more_orders
    variance = float(of_few.var()) * orders
    off = (of_many - of_few.mean()) / variance if variance > 0 else 0.0
    return (total / orders + along * off) * layout.locality


def _packed_sets(members: list[Ints], gpus: int, count: int, rng: np.random.Generator) -> Ints:
    """(count, gpus) random packed sets: the nodes in random orders, the GPUs of each node too."""
    sizes = np.array([len(part) for part in members])
    nodes = int(np.searchsorted(np.cumsum(np.sort(sizes)), gpus)) + 1  # enough, whichever they are
    order = rng.permuted(np.tile(np.arange(len(members)), (count, 1)), axis=1)[:, :nodes]
    table = np.full((len(members), int(sizes.max())), -1)
    table[np.arange(table.shape[1]) < sizes[:, None]] = np.concatenate(members)
    there = table[order]
    key = np.where(there >= 0, np.arange(nodes)[:, None] + rng.random(there.shape), np.inf).reshape(count, -1)
    first = np.argpartition(key, gpus - 1, axis=1)[:, :gpus]
    packed: Ints = np.take_along_axis(there.reshape(count, -1), first, axis=1)
    return packed


# -- what a choice saves ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SynchronousJob:
    """A job: its GPUs, the factor on its time where it spans nodes, and draws behind the intervals."""

    gpus: int = 1
    locality_penalty: float = 1.0
    replicates: int = DRAWS
    seed: int = SEED


@dataclass(frozen=True)
class PlacedSet:
    """GPUs for a job and the slowdown to be expected of them: mean and 90 % interval, locality penalty included."""

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    gpu_names: tuple[str, ...]  # `node/slot` where that is known, else as in `gpus`
    slowdown: float
    lower: float
    upper: float
    spans_nodes: bool


def ends(drawn: Floats) -> tuple[float, float]:
    """The 90 % interval of what was drawn."""
    low, high = np.quantile(drawn, (0.05, 0.95))
    return float(low), float(high)


@dataclass(frozen=True)
class Gain:
    """The share of a job's mean time that a choice saves against a baseline: median and 90 % interval.

    `choice`: "packed" or "spread", the best such set, or "exclude", a random packed set off the excluded nodes.
    `against`: "random", a random set of the same kind, or "drained", one off every hard node.
    """

    choice: str
    against: str
    median: float = 0.0
    lower: float = 0.0
    upper: float = 0.0
    measurable: bool = False  # whether the interval lies above 0

    @classmethod
    def of(cls, choice: str, against: str, took: Floats, baseline: Floats) -> Self:
        """From the times of the choice and of the baseline, (draws,)."""
        saved = 1.0 - took / baseline
        low, high = ends(saved)
        return cls(choice, against, float(np.median(saved)), low, high, measurable=low > 0.0)


@dataclass(frozen=True)
class BestSets:
    """The best sets of a job and what they and the exclusion gain."""

    packed: PlacedSet | None
    spread: PlacedSet | None
    break_even: float | None
    """The locality penalty above which the packed set is the faster one; None where both or neither span nodes."""
    gains: tuple[Gain, ...]


def best_sets(
    scores: Scores, scored: WorkloadScores, usable: Ints, *, job: SynchronousJob, drained: Mask, excluded: Mask
) -> BestSets:
    """The best sets for a job among the GPUs `usable`, and what keeping off those `excluded` is worth.

    `drained`, `excluded`: (all GPUs of the scores,). The scores are drawn as they may be, all together, `replicates`
    times; the sets are those of the beliefs, off the hard nodes where these leave room, and what a set and a random
    one take is computed in each draw.
    """
    if not scored.repeatable:
        # The GPUs cannot be distinguished: any choice is a random set.
        return BestSets(None, None, None, (Gain("packed", "drained"), Gain("packed", "random")))
    rng = np.random.default_rng(job.seed)
    layout = NodeLayout.of(scores.nodes, job.locality_penalty).only(usable)
    draws = np.array([scored.draw_sitting(rng)[usable] for _ in range(job.replicates)], dtype=np.float32)
    drained, excluded, everywhere = drained[usable], excluded[usable], np.zeros(len(usable), dtype=np.bool_)

    def of_random(kind: str, without: Mask) -> Floats | None:
        if (~without).sum() < job.gpus:
            return None
        if kind == "packed":
            return random_packed(draws[:, ~without], layout.only(~without), job.gpus, rng)
        return random_spread(draws[:, ~without], layout.only(~without), job.gpus)

    placed: dict[str, PlacedSet] = {}
    at_random: dict[str, Floats | None] = {}
    compared: list[tuple[str, str, Floats | None, Floats | None]] = []
    for kind in ("packed", "spread"):
        chosen = _best(kind, scored.belief[usable], layout, job.gpus, drained)
        if chosen is None:
            continue
        took = time_of(draws, layout, chosen)
        placed[kind] = _placed(scores, usable[np.sort(chosen)], took, spans_nodes=layout.spans(chosen))
        at_random[kind] = of_random(kind, everywhere)
        compared.append((kind, "drained", took, of_random(kind, drained) if drained.any() else at_random[kind]))
        compared.append((kind, "random", took, at_random[kind]))
    if excluded.any():
        kind = "packed" if "packed" in placed else "spread"
        compared.append(("exclude", "random", of_random(kind, excluded), at_random[kind]))
    gains = [
        Gain.of(choice, against, took, usual)
        for choice, against, took, usual in compared
        if took is not None and usual is not None
    ]
    packed, spread = placed.get("packed"), placed.get("spread")
    break_even = None
    if packed is not None and spread is not None and not packed.spans_nodes and spread.spans_nodes:
        break_even = packed.slowdown / (spread.slowdown / job.locality_penalty)
    return BestSets(packed, spread, break_even, tuple(gains))


def _best(kind: str, belief: Floats, layout: NodeLayout, gpus: int, drained: Mask) -> Ints | None:
    """The best set off the hard nodes, and on any where these do not hold one.

    A hard node has fast GPUs too, but a scheduler gives nodes, and may give the slow one of them.
    """
    for mask in (~drained, np.ones_like(drained)):
        within = np.flatnonzero(mask)
        packed = kind == "packed"
        chosen = best_packed(belief[mask], layout.only(mask), gpus) if packed else best_spread(belief[mask], gpus)
        if chosen is not None and len(chosen) == gpus:
            return within[chosen]
    return None


def _placed(scores: Scores, gpus: Ints, took: Floats, *, spans_nodes: bool) -> PlacedSet:
    return PlacedSet(
        tuple(sorted({node for gpu in gpus if (node := scores.nodes[gpu]) is not None})),
        tuple(scores.gpus[gpu] for gpu in gpus),
        tuple(scores.name(int(gpu)) for gpu in gpus),
        float(took.mean()),
        *ends(took),
        spans_nodes,
    )
