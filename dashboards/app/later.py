"""Answers that take long: made one at a time beside the pages, which ask again until they are there, and then kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Say = Callable[[str], None]
"""Hears what is being done."""

_KEPT = 4
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
    """Makes answers that take long, the one first for which a page asked last."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        self._problems: dict[Hashable, Exception] = {}
        self._tasks: dict[Hashable, _Task] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def ask(self, name: Hashable, make: Callable[[Say], T], version: Hashable, *, again: bool = False) -> Later[T]:
        """What `make` gave, or what it is doing. `name` says what it is, with all that it depends on.

        It is made in a thread, and kept whatever becomes of the store, until a page asks for it `again`. An answer
        that is older than an hour, and of another `version`, is made again by itself. What is not asked for any more
        is given up. Raises what `make` raises.
        """
        with self._changed:
            made, now = self._made.get(name), time.monotonic()
            old = made is not None and made.version != version and now - made.at_s > _OLD_S
            begun = False
            if name in self._tasks:
                self._tasks[name].asked_s = now
            elif (made is None or again or old) and name not in self._problems:
                self._tasks[name], begun = _Task(make, version, now), True
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="slowly", daemon=True)
                    self._thread.start()
            if made is None and begun:  # a page that asks again does not wait: it keeps the server for others
                self._changed.wait_for(lambda: name not in self._tasks, _WAIT_S)
            problem, made, task = self._problems.pop(name, None), self._made.get(name), self._tasks.get(name)
            if problem is not None:
                raise problem
            if made is not None:
                self._made.move_to_end(name)
            doing = None if task is None else task.doing
            return (
                Later(None, doing, None)
                if made is None
                else Later(made.answer, doing, made.at, made.version != version)
            )

    def give_up(self, name: Hashable) -> None:
        """Make an answer no further; what is being made ends when it next says what it does."""
        with self._changed:
            if name in self._tasks:
                self._tasks[name].asked_s = -_GONE_S - 1e9

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._tasks:
                    self._thread = None
                    return
                name, task = max(self._tasks.items(), key=lambda one: one[1].asked_s)
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
                    while len(self._made) > _KEPT:
                        self._made.popitem(last=False)
                elif not isinstance(problem, _GivenUpError):
                    self._problems[name] = problem
                self._changed.notify_all()

    def _saying(self, task: _Task) -> Say:
        def say(what: str) -> None:
            with self._changed:
                task.doing = what
                last = max(one.asked_s for one in self._tasks.values())
                if last > task.asked_s + _GIVES_WAY_S or time.monotonic() > task.asked_s + _GONE_S:
                    raise _GivenUpError

        return say
