"""Sittings: the runs of one GPU without a pause of 6 hours, of 24 hours at most. They share what the day brought.

Times are in days since 1970.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PAUSE = 0.25
"""Days without a run that end a sitting."""
LONGEST = 1.0
"""Days that a sitting lasts at most: a chain of runs without a pause is cut, counted from where it began."""
UNKNOWN = -1e6
"""Stands for a time that is not known: the runs at unknown times of a GPU are one sitting."""
AHEAD = timedelta(hours=1)
"""A date so far after now counts as one of now: clocks of nodes differ."""
_NEAR = 1e-8  # what rounding leaves of a time


def latest() -> datetime:
    """The latest date that a run may have now."""
    return datetime.now(UTC) + AHEAD


def days() -> pl.Expr:
    """When runs began, in days since 1970; `UNKNOWN` where it is null."""
    return (pl.col("began").dt.epoch("us") / 86_400e6).fill_null(UNKNOWN)


def date_of(at: float | np.float64) -> datetime:
    """The date (UTC without a zone, as in tables) that so many days are."""
    return datetime(1970, 1, 1) + timedelta(days=float(at))  # noqa: DTZ001


def begins(owner: Ints, at: Floats, pause: float = PAUSE, longest: float = LONGEST) -> Bools:
    """At which runs a sitting begins, of runs sorted by `owner` (the number of a GPU, or of a GPU in a workload), and
    time."""
    new = np.ones(len(owner), bool)
    new[1:] = (np.diff(owner) != 0) | (np.diff(at) >= pause - _NEAR)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(at)) - 1
    if len(at) and (at[last] - at[first]).max() >= longest - _NEAR:
        began = np.repeat(at[first], last - first + 1)
        new[1:] |= np.diff(np.floor((at - began) / longest + _NEAR)) > 0
    return new


def numbered(owner: Ints, at: Floats, pause: float = PAUSE, longest: float = LONGEST) -> Ints:
    """The number of each run's sitting, by owner and time; runs in any order."""
    order = in_order(owner, at)
    found = np.empty(len(owner), dtype=np.int64)
    found[order] = np.cumsum(begins(owner[order], at[order], pause, longest)) - 1
    return found


def are_in_order(owner: Ints, at: Floats) -> bool:
    """Whether runs lie by owner and time."""
    later = at[1:] >= at[:-1]
    later &= owner[1:] == owner[:-1]
    later |= owner[1:] > owner[:-1]
    return bool(later.all())


def in_order(owner: Ints, at: Floats) -> Ints:
    """The order by owner (whole numbers from 0) and time."""
    if are_in_order(owner, at):
        return np.arange(len(owner))
    if (at[1:] < at[:-1]).any():
        return np.lexsort((at, owner))
    # Runs come from a store in time. Then one stable sort is enough; of 16 bits numpy sorts by counting.
    most = int(owner.max(initial=0))
    order = np.argsort((owner & 0xFFFF).astype(np.uint16), kind="stable")
    if most > 0xFFFF:
        high = (owner[order] >> 16).astype(np.uint16 if most < 1 << 32 else np.int64)
        order = order[np.argsort(high, kind="stable")]
    return order
