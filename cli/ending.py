"""How a command that measures ends when it is told to: as by Ctrl-C, with what is complete stored."""

from __future__ import annotations

import math
import signal

import click

from ..store import signals


class Ending(signals.Unwinding):
    """SIGTERM and SIGHUP end the block as Ctrl-C does, once: what is complete is stored, what was set is restored.

    A batch system sends SIGTERM at the end of a job's time. One that is ignored stays ignored: under nohup, SIGHUP is.
    """

    def __init__(self) -> None:
        super().__init__((signal.SIGTERM, signal.SIGHUP), apart_s=math.inf)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.came:
            click.echo("whorl: told to end; what was stored stays, and the command can be run again", err=True)
