"""What pages read: answers of a store, which stay until the store changes, and answers that take long.

It needs no Dash: the first page is read while Dash is loaded.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...analysis.contents import fleet_now, has_rows, held, judged_gpus, newest_campaigns, not_judged, places
from ...analysis.verdicts.judgements import Newer, StoredJudgement, stored
from ...store.schema import TABLES
from ..documents.fleet import JudgedFleet

if TYPE_CHECKING:
    from ...store import Store
    from ..documents.placement import Adviser

T = TypeVar("T")

LIVE = ("telemetry", "latest", "telemetry_minutes")
"""Tables that collectors write all the time."""
STILL = tuple(spec.name for spec in TABLES if spec.name not in LIVE and not spec.made)
JUDGED = ("judgements", "verdicts")
NEEDED = ("gpus", "runs", "telemetry")
"""The tables that a page needs: the navigation says which are empty."""
MOST_CAMPAIGNS = 12
_MOST_ANSWERS, _MOST_SLOW_ANSWERS = 64, 4
_FRESH_NS = 200_000_000  # two writes within a tick of the clock of files look like one
_WAIT_S = 0.2  # a quick answer is there at once
_LOOK_AGAIN_S = 0.1  # whether somebody is there

Say = Callable[[str], None]
"""Hears what is being done."""


@dataclass(frozen=True)
class QueryLimits:
    """What a query of a person may use: seconds, megabytes of memory, and bytes of a file."""

    seconds: float = 30.0
    memory_mb: int = 1000
    file_bytes: int = 100_000_000


class Reading:
    """Reads a store for many pages at once. An answer is kept until one of its tables changes."""

    def __init__(self, store: Store, limits: QueryLimits | None = None, advise: Adviser | None = None) -> None:
        self.store = store
        self.limits = limits or QueryLimits()
        self.advise = advise
        """Gives the advice of `whorl advise`."""
        self.slowly = Slowly()
        self._answers: OrderedDict[Hashable, tuple[tuple[int, ...], Future[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        self._filled: set[tuple[int, str]] = set()

    def version(self, tables: Sequence[str] = STILL) -> tuple[int, ...]:
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
            self._answers[name] = version, future
            self._answers.move_to_end(name)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        if is_new:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
            if future.exception() is not None or max(version, default=0) > time.time_ns() - _FRESH_NS:
                with self._lock:
                    if self._answers.get(name) == (version, future):
                        del self._answers[name]
        return future.result()

    def answer(
        self, ask: Callable[..., T], *question: Hashable, tables: Sequence[str] = STILL, **options: Hashable
    ) -> T:
        """The answer of `ask(store, *question, **options)` of `analysis`, kept as in `kept`."""
        name = (ask.__module__, ask.__qualname__, *question, *options.items())
        return self.kept(name, lambda: ask(self.store, *question, **options), tables=tables)

    def made(self) -> int:
        """Another one when another store stands in its place; 0 where none does."""
        return _changed(self.store, "store.toml")

    def has(self, table: str) -> bool:
        """Whether a table has rows. One that had some is not looked at again: whorl never empties a table."""
        filled = self.made(), table
        if filled not in self._filled:
            live = table in LIVE  # its rows may be in journals, which `version` does not see
            if not (has_rows(self.store, table) if live else self.answer(has_rows, table, tables=(table,))):
                return False
            self._filled.add(filled)
        return True


class Visitors:
    """Who is being answered: what is read ahead waits until nobody is, and nobody came for a while."""

    def __init__(self, quiet_s: float, *, first_s: float) -> None:
        """`quiet_s`: how long nobody came; `first_s`: the same after the start, before anybody came."""
        self._quiet_s, self._under_way = quiet_s, 0
        self._quiet_from_s = time.monotonic() + first_s
        self._lock = threading.Lock()

    def came(self) -> None:
        """A request begins."""
        with self._lock:
            self._under_way += 1

    def left(self) -> None:
        """A request is answered."""
        with self._lock:
            self._under_way -= 1
            self._quiet_from_s = time.monotonic() + self._quiet_s

    def wait_until_quiet(self) -> None:
        """Wait until nobody is there."""
        while self._under_way or time.monotonic() < self._quiet_from_s:
            time.sleep(_LOOK_AGAIN_S)


def ahead(asks: Iterable[Callable[[], object]], visitors: Visitors | None = None) -> None:
    """Make answers that a page is likely to ask for, one after the other in a thread beside the pages.

    Each waits until there are no `visitors`. An error is left to the page that asks.
    """

    def read() -> None:
        asking = iter(asks)
        while True:
            if visitors is not None:
                visitors.wait_until_quiet()
            try:
                ask = next(asking)
            except Exception:  # with StopIteration
                return
            if visitors is not None:
                visitors.wait_until_quiet()
            with suppress(Exception):
                ask()

    threading.Thread(target=read, name="ahead", daemon=True).start()


def _changed(store: Store, name: str) -> int:
    """When the folder of a table, or a file, changed last, ns since 1970; 0 where there is none."""
    try:
        return os.stat(f"{store.root}/{name}").st_mtime_ns  # noqa: PTH116 - some hundred times for a page
    except OSError:
        return 0


# -- the first page -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedCluster:
    """The newest judgement of a cluster, its GPUs, and what came since."""

    judged_at: datetime | None
    fleet: JudgedFleet
    newer: Newer


def judgements(reading: Reading) -> list[StoredJudgement]:
    """The newest judgement of each cluster, of all runs."""
    return reading.answer(stored, tables=JUDGED)


def judged_clusters(reading: Reading) -> tuple[JudgedCluster, ...]:
    """These judgements with their GPUs; clusters in which something is wrong come first."""

    def make() -> tuple[JudgedCluster, ...]:
        clusters, store = [], reading.store
        for newest in judgements(reading):
            judgement = newest.judgement
            fleet = JudgedFleet(places(store, judgement.cluster), judgement, judged_gpus(store, judgement.cluster))
            clusters.append(JudgedCluster(newest.judged_at, fleet, newest.newer(store)))
        return tuple(sorted(clusters, key=lambda cluster: not cluster.fleet.odd))

    return reading.kept(("judged clusters",), make)


def read_first_page(reading: Reading) -> None:
    """Make the answers that the first page asks for, so that they are kept."""
    reading.store.ready({*STILL, *NEEDED})
    for table in NEEDED:
        reading.has(table)
    judged_clusters(reading)
    for question in (held, not_judged):
        reading.answer(question)
    reading.answer(newest_campaigns, MOST_CAMPAIGNS)
    fleet_now(reading.store)  # nothing of it stays but open files: half of what the first look takes


def begin(store: Store) -> Reading:
    """Read a store for pages. What the first one shows is read at once, beside what the caller does."""
    reading = Reading(store)
    ahead([lambda: read_first_page(reading)])
    return reading


# -- answers that take long --------------------------------------------------------------------------------------


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

    doing: str = "waiting for another answer"
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Slowly:
    """Makes answers that take long beside the pages, one at a time."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, tuple[Any, Hashable, datetime]] = OrderedDict()
        self._tasks: dict[Hashable, _Task] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def ask(self, name: Hashable, make: Callable[[Say], T], version: Hashable, *, again: bool = False) -> Later[T]:
        """The answer of `make`, or what it is doing. `name` says what it is, with all that it depends on.

        It is made in a thread, and kept whatever becomes of the store, until a page asks for it `again`. Raises what
        `make` raises.
        """
        with self._lock:
            before, task = self._made.get(name), self._tasks.get(name)
            is_new = task is None and (before is None or again)
            if task is None and is_new:
                task = self._tasks[name] = _Task()
                work = threading.Thread(target=self._make, args=(name, task, make, version), name="slowly", daemon=True)
                work.start()
        if is_new and task is not None and before is None:  # who asks once more leaves the server to others
            task.ended.wait(_WAIT_S)
        with self._lock:
            if task is not None and task.ended.is_set():
                self._tasks.pop(name, None)
                if task.error is not None:
                    raise task.error
                task = None
            doing = None if task is None else task.doing
            if name not in self._made:
                return Later(None, doing, None)
            self._made.move_to_end(name)
            answer, its_version, made_at = self._made[name]
            return Later(answer, doing, made_at, its_version != version)

    def _make(self, name: Hashable, task: _Task, make: Callable[[Say], Any], version: Hashable) -> None:
        def say(doing: str) -> None:
            task.doing = doing

        try:
            with self._turn:
                made_at = datetime.now(UTC)
                answer = make(say)
            with self._lock:
                self._made[name] = answer, version, made_at
                self._made.move_to_end(name)
                while len(self._made) > _MOST_SLOW_ANSWERS:
                    self._made.popitem(last=False)
        except Exception as error:
            task.error = error
        task.ended.set()
