"""Lines of some GPUs over a range of time, each with few points, and spans of what their masks and marks say; and what
came since, also what is only in journals yet.

A line with fewer points looks the same: of each stretch of time it keeps the first, lowest, highest and last reading.
These four at their own times draw what all readings would draw at that width (M4: Jugel et al., VLDB 2014). So a spike
of a single reading stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...store.vocabulary import CLOCK_EVENTS
from .readings import Bools, Floats, Key, Read, Series, Times, read, shown

if TYPE_CHECKING:
    from ...store import Store

Places = NDArray[np.intp]

PER_STRETCH = 4
FEWEST = 2 * 3 * PER_STRETCH - 1  # dots and the gaps between them, of the two stretches that 1970 parts at any width

POINTS = 30_000
"""Of all lines of an answer together: half a megabyte."""
_LEAST, _MOST = 240, 4_000  # of one line
_SPANS = 2_000  # of an answer
_PAUSE_NS, _STEPS = 10_000_000_000, 5
_MARGIN = 0.05  # of the range before and after it, so that lines enter and leave it
MARGIN_NS = 60_000_000_000
"""So long before and after a range is read at least."""


@dataclass(frozen=True)
class Line:
    """A metric of a GPU; arrays (k,). `value` is in the unit in which it is shown, NaN between two pieces."""

    key: Key
    metric: str
    ts: Times
    value: Floats
    readings: int
    """Of how many readings it is made."""
    step_ns: int | None
    """How far they usually are apart."""


@dataclass(frozen=True)
class Span:
    """A time in which a reason for the clock or a mark stood. Several that lie together are one, of `times`."""

    key: Key
    what: str
    began: int
    ended: int
    lasted_ns: int
    times: int


@dataclass(frozen=True)
class Lines:
    """What some GPUs did from `since` to `until` (ns since 1970)."""

    since: int
    until: int
    width_ns: int
    """The stretch of time of which a line keeps first, lowest, highest and last."""
    lines: tuple[Line, ...]
    reasons: tuple[Span, ...]
    marks: tuple[Span, ...]
    more_spans: int
    """Spans that are left out, the shortest ones."""
    pruned_ns: int | None
    """Up to here, readings were pruned to minutes; None where none was."""

    @property
    def reduced(self) -> bool:
        """Whether a line has fewer points than readings."""
        return any(len(line.ts) < line.readings for line in self.lines)

    @property
    def readings(self) -> int:
        """The readings behind all lines. One reading of a GPU may tell of several metrics."""
        most: dict[Key, int] = {}
        for line in self.lines:
            most[line.key] = max(most.get(line.key, 0), line.readings)
        return sum(most.values())


def points_of(lines: int) -> int:
    """How many points each of so many lines may have."""
    return int(np.clip(POINTS // max(lines, 1), _LEAST, _MOST))


def stretch(range_ns: int, gpus: int, metrics: Sequence[str]) -> int:
    """How long a stretch of time is of which a line keeps four readings (ns), by how many lines there are."""
    drawn = sum(shown(name).kind != "mask" for name in metrics)
    return _width(range_ns, points_of(gpus * drawn))


def _width(range_ns: int, points: int) -> int:
    return max(1, range_ns * PER_STRETCH // points)


def lines(
    store: Store, keys: Sequence[Key], metrics: Sequence[str], since: int, until: int, *, points: int | None = None,
    width_ns: int | None = None,
) -> Lines:  # fmt: skip
    """The telemetry of these GPUs from `since` to before `until`: `points` a line at most, or stretches of `width_ns`.

    A few readings before and after are there too. Raises QueryError for an unknown metric, and where there are too many
    readings.
    """
    chosen = [shown(name) for name in metrics]
    drawn = [metric for metric in chosen if metric.kind != "mask"]
    most = None if width_ns else points or points_of(len(keys) * len(drawn))
    width = width_ns or _width(until - since, most or _MOST)
    margin_ns = max(int(_MARGIN * (until - since)), MARGIN_NS)
    lines_read: list[Line] = []
    reasons: list[Span] = []
    marks: list[Span] = []
    pruned = []
    for gpu_read in read(store, keys, metrics, since, until, margin_ns=margin_ns):
        for metric in drawn:
            series = gpu_read.series[metric.name]
            ts, value = reduced(series, width, most, max(1, width // PER_STRETCH))
            lines_read.append(
                Line(gpu_read.key, metric.name, ts, value * metric.factor, series.readings, series.step_ns)
            )
        for metric in chosen:
            if metric.kind == "mask":
                reasons += _reasons(gpu_read, gpu_read.series[metric.name], since, until, width)
        marks += _marks(gpu_read, since, until, width)
        if gpu_read.pruned_ns is not None:
            pruned.append(gpu_read.pruned_ns)
    longest = _longest(reasons), _longest(marks)
    left_out = len(reasons) + len(marks) - sum(map(len, longest))
    return Lines(since, until, width, tuple(lines_read), *longest, left_out, max(pruned, default=None))


def _reasons(gpu_read: Read, series: Series, since: int, until: int, width: int) -> list[Span]:
    """The spans of each bit of a mask. A reading counts up to the next one."""
    if not len(series.ts):
        return []
    usual = series.step_ns or width
    ended = np.append(np.where(series.near, series.ts[1:], series.ts[:-1] + usual), series.ts[-1] + usual)
    bits = series.value.astype(np.int64)
    spans = []
    for reason in CLOCK_EVENTS:
        if reason.bit is not None:
            held = np.flatnonzero(bits & reason.bit)
            spans += _joined(gpu_read.key, reason.name, series.ts[held], ended[held], since, until, width)
    return spans


def _marks(gpu_read: Read, since: int, until: int, width: int) -> list[Span]:
    spans = []
    for mark in dict.fromkeys(text for _, _, text in gpu_read.quality):
        began, ended = (
            np.array([mark_time[side] for mark_time in gpu_read.quality if mark_time[2] == mark], np.int64)
            for side in (0, 1)
        )
        spans += _joined(gpu_read.key, mark, began, ended, since, until, width)
    return spans


def _joined(key: Key, name: str, began: Times, ended: Times, since: int, until: int, width: int) -> list[Span]:
    """Spans that follow each other as one; and those that lie closer together than can be seen."""
    inside = (ended > since) & (began < until)
    began, ended = np.maximum(began[inside], since), np.minimum(ended[inside], until)
    if not len(began):
        return []
    apart = began[1:] - ended[:-1]
    new = np.append(0, np.flatnonzero(apart > width) + 1)
    lasted, separate = np.add.reduceat(ended - began, new), np.add.reduceat(np.append(1, apart > 0), new)
    last = np.append(new[1:], len(began)) - 1
    rows = zip(began[new], ended[last], lasted, separate, strict=True)
    return [Span(key, name, int(a), int(b), int(length), int(n)) for a, b, length, n in rows]


def _longest(spans: list[Span]) -> tuple[Span, ...]:
    if len(spans) > _SPANS:
        spans = sorted(spans, key=lambda span: -span.lasted_ns)[:_SPANS]
    return tuple(spans)


# -- fewer points -------------------------------------------------------------------------------------------------


def reduced(series: Series, width_ns: int, most: int | None, dot_ns: int) -> tuple[Times, Floats]:
    """The points of a line, `most` at most (FEWEST if it is less): when (ns), and the value, NaN between two pieces
    that a gap parts.

    All readings if they are few enough; else those that stretches of `width_ns` keep, or wider ones where gaps
    make too many pieces. Without `most`, those that stretches of `width_ns` keep. A reading between two gaps is drawn
    as a dot: a line that is `dot_ns` long.
    """
    if most is None:
        return drawn(series, kept(series.ts, series.value, width_ns), dot_ns)
    most = max(most, FEWEST)
    places: Places = np.arange(len(series.ts))
    while True:
        if len(places) <= most:
            ts, value = drawn(series, places, dot_ns)
            if len(ts) <= most:
                return ts, value
        places = kept(series.ts, series.value, width_ns)
        width_ns *= 2


def kept(ts: Times, value: Floats, width_ns: int) -> Places:
    """The places of the first, lowest, highest and last reading of each stretch of time. Stretches begin at multiples
    of `width_ns` since 1970."""
    if not len(ts):
        return np.zeros(0, np.intp)
    stretch = ts // width_ns
    first = np.concatenate([[0], np.flatnonzero(np.diff(stretch)) + 1])
    last = np.append(first[1:], len(ts)) - 1
    number = np.repeat(np.arange(len(first)), last - first + 1)
    extremes = []
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(value == extreme.reduceat(value, first)[number])
        stretch_of = number[at]
        extremes.append(at[np.append(True, stretch_of[1:] != stretch_of[:-1])])  # the first of equal ones
    return np.unique(np.concatenate([first, last, *extremes]))


def drawn(series: Series, places: Places, dot_ns: int) -> tuple[Times, Floats]:
    """The points at these places, with NaN where a gap lies between two."""
    ts, value = series.ts[places], series.value[places]
    if not len(ts):
        return ts, value
    parted = _parted(series.near, places)
    begins, ends = np.append(True, parted), np.append(parted, True)
    alone = begins & ends
    gap = np.append(parted, False)
    times = 1 + alone + gap
    place = np.repeat(np.arange(len(ts)), times)
    after = np.cumsum(times)
    room = np.append(np.diff(ts), 2 * dot_ns)
    following = ts[np.flatnonzero(gap) + 1]
    ts, value = ts[place], value[place]
    dots = after[alone] - 1 - gap[alone]
    ts[dots] += np.minimum(dot_ns, room[alone] // 2)
    value[after[gap] - 1] = np.nan
    ts[after[gap] - 1] = following - 1  # it belongs to what follows: a line that is read on from there has it
    return ts, value


def _parted(near: Bools, places: Places) -> Bools:
    """Whether a gap lies between a place and the next one."""
    gaps = np.concatenate([[0], np.cumsum(~near)])
    parted: Bools = gaps[places[1:]] > gaps[places[:-1]]
    return parted


# -- what came last -----------------------------------------------------------------------------------------------


def silent_since(last: Mapping[Key, int], steps: Mapping[Key, int | None], now: int) -> dict[Key, int]:
    """The GPUs from which nothing comes any more, and when the last reading of each was taken.

    That is so after several of their usual steps, and some seconds in which a collector may pause.
    """
    patience = {key: _PAUSE_NS + _STEPS * (steps.get(key) or 0) for key in last}
    return {key: at for key, at in last.items() if now - at > patience[key]}
