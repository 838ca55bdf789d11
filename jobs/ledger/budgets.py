"""Budgets: spans that say what is left of a limit and call back when it is over; and totals of spans by name."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...store.vocabulary import Code
from .spans import Parent, Span, SpanBook, SpanEnergy, Unmeasured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .sensor import BoardLimits
    from .split import SpentSoFar

    Floats = NDArray[np.float64]

_MOST_KINDS = 10_000  # kinds of spans that are told apart
RATE_S = 10.0
"""The rate is that of the last so many seconds."""
_LEAST_S = 1.0  # shorter times have no rate
_AGAIN = 0.95  # of a limit: a rate below that is under it again, so that one near the limit does not cross it for ever
_J_PER_KWH = 3.6e6

Emissions = Callable[[int], float | None]
"""What a kWh emits at a time (ns since 1970), g CO2e; None where nobody knows."""


class Limit(Code):
    """What a budget limits."""

    JOULES = "joules", "all its energy, J"
    GRAMS_PER_HOUR = "grams_per_hour", "the CO2e of its power over the last 10 s, g/h"


@dataclass(frozen=True)
class Amount:
    """A value between the ends of its 95 % interval; all None where nobody asked, or for a `reason`."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: Unmeasured | None = None

    @classmethod
    def of(cls, energy: SpanEnergy, seconds: float = 1.0) -> Amount:
        """The energy of a figure, J; over so many seconds, the mean power, W."""
        ends = (energy.energy_j, energy.low_j, energy.high_j)
        value, low, high = (None if end is None else end / seconds for end in ends)
        return cls(value, low, high, energy.reason)

    def times(self, factor: float | None) -> Amount:
        """In another unit; where the factor is not known there is none."""
        if factor is None:
            return Amount(reason=self.reason or Unmeasured.NO_FACTOR)
        value, low, high = (None if end is None else end * factor for end in (self.value, self.low, self.high))
        return Amount(value, low, high, self.reason)

    def taken_from(self, limit: float | None) -> Amount:
        """What it leaves of a limit, below 0 where it is over it."""
        if limit is None:
            return Amount()
        value, low, high = (None if end is None else limit - end for end in (self.value, self.high, self.low))
        return Amount(value, low, high, self.reason)

    def over(self, rate: Amount) -> Amount:
        """How long it lasts at a rate."""
        pairs = ((self.value, rate.value), (self.low, rate.high), (self.high, rate.low))
        value, low, high = (max(end / by, 0.0) if end is not None and by else None for end, by in pairs)
        return Amount(value, low, high, self.reason or rate.reason)


@dataclass(frozen=True)
class Left:
    """What is left of a budget at one instant, and the rate at which it is used."""

    joules: Amount
    seconds: Amount
    """How long the joules last at the present rate."""
    watts: Amount
    grams_per_hour: Amount
    """The present rate."""


