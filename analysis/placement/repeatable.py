"""A permutation test of whether differences between GPUs repeat: runs are dealt to the GPUs at random.

If no GPU differs, a run might as well have been another GPU's, whatever its distribution. Two statistics, so that
neither many small differences nor one large one is missed: the sum over the GPUs of the log likelihood ratio of a
time of the GPU's own against the fleet's, and the largest of them. Runs of one job move together, since they share
what the job met.

The judge asks by the ICC whether differences are large enough to name a GPU; placement asks whether there are any: a
small difference that repeats is worth choosing by.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints, bounds
from .noise import LEAST_SCALE, Noise, Singles

LEVEL = 0.05
"""How often a fleet without any difference is said to have one."""
STANDING_OUT = 0.05
"""How often chance makes some GPU of a fleet stand out.

Two slow runs out of 64 are those of one GPU once in 63 deals: at 1 % two runs of each of 32 GPUs would never tell."""

_PERMUTATIONS = 199
_LARGE = 99
"""With more runs than `_MANY`."""
_MANY = 50_000
_SUMS = 12
_CLEAR = 30.0
"""Standard deviations of that many sums above them, from which no further deal of so many runs can reach a sum."""
_ROUNDING = 1e-3
_ATOMS = 48
_GPUS = 512
"""Taken at a time: they stay in the cache of a core."""


@dataclass(frozen=True)
class Test:
    """The answer of the permutation test over the GPUs with two runs or more."""

    p: float
    standing_out: npt.NDArray[np.bool_]
    """(gpus,) whose own ratio passes what chance gives the largest of all GPUs, but once in twenty times."""

    @property
    def repeatable(self) -> bool:
        return self.p <= LEVEL


def permutation_test(x: Floats, starts: Ints, block: Ints, rng: np.random.Generator) -> Test | None:
    """The test over log times `x` by GPU; `block`: the job of each run, -1 for a run of its own.

    None where fewer than two GPUs have two runs.
    """
    size = np.diff(starts)
    counted = size > 1
    if counted.sum() < 2:
        return None
    kept = np.repeat(counted, size)
    gpus = np.flatnonzero(counted)
    x, block = x[kept], block[kept]
    starts = bounds(np.repeat(np.arange(len(gpus)), size[gpus]), len(gpus))
    rows = _rows(x)
    own = int(np.argmax(rows.sum(axis=0, dtype=np.float64)))
    turns = _Turns(starts)
    best = rows.max(axis=1) - rows[:, own]
    seen = turns.ratios(rows, np.arange(len(x)), own)
    total, most = float(seen.sum(dtype=np.float64)), float(seen.max())
    dealing = _Dealing(block)
    largest: list[float] = []
    sums: list[float] = []
    wanted = _PERMUTATIONS if len(x) <= _MANY else _LARGE
    for turn in range(wanted):
        dealt = dealing.deal(rng)
        if len(x) > _MANY and turn >= _SUMS and _clear(total, sums[:_SUMS]):
            largest.append(turns.largest(rows, dealt, own, best))
            sums.append(-np.inf)
        else:
            ratio = turns.ratios(rows, dealt, own)
            largest.append(float(ratio.max()))
            sums.append(float(ratio.sum(dtype=np.float64)))
        # Far from the level both ways, more permutations would change nothing.
        if turn == 39 and min(_p(most, largest), _p(total, sums)) > 0.25:
            break
    p = min(1.0, 2.0 * min(_p(most, largest), _p(total, sums)))
    limit = float(np.quantile(largest, 1.0 - STANDING_OUT))
    standing_out = np.zeros(len(size), dtype=np.bool_)
    standing_out[gpus] = seen > limit
    return Test(p, standing_out)


def _p(seen: float, permuted: list[float]) -> float:
    return (1 + sum(one >= seen for one in permuted)) / (1 + len(permuted))


def _clear(total: float, sums: list[float]) -> bool:
    """Whether a total is so far above the first sums that it need not be compared with further ones."""
    return total > float(np.mean(sums)) + _CLEAR * float(np.std(sums, ddof=1))


def _rows(x: Floats) -> Singles:
    """The log density of each run at each of some atoms, under a scale that does not depend on whose run it is."""
    middle = float(np.median(x))
    scale = max(1.4826 * float(np.median(np.abs(x - middle))), LEAST_SCALE)
    inside = np.quantile(x, np.linspace(0.0, 1.0, _ATOMS // 2))
    atoms = np.unique(np.concatenate((inside, np.linspace(float(x.min()), float(x.max()), _ATOMS // 2), [middle])))
    noise = Noise.of_core(scale, float(x.max() - x.min()))
    found = np.empty((len(x), len(atoms)), dtype=np.float32)
    for first in range(0, len(x), _GPUS):
        found[first : first + _GPUS] = noise.log_density(x[first : first + _GPUS, None] - atoms[None, :])
    return found


class _Turns:
    """The first runs of all GPUs, then the second ones of those that have one, and so on."""

    def __init__(self, starts: Ints) -> None:
        size = np.diff(starts)
        self._gpus = np.argsort(-size, kind="stable")
        sizes, first = size[self._gpus], starts[:-1][self._gpus]
        self._places = [first[: int(np.searchsorted(-sizes, -turn))] + turn for turn in range(int(sizes[0]))]

    def ratios(self, rows: Singles, dealt: Ints, own: int) -> Singles:
        """(gpus,) the log likelihood of the best atom of each over that of atom `own`, runs dealt as `dealt` says."""
        found = np.empty(len(self._gpus), dtype=np.float32)
        for first in range(0, len(found), _GPUS):
            some = slice(first, first + _GPUS)
            found[self._gpus[some]] = self._ratios(rows, dealt, own, [places[some] for places in self._places])
        return found

    def largest(self, rows: Singles, dealt: Ints, own: int, best: Singles) -> float:
        """The largest of `ratios`. `best`: (runs,) the log likelihood of each run's best atom over that of `own`.

        The runs of a GPU share one atom, so its ratio is at most the sum of theirs: few GPUs need a closer look.
        """
        most = best[dealt[self._places[0]]]
        for places in self._places[1:]:
            most[: len(places)] += best[dealt[places]]
        found = -np.inf
        left = np.arange(len(most))
        count = _GPUS // 4
        while len(left):
            if count < len(left):
                order = np.argpartition(-most[left], count)
                some, left = np.sort(left[order[:count]]), left[order[count:]]
            else:
                some, left = left, left[:0]
            chosen = [places[some[some < len(places)]] for places in self._places]
            found = max(found, float(self._ratios(rows, dealt, own, chosen).max()))
            left = np.sort(left[most[left] > found - _ROUNDING])
            count *= 2
        return found

    @staticmethod
    def _ratios(rows: Singles, dealt: Ints, own: int, chosen: list[Ints]) -> Singles:
        """`ratios` of some GPUs, those with most runs first; `chosen`: the places of their first runs, and so on."""
        total = rows.take(dealt[chosen[0]], axis=0)
        for places in chosen[1:]:
            if not len(places):
                break
            total[: len(places)] += rows.take(dealt[places], axis=0)
        ratios: Singles = total.max(axis=1) - total[:, own]
        return ratios


class _Dealing:
    """Deals the runs to the GPUs at random: exchanges jobs with equal numbers of runs, and the runs inside a job."""

    def __init__(self, block: Ints) -> None:
        single = np.flatnonzero(block < 0)
        self._classes: list[Ints] = [single[:, None]] if len(single) else []
        rows = np.flatnonzero(block >= 0)
        rows = rows[np.argsort(block[rows], kind="stable")]
        edges = np.flatnonzero(np.diff(block[rows], prepend=-1, append=-1))
        by_size: dict[int, list[Ints]] = {}
        for first, last in pairwise(edges):
            by_size.setdefault(int(last - first), []).append(rows[first:last])
        self._classes += [np.array(members) for _, members in sorted(by_size.items())]
        self._count = len(block)

    def deal(self, rng: np.random.Generator) -> Ints:
        """For each place, the run that is put there."""
        if len(self._classes) == 1 and self._classes[0].shape == (self._count, 1):
            return rng.permutation(self._count)  # no jobs: every run by itself
        found = np.empty(self._count, dtype=np.intp)
        for members in self._classes:
            dealt = members[rng.permutation(len(members))]
            found[members] = rng.permuted(dealt, axis=1) if members.shape[1] > 1 else dealt
        return found
