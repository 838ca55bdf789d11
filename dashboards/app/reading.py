"""What pages read: answers of a store, which stay until the store changes, and answers that take long."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from ...analysis.contents import has_rows
from ...store.schema import TABLES
from .sql.console import QueryLimits

if TYPE_CHECKING:
    from ...store import Store
    from ..documents.placement import Adviser

T = TypeVar("T")

LIVE = ("telemetry", "latest", "telemetry_minutes")
"""Tables that collectors write all the time."""
STILL = tuple(spec.name for spec in TABLES if spec.name not in LIVE and not spec.made)
_MOST_ANSWERS = 64
_WAITING = 4  # lists of questions to read ahead
_QUIET_S, _PATIENCE_S = 0.3, 10.0  # reading ahead waits for people: until they are quiet so long, at most so long
_FRESH_NS = 200_000_000  # two writes within a tick of the clock of files look like one

Version = tuple[int, ...]


class Reading:
    """Reads a store for many pages at once. An answer is kept until one of its tables changes."""

    def __init__(self, store: Store, limits: QueryLimits | None = None, advise: Adviser | None = None) -> None:
        self.store = store
        self.limits = limits or QueryLimits()
        """What a query of a person may use."""
        self.advise = advise
        """Gives the advice of `whorl advise`."""
        self._answers: OrderedDict[Hashable, tuple[Version, Future[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._held: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._filled: set[tuple[int, str]] = set()
        self._slowly = Slowly()
        self._ahead: list[Iterator[Callable[[], object]]] = []
        self._reader: threading.Thread | None = None
        self._people = 0  # who wait for an answer
        self._quiet_at = 0.0  # when they have been quiet for long enough

    def version(self, tables: Sequence[str] = STILL) -> Version:
        """Another one when rows came to these tables, as their folders say. Rows in journals do not count."""
        return tuple(_changed(self.store, name) for name in tables)

    def kept(self, name: Hashable, make: Callable[[], T], *, tables: Sequence[str] = STILL) -> T:
        """The answer of `make`, made once until one of the `tables` changes. Others who ask meanwhile wait for it.

        An error is not kept. `name` says what it is, with all that it depends on.
        """
        version = self.version(tables)
        with self._lock:
            before = self._answers.get(name)
            is_new = before is None or before[0] != version
            future: Future[T] = Future() if is_new or before is None else before[1]
            if is_new:
                self._answers[name] = version, future
            self._answers.move_to_end(name)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        if not is_new:
            return future.result()
        try:
            answer = make()
        except BaseException as error:
            self._forget(name, future)
            future.set_exception(error)
            raise
        if max(version, default=0) > time.time_ns() - _FRESH_NS:
            self._forget(name, future)
        future.set_result(answer)
        return answer

    def shared(self, name: Hashable, make: Callable[[], T]) -> T:
        """The answer of `make`, made once for all who hold it at the same time. It is not kept: it is large."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            versioned = name, self.version()
            answer: T | None = self._held.get(versioned)
            if answer is None:
                answer = self._held[versioned] = make()
            return answer

    def answer(self, ask: Callable[..., T], *question: Hashable, tables: Sequence[str] = STILL) -> T:
        """The answer of `ask(store, *question)` of `analysis`, kept as in `kept`."""
        name = (ask.__module__, ask.__qualname__, *question)
        return self.kept(name, lambda: ask(self.store, *question), tables=tables)

    def later(self, ask: Callable[..., T], *question: Hashable, again: bool = False, **context: Any) -> Later[T]:
        """The answer of `ask(store, *question, progress=...)`, which takes long: the page asks until it is there.

        `context`: arguments on which the answer does not depend. It is of the store at `made_at`: rows that are stored
        meanwhile do not make it again at once (see `Slowly`).
        """
        name = (ask.__module__, ask.__qualname__, *question)
        version = self.version((*STILL, "telemetry"))
        return self._slowly.ask(
            name, lambda say: ask(self.store, *question, progress=say, **context), version, again=again
        )

    def ahead(self, asks: Iterator[Callable[[], object]]) -> None:
        """Make answers that a page is likely to ask for next, one after the other, beside the pages.

        An earlier list goes on after it. An error is left to the page that asks.
        """
        with self._lock:
            self._ahead = [asks, *self._ahead][:_WAITING]
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_ahead, name="ahead", daemon=True)
                self._reader.start()

    @contextmanager
    def attending(self) -> Iterator[None]:
        """While a person waits for an answer: no further reading ahead begins, which would slow it."""
        with self._lock:
            self._people += 1
        try:
            yield
        finally:
            with self._lock:
                self._people -= 1
                self._quiet_at = time.monotonic() + _QUIET_S

    def soon(self, ask: Callable[[], object]) -> None:
        """Make an answer at once, beside the page whose next request asks for it. An error is left to that."""

        def quietly() -> None:
            with suppress(Exception):
                ask()

        threading.Thread(target=quietly, name="ahead", daemon=True).start()

    def _read_ahead(self) -> None:
        while True:
            until = time.monotonic() + _PATIENCE_S
            while (self._people or time.monotonic() < self._quiet_at) and time.monotonic() < until:
                time.sleep(_QUIET_S / 10)
            with self._lock:
                if not self._ahead:
                    self._reader = None
                    return
                asks = self._ahead[0]
            ask = None
            with suppress(Exception):
                ask = next(asks, None)
            if ask is not None:
                with suppress(Exception):
                    ask()
                continue
            with self._lock:
                self._ahead = [waiting for waiting in self._ahead if waiting is not asks]

    def made(self) -> int:
        """Another one when another store stands in its place; 0 where none does."""
        return _changed(self.store, "store.toml")

    def has(self, table: str) -> bool:
        """Whether a table has rows. One that had some is not looked at again: whorl never empties a table."""
        filled = self.made(), table
        if filled in self._filled:
            return True
        live = table in LIVE  # its rows may be in journals, which `version` does not see
        has = has_rows(self.store, table) if live else self.answer(has_rows, table, tables=(table,))
        if has:
            self._filled.add(filled)
        return has

    def _forget(self, name: Hashable, future: Future[Any]) -> None:
        with self._lock:
            before = self._answers.get(name)
            if before is not None and before[1] is future:
                del self._answers[name]


