"""How answers are printed: tables for people, JSON for programs, Markdown for documents."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib.util
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

MISSING = "n/a"


def number(value: float | None, digits: int = 4, *, suffix: str = "") -> str:
    """A number for people, to so many significant digits; "n/a" where it is missing."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return f"0{suffix}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}{suffix}"


def count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def plain(value: Any) -> Any:
    """A value as JSON knows it: times as ISO 8601 in UTC, what is no number as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime):
        return value.isoformat() + ("Z" if value.tzinfo is None else "")
    if isinstance(value, (dt.date, dt.time, dt.timedelta)):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def print_json(document: dict[str, Any]) -> None:
    """Print a document; its first key must be `schema`."""
    click.echo(json.dumps(plain(document), ensure_ascii=False, allow_nan=False))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table; the columns whose positions are in `right` are aligned to the right."""
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def width() -> int | None:
    """The columns of the terminal, or None where the output is no terminal and has no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table, or row by row, a line per column, where the terminal is too narrow for the table."""
    available = width()
    if available is None or sum(_widths(header, rows)) + 2 * (len(header) - 1) <= available:
        print_table(header, rows, right)
        return
    longest = max(map(len, header))
    for position, row in enumerate(rows, start=1):
        click.echo(f"row {position}")
        for name, cell in zip(header, row, strict=True):
            click.echo(f"  {name.ljust(longest)}  {cell}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table for people: fitted to the terminal, or at full width where the output is no terminal."""
    if width() is not None and importlib.util.find_spec("rich"):
        _print_fitted(header, rows, right)
        return
    # A file or a pipe takes any width, and as many rows as there are; a node that only measures has no rich.
    widths = _widths(header, rows)
    for row in (header, *rows):
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(cells).rstrip())


def _print_fitted(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(
        width=width(),
        color_system=None if "NO_COLOR" in os.environ else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for position, name in enumerate(header):
        table.add_column(name, justify="right" if position in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())
