"""How a measuring command ends on a signal: like Ctrl-C, with complete runs stored."""

from __future__ import annotations

import math
import signal

import click

from ..store.system import signals

_STAYS = "what was stored stays, and the command can be run again"


def stays(sentence: str) -> None:
    """From here on, say this of the work so far if the command is interrupted, in place of `_STAYS`."""
    click.get_current_context().meta[__name__] = sentence


def ended(how: str) -> None:
    """Say on standard error how the command ended before its end, and what is left of its work."""
    from .output import tell

    tell(f"{how}; {click.get_current_context().meta.get(__name__, _STAYS)}")


class Ending(signals.Unwinding):
    """SIGTERM and SIGHUP end the block as Ctrl-C does, once: what is complete is stored, what was set is restored.

    A batch system sends SIGTERM at the end of a job's time. One that is ignored stays ignored: under nohup, SIGHUP is.
    """

    def __init__(self) -> None:
        super().__init__((signal.SIGTERM, signal.SIGHUP), apart_s=math.inf)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.came:
            ended("stopped by a signal")
