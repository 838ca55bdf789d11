"""Pages of one exporter as numbers: what each series is about is worked out once, after that a line costs little."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...store.exposition import gpus, text
from ...store.exposition.gpus import TimeUnit
from ...store.metrics import METRICS
from ..backend import Device, Status
from .download import NoPage

_BECAUSE = {"unsupported": Status.UNSUPPORTED, "denied": Status.DENIED, "blank": Status.UNREAD}
_LABEL_CHARACTERS = 200
_MOST_XID = 100_000
_HELD = {column.row for column in gpus.COLUMNS.values() if column.disputed}
_WIDE = 1 << 63
_SERIES_BYTES = 400  # for a series that is remembered, besides its text


@dataclass(frozen=True)
class PageLimits:
    """How large a page may be. A page of 2,000 GPUs with 25 metrics has about 50,000 lines and 13 MB."""

    page_bytes: int = 16 << 20
    lines: int = 60_000
    line_bytes: int = 16 << 10
    gpus: int = 4_096
    remembered_bytes: int = 48 << 20
    """Of memory for what is known of series; one that is forgotten is worked out again."""


class PageNumber(NamedTuple):
    """A number on a page, in the unit of its metric."""

    stamp_ns: int  # UTC, 0 where the page has none
    order: int  # of several series of one metric and GPU, the one with the largest time and order counts
    value: int
    status: Status
    disputed: bool  # a time held down, whose unit is to be found out


class _KnownSeries(NamedTuple):
    name: str
    gpu: str
    column: gpus.Column | None  # None: the last XID
    order: int


_Meaning = _KnownSeries | str | None  # a name is of DCGM and has no column; None: it is not about a GPU


@dataclass(slots=True)
class PageContent:
    """What a page says: numbers by GPU and row of METRICS, and the last XID of each GPU.

    `names` are of metrics that have a column, `unknown` the other names of DCGM. `strange` has a sentence about each
    column with a number that it cannot have, or with two numbers for one GPU; `damage` is the first line that cannot be
    read. `cut`: the last line has no end.
    """

    numbers: dict[str, dict[int, PageNumber]] = field(default_factory=dict)
    xids: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    strange: dict[str, str] = field(default_factory=dict)
    damage: text.Damage | None = None
    cut: bool = False


class PageReader:
    """Reads the pages of one exporter. It remembers the series, the GPUs, and the unit of times held down."""

    def __init__(self, limits: PageLimits) -> None:
        self.devices: dict[str, Device] = {}
        """By key, a GPU before its MIG instances, with what the labels say of it."""
        self.units: dict[str, TimeUnit] = {}
        """Of times held down, by node: a Prometheus may show exporters of several versions."""
        self.nameless = False
        """Whether a known metric was there without the UUID of its GPU."""
        self.full = False
        """Whether a page has GPUs beyond the limit, which are not read."""
        self._limits = limits
        self._words = ""  # of the page, about a time held down
        self._series: dict[str, _Meaning] = {}  # by the beginning of a line
        self._series_bytes = 0

    def read(self, body: bytes | bytearray, now_ns: int) -> PageContent:
        """What a page says that was asked for at `now_ns`. Raises NoPage for one with too many lines."""
        if body.count(b"\n") > self._limits.lines:
            raise NoPage(f"its page has more than {self._limits.lines} lines; ask for fewer series")
        page = PageContent()
        for number, raw in enumerate(io.BytesIO(body), start=1):
            line = raw[: self._limits.line_bytes].decode("utf-8", "replace").strip()
            if not raw.endswith(b"\n") and line not in ("", "# EOF"):
                page.cut = True  # its number may lack digits
            elif line.startswith("#"):
                self._hear(line)
            elif line:
                try:
                    self._take(line, len(raw), page)
                except ValueError as error:
                    page.damage = page.damage or text.Damage(number, str(error))
        self._convert_times(page, now_ns)
        return page

    def node_of(self, key: str) -> str:
        """The host of a GPU, "" where the labels do not say it."""
        return str(self.devices[key].row.get("node", ""))

    def forget(self, keys: set[str]) -> None:
        """Forget GPUs that are not there any more."""
        if keys:
            self.devices = {key: device for key, device in self.devices.items() if key not in keys}
            self.units = {node: unit for node, unit in self.units.items() if unit.factor is not None}
            self._series, self._series_bytes, self.full = {}, 0, False

    def _hear(self, line: str) -> None:
        words = line.split(None, 3)
        if not self._words and len(words) == 4 and words[1] == "HELP":
            column = gpus.column(words[2])
            self._words = words[3][:_LABEL_CHARACTERS] if column is not None and column.disputed else ""

    def _take(self, line: str, size: int, page: PageContent) -> None:
        """Take in one line of `size` bytes. Raises ValueError where it cannot be read."""
        if size > self._limits.line_bytes:
            raise ValueError(f"it has more than {self._limits.line_bytes} bytes")
        head = line[: line.rfind("}") + 1]
        if head not in self._series:
            head = line[: text.end_of_series(line)]  # a brace may stand behind it
        if head not in self._series:
            series = self._meet(text.series(head))
            self._series_bytes += sys.getsizeof(head) + _SERIES_BYTES
            if self._series_bytes > self._limits.remembered_bytes:
                self._series, self._series_bytes = {}, 0
            self._series[head] = series
        series = self._series[head]
        if isinstance(series, str):
            page.unknown.add(series)
        elif series is not None:
            self._put(line[len(head) :], series, page)

    def _meet(self, series: text.Series) -> _Meaning:
        """What a series is about. Raises ValueError."""
        name, labels = series.name, series.labels
        place, whose = gpus.place(name, labels), gpus.whose(labels)
        if place is not None and whose is not None:
            self._note(whose, gpus.described(labels))  # and with a MIG instance its GPU, whose the place may be
            key = place.whose.key
            return _KnownSeries(name, key, place.column, -place.rank) if key in self.devices else None
        if whose is not None and (about := gpus.about(name, labels)):
            self._note(whose, about)
        elif gpus.column(name) is not None:
            self.nameless |= whose is None and not gpus.is_part(labels)
        elif whose is not None and name.upper().startswith("DCGM_FI_"):
            return name[:_LABEL_CHARACTERS]
        return None

    def _note(self, whose: gpus.Whose, described: dict[str, Any]) -> None:
        """Write down what is said of a GPU, as long as there is room for it. Raises ValueError."""
        if any(isinstance(label, str) and len(label) > _LABEL_CHARACTERS for label in (whose.key, *described.values())):
            raise ValueError(f"a label has more than {_LABEL_CHARACTERS} characters")
        row, parent = described | {"uuid": whose.uuid}, None
        profile = row.pop("mig_profile", None)
        if whose.instance is not None:
            parent = whose.uuid
            self._note(gpus.Whose(parent, None), described)
            row |= {"parent": parent, "mig_profile": profile}
        elif profile is not None and whose.uuid.startswith("MIG-"):
            row["mig_profile"] = profile
        if whose.key in self.devices or len(self.devices) < self._limits.gpus:
            self.devices.setdefault(whose.key, Device(whose.key, {}, parent)).row.update(row)
        else:
            self.full = True

    def _put(self, tail: str, series: _KnownSeries, page: PageContent) -> None:
        """Take in the value behind a series. Raises ValueError."""
        column = series.column
        written, stamp_ns = text.value_and_stamp(tail)
        parsed, order = text.number_of(written), (stamp_ns or 0, series.order)
        if column is None:
            if parsed is not None and 0 <= parsed < _MOST_XID:
                page.xids[series.gpu] = max(int(parsed), page.xids.get(series.gpu, 0))  # of MIG instances
            return
        page.names.add(series.name)
        value, why = gpus.scaled(parsed, column)
        numbers = page.numbers.setdefault(series.gpu, {})
        before = numbers.get(column.row)
        if before is not None:
            if order < before[:2] or before.value == (value or 0):
                return
            if order == before[:2]:
                page.strange[column.metric.name] = f"{series.name} has two values for one GPU"
                value, why = None, "two"
        status = Status.OK if value is not None else _BECAUSE.get(why, Status.FAILED)
        if why == "impossible":
            page.strange[column.metric.name] = f"{series.name} cannot be {written[:_LABEL_CHARACTERS]}"
        numbers[column.row] = PageNumber(*order, value or 0, status, column.disputed)

    def _convert_times(self, page: PageContent, now_ns: int) -> None:
        """Make ns of the times held down, where their unit is known."""
        held = [
            (key, row, number)
            for key, numbers in page.numbers.items()
            for row in _HELD & numbers.keys()
            if (number := numbers[row]).disputed and number.status == Status.OK
        ]
        for key, row, number in held:
            node = self.node_of(key)
            if node not in self.units:
                self.units[node] = TimeUnit()
                self.units[node].heard(self._words)
            self.units[node].note(f"{METRICS[row].name} of {key}", number.stamp_ns or now_ns, number.value)
        for key, row, number in held:
            factor = self.units[self.node_of(key)].factor
            if factor is not None and number.value * factor < _WIDE:
                page.numbers[key][row] = number._replace(value=number.value * factor)
            elif number.value:  # 0 is 0 in every unit
                page.numbers[key][row] = number._replace(value=0, status=Status.UNREAD)
