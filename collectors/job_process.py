"""The process beside a collector of a job: the user's command, or the user's Python, to which the collector is a child.

A `JobCommand` is in the same process group as the collector: a terminal reaches it as if there were no collector.
A scheduler signals the processes that it started and not their children (Slurm with cgroups does), so each signal is
passed on; Ctrl-C of a terminal reaches both by itself.

A `JobCollector` reads while a block of Python runs: `with whorl.collect(for_job=True) as job:`. It needs nothing of
the user's process: neither its interpreter lock, which training holds for long, nor its signal handlers, nor its
memory; and a crash of one does no harm to the other. It ends when the block does, or when the process that began it is
gone.

Whatever becomes of the collector, the block runs: its work is worth more than its measurement.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

from ..errors import InputError, WhorlError
from ..store.system.signals import Noted
from .backend import check_backend
from .collect import CollectHooks, CollectOptions, collect
from .job_readings import document

log = logging.getLogger(__name__)

# The child finds the modules that its parent does, and none in the folder in which it happens to be (-P).
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from whorl.collectors.job_process import serve
serve(json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
"""
_READY = "ready\n"
_END_S = 30.0
"""How long the end of a block waits for the collector: it seals what it read."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_GRACE_S = 10.0
"""A scheduler that sent SIGTERM kills everything some time later (Slurm: KillWait, 30 s). The summary of a command that
has not ended by then comes after so many seconds."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that cannot be started."""


class JobCollector:
    """A collector of this job's GPUs, which runs during its `with` block.

    A block that cannot be measured, or not to its end, runs all the same: a warning is logged, and `problem` says why.
    """

    def __init__(self, store: str | Path | None = None, **options: Any) -> None:
        """`options` are those of `CollectOptions`.

        Raises TypeError for an option that there is not, and InputError for a backend that there is not.
        """
        self._store = None if store is None else str(store)
        self._options = CollectOptions(for_job=True, **options)
        check_backend(self._options.backend)
        self.problem: str | None = None
        """Why there is no measurement, in a sentence; None where there is one."""
        self._content: dict[str, Any] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._messages: IO[str] | None = None
        self._printed = ""

    @property
    def document(self) -> dict[str, Any]:
        """What `whorl collect --for-job --json` prints; without GPUs where there is a problem.

        Raises InputError before the end of the block.
        """
        if self._content is None:
            raise InputError("there is no summary before the end of the with block")
        return self._content

    def __enter__(self) -> Self:
        if self._process is not None:
            raise InputError("a collector of a job has one block: make another one with whorl.collect(for_job=True)")
        command = [sys.executable or "python", "-P", "-c", _PROGRAM, json.dumps(sys.path)]
        command += [json.dumps(asdict(self._options), default=str), json.dumps(self._store), str(os.getpid())]
        try:
            self._messages = tempfile.TemporaryFile("w+", prefix="whorl-")
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, a constant program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                text=True,
                start_new_session=True,  # Ctrl-C is for the user's process, whose block ends then
            )
        except OSError as error:
            self._fail(f"another process of Python cannot be started: {error.strerror}")
            return self
        assert self._process.stdout is not None
        self._printed = self._process.stdout.readline()
        if not self._printed:
            self._process.communicate()
            self._fail(self._last_message())
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None and self.problem is None:
            process.send_signal(signal.SIGTERM)
            try:
                self._printed += process.communicate(timeout=_END_S)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            if process.returncode == 0:
                self._content = json.loads(self._printed.splitlines()[-1])
            else:
                self._fail(self._last_message())
        if self._content is None:
            self._content = document([])
        if self._messages is not None:
            self._messages.close()

    def _fail(self, problem: str) -> None:
        self.problem = problem
        log.warning("this job is not measured: %s", problem)

    def _last_message(self) -> str:
        assert self._process is not None
        assert self._messages is not None
        self._messages.seek(0)
        lines = self._messages.read().strip().splitlines()
        return lines[-1] if lines else f"its collector ended with status {self._process.returncode}"


def serve(options: dict[str, Any], store: str | None, parent: int) -> None:
    """Be the child of a `JobCollector`: print a line when it reads, and at the end the document."""
    from .collect import settle

    def tell(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    settle()
    with Noted() as noted:
        hooks = CollectHooks(begun=lambda _: tell(_READY), ended=lambda: bool(noted.came) or os.getppid() != parent)
        try:
            collected = collect(store, CollectOptions(**options), hooks)
        except WhorlError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        tell(f"{json.dumps(collected.document())}\n")


class JobCommand(Noted):
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
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno() if sys.__stdin__ else 0) == os.getpgrp()
    except (OSError, ValueError):
        return False
