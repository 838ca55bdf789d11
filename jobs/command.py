"""A user's command that runs beside a collector: signals are passed on to it, and its exit status is the collector's.

The command is in the same process group, so that a terminal reaches it as if there were no collector. A scheduler
signals the processes that it started and not their children (Slurm with cgroups does), so each signal is passed on;
Ctrl-C of a terminal reaches both by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Self

from ..store.system.signals import Noted

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_GRACE_S = 10.0
"""A scheduler that sent SIGTERM kills everything some time later (Slurm: KillWait, 30 s). The summary of a command that
has not ended by then comes after so many seconds."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that cannot be started."""


class Command(Noted):
    """A command, with its arguments, which runs during the block; the block must wait for it.

    `__enter__` raises OSError where it cannot be started.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(_PASSED_ON)
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_s: float | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._process = subprocess.Popen(self._arguments)  # noqa: S603 - what the user wants to run
        except BaseException:
            self.__exit__()
            raise
        for number in self.came:
            self._process.send_signal(number)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._handle(number, frame)
        if number == signal.SIGTERM and self._asked_s is None:
            self._asked_s = time.monotonic()
        if self._process is not None and not (number in _OF_TERMINAL and _has_terminal()):
            self._process.send_signal(number)

    def ended(self) -> bool:
        """Whether the collector should end: the command has ended, or was asked to and does not."""
        late = self._asked_s is not None and time.monotonic() - self._asked_s > _GRACE_S
        return late or self.status is not None

    @property
    def status(self) -> int | None:
        """How it ended, as `wait` tells it; None while it runs."""
        assert self._process is not None
        status = self._process.poll()
        return 128 - status if status is not None and status < 0 else status

    def wait(self) -> int:
        """Wait for the command; its exit status as a shell tells it: 128 and its number for a signal."""
        assert self._process is not None
        self._process.wait()
        assert self.status is not None
        return self.status


def _has_terminal() -> bool:
    """Whether this process group is the one that a terminal interrupts."""
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) == os.getpgrp()
    except (OSError, ValueError):
        return False
