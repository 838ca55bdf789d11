"""Pages of one exporter as readings: what each series is about is worked out once, after that a line costs little."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.exposition import gpus, text
from ...store.exposition.gpus import TimeUnit
from ...store.metrics import METRICS
from ..backends import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROOM = 4  # times as many series are remembered as a page has: pods come and go, and are in the labels
_BECAUSE = {"unsupported": Status.UNSUPPORTED, "denied": Status.DENIED, "blank": Status.UNREAD}
_MOST_XID = 100_000
_WIDE = 1 << 63


@dataclass(slots=True)
class Gpu:
    """A GPU or MIG instance that a page shows: its key, whose part it is, and what the labels say of it."""

    key: str
    parent: str | None
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """A series: its metric's name, the number of its GPU, and the column and rank of `gpus.Place`."""

    name: str
    gpu: int
    column: gpus.Column | None
    rank: int


@dataclass(slots=True)
class Page:
    """What a page says: arrays (metrics, GPUs), GPUs by number; what is not on it is UNREAD."""

    values: NDArray[np.int64]
    status: NDArray[np.uint8]
    stamps: NDArray[np.int64]
    """UTC ns, 0 where the page has no time stamp."""
    xids: dict[int, int]
    names: frozenset[str]
    """The names of metrics on it that have a column."""
    unknown: frozenset[str]
    """The other names of DCGM on it."""
    damaged: list[text.Damage]
    strange: dict[str, str]
    """Columns with a number that they cannot have, or with two numbers for one GPU, and a sentence."""
    cut: bool
    """Whether the last line has no end."""


