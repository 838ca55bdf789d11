"""How the energy of the GPUs is split among the spans that are open, and what a span used as a figure.

The rule: at each instant it goes to the innermost open spans, those without an open span inside, in equal parts. So a
span has what it used itself (its own) and what the spans inside it used, and that adds up. What is used while no span
is open belongs to none. A span that ends before those inside it is charged for them until they end.

So of W innermost spans, one that is innermost itself has the share 1 / W of the power, and a span with n of them inside
it, itself included, n / W. What a span used is the sum of share x energy over the stretches between events. The curve
of a GPU is uncertain by its `doubt` at each time: the sum is uncertain by the change of the share at each event x the
doubt then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...analysis.energy.aliasing import variance_j2
from .sensor import (
    ABOVE,
    ALIASING,
    BELOW,
    COUNTER_S,
    DOUBT,
    ENERGY,
    SECONDS,
    SENSED_J,
    SENSED_S,
    WIDTH,
    BoardLimits,
    EnergyCurve,
)
from .spans import Span, SpanEnergy, Unmeasured

Floats = NDArray[np.float64]

SpanEvent = tuple[float, Span, bool]
"""When a span begins or ends, s on the steady clock; the span; whether it begins."""
_TOGETHER = 100  # events that are taken in at once: what it takes grows with their square
_WHOLE, _OWN = range(2)  # what a span used with those inside it, and without


_Turn = tuple[int, int, int, int]
"""`_WHOLE` or `_OWN`, the number of an event, the row of a span, and how many innermost ones come or go there."""


class SpentSoFar(NamedTuple):
    """What a span had used by a time (s), shape (quantity, GPU), and the doubt about its power then, shape (GPU,)."""

    at_s: float
    used: Floats
    doubt: Floats

    def since(self, before: SpentSoFar | None = None) -> Floats:
        """What it used since an earlier time, or since it began, with the doubt about both ends."""
        used = self.used.copy() if before is None else self.used - before.used
        used[DOUBT] += self.doubt + (0.0 if before is None else before.doubt)
        return used


class Split:
    """The open spans and what they used so far, for the GPUs whose curves are given.

    Amounts have the shape (quantity, GPU), see `sensor`.
    """

    def __init__(self, curves: Sequence[EnergyCurve], began_s: float) -> None:
        self._curves = curves
        self._counted = self._read([began_s])[0]
        self._innermost = np.zeros((2, 0))  # of each span: how many innermost ones are inside it; whether it is one
        self._used = np.zeros((2, 0, WIDTH, len(curves)))
        self.until_s = began_s
        self.open_spans: dict[Span, int] = {}
        """Those that are open, or have open ones inside, with their rows in the arrays."""

    def _read(self, times: Sequence[float]) -> Floats:
        """What all GPUs had used by each time, and the doubt about it, shape (time, quantity, GPU)."""
        instants = np.array(times)
        return np.stack([curve.at(instants) for curve in self._curves], axis=2)

    def take(self, events: Sequence[SpanEvent], until_s: float) -> list[Span]:
        """Take in events, in order of time between `until_s` of before and the new one; returns the spans that ended
        for good."""
        counted = self._read([*(at_s for at_s, _, _ in events), until_s])
        ended: list[Span] = []
        for first in range(0, max(len(events), 1), _TOGETHER):
            last = first + _TOGETHER
            ended += self._take_batch(events[first:last], counted[first : last + 1])
        self.until_s = until_s
        return ended

    def _take_batch(self, events: Sequence[SpanEvent], counted: Floats) -> list[Span]:
        """Take in events with what all GPUs had used by each of them and, last, by the end of the batch."""
        ended: list[Span] = []
        turns: list[_Turn] = []
        for number, (_, span, begins) in enumerate(events, 1):
            if begins:
                self._begin(number, span, turns)
            else:
                self._end(number, span, turns, ended)

        new_spans = len(self.open_spans) - self._used.shape[1]
        before = np.pad(self._innermost, ((0, 0), (0, new_spans)))
        which, event, row, change = np.array(turns, np.intp).reshape(-1, 4).T
        innermost = np.concatenate([before[:, None], np.zeros((2, len(events), len(self.open_spans)))], axis=1)
        np.add.at(innermost, (which, event, row), change)
        innermost = np.cumsum(innermost, axis=1)
        sharing = np.maximum(innermost[_OWN].sum(axis=1), 1.0)  # W

        steps = np.diff(counted, axis=0, prepend=self._counted[None]) / sharing[:, None, None]
        later = np.cumsum(steps[::-1], axis=0)[::-1]  # what 1 / W of the power is from each event on
        used = before[:, :, None, None] * later[0]
        np.add.at(used, (which, row), change[:, None, None] * later[event])
        moved = np.abs(np.diff(innermost / sharing[:, None], axis=1))
        used[:, :, DOUBT] = moved.swapaxes(1, 2) @ counted[:-1, DOUBT]
        used[:, : self._used.shape[1]] += self._used
        for span in ended:
            span.used, span.own = used[:, self.open_spans.pop(span)].copy()
        going_on = list(self.open_spans.values())
        self._innermost, self._used = innermost[:, -1, going_on], used[:, going_on]
        self.open_spans = {span: row for row, span in enumerate(self.open_spans)}
        self._counted = counted[-1].copy()
        return ended

    def _begin(self, number: int, span: Span, turns: list[_Turn]) -> None:
        outer = span.within
        if outer is not None and not (outer.is_open or outer.children):
            outer = span.within = None  # it ended for good: what comes later is not in its figures
        self.open_spans[span] = len(self.open_spans)
        span.is_open, instead = True, None
        if outer is not None:
            instead = outer if not outer.children else None
            outer.children += 1
        turns += self._turns(number, span, 1, instead=instead)

    def _end(self, number: int, span: Span, turns: list[_Turn], ended: list[Span]) -> None:
        span.is_open = False
        if span.children:
            return
        last: Span | None = span
        while last is not None and not (last.is_open or last.children):  # it ended for good, and maybe those around it
            ended.append(last)
            last = last.within
            if last is not None:
                last.children -= 1
        turns += self._turns(number, span, -1, instead=last if last is not None and not last.children else None)

    def _turns(self, number: int, span: Span, change: int, *, instead: Span | None) -> Iterator[_Turn]:
        """A span becomes an innermost one (1) or was one (-1); `instead`, if any, around it, is one when it is not."""
        yield _OWN, number, self.open_spans[span], change
        if instead is not None:
            yield _OWN, number, self.open_spans[instead], -change
        around: Span | None = span
        while around is not instead and around is not None:
            yield _WHOLE, number, self.open_spans[around], change
            around = around.within

    def so_far(self, span: Span) -> tuple[SpentSoFar, Floats]:
        """What an open span used until `until_s`, and its own part of that."""
        row = self.open_spans[span]
        share = self._innermost[_WHOLE, row] / max(self._innermost[_OWN].sum(), 1.0)
        whole, own = self._used[:, row].copy()
        return SpentSoFar(self.until_s, whole, share * self._counted[DOUBT]), own


def joules(used: Floats | None) -> float | None:
    """The energy of an amount, J; None where nothing was read."""
    return None if used is None else float(used[ENERGY].sum())


def figure(used: Floats, boards: BoardLimits) -> SpanEnergy:
    """The figure of an amount."""
    total = used.sum(axis=1)
    seconds = float(used[SECONDS].max(initial=0.0))
    if seconds <= 0:
        return SpanEnergy(reason=Unmeasured.SHORT)
    doubt, energy = float(total[DOUBT]), max(float(total[ENERGY]), 0.0)
    of_boards = boards.error.variance(used[SENSED_J], used[SENSED_S]).sum()
    variance = np.maximum(variance_j2(total[ALIASING], seconds), 0.0)
    lower, upper = (float(end) for end in boards.error.ends(total[SENSED_J], total[SENSED_S], of_boards, variance))
    low = min(max(energy + min(lower, 0.0) - float(total[BELOW]) - doubt, 0.0), energy)
    high = max(min(energy + max(upper, 0.0) + float(total[ABOVE]) + doubt, boards.most_w * seconds), energy)
    sensed_s = float(total[SENSED_S])
    measured = min(sensed_s / (used.shape[1] * seconds), 1.0)
    reason = Unmeasured.GAPS if measured <= 0.5 else Unmeasured.SHORT if doubt >= energy else None
    method = None if not sensed_s else "counter" if 2 * total[COUNTER_S] >= sensed_s else "power"
    return SpanEnergy(None if reason else energy, low, high, method, measured, reason, doubt)
