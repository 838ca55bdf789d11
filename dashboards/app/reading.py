"""What pages read: answers of a store, kept until the store changes."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from ...analysis.contents import has_rows
from ...store.schema import TABLES
from .later import Later, Slowly
from .sql.processes import QueryLimits

if TYPE_CHECKING:
    from ...store import Store
    from .placement.told import Advises

T = TypeVar("T")

LIVE = ("telemetry", "latest", "telemetry_minutes")
"""Tables that collectors write all the time."""
STILL = tuple(spec.name for spec in TABLES if spec.name not in LIVE and not spec.made)
_KEPT = 64
_WAITING = 4  # lists of what to read ahead
_QUIET_S, _PATIENCE_S = 0.3, 10.0  # what is read ahead waits for people: until they are quiet so long, at most so long
_FRESH_NS = 200_000_000  # two writes within a tick of the clock of files look like one

Version = tuple[int, ...]


class Reading:
    """Reads a store for many pages at once. What is read is kept until one of its tables changes."""

    def __init__(self, store: Store, limits: QueryLimits | None = None, advise: Advises | None = None) -> None:
        self.store = store
        self.limits = limits or QueryLimits()
        """What a query of a person may use."""
        self.advise = advise
        """Gives the advice of `whorl advise`."""
        self._kept: OrderedDict[Hashable, tuple[Version, Future[Any]]] = OrderedDict()
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
        """Another one when rows came to these tables: what a look at their folders says. Not of rows in journals."""
        return tuple(_changed(self.store, name) for name in tables)

    def kept(self, name: Hashable, make: Callable[[], T], *, tables: Sequence[str] = STILL) -> T:
        """What `make` gives, made once until one of the `tables` changes. Others who ask meanwhile wait for it.

        An error is not kept. `name` says what it is, with all that it depends on.
        """
        version = self.version(tables)
        with self._lock:
            found = self._kept.get(name)
            mine = found is None or found[0] != version
            future: Future[T] = Future() if mine or found is None else found[1]
            if mine:
                self._kept[name] = version, future
            self._kept.move_to_end(name)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        if not mine:
            return future.result()
        try:
            made = make()
        except BaseException as error:
            self._forget(name, future)
            future.set_exception(error)
            raise
        if max(version, default=0) > time.time_ns() - _FRESH_NS:
            self._forget(name, future)
        future.set_result(made)
        return made

    def shared(self, name: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for all who hold it at the same time. It is not kept: it is large."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            of_now = name, self.version()
            found: T | None = self._held.get(of_now)
            if found is None:
                found = self._held[of_now] = make()
            return found

    def answer(self, ask: Callable[..., T], *asked: Hashable, tables: Sequence[str] = STILL) -> T:
        """What `ask(store, *asked)` of `analysis` answers, kept as in `kept`."""
        name = (ask.__module__, ask.__qualname__, *asked)
        return self.kept(name, lambda: ask(self.store, *asked), tables=tables)

    def later(self, ask: Callable[..., T], *asked: Hashable, again: bool = False, **beside: Any) -> Later[T]:
        """What `ask(store, *asked, progress=...)` answers, where that takes long: the page asks until it is there.

        `beside`: more that it is given and that its answer does not depend on.

        It is of the store at `made_at`: what is stored meanwhile does not make it again at once (see `Slowly`).
        """
        name = (ask.__module__, ask.__qualname__, *asked)
        version = self.version((*STILL, "telemetry"))
        return self._slowly.ask(name, lambda say: ask(self.store, *asked, progress=say, **beside), version, again=again)

    def ahead(self, asks: Iterator[Callable[[], object]]) -> None:
        """Make answers that a page is likely to ask for next, one after the other, beside the pages.

        What was wanted ahead before comes after it. An error is left to the page that asks.
        """
        with self._lock:
            self._ahead = [asks, *self._ahead][:_WAITING]
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_ahead, name="ahead", daemon=True)
                self._reader.start()

    @contextmanager
    def attending(self) -> Iterator[None]:
        """While a person waits for an answer: nothing more is begun ahead then, which would slow it."""
        with self._lock:
            self._people += 1
        try:
            yield
        finally:
            with self._lock:
                self._people -= 1
                self._quiet_at = time.monotonic() + _QUIET_S

    def soon(self, ask: Callable[[], object]) -> None:
        """Make an answer now, beside the page whose next request asks for it. An error is left to that."""

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
                self._ahead = [one for one in self._ahead if one is not asks]

    def made(self) -> int:
        """Another one when another store stands in its place; 0 where none does."""
        return _changed(self.store, "store.toml")

    def has(self, table: str) -> bool:
        """Whether a table has rows. One that had some is not looked at again: whorl never empties a table."""
        known = self.made(), table
        if known in self._filled:
            return True
        kept = table not in LIVE  # rows of those may be in journals, which `version` does not see
        there = self.answer(has_rows, table, tables=(table,)) if kept else has_rows(self.store, table)
        if there:
            self._filled.add(known)
        return there

    def _forget(self, name: Hashable, future: Future[Any]) -> None:
        with self._lock:
            found = self._kept.get(name)
            if found is not None and found[1] is future:
                del self._kept[name]


def _changed(store: Store, name: str) -> int:
    """When the folder of a table, or a file, changed last, ns since 1970; 0 where there is none."""
    try:
        return os.stat(f"{store.root}/{name}").st_mtime_ns  # noqa: PTH116 - some hundred times for a page
    except OSError:
        return 0
