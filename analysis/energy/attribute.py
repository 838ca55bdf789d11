"""Whose the energy was: pieces of jobs, of nobody (idle) and of somebody unknown (unattributed), which balance.

`Booking` makes the pieces of a store, some GPUs at a time. Beside them stands what was metered, so that attributed +
idle + unattributed can be held against it, and what is wrong (`problems`).

The pieces of a GPU cover its metered time without overlap of shares, so their energies add up to its metered energy.

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

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.instants import times_of_ns
from ...store.vocabulary import Code, EventKind
from .claims import OPEN, Activities, Claims, Fleet, Ints, Key, Moves, clipped, column, read_claims
from .idle import IDLE_SOURCES, IdleSource
from .meter import Energies, Meters
from .series import Floats, Note, Problem, Reason, Times

if TYPE_CHECKING:
    from ...store import Store


class Kind(Code):
    """Whose the energy of a piece is."""

    JOB = "job", "a job had the GPU, or this share of it"
    IDLE = "idle", "no job had the GPU, or this share of it, and it did nothing"
    UNATTRIBUTED = (
        "unattributed",
        "no known job had it and nothing shows that it was idle, or a job had GPUs of the node and nobody knows which",
    )


PIECES: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),  # the physical GPU, also for a job on a MIG instance
    "node": pl.String(),
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
    "kind": pl.String(),
    "allocation": pl.String(),  # of jobs_now; NULL but for jobs
    "share": pl.Float64(),  # the part of the GPU; energy splits by activity too where it is known
    "energy_j": pl.Float64(),  # NULL where nothing at all bounds it
    "idle_j": pl.Float64(),  # of it, what the GPU would have drawn without work; NULL where it was never seen idle
    "below_j": pl.Float64(),  # how much less it could be, and more, because of gaps: bounds add up linearly
    "above_j": pl.Float64(),
    "variance_j2": pl.Float64(),  # of sampling and of the ends: independent, adds up
    "sensed_j": pl.Float64(),  # of energy_j, what a sensor's gain acts on
    "sensed_s": pl.Float64(),  # share x the seconds that a sensor's offset acts on
    "measured_s": pl.Float64(),  # share x the seconds with readings
    "method": pl.String(),  # counter or power: which gave most of it; NULL where neither
    "reason": pl.String(),  # code: why energy_j is a bound and no figure; NULL where it is one
    "idle_low_j": pl.Float64(),  # the least and the most that idle_j may be: the same is wrong at all times of a GPU
    "idle_high_j": pl.Float64(),
    "idle_source": pl.Int8(),  # what idle_j stands on: number in `idle.IDLE_SOURCES`
}
"""The columns of a frame of pieces; more may follow after them (co2e_g, cost)."""


JOB, IDLE, UNATTRIBUTED = 0, 1, 2
ENERGY, IDLE_J, BELOW, ABOVE, VARIANCE, SENSED, MEASURED, COUNTER, IDLE_LOW, IDLE_HIGH = range(10)


@dataclass(frozen=True)
class Shreds:
    """Parts of the energy of GPUs; arrays (n,)."""

    gpu: Ints
    """Which of the GPUs, by its number."""
    kind: NDArray[np.int8]
    claim: Ints
    """The row of `Claims`; -1 where it is no job's."""
    began: Times
    ended: Times
    share: Floats
    figures: Floats
    """(10, n): energy, idle energy (NaN: unknown), bounds below and above, variance, sensed energy, seconds measured,
    of these by the counter, and the least and the most that the idle energy may be."""
    reason: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.kind)


def joined(parts: Sequence[Shreds]) -> Shreds:
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Shreds)}
    return Shreds(**{name: np.concatenate(values, axis=-1) for name, values in columns.items()})


def merged(shreds: Shreds, cuts: Times) -> Shreds:
    """What is side by side, of the same claim (or of nobody, with the same share), and not cut apart, as one piece."""
    if not len(shreds):
        return shreds
    piece = np.searchsorted(cuts, shreds.began, "right")
    order = np.lexsort((shreds.began, shreds.share * (shreds.claim < 0), shreds.claim, shreds.kind, shreds.gpu))
    shreds = Shreds(**{f.name: getattr(shreds, f.name)[..., order] for f in fields(Shreds)})
    piece = piece[order]
    new = np.ones(len(shreds), bool)
    new[1:] = (
        (shreds.gpu[1:] != shreds.gpu[:-1]) | (shreds.kind[1:] != shreds.kind[:-1])
        | (shreds.claim[1:] != shreds.claim[:-1]) | (piece[1:] != piece[:-1])
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
        shreds.gpu[starts], shreds.kind[starts], shreds.claim[starts], shreds.began[starts], shreds.ended[stops],
        np.where(total > 0, share, shreds.share[starts]), np.add.reduceat(shreds.figures, starts, axis=1), reason,
    )  # fmt: skip


