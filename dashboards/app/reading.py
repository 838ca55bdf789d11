"""What pages read: answers of a store, kept until the store changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from ...store.schema import TABLES

if TYPE_CHECKING:
    import polars as pl

    from ...store import Store

T = TypeVar("T")

LIVE = ("telemetry", "latest", "minutes")
"""Tables that collectors write all the time."""
STILL = tuple(spec.name for spec in TABLES if spec.name not in LIVE and not spec.made)
_KEPT = 64
_FRESH_NS = 200_000_000  # two writes within a tick of the clock of files look like one

Version = tuple[int, ...]


class Reading:
    """Reads a store for many pages at once. What is read is kept until one of its tables changes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: OrderedDict[Hashable, tuple[Version, Future[Any]]] = OrderedDict()
        self._lock = threading.Lock()

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

    def frame(self, query: str, *, tables: Sequence[str] = STILL) -> pl.DataFrame:
        """The answer to an SQL query, kept as in `kept`."""
        return self.kept(("sql", query), lambda: self.store.sql(query).polars(), tables=tables)

    def has(self, table: str) -> bool:
        """Whether a table has rows."""
        query = f"SELECT 1 AS there FROM {table} LIMIT 1"
        if table in LIVE:  # rows may be in journals, which `version` does not see
            return bool(self.store.sql(query).num_rows)
        return self.frame(query, tables=(table,)).height > 0

    def _forget(self, name: Hashable, future: Future[Any]) -> None:
        with self._lock:
            found = self._kept.get(name)
            if found is not None and found[1] is future:
                del self._kept[name]


def _changed(store: Store, table: str) -> int:
    """When the folder of a table changed last, ns since 1970; 0 where there is none."""
    try:
        return (store.root / table).stat().st_mtime_ns
    except OSError:
        return 0
