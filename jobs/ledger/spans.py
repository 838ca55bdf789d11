"""A span: a stretch of an application's work whose energy is counted, as a context manager and a decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .figures import Figure
from .splitting import Node

if TYPE_CHECKING:
    from .book import Book
    from .ledger import Ledger

F = TypeVar("F", bound=Callable[..., Any])

_INNERMOST: ContextVar[Span | None] = ContextVar("whorl_span", default=None)


class _Inherited:
    def __repr__(self) -> str:
        return "the span around it"


INHERITED: Final = _Inherited()
Parent = Any  # a Span, the id of one (of another process too), None for no parent, or INHERITED


def current() -> Span | None:
    """The innermost open span of this thread or task; None where there is none."""
    span = _INNERMOST.get()
    while span is not None and span.ended_ns is not None:
        span = span.around  # it was ended in another context, as that of a generator
    return span


class Span(Node):
    """A stretch of work. `with` begins and ends it; as a decorator, each call of the function is a span of its own.

    `energy_j`, `low_j`, `high_j` and `own_j` are J, None with a `reason` where no honest figure exists. To read one
    waits for the next value of the sensor, 0.1 s on most boards; `settle` is that wait alone. `id` names it for spans
    in other processes. An exception passes through, and `error` is the name of its class.
    """

    __slots__ = (
        "_asked",
        "_depth",
        "_ledger",
        "around",
        "attributes",
        "began_ns",
        "book",
        "counted_within",
        "ended_ns",
        "error",
        "finished",
        "id",
        "job",
        "name",
        "parent_id",
    )

    def __init__(
        self, ledger: Ledger, name: str, parent: Parent, job: str | None, weight: float, attributes: dict[str, Any]
    ) -> None:
        super().__init__(weight)
        self._ledger = ledger
        self._asked = parent
        self._depth = 0
        self.name = name
        self.job = job
        self.attributes = attributes
        self.id = ""
        self.parent_id: str | None = None
        self.around: Span | None = None  # the open span of this context when it began
        self.book: Book | None = None
        self.began_ns: int | None = None
        """When it began, ns on the steady clock."""
        self.ended_ns: int | None = None
        self.error: str | None = None
        self.counted_within = False  # in the figures of its parent
        self.finished = False  # `used` is final

    # -- the application's side: fast, and never in its way ------------------------------------------------

    def __enter__(self) -> Span:
        self._depth += 1
        if self._depth > 1:
            return self  # begun already: the outermost `with` counts
        book = self._ledger.book()
        around = current()
        parent = around if self._asked is INHERITED else self._asked
        self.around, self.book = around, book
        if isinstance(parent, Span):
            self.parent_id = parent.id or None
            if parent.book is book:
                self.within = parent
        elif parent is not None:
            self.parent_id = str(parent)
        self.id = book.name()
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

    def __call__(self, function: F) -> F:
        """The function, each call of which is a span like this one.

        That of a coroutine lasts until it returns. That of a generator lasts from its first value asked for to its
        last, with what its caller does meanwhile.
        """
        fresh = functools.partial(Span, self._ledger, self.name, self._asked, self.job, self.weight, self.attributes)

        @functools.wraps(function)
        def called(*args: Any, **named: Any) -> Any:
            with fresh():
                return function(*args, **named)

        @functools.wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            with fresh():
                return await function(*args, **named)

        @functools.wraps(function)
        def generated(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
            with fresh():
                return (yield from function(*args, **named))

        @functools.wraps(function)
        async def generated_later(*args: Any, **named: Any) -> AsyncGenerator[Any, Any]:
            with fresh():
                async for value in function(*args, **named):
                    yield value

        if inspect.iscoroutinefunction(function):
            return cast("F", awaited)
        if inspect.isasyncgenfunction(function):
            return cast("F", generated_later)
        return cast("F", generated if inspect.isgeneratorfunction(function) else called)

    # -- what it used ---------------------------------------------------------------------------------------

    def settle(self, timeout_s: float = 2.0) -> bool:
        """Wait for the sensor values that its figures need; whether they are there. At once where it is not over."""
        return self.book is not None and self.ended_ns is not None and self.book.settle(timeout_s, self)

    def figure(self) -> Figure:
        """What it and the spans inside it used. Waits as `settle` does."""
        self.settle()
        return self._ledger.figure(self)

    def own(self) -> Figure:
        """What it used itself, outside the spans inside it: these and its own add up to `figure()`."""
        self.settle()
        return self._ledger.figure(self, own=True)

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
        return self.own().energy_j

    @property
    def reason(self) -> str | None:
        return self.figure().reason

    def __repr__(self) -> str:
        if self.duration_s is None:
            return f"<span {self.name!r}, {'not begun' if self.began_ns is None else 'open'}>"
        return f"<span {self.name!r}, {self.duration_s:g} s>"