_MINUTE_NS = 60_000_000_000
_MOST_MINUTES = 100_000  # of one GPU: longer times are looked at in coarser steps


@dataclass(frozen=True)
class Parts:
    """The parts of the time of each GPU, in order: nobody comes or goes within one."""

    gpu: Ints
    left: Times
    right: Times

    def __len__(self) -> int:
        return len(self.gpu)


Unknown = Mapping[int, tuple[Times, Times]]
"""By number of a GPU: from when to when jobs had GPUs of its node of which nobody knows which (both sorted)."""


def parts_of(
    gpu: Ints, began: Times, ended: Times, first: Times, last: Times, cuts: Times, unknown: Unknown
) -> tuple[Parts, Ints, Ints]:
    """The parts of time of all GPUs; and of each claim, the first part that it holds and the one after its last."""
    n = len(first)
    whose, edges = [np.arange(n), np.arange(n), gpu, gpu], [first, last, began, ended]
    for number, between in unknown.items():
        for one in between:
            whose.append(np.full(len(one), number))
            edges.append(np.clip(one, first[number], last[number]))
    of, bounds = np.concatenate(whose), np.concatenate(edges)
    if len(cuts):
        low, high = first.copy(), last.copy()
        np.minimum.at(low, of, bounds)
        np.maximum.at(high, of, bounds)
        after, upto = np.searchsorted(cuts, low, "right"), np.searchsorted(cuts, high, "left")
        number = np.maximum(upto - after, 0)
        cut = np.arange(number.sum()) + np.repeat(after - np.cumsum(number) + number, number)
        of, bounds = np.append(of, np.repeat(np.arange(n), number)), np.append(bounds, cuts[cut])
    order = np.lexsort((bounds, of))
    of, bounds = of[order], bounds[order]
    new = np.ones(len(of), bool)
    new[1:] = (of[1:] != of[:-1]) | (bounds[1:] != bounds[:-1])
    # The number of each bound, and of the part that begins there: each GPU has one part less than it has bounds.
    place = np.empty(len(of), np.int64)
    place[order] = np.cumsum(new) - 1 - of
    of, bounds = of[new], bounds[new]
    within = of[1:] == of[:-1]
    begins, ends = place[2 * n : 2 * n + len(gpu)], place[2 * n + len(gpu) : 2 * (n + len(gpu))]
    return Parts(of[1:][within], bounds[:-1][within], bounds[1:][within]), begins, ends


