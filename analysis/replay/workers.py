"""Work spread over several processes.

Each process has a pipe of its own to the one that asks, and nothing else is shared: a process can be killed at any
moment, in the middle of an answer too, and nobody waits for it. The asking process runs no thread for this and never
waits long without looking up, so that an interrupt ends it whichever thread of a library the system gives it to.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from ...errors import WhorlError
from ...store.system import processes, signals

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_LOOK_S = 0.2  # at most between looks whether an interrupt came
_END_S = 5.0  # time for a process to end after it was asked to; then it is killed


def answers(
    answer: Callable[[Question], Answer], questions: Sequence[Question], workers: int
) -> Iterator[tuple[int, Answer]]:
    """The place of each question and what `answer` says to it, as they come.

    `answer`, the questions and what it returns go between processes: they can be pickled.

    Raises:
        WhorlError: a process ended before its work did, as when memory ran out.
    """
    try:
        with _processes(min(workers, len(questions))) as ends:
            for end in ends:
                end.send(answer)
            asked: dict[Connection, int] = {}
            idle = list(ends)
            for number, question in enumerate(questions):
                if not idle:
                    idle = _ready(asked)
                    for end in idle:
                        yield asked.pop(end), end.recv()
                end = idle.pop()
                end.send(question)
                asked[end] = number
            while asked:
                for end in _ready(asked):
                    yield asked.pop(end), end.recv()
    except (EOFError, ConnectionError) as error:
        raise WhorlError(
            "a process of the replay was killed, perhaps because memory ran out; try --workers 1"
        ) from error
    except OSError as error:
        raise WhorlError(f"no further process can be started ({error.strerror}); try --workers 1") from error


def _ready(asked: dict[Connection, int]) -> list[Connection]:
    """Those of the pipes that can be read, at least one."""
    while True:
        # A signal that another thread was given does not end the wait: it is seen at its end.
        if ready := wait(list(asked), _LOOK_S):
            return [end for end in asked if end in ready]


@contextmanager
def _processes(count: int) -> Iterator[list[Connection]]:
    """The pipes of that many new processes, which end with the block."""
    # Not forked: polars and DuckDB hold threads, whose locks a forked process would wait for without end.
    context = get_context("spawn")
    ends: list[Connection] = []
    processes: list[SpawnProcess] = []
    try:
        with _no_interrupt():
            for _ in range(count):
                ours, theirs = context.Pipe()
                ends.append(ours)
                with theirs:  # held open here, it would hide that the process ended
                    process = context.Process(target=_serve, args=(theirs,), daemon=True)
                    process.start()
                    processes.append(process)
        yield ends
    finally:
        # After an error or Ctrl-C, what they still compute, perhaps for minutes, is for nobody.
        for end in ends:
            end.close()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(end: Connection) -> None:
    """In a new process: answer questions until nobody asks."""
    Thread(target=processes.end_with_parent, daemon=True).start()
    try:
        answer: Callable[[Any], Any] = end.recv()
        while True:
            end.send(answer(end.recv()))
    except (EOFError, ConnectionError):
        return


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the processes have started, or one would be lost half-started.

    They inherit that it is blocked, and so leave it to their parent. Blocking alone does not hold it off here, where
    a thread of a library may take it.
    """
    if current_thread() is not main_thread():
        yield
        return
    with signals.held((signal.SIGINT,)):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
