"""The console: who asks, how many at once, for how long."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import cast

from ...errors import QueryError
from ..readers.query import Share
from .answering import serve
from .terms import Failed, Form, Question, Rested, Said, Show, Shown, Write, Written

AT_ONCE = 2
"""So many queries run at once."""
_COUNT_S = 3.0  # to count the rows of a long answer after its first rows are there
_START_S = 60.0  # a busy machine takes long to start a process
_LONGEST = 16_000  # of a query, in characters: the address of a page holds it
_THREADS = 4
_END_S = 1.0


@dataclass(frozen=True)
class Limits:
    """What a query may use: seconds, megabytes of memory, and bytes of a file."""

    seconds: float = 30.0
    memory_mb: int = 1000
    file_bytes: int = 100_000_000


class _Worker:
    """A process that answers, and the pipe to it."""

    def __init__(self, root: Path, share: Share) -> None:
        context = get_context("spawn")  # a forked process would wait for locks of threads that it does not have
        self._end, theirs = context.Pipe()
        self._ready = False
        self.stopped = False
        with theirs:  # held open here, it would hide that the process ended
            self._process: SpawnProcess = context.Process(target=serve, args=(theirs, root, share), daemon=True)
            self._process.start()

    def alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, question: Question) -> None:
        """Send a question. Raises QueryError where the store cannot be opened, OSError where the process has ended."""
        if not self._ready:
            try:
                said = self.hear(_START_S)
            except EOFError as error:
                if self.stopped:
                    raise
                raise QueryError("no query can be run on this machine: the log of the dashboard says why") from error
            if said is None:
                raise QueryError("this machine is too busy to answer: try again")
            if isinstance(said, Failed):
                raise QueryError(said.sentence)
            self._ready = True
        self._end.send(question)

    def hear(self, seconds: float) -> Said | None:
        """What it says; None if it says nothing for so long. Raises EOFError where it has ended."""
        return cast("Said", self._end.recv()) if self._end.poll(max(seconds, 0.0)) else None

    def fit(self) -> bool:
        """Whether it has said all, and may be asked again."""
        with contextlib.suppress(EOFError, OSError):
            return not self.stopped and self.hear(_END_S) == Rested(fit=True)
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

    def __init__(self, root: Path, limits: Limits = Limits()) -> None:
        self.limits = limits
        self._root = root
        self._share = Share(limits.memory_mb, min(_THREADS, os.cpu_count() or 1))
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        self._closed = False

    def show(self, query: str, who: str) -> Shown:
        """The first rows of the answer to a query, and how many it has. Raises QueryError.

        `who`: who asks. Their query before this one is stopped.
        """
        with self._asked(Show(query), who) as (worker, until):
            said = _said(worker, until, self.limits)
            assert isinstance(said, Shown)
            if said.total is not None:
                return said
            total = worker.hear(min(_COUNT_S, until - time.monotonic()))
            if total is None:
                worker.stop()
            return replace(said, total=total) if isinstance(total, int) else said

    def write(self, query: str, form: Form, path: Path, who: str) -> Written:
        """Write the whole answer to a query to a new file at `path`. Raises QueryError, and leaves no file then."""
        try:
            with self._asked(Write(query, form, str(path), self.limits.file_bytes), who) as (worker, until):
                said = _said(worker, until, self.limits)
                assert isinstance(said, Written)
                return said
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def running(self) -> list[str]:
        """Who has a query that runs."""
        with self._lock:
            return list(self._busy)

    def stop(self, who: str) -> None:
        """Stop the query that somebody runs."""
        with self._lock:
            if who in self._busy:
                self._busy[who].stop()

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
    def _asked(self, question: Show | Write, who: str) -> Iterator[tuple[_Worker, float]]:
        """A process that was asked, and until when it may answer."""
        if len(question.query) > _LONGEST:
            raise QueryError(f"the query is longer than {_LONGEST:,} characters")
        worker = self._take(who)
        try:
            worker.ask(question)
            yield worker, time.monotonic() + self.limits.seconds
        except (EOFError, OSError) as error:
            stopped = "the query was stopped" if worker.stopped else "the query needed too much memory, and was stopped"
            worker.stop()
            raise QueryError(stopped) from error
        finally:
            self._give_back(who, worker)

    def _take(self, who: str) -> _Worker:
        with self._lock:
            if (before := self._busy.pop(who, None)) is not None:
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
            self._busy[who] = worker
            return worker

    def _give_back(self, who: str, worker: _Worker) -> None:
        fit = worker.fit()
        with self._lock:
            if self._busy.get(who) is worker:
                del self._busy[who]
            if fit and not self._closed and not self._idle:
                self._idle.append(worker)
                return
        worker.close()
        self.warm()


def _said(worker: _Worker, until: float, limits: Limits) -> Said:
    """What it answers. Raises QueryError where it cannot, or takes too long."""
    said = worker.hear(until - time.monotonic())
    if said is None:
        worker.stop()
        raise QueryError(
            f"the query was stopped after {limits.seconds:g} s, its limit: ask for fewer rows, GPUs or a shorter time"
        )
    if isinstance(said, Failed):
        raise QueryError(said.sentence)
    return said