def minutes(times: Parts, first: Times, last: Times) -> Parts:
    """The times cut at full minutes, or more coarsely where the time of a GPU is very long."""
    step = np.maximum(_MINUTE_NS, (last - first) // _MOST_MINUTES)[times.gpu]
    before = times.left // step  # the last mark that is not after the begin
    number = -(-times.right // step) - before  # a part more than there are marks between begin and end
    of = np.repeat(np.arange(len(times)), number)
    within = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
    marks = (before[of] + within) * step[of]
    ends = np.minimum(marks + step[of], times.right[of])
    return Parts(times.gpu[of], np.where(within == 0, times.left[of], marks), ends)


def cut_at(times: Parts, gpu: Ints, at: Times) -> Parts:
    """The times cut where these GPUs have a mark within one of theirs."""
    if not len(times) or not len(at):
        return times
    of, left = np.concatenate([times.gpu, gpu]), np.concatenate([times.left, at])
    mark = np.arange(len(of)) >= len(times)
    order = np.lexsort((mark, left, of))
    of, left, mark = of[order], left[order], mark[order]
    whole = np.cumsum(~mark) - 1  # the time that each lies in, if in any
    known = whole >= 0
    inside = known & (times.gpu[whole] == of) & (left < times.right[whole]) & (left > np.append(-1, left[:-1]))
    kept = ~mark | inside
    of, left, whole = of[kept], left[kept], whole[kept]
    right = times.right[whole]
    on = np.flatnonzero(whole[1:] == whole[:-1])
    right[on] = left[on + 1]
    return Parts(of, left, right)


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


_KINDS = (Kind.JOB.value, Kind.IDLE.value, Kind.UNATTRIBUTED.value)
_UNKNOWN = IDLE_SOURCES.index(IdleSource.UNKNOWN)
_FIGURES = {
    "energy_j": ENERGY, "idle_j": IDLE_J, "below_j": BELOW, "above_j": ABOVE, "variance_j2": VARIANCE,
    "sensed_j": SENSED, "measured_s": MEASURED, "idle_low_j": IDLE_LOW, "idle_high_j": IDLE_HIGH,
}  # fmt: skip
METERED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "first": pl.Datetime("us"),
    "last": pl.Datetime("us"),
    "metered_j": pl.Float64(),
    "idle_w": pl.Float64(),
    "idle_low_w": pl.Float64(),
    "idle_high_w": pl.Float64(),
    "limit_w": pl.Float64(),
    "idle_source": pl.String(),
    "power_source": pl.String(),
}
"""The columns of `Books.metered`: a row for each GPU with readings, with its energy from the first to the last one."""


@dataclass(frozen=True)
class MeteredGpus:
    """Of some GPUs, what the columns of `METERED` need; arrays (g,)."""

    meters: Meters
    nodes: Sequence[str | None]
    ends: tuple[Times, Times]
    figures: tuple[Floats, ...]
    """In the order of `METERED`."""


@dataclass(frozen=True)
class Made:
    """Pieces of some GPUs that are in no frame yet."""

    keys: Sequence[Key]
    nodes: Sequence[str | None]
    shreds: Shreds
    idle_source: NDArray[np.int64] | int = _UNKNOWN
    """By GPU, the number in `IDLE_SOURCES`."""


def pieces_frame(made: Sequence[Made], claims: Claims) -> pl.DataFrame:
    """Pieces: columns of `PIECES`."""
    before = np.cumsum([0, *(len(one.keys) for one in made)])
    of = np.concatenate([one.shreds.gpu + first for one, first in zip(made, before[:-1], strict=True)])
    sources = np.concatenate([np.broadcast_to(one.idle_source, len(one.keys)) for one in made])
    names = pl.DataFrame(
        [(*key, node) for one in made for key, node in zip(one.keys, one.nodes, strict=True)],
        schema={name: PIECES[name] for name in ("cluster", "gpu", "node")},
        orient="row",
    )

    def whole(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(one.shreds, name) for one in made], axis=-1)

    claim, figures = whole("claim").astype(np.int64), whole("figures").astype(np.float64)
    frame = names[of].with_columns(
        times_of_ns(pl.Series("began", whole("began"), pl.Int64)),
        times_of_ns(pl.Series("ended", whole("ended"), pl.Int64)),
        pl.Series("kind", list(_KINDS))[whole("kind").astype(np.int64)].alias("kind"),
        column(claims.frame, "allocation", claim).alias("allocation"),
        pl.Series("share", whole("share")),
        *(pl.Series(name, figures[row]).fill_nan(None) for name, row in _FIGURES.items()),
        pl.Series("counter_s", figures[COUNTER]),
        pl.Series("reason", whole("reason").astype(np.str_), pl.String),
        pl.Series("idle_source", sources[of], pl.Int8),
    )
    honest = pl.col("reason") == ""
    method = pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s")).then(pl.lit("counter"))
    return frame.with_columns(
        pl.when(pl.col("measured_s") > 0).then(method.otherwise(pl.lit("power"))).alias("method"),
        pl.when(~honest).then("reason").alias("reason"),
        pl.col("measured_s").alias("sensed_s"),
    ).select(list(PIECES))


