"""Sets of GPUs for a synchronous job, whose time is that of its slowest GPU: the best, and what a random one takes.

Packed sets fill whole nodes before they open another, as schedulers do; spread sets take GPUs wherever they are.
A set over several nodes pays the locality penalty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints

Mask = npt.NDArray[np.bool_]
Draws = npt.NDArray[np.float32]

_ORDERS, _MANY = 400, 100_000
"""Random orders of nodes that stand for all of them, where no formula does: in each draw, and for the mean draw."""
_CELLS, _MANY_CELLS, _AT_ONCE = 1 << 28, 1 << 25, 1 << 22


@dataclass(frozen=True)
class Ground:
    """The GPUs that a job may have, by number, and how they stand in nodes."""

    node: Ints
    """(gpus,) the number of each GPU's node; -1 for none."""
    locality: float = 1.0

    def only(self, kept: Mask) -> Ground:
        """The same with some of the GPUs."""
        return Ground(self.node[kept], self.locality)

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


def best_packed(score: Floats, ground: Ground, gpus: int) -> Ints | None:
    """The packed set of `gpus` whose slowest member is fastest, on as few nodes as can be; None where none fits."""
    members = ground.members()
    sizes = np.sort([len(part) for part in members])[::-1]
    reach = np.cumsum(sizes)
    if len(reach) == 0 or reach[-1] < gpus:
        return None
    count = int(np.searchsorted(reach, gpus)) + 1
    ordered = [part[np.argsort(score[part], kind="stable")] for part in members]
    limits = np.unique(score[np.concatenate(members)])
    sorted_scores = [score[part] for part in ordered]

    def capacities(limit: float) -> Ints:
        return np.array([np.searchsorted(one, limit, side="right") for one in sorted_scores], dtype=np.intp)

    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if int(np.sort(capacities(float(limits[middle])))[::-1][:count].sum()) >= gpus:
            high = middle
        else:
            low = middle + 1
    room = capacities(float(limits[low]))
    # Of nodes with equal room the faster ones; whichever GPU is not needed is the slowest of the last.
    mean = np.array(
        [float(one[:places].mean()) if places else np.inf for one, places in zip(sorted_scores, room, strict=True)]
    )
    chosen = np.lexsort((mean, -room))[:count]
    taken = [ordered[number][: room[number]] for number in chosen]
    spare = int(room[chosen].sum()) - gpus
    taken[-1] = taken[-1][: len(taken[-1]) - spare] if spare < len(taken[-1]) else taken[-1]
    found: Ints = np.concatenate(taken)
    return found[:gpus]


def best_spread(score: Floats, gpus: int) -> Ints:
    """The `gpus` fastest GPUs, wherever they are."""
    return np.argsort(score, kind="stable")[:gpus]


def time_of(draws: Draws, ground: Ground, chosen: Ints) -> Floats:
    """(draws,) the slowdown of a set: its slowest GPU, with the locality penalty."""
    penalty = ground.locality if ground.spans(chosen) else 1.0
    found: Floats = draws[:, chosen].max(axis=1).astype(np.float64) * penalty
    return found


def chances(size: int, gpus: int) -> Floats:
    """Of `size` GPUs in ascending order, how likely each is the slowest of a random set of `gpus`: (size,)."""
    rank = np.arange(size, gpus, -1, dtype=np.float64)
    falling = np.cumprod(np.concatenate(([gpus / size], (rank - gpus) / (rank - 1.0))))
    found = np.zeros(size)
    found[gpus - 1 :] = falling[::-1]
    return found


def random_spread(draws: Draws, ground: Ground, gpus: int) -> Floats:
    """(draws,) the mean slowdown of a random set of `gpus`: exact, by order statistics."""
    size = draws.shape[1]
    found: Floats = np.sort(draws, axis=1) @ chances(size, gpus) * ground.locality
    if ground.locality == 1.0:
        return found
    if gpus == 1:
        return found / ground.locality
    for part in ground.members():  # the sets that happen to lie on one node pay no penalty
        if len(part) >= gpus:
            whole = float(np.prod((len(part) - np.arange(gpus)) / (size - np.arange(gpus))))
            inside = np.sort(draws[:, part], axis=1) @ chances(len(part), gpus)
            found -= (ground.locality - 1.0) * whole * inside
    return found


def random_packed(draws: Draws, ground: Ground, gpus: int, rng: np.random.Generator) -> Floats | None:
    """(draws,) the mean slowdown of `gpus` on random nodes, each filled before the next; None where they do not fit.

    Exact where the set fits a node (any of those that it fits) or fills nodes of one size; else over random orders
    of the nodes.
    """
    members = ground.members()
    sizes = np.array([len(part) for part in members])
    if sizes.sum() < gpus:
        return None
    if sizes.max() >= gpus:
        total = np.zeros(len(draws))
        for size in np.unique(sizes[sizes >= gpus]):
            inside = np.array([part for part in members if len(part) == size])
            total += (np.sort(draws[:, inside], axis=2) @ chances(int(size), gpus)).sum(axis=1)
        return total / int((sizes >= gpus).sum())
    if sizes.min() == sizes.max() and gpus % int(sizes[0]) == 0:
        slowest = np.sort(draws[:, np.array(members)].max(axis=2), axis=1)
        found: Floats = slowest @ chances(len(members), gpus // int(sizes[0])) * ground.locality
        return found
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
    many = max(orders, min(_MANY, _MANY_CELLS // len(usual)))
    at_once = max(1, _AT_ONCE // len(usual))
    parts = [min(at_once, many - begun) for begun in range(0, many, at_once)]
    of_many = sum(float(usual[_packed_sets(members, gpus, n, rng)].max(axis=1).sum()) for n in parts) / many
    varies = float(of_few.var()) * orders
    off = (of_many - of_few.mean()) / varies if varies > 0 else 0.0
    return (total / orders + along * off) * ground.locality


def _packed_sets(members: list[Ints], gpus: int, number: int, rng: np.random.Generator) -> Ints:
    """(number, gpus) random packed sets: the nodes in random orders, the GPUs of each node too."""
    every = np.concatenate(members)
    node = np.repeat(np.arange(len(members)), [len(part) for part in members])
    place = rng.permuted(np.tile(np.arange(len(members)), (number, 1)), axis=1)
    first = np.argpartition(place[:, node] + rng.random((number, len(every))), gpus - 1, axis=1)[:, :gpus]
    found: Ints = every[first]
    return found