def _changed(store: Store, name: str) -> int:
    """When the folder of a table, or a file, changed last, ns since 1970; 0 where there is none."""
    try:
        return os.stat(f"{store.root}/{name}").st_mtime_ns  # noqa: PTH116 - some hundred times for a page
    except OSError:
        return 0


# -- answers that take long --------------------------------------------------------------------------------------

Say = Callable[[str], None]
"""Hears what is being done."""

_MOST_SLOW_ANSWERS = 4
_WAIT_S = 0.2  # a quick answer is there at once
_GONE_S = 150.0  # a browser asks once a minute for a page that nobody sees
_GIVES_WAY_S = 10.0
_OLD_S = 3600.0


@dataclass(frozen=True)
class Later(Generic[T]):
    """An answer that takes long, as far as it is."""

    answer: T | None
    """None where it is not there yet."""
    doing: str | None
    """What is being done to make it, or to make it again; None where nothing is."""
    made_at: datetime | None
    """Of the store at this time, UTC."""
    newer: bool = False
    """Whether more was stored since."""


@dataclass
class _Task:
    """An answer that is to be made."""

    make: Callable[[Say], Any]
    version: Hashable
    asked_s: float
    doing: str = "waiting for another answer"


@dataclass(frozen=True)
class _Made:
    answer: Any
    version: Hashable
    at: datetime
    at_s: float


class _GivenUpError(Exception):
    """Nobody waits for this answer any more."""


class Slowly:
    """Makes answers that take long, one at a time beside the pages: the one first for which a page asked last."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        self._problems: dict[Hashable, Exception] = {}
        self._tasks: dict[Hashable, _Task] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def ask(self, name: Hashable, make: Callable[[Say], T], version: Hashable, *, again: bool = False) -> Later[T]:
        """The answer of `make`, or what it is doing. `name` says what it is, with all that it depends on.

        It is made in a thread, and kept whatever becomes of the store, until a page asks for it `again`. An answer
        that is older than an hour, and of another `version`, is made again by itself. One that no page asks for any
        more is given up. Raises what `make` raises.
        """
        with self._changed:
            before, now = self._made.get(name), time.monotonic()
            old = before is not None and before.version != version and now - before.at_s > _OLD_S
            is_new = False
            if name in self._tasks:
                self._tasks[name].asked_s = now
            elif (before is None or again or old) and name not in self._problems:
                self._tasks[name], is_new = _Task(make, version, now), True
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="slowly", daemon=True)
                    self._thread.start()
            if before is None and is_new:  # a page that asks again does not wait: it keeps the server for others
                self._changed.wait_for(lambda: name not in self._tasks, _WAIT_S)
            problem, ready, task = self._problems.pop(name, None), self._made.get(name), self._tasks.get(name)
            if problem is not None:
                raise problem
            doing = None if task is None else task.doing
            if ready is None:
                return Later(None, doing, None)
            self._made.move_to_end(name)
            return Later(ready.answer, doing, ready.at, ready.version != version)

    def give_up(self, name: Hashable) -> None:
        """Make an answer no further; its making ends when it next says what it does."""
        with self._changed:
            if name in self._tasks:
                self._tasks[name].asked_s = -_GONE_S - 1e9

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._tasks:
                    self._thread = None
                    return
                name, task = max(self._tasks.items(), key=lambda pair: pair[1].asked_s)
            at, at_s = datetime.now(UTC), time.monotonic()
            answer, problem = None, None
            try:
                answer = task.make(self._saying(task))
            except Exception as error:
                problem = error
            with self._changed:
                del self._tasks[name]
                if problem is None:
                    self._made[name] = _Made(answer, task.version, at, at_s)
                    self._made.move_to_end(name)
                    while len(self._made) > _MOST_SLOW_ANSWERS:
                        self._made.popitem(last=False)
                elif not isinstance(problem, _GivenUpError):
                    self._problems[name] = problem
                self._changed.notify_all()

    def _saying(self, task: _Task) -> Say:
        def say(doing: str) -> None:
            with self._changed:
                task.doing = doing
                last = max(waiting.asked_s for waiting in self._tasks.values())
                if last > task.asked_s + _GIVES_WAY_S or time.monotonic() > task.asked_s + _GONE_S:
                    raise _GivenUpError

        return say
