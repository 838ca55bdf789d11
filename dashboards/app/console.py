"""SQL for people who are elsewhere: each query has a process of its own, with limits that no query passes.

DuckDB can stop a query only between two tasks, and its limit of memory does not count what a function makes: one
`levenshtein` of two long texts runs for hours, one `list_sort` takes gigabytes. So the query runs in another process
(see `worker`), which is killed when its time is over and which the system refuses more memory.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...errors import QueryError, WhorlError
from ...store.sql import Share
from .reading import QueryLimits
from .worker import FirstRows, Form, first_rows, serve, write

if TYPE_CHECKING:
    import polars as pl

AT_ONCE = 2
"""So many queries run at once."""
_START_S = 60.0  # a busy machine takes long to start a process
_LONGEST = 16_000  # of a query, in characters: the address of a page holds it
_THREADS = 4
_END_S = 1.0
_MOST_ANSWERS = 12


class _Worker:
    """A process that answers one query, and the pipe to it."""

    def __init__(self, root: Path, share: Share) -> None:
        context = get_context("spawn")  # a forked process would wait for locks of threads that it does not have
        self._end, far_end = context.Pipe()
        self.stopped = False
        with far_end:  # held open here, it would hide that the process ended
            self._process: SpawnProcess = context.Process(target=serve, args=(far_end, root, share), daemon=True)
            self._process.start()

    def ask(self, task: tuple[Any, ...], seconds: float) -> Any:
        """The answer to a function of `worker` with its arguments. Raises QueryError where there is none, or not in
        time."""
        what = "no query can be run on this machine: the log of the dashboard says why"
        try:
            self._hear(_START_S, "this machine is too busy to answer: try again")
            what = "the query needed too much memory, and was stopped"
            self._end.send(task)
            limit = f"the query was stopped after {seconds:g} s, its limit"
            return self._hear(seconds, f"{limit}: ask for fewer rows, GPUs or a shorter time")
        except (EOFError, OSError) as error:
            raise QueryError("the query was stopped" if self.stopped else what) from error

    def _hear(self, seconds: float, too_late: str) -> Any:
        if not self._end.poll(seconds):
            raise QueryError(too_late)
        message = self._end.recv()
        if isinstance(message, WhorlError):
            raise QueryError(str(message)) from message
        return message

    def stop(self) -> None:
        """End it, whatever it does."""
        self.stopped = True
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.join(_END_S)
        self._end.close()


@dataclass(frozen=True)
class KeptAnswer:
    """A query, and what of its answer can be drawn: of all rows if `complete`."""

    query: str
    points: pl.DataFrame
    complete: bool


class Console:
    """Answers queries of several people over one store, each in a process of its own, within limits.

    `AT_ONCE` run at once; more are refused, so that queries never take all threads of a server. The last answers are
    kept, each under a name that nobody can guess: so a link of somebody else runs nothing, as only who has run a query
    knows the name under which it can be saved. Thread-safe.
    """

    def __init__(self, root: Path, limits: QueryLimits) -> None:
        self._limits = limits
        self._root = root
        self._share = Share(limits.memory_mb, min(_THREADS, os.cpu_count() or 1))
        self._ready: _Worker | None = None
        self._busy: dict[str, _Worker] = {}
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._lock = threading.Lock()

    def show(self, query: str, visitor: str) -> tuple[str, FirstRows]:
        """The first rows of the answer to a query, and the name under which it is kept. Raises QueryError.

        `visitor`: who asks. Their query before this one is stopped.
        """
        answer: FirstRows = self._answer(visitor, query, first_rows, query)
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._answers[name] = KeptAnswer(query, answer.points, answer.points.height == answer.total)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        return name, answer

    def find(self, name: str) -> KeptAnswer:
        """An answer. Raises QueryError where it is not kept any more."""
        answer = self._answers.get(name)
        if answer is None:
            raise QueryError("this answer is not kept any more: run the query again")
        return answer

    def file(self, name: str, form: Form) -> IO[bytes]:
        """The whole answer as a file, which is gone when it is closed. Raises QueryError."""
        query = self.find(name).query
        with tempfile.TemporaryDirectory(prefix="whorl-sql-") as folder:
            path = Path(folder, f"answer.{form}")
            self._answer(f"file of {name}", query, write, query, path, form, self._limits.file_bytes)
            return path.open("rb")

    def running(self) -> list[str]:
        """Who has a query that runs."""
        with self._lock:
            return list(self._busy)

    def stop(self, visitor: str) -> None:
        """Stop the query that somebody runs."""
        with self._lock:
            if visitor in self._busy:
                self._busy[visitor].stop()

    def warm(self) -> None:
        """Have a process ready: starting one takes longer than most queries."""
        with self._lock:
            if self._ready is None:
                self._ready = _Worker(self._root, self._share)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            workers = [*self._busy.values(), *([self._ready] if self._ready else [])]
            self._ready = None
        for worker in workers:
            worker.stop()

    def _answer(self, visitor: str, query: str, *task: Any) -> Any:
        if len(query) > _LONGEST:
            raise QueryError(f"the query is longer than {_LONGEST:,} characters")
        with self._lock:
            if (before := self._busy.pop(visitor, None)) is not None:
                before.stop()
            if len(self._busy) >= AT_ONCE:
                raise QueryError(f"{AT_ONCE} other queries are running: try again when one of them has ended")
            worker, self._ready = self._ready or _Worker(self._root, self._share), None
            self._busy[visitor] = worker
        try:
            return worker.ask(task, self._limits.seconds)
        finally:
            with self._lock:
                if self._busy.get(visitor) is worker:
                    del self._busy[visitor]
            worker.close()
            self.warm()