def metered_frame(metered: Sequence[MeteredGpus]) -> pl.DataFrame:
    """What each GPU's meter has, by cluster and GPU: columns of `METERED`."""
    frames = []
    for some in metered:
        gpus, ends = some.meters.gpus, [end // 1000 for end in some.ends]  # us
        columns = [
            [cluster for cluster, _ in gpus], [gpu for _, gpu in gpus], some.nodes, *ends, *some.figures,
            [IDLE_SOURCES[number] for number in some.meters.idle_source.tolist()], some.meters.power_source,
        ]  # fmt: skip
        frames.append(
            pl.DataFrame(
                [
                    pl.Series(name, values).cast(kind)
                    for (name, kind), values in zip(METERED.items(), columns, strict=True)
                ]
            )
        )
    rows = pl.concat([pl.DataFrame(schema=METERED), *frames])
    return rows.with_columns(pl.col(pl.Float64).fill_nan(None)).sort("cluster", "gpu")


class JobProblem(Code):
    """What is wrong with an allocation, and what was done about it."""

    BACKWARD = "ends before it begins", "the job ends before it begins: it has no energy"
    REFUSED = "refused at import", "the import did not store an allocation of the job: it is not in these books"
    OVERLAP = "overlap", "jobs hold more than the whole GPU at the same time: its energy was split by their shares"
    OVERLAP_NO_SHARES = (
        "overlap, shares not known",
        "both jobs had the GPU, and nobody knows their shares: it was split into equal parts",
    )
    UNKNOWN_GPU = "unknown GPU", "the job names a GPU that the store does not know: it has no energy"
    NO_TELEMETRY = "no telemetry of the GPU", "nobody read the GPU in this time: the energy is bounded by its limit"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs the job had: its energy is in the unattributed energy"
    SHARE_NOT_KNOWN = (
        "share not known",
        "nobody knows which part of the GPU the first job had beside others: it got what they left",
    )
    RELOAD = "spans a driver reload", "the driver was loaded again while the job had the GPU"


class JobReason(Code):
    """Why the energy of a job is no honest figure, beside the reasons of meters."""

    BACKWARD = "ends before it begins", "it ends before it begins"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs it had"


PROBLEMS: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "problem": pl.String(),  # a code of `JobProblem` or of the meters' `Problem`
    "allocation": pl.String(),  # of jobs_now; NULL where it concerns no job
    "job_id": pl.String(),
    "other_allocation": pl.String(),  # of an overlap: the other job
    "other_job_id": pl.String(),
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
    "joules": pl.Float64(),  # the energy that it concerns
    "percent": pl.Float64(),  # of a disagreement: how much more the counter has than integrated power
    "n": pl.Int64(),  # how many findings of this kind the row stands for
    "detail": pl.String(),  # of a job that the import refused: why, and in which line of which file
}
"""The columns of a frame of problems."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of problems; times are ns UTC."""

    cluster: str | None
    gpu: str | None
    node: str | None
    problem: str
    began_ns: int | None
    ended_ns: int | None
    allocation: str | None = None
    job_id: str | None = None
    other_allocation: str | None = None
    other_job_id: str | None = None
    joules: float | None = None
    percent: float | None = None
    n: int = 1
    detail: str | None = None


def twice(store: Store, metered: pl.DataFrame) -> list[Finding]:
    """GPUs of one name that were read at the same time, of which one has no UUID: they are the same.

    `metered`: rows of `Books.metered`.
    """
    of = ["cluster", "gpu"]
    named = store.sql(
        "SELECT cluster, gpu, name, uuid IS NULL AS bare FROM gpus_now WHERE parent IS NULL AND name <> gpu "
        "QUALIFY count(*) OVER (PARTITION BY cluster, name) > 1"
    ).polars()
    read = metered.join(named, on=of, nulls_equal=True)
    pairs = read.filter("bare").join(read.filter(~pl.col("bare")), on=["cluster", "name"], nulls_equal=True)
    pairs = pairs.with_columns(
        pl.max_horizontal("first", "first_right").dt.epoch("ns").alias("began"),
        pl.min_horizontal("last", "last_right").dt.epoch("ns").alias("ended"),
    ).filter(pl.col("ended") > pl.col("began"))
    return [
        Finding(row["cluster"], row["gpu"], row["node"], Problem.TWICE, row["began"], row["ended"])
        for row in pairs.sort("cluster", "gpu").iter_rows(named=True)
    ]


def refused(store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None) -> list[Finding]:
    """The allocations that an import did not store, by the events about them."""
    rows = store.scan("events").filter(pl.col("kind") == EventKind.JOB_REFUSED.value)
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    found = store.collect(
        rows.select(
            "cluster", "gpu", "node", "job_id", "duration_ns", "detail", pl.col("ts").dt.epoch("ns").alias("at")
        )
    )
    return [
        Finding(
            row["cluster"], row["gpu"], row["node"],
            JobProblem.BACKWARD if (row["duration_ns"] or 0) < 0 else JobProblem.REFUSED,
            row["at"], None if row["duration_ns"] is None else row["at"] + row["duration_ns"], job_id=row["job_id"],
            detail=row["detail"],
        )
        for row in found.iter_rows(named=True)
        if (since_ns is None or (row["at"] or 0) >= since_ns) and (until_ns is None or (row["at"] or 0) < until_ns)
    ]  # fmt: skip


