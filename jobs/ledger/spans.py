"""Spans: stretches of an application's work whose energy is counted, as context managers and decorators.

Its identity is that of W3C Trace Context (www.w3.org/TR/trace-context): a trace of 32 hex digits and a span of 16,
which travel to other processes as one text, `traceparent`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeVar, cast

from ...store.vocabulary import Code

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ...collectors.backend import Backend
    from ...collectors.clock import Clock

    Floats = NDArray[np.float64]

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_INNERMOST: ContextVar[Span | None] = ContextVar("whorl_span", default=None)
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """What a ledger reads and keeps."""

    backend: str | Backend = "nvml"
    """"nvml", "simulated", or an object that satisfies `collectors.backend.Backend`."""
    gpus: Sequence[str | int] | None = None
    """UUIDs or NVML indices; None: those that CUDA shows to this process."""
    store: str | Path | None = None
    """A folder: every span becomes a row of its table `spans`."""
    cluster: str | None = None
    settings: str | Path | None = None
    """The site's energy.toml, for grams; None: that in the store."""
    clock: Clock | None = None
    """With one, no thread runs: the caller reads the sensors, by `look`."""


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
