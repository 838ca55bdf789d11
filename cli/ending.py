"""How a measuring command ends on a signal: like Ctrl-C, with complete runs stored."""

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
            click.echo("whorl: stopped by a signal; what was stored stays, and the command can be run again", err=True)
