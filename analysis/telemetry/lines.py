"""Lines of some GPUs over a range of time, each with few points, and spans of what their masks and marks say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...store.vocabulary import CLOCK_EVENTS
from .readings import Floats, Key, Read, Series, Times, read
from .reducing import PER_STRETCH, reduced
from .shown import shown

if TYPE_CHECKING:
    from ...store import Store

POINTS = 30_000
"""Of all lines of an answer together: half a megabyte."""
_LEAST, _MOST = 240, 4_000  # of one line
_SPANS = 2_000  # of an answer
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

    def after(self, at: int) -> Line:
        """Its points from `at` on, with the gap right before them."""
        own = self.ts >= at - 1
        return replace(self, ts=self.ts[own], value=self.value[own])


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
        for one in self.lines:
            most[one.key] = max(most.get(one.key, 0), one.readings)
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
    named = [shown(name) for name in metrics]
    drawn = [one for one in named if one.kind != "mask"]
    most = None if width_ns else points or points_of(len(keys) * len(drawn))
    width = width_ns or _width(until - since, most or _MOST)
    more = max(int(_MARGIN * (until - since)), MARGIN_NS)
    found: list[Line] = []
    reasons: list[Span] = []
    marks: list[Span] = []
    pruned = []
    for own in read(store, keys, metrics, since, until, margin_ns=more):
        for one in drawn:
            series = own.series[one.name]
            ts, value = reduced(series, width, most, max(1, width // PER_STRETCH))
            found.append(Line(own.key, one.name, ts, value * one.factor, series.readings, series.step_ns))
        for one in named:
            if one.kind == "mask":
                reasons += _reasons(own, own.series[one.name], since, until, width)
        marks += _marks(own, since, until, width)
        if own.pruned_ns is not None:
            pruned.append(own.pruned_ns)
    kept = _longest(reasons), _longest(marks)
    left_out = len(reasons) + len(marks) - sum(map(len, kept))
    return Lines(since, until, width, tuple(found), *kept, left_out, max(pruned, default=None))


def _reasons(own: Read, series: Series, since: int, until: int, width: int) -> list[Span]:
    """The spans of each bit of a mask. A reading counts up to the next one."""
    if not len(series.ts):
        return []
    usual = series.step_ns or width
    ended = np.append(np.where(series.near, series.ts[1:], series.ts[:-1] + usual), series.ts[-1] + usual)
    bits = series.value.astype(np.int64)
    found = []
    for reason in CLOCK_EVENTS:
        if reason.bit is not None:
            held = np.flatnonzero(bits & reason.bit)
            found += _joined(own.key, reason.name, series.ts[held], ended[held], since, until, width)
    return found


def _marks(own: Read, since: int, until: int, width: int) -> list[Span]:
    found = []
    for mark in dict.fromkeys(text for _, _, text in own.quality):
        began, ended = (np.array([one[side] for one in own.quality if one[2] == mark], np.int64) for side in (0, 1))
        found += _joined(own.key, mark, began, ended, since, until, width)
    return found


def _joined(key: Key, what: str, began: Times, ended: Times, since: int, until: int, width: int) -> list[Span]:
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
    return [Span(key, what, int(a), int(b), int(length), int(n)) for a, b, length, n in rows]


def _longest(spans: list[Span]) -> tuple[Span, ...]:
    if len(spans) > _SPANS:
        spans = sorted(spans, key=lambda one: -one.lasted_ns)[:_SPANS]
    return tuple(spans)
