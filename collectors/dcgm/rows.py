"""Samples of single fields as rows: one row for each GPU and cycle of the engine.

The engine stamps every field by itself: most just before it asks the driver, so the samples of one cycle differ by
what the calls between them took, a few hundred microseconds each; some with the driver's own time. A row's `ts` is
the stamp of its energy counter, as joules are differences of that counter between stamps; where there is no new one,
that of its power. A gauge in a row may have been read up to half an interval from `ts`; `power_age_us` says by how
much the power reading is older (negative: younger).

A row is given as soon as every field that this GPU gives at that pace is there or has gone on without it, at the
latest after `SETTLED_US`. A sample is used once. So a read may repeat what earlier reads gave, and samples may come
late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...store.metrics import METRICS, ROW, Part
from ..backends import Readings, Status
from .matching import Offsets, add_age, average, carry_on, cells, chosen, further_rows, reach
from .reading import Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETTLED_US = 2_000_000  # the longest that a sample is waited for: a driver that is slower loses it
_ENERGY = ROW["energy_mj"]
# Fields that mark a cycle, the first that there is: the engine stamps them itself.
_CYCLE = tuple(ROW[name] for name in ("power_mw", "sm_clock_mhz", "temperature_c"))
_WINDOW = ROW["power_window_ms"]
_NUMBER = len(METRICS)
# Of these each sample counts: not of means, which are averaged, nor of a reading that stands anyway.
_COUNTS = np.array([m.name != "power_instant_mw" and not (m.dcgm and m.dcgm.profiling) for m in METRICS])
assert isinstance(METRICS[_WINDOW].nvml, Part)


@dataclass
class _Known:
    """What is known of one device."""

    interval_us: int
    window_ms: int | None
    fast: NDArray[np.bool_]  # (metrics,): what is sampled as often as there are rows
    absent: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(_NUMBER, bool))  # what was waited for in vain
    given_us: int = 0  # the stamp of its last row
    taken: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_NUMBER, np.int64))  # by metric: the last used
    gap_us: float = 0.0  # between its stamps, on average
    offsets: Offsets = field(default_factory=Offsets)
    reading: tuple[int, int] = (0, 0)  # the last of the power sensor: its time and value
    silent: bool = False  # it gives blanks only, and that was said
    blank_us: int | None = None  # since when

    def note_gaps(self, stamps: NDArray[np.int64]) -> None:
        """Take in the times of new samples."""
        since = self.given_us or (int(stamps[0]) - self.interval_us if len(stamps) else 0)
        if len(stamps):
            mean = min((int(stamps[-1]) - since) / len(stamps), 2 * self.interval_us)
            weight = 1 - 0.95 ** len(stamps)
            self.gap_us += weight * (mean - self.gap_us)


@dataclass
class _Rows:
    """Rows of one device."""

    device: int
    ts_us: NDArray[np.int64]
    values: NDArray[np.int64]  # (metrics, rows)
    status: NDArray[np.uint8]


class Assembler:
    """Makes rows of samples.

    `silent` holds the devices that turned silent in the last call.
    """

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self._pending = Samples.none()
        self.late = 0  # samples that came too late for their row, or without one
        self.silent: list[int] = []

    def meet(self, interval_us: int, expected: NDArray[np.bool_], window_ms: int | None) -> None:
        """One more device: how often it is sampled, what it should give each time, and its sensor's window."""
        self._known.append(_Known(interval_us, window_ms, expected, gap_us=interval_us))

    def forget_times(self) -> None:
        """The engine's clock was set back: stamps begin anew."""
        self._pending = Samples.none()
        for one in self._known:
            one.given_us, one.blank_us, one.reading = 0, None, (0, 0)
            one.taken[:] = 0

    def rows(self, new: Samples, now_us: int) -> Readings:
        """What can be made into rows by now, of new samples and those that waited. `now_us` is the engine's time."""
        self.silent = []
        there = Samples.joined([self._pending, new])
        made: list[_Rows] = []
        waiting: list[Samples] = []
        if len(there):
            there = there.pick(np.lexsort((there.ts, there.row, there.device)))
            # The same sample twice, from reads that overlap.
            again = np.zeros(len(there), bool)
            again[1:] = (
                (there.ts[1:] == there.ts[:-1])
                & (there.row[1:] == there.row[:-1])
                & (there.device[1:] == there.device[:-1])
            )
            there = there.pick(~again)
        bounds = np.searchsorted(there.device, np.arange(len(self._known) + 1))
        for device, known in enumerate(self._known):
            own = there.pick(slice(bounds[device], bounds[device + 1]))
            own = own.pick(own.ts > known.taken[own.row])
            rest = self._rows_of(device, known, own, now_us, made)
            if len(rest):
                waiting.append(rest)
        self._pending = Samples.joined(waiting)
        return _readings(made)

    def _rows_of(self, device: int, known: _Known, own: Samples, now_us: int, made: list[_Rows]) -> Samples:
        """Add the rows of one device to `made`; returns the samples that wait."""
        known.absent[own.row] = False
        anchors = self._anchors(known, own)
        if not len(anchors):
            return self._without_anchor(device, known, own, now_us, made)
        settled = now_us - SETTLED_US
        ts = known.offsets.removed(own)
        cell, used = cells(own, ts, anchors, known.interval_us)
        got = np.zeros((_NUMBER, len(anchors)), bool)
        got[own.row[used], cell[used]] = True
        # Of each field samples come in the order of their times: it may have gone on without one for a row.
        newest = np.zeros(_NUMBER, np.int64)
        np.maximum.at(newest, own.row, ts)
        got |= newest[:, None] > anchors + known.interval_us // 2
        ready = got[known.fast & ~known.absent].all(axis=0) | (anchors <= settled)
        number = len(anchors) if ready.all() else int(np.argmin(ready))
        if not number:
            return own
        mine = used & (cell < number)
        values = np.zeros((_NUMBER, number), np.int64)
        status = np.full((_NUMBER, number), Status.UNREAD, np.uint8)
        fast = _is_fast(known)
        at = chosen(own, ts, cell, mine, anchors, nearest=fast)
        values[own.row[at], cell[at]] = own.value[at]
        status[own.row[at], cell[at]] = own.status[at]
        average(own, cell, mine, values)
        add_age(own, at, cell, anchors, values, status)
        known.reading = carry_on(own, mine, known.reading, anchors[:number], values, status)
        if known.window_ms is not None:
            values[_WINDOW], status[_WINDOW] = known.window_ms, Status.OK
        known.offsets.learn(own.row[at], ts[at] - anchors[cell[at]])
        made.append(_Rows(device, anchors[:number], values, status))
        known.given_us = int(anchors[number - 1])
        known.blank_us = None
        known.silent = False
        known.absent |= ~got[:, :number].any(axis=1)
        np.maximum.at(known.taken, own.row[at], own.ts[at])
        left = own.ts > known.taken[own.row]
        keep = left & (own.ts > settled - reach(own, known.interval_us))
        over = ~keep
        over[at] = False
        if not fast:  # else there are more samples than were asked for
            self._give_further(device, known, own.pick(over), made)
        self.late += int((over & left & (own.status == Status.OK) & ~(known.fast & _COUNTS)[own.row]).sum())
        return own.pick(keep)

    def _give_further(self, device: int, known: _Known, own: Samples, made: list[_Rows]) -> None:
        """Samples that belong to no row become rows of their own, where each counts."""
        further = own.pick((own.status == Status.OK) & (known.fast & _COUNTS)[own.row])
        if len(further):
            made.append(_Rows(device, *further_rows(further, known.interval_us)))
            np.maximum.at(known.taken, further.row, further.ts)

    def _anchors(self, known: _Known, own: Samples) -> NDArray[np.int64]:
        """The stamps of the rows to come: those of the energy counter, and of cycles in which it had no new one."""
        good = (own.status == Status.OK) & (own.ts > known.given_us)
        rows, ts = own.row[good], own.ts[good]
        there = set(rows.tolist())
        marks = next((row for row in _CYCLE if row in there), None)
        if marks is None and _ENERGY not in there:  # an instance has none of these
            marks = min((row for row in there if known.fast[row]), default=None)
        stamps = ts[rows == _ENERGY]
        further = stamps[:0] if marks is None else ts[rows == marks]
        known.note_gaps(stamps if len(stamps) > len(further) else further)
        stamps, further = _thinned(stamps, known), _thinned(further, known)
        if not len(further):
            return stamps
        if not len(stamps):
            return further
        return np.sort(np.concatenate([stamps, further[_unmatched(further, stamps, known.interval_us)]]))

    def _without_anchor(self, device: int, known: _Known, own: Samples, now_us: int, made: list[_Rows]) -> Samples:
        """A device of which nothing has a value that could make a row: blanks, which become one row and no more."""
        fast = own.pick(known.fast[own.row])
        blanks = fast.pick(fast.status != Status.OK)
        if not len(blanks) or len(blanks) < len(fast):
            keep = own.ts > now_us - SETTLED_US
            self._give_further(device, known, own.pick(~keep), made)
            self.late += int((~keep & (own.status == Status.OK) & ~(known.fast & _COUNTS)[own.row]).sum())
            return own.pick(keep)
        first, last = int(blanks.ts.min()), int(blanks.ts.max())
        if known.blank_us is None:
            known.blank_us = max(first, known.given_us + 1)
        if not known.silent and last - known.blank_us >= min(2 * known.interval_us, SETTLED_US):
            known.silent = True
            status = np.full((_NUMBER, 1), Status.UNREAD, np.uint8)
            status[blanks.row, 0] = blanks.status
            made.append(_Rows(device, np.array([known.blank_us]), np.zeros((_NUMBER, 1), np.int64), status))
            known.given_us = known.blank_us
            self.silent.append(device)
        np.maximum.at(known.taken, blanks.row, blanks.ts)
        return own.pick((own.status == Status.OK) & (own.ts > now_us - SETTLED_US))


