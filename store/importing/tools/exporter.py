"""Saved pages of exporters: what `curl` saved of one, or of a Prometheus, one page or several in one file.

A row is a GPU at the time of the page: its time stamps where it has some (also of many scrapes, as promtool's `tsdb
dump` and `dump-openmetrics` write them), else a line with a time in front of it, else --at (and --every for several).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ....errors import InputError
from ...events import Event
from ...exposition import gpus, text
from ...exposition.gpus import TimeUnit
from ...vocabulary import EventKind
from ..content import written
from ..meanings import TELEMETRY_MEANINGS, labelled
from ..rows import Rows, Value
from ..stamps import instant
from .stamped import COUNTED, Times, UntimedError

NAME = "prometheus"

_NS = 10**9
_BEGIN = re.compile(
    r"^\s*# (?:HELP|TYPE) [A-Za-z_:][A-Za-z0-9_:]* \S|^\s*(?:DCGM_FI|dcgm|nvidia_smi)_[A-Za-z0-9_]+\{|^\{__name__=\"",
    re.MULTILINE,
)
_NAMES = {one.column: labelled(one, one.unit) for one in TELEMETRY_MEANINGS if one.column}
_SHOWN = 6
_MOST_XID = 100_000
_UNKNOWN_XID = "XID {}, as the file begins; when it happened is not said"


@dataclass(slots=True)
class _Cell:
    """A value of one GPU and metric at one time."""

    line: int
    rank: int
    column: gpus.Column
    value: int | None
    why: str
    said: str


@dataclass(slots=True)
class _Reading:
    """What the file says of one GPU at one time (a text, or ns)."""

    line: int
    whose: gpus.Whose
    when: str | int
    labels: dict[str, Value] = field(default_factory=dict)
    cells: dict[str, _Cell] = field(default_factory=dict)
    xid: int = 0

    @property
    def node(self) -> str:
        return str(self.labels.get("node", ""))

    @property
    def numbers(self) -> tuple[object, ...]:
        return (self.whose.key, self.xid, *((name, cell.value, cell.why) for name, cell in sorted(self.cells.items())))


def fits(head: str) -> bool:
    """Whether a file that begins so is a page of an exporter."""
    return _BEGIN.search(head) is not None


def read(page: str, rows: Rows) -> None:
    """Add a row for each GPU and time in the text."""
    readings = _Pages(rows).readings(page)
    units = _units_of_times(readings, page, rows)
    xids: dict[str, int] = {}
    last: dict[str, tuple[object, ...]] = {}
    repeats = 0
    for node, together in _by_node_and_time(readings):
        numbers = tuple(sorted(one.numbers for one in together))
        repeats += len(together) * (last.get(node) == numbers)
        last[node] = numbers
        for one in together:
            key = rows.add(one.line, _row(one, units[node], rows))
            _tell_xid(key, one, xids, rows)
    if repeats:
        rows.note(f"{repeats} rows repeat all numbers of their node: its exporter had nothing new")


class _Pages:
    """Goes through the lines of a file, and knows the time of each."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._times = Times(rows, "the exporter")
        self._stood = ""  # a time in front of the page
        self._number = -1  # of the page; -1 before the first
        self._when: str | None = None
        self._seen: set[str] = set()  # series of this page
        self._found: dict[tuple[str, str | int], _Reading] = {}

    def readings(self, page: str) -> list[_Reading]:
        """Everything about GPUs in the text. Raises InputError where there is nothing."""
        known, others, nameless, about = False, set[str](), False, dict[str, dict[str, Value]]()
        contents = written(page)
        for line in text.lines(page):
            if isinstance(line, text.Help):
                continue
            if isinstance(line, text.Damage) or line.value is None:
                if self._is_time(next(said for number, said in contents if number == line.line).strip()):
                    continue
                if isinstance(line, text.Damage):
                    self._rows.refuse(line.line, line.why)
                    continue
            place = gpus.place(line.series.name, line.series.labels)
            if place is None:
                whose = gpus.whose(line.series.labels)
                if whose is not None and (said := gpus.about(line.series.name, line.series.labels)):
                    about[whose.key] = said
                found = gpus.column(line.series.name)
                nameless |= found is not None and whose is None
                if found is None and line.series.name.upper().startswith("DCGM_FI_"):
                    others.add(line.series.name)
                continue
            known = True
            self._put(line, place)
        if not known:
            raise InputError(f"{self._rows.file}: {_instead(others, nameless=nameless)}: nothing to import")
        if self._times.counted and self._number:
            self._rows.note(COUNTED)
        if others:
            shown = ", ".join(sorted(others)[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
            self._rows.note(f"metrics without a column: {shown}")
        for one in self._found.values():
            one.labels = about.get(one.whose.key, {}) | one.labels
        return list(self._found.values())

    def _is_time(self, line: str) -> bool:
        """Whether a line is a time, as `date` prints it, in front of a page."""
        if "{" in line or self._times.of(line, 0) is None:
            return False
        self._stood = line
        self._seen.clear()
        self._when = None
        return True

    def _time(self, sample: text.Sample) -> str | int:
        """The time of a sample; a page without any ends where a series comes again."""
        if sample.stamp_ns is not None:
            return sample.stamp_ns
        name = repr(sample.series)
        if self._when is None or name in self._seen:
            self._seen.clear()
            self._number += 1
            if not self._stood and self._rows.options.at is None:
                raise UntimedError(
                    f"{self._rows.file}: the page has no times: say when it was saved, for example "
                    "--at '2026-11-23 14:05:00'"
                )
            when = self._times.of(self._stood, self._number)
            assert when is not None
            self._when, self._stood = when, ""
        self._seen.add(name)
        return self._when

    def _put(self, sample: text.Sample, place: gpus.Place) -> None:
        labels = sample.series.labels
        owner = gpus.whose(labels) or place.whose
        when = self._time(sample)
        for whose in dict.fromkeys((owner, place.whose)):
            reading = self._found.setdefault((whose.key, when), _Reading(sample.line, whose, when))
            reading.labels.update(gpus.described(labels))
        reading = self._found[place.whose.key, when]
        column = place.column
        if column is None:
            number = sample.value if sample.value is not None and 0 < sample.value < _MOST_XID else 0
            reading.xid = max(int(number), reading.xid)
            return
        value, why = gpus.scaled(sample.value, column)
        cell = _Cell(sample.line, place.rank, column, value, why, sample.text)
        before = reading.cells.get(column.metric.name)
        if before is None or before.rank > place.rank:
            reading.cells[column.metric.name] = cell
        elif before.rank == place.rank and (before.value, before.why) != (value, why):
            before.value, before.why = None, "two"


def _instead(others: Iterable[str], *, nameless: bool) -> str:
    if nameless:
        return "its series have no UUID of a GPU"
    shown = ", ".join(sorted(others)[:_SHOWN])
    return f"whorl knows none of its metrics ({shown})" if shown else "no metric of DCGM is on the page"


def _units_of_times(readings: Sequence[_Reading], page: str, rows: Rows) -> dict[str, TimeUnit]:
    """The unit of times held down, by node, from the words on the page or from the times of its readings."""
    units = {one.node: TimeUnit() for one in readings}
    for line in text.lines(page):
        if isinstance(line, text.Help) and (column := gpus.column(line.name)) is not None and column.disputed:
            for unit in units.values():
                unit.heard(line.words)
    held = [(one, name, cell) for one in readings for name, cell in one.cells.items() if cell.column.disputed]
    zone, file = rows.options.time_zone, rows.file
    times = {one.when: one.when if isinstance(one.when, int) else instant(one.when, zone, file) for one, _, _ in held}
    for one, name, cell in sorted(held, key=lambda each: times[each[0].when]):
        if cell.value is not None:
            units[one.node].note(f"{name} of {one.whose.key}", times[one.when], cell.value)
    if any(cell.value and units[one.node].factor is None for one, _, cell in held):
        rows.note("times held down are not stored: nothing in the file shows whether they are in ns or us")
    return units


def _by_node_and_time(readings: Iterable[_Reading]) -> Iterator[tuple[str, list[_Reading]]]:
    together: dict[tuple[str, str | int], list[_Reading]] = {}
    for one in readings:
        together.setdefault((one.node, one.when), []).append(one)
    stamped = all(isinstance(when, int) for _, when in together)
    keys = sorted(together, key=lambda key: (key[0], int(key[1]))) if stamped else list(together)
    for key in keys:
        yield key[0], together[key]


def _row(one: _Reading, unit: TimeUnit, rows: Rows) -> dict[str, Value]:
    when = one.when
    row: dict[str, Value] = {"timestamp": f"{when // _NS}.{when % _NS:09d}" if isinstance(when, int) else when}
    row |= {"gpu": one.whose.uuid, "index": one.labels.pop("slot", None)}
    if one.whose.instance is not None:
        row |= {"instance": f"GI{one.whose.instance}"}
    row |= {name: said for name, said in one.labels.items() if name != "mig_profile" or one.whose.instance is not None}
    for name, cell in one.cells.items():
        value = cell.value
        if cell.column.disputed and value:
            value = None if unit.factor is None else value * unit.factor
        if cell.why == "impossible":
            rows.note(f"line {cell.line}: {name} cannot be {cell.said}, so NULL is stored")
        elif cell.why == "two":
            rows.note(f"line {cell.line}: {name} has two values for one GPU at one time, so NULL is stored")
        row[_NAMES[name]] = value
    return row


def _tell_xid(key: int, one: _Reading, xids: dict[str, int], rows: Rows) -> None:
    """An event where the last XID of a GPU is another than before; what the file begins with happened earlier."""
    before = xids.get(one.whose.uuid)
    if one.whose.instance is not None:
        return
    xids[one.whose.uuid] = one.xid
    if not one.xid or one.xid == before:
        return
    if before is None:
        rows.note(f"{one.whose.key}: {_UNKNOWN_XID.format(one.xid)}")
        return
    at = one.when if isinstance(one.when, int) else None
    rows.event(key, Event(EventKind.XID, None, f"XID {one.xid}: see NVIDIA's list of XID errors", at, code=one.xid))