@dataclass(frozen=True)
class NodeNotes:
    """What the meter of one GPU of a node found, and when it was read and held by jobs (ns, UTC)."""

    gpu: tuple[str, str]
    first_ns: int
    last_ns: int
    notes: Sequence[Note]
    jobs: tuple[Times, Times]
    """When each began and ended."""

    def reads(self, began_ns: int, ended_ns: int) -> bool:
        """Whether the GPU has rows in the most of a time."""
        if min(self.last_ns, ended_ns) - max(self.first_ns, began_ns) < _MOSTLY * (ended_ns - began_ns):
            return False
        gaps = (note for note in self.notes if note.problem == Problem.GAP)
        return not any(
            not gap.has_rows
            and min(gap.ended_ns, ended_ns) - max(gap.began_ns, began_ns) >= _MOSTLY * (ended_ns - began_ns)
            for gap in gaps
        )

    def held_ns(self, began_ns: int, ended_ns: int) -> int:
        """For how long jobs had the GPU in a time; jobs that are there at once count each."""
        began, ended = self.jobs
        return int(np.maximum(np.minimum(ended, ended_ns) - np.maximum(began, began_ns), 0).sum())


def of_notes(of_node: Sequence[NodeNotes], node: str | None) -> Iterator[Finding]:
    """What the meters of the GPUs of a node found.

    A time in which nobody read the node, and in which no job had the GPU, is no problem of the GPU: nor is what a
    counter did meanwhile. `node` is None for GPUs of which it is not known: then each is alone.
    """
    for meter in of_node:
        others = of_node if node is not None else [meter]
        unread = [
            (note.began_ns, note.ended_ns)
            for note in meter.notes
            if note.problem == Problem.GAP
            and note.n == 1
            and not any(other.reads(note.began_ns, note.ended_ns) for other in others)
            and meter.held_ns(note.began_ns, note.ended_ns) <= min(_HELD_NS, 0.1 * (note.ended_ns - note.began_ns))
        ]
        for note in meter.notes:
            if note.problem not in _MEANWHILE or (note.began_ns, note.ended_ns) not in unread:
                yield Finding(
                    *meter.gpu, node, note.problem, note.began_ns, note.ended_ns,
                    joules=note.joules, percent=note.percent, n=note.n,
                )  # fmt: skip


_MEANWHILE = (Problem.GAP, Problem.COUNTER_RESET)
_MOSTLY = 0.9
_HELD_NS = 60 * 10**9  # a job may end shortly after the last reading


def problems_frame(findings: list[Finding]) -> pl.DataFrame:
    """Findings as rows, in order of GPU and time."""
    times = ("began", "ended")
    columns = {
        name: [getattr(one, f"{name}_ns" if name in times else name) for one in findings] for name in PROBLEMS
    }  # fmt: skip
    rows = pl.DataFrame(columns, schema={**PROBLEMS, **dict.fromkeys(times, pl.Int64())})
    return rows.with_columns(times_of_ns(pl.col(*times))).sort("cluster", "gpu", "began", "problem", nulls_last=True)


_PAIRS = 100  # of claims of one GPU, of which each has a row of problems
_ROWS = 100_000  # of a frame of pieces, about


