"""How the energy of the GPUs is split among the spans that are open.

The rule: at each instant it goes to the innermost open spans, those without an open span inside, in proportion to their
weights. So a span has what it used itself (its own) and what the spans inside it used, and that adds up. What is used
while no span is open belongs to none. A span that ends before those inside it is charged for them until they end.

A span inside another has the part `w / W` of the power, `w` being the weights of the innermost spans inside it and `W`
those of all. With V, the integral of power / W, it uses w x (V(end) - V(begin)) while w does not change. So an event
costs the same however many spans are open, and only spans whose w changes are looked at.

The curve of a GPU is uncertain by its `doubt` at each time. An integral of share x power is then uncertain by the
doubt at each change of the share times the size of this change; changes of 1 / W are added up beside V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .curve import DOUBT, WIDTH

Floats = NDArray[np.float64]


class Curves(Protocol):
    """The curve of a GPU; see `curve.Curve`."""

    def at(self, times: Floats) -> tuple[Floats, Floats]: ...


class Node:
    """The place of a span in the tree."""

    __slots__ = ("_last", "_place", "children", "inside", "lasts", "used", "used_inside", "weight", "within")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.within: Node | None = None  # the span that this one is inside of and counted in
        self.children = 0  # inside it, open or with open ones inside
        self.lasts = False  # is open
        self.inside = 0.0  # weights of the innermost open spans inside it, itself included
        self.used: Floats | None = None  # once ended: by GPU what `curve` counts, and at the end the s of its share
        self.used_inside: Floats | None = None  # the same of the spans directly inside it; None for none
        self._last: Floats | None = None
        self._place = -1  # in the batch


Event = tuple[float, Node, bool]  # s, the span, and whether it begins (or ends)


class Splitting:
    """The open spans and what they used so far, for the GPUs whose curves are given."""

    def __init__(self, curves: Sequence[Curves], began: float) -> None:
        self._curves = curves
        self._weight = 0.0  # of all innermost spans
        self._innermost = 0  # how many these are
        self._doubts = WIDTH * np.arange(len(curves)) + DOUBT  # where each curve's doubt stands
        self._potential = np.zeros(WIDTH * len(curves) + 1)  # V of each quantity; the last is time
        self._counted = self._readings(np.array([began]))[0][0]

    @property
    def idle(self) -> bool:
        """Whether no span is open."""
        return self._innermost == 0

    def _readings(self, times: Floats) -> tuple[Floats, Floats]:
        """What all GPUs had used by each time, (times, quantities), and the doubt about it, (times, GPUs)."""
        counted = np.empty((len(times), len(self._potential)))
        doubt = np.empty((len(times), len(self._curves)))
        for gpu, curve in enumerate(self._curves):
            first = WIDTH * gpu
            counted[:, first : first + WIDTH], doubt[:, gpu] = curve.at(times)
        counted[:, -1] = times
        return counted, doubt

    def take(self, events: Sequence[Event]) -> list[Node]:
        """Take in events, in order of time and not before any taken earlier; returns the spans that ended for good."""
        ended: list[Node] = []
        changes: list[tuple[int, Node, float, float]] = []  # event, span, `inside` before and after
        weights = np.empty(len(events) + 1)
        weights[0] = self._weight
        for number, (_, node, begins) in enumerate(events):
            if begins:
                self._begin(number, node, changes)
            else:
                self._end(number, node, changes, ended)
            weights[number + 1] = self._weight
        self._count(events, weights, changes)
        for node in ended:
            outer = node.within
            if outer is not None and node.used is not None:
                if outer.used_inside is None:
                    outer.used_inside = node.used.copy()
                else:
                    outer.used_inside += node.used
        return ended

    def _begin(self, number: int, node: Node, changes: list[tuple[int, Node, float, float]]) -> None:
        outer = node.within
        if outer is not None and not (outer.lasts or outer.children):
            outer = node.within = None  # it ended for good: what comes later is not in its figures
        node.lasts, node.inside = True, node.weight
        changes.append((number, node, 0.0, node.weight))
        more = node.weight
        self._innermost += 1
        if outer is not None:
            if outer.lasts and not outer.children:
                more -= outer.weight
                self._innermost -= 1
            outer.children += 1
        while outer is not None and more:
            before = outer.inside
            outer.inside = before + more
            changes.append((number, outer, before, outer.inside))
            outer = outer.within
        self._weight += more

    def _end(self, number: int, node: Node, changes: list[tuple[int, Node, float, float]], ended: list[Node]) -> None:
        node.lasts = False
        if node.children:
            return
        changes.append((number, node, node.inside, 0.0))
        node.inside = 0.0
        ended.append(node)
        more, left = -node.weight, True
        self._innermost -= 1
        outer = node.within
        while outer is not None and (more or left):
            if left:
                outer.children -= 1
                left = not (outer.children or outer.lasts)
                if left:
                    ended.append(outer)
                elif not outer.children:
                    more += outer.weight
                    self._innermost += 1
            if more:
                before = outer.inside
                outer.inside = before + more if not left else 0.0
                changes.append((number, outer, before, outer.inside))
            outer = outer.within
        self._weight = self._weight + more if self._innermost else 0.0  # sums of weights may leave a rest

    def _count(
        self, events: Sequence[Event], weights: Floats, changes: Sequence[tuple[int, Node, float, float]]
    ) -> None:
        """Give every span whose weight changed what it used since its last change."""
        times = np.array([event[0] for event in events])
        counted, doubt = self._readings(times)
        each = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0)
        steps = np.empty_like(counted)
        steps[0] = counted[0] - self._counted
        np.subtract(counted[1:], counted[:-1], out=steps[1:])
        steps *= each[:-1, None]
        moved = np.abs(np.diff(each))[:, None] * doubt
        steps[1:, self._doubts] += moved[:-1]
        steps[0] += self._potential
        before = np.cumsum(steps, axis=0, out=steps)  # without what the event itself moves
        self._counted, self._potential = counted[-1].copy(), before[-1].copy()
        self._potential[self._doubts] += moved[-1]
        if not changes:  # spans ended around others that go on
            return

        nodes: list[Node] = []
        kept: list[Floats] = []  # where the spans changed that changed before these events
        rows: list[int] = []  # of each change, its span's
        since: list[int] = []  # of each change, where its span changed before: an event, or beyond these one of `kept`
        latest: list[int] = []
        for number, node, _, _ in changes:
            place = node._place
            if place < 0:
                place = node._place = len(nodes)
                nodes.append(node)
                latest.append(number)
                if node._last is None:
                    since.append(number)  # it begins here: nothing was used yet
                else:
                    since.append(len(events) + len(kept))
                    kept.append(node._last)
            else:
                since.append(latest[place])
                latest[place] = number
            rows.append(place)
        at = np.array([change[0] for change in changes])
        old, new = np.array([change[2:] for change in changes]).T
        stood, shifted = before, moved
        if kept:
            stood = np.concatenate([before, np.array(kept)])
            shifted = np.concatenate([moved, np.zeros((len(kept), len(self._curves)))])
        used = before[at] - stood[since]
        used[:, self._doubts] -= shifted[since]
        used *= old[:, None]
        used[:, self._doubts] += np.abs(new * each[at + 1] - old * each[at])[:, None] * doubt[at]
        sums = np.zeros((len(nodes), len(self._potential)))
        np.add.at(sums, rows, used)
        for place, node in enumerate(nodes):
            node.used = sums[place].copy() if node.used is None else node.used + sums[place]
            node._place = -1
            if node.inside:
                node._last = before[latest[place]].copy()
                node._last[self._doubts] += moved[latest[place]]
