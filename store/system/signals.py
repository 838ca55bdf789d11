"""Signals that ask a process to end: note them, hold them back for a moment, or end the process in order.

Python handles signals only in the main thread; in other threads nothing here has an effect. A signal that is ignored
stays ignored, such as SIGHUP under nohup. A signal mask would not be enough: another thread may receive the signal, and
Python then still runs its handler in the main thread.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Noted:
    """The signals that come during the block are noted in `came`, in their order, and do nothing else."""

    def __init__(self, numbers: Iterable[int] = ENDING) -> None:
        self.came: list[int] = []
        self._numbers = tuple(numbers)
        self._before: dict[int, Any] = {}
        self._interruption: BaseException | None = None

    def __enter__(self) -> Self:
        for number in self._numbers if current_thread() is main_thread() else ():
            # None: not Python's handler, which Python could not put back.
            while signal.getsignal(number) not in (self._handle, signal.SIG_IGN, None):
                try:
                    self._before.setdefault(number, signal.getsignal(number))
                    signal.signal(number, self._handle)
                except BaseException as error:  # the exception of a signal that came just now; it is raised at the end
                    self._interruption = error
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._interruption is not None:
            raise self._interruption

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.came.append(number)


class Unwinding(Noted):
    """Signals end the block by SystemExit, or as the earlier handler would, so that the block can clean up.

    Further signals within `apart_s` seconds do nothing: several may come together, and the second one would stop the
    cleaning up. A later signal acts again, because somebody is waiting and in a hurry.
    """

    def __init__(self, numbers: Iterable[int] = ENDING, *, apart_s: float) -> None:
        super().__init__(numbers)
        self._apart_s = apart_s
        self._raised: float | None = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now, before = time.monotonic(), self._before[number]
        if self._raised is not None and now - self._raised < self._apart_s:
            return
        self._raised = now
        super()._handle(number, frame)
        if before is signal.SIG_DFL:
            raise SystemExit(128 + number)
        before(number, frame)
        self._raised = None  # it raised nothing
        self.came.pop()


@contextlib.contextmanager
def held(numbers: Iterable[int] = ENDING, *, once: bool = False) -> Iterator[None]:
    """Signals that come during the block act after it. With `once`, a second signal ends it by KeyboardInterrupt."""
    noted = _Once(numbers) if once else Noted(numbers)
    try:
        with noted:
            yield
    finally:
        for number in noted.came:
            signal.raise_signal(number)


class _Once(Noted):
    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._handle(number, frame)
        if len(self.came) > 1:
            raise KeyboardInterrupt
