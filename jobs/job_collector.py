"""This job's GPUs, collected while a block of Python runs: `with whorl.collect(for_job=True) as job:`.

The collector is a child process. It needs nothing of the user's process: neither its interpreter lock, which training
holds for long, nor its signal handlers, nor its memory; and a crash of one does no harm to the other. It ends when the
block does, or when the process that began it is gone.

Whatever becomes of the collector, the block runs: its work is worth more than its measurement.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Self

from ..collectors.backend import find_source
from ..errors import InputError, WhorlError
from .collecting import collect
from .job_summary import document

log = logging.getLogger(__name__)

# The child finds the modules that its parent does, and none in the folder in which it happens to be (-P).
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from whorl.jobs.job_collector import serve
serve(json.loads(sys.argv[2]), int(sys.argv[3]))
"""
_READY = "ready\n"
_END_S = 30.0
"""How long the end of a block waits for the collector: it seals what it read."""


class JobCollector:
    """A collector of this job's GPUs, which runs during its `with` block.

    A block that cannot be measured, or not to its end, runs all the same: a warning is logged, and `problem` says why.
    """

    def __init__(self, store: str | Path | None = None, **options: Any) -> None:
        """`store` and `options` as `collect` has them with `for_job`.

        Raises TypeError for an option that there is not, and InputError for a backend that there is not.
        """
        self._arguments = {"store": None if store is None else str(store), "for_job": True, **options}
        inspect.signature(collect).bind(**self._arguments)
        find_source(str(options.get("backend", "nvml")))
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
        command += [json.dumps(self._arguments, default=str), str(os.getpid())]
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


def serve(arguments: dict[str, Any], parent: int) -> None:
    """Be the child of a `JobCollector`: print a line when it reads, and at the end the document."""
    from ..collectors.collect import settle
    from ..store.system.signals import Noted

    def tell(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    settle()
    with Noted() as noted:
        try:
            collected = collect(
                **arguments,
                begun=lambda _: tell(_READY),
                ended=lambda: bool(noted.came) or os.getppid() != parent,
            )
        except WhorlError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        tell(f"{json.dumps(collected.document())}\n")
