"""How a command that measures ends when it is told to: as by Ctrl-C, with what is complete stored."""

from __future__ import annotations

import signal
from threading import current_thread, main_thread
from types import FrameType

import click


class Ending:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, once: what is complete is stored, what was set is restored.

    A batch system sends SIGTERM at the end of a job's time. One that is ignored stays ignored: under nohup, SIGHUP is.
    """

    def __enter__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        self._ours, self._came = current_thread() is main_thread(), False
        for number, handler in self._before.items():
            if self._ours and handler is signal.SIG_DFL:
                signal.signal(number, self._end)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._came = True
        signal.signal(number, signal.SIG_IGN)  # a second one must not end the storing
        raise SystemExit(128 + number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if self._ours and handler is signal.SIG_DFL:
                signal.signal(number, handler)
        if self._came:
            click.echo("whorl: told to end; what was stored stays, and the command can be run again", err=True)
