"""The rows that a reader of one format finds in a file, and the sheet that they become."""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import polars as pl

from ...errors import InputError
from ..events import Event
from ..vocabulary import EventKind
from .content import LINE, RECORD, Sheet
from .meanings import split_label
from .options import Options

_WORD = re.compile(r"\S")
_OBJECT_LINE = re.compile(r"(?:\{.+|[^\[{].*\})(?=\n\s*\{|\s*\Z)")  # whose end or begin is lost
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


def at_rate(label: str, number: float) -> dict[str, Value]:
    """What a run has of a rate, or of a latency: the figure, the duration of a fixed amount of work (1 GB, or 1e12
    operations), so that lower is better, and that work. `label` is the figure with its unit."""
    if label == "latency [ns]":
        return {"time [ms]": number / 1e6, label: number}
    work, per_ms = ("bytes", 1e9), number * 1e6
    if label != "bandwidth [GB/s]":
        work = "flop", 1e12
    return {"time [ms]": float(f"{work[1] / per_ms:.15g}"), label: number, work[0]: work[1]}


def record_of(text: str) -> str:
    """The name of the measurement that a text tells of."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def finite(value: object) -> float | None:
    """The number that a value or a text is; None for truth values, for what is no number, and for nan and inf."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass
class Rows:
    """Rows of one file, as its reader finds them, until they are a sheet.

    A value stands under the name of a meaning, with its unit in brackets: `time [ms]`, `power [W]`, `gpu`, `index`
    (`meanings.py`; of runs also a figure). What has another name is told as a column that is not stored.
    """

    sheet: Sheet  # of the file, its format and the options; notes, events and messages are put into it at once
    began_ns: int | None = None  # when readings without a time began where --at does not say it
    step_s: float | None = None  # between them, where --every does not say it
    sweeps: int = 0  # of them, which follow each other
    host: str = ""  # of which the present lines are, where the file says it; the node of rows that name none
    numbers: Sequence[int] = ()  # of the present lines in the file, where they are not all of its lines
    allocations: Rows | None = None  # who had the GPUs: rows of jobs
    _names: dict[str, None] = field(default_factory=dict)
    _lines: array[int] = field(default_factory=lambda: array("q"))
    _rows: list[tuple[str, Mapping[str, Value]]] = field(default_factory=list)  # those that wait
    _pieces: list[pl.DataFrame] = field(default_factory=list)
    _refused: list[tuple[str, int]] = field(default_factory=list)
    _xids: dict[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)  # counts by GPU and source
    _first_xids: dict[str, list[tuple[int, int, int | None]]] = field(default_factory=dict)  # key, XID, time; by GPU

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def file(self) -> str:
        """The name of the file, as reports have it."""
        return self.sheet.file

    @property
    def options(self) -> Options:
        """What the user says about the file."""
        return self.sheet.options

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

    def objects(self, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The JSON objects that follow each other in a text, or are a list, each with its line. A damaged one is
        refused where it has a line of its own; else this raises InputError."""
        decoder, line, at = json.JSONDecoder(), 1, 0
        while (begin := _WORD.search(text, at)) is not None:
            line += text.count("\n", at, begin.start())
            at = begin.start()
            try:
                document, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if (damaged := _OBJECT_LINE.match(text, at)) is None:
                    raise InputError(
                        f"{self.file}: the JSON is damaged or cut short in line {line} ({error}); save it again"
                    ) from error
                document, end = None, damaged.end()
            for entry in document if isinstance(document, list) else [document]:
                if isinstance(entry, dict):
                    yield line, entry
                else:
                    self.refuse(line, "it is no JSON object: the line is damaged or cut short")
            line += text.count("\n", at, end)
            at = end

    def message(self, line: int, text: str) -> None:
        """Count a line in which the tool says something, such as that a GPU is lost. It is of the row before."""
        self.sheet.messages.append((len(self._lines), text))
        self.refuse(line, f"it is no row but a message: {text.strip()[:80]}")

    def note(self, text: str) -> None:
        """Say something about the file, once."""
        if text not in self.sheet.notes:
            self.sheet.notes.append(text)

    def event(self, key: int, event: Event) -> None:
        """What happened to the GPU of a row, at the time of the row if it has none."""
        self.sheet.events.append((key, event))

    def xids(
        self, key: int, gpu: str, counts: Mapping[int, int], ts_ns: int | None, *, source: str, recent: bool = False
    ) -> None:
        """An event for each XID of a GPU whose count has risen since the reading before, by what tells of it
        (`source`). An XID 0 is none.

        What the first reading counts happened before, unless it counts only `recent` ones. Where others follow, it is
        told, as its time is not known; a single reading says that it happened, which is an event of its time.
        """
        if gpu in self._first_xids and self._first_xids[gpu][0][0] != key:
            for _, code, _ in self._first_xids.pop(gpu):
                self.note(f"{gpu} had XID {code} before the file begins: when is not known, so it is no event")
        before = self._xids.get((gpu, source), {} if recent else None)
        if counts or before is not None:
            self._xids[gpu, source] = counts
        for code, count in counts.items():
            if before is None and code and count:
                self._first_xids.setdefault(gpu, []).append((key, code, ts_ns))
            elif before is not None and code and count > before.get(code, 0):
                self._xid(key, code, ts_ns)

    def _xid(self, key: int, code: int, ts_ns: int | None) -> None:
        """An event about an XID of the GPU of a row; one for each XID of a row."""
        event = Event(EventKind.XID, None, f"XID {code}: see NVIDIA's list of XID errors", ts_ns, code=code)
        if (key, event) not in self.sheet.events[-_NEWEST:]:
            self.event(key, event)

    def allocation(self, line: int, values: Mapping[str, Value], source: str) -> None:
        """Add a row that says who had a GPU. `source` is the code of `jobs.source`."""
        if self.allocations is None:
            about = self.sheet
            jobs = Sheet(about.file, about.options, notes=about.notes, format=about.format, kind="jobs", source=source)
            self.allocations = Rows(jobs)
        self.allocations.add(self._line(line), values)

    def date_events(self, ns: int) -> bool:
        """Give events without a time this one (ns since 1970, UTC). Returns whether there were some."""
        events = self.sheet.events
        undated = any(event.ts_ns is None for _, event in events)
        self.sheet.events = [(key, replace(event, ts_ns=event.ts_ns or ns)) for key, event in events]
        return undated

    def finished(self) -> Sheet:
        """The sheet of these rows, or of the allocations where there are no others."""
        if self.allocations is not None and not len(self):
            self.allocations._refused += self._refused
            return self.allocations.finished()
        sheet, height = self.sheet, len(self._lines)
        for key, code, ts_ns in (first for firsts in self._first_xids.values() for first in firsts):
            self._xid(key, code, ts_ns)
            sheet.first_xids.add((key, code))
        if sheet.kind == "runs" and not any(split_label(label)[0] == "time" for label in self._names):
            self._names["time [ms]"] = None  # every run failed
        for key, (reason, _) in enumerate(self._refused, start=height + 1):
            sheet.refused.add(reason, [key])
        self._lines.extend(line for _, line in self._refused)
        frame = pl.concat([*self._pieces, self._columns()], how="diagonal")
        self._pieces.clear()
        texts = (pl.col(label).fill_null("") for label in self._names)
        sheet.frame = frame.select(pl.int_range(1, height + 1).alias(LINE), RECORD, *texts)
        sheet.names, sheet.lines, sheet.rows = list(self._names), self._lines, len(self._lines)
        if self.allocations is not None:
            sheet.jobs = self.allocations.finished()
        return sheet

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
