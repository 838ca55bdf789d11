"""Splits the metered energy of one GPU among those who had it.

Time is cut wherever somebody comes or goes, and at the caller's cuts. In each part the GPU's idle power is split by the
share held, and the share that nobody held is idle. What is above idle power is split by share x activity where the
activity of each holder is known, else by share. Shares that add up to more than 1 are scaled to 1; who has an unknown
share has an equal part of the rest. If the GPU was never seen idle, all its energy is split by share, and that of the
share that nobody held is unattributed.

Where nobody held the GPU, a minute is unattributed if the GPU drew more than about its idle power for certain, that is
also at the lower bound of the energy; else it is idle. It is unattributed too if it was not measured, or if a job had
GPUs of this node and nobody knows which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, auto

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..metering import Energies, Meter
from ..metering.readings import Floats, Times
from .claims import OPEN, Claims, Ints

JOB, IDLE, UNATTRIBUTED = 0, 1, 2
ENERGY, IDLE_J, BELOW, ABOVE, VARIANCE, SENSED, MEASURED, COUNTER = range(8)

_MINUTE_NS = 60_000_000_000
_MOST_MINUTES = 100_000  # of one GPU: longer times are looked at in coarser steps
_IDLE_MORE, _IDLE_MORE_W = 0.15, 5.0  # so much above its idle power a GPU still does nothing
_OVER = 1e-9

Activity = Callable[[int, Times, Times], Floats | None]
"""How active the GPU or MIG instance of a claim (its row) was in each window, 0 to 1; NaN or None where not known."""


@dataclass(frozen=True)
class Shreds:
    """Parts of a GPU's energy; arrays (n,)."""

    kind: NDArray[np.int8]
    claim: Ints
    """The row of `Claims`; -1 where it is no job's."""
    began: Times
    ended: Times
    share: Floats
    figures: Floats
    """(8, n): energy, idle energy (NaN: unknown), bounds below and above, variance, sensed energy, seconds measured,
    and of these by the counter."""
    reason: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.kind)


class Crowding(Enum):
    """What is wrong with two claims at one time."""

    MORE_THAN_ALL = auto()  # with all others they hold more than the whole GPU
    NO_SHARES = auto()  # nobody knows the share of any claim of that time
    ONE_SHARE_MISSING = auto()  # nobody knows the share of the first, which got what the others left


@dataclass(frozen=True)
class Crowd:
    """Two claims of one time that do not fit together."""

    what: Crowding
    claim: int
    other: int
    began_ns: int
    ended_ns: int
    joules: float


def split(
    meter: Meter,
    claims: Claims,
    rows: range,
    *,
    cuts: Times,
    since_ns: int | None = None,
    until_ns: int | None = None,
    unknown: tuple[Times, Times] | None = None,
    activity: Activity | None = None,
) -> tuple[Shreds, list[Crowd]]:
    """The pieces of the GPU of a meter, and who does not fit beside whom.

    `rows` are its claims, `cuts` are sorted. `unknown`: from when to when jobs had GPUs of its node of which nobody
    knows which (both sorted).
    """
    first = meter.first_ns if since_ns is None else max(meter.first_ns, since_ns)
    last = max(first, meter.last_ns if until_ns is None else min(meter.last_ns, until_ns))
    own, began, ended = clipped(claims, np.arange(rows.start, rows.stop), meter.last_ns, since_ns, until_ns)
    empty = began == ended
    none, at_once = own[empty], began[empty]
    own, began, ended = own[~empty], began[~empty], ended[~empty]

    edges = [np.array([first, last], np.int64), began, ended]
    if unknown is not None:
        edges += [np.clip(one, first, last) for one in unknown]
    bounds = np.concatenate(edges)
    bounds = np.unique(np.concatenate([bounds, cuts[(cuts > bounds.min()) & (cuts < bounds.max())]]))
    left, right = bounds[:-1], bounds[1:]

    # One row for each claim and each part of time in which it holds the GPU.
    begins, ends = np.searchsorted(bounds, began), np.searchsorted(bounds, ended)
    which = np.repeat(np.arange(len(own)), ends - begins)
    at = np.arange(len(which)) - np.repeat(np.cumsum(ends - begins) - ends, ends - begins)
    holders = np.bincount(at, minlength=len(left))
    stated = claims.share[own][which]
    asked = _known_shares(stated, at, holders)
    held = np.bincount(at, asked, minlength=len(left)).astype(np.float64)
    asked = asked / np.where(held > 1 + _OVER, held, 1.0)[at]
    free = np.where(holders > 0, 1 - held, 0.0)
    free[free < _OVER] = 0.0

    energies = meter.over(left, right)
    weight = asked * _activities(activity, own, which, at, left, right)
    jobs = _held(meter, energies, left, right, own[which], at, asked, weight, free)
    windows = _nobodys(meter, left, right, holders, cuts, first, last, unknown)
    zero = Shreds(
        np.full(len(none), JOB, np.int8), none, at_once, at_once, _known_shares(claims.share[none], None, None),
        np.zeros((8, len(none))), np.full(len(none), "", energies.reason.dtype),
    )  # fmt: skip
    shreds = _merged(_joined([*jobs, windows, zero]), cuts)
    many = holders > 1
    if not many.any():
        return shreds, []
    _as_one_time(meter, shreds)
    none_known = many & (np.bincount(at, ~np.isnan(stated), minlength=len(left)) == 0)
    one_missing = many & ~none_known & (np.bincount(at, np.isnan(stated), minlength=len(left)) > 0)
    crowds = [
        *_crowds(Crowding.MORE_THAN_ALL, held > 1 + _OVER, own[which], at, left, right, energies.energy_j),
        *_crowds(Crowding.NO_SHARES, none_known, own[which], at, left, right, energies.energy_j),
        *_crowds(
            Crowding.ONE_SHARE_MISSING, one_missing & (held <= 1 + _OVER), own[which], at, left, right,
            energies.energy_j, first=np.isnan(stated),
        ),
    ]  # fmt: skip
    return shreds, crowds