class Booking:
    """The making of the books, some GPUs at a time; `metered` and `problems` are whole when `pieces` has ended."""

    def __init__(
        self,
        store: Store,
        *,
        cuts: Sequence[int] = (),
        since_ns: int | None = None,
        until_ns: int | None = None,
        cluster: str | None = None,
        gpus: Collection[tuple[str, str]] | None = None,
    ) -> None:
        """The books of a store from `since_ns` to `until_ns` (UTC; None: all telemetry). Raises StoreError.

        `cuts` are times (ns, UTC) at which every piece ends.
        """
        self._since, self._until = since_ns, until_ns
        self._only = None if gpus is None else set(gpus)
        self._moves = Moves.read(store, self._only)
        self._store = store
        self._cuts = np.unique(np.asarray([*cuts, *self._moves.times], np.int64))
        self._fleet = Fleet.read(store, self._only)
        self._claims = read_claims(
            store, self._fleet, since_ns=since_ns, until_ns=until_ns, cluster=cluster, gpus=self._only
        )
        self._active = Activities(store, self._claims, self._fleet, since_ns, until_ns) if self._fleet.parent else None
        self._met: set[Key] = set()
        self._metered: list[MeteredGpus] = []
        self._findings = refused(store, cluster, since_ns, until_ns)
        self._unattributed: dict[Key, list[tuple[Times, Times, Floats]]] = defaultdict(list)
        self._seen_to: dict[Key, int] = {}  # the last reading of any GPU of a node
        self._made: list[Made] = []  # pieces that are in no frame yet
        self._rows = 0
        self._notes: dict[Key, list[NodeNotes]] = {}  # by cluster and node: what meters found

    @property
    def metered(self) -> pl.DataFrame:
        """What each GPU's meter has, by cluster and GPU."""
        return metered_frame(self._metered)

    @property
    def problems(self) -> pl.DataFrame:
        """What is wrong: columns of `PROBLEMS`."""
        return problems_frame(self._findings)

    def pieces(self, read: Iterable[Meters]) -> Iterator[pl.DataFrame]:
        """The pieces of all GPUs, some GPUs at a time: frames with the columns of `PIECES`.

        `read` are the meters of the same time, cluster and GPUs. The last frame has the jobs whose GPU nobody knows or
        read.
        """
        for some in read:
            yield from self.add(some)
        yield from self.rest()

    def add(self, some: Meters) -> Iterator[pl.DataFrame]:
        """Book some GPUs; the pieces of them and of those before them, once there are enough of them."""
        made = self._of(some)
        self._made.append(made)
        self._rows += len(made.shreds)
        if self._rows >= _ROWS:
            yield self._taken()

    def rest(self) -> Iterator[pl.DataFrame]:
        """The pieces that are left when all GPUs were added, then the jobs whose GPU nobody knows or read."""
        if self._made:
            yield self._taken()
        for (_, node), of_node in self._notes.items():
            self._findings += of_notes(of_node, node)
        self._notes.clear()
        self._findings += twice(self._store, self.metered)
        rest = [*self._unread(), *self._unknown(), *self._backward()]
        if rest:
            yield self._moves.placed(pieces_frame(rest, self._claims))

    def _taken(self) -> pl.DataFrame:
        made, self._made, self._rows = self._made, [], 0
        return self._moves.placed(pieces_frame(made, self._claims))

    # -- GPUs with meters -----------------------------------------------------------------------------------

    def _of(self, some: Meters) -> Made:
        keys: list[Key] = list(some.gpus)
        self._met.update(keys)
        rows = [self._claims.of_gpu.get(key, range(0)) for key in keys]
        nodes = [self._node(key, own) for key, own in zip(keys, rows, strict=True)]
        shreds, crowds = split(
            some,
            self._claims,
            rows,
            cuts=self._cuts,
            since_ns=self._since,
            until_ns=self._until,
            unknown=self._not_known(some, nodes),
            activity=self._active,
        )
        self._meter(some, nodes)
        self._not_told(some, nodes, shreds)
        whose = dict[int, list[Crowd]]()
        if crowds:
            starts = {row: number for number, own in enumerate(rows) for row in own}
            for crowd in crowds:
                whose.setdefault(starts[crowd.claim], []).append(crowd)
        for number, (node, notes) in enumerate(zip(nodes, some.notes, strict=True)):
            self._notes.setdefault((some.gpus[number][0], node), []).append(
                NodeNotes(
                    some.gpus[number],
                    int(some.first_ns[number]),
                    int(some.last_ns[number]),
                    notes,
                    self._held(rows[number]),
                )
            )
            for what, problem in _PROBLEMS.items():
                self._crowded(problem, [crowd for crowd in whose.get(number, ()) if crowd.what is what])
            for note in notes:
                if note.problem == Problem.DRIVER_RELOAD:
                    self._reloaded(rows[number], note.began_ns, note.ended_ns)
        return Made(keys, nodes, shreds, some.idle_source)

    def _held(self, rows: range) -> tuple[Times, Times]:
        """When jobs began and ended that had a GPU; one that runs has it for ever."""
        own = np.arange(rows.start, rows.stop)
        ended = self._claims.ended[own]
        return self._claims.began[own], np.where(ended == OPEN, np.iinfo(np.int64).max, ended)

    def _meter(self, some: Meters, nodes: list[str | None]) -> None:
        """What the meter of each GPU has in the time that is asked for."""
        first = some.first_ns if self._since is None else np.maximum(some.first_ns, self._since)
        last = np.maximum(first, some.last_ns if self._until is None else np.minimum(some.last_ns, self._until))
        joules = some.joules(np.arange(len(some)), first, last)
        figures = joules, some.idle_w, some.idle_low_w, some.idle_high_w, some.limit_w
        self._metered.append(MeteredGpus(some, nodes, (first, last), figures))

    def _not_told(self, some: Meters, nodes: list[str | None], shreds: Shreds) -> None:
        """Keep what is unattributed on nodes of which jobs had GPUs that nobody knows."""
        for number, (key, now) in enumerate(zip(some.gpus, nodes, strict=True)):
            for node, since, until in self._moves.stays(key, now):
                place = key[0], node
                if node is None or place not in self._claims.of_node:
                    continue
                last = min(int(some.last_ns[number]), until)
                self._seen_to[place] = max(self._seen_to.get(place, last), last)
                of = (shreds.gpu == number) & (shreds.kind == UNATTRIBUTED)
                of &= (shreds.began >= since) & (shreds.began < until)
                most = shreds.figures[ENERGY, of] + shreds.figures[ABOVE, of]
                self._unattributed[place].append((shreds.began[of], shreds.ended[of], most))

    def _crowded(self, problem: JobProblem, crowds: list[Crowd]) -> None:
        """A row for each pair of claims of a GPU; one row, with the first pair, where they are very many."""
        if len(crowds) > _PAIRS:
            first, began, ended = crowds[0], min(one.began_ns for one in crowds), max(one.ended_ns for one in crowds)
            self._find(problem, first.claim, began, ended, other=first.other, n=len(crowds))
            return
        for one in crowds:
            self._find(problem, one.claim, one.began_ns, one.ended_ns, other=one.other, joules=one.joules)

    def _node(self, key: Key, rows: range) -> str | None:
        node = self._fleet.node.get(key)
        return node if node is not None or not rows else self._claims.frame["node"][rows.start]

    def _not_known(self, some: Meters, nodes: list[str | None]) -> dict[int, tuple[Times, Times]]:
        found = {}
        for number, (key, now) in enumerate(zip(some.gpus, nodes, strict=True)):
            times = []
            for node, since, until in self._moves.stays(key, now):
                rows = self._claims.of_node.get((key[0], node)) if node is not None else None
                if rows is not None:
                    low = since if self._since is None else max(since, self._since)
                    high = until if self._until is None else min(until, self._until)
                    times.append(clipped(self._claims, rows, int(some.last_ns[number]), low, high)[1:])
            if times:
                began, ended = (np.sort(np.concatenate(one)) for one in zip(*times, strict=True))
                found[number] = began, ended
        return found

    def _reloaded(self, rows: range, began: int, ended: int) -> None:
        own = np.arange(rows.start, rows.stop)
        to = self._claims.ended[own]
        touched = (self._claims.began[own] < max(ended, began + 1)) & ((to > began) | (to == OPEN))
        for row in own[touched].tolist():
            self._find(JobProblem.RELOAD, row, began, ended)

    # -- jobs that no meter covers ----------------------------------------------------------------------------

    def _unread(self) -> Iterator[Made]:
        """Jobs on GPUs without readings: bounded by the power limit, where that is known."""
        for key, rows in self._claims.of_gpu.items():
            if key in self._met or (self._only is not None and key not in self._only):
                continue
            own = np.arange(rows.start, rows.stop)
            inside, began, ended = clipped(self._claims, own, None, self._since, self._until)
            own = own[inside]
            if len(own):
                known = key in self._fleet.node
                self._find_all(JobProblem.NO_TELEMETRY if known else JobProblem.UNKNOWN_GPU, own, began, ended)
                share = np.nan_to_num(self._claims.share[own], nan=1.0)
                limit = self._fleet.limit_w.get(key, np.nan)
                row, began, ended = cut_apart(began, ended, self._cuts)
                most = share[row] * limit * (ended - began) / 1e9
                shreds = _blind(own[row], began, ended, share[row], most, Reason.NO_TELEMETRY)
                yield Made([key], [self._node(key, rows)], shreds)

    def _unknown(self) -> Iterator[Made]:
        """Jobs of which only the node is known: at most what is unattributed there meanwhile."""
        if self._only is not None:
            return
        counts = self._claims.frame["node_gpus"].fill_null(1).to_numpy().astype(float)
        for (cluster, node), rows in self._claims.of_node.items():
            place = cluster, node
            inside, began, ended = clipped(self._claims, rows, self._seen_to.get(place), self._since, self._until)
            own = rows[inside]
            if len(own):
                self._find_all(JobProblem.GPU_NOT_KNOWN, own, began, ended)
                row, began, ended = cut_apart(began, ended, self._cuts)
                most = _most(self._unattributed.get(place, []), began, ended)
                share = counts[own[row]]
                shreds = _blind(own[row], began, ended, share, most, JobReason.GPU_NOT_KNOWN)
                yield Made([(cluster, None)], [node], shreds)

    def _backward(self) -> Iterator[Made]:
        for row in self._claims.backward.tolist():
            cluster, gpu, node = (self._claims.frame[name][row] for name in ("cluster", "gpu", "node"))
            if self._only is None or (cluster, gpu) in self._only:
                began, nothing = self._claims.began[row : row + 1], np.full(1, np.nan)
                self._find(JobProblem.BACKWARD, row)
                shreds = _blind(np.array([row]), began, began, np.ones(1), nothing, JobReason.BACKWARD)
                yield Made([(cluster, gpu)], [node], shreds)

    # -- rows -------------------------------------------------------------------------------------------------

    def _find(
        self, problem: JobProblem, claim: int, began: int | None = None, ended: int | None = None, *,
        other: int | None = None, joules: float | None = None, n: int = 1,
    ) -> None:  # fmt: skip
        row = self._claims.frame.row(claim, named=True)
        than = {} if other is None else self._claims.frame.row(other, named=True)
        to = int(self._claims.ended[claim])
        self._findings.append(
            Finding(
                row["cluster"],
                row["gpu"],
                row["node"],
                problem,
                int(self._claims.began[claim]) if began is None else began,
                (None if to == OPEN else to) if ended is None else ended,
                row["allocation"],
                row["job_id"],
                than.get("allocation"),
                than.get("job_id"),
                joules,
                n=n,
            )
        )

    def _find_all(self, problem: JobProblem, rows: Ints, began: Times, ended: Times) -> None:
        """One row for a problem that many jobs share; it names the first."""
        self._find(problem, int(rows[0]), int(began.min()), int(ended.max()), n=len(rows))


