"""Pages of one exporter as numbers: what each series is about is worked out once, after that a line costs little."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...store.exposition import gpus, text
from ...store.exposition.gpus import TimeUnit
from ...store.metrics import METRICS
from ..backend import Status
from .download import NoPage

_BECAUSE = {"unsupported": Status.UNSUPPORTED, "denied": Status.DENIED, "blank": Status.UNREAD}
_LABEL_CHARACTERS = 200
_MOST_XID = 100_000
_HELD = {column.row for column in gpus.COLUMNS.values() if column.disputed}
_WIDE = 1 << 63
_SERIES_BYTES = 400  # of memory for a series that is remembered, besides its text


@dataclass(frozen=True)
class Limits:
    """How large a page may be. A page of 2,000 GPUs with 25 metrics has about 50,000 lines and 13 MB."""

    page_bytes: int = 16 << 20
    lines: int = 60_000
    line_bytes: int = 16 << 10
    gpus: int = 4_096
    remembered_bytes: int = 48 << 20
    """Of memory for what is known of series; one that is forgotten is worked out again."""


@dataclass(slots=True)
class Gpu:
    """A GPU or MIG instance on a page: the key of the GPU that it is a part of, and what the labels say of it."""

    parent: str | None
    row: dict[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """Its host, "" where the labels do not say it."""
        return str(self.row.get("node", ""))


class Number(NamedTuple):
    """A number on a page, in the unit of its metric."""

    stamp_ns: int  # UTC, 0 where the page has none
    order: int  # of several series of one metric and GPU, the one with the largest time and order counts
    value: int
    status: Status
    disputed: bool = False  # a time held down, whose unit is to be found out


@dataclass(slots=True)
class _Series:
    name: str
    gpu: str
    column: gpus.Column | None  # None: the last XID
    rank: int


@dataclass(slots=True)
class Page:
    """What a page says."""

    numbers: dict[str, dict[int, Number]] = field(default_factory=dict)
    """By GPU and row of METRICS."""
    xids: dict[str, int] = field(default_factory=dict)
    """The last XID of each GPU."""
    names: set[str] = field(default_factory=set)
    """The names of metrics on it that have a column."""
    unknown: set[str] = field(default_factory=set)
    """The other names of DCGM on it."""
    damage: text.Damage | None = None
    """The first line that cannot be read."""
    strange: dict[str, str] = field(default_factory=dict)
    """Columns with a number that they cannot have, or with two numbers for one GPU, and a sentence."""
    cut: bool = False
    """Whether the last line has no end."""

    def refuse(self, line: int, why: str) -> None:
        """Keep the first line that cannot be read."""
        self.damage = self.damage or text.Damage(line, why)


class _TooManyGpus(Exception):  # noqa: N818 - the others are read
    pass


class Reader:
    """Reads the pages of one exporter. It remembers the series, the GPUs, and the unit of times held down."""

    def __init__(self, limits: Limits) -> None:
        self.gpus: dict[str, Gpu] = {}
        """By key, a GPU before its MIG instances."""
        self.units: dict[str, TimeUnit] = {}
        """Of times held down, by node: a Prometheus may show exporters of several versions."""
        self.nameless = False
        """Whether a known metric was there without the UUID of its GPU."""
        self.full = False
        """Whether a page has GPUs beyond the limit, which are not read."""
        self._limits = limits
        self._words = ""  # of the page, about a time held down
        self._series: dict[str, _Series | str | None] = {}  # by the beginning of a line; or a name without a column
        self._series_bytes = 0

    def read(self, body: bytes | bytearray, now_ns: int) -> Page:
        """What a page says that was asked for at `now_ns`. Raises NoPage for one with too many lines."""
        if body.count(b"\n") > self._limits.lines:
            raise NoPage(f"its page has more than {self._limits.lines} lines; ask for fewer series")
        page = Page()
        for number, raw in enumerate(io.BytesIO(body), start=1):
            line = raw.decode("utf-8", "replace").strip() if len(raw) <= self._limits.line_bytes else None
            if not raw.endswith(b"\n") and line not in ("", "# EOF"):
                page.cut = True  # its number may lack digits
            elif line is None:
                page.refuse(number, f"it has more than {self._limits.line_bytes} bytes")
            elif line.startswith("#"):
                self._hear(line)
            elif line:
                try:
                    self._take(line, page)
                except ValueError as error:
                    page.refuse(number, str(error))
        self._convert_times(page, now_ns)
        return page

    def forget(self, keys: set[str]) -> None:
        """Forget GPUs that are not there any more."""
        if keys:
            self.gpus = {key: gpu for key, gpu in self.gpus.items() if key not in keys}
            self.units = {node: unit for node, unit in self.units.items() if unit.factor is not None}
            self._series, self._series_bytes, self.full = {}, 0, False

    def _hear(self, line: str) -> None:
        if not self._words and line.startswith("# HELP"):
            words = line.split(None, 3)
            column = gpus.column(words[2]) if len(words) == 4 else None
            if column is not None and column.disputed:
                self._words = words[3]

    def _take(self, line: str, page: Page) -> None:
        """Take in one line. Raises ValueError where it cannot be read."""
        head = line[: line.rfind("}") + 1]
        series = self._series.get(head, "")
        if series == "":
            head, series = self._meet(line)
        if isinstance(series, str):
            page.unknown.add(series)
        elif series is not None:
            self._put(line[len(head) :], series, page)

    def _meet(self, line: str) -> tuple[str, _Series | str | None]:
        """The beginning of a line, and its series. Raises ValueError."""
        head = line[: text.end_of_series(line)]
        if head in self._series:  # a brace stands behind it
            return head, self._series[head]
        named = text.series(head)
        try:
            series = self._identify(named)
        except _TooManyGpus:
            series, self.full = None, True
        self._series_bytes += sys.getsizeof(head) + _SERIES_BYTES
        if self._series_bytes > self._limits.remembered_bytes:
            self._series, self._series_bytes = {}, 0
        self._series[head] = series
        return head, series

    def _identify(self, named: text.Series) -> _Series | str | None:
        """What a series is about; its name where that is of DCGM and has no column. Raises ValueError."""
        name, labels = named.name, named.labels
        place, whose = gpus.place(name, labels), gpus.whose(labels)
        if place is not None and whose is not None:
            self._note(whose, labels)  # and with a MIG instance its GPU, whose the place may be
            return _Series(name, place.whose.key, place.column, place.rank)
        if whose is not None and (about := gpus.about(name, labels)):
            self.gpus[self._note(whose, {})].row |= _checked(about)
        elif gpus.column(name) is not None:
            self.nameless |= whose is None and not gpus.is_part(labels)
        elif whose is not None and name.upper().startswith("DCGM_FI_"):
            return name[:_LABEL_CHARACTERS]
        return None

    def _note(self, whose: gpus.Whose, labels: dict[str, str]) -> str:
        """Write down what the labels say of a GPU; gives its key. Raises ValueError."""
        row = _checked(gpus.described(labels) | {"uuid": whose.uuid, "key": whose.key})
        key, profile, parent = str(row.pop("key")), row.pop("mig_profile", None), None
        if whose.instance is not None:
            parent = self._note(gpus.Whose(whose.uuid, None), labels)
            row |= {"parent": whose.uuid, "mig_profile": profile}
        elif profile is not None and whose.uuid.startswith("MIG-"):
            row["mig_profile"] = profile
        if key not in self.gpus:
            if len(self.gpus) >= self._limits.gpus:
                raise _TooManyGpus
            self.gpus[key] = Gpu(parent)
        self.gpus[key].row |= row
        return key

    def _put(self, tail: str, series: _Series, page: Page) -> None:
        """Take in the value behind a series. Raises ValueError."""
        column, stamp_ns, said = series.column, 0, tail.strip()
        parsed = text.number_of(said)
        if parsed is None:  # there is a time stamp, or something else
            said, stamp = text.value_and_stamp(tail)
            parsed, stamp_ns = text.number_of(said), stamp or 0
        if column is None:
            if parsed is not None and 0 <= parsed < _MOST_XID:
                page.xids[series.gpu] = max(int(parsed), page.xids.get(series.gpu, 0))  # of MIG instances
            return
        page.names.add(series.name)
        value, why = gpus.scaled(parsed, column)
        numbers = page.numbers.setdefault(series.gpu, {})
        before = numbers.get(column.row)
        if before is not None:
            if (stamp_ns, -series.rank) < before[:2] or before.value == (value or 0):
                return
            if (stamp_ns, -series.rank) == before[:2]:
                page.strange[column.metric.name] = f"{series.name} has two values for one GPU"
                value, why = None, "two"
        status = Status.OK if value is not None else _BECAUSE.get(why, Status.FAILED)
        if why == "impossible":
            page.strange[column.metric.name] = f"{series.name} cannot be {said[:_LABEL_CHARACTERS]}"
        numbers[column.row] = Number(stamp_ns, -series.rank, value or 0, status, column.disputed)

    def _convert_times(self, page: Page, now_ns: int) -> None:
        """Make ns of the times held down, where their unit is known."""
        held = [
            (key, row, number)
            for key, numbers in page.numbers.items()
            for row in _HELD & numbers.keys()
            if (number := numbers[row]).disputed and number.status == Status.OK
        ]
        for key, row, number in held:
            self._unit(key).note(f"{METRICS[row].name} of {key}", number.stamp_ns or now_ns, number.value)
        for key, row, number in held:
            factor = self._unit(key).factor
            if factor is not None and number.value * factor < _WIDE:
                page.numbers[key][row] = number._replace(value=number.value * factor)
            elif number.value:  # 0 is 0 in every unit
                page.numbers[key][row] = number._replace(value=0, status=Status.UNREAD)

    def _unit(self, key: str) -> TimeUnit:
        node = self.gpus[key].node
        if node not in self.units:
            self.units[node] = TimeUnit()
            self.units[node].heard(self._words)
        return self.units[node]


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """What labels say of a GPU. Raises ValueError where no exporter would say that."""
    for value in row.values():
        if isinstance(value, str) and len(value) > _LABEL_CHARACTERS:
            raise ValueError(f"a label has more than {_LABEL_CHARACTERS} characters")
    return row
