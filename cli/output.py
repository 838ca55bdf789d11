"""How answers are printed: tables for people, JSON for programs, and progress.

The one place that knows of the terminal. A table is fitted to it by `rich`; on a node that only measures, which has
no `rich`, and in a file or a pipe, rows are lines of aligned cells.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from typing import Any

import click

from ..dashboards import terminal
from ..dashboards.answers.reply import Reply, plain
from ..dashboards.document import Document, Part
from ..dashboards.words import cut, printable

_ERASE = "\r\x1b[K"  # what a terminal shows in the present line
_STEERING = re.compile(r"[\x7f-\x9f]")  # control characters that JSON may hold as they are


# -- JSON -----------------------------------------------------------------------------------------------------


def print_json(document: dict[str, Any]) -> None:
    """Print a document; its first key must be `schema`."""
    text = json.dumps(plain(document), ensure_ascii=False, allow_nan=False)
    click.echo(_STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def print_reply(reply: Reply[Any], *, as_json: bool, as_csv: bool = False) -> None:
    """Print a reply as JSON, its rows as CSV, or for people; its notes stand on standard error.

    Ends the verb with status 1 where parts of the answer could not be made.
    """
    tell_notes(reply)
    if as_json:
        print_json(reply.json())
    elif as_csv:
        click.echo(reply.csv(), nl=False)
    else:
        print_document(reply.document())
    if reply.coverage is not None and reply.coverage.failures:
        sys.exit(1)


def print_answer(mapping: dict[str, Any], document: Document, *, as_json: bool) -> None:
    """Print an answer as JSON, or for people."""
    if as_json:
        print_json(mapping)
    else:
        print_document(document)


def tell_notes(reply: Reply[Any]) -> None:
    """Print the notes of a reply on standard error."""
    for note in reply.notes:
        tell(f"note: {note}")


# -- text and tables ------------------------------------------------------------------------------------------


def width() -> int | None:
    """The columns of the terminal, or None where the output is no terminal and has no width.

    A terminal that says it has none counts as one of 80 columns.
    """
    return (shutil.get_terminal_size().columns or 80) if sys.stdout.isatty() else None


def tell(sentence: str, *, lines: bool = False) -> None:
    """Print a note beside the answer, on standard error; `lines` as in `printable`."""
    erased = _ERASE if _shows_progress() else ""  # the line of progress, if there is one
    click.echo(f"{erased}whorl: {printable(cut(sentence), lines=lines)}", err=True)


def say(text: str, first: str = "", rest: str = "") -> None:
    """Print a sentence in lines of the terminal's width, 100 at most; words stay in one piece.

    If the output is not a terminal it is one line, which programs can search.
    """
    for line in terminal.filled(text, width(), first, rest):
        click.echo(line)


def show(parts: Iterable[Part]) -> None:
    """Print parts of a document one after another, as each comes; empty lines only where a part is one."""
    for part in parts:
        for line in terminal.lines([part], width()):
            click.echo(line)


def print_document(document: Document) -> None:
    """Print a document: each part as soon as it is drawn."""
    for line in terminal.lines(document.parts, width()):
        click.echo(line)


# -- how far a verb is ----------------------------------------------------------------------------------------


def _shows_progress() -> bool:
    """Whether standard error is a terminal on which a line can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _progress_width() -> int:
    """The columns of the terminal that shows progress: the answer may go to a file or a pipe, which has no width."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class ProgressBar:
    """How far a verb is, on standard error where that is a terminal: one line that is written over.

    `progress(done, of, what)` counts and estimates the time left, `progress.say(what)` only says. Ends with the block,
    or `clear()`.
    """

    def __init__(self, every_s: float = 0.1) -> None:
        self.live = _shows_progress()
        self._every_s, self._shown = every_s, -math.inf
        self._total, self._began_s, self._done_before = 0, 0.0, 0  # of what is counted

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, of: int, what: str) -> None:
        now = time.monotonic()
        if of != self._total or done < self._done_before:  # counts anew, and so does the time left
            self._total, self._began_s, self._done_before = of, now, done
        new = done - self._done_before
        left = f"; {_left((now - self._began_s) * (of - done) / new)} left" if new else ""
        self.say(f"{done:,} of {of:,}; {what}{left}")

    def say(self, what: str) -> None:
        """Say what goes on, with nothing to count."""
        now = time.monotonic()
        if self.live and now - self._shown >= self._every_s:
            self._shown = now
            click.echo(f"{_ERASE}{printable(what)[: _progress_width() - 1]}", err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown > -math.inf:
            self._shown = -math.inf
            click.echo(_ERASE, err=True, nl=False)


def _left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