class Reader:
    """Reads the pages of one exporter. It remembers the series, the GPUs, and the unit of times held down."""

    def __init__(self) -> None:
        self.gpus: list[Gpu] = []
        self.units: dict[str, TimeUnit] = {}
        """Of times held down, by node: a Prometheus may show exporters of several versions."""
        self.nameless = False
        """Whether a known metric was there without the UUID of its GPU."""
        self._words = ""  # of the page, about such a counter
        self._numbers: dict[str, int] = {}  # key of a GPU -> its number
        self._known: dict[str, _Known | None] = {}  # the beginning of a line -> its series; None: not for us
        self._unknown: dict[str, str] = {}  # ... -> a name of DCGM that has no column

    def read(self, page: str, now_ns: int) -> Page:
        """What a page says that was asked for at `now_ns`."""
        lines = page.split("\n")
        cut = bool(lines[-1].strip()) and lines[-1].strip() != "# EOF"
        if cut:
            del lines[-1]  # its number may lack digits
        if len(self._known) > _ROOM * len(lines):
            self._known, self._unknown = {}, {}
        known, unknown = self._known, self._unknown
        found: list[tuple[int, _Known, str]] = []
        damaged: list[text.Damage] = []
        without: set[str] = set()
        for number, line in enumerate(lines, start=1):
            if line[:1].isspace():
                line = line.strip()
            if not line or line[0] == "#":
                if not self._words and line.startswith("# HELP"):
                    self._hear(line)
                continue
            end = line.rfind("}") + 1
            head = line[:end]
            try:
                series = known[head]
            except KeyError:
                try:
                    end, series = self._meet(line)
                except ValueError as error:
                    damaged.append(text.Damage(number, str(error)))
                    continue
                head = line[:end]
            if series is not None:
                found.append((number, series, line[end:]))
            elif head in unknown:
                without.add(unknown[head])
        result = Page(
            np.zeros((len(METRICS), len(self.gpus)), np.int64),
            np.full((len(METRICS), len(self.gpus)), Status.UNREAD, np.uint8),
            np.zeros((len(METRICS), len(self.gpus)), np.int64),
            {},
            frozenset([series.name for _, series, _ in found if series.column is not None]),
            frozenset(without),
            damaged,
            {},
            cut,
        )
        self._fill(result, found, now_ns)
        return result

    def _hear(self, line: str) -> None:
        words = line.split(None, 3)
        column = gpus.column(words[2]) if len(words) == 4 else None
        if column is not None and column.disputed:
            self._words = words[3]

    def _meet(self, line: str) -> tuple[int, _Known | None]:
        """Where a line's series ends, and what it is. Raises ValueError."""
        end = text.end_of_series(line)
        head = line[:end]
        if head in self._known:  # a brace stood behind it
            return end, self._known[head]
        series = text.series(head)
        place, whose = gpus.place(series.name, series.labels), gpus.whose(series.labels)
        known = None
        if place is not None and whose is not None:
            self._gpu(whose, series.labels)
            known = _Known(series.name, self._gpu(place.whose, series.labels), place.column, place.rank)
        elif whose is not None and (said := gpus.about(series.name, series.labels)):
            self.gpus[self._gpu(whose, {})].row |= said
        elif gpus.column(series.name) is not None:
            self.nameless |= whose is None and not gpus.is_part(series.labels)
        elif whose is not None and series.name.upper().startswith("DCGM_FI_"):
            self._unknown[head] = series.name
        self._known[head] = known
        return end, known

    def _gpu(self, whose: gpus.Whose, labels: dict[str, str]) -> int:
        said = gpus.described(labels)
        profile = said.pop("mig_profile", None)
        parent = None
        if whose.instance is not None:
            parent = whose.uuid
            self._gpu(gpus.Whose(whose.uuid, None), labels)
            said |= {"uuid": whose.uuid, "parent": whose.uuid, "mig_profile": profile}
        else:
            said["uuid"] = whose.uuid
            if profile is not None and whose.uuid.startswith("MIG-"):
                said["mig_profile"] = profile
        number = self._numbers.setdefault(whose.key, len(self.gpus))
        if number == len(self.gpus):
            self.gpus.append(Gpu(whose.key, parent))
        self.gpus[number].row |= said
        return number

    def _fill(self, page: Page, found: Iterable[tuple[int, _Known, str]], now_ns: int) -> None:
        cells: dict[tuple[int, int], tuple[int, int, int, int]] = {}  # -> time, -rank, value, status
        held: list[tuple[int, int]] = []  # cells with a time held down
        for line, series, tail in found:
            column, when = series.column, 0
            said = tail.strip()
            number = text.number_of(said)
            if number is None:  # there is a time stamp, or something else
                try:
                    said, stamp = text.value_and_stamp(tail)
                except ValueError as error:
                    page.damaged.append(text.Damage(line, str(error)))
                    continue
                number, when = text.number_of(said), stamp or 0
            if column is None:
                if number is not None and 0 <= number < _MOST_XID:
                    page.xids[series.gpu] = max(int(number), page.xids.get(series.gpu, 0))  # of MIG instances
                continue
            value, why = gpus.scaled(number, column)
            cell, status = (column.row, series.gpu), int(Status.OK)
            before = cells.get(cell)
            if before is not None:  # a second series of this metric and GPU
                if (when, -series.rank) < before[:2] or before[2] == (value or 0):
                    continue
                if (when, -series.rank) == before[:2]:
                    page.strange[column.metric.name] = f"{series.name} has two values for one GPU"
                    value, why = None, "two"
            if value is None:
                value, status = 0, _BECAUSE.get(why, Status.FAILED)
                if why == "impossible":
                    page.strange[column.metric.name] = f"{series.name} cannot be {said}"
            elif column.disputed:
                held.append(cell)
            cells[cell] = (when, -series.rank, value, status)
        times = [(cell, *cells[cell]) for cell in dict.fromkeys(held) if cells[cell][3] == Status.OK]
        for (row, gpu), when, _, value, _ in times:
            self._unit(gpu).note(f"{METRICS[row].name} of {self.gpus[gpu].key}", when or now_ns, value)
        for cell, when, rank, value, status in times:
            factor = self._unit(cell[1]).factor
            if factor is not None and value * factor < _WIDE:
                cells[cell] = (when, rank, value * factor, status)
            elif value:  # 0 is 0 in every unit
                cells[cell] = (when, rank, 0, Status.UNREAD)
        if cells:
            rows, columns = np.array(list(cells), np.intp).T
            when_, _, values, statuses = np.array(list(cells.values()), np.int64).T
            page.stamps[rows, columns], page.values[rows, columns] = when_, values
            page.status[rows, columns] = statuses

    def _unit(self, gpu: int) -> TimeUnit:
        node = str(self.gpus[gpu].row.get("node", ""))
        if node not in self.units:
            self.units[node] = TimeUnit()
            self.units[node].heard(self._words)
        return self.units[node]
