"""How answers are printed: tables for people, JSON for programs, and progress.

The one place that knows of the terminal. A table is fitted to it by `rich`; on a node that only measures, which has
no `rich`, and in a file or a pipe, rows are lines of aligned cells.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ..dashboards import terminal
from ..dashboards.answers.reply import Reply, plain
from ..dashboards.document import Document, Part
from ..dashboards.words import cut, printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_STEERING = re.compile(r"[\x7f-\x9f]")  # control characters that JSON may hold as they are
_SHOWN_EVERY_S, _TOLD_EVERY_S = 0.1, 10.0


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
    click.echo(f"whorl: {printable(cut(sentence), lines=lines)}", err=True)


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


class ProgressBar:
    """How far a verb is, on standard error where that is a terminal: one line that is written over.

    `progress(done, of, what)` counts and estimates the time left, `progress.say(what)` only says. Ends with the block,
    or `clear()`. On a node without `rich` it is a plain line every ten seconds.
    """

    def __init__(self, every_s: float = _SHOWN_EVERY_S) -> None:
        self._every_s = every_s
        self.live = sys.stderr.isatty()
        self._rich = self.live and importlib.util.find_spec("rich") is not None
        self._bar: Bar | None = None
        self._shown = -math.inf

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, of: int, what: str) -> None:
        self._show(what, done, of)

    def say(self, what: str) -> None:
        """Say what goes on, with nothing to count."""
        self._show(what, None, None)

    def clear(self) -> None:
        """Take the line away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, what: str, done: int | None, of: int | None) -> None:
        now = time.monotonic()
        if not self.live or now - self._shown < (self._every_s if self._rich else _TOLD_EVERY_S):
            return
        self._shown = now
        if not self._rich:
            click.echo(f"whorl: {'' if of is None else f'{done:,} of {of:,}; '}{what}", err=True)
            return
        if self._bar is None:
            self._bar = _bar()
        [task] = self._bar.task_ids
        if of is not None and of != self._bar.tasks[0].total:
            self._bar.reset(task, total=of)  # counts anew, and so does the time left
        self._bar.update(task, description=what, completed=done, counted=of is not None)
        self._bar.refresh()


def _bar() -> Bar:
    """One line of `rich`'s, drawn when something is said: no thread beside the measuring."""
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class StatusColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            is_counted = task.fields["counted"]
            counted = f"{task.completed:,.0f} of {task.total:,.0f}; " if is_counted else ""
            left = task.time_remaining if is_counted else None
            rest = "" if left is None else f"; {_left(left)} left"
            return Text(f"{counted}{task.description}{rest}", no_wrap=True, overflow="ellipsis")

    bar = Bar(StatusColumn(), console=terminal.console(error=True), auto_refresh=False, transient=True)
    bar.add_task("", total=None, counted=False)
    bar.start()
    return bar


def _left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