def clipped(
    claims: Claims, rows: Ints, last_ns: int | None, since_ns: int | None, until_ns: int | None
) -> tuple[Ints, Times, Times]:
    """Claims with the part of their time that is asked for, without those that have none or end before they begin.

    A job that runs has the GPU to its last reading; where it has none, to when the job was last heard of.
    """
    began, ended = claims.began[rows], claims.ended[rows]
    heard = np.maximum(claims.recorded[rows], began)
    to = heard if last_ns is None else np.where(began < last_ns, last_ns, heard)
    ended = np.where(ended == OPEN, to, ended)
    low = began if since_ns is None else np.maximum(began, since_ns)
    high = ended if until_ns is None else np.minimum(ended, until_ns)
    inside = (high > low) | ((began == ended) & (low == high))
    return rows[inside], low[inside], high[inside]


def _known_shares(share: Floats, at: Ints | None, holders: Ints | None) -> Floats:
    unknown = np.isnan(share)
    if at is None or holders is None:
        return np.where(unknown, 1.0, share)
    if not unknown.any():
        return share
    known = np.bincount(at, np.where(unknown, 0.0, share), minlength=len(holders))
    number = np.bincount(at, unknown.astype(float), minlength=len(holders))
    rest = np.where(known < 1 - _OVER, (1 - known) / np.maximum(number, 1), 1 / np.maximum(holders, 1))
    return np.where(unknown, rest[at], share)


def _activities(activity: Activity | None, own: Ints, which: Ints, at: Ints, left: Times, right: Times) -> Floats:
    """How active each holder was: 1 for all of a time in which that of one is not known, or in which all are 0."""
    if activity is None or not len(at):
        return np.ones(len(at))
    found = np.full(len(at), np.nan)
    for number, row in enumerate(own.tolist()):
        mine = which == number
        active = activity(row, left[at[mine]], right[at[mine]])
        if active is not None:
            found[mine] = active
    unknown = np.bincount(at, np.isnan(found), minlength=len(left)) > 0
    nothing = np.bincount(at, np.nan_to_num(found), minlength=len(left)) <= 0
    return np.where((unknown | nothing)[at], 1.0, found)


