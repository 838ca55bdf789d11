"""The commands that whorl prints to be copied: found in an output, and run as they are printed."""

from __future__ import annotations

import re
import shlex

import click
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import DeviceError, SchedulerError

_LINE = re.compile(r"^(?:next: +| +)?(whorl [a-z].*?)(?: +# .*)?$", re.MULTILINE)
_QUOTED = re.compile(r"`(whorl [^`]*--store [^`]+)`")
_PLACEHOLDER = re.compile(r"[A-Z]{2,}")
_STAYS = (("dashboard",), ("collect",), ("probe", "run"), ("campaign", "run"), ("export", "prometheus"))
"""Commands that serve, or measure this machine's GPUs: only their options are read; a simulated fleet is measured."""


def hints(output: str) -> list[list[str]]:
    """The words after `whorl` of each command that an output prints to be copied, each once.

    Such a command stands in a line of its own, or in backticks with the store that it is for. One with a word in
    capitals, such as FILES, is a pattern and no command.
    """
    printed = [*_LINE.findall(output), *_QUOTED.findall(output)]
    commands = dict.fromkeys(tuple(shlex.split(text)[1:]) for text in printed)
    return [list(words) for words in commands if not any(map(_PLACEHOLDER.fullmatch, words))]


def run_hints(output: str) -> list[list[str]]:
    """Run each command that an output prints to be copied; AssertionError for one that does not run as printed.

    One that needs a scheduler or a GPU may say that there is none here. Returns the commands.
    """
    commands = hints(output)
    for words in commands:
        if any(tuple(words[: len(name)]) == name for name in _STAYS) and "simulated" not in words:
            _parsed(words)
            continue
        done = CliRunner().invoke(cli, words)
        without = (SchedulerError.exit_code, DeviceError.exit_code)
        assert done.exit_code in (0, *without), f"whorl {shlex.join(words)}\n{done.output}"
        assert done.exception is None or isinstance(done.exception, SystemExit), words
    return commands


def _parsed(words: list[str]) -> None:
    """Read a command's options without running it. click.UsageError where they are wrong."""
    command: click.Command = cli
    remaining = list(words)
    while isinstance(command, click.Group):
        command = command.commands[remaining.pop(0)]
    with command.make_context(words[0], remaining) as context:
        values = context.params
        assert words[:2] != ["probe", "run"] or values["names"] or values["suite"], "it does not say what to measure"
