"""Files of a published artifact. Every row counts, because a missing row would shift all random draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...store.importing.content import LINE, Sheet


@dataclass(frozen=True)
class Cell:
    """A field of a table: its text, and where it stands."""

    path: Path
    line: int
    column: str
    text: str

    def number(self) -> float:
        """The field as a finite number. Raises InputError."""
        try:
            value = float(self.text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error("is not a number")
        return value

    def whole(self) -> int:
        """The field as a whole number. Raises InputError."""
        value = self.number()
        if value != int(value):
            raise self.error("is not a whole number")
        return int(value)

    def error(self, what: str) -> InputError:
        """One sentence: file, line, column, the field, and what is wrong with it."""
        return InputError(f"{self.path}, line {self.line}: {self.column} {self.text!r} {what}")


def columns(path: Path, sheet: Sheet, names: tuple[str, ...]) -> list[tuple[Cell, ...]]:
    """The rows of these columns of the table at `path`, in the file's order.

    Raises InputError where a column is missing, and where any of the table's rows could not be read.
    """
    if sheet.refused.count:
        reason, lines = min(sheet.refused.lines.items(), key=lambda item: item[1][0])
        raise InputError(f"{path}, line {lines[0]}: {reason}; a published simulation needs every row")
    missing = [name for name in names if name not in sheet.names]
    if missing:
        has = ", ".join(sheet.names[:12]) + (", ..." if len(sheet.names) > 12 else "")
        raise InputError(f"{path} has no column {' and no column '.join(missing)}; it has {has}")
    rows = sheet.frame.select(LINE, *names).iter_rows()
    return [
        tuple(Cell(path, line, name, text or "") for name, text in zip(names, fields, strict=True))
        for line, *fields in rows
    ]
