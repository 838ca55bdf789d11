"""The time that a choice of GPUs saves, against a random choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..statistics.ordering import Floats, Ints
from . import sets
from .scores import Scores
from .workload_scores import WorkloadScores

DRAWS = 400

_ENDS = (0.05, 0.95)


@dataclass(frozen=True)
class PlacedSet:
    """GPUs for a job and the slowdown to be expected of them: mean and 90 % interval, locality penalty included."""

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    gpu_names: tuple[str, ...]
    """`node/slot` where that is known, else as in `gpus`."""
    slowdown: float
    lower: float
    upper: float
    spans_nodes: bool


@dataclass(frozen=True)
class Gain:
    """The share of a job's mean time that a choice saves against a baseline: median and 90 % interval.

    `choice`: "packed" or "spread", the best such set, or "exclude", a random packed set off the excluded nodes.
    `against`: "random", a random set of the same kind, or "drained", one off every hard node.
    """

    choice: str
    against: str
    median: float
    lower: float
    upper: float
    measurable: bool
    """Whether the interval lies above 0."""


@dataclass(frozen=True)
class Worth:
    """The best sets of a job and what they and the exclusion gain."""

    packed: PlacedSet | None
    spread: PlacedSet | None
    break_even: float | None
    gains: tuple[Gain, ...]


def worth(
    scores: Scores,
    one: WorkloadScores,
    usable: Ints,
    gpus: int,
    locality: float,
    drained: sets.Mask,
    excluded: sets.Mask,
    replicates: int,
    rng: np.random.Generator,
) -> Worth:
    """The worth of the best sets of `gpus` among the GPUs `usable`, and of keeping off those `excluded`.

    `drained`, `excluded`: (all GPUs of the scores,). The scores are drawn as they may be, all together, `replicates`
    times; the sets are those of the beliefs, off the hard nodes where these leave room, and what a set and a random
    one take is computed in each draw.
    """
    if not one.repeatable:
        # The GPUs cannot be distinguished: any choice is a random set.
        against = ("drained", "random")
        return Worth(None, None, None, tuple(Gain("packed", name, 0.0, 0.0, 0.0, False) for name in against))
    numbers = {name: number for number, name in enumerate(sorted({node for node in scores.nodes if node is not None}))}
    node = np.array([-1 if place is None else numbers[place] for place in scores.nodes], dtype=np.intp)[usable]
    ground = sets.Ground(node, locality)
    draws = np.array([one.draw_sitting(rng)[usable] for _ in range(replicates)], dtype=np.float32)
    belief = one.belief[usable]
    left, kept = ~drained[usable], ~excluded[usable]
    gains: list[Gain] = []
    placed: dict[str, PlacedSet] = {}

    def of_random(kind: str, mask: sets.Mask) -> Floats | None:
        if mask.sum() < gpus:
            return None
        if kind == "packed":
            return sets.random_packed(draws[:, mask], ground.only(mask), gpus, rng)
        return sets.random_spread(draws[:, mask], ground.only(mask), gpus)

    everywhere = np.ones(len(usable), dtype=np.bool_)
    takes: dict[str, Floats | None] = {}
    for kind in ("packed", "spread"):
        chosen = _best(kind, belief, ground, gpus, left)
        if chosen is None:
            continue
        its = sets.time_of(draws, ground, chosen)
        low, high = np.quantile(its, _ENDS)
        names = sorted({scores.nodes[usable[gpu]] or "" for gpu in chosen} - {""})
        placed[kind] = PlacedSet(
            tuple(names),
            tuple(scores.gpus[usable[gpu]] for gpu in np.sort(chosen)),
            tuple(scores.name(usable[gpu]) for gpu in np.sort(chosen)),
            float(its.mean()),
            float(low),
            float(high),
            ground.spans(chosen),
        )
        takes[kind] = of_random(kind, everywhere)
        gains += gain(kind, "drained", its, takes[kind] if left.all() else of_random(kind, left))
        gains += gain(kind, "random", its, takes[kind])
    if excluded[usable].any():
        kind = "packed" if "packed" in placed else "spread"
        without = of_random(kind, kept)
        if without is not None:
            gains += gain("exclude", "random", without, takes[kind])
    return Worth(placed.get("packed"), placed.get("spread"), _break_even(placed, locality), tuple(gains))


def _best(kind: str, belief: Floats, ground: sets.Ground, gpus: int, left: sets.Mask) -> Ints | None:
    """The best set off the hard nodes, and on any where these do not hold one.

    A hard node has fast GPUs too, but a scheduler gives nodes, and may give the slow one of them.
    """
    for mask in (left, np.ones_like(left)):
        within = np.flatnonzero(mask)
        if len(within) >= gpus:
            found = (
                sets.best_packed(belief[mask], ground.only(mask), gpus)
                if kind == "packed"
                else sets.best_spread(belief[mask], gpus)
            )
            if found is not None:
                return within[found]
    return None


def gain(choice: str, against: str, its: Floats, others: Floats | None) -> list[Gain]:
    """What a choice saves: its times and those of the baseline, (draws,); nothing where there is no baseline."""
    if others is None:
        return []
    saved = 1.0 - its / others
    low, median, high = (float(one) for one in np.quantile(saved, (_ENDS[0], 0.5, _ENDS[1])))
    return [Gain(choice, against, median, low, high, measurable=low > 0.0)]


def _break_even(placed: dict[str, PlacedSet], locality: float) -> float | None:
    """The penalty at which the packed and the spread set take as long."""
    packed, spread = placed.get("packed"), placed.get("spread")
    if packed is None or spread is None or packed.spans_nodes or not spread.spans_nodes:
        return None
    return packed.slowdown / (spread.slowdown / locality)
