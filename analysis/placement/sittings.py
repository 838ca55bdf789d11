"""Runs of a GPU within hours may be alike as runs days apart are not: where the data show it, a sitting is one run.

Runs back to back share what the day brought: the room, the neighbours, the state of the node. Taken as so many
independent runs they would make every interval too narrow and show differences that do not last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..runs.sittings import LONGEST, PAUSE, UNKNOWN, numbered
from ..statistics.ordering import Floats, Ints, bounds
from .prior import centres

_LENGTHS = (("day", PAUSE, LONGEST), ("hour", 1 / 24, np.inf))
"""What people call a sitting, the pause that ends it, and how long it lasts at most; in days."""
_CLEAR = 2.0
"""Standard errors by which the mean squares between and within sittings must differ: about one test in thirty errs, and
then on the safe side, as the median of a sitting tells nearly as much as its runs."""
_FAR = 6.0
"""Scales from which a run counts as no farther off: one broken run must not hide what the others show."""
_NOTHING = 1e-24
"""What rounding leaves of the variance of equal log times."""


@dataclass(frozen=True)
class Sittings:
    """How the runs of a workload fall into sittings."""

    length: str | None = None
    """"day" or "hour" where runs of such a sitting are more alike than others and count as one, else None."""
    share: float = 0.0
    """Of the variance between runs of one GPU, what those sittings take."""


def sittings(x: Floats, owner: Ints, at: Floats) -> tuple[Sittings, Ints]:
    """Whether runs of one sitting of an `owner` are more alike, and each run's sitting if so (else its own number).

    `x`: log times; `at`: when they began, in days. Runs at unknown times of an owner are one sitting, and no evidence.
    """
    known = at > UNKNOWN
    for length, pause, longest in _LENGTHS:
        number = numbered(owner, at, pause, longest)
        share = _share(x[known], owner[known], number[known])
        if share > 0.0:
            return Sittings(length, share), number
    return Sittings(), np.arange(len(x), dtype=np.intp)


def _share(x: Floats, owner: Ints, number: Ints) -> float:
    """The share of the variance between runs of one owner that its sittings take.

    By analysis of variance of sittings within owners; 0 where it is not clearly more than none.
    """
    if len(x) == 0:
        return 0.0
    order = np.argsort(number, kind="stable")  # sittings are numbered by owner
    x, owner, number = x[order], owner[order], number[order]
    sittings_of = np.bincount(owner[np.diff(number, prepend=-1) != 0])
    kept = sittings_of[owner] > 1
    if not kept.any():
        return 0.0
    owner, number = (np.unique(its[kept], return_inverse=True)[1] for its in (owner, number))
    strayed = x[kept] - centres(x[kept], bounds(owner, int(owner[-1]) + 1))[owner]
    scale = 1.4826 * float(np.median(np.abs(strayed)))
    if scale > 0:
        strayed = np.clip(strayed, -_FAR * scale, _FAR * scale)
    strayed -= (np.bincount(owner, strayed) / np.bincount(owner))[owner]
    size = np.bincount(number)
    mean = np.bincount(number, strayed) / size
    of = owner[np.searchsorted(number, np.arange(len(size)))]
    runs, count, owners = len(strayed), len(size), int(owner[-1]) + 1
    if runs == count:
        return 0.0
    within = float(((strayed - mean[number]) ** 2).sum()) / (runs - count)
    between = float((size * mean**2).sum()) / (count - owners)
    usual = (runs - float((np.bincount(of, size**2) / np.bincount(owner)).sum())) / (count - owners)
    error = np.sqrt(2.0 / (count - owners) + 2.0 / (runs - count))
    if between <= (1.0 + _CLEAR * error) * within or between <= _NOTHING:
        return 0.0
    own = (between - within) / usual
    return own / (own + within)