_PROBLEMS = {
    Crowding.MORE_THAN_ALL: JobProblem.OVERLAP,
    Crowding.NO_SHARES: JobProblem.OVERLAP_NO_SHARES,
    Crowding.ONE_SHARE_MISSING: JobProblem.SHARE_NOT_KNOWN,
}


def cut_apart(began: Times, ended: Times, cuts: Times) -> tuple[Ints, Times, Times]:
    """Times cut apart at `cuts` (sorted): which time each part is of, and its begin and end."""
    first, last = np.searchsorted(cuts, began, "right"), np.searchsorted(cuts, ended, "left")
    parts = np.maximum(last - first, 0) + 1
    row = np.repeat(np.arange(len(began)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    padded = np.append(cuts, np.int64(0))
    begins = np.where(number == 0, began[row], padded[first[row] + number - 1])
    ends = np.where(number == parts[row] - 1, ended[row], padded[np.minimum(first[row] + number, len(cuts))])
    return row, begins, ends


def _blind(claim: Ints, began: Times, ended: Times, share: Floats, most: Floats, reason: str) -> Shreds:
    """Pieces of jobs without a meter: 0 J, and at most `most` more; unknown where that is NaN. No time, no energy."""
    figures = np.zeros((10, len(claim)))
    lasts = ended > began
    most = np.where(lasts, most, 0.0)
    figures[IDLE_J] = np.where(lasts, np.nan, 0.0)
    figures[ABOVE] = np.nan_to_num(most)
    figures[IDLE_HIGH] = most
    figures[ENERGY] = np.where(np.isnan(most), np.nan, 0.0)
    return Shreds(
        np.zeros(len(claim), np.int64),
        np.full(len(claim), JOB, np.int8),
        claim,
        began,
        ended,
        share,
        figures,
        np.full(len(claim), str(reason)),
    )


def _most(parts: list[tuple[Times, Times, Floats]], since: Times, until: Times) -> Floats:
    """The sum of the `parts` (begin, end, J) within each time; they begin and end where these times do."""
    if not parts:
        return np.full(len(since), np.nan)
    began, ended, joules = (np.concatenate(one) for one in zip(*parts, strict=True))
    order, back = np.argsort(began), np.argsort(ended)
    to_begin, to_end = (np.concatenate([[0.0], np.cumsum(joules[one])]) for one in (order, back))
    started = np.searchsorted(began[order], until, "left")
    stopped = np.searchsorted(ended[back], since, "right")
    found: Floats = np.maximum(to_begin[started] - to_end[stopped], 0.0)
    return found
