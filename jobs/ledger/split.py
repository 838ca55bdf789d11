"""How the energy of the GPUs is split among the spans that are open, and what a span used as a figure.

The rule: at each instant it goes to the innermost open spans, those without an open span inside, in equal parts. So a
span has what it used itself (its own) and what the spans inside it used, and that adds up. What is used while no span
is open belongs to none. A span that ends before those inside it is charged for them until they end.

Of W innermost spans, n inside a span give it the part n / W of the power. With V, the integral of power / W, it uses
n x (V(end) - V(begin)) while n does not change. So an event costs the same however many spans are open, and only spans
whose n changes are looked at.

The curve of a GPU is uncertain by its `doubt` at each time. An integral of share x power is then uncertain by the doubt
at each change of the share times the size of this change; changes of 1 / W are added up beside V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...store.aliasing import variance_j2
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
_Change = tuple[int, Span, int, int]
"""The number of an event, a span, and its `leaves` before and after it."""


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
        self._leaves = 0  # innermost open spans
        self._potential = np.zeros((WIDTH, len(curves)))  # V of each quantity
        self._counted = self._read([began_s])[0]
        self.until_s = began_s
        self.open_spans: set[Span] = set()
        """Those that are open, or have open ones inside."""

    def _read(self, times: Sequence[float]) -> Floats:
        """What all GPUs had used by each time, and the doubt about it, shape (time, quantity, GPU)."""
        instants = np.array(times)
        return np.stack([curve.at(instants) for curve in self._curves], axis=2)

    def take(self, events: Sequence[SpanEvent], until_s: float) -> list[Span]:
        """Take in events, in order of time between `until_s` of before and the new one; returns the spans that ended
        for good."""
        ended: list[Span] = []
        changes: list[_Change] = []
        parts = [1 / self._leaves if self._leaves else 0.0]  # of a leaf, before and after each event
        for number, (_, span, begins) in enumerate(events):
            if begins:
                self._begin(number, span, changes)
            else:
                self._end(number, span, changes, ended)
            parts.append(1 / self._leaves if self._leaves else 0.0)

        counted = self._read([*(at_s for at_s, _, _ in events), until_s])
        doubt = counted[:, DOUBT].copy()
        share = np.array(parts)
        steps = np.diff(counted, axis=0, prepend=self._counted[None]) * share[:, None, None]
        moved = np.abs(np.diff(share))[:, None] * doubt[:-1]
        steps[0, DOUBT], steps[1:, DOUBT] = 0.0, moved
        steps[0] += self._potential
        potential = np.cumsum(steps, axis=0)  # at each event, without what the event itself moves
        self._counted, self._potential, self.until_s = counted[-1].copy(), potential[-1].copy(), until_s
        if changes:
            self._count(changes, potential, doubt, moved, share)
        for span in ended:
            outer = span.within
            if outer is not None and span.used is not None:
                outer.used_inside = span.used + (0.0 if outer.used_inside is None else outer.used_inside)
        return ended

    @staticmethod
    def _count(changes: list[_Change], potential: Floats, doubt: Floats, moved: Floats, share: Floats) -> None:
        """Give every span whose `leaves` changed what it used since its last change."""
        at = np.array([change[0] for change in changes])
        before, after = np.array([change[2:] for change in changes]).T
        extra = np.abs(after * share[at + 1] - before * share[at])[:, None] * doubt[at]
        ends, starts = potential[at], potential[at]
        ends[:, DOUBT] += extra * (after == 0)[:, None]  # the last change of a span; its `before` is 1
        starts[:, DOUBT] += moved[at] - extra / np.maximum(after, 1)[:, None]
        for place, (_, span, leaves_before, leaves_after) in enumerate(changes):
            if leaves_before:
                used = ends[place] - span.since
                if leaves_before > 1:
                    used *= leaves_before
                span.used = used if span.used is None else span.used + used
            if leaves_after:
                span.since = starts[place].copy()

    def _begin(self, number: int, span: Span, changes: list[_Change]) -> None:
        outer = span.within
        if outer is not None and outer not in self.open_spans:
            outer = span.within = None  # it ended for good: what comes later is not in its figures
        self.open_spans.add(span)
        span.is_open, span.leaves = True, 1
        changes.append((number, span, 0, 1))
        added = 1
        if outer is not None:
            added -= outer.is_open and not outer.children
            outer.children += 1
        self._add(number, outer, added, changes)

    def _end(self, number: int, span: Span, changes: list[_Change], ended: list[Span]) -> None:
        span.is_open = False
        added = 0
        last: Span | None = span
        while last is not None and not (last.is_open or last.children):  # it ended for good, and maybe those around it
            changes.append((number, last, last.leaves, 0))
            added, last.leaves = -1, 0
            self.open_spans.discard(last)
            ended.append(last)
            last = last.within
            if last is not None:
                last.children -= 1
        if last is not None and added and last.is_open and not last.children:
            added = 0  # it is an innermost one again
        self._add(number, last, added, changes)

    def _add(self, number: int, span: Span | None, added: int, changes: list[_Change]) -> None:
        """There are so many more leaves inside a span, and in those around it."""
        self._leaves += added
        while span is not None and added:
            changes.append((number, span, span.leaves, span.leaves + added))
            span.leaves += added
            span = span.within

    def so_far(self, span: Span) -> SpentSoFar:
        """What an open span used until `until_s`."""
        used = np.zeros_like(self._potential) if span.used is None else span.used.copy()
        if span.since is None or not span.leaves:
            return SpentSoFar(self.until_s, used, np.zeros(len(self._curves)))
        used += span.leaves * (self._potential - span.since)
        return SpentSoFar(self.until_s, used, span.leaves / self._leaves * self._counted[DOUBT])


def own_part(span: Span) -> Floats | None:
    """What a span used outside the finished spans inside it; None where nothing was read."""
    if span.used is None or span.used_inside is None:
        return span.used
    used = span.used - span.used_inside
    used[DOUBT] += 2 * span.used_inside[DOUBT]
    return used


def joules(used: Floats | None) -> float | None:
    """The energy of an amount, J."""
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
