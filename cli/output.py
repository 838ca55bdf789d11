"""How answers are printed: tables for people, JSON for programs, and progress.

The one place that knows of the terminal. A table is fitted to it by `rich`; on a node that only measures, which has
no `rich`, and in a file or a pipe, rows are lines of aligned cells.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..dashboards.answers.reply import Reply, plain
from ..dashboards.table import GAP, Line, Table, cut, printable
from ..dashboards.table import number as number  # cli/demo.py has it from here

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

_NARROWEST = 16  # of a column of sentences, unless its longest word is longer
_STEERING = re.compile(r"[\x7f-\x9f]")  # control characters that JSON may hold as they are
_WORD = 40  # a longer word may break there: a UUID has 40 letters, so what does is a path
_FILLED = 100  # a line of text is no longer, however wide the terminal
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
        from ..dashboards.printed.energy import rows_as_csv

        click.echo(rows_as_csv(reply.frame), nl=False)
    else:
        show(reply.parts())
    if reply.coverage is not None and reply.coverage.failures:
        sys.exit(1)


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
    available, text = width(), printable(text)
    if available is None:
        click.echo(first + text)
        return
    columns = min(available, _FILLED)
    click.echo(
        textwrap.fill(
            text, columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
        )
    )


def show(parts: Iterable[str | Table]) -> None:
    """Print tables and sentences, one after another. A sentence is filled into lines, a `Line` is left as it is."""
    for part in parts:
        if isinstance(part, Table):
            print_table(part)
        elif isinstance(part, Line) or not part:
            click.echo(printable(part))
        else:
            indent = part[: len(part) - len(part.lstrip())]
            say(part.lstrip(), indent, f"{indent}  " if indent else "")


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table at full width: no column breaks or is left out."""
    print_table(Table(header, rows, right))


def print_table(table: Table) -> None:
    """Print a table: fitted to the terminal, or at full width where the output is no terminal.

    If there is no room, sentences break into lines. Then columns are left out in the table's order, and a line names
    them. Then heads break. If that is not enough, each row takes a line per column. A number is never split.
    """
    table = replace(
        table, header=list(map(printable, table.header)), rows=[list(map(printable, row)) for row in table.rows]
    )
    available = width()
    rich = available is not None and importlib.util.find_spec("rich") is not None
    if table.title:
        say(table.title)
    fitted, left_out = _fitted(table, available, breaks=rich)
    if rich and _least(fitted, breaks=rich) > (available or 0):
        fitted = _heads_broken(fitted, available or 0)
    if available is not None and _least(fitted, breaks=rich) > available:
        _print_cells(fitted)
    elif rich:
        _print_rich(fitted, available or 0)
    else:
        click.echo("\n".join(replace(fitted, title="", says="").lines()))
    if left_out:
        named = ", ".join(f"'{head}'" if "," in head else head for head in left_out)
        say(f"No room for {named}: a wider terminal shows more.")
    if table.says:
        say(table.says)


def _fitted(table: Table, available: int | None, *, breaks: bool) -> tuple[Table, list[str]]:
    """The table with the columns that fit, and the heads of the others."""
    left_out: list[str] = []
    while available is not None and table.leaves and _least(table, breaks=breaks) > available:
        left_out.append(table.header[table.leaves[0]])
        table = _without(table, table.leaves[0])
    return table, [head for head in left_out if head and head[0] != "["]


def _heads_broken(table: Table, available: int) -> Table:
    """The table with its heads broken into lines as narrow as their cells allow, if it then fits."""
    heads = []
    for place, head in enumerate(table.header):
        cells = (len(row[place]) for row in table.rows)
        heads.append(textwrap.fill(head, max([1, *cells, *map(len, head.split())]), break_on_hyphens=False))
    broken = replace(table, header=heads)
    return broken if _least(broken, breaks=True) <= available else table


def _without(table: Table, place: int) -> Table:
    def moved(places: Sequence[int]) -> list[int]:
        return [one - (one > place) for one in places if one != place]

    return replace(
        table,
        header=[*table.header[:place], *table.header[place + 1 :]],
        rows=[[*row[:place], *row[place + 1 :]] for row in table.rows],
        right=moved(table.right),
        wrapped=moved(table.wrapped),
        leaves=moved(table.leaves),
    )


def _widths(table: Table) -> list[int]:
    heads = [max(map(len, head.split("\n"))) for head in table.header]
    return [max([wide, *map(len, cells)]) for wide, *cells in zip(heads, *table.rows, strict=True)]


def _least(table: Table, *, breaks: bool) -> int:
    """How many columns of a terminal a table takes at least."""
    widths = _widths(table)
    for place in table.wrapped if breaks else ():
        widths[place] = min(widths[place], _narrowest(table, place))
    return sum(widths) + GAP * (len(widths) - 1)


def _narrowest(table: Table, place: int) -> int:
    """How narrow a column of sentences may become: its longest word stays whole, unless it is a path."""
    words = [len(word) for row in (table.header, *table.rows) for word in row[place].split()]
    return max(_NARROWEST, min(_WORD, max(words, default=0)))


def _print_cells(table: Table) -> None:
    """Row by row, a line per column that has something in it."""
    longest = max(map(len, table.header))
    for position, row in enumerate(table.rows, start=1):
        click.echo(f"row {position}")
        for name, cell in zip(table.header, row, strict=True):
            if cell:
                say(cell, f"  {name.ljust(longest)}  ", " " * (longest + 4))


def _console(*, error: bool = False, columns: int | None = None) -> Console:
    from rich.console import Console

    return Console(
        stderr=error,
        width=columns,
        color_system=None if "NO_COLOR" in os.environ else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def _print_rich(table: Table, available: int) -> None:
    from rich.table import Table as Drawn

    console = _console(columns=available)
    drawn = Drawn(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for place, name in enumerate(table.header):
        breaks = place in table.wrapped
        drawn.add_column(name, justify="right" if place in table.right else "left", overflow="fold", no_wrap=not breaks)
    for row in table.rows:
        drawn.add_row(*row)
    with console.capture() as capture:
        console.print(drawn)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


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

    bar = Bar(StatusColumn(), console=_console(error=True), auto_refresh=False, transient=True)
    bar.add_task("", total=None, counted=False)
    bar.start()
    return bar


def _left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
