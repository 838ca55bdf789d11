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
_ATOMS = 48


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
    seen = turns.ratios(rows, np.arange(len(x)), own)
    total, most = float(seen.sum(dtype=np.float64)), float(seen.max())
    dealing = _Dealing(block)
    largest: list[float] = []
    sums: list[float] = []
    wanted = _PERMUTATIONS if len(x) <= _MANY else _LARGE
    for turn in range(wanted):
        ratio = turns.ratios(rows, dealing.deal(rng), own)
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


def _rows(x: Floats) -> Singles:
    """The log density of each run at each of some atoms, under a scale that does not depend on whose run it is."""
    middle = float(np.median(x))
    scale = max(1.4826 * float(np.median(np.abs(x - middle))), LEAST_SCALE)
    inside = np.quantile(x, np.linspace(0.0, 1.0, _ATOMS // 2))
    atoms = np.unique(np.concatenate((inside, np.linspace(float(x.min()), float(x.max()), _ATOMS // 2), [middle])))
    noise = Noise.of_core(scale, float(x.max() - x.min()))
    return noise.log_density(x[:, None] - atoms[None, :])


class _Turns:
    """The first runs of all GPUs, then the second ones of those that have one, and so on."""

    def __init__(self, starts: Ints) -> None:
        size = np.diff(starts)
        self._gpus = np.argsort(-size, kind="stable")
        sizes, first = size[self._gpus], starts[:-1][self._gpus]
        self._places = [first[: int(np.searchsorted(-sizes, -turn))] + turn for turn in range(int(sizes[0]))]

    def ratios(self, rows: Singles, dealt: Ints, own: int) -> Singles:
        """(gpus,) the log likelihood of the best atom of each over that of atom `own`, runs dealt as `dealt` says."""
        total = rows[dealt[self._places[0]]]
        for places in self._places[1:]:
            total[: len(places)] += rows[dealt[places]]
        found = np.empty(len(total), dtype=np.float32)
        found[self._gpus] = total.max(axis=1) - total[:, own]
        return found


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
        found = np.empty(self._count, dtype=np.intp)
        for members in self._classes:
            dealt = members[rng.permutation(len(members))]
            found[members] = rng.permuted(dealt, axis=1) if members.shape[1] > 1 else dealt
        return found