def _unmatched(further: NDArray[np.int64], stamps: NDArray[np.int64], interval_us: int) -> NDArray[np.bool_]:
    """Which further stamps are of cycles that none of `stamps` is of: it is that of the nearest."""
    right = np.minimum(np.searchsorted(stamps, further), len(stamps) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(further - stamps[left] <= stamps[right] - further, left, right)
    twice = np.flatnonzero(nearest[1:] == nearest[:-1])
    free = set(range(len(stamps))).difference(nearest.tolist()) if len(twice) <= len(stamps) else set()
    alone: NDArray[np.bool_] = np.abs(further - stamps[nearest]) > interval_us
    for first in twice.tolist():  # a late cycle and the next one
        at = int(nearest[first])
        if at - 1 in free:
            free.remove(at - 1)
        elif at + 1 in free:
            free.remove(at + 1)
        else:
            alone[first + int(abs(further[first + 1] - stamps[at]) > abs(further[first] - stamps[at]))] = True
    return alone


def _is_fast(known: _Known) -> bool:
    """Whether another client has the engine sample faster than we asked for."""
    return known.gap_us < 0.75 * known.interval_us


def _thinned(stamps: NDArray[np.int64], known: _Known) -> NDArray[np.int64]:
    """Without the further stamps that there are where another client has the engine sample faster.

    Two stamps that lie close together now and then are ours: a busy engine is late.
    """
    if not _is_fast(known):
        return stamps
    kept, last = [], known.given_us
    for stamp in stamps.tolist():
        if stamp - last >= 0.95 * known.interval_us:
            kept.append(stamp)
            last = stamp
    return np.array(kept, np.int64)


def _readings(made: list[_Rows]) -> Readings:
    """Rows of several devices, in the order of their times."""
    if not made:
        nothing = np.zeros((_NUMBER, 0), np.int64)
        return Readings(np.zeros(0, np.intp), np.zeros(0, np.int64), nothing, nothing.astype(np.uint8))
    device = np.concatenate([np.full(len(one.ts_us), one.device, np.intp) for one in made])
    ts = np.concatenate([one.ts_us for one in made]) * 1000
    order = np.argsort(ts, kind="stable")
    values = np.concatenate([one.values for one in made], axis=1)
    status = np.concatenate([one.status for one in made], axis=1)
    return Readings(device[order], ts[order], values[:, order], status[:, order])