def _held(
    meter: Meter, energies: Energies, left: Times, right: Times, claim: Ints, at: Ints, asked: Floats, weight: Floats,
    free: Floats,
) -> list[Shreds]:  # fmt: skip
    """The parts of time in which somebody holds the GPU: those of the claims, and what nobody holds of it."""
    whole, idle = _figures(energies), _idle(meter, energies, left, right)
    base = np.zeros(len(left)) if idle is None else idle
    above = np.maximum(energies.energy_j - base, 0.0)
    weights = np.bincount(at, weight, minlength=len(left))
    energy = base[at] * asked + above[at] * weight / np.where(weights > 0, weights, 1)[at]
    rest = np.flatnonzero(free > 0)
    if idle is None:  # nobody knows what the rest of the GPU did
        energy, left_over = energies.energy_j[at] * asked, (energies.energy_j * free)[rest]
    else:
        left_over = (base * free)[rest]
    own_idle = np.full(len(at), np.nan) if idle is None else base[at] * asked
    rest_idle = np.full(len(rest), np.nan) if idle is None else left_over
    kind = UNATTRIBUTED if idle is None else IDLE
    return [
        _part(JOB, claim, at, asked, energy, own_idle, whole, left, right, energies.reason),
        _part(
            kind, np.full(len(rest), -1), rest, free[rest], left_over, rest_idle, whole, left, right, energies.reason
        ),
    ]


def _part(
    kind: int, claim: Ints, at: Ints, share: Floats, energy: Floats, idle: Floats, whole: Floats, left: Times,
    right: Times, reason: NDArray[np.str_],
) -> Shreds:  # fmt: skip
    """Parts of the figures `whole` of the times `at`: bounds and variance go with energy, seconds with the share."""
    total = whole[ENERGY, at]
    part = np.where(total > 0, energy / np.where(total > 0, total, 1.0), share)
    figures = whole[:, at] * part
    figures[ENERGY], figures[IDLE_J] = energy, idle
    figures[MEASURED], figures[COUNTER] = whole[MEASURED, at] * share, whole[COUNTER, at] * share
    return Shreds(np.full(len(at), kind, np.int8), claim, left[at], right[at], share, figures, reason[at])


def _figures(energies: Energies) -> Floats:
    nothing = np.zeros(len(energies.energy_j))
    return np.stack([
        energies.energy_j, nothing, energies.below_j, energies.above_j, energies.variance_j2, energies.measured_j,
        energies.measured_s, energies.counter_s,
    ])  # fmt: skip


def _idle(meter: Meter, energies: Energies, left: Times, right: Times) -> Floats | None:
    """What the GPU would have drawn without work: never more than it drew."""
    if meter.idle_w is None:
        return None
    lasted = np.minimum(right, meter.last_ns) - np.maximum(left, meter.first_ns)
    found: Floats = np.minimum(meter.idle_w * np.maximum(lasted, 0) / 1e9, np.maximum(energies.energy_j, 0.0))
    return found


def _nobodys(
    meter: Meter, left: Times, right: Times, holders: Ints, cuts: Times, first: int, last: int,
    unknown: tuple[Times, Times] | None,
) -> Shreds:  # fmt: skip
    """The times that nobody holds, from the first to the last reading: idle or unattributed, minute by minute."""
    mine = (holders == 0) & (left >= first) & (right <= last)
    free_left, free_right = left[mine], right[mine]
    step = max(_MINUTE_NS, (last - first) // _MOST_MINUTES)
    marks = np.arange(first // step + 1, last // step + 1, dtype=np.int64) * step if mine.any() else left[:0]
    if len(marks):
        part = np.maximum(np.searchsorted(left, marks, "right") - 1, 0)
        marks = marks[mine[part] & (marks > left[part]) & (marks < right[part])]
    begins, ends = np.unique(np.concatenate([free_left, marks])), np.unique(np.concatenate([free_right, marks]))
    energies = meter.over(begins, ends)
    lasted = (ends - begins) / 1e9
    idle = np.zeros(len(begins), bool)
    if meter.idle_w is not None:
        most = meter.idle_w * (1 + _IDLE_MORE) + _IDLE_MORE_W
        # Beside a job a reading may speak for both: the GPU worked where it drew more than that for certain.
        surely = energies.energy_j - energies.below_j
        idle = (surely <= most * lasted) & (energies.measured_s >= 0.5 * lasted)
    if unknown is not None:
        there = np.searchsorted(unknown[0], begins, "right") - np.searchsorted(unknown[1], begins, "right")
        idle &= there == 0
    new = np.ones(len(begins), bool)
    piece = np.searchsorted(cuts, begins, "right")
    new[1:] = (idle[1:] != idle[:-1]) | (begins[1:] != ends[:-1]) | (piece[1:] != piece[:-1])
    starts = np.flatnonzero(new)
    stops = np.append(starts[1:] - 1, len(begins) - 1)[: len(starts)]
    idle, begins, ends = idle[starts], begins[starts], ends[stops]
    energies = meter.over(begins, ends)
    whole, own_idle = _figures(energies), _idle(meter, energies, begins, ends)
    whole[IDLE_J] = np.nan if own_idle is None else own_idle
    kind = np.where(idle, IDLE, UNATTRIBUTED).astype(np.int8)
    return Shreds(kind, np.full(len(starts), -1), begins, ends, np.ones(len(starts)), whole, energies.reason)


def _joined(parts: list[Shreds]) -> Shreds:
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Shreds)}
    return Shreds(**{name: np.concatenate(values, axis=-1) for name, values in columns.items()})


