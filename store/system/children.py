"""Short-lived children that do for a collector what takes Arrow, so that the collector stays small.

A process that has Arrow does it itself: a child would load it again, half a second of a processor each time.

A child gets its arguments as one line of JSON on standard input, which stays open as long as the parent lives: when it
is closed the child ends at once. So a child may be stopped at any moment, as a process of the store may.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ...errors import StoreError, WhorlError
from .signals import ENDING


class StartError(StoreError):
    """No child can be started here."""


log = logging.getLogger(__name__)

# The child finds the modules that its parent does, and none in the folder in which it happens to be (-P).
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from whorl.store.system.children import serve
serve(sys.argv[1], int(sys.argv[3]))
"""
_LOOK_S = 0.1


def has_arrow() -> bool:
    """Whether this process has loaded Arrow."""
    return "pyarrow" in sys.modules


def run(
    function: str,
    arguments: Mapping[str, Any],
    *,
    keep: Sequence[int] = (),
    nice: int = 0,
    ended: Callable[[], bool] | None = None,
) -> Any:
    """Call a function, given as "module:name", in a child, or here if Arrow is here, with arguments that JSON can say.

    Returns its answer, which JSON can say too. The child has the open files `keep` too, and the priority `nice` if that
    is not 0. It ends early, without an answer, when `ended` says so, and is always a child if that is given. Raises
    StartError where it cannot start, and StoreError for what it fails with.
    """
    if ended is None and has_arrow():
        return _named(function)(**arguments)
    python = sys.executable or "python"
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context(os.fdopen(writing, "wb"))
        # systemd and Slurm ask all processes of a service or a job to end: the child ends when its parent does.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            child = subprocess.Popen(  # noqa: S603 - our own interpreter, a constant program
                [python, "-P", "-c", _PROGRAM, function, json.dumps(sys.path), str(nice)],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C is for the parent, which waits for its child
            )
        except OSError as error:
            raise StartError(f"cannot start another process of {python}: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(reading)
        with child:
            with contextlib.suppress(BrokenPipeError):  # how it ended says why
                stdin.write(json.dumps(arguments, default=str).encode() + b"\n")
                stdin.flush()
            output = None
            while output is None:
                try:
                    output = child.communicate(timeout=_LOOK_S)
                except subprocess.TimeoutExpired:
                    if ended is not None and ended():
                        with contextlib.suppress(BrokenPipeError):
                            stdin.close()
            answer, messages = output
            lines = messages.decode(errors="replace").strip().splitlines()
    if child.returncode < 0:
        raise StoreError(f"the process for it was ended by {signal.Signals(-child.returncode).name}")
    failed = child.returncode != 0
    for line in lines[:-1] if failed else lines:
        log.warning("%s", line)
    if failed:
        raise StoreError(lines[-1] if lines else f"the process for it ended with status {child.returncode}")
    return json.loads(answer.splitlines()[-1])  # a library may print above it


def serve(function: str, nice: int = 0) -> None:
    """Be the child of `run`: warnings go to standard error, and last what it fails with."""
    with contextlib.suppress(OSError, AttributeError):  # only the readings of a collector are worth real time
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if nice:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    arguments = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        sys.stdout.write(json.dumps(_named(function)(**arguments)))
    except WhorlError as error:
        sys.exit(str(error))


def _named(function: str) -> Callable[..., None]:
    module, _, name = function.partition(":")
    called: Callable[..., None] = getattr(import_module(module), name)
    return called


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)
