"""When enough is measured: a sequential test of whether a GPU is slower than its peers by an effect that matters.

A. Wald's test (Annals of Mathematical Statistics 16, 1945) of two levels, 0 and `effect`, on the sittings of a GPU as
they come: the sum of the logarithms of their likelihood ratios ends the test at one of two bounds. A sitting counts at
most half of the way to a bound, so that no single one decides, and a sitting that went wrong is outvoted. By
simulation (tests/analysis/verdicts/test_sequential.py): with normal sittings, and with Student's t with 4 degrees of
freedom, at most `ALPHA` of the GPUs at level 0 are called slow, and at most `BETA` of those at `effect` called fine.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from ..runs.sittings import Floats, Ints

ALPHA, BETA = 0.001, 0.05
"""Chance that a GPU at the level of its peers is called slow, and that one slower by `effect` is called fine."""


class Decision(IntEnum):
    """What is decided of a GPU."""

    OPEN = 0
    FINE = 1
    SLOW = 2


def decide(owner: Ints, deviation: Floats, gpus: int, *, effect: float, sd: float) -> tuple[Ints, Ints]:
    """(gpus,) the decision about each GPU, and after how many sittings it fell (all of them, where it is open).

    `owner`: the number of the GPU of each sitting, in the order of time; `deviation`: ln(time / peers' time) of it;
    `effect`: such a deviation that matters; `sd`: standard deviation of a sitting; both above 0.
    """
    order = np.argsort(owner, kind="stable")
    owner, deviation = owner[order], deviation[order]
    slow, fine = math.log((1 - BETA) / ALPHA), math.log(BETA / (1 - ALPHA))
    step = np.clip(effect * (deviation - effect / 2) / sd**2, fine / 2, slow / 2)
    count = np.bincount(owner, minlength=gpus)
    first = np.cumsum(count) - count
    total = np.cumsum(step)
    before = np.concatenate(([0.0], total))[first]
    total = total - before[owner]
    place = np.arange(len(owner)) - first[owner] + 1
    near = 1e-9  # what rounding leaves of a sum
    crossed = np.where(total >= slow - near, int(Decision.SLOW), np.where(total <= fine + near, int(Decision.FINE), 0))
    decided = np.zeros(gpus, dtype=np.int64)
    after = count.astype(np.int64)
    ends = np.flatnonzero(crossed)[::-1]  # of several crossings of a GPU the first one stays
    decided[owner[ends]] = crossed[ends]
    after[owner[ends]] = place[ends]
    return decided, after