class Budget(Span):
    """A span with limits: what the GPUs use for it, and for the spans inside it, counts.

    `left_j` and `left_s` (J, s at the present rate) are what is left; `left()` has them with their intervals and the
    rate itself. None where no honest figure exists; `left_reason` says why.

    `on_over(budget, limit)` is called once each time the best value crosses a limit, on the ledger's thread or from
    what asks. `over` has the limits that are over now. A rate is under its limit again below 95 % of it.
    """

    __slots__ = ("_emissions", "_points", "_rate", "_so_far", "limits", "on_over", "over")

    def __init__(
        self,
        open_book: Callable[[], SpanBook],
        name: str,
        parent: Parent,
        *,
        limits: Mapping[Limit, float | None],
        emissions: Emissions | None,
        on_over: Callable[[Budget, Limit], object] | None,
    ) -> None:
        self.limits = {limit: most for limit, most in limits.items() if most is not None}
        for limit, most in self.limits.items():
            if not (isinstance(most, int | float) and math.isfinite(most) and most > 0):
                raise InputError(f"a budget of {limit} is a number above 0, and not {most!r}")
        if not self.limits:
            raise InputError(f"a budget needs a limit: {' or '.join(f'{limit}=...' for limit in Limit)}")
        super().__init__(open_book, name, parent, attributes={str(limit): most for limit, most in self.limits.items()})
        self.on_over = on_over
        self.over: frozenset[Limit] = frozenset()
        self._emissions = emissions
        self._points: deque[SpentSoFar] = deque()
        self._so_far = self._rate = Amount(reason=Unmeasured.OPEN)

    def _fresh(self) -> Budget:
        return Budget(
            self._open_book, self.name, self._parent,
            limits=dict(self.limits), emissions=self._emissions, on_over=self.on_over,
        )  # fmt: skip

    def left(self) -> Left:
        """What is left, from the newest values of the sensors; after its end, what was left then."""
        factor = None
        if self.book is not None:
            self.book.check()
            self.settle()
            if self.book.why is not None:
                self._so_far = self._rate = Amount(reason=self.book.why)
            factor = self._factor(self.book.wall_ns())
        joules = self._so_far.taken_from(self.limits.get(Limit.JOULES))
        return Left(joules, joules.over(self._rate), self._rate, self._grams_per_hour(factor))

    @property
    def left_j(self) -> float | None:
        return self.left().joules.value

    @property
    def left_s(self) -> float | None:
        return self.left().seconds.value

    @property
    def left_reason(self) -> Unmeasured | None:
        """Why a limit cannot be watched; None where all are."""
        left = self.left()
        amounts = {Limit.JOULES: left.joules, Limit.GRAMS_PER_HOUR: left.grams_per_hour}
        return next((amounts[limit].reason for limit in self.limits if amounts[limit].reason is not None), None)

    def _factor(self, at_ns: int) -> float | None:
        return None if self._emissions is None else self._emissions(at_ns)

    def _grams_per_hour(self, factor: float | None) -> Amount:
        return self._rate.times(None if factor is None else factor * 3600 / _J_PER_KWH)

    def judge(self, spent: SpentSoFar, boards: BoardLimits, wall_ns: int) -> list[Limit]:
        """Take in what it has used so far; returns the limits that this crosses. For the book, which calls back."""
        from .split import figure

        self._so_far = Amount.of(figure(spent.since(), boards))
        if not self._points or spent.at_s - self._points[-1].at_s >= _LEAST_S:
            self._points.append(spent)
        while len(self._points) > 1 and spent.at_s - self._points[1].at_s >= RATE_S:
            self._points.popleft()
        first = self._points[0]
        if spent.at_s - first.at_s >= _LEAST_S:
            self._rate = Amount.of(figure(spent.since(first), boards), spent.at_s - first.at_s)
        values = {
            Limit.JOULES: self._so_far.value,
            Limit.GRAMS_PER_HOUR: self._grams_per_hour(self._factor(wall_ns)).value,
        }
        crossed = []
        for limit, most in self.limits.items():
            value = values[limit]
            if value is not None and limit not in self.over and value > most:
                self.over |= {limit}
                crossed.append(limit)
            elif value is not None and value < _AGAIN * most:
                self.over -= {limit}
        return crossed


# -- totals -------------------------------------------------------------------------------------------------------


@dataclass
class Total:
    """The spans of one name with the same attributes that have ended: their number, time and energy, all together."""

    name: str
    attributes: Mapping[str, Any]
    n: int = 0
    seconds: float = 0.0
    _used: Floats | None = field(default=None, repr=False)
    _boards: BoardLimits | None = field(default=None, repr=False)
    _reason: Unmeasured | None = field(default=None, repr=False)

    def figure(self) -> SpanEnergy:
        """Their energy, all together."""
        from .split import figure

        if self._reason is not None or self._used is None or self._boards is None:
            return SpanEnergy(reason=self._reason or Unmeasured.OPEN)
        return figure(self._used, self._boards)


class Totals:
    """Each kind of span that has ended, in order of its first one. A span inside one of its own name is in that."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, tuple[tuple[str, Any], ...]], Total] = {}
        self.left_out = 0
        """Spans of further kinds: only the first 10,000 are told apart."""

    def add(self, span: Span, boards: BoardLimits, reason: Unmeasured | None) -> None:
        """Count a span that has ended, on these GPUs; without energy for a `reason`."""
        outer = span.within
        while outer is not None:
            if outer.name == span.name:
                return
            outer = outer.within
        attributes = tuple(sorted(span.attributes.items()))
        try:
            total = self._kinds.get((span.name, attributes))
        except TypeError:  # a value that cannot be a key
            attributes = tuple((name, repr(value)) for name, value in attributes)
            total = self._kinds.get((span.name, attributes))
        if total is None:
            if len(self._kinds) >= _MOST_KINDS:
                self.left_out += 1
                return
            total = self._kinds[span.name, attributes] = Total(span.name, dict(span.attributes))
        total.n += 1
        total.seconds += span.duration_s or 0.0
        total._reason, total._boards = total._reason or reason, boards
        if span.used is not None:
            total._used = span.used + (0.0 if total._used is None else total._used)

    def __iter__(self) -> Iterator[Total]:
        return iter(list(self._kinds.values()))

    def __len__(self) -> int:
        return len(self._kinds)
