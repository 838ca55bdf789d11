"""Splits the metered energy of GPUs among those who had them.

Time is cut wherever somebody comes or goes, and at the caller's cuts. In each part the GPU's idle power is split by the
share held, and the share that nobody held is idle. What is above idle power is split by share x activity where the
activity of each holder is known (of jobs that are known by their processes, the busy time of these), else by share.
Shares that add up to more than 1 are scaled to 1; who has an unknown share has an equal part of the rest. If the GPU
was never seen idle, all its energy is split by share, and that of the share that nobody held is unattributed.

Where nobody held the GPU, a minute is unattributed if the GPU drew more than about its idle power for certain, that is
also at the lower bound of the energy; else it is idle. It is unattributed too if it was not measured, or if a job had
GPUs of this node and nobody knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..meter import Energies, Meters
from ..series import Floats, Times
from .claims import Claims, Ints, clipped
from .shreds import (
    COUNTER,
    ENERGY,
    IDLE,
    IDLE_HIGH,
    IDLE_J,
    IDLE_LOW,
    JOB,
    MEASURED,
    UNATTRIBUTED,
    VARIANCE,
    Shreds,
    joined,
    merged,
)  # fmt: skip
from .times import Parts, Unknown, cut_at, minutes, parts_of

_IDLE_MORE, _IDLE_MORE_W = 0.15, 5.0  # so much above its idle power a GPU still does nothing
_LONG_S = 60  # what was read just before and after a longer gap counts, though most of its minute has no readings
_OVER = 1e-9
_ANY_W = 1e9  # more than any GPU draws: where nothing bounds its idle power but what it drew

Activity = Callable[[int, Times, Times], Floats | None]
"""How active the GPU or MIG instance of a claim (its row) was in each window, 0 to 1; NaN or None where not known."""


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
    meters: Meters,
    claims: Claims,
    rows: Sequence[range],
    *,
    cuts: Times,
    since_ns: int | None = None,
    until_ns: int | None = None,
    unknown: Unknown | None = None,
    activity: Activity | None = None,
) -> tuple[Shreds, list[Crowd]]:
    """The pieces of the GPUs of some meters, and who does not fit beside whom.

    `rows` are the claims of each GPU, `cuts` are sorted. Activity counts where a GPU has several claims.
    """
    first = meters.first_ns if since_ns is None else np.maximum(meters.first_ns, since_ns)
    last = np.maximum(first, meters.last_ns if until_ns is None else np.minimum(meters.last_ns, until_ns))
    numbers = np.array([len(one) for one in rows], np.int64)
    own = np.concatenate([np.arange(0), *(np.arange(one.start, one.stop) for one in rows if one)])
    gpu = np.repeat(np.arange(len(meters)), numbers)
    inside, began, ended = clipped(claims, own, meters.last_ns[gpu], since_ns, until_ns)
    own, gpu = own[inside], gpu[inside]
    empty = began == ended
    none, none_of, at_once = own[empty], gpu[empty], began[empty]
    own, gpu, began, ended = own[~empty], gpu[~empty], began[~empty], ended[~empty]

    times, begins, ends = parts_of(gpu, began, ended, first, last, cuts, unknown or {})
    # One row for each claim and each part of time in which it holds the GPU.
    which = np.repeat(np.arange(len(own)), ends - begins)
    at = np.arange(len(which)) - np.repeat(np.cumsum(ends - begins) - ends, ends - begins)
    holders = np.bincount(at, minlength=len(times))
    stated = claims.share[own][which]
    asked = _known_shares(stated, at, holders)
    held = np.bincount(at, asked, minlength=len(times)).astype(np.float64)
    asked = asked / np.where(held > 1 + _OVER, held, 1.0)[at]
    free = np.where(holders > 0, 1 - held, 0.0)
    free[free < _OVER] = 0.0

    energies = meters.over(times.gpu, times.left, times.right)
    weight = np.ones(len(at))
    busy = claims.busy[own]
    if activity is not None or not np.isnan(busy).all():

        def activity_of(row: int, left: Times, right: Times) -> Floats:
            active = activity and activity(row, left, right)
            return np.full(len(left), claims.busy[row]) if active is None else active

        weight = _activities(activity_of, own, numbers[gpu] > 1, which, at, times)
    jobs = _held(meters, energies, times, own[which], at, asked, asked * weight, free)
    windows = _nobodys(meters, times, holders, cuts, first, last, unknown or {})
    zero = Shreds(
        none_of, np.full(len(none), JOB, np.int8), none, at_once, at_once,
        _known_shares(claims.share[none], None, None), np.zeros((10, len(none))),
        np.full(len(none), "", energies.reason.dtype),
    )  # fmt: skip
    shreds = merged(joined([*jobs, windows, zero]), cuts)
    many = holders > 1
    if not many.any():
        return shreds, []
    _as_one_time(meters, shreds, np.unique(times.gpu[many]))
    missing = np.isnan(stated) & np.isnan(busy[which])
    none_known = many & (np.bincount(at, ~missing, minlength=len(times)) == 0)
    one_missing = many & ~none_known & (np.bincount(at, missing, minlength=len(times)) > 0)
    crowds = [
        *_crowds(Crowding.MORE_THAN_ALL, held > 1 + _OVER, own[which], at, times, energies.energy_j),
        *_crowds(Crowding.NO_SHARES, none_known, own[which], at, times, energies.energy_j),
        *_crowds(
            Crowding.ONE_SHARE_MISSING, one_missing & (held <= 1 + _OVER), own[which], at, times, energies.energy_j,
            first=missing,
        ),
    ]  # fmt: skip
    return shreds, crowds


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


def _activities(
    activity: Activity, own: Ints, beside: NDArray[np.bool_], which: Ints, at: Ints, times: Parts
) -> Floats:
    """How active each holder was: 1 for all of a time in which that of one is not known, or in which all are 0.

    `beside` says which of the claims `own` have others on their GPU.
    """
    found = np.full(len(at), np.nan)
    edges = np.searchsorted(which, np.arange(len(own) + 1))
    for number in np.flatnonzero(beside).tolist():
        mine = slice(int(edges[number]), int(edges[number + 1]))
        active = activity(int(own[number]), times.left[at[mine]], times.right[at[mine]])
        if active is not None:
            found[mine] = active
    unknown = np.bincount(at, np.isnan(found), minlength=len(times)) > 0
    nothing = np.bincount(at, np.nan_to_num(found), minlength=len(times)) <= 0
    return np.where((unknown | nothing)[at], 1.0, found)


def _held(
    meters: Meters, energies: Energies, times: Parts, claim: Ints, at: Ints, asked: Floats, weight: Floats,
    free: Floats,
) -> list[Shreds]:  # fmt: skip
    """The parts of time in which somebody holds the GPU: those of the claims, and what nobody holds of it."""
    whole = _figures(meters, energies, times)
    idle = whole[IDLE_J]
    never = np.isnan(idle)
    base = np.where(never, 0.0, idle)
    above = np.maximum(energies.energy_j - base, 0.0)
    weights = np.bincount(at, weight, minlength=len(times))
    energy = base[at] * asked + above[at] * weight / np.where(weights > 0, weights, 1)[at]
    # Where nobody knows what the rest of the GPU did, all goes by share.
    energy = np.where(never[at], energies.energy_j[at] * asked, energy)
    rest = np.flatnonzero(free > 0)
    left_over = (np.where(never, energies.energy_j, base) * free)[rest]
    kind = np.where(never, UNATTRIBUTED, IDLE)[rest]
    return [
        _part(np.full(len(at), JOB), claim, at, asked, energy, idle[at] * asked, whole, times, energies.reason),
        _part(
            kind, np.full(len(rest), -1), rest, free[rest], left_over, np.where(never[rest], np.nan, left_over), whole,
            times, energies.reason,
        ),
    ]  # fmt: skip


def _part(
    kind: Ints, claim: Ints, at: Ints, share: Floats, energy: Floats, idle: Floats, whole: Floats, times: Parts,
    reason: NDArray[np.str_],
) -> Shreds:  # fmt: skip
    """Parts of the figures `whole` of the times `at`: bounds and variance go with energy, seconds with the share."""
    total = whole[ENERGY, at]
    part = np.where(total > 0, energy / np.where(total > 0, total, 1.0), share)
    figures = whole[:, at] * part
    figures[ENERGY], figures[IDLE_J] = energy, idle
    for row in (MEASURED, COUNTER, IDLE_LOW, IDLE_HIGH):
        figures[row] = whole[row, at] * share
    figures[IDLE_HIGH] = np.minimum(figures[IDLE_HIGH], energy)
    return Shreds(
        times.gpu[at], kind.astype(np.int8), claim, times.left[at], times.right[at], share, figures, reason[at]
    )


def _figures(meters: Meters, energies: Energies, times: Parts) -> Floats:
    """The rows of `Shreds.figures` of whole GPUs."""
    idle, low, high = (
        _idle(watts, meters, energies, times)
        for watts in (meters.idle_w, meters.idle_low_w, np.nan_to_num(meters.idle_high_w, nan=_ANY_W))
    )
    return np.stack([
        energies.energy_j, idle, energies.below_j, energies.above_j, energies.variance_j2, energies.measured_j,
        energies.measured_s, energies.counter_s, low, high,
    ])  # fmt: skip


def _idle(idle_w: Floats, meters: Meters, energies: Energies, times: Parts) -> Floats:
    """What GPUs that draw `idle_w` without work would have drawn so, never more than they drew; NaN where unknown."""
    of = times.gpu
    lasted = np.minimum(times.right, meters.last_ns[of]) - np.maximum(times.left, meters.first_ns[of])
    found: Floats = np.minimum(idle_w[of] * np.maximum(lasted, 0) / 1e9, np.maximum(energies.energy_j, 0.0))
    return found


def _nobodys(
    meters: Meters, times: Parts, holders: Ints, cuts: Times, first: Times, last: Times, unknown: Unknown
) -> Shreds:
    """The times that nobody holds, from the first to the last reading: idle or unattributed, minute by minute."""
    mine = (holders == 0) & (times.left >= first[times.gpu]) & (times.right <= last[times.gpu])
    parts = minutes(Parts(times.gpu[mine], times.left[mine], times.right[mine]), first, last)
    parts = cut_at(parts, *meters.gaps(_LONG_S))
    energies = meters.over(parts.gpu, parts.left, parts.right)
    lasted = (parts.right - parts.left) / 1e9
    most = meters.idle_w[parts.gpu] * (1 + _IDLE_MORE) + _IDLE_MORE_W
    # Beside a job a reading may speak for both: the GPU worked where it drew more than that for certain.
    surely = energies.energy_j - energies.below_j
    idle = (surely <= most * lasted) & (energies.measured_s >= 0.5 * lasted)
    for number, (begins, ends) in unknown.items():
        own = slice(*np.searchsorted(parts.gpu, [number, number + 1]).tolist())
        at = parts.left[own]
        idle[own] &= np.searchsorted(begins, at, "right") == np.searchsorted(ends, at, "right")
    new = np.ones(len(parts), bool)
    piece = np.searchsorted(cuts, parts.left, "right")
    new[1:] = (
        (parts.gpu[1:] != parts.gpu[:-1]) | (idle[1:] != idle[:-1]) | (parts.left[1:] != parts.right[:-1])
        | (piece[1:] != piece[:-1])
    )  # fmt: skip
    starts = np.flatnonzero(new)
    stops = np.append(starts[1:] - 1, len(parts) - 1)[: len(starts)]
    whole = Parts(parts.gpu[starts], parts.left[starts], parts.right[stops])
    energies = meters.over(whole.gpu, whole.left, whole.right)
    figures = _figures(meters, energies, whole)
    kind = np.where(idle[starts], IDLE, UNATTRIBUTED).astype(np.int8)
    return Shreds(
        whole.gpu, kind, np.full(len(starts), -1), whole.left, whole.right, np.ones(len(starts)), figures,
        energies.reason,
    )  # fmt: skip


def _as_one_time(meters: Meters, shreds: Shreds, gpus: Ints) -> None:
    """The variance of pieces of these GPUs that were made of many short times: these are not independent of each
    other."""
    job = (shreds.kind == JOB) & (shreds.ended > shreds.began)
    mine = np.flatnonzero(job & np.isin(shreds.gpu, gpus))
    whole = meters.over(shreds.gpu[mine], shreds.began[mine], shreds.ended[mine])
    energy = shreds.figures[ENERGY, mine]
    part = np.where(whole.energy_j > 0, energy / np.where(whole.energy_j > 0, whole.energy_j, 1.0), 0.0)
    shreds.figures[VARIANCE, mine] = np.maximum(shreds.figures[VARIANCE, mine], whole.variance_j2 * part)


def _crowds(
    what: Crowding, parts: NDArray[np.bool_], claim: Ints, at: Ints, times: Parts, energy: Floats, *,
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
            "part": part, "later": later, "claim": claim[mine], "left": times.left[part],
            "right": times.right[part], "energy": energy[part],
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
