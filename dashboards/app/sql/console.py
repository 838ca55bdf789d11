"""SQL for people who are elsewhere: each query has a process of its own, with limits that no query passes.

DuckDB can stop a query only between two tasks, and its limit of memory does not count what a function makes: one
`levenshtein` of two long texts runs for hours, one `list_sort` takes gigabytes. So the query runs in another process
(see `worker`), which is killed when its time is over and which the system refuses more memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar, cast

from ....errors import QueryError
from ....store.sql import Share
from .worker import Failed, FirstRows, Form, Message, QueryTask, Rested, Written, serve

AT_ONCE = 2
"""So many queries run at once."""
_COUNT_S = 3.0  # to count the rows of a long answer after its first rows are there
_START_S = 60.0  # a busy machine takes long to start a process
_LONGEST = 16_000  # of a query, in characters: the address of a page holds it
_THREADS = 4
_END_S = 1.0
_MOST_ANSWERS, _MOST_FILES = 12, 4

T = TypeVar("T")


@dataclass(frozen=True)
class QueryLimits:
    """What a query may use: seconds, megabytes of memory, and bytes of a file."""

    seconds: float = 30.0
    memory_mb: int = 1000
    file_bytes: int = 100_000_000


class _Worker:
    """A process that answers, and the pipe to it."""

    def __init__(self, root: Path, share: Share) -> None:
        context = get_context("spawn")  # a forked process would wait for locks of threads that it does not have
        self._end, far_end = context.Pipe()
        self._ready = False
        self.stopped = False
        with far_end:  # held open here, it would hide that the process ended
            self._process: SpawnProcess = context.Process(target=serve, args=(far_end, root, share), daemon=True)
            self._process.start()

    def alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, task: QueryTask) -> None:
        """Send a question. Raises QueryError where the store cannot be opened, OSError where the process has ended."""
        if not self._ready:
            try:
                self.hear(_START_S, "this machine is too busy to answer: try again")
            except EOFError as error:
                if self.stopped:
                    raise
                raise QueryError("no query can be run on this machine: the log of the dashboard says why") from error
            self._ready = True
        self._end.send(task)

    def hear(self, seconds: float, too_late: str) -> Message:
        """What it says. Raises QueryError where it cannot answer, or says nothing for so long; EOFError where it has
        ended."""
        if not self._end.poll(max(seconds, 0.0)):
            self.stop()
            raise QueryError(too_late)
        message = cast("Message", self._end.recv())
        if isinstance(message, Failed):
            raise QueryError(message.sentence)
        return message

    def fit(self) -> bool:
        """Whether it has said all, and may be asked again."""
        with contextlib.suppress(EOFError, OSError, QueryError):
            return not self.stopped and self.hear(_END_S, "") == Rested(fit=True)
        return False

    def stop(self) -> None:
        """End it, whatever it does."""
        self.stopped = True
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.join(_END_S)
        self._end.close()


class Console:
    """Answers queries of several people over one store, each in a process of its own, within limits.

    `AT_ONCE` run at once; more are refused, so that queries never take all threads of a server. Thread-safe.
    """

    def __init__(self, root: Path, limits: QueryLimits = QueryLimits()) -> None:
        self.limits = limits
        self._root = root
        self._share = Share(limits.memory_mb, min(_THREADS, os.cpu_count() or 1))
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        self._closed = False

    def show(self, query: str, visitor: str) -> FirstRows:
        """The first rows of the answer to a query, and how many it has. Raises QueryError.

        `visitor`: who asks. Their query before this one is stopped.
        """
        with self._reply(QueryTask(query), visitor, FirstRows) as (first_rows, worker, until):
            if first_rows.total is None:
                with contextlib.suppress(QueryError, EOFError, OSError):
                    total = worker.hear(min(_COUNT_S, until - time.monotonic()), "")
                    return replace(first_rows, total=cast("int", total))
            return first_rows

    def write(self, query: str, form: Form, path: Path, visitor: str) -> Written:
        """Write the whole answer to a query to a new file at `path`. Raises QueryError, and leaves no file then."""
        try:
            task = QueryTask(query, str(path), form, self.limits.file_bytes)
            with self._reply(task, visitor, Written) as (written, _, _):
                return written
        except BaseException:
            path.unlink(missing_ok=True)
            raise

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
            if not (self._closed or self._idle or self._busy):
                self._idle.append(_Worker(self._root, self._share))

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
            ending, self._idle = self._idle, []
            for worker in self._busy.values():
                worker.stop()
        for worker in ending:
            worker.close()

    @contextlib.contextmanager
    def _reply(self, task: QueryTask, visitor: str, kind: type[T]) -> Iterator[tuple[T, _Worker, float]]:
        """The first message about a question, the process that sent it, and until when it may say more."""
        if len(task.query) > _LONGEST:
            raise QueryError(f"the query is longer than {_LONGEST:,} characters")
        worker = self._take(visitor)
        try:
            worker.ask(task)
            until = time.monotonic() + self.limits.seconds
            limit = f"the query was stopped after {self.limits.seconds:g} s, its limit"
            message = worker.hear(self.limits.seconds, f"{limit}: ask for fewer rows, GPUs or a shorter time")
            assert isinstance(message, kind)
            yield message, worker, until
        except (EOFError, OSError) as error:
            stopped = "the query was stopped" if worker.stopped else "the query needed too much memory, and was stopped"
            worker.stop()
            raise QueryError(stopped) from error
        finally:
            self._give_back(visitor, worker)

    def _take(self, visitor: str) -> _Worker:
        with self._lock:
            if (before := self._busy.pop(visitor, None)) is not None:
                before.stop()
            if len(self._busy) >= AT_ONCE:
                raise QueryError(f"{AT_ONCE} other queries are running: try again when one of them has ended")
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    break
                worker.close()
            else:
                worker = _Worker(self._root, self._share)
            self._busy[visitor] = worker
            return worker

    def _give_back(self, visitor: str, worker: _Worker) -> None:
        fit = worker.fit()
        with self._lock:
            if self._busy.get(visitor) is worker:
                del self._busy[visitor]
            if fit and not self._closed and not self._idle:
                self._idle.append(worker)
                return
        worker.close()
        self.warm()


@dataclass(frozen=True)
class KeptAnswer:
    """An answer to a query, and what of it can be drawn: an Arrow stream of columns, of all rows if `complete`."""

    query: str
    stream: bytes
    complete: bool


class Answers:
    """Runs queries and keeps the last answers, each under a name that nobody can guess.

    So a link of somebody else runs nothing: only who has run a query knows the name under which it can be saved.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._files: OrderedDict[str, Path] = OrderedDict()
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def ask(self, query: str, visitor: str) -> tuple[str, FirstRows]:
        """Run a query; the name of the answer, and the answer. Raises QueryError."""
        first_rows = self.console.show(query, visitor)
        name = secrets.token_urlsafe(16)
        with self._lock:
            complete = first_rows.drawn == first_rows.total
            self._answers[name] = KeptAnswer(query, first_rows.points, complete)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        return name, first_rows

    def find(self, name: str) -> KeptAnswer:
        """An answer. Raises QueryError where it is not kept any more."""
        with self._lock:
            if name not in self._answers:
                raise QueryError("this answer is not kept any more: run the query again")
            self._answers.move_to_end(name)
            return self._answers[name]

    def write(self, name: str, form: Form, visitor: str) -> tuple[str, Written]:
        """Write the whole answer to a file; its name, and how large it is. Raises QueryError."""
        query = self.find(name).query
        file = f"{secrets.token_urlsafe(16)}.{form}"
        with self._lock:
            if self._folder is None:
                folder = tempfile.TemporaryDirectory(prefix="whorl-sql-")
                weakref.finalize(self, folder.cleanup)
                self._folder = Path(folder.name)
        path = self._folder / file
        written = self.console.write(query, form, path, visitor)
        with self._lock:
            self._files[file] = path
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)[1].unlink(missing_ok=True)
        return file, written

    def path(self, file: str) -> Path | None:
        """Where a written file is; None where it is not kept any more."""
        with self._lock:
            path = self._files.get(file)
        return path if path is not None and path.exists() else None
