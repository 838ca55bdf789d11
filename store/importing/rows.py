"""The rows that a reader of one format finds in a file, and the sheet that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from ..events import Event
from .content import LINE, RECORD, Refused, Sheet
from .options import Options
from .units import split_label

Value = str | int | float | None


@dataclass
class Rows:
    """Rows of one file, as its reader finds them.

    A value stands under the name of a meaning, with its unit in brackets: `time [ms]`, `power [W]`, `gpu`, `index`
    (`meanings.py`; of runs also a figure, `figures.py`). What has another name is told as a column that is not stored.
    """

    file: str
    options: Options = field(default_factory=Options)
    notes: list[str] = field(default_factory=list)
    _names: dict[str, None] = field(default_factory=dict)
    _rows: list[tuple[int, str, Mapping[str, Value]]] = field(default_factory=list)
    _refused: list[tuple[str, int]] = field(default_factory=list)
    _events: list[tuple[int, Event]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, line: int, values: Mapping[str, Value], record: str = "") -> int:
        """Add the row that stands in this line, and return its key. None is "unknown".

        `record` names the measurement where the values do not: rows that are equal in both are one row.
        """
        self._names.update(dict.fromkeys(values))
        self._rows.append((line, record, values))
        return len(self._rows)

    def refuse(self, line: int, reason: str) -> None:
        """Count a row that cannot be read."""
        self._refused.append((reason, line))

    def note(self, text: str) -> None:
        """Say something about the file, once."""
        if text not in self.notes:
            self.notes.append(text)

    def event(self, key: int, event: Event) -> None:
        """What happened to the GPU of a row. Its GPU and node are those of the row. Without a time it was when the row
        of telemetry was read, else at --at, else now."""
        self._events.append((key, event))

    def sheet(self, *, name: str, kind: str, sha256: str, size: int) -> Sheet:
        """The sheet of these rows. `name` and `kind` are those of the format."""
        refused, lines = Refused(), {}
        if kind == "runs" and not any(split_label(each)[0] == "time" for each in self._names):
            self._names["time [ms]"] = None  # every run failed
        for key, (reason, line) in enumerate(self._refused, start=len(self._rows) + 1):
            refused.add(reason, [key])
            lines[key] = line
        lines |= {key: line for key, (line, _, _) in enumerate(self._rows, start=1)}
        columns = {each: [_text(values.get(each)) for _, _, values in self._rows] for each in self._names}
        own = {LINE: list(range(1, len(self._rows) + 1)), RECORD: [record for _, record, _ in self._rows]}
        schema = {LINE: pl.Int64, RECORD: pl.String} | dict.fromkeys(columns, pl.String)
        return Sheet(
            self.file,
            sha256,
            size,
            list(columns),
            pl.DataFrame(own | columns, schema=schema),
            len(self._rows) + len(self._refused),
            refused,
            format=name,
            kind=kind,
            lines=lines,
            notes=self.notes,
            events=self._events,
        )


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value.strip()
    return "" if value is None else repr(value)
