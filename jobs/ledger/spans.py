"""Spans: stretches of an application's work whose energy is counted; budgets, which are spans with limits; and totals.

Its identity is that of W3C Trace Context (www.w3.org/TR/trace-context): a trace of 32 hex digits and a span of 16,
which travel to other processes as one text, `traceparent`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeVar, cast

from ...errors import InputError
from ...store.vocabulary import Code

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .sensor import BoardLimits
    from .split import SpentSoFar

    Floats = NDArray[np.float64]

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_INNERMOST: ContextVar[Span | None] = ContextVar("whorl_span", default=None)
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

_MOST_KINDS = 10_000  # kinds of spans that are told apart
RATE_S = 10.0
"""The rate is that of the last so many seconds."""
_LEAST_S = 1.0  # shorter times have no rate
_AGAIN = 0.95  # of a limit: a rate below that is under it again, so that one near the limit does not cross it for ever
_J_PER_KWH = 3.6e6

INHERITED: Final = object()
"""The parent of a span is the span around it."""
Parent = Any  # a Span, a traceparent, None for no parent, or INHERITED


class Unmeasured(Code):
    """Why a span or a budget has no figure."""

    OPEN = "open", "it has not ended yet, or a span inside it has not"
    SILENT = "no answer", "the driver has not answered since it ended"
    NO_GPU = "no gpu", "no GPU could be read; `problem()` says why"
    NO_SENSOR = "no sensor", "a GPU of the ledger tells neither energy nor power, as MIG instances do not"
    GAPS = "mostly gaps", "for half of its time or more the GPUs did not answer"
    SHORT = "too short", "it cannot be told from nothing: the sensor is too slow for it; several of them add up"
    NO_FACTOR = "no factor", "nobody said what a kWh emits: give grams_per_kwh, or settings with a zone"


@dataclass(frozen=True)
class SpanEnergy:
    """Energy with its 95 % interval, J; `energy_j` is None where it has a `reason` (a code of `Unmeasured`).

    Where the span was too short, or mostly gaps, the interval is there and holds. `method` is "counter" or "power":
    what most of it was read from. `measured` is the share of its time with readings.

    `edge_j`: by how much at most the energy is wrong because a span does not begin and end with a new value of the
    sensor. It is the same for a short span and a long one, so that it tells how long a span must be for a figure of
    some accuracy. The error of the sensor itself, which is in the interval too, is the same in all spans of a GPU.
    """

    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    method: str | None = None
    measured: float | None = None
    reason: Unmeasured | None = None
    edge_j: float | None = None


class TraceContext(NamedTuple):
    """The identity of a span in any process: the ids of its trace and of itself, in hex."""

    trace_id: str
    span_id: str

    @classmethod
    def parse(cls, header: object) -> TraceContext | None:
        """What a `traceparent` says; None, and a line in the log, where it is malformed.

        Versions above 00 may have more at the end, after a dash; version ff and ids of zeros only are forbidden.
        """
        match = _TRACEPARENT.fullmatch(header.strip(" \t")) if isinstance(header, str) else None
        if match is not None:
            version, trace_id, span_id, tail = match.groups()
            if version != "ff" and not (version == "00" and tail) and int(trace_id, 16) and int(span_id, 16):
                return cls(trace_id, span_id)
        log.warning("the traceparent %.80r is malformed: the span begins a new trace", header)
        return None


class SpanBook(Protocol):
    """What spans and budgets need of the ledger at work (`book.Book`)."""

    root: TraceContext | None
    """The parent of spans that have none in this process."""
    why: Unmeasured | None
    """Why there is no energy."""

    def new_trace(self) -> str: ...
    def new_span(self) -> str: ...
    def note(self, span: Span, *, begins: bool) -> int: ...
    def settle(self, timeout_s: float, span: Span) -> bool: ...
    def figure(self, span: Span, *, alone: bool) -> SpanEnergy: ...
    def check(self) -> None: ...
    def wall_ns(self) -> int: ...


def current() -> Span | None:
    """The innermost open span of this thread or task; None where there is none."""
    span = _INNERMOST.get()
    while span is not None and span.ended_ns is not None:
        span = span.around  # it was ended in another context, as that of a generator
    return span


class Span:
    """A stretch of work. `with` begins and ends it; as a decorator, each call of the function is a span of its own.

    `energy_j`, `low_j`, `high_j` and `own_j` are J, None with a `reason` where no honest figure exists. To read one
    waits for the next value of the sensor, 0.1 s on most boards; `settle` is that wait alone. An exception passes
    through, and `error` is the name of its class.
    """

    __slots__ = (
        "_depth", "_open_book", "_parent", "around", "attributes", "began_ns", "book", "children", "ended_ns", "error",
        "finished", "id", "is_open", "job", "name", "own", "parent_id", "trace_id", "used", "within",
    )  # fmt: skip

    def __init__(
        self,
        open_book: Callable[[], SpanBook],
        name: str,
        parent: Parent,
        *,
        job: str | None = None,
        attributes: dict[str, Any],
    ) -> None:
        self._open_book, self._parent, self._depth = open_book, parent, 0
        self.name, self.job, self.attributes = name, job, attributes
        self.id = self.trace_id = ""
        self.parent_id: str | None = None
        self.around: Span | None = None  # the open span of this context when it began
        self.book: SpanBook | None = None
        self.began_ns: int | None = None
        """When it began, ns on the steady clock."""
        self.ended_ns: int | None = None
        self.error: str | None = None
        # What `split` keeps of it:
        self.within: Span | None = None  # the span that this one is inside of and counted in
        self.is_open = False
        self.children = 0  # inside it, open or with open ones inside
        self.used: Floats | None = None  # when it ended for good: by quantity and GPU
        self.own: Floats | None = None  # the same without the spans inside it
        self.finished = False  # these are there, or never will be

    # -- the application's side: fast, and never in its way ------------------------------------------------

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth > 1:
            return self  # begun already: the outermost `with` counts
        self.book = book = self._open_book()
        self.around = around = current()
        parent: Span | TraceContext | None
        if self._parent is INHERITED:
            parent = around if around is not None else book.root
        elif self._parent is None or isinstance(self._parent, Span):
            parent = self._parent
        else:
            parent = TraceContext.parse(self._parent)
        if isinstance(parent, Span):
            self.trace_id, self.parent_id = parent.trace_id, parent.id or None
            if parent.book is book:
                self.within = parent
        elif parent is not None:
            self.trace_id, self.parent_id = parent
        self.trace_id = self.trace_id or book.new_trace()
        self.id = book.new_span()
        _INNERMOST.set(self)
        self.began_ns = book.note(self, begins=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth or self.book is None or self.ended_ns is not None:
            return
        if kind is not None:
            self.error = kind.__name__
        self.ended_ns = self.book.note(self, begins=False)
        if _INNERMOST.get() is self:
            _INNERMOST.set(self.around)

    def _fresh(self) -> Span:
        """A span like this one that has not begun."""
        return Span(self._open_book, self.name, self._parent, job=self.job, attributes=self.attributes)

    def __call__(self, function: F) -> F:
        """The function, each call of which is a span like this one.

        That of a coroutine lasts until it returns. That of a generator lasts from its first value asked for to its
        last, with what its caller does meanwhile.
        """

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            with self._fresh():
                return function(*args, **options)

        @functools.wraps(function)
        async def awaited(*args: Any, **options: Any) -> Any:
            with self._fresh():
                return await function(*args, **options)

        @functools.wraps(function)
        def generated(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            with self._fresh():
                return (yield from function(*args, **options))

        @functools.wraps(function)
        async def generated_later(*args: Any, **options: Any) -> AsyncGenerator[Any, Any]:
            with self._fresh():
                async for value in function(*args, **options):
                    yield value

        if inspect.iscoroutinefunction(function):
            return cast("F", awaited)
        if inspect.isasyncgenfunction(function):
            return cast("F", generated_later)
        return cast("F", generated if inspect.isgeneratorfunction(function) else called)

    @property
    def traceparent(self) -> str | None:
        """Its identity for another process: what `span(..., parent=...)` there takes. None before it began."""
        return f"00-{self.trace_id}-{self.id}-01" if self.id else None

    # -- what it used ---------------------------------------------------------------------------------------

    def settle(self, timeout_s: float = 2.0) -> bool:
        """Wait for the sensor values that its figures need; whether they are there. At once where it is not over."""
        return self.book is not None and self.ended_ns is not None and self.book.settle(timeout_s, self)

    def figure(self, *, alone: bool = False) -> SpanEnergy:
        """What it and the spans inside it used; `alone`: without these, so that it adds up. Waits as `settle` does."""
        self.settle()
        return SpanEnergy(reason=Unmeasured.OPEN) if self.book is None else self.book.figure(self, alone=alone)

    @property
    def duration_s(self) -> float | None:
        """Its length; None while it is open."""
        return None if self.began_ns is None or self.ended_ns is None else (self.ended_ns - self.began_ns) / 1e9

    @property
    def energy_j(self) -> float | None:
        return self.figure().energy_j

    @property
    def low_j(self) -> float | None:
        return self.figure().low_j

    @property
    def high_j(self) -> float | None:
        return self.figure().high_j

    @property
    def own_j(self) -> float | None:
        return self.figure(alone=True).energy_j

    @property
    def reason(self) -> Unmeasured | None:
        return self.figure().reason

    def __repr__(self) -> str:
        if self.duration_s is None:
            return f"<span {self.name!r}, {'not begun' if self.began_ns is None else 'open'}>"
        return f"<span {self.name!r}, {self.duration_s:g} s>"


# -- budgets ------------------------------------------------------------------------------------------------------


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
