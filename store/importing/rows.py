"""The rows that a reader of one format finds in a file, and the sheet that they become."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import polars as pl

from ..events import Event
from ..vocabulary import EventKind
from .content import LINE, RECORD, Refused, Sheet
from .meanings import split_label
from .options import Options

_NEWEST = 64  # events among which one of the same row can be
Value = str | int | float | None
_PIECE = 8192  # rows that wait before they become columns: a row takes many times the memory of its columns


def parts(text: str, begin: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The parts of a text that begin where the pattern is found, each with the number of its first line. What stands
    before the first is left out."""
    line, last = 1, 0
    for start, end in pairwise([*(match.start() for match in begin.finditer(text)), len(text)]):
        line += text.count("\n", last, start)
        last = start
        yield line, text[start:end]


def finite(value: object) -> float | None:
    """The number that a value or a text is; None for truth values, for what is no number, and for nan and inf."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass
class Rows:
    """Rows of one file, as its reader finds them.

    A value stands under the name of a meaning, with its unit in brackets: `time [ms]`, `power [W]`, `gpu`, `index`
    (`meanings.py`; of runs also a figure). What has another name is told as a column that is not stored.
    """

    file: str
    options: Options = field(default_factory=Options)
    notes: list[str] = field(default_factory=list)
    host: str = ""  # of which the present lines are, where the file says it; the node of rows that name none
    numbers: Sequence[int] = ()  # of the present lines in the file, where they are not all of its lines
    _names: dict[str, None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # --at and --every, where something was read with them
    sweeps: int = 0  # readings that follow each other without a time
    began_ns: int | None = None  # when these began where --at does not say it
    step_s: float | None = None  # between them, where --every does not say it
    _lines: array[int] = field(default_factory=lambda: array("q"))
    _rows: list[tuple[str, Mapping[str, Value]]] = field(default_factory=list)  # those that wait
    _pieces: list[pl.DataFrame] = field(default_factory=list)
    _refused: list[tuple[str, int]] = field(default_factory=list)
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _messages: list[tuple[int, str]] = field(default_factory=list)
    allocations: Rows | None = None  # who had the GPUs: rows of jobs
    source: str = ""  # of these: a code of `jobs.source`
    _xids: dict[str, int] = field(default_factory=dict)  # the last of each GPU
    _first_xids: dict[str, list[tuple[int, int, int | None]]] = field(default_factory=dict)  # key, XID, time; by GPU

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: int, values: Mapping[str, Value], record: str = "") -> int:
        """Add the row that stands in this line, and return its key. None is "unknown".

        `record` names the measurement where the values do not: rows that are equal in both are one row.
        """
        if self.host and not values.get("node"):
            values = {**values, "node": self.host}
        self._names.update(dict.fromkeys(values))
        self._lines.append(self._line(line))
        self._rows.append((record, values))
        if len(self._rows) == _PIECE:
            self._pieces.append(self._columns())
        return len(self._lines)

    def refuse(self, line: int, reason: str) -> None:
        """Count a row that cannot be read."""
        self._refused.append((reason, self._line(line)))

    def _line(self, line: int) -> int:
        return self.numbers[line - 1] if self.numbers else line

    def refuse_rest(self, lines: list[int], reason: str) -> None:
        """Refuse the rows in these lines, for this reason, which the reader did not read."""
        unread = set(lines).difference(self._lines)
        self._refused = [entry for entry in self._refused if entry[1] not in unread]
        self._refused += [(reason, line) for line in sorted(unread)]

    def message(self, line: int, text: str) -> None:
        """Count a line in which the tool says something, such as that a GPU is lost. It is of the row before."""
        self._messages.append((len(self._lines), text))
        self.refuse(line, f"it is no row but a message: {text.strip()[:80]}")

    def note(self, text: str) -> None:
        """Say something about the file, once."""
        if text not in self.notes:
            self.notes.append(text)

    def event(self, key: int, event: Event) -> None:
        """What happened to the GPU of a row. Its GPU and node are those of the row. Without a time it was when the row
        of telemetry was read, else at --at, else now."""
        self._events.append((key, event))

    def last_xid(self, key: int, name: str, code: int, ts_ns: int | None = None) -> None:
        """An event where the number of the last XID of the GPU called `name` becomes another; 0 is none."""
        before = self._xids.get(name)
        self._xids[name] = code
        if before is None and code:
            self.first_xid(key, name, code, ts_ns)
            return
        self.begin_is_past(name)
        if code not in (0, before):
            self.xid(key, code, ts_ns)

    def first_xid(self, key: int, name: str, code: int, ts_ns: int | None) -> None:
        """An XID with which the readings of the GPU called `name` begin: it happened before.

        One reading alone says that it happened, which is an event of its time. Where others follow, it was before all
        of them: it is told.
        """
        self._first_xids.setdefault(name, []).append((key, code, ts_ns))

    def begin_is_past(self, name: str) -> None:
        """Another reading of the GPU follows those that `first_xid` was called for."""
        for _, code, _ in self._first_xids.pop(name, []):
            self.note(f"{name} had XID {code} before the file begins: when is not known, so it is no event")

    def xid(self, key: int, code: int, ts_ns: int | None = None) -> None:
        """An event about an XID of the GPU of a row; one for each XID of a row."""
        event = Event(EventKind.XID, None, f"XID {code}: see NVIDIA's list of XID errors", ts_ns, code=code)
        if (key, event) not in self._events[-_NEWEST:]:
            self.event(key, event)

    def allocation(self, line: int, values: Mapping[str, Value], source: str) -> None:
        """Add a row that says who had a GPU. `source` is the code of `jobs.source`."""
        if self.allocations is None:
            self.allocations = Rows(self.file, self.options, self.notes, source=source)
        self.allocations.add(self._line(line), values)

    def date_events(self, ns: int) -> bool:
        """Give events without a time this one (ns since 1970, UTC). Returns whether there were some."""
        undated = any(event.ts_ns is None for _, event in self._events)
        self._events = [(key, replace(event, ts_ns=event.ts_ns or ns)) for key, event in self._events]
        return undated

    def sheet(self, *, name: str, kind: str, sha256: str, size: int) -> Sheet:
        """The sheet of these rows, or of the allocations where there are no others. `name` and `kind` are those of the
        format."""
        first_xids = [first for firsts in self._first_xids.values() for first in firsts]
        for key, code, ts_ns in first_xids:
            self.xid(key, code, ts_ns)
        jobs = self.allocations
        if jobs is not None and not len(self):
            jobs._refused += self._refused
            return jobs.sheet(name=name, kind="jobs", sha256=sha256, size=size)
        refused, height = Refused(), len(self._lines)
        if kind == "runs" and not any(split_label(label)[0] == "time" for label in self._names):
            self._names["time [ms]"] = None  # every run failed
        for key, (reason, _) in enumerate(self._refused, start=height + 1):
            refused.add(reason, [key])
        self._lines.extend(line for _, line in self._refused)
        frame = pl.concat([*self._pieces, self._columns()], how="diagonal")
        self._pieces.clear()
        texts = (pl.col(label).fill_null("") for label in self._names)
        return Sheet(
            self.file,
            self.options,
            list(self._names),
            frame.select(pl.int_range(1, height + 1).alias(LINE), RECORD, *texts),
            len(self._lines),
            sha256,
            size,
            refused,
            format=name,
            kind=kind,
            lines=self._lines,
            notes=self.notes,
            events=self._events,
            messages=self._messages,
            used=self.used,
            first_xids={(key, code) for key, code, _ in first_xids},
            jobs=None if jobs is None else jobs.sheet(name=name, kind="jobs", sha256=sha256, size=size),
            source=self.source,
        )

    def _columns(self) -> pl.DataFrame:
        """The rows that wait, as columns of text; then none waits."""
        rows, self._rows = self._rows, []
        columns = {label: [_text(values.get(label)) for _, values in rows] for label in self._names}
        columns[RECORD] = [record for record, _ in rows]
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value.strip()
    return "" if value is None else repr(value)