def _merged(shreds: Shreds, cuts: Times) -> Shreds:
    """What is side by side, of the same claim (or of nobody, with the same share), and not cut apart, as one piece."""
    if not len(shreds):
        return shreds
    piece = np.searchsorted(cuts, shreds.began, "right")
    order = np.lexsort((shreds.began, shreds.share * (shreds.claim < 0), shreds.claim, shreds.kind))
    shreds = Shreds(**{f.name: getattr(shreds, f.name)[..., order] for f in fields(Shreds)})
    piece = piece[order]
    new = np.ones(len(shreds), bool)
    new[1:] = (
        (shreds.kind[1:] != shreds.kind[:-1]) | (shreds.claim[1:] != shreds.claim[:-1]) | (piece[1:] != piece[:-1])
        | (shreds.began[1:] != shreds.ended[:-1]) | ((shreds.claim[1:] < 0) & (shreds.share[1:] != shreds.share[:-1]))
    )  # fmt: skip
    starts = np.flatnonzero(new)
    if len(starts) == len(shreds):
        return shreds
    stops = np.append(starts[1:], len(shreds)) - 1
    lasted = (shreds.ended - shreds.began).astype(float)
    total = np.add.reduceat(lasted, starts)
    bad = shreds.reason != ""
    reasoned = np.add.reduceat(lasted * bad, starts)
    longest = np.where(bad, lasted, -1.0)
    of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(shreds))))
    best = np.lexsort((longest, of))[stops]  # in each piece the longest part with a reason
    reason = np.where((reasoned > 0) & (reasoned >= 0.5 * total), shreds.reason[best], "")
    share = np.add.reduceat(shreds.share * lasted, starts) / np.where(total > 0, total, 1)
    return Shreds(
        shreds.kind[starts], shreds.claim[starts], shreds.began[starts], shreds.ended[stops],
        np.where(total > 0, share, shreds.share[starts]), np.add.reduceat(shreds.figures, starts, axis=1), reason,
    )  # fmt: skip


def _as_one_time(meter: Meter, shreds: Shreds) -> None:
    """The variance of pieces that were made of many short times: these are not independent of each other."""
    mine = np.flatnonzero((shreds.kind == JOB) & (shreds.ended > shreds.began))
    whole = meter.over(shreds.began[mine], shreds.ended[mine])
    energy = shreds.figures[ENERGY, mine]
    part = np.where(whole.energy_j > 0, energy / np.where(whole.energy_j > 0, whole.energy_j, 1.0), 0.0)
    shreds.figures[VARIANCE, mine] = np.maximum(shreds.figures[VARIANCE, mine], whole.variance_j2 * part)


def _crowds(
    what: Crowding, parts: NDArray[np.bool_], claim: Ints, at: Ints, left: Times, right: Times, energy: Floats, *,
    first: NDArray[np.bool_] | None = None,
) -> list[Crowd]:  # fmt: skip
    """The claims of the times `parts`: each with the first of its time; or with `first`, these claims with another."""
    mine = parts[at] if len(at) else np.zeros(0, bool)
    if not mine.any():
        return []
    later = np.zeros(int(mine.sum()), bool) if first is None else ~first[mine]
    part = at[mine]
    rows = pl.DataFrame(
        {
            "part": part, "later": later, "claim": claim[mine], "left": left[part], "right": right[part],
            "energy": energy[part],
        }
    ).sort("part", "later", "claim")  # fmt: skip
    lone = pl.col("claim").filter(pl.col("later")) if first is not None else pl.col("claim")
    pairs = rows.with_columns(lone.first().over("part").alias("one")).filter(
        pl.col("claim") != pl.col("one"), ~pl.col("later")
    )
    found = pairs.group_by("one", "claim", maintain_order=True).agg(
        pl.col("left").min(), pl.col("right").max(), pl.col("energy").sum()
    )
    return [
        Crowd(what, *((one, two) if first is None else (two, one)), began, ended, joules)
        for one, two, began, ended, joules in found.iter_rows()
    ]
