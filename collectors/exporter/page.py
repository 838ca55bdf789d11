"""Pages of one exporter as numbers, and what is new on each.

What a series is about is worked out once, after that a line costs little.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...store.events import Event
from ...store.exposition import gpus, text
from ...store.metrics import METRICS, ROW
from ...store.vocabulary import EventKind
from ..backend import Device, Reading, Status
from ..kernel_log import xid_event

_BECAUSE = {"unsupported": Status.UNSUPPORTED, "denied": Status.DENIED, "blank": Status.UNREAD}
_LABEL_CHARACTERS = 200
_MOST_XID = 100_000
_AHEAD_NS = 3_600_000_000_000  # a time stamp further ahead than that is none
_DAY_NS = 86_400_000_000_000
_LONGER = 3  # times the longest time between two new pages is no reason to worry
_SHOWN = 6  # names
_POWER = "power_mw"
_POWER_NAME = METRICS[ROW[_POWER]].prometheus[-1]
_TIMED = (ROW["energy_mj"], ROW[_POWER])  # a row has the time of these, as they are integrated over time


class NoPage(Exception):  # noqa: N818 - told to people; it is no error of the program
    """There is no page; the text says why and what to do."""


@dataclass(frozen=True)
class PageLimits:
    """How large a page may be. A page of 2,000 GPUs with 25 metrics has about 50,000 lines and 13 MB."""

    page_bytes: int = 16 << 20
    lines: int = 60_000
    line_bytes: int = 16 << 10
    gpus: int = 4_096


class PageNumber(NamedTuple):
    """A number on a page, in the unit of its metric."""

    stamp_ns: int  # UTC, 0 where the page has none
    order: int  # of several series of one metric and GPU, the one with the largest time and order counts
    value: int
    status: Status


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
    """Reads the pages of one exporter. It remembers the series and the GPUs."""

    def __init__(self, limits: PageLimits) -> None:
        self.devices: dict[str, Device] = {}
        """By key, a GPU before its MIG instances, with what the labels say of it."""
        self.nameless = False
        """Whether a known metric was there without the UUID of its GPU."""
        self.full = False
        """Whether a page has GPUs beyond the limit, which are not read."""
        self._limits = limits
        # What is known of series by the beginning of a line, of the page before and of this one.
        self._before: dict[str, _Meaning] = {}
        self._series: dict[str, _Meaning] = {}

    def read(self, body: bytes | bytearray) -> PageContent:
        """What a page says. Raises NoPage for one with too many lines."""
        if body.count(b"\n") > self._limits.lines:
            raise NoPage(f"its page has more than {self._limits.lines} lines; ask for fewer series")
        page, self._before, self._series = PageContent(), self._series, {}
        for number, raw in enumerate(io.BytesIO(body), start=1):
            line = raw[: self._limits.line_bytes].decode("utf-8", "replace").strip()
            if not raw.endswith(b"\n") and line not in ("", "# EOF"):
                page.cut = True  # its number may lack digits
            elif line and not line.startswith("#"):
                try:
                    self._take(line, len(raw), page)
                except ValueError as error:
                    page.damage = page.damage or text.Damage(number, str(error))
        return page

    def node_of(self, key: str) -> str:
        """The host of a GPU, "" where the labels do not say it."""
        return str(self.devices[key].row.get("node", ""))

    def forget(self, keys: set[str]) -> None:
        """Forget GPUs that are not there any more."""
        if keys:
            self.devices = {key: device for key, device in self.devices.items() if key not in keys}
            self._series, self.full = {}, False

    def _take(self, line: str, size: int, page: PageContent) -> None:
        """Take in one line of `size` bytes. Raises ValueError where it cannot be read."""
        if size > self._limits.line_bytes:
            raise ValueError(f"it has more than {self._limits.line_bytes} bytes")
        head = line[: line.rfind("}") + 1]
        if head not in self._before:
            head = line[: text.end_of_series(line)]  # a brace may stand behind it
        if head not in self._series:
            self._series[head] = self._before[head] if head in self._before else self._meet(text.series(head))
        series = self._series[head]
        if isinstance(series, str):
            page.unknown.add(series)
        elif series is not None:
            self._put(line[len(head) :], series, page)

    def _meet(self, series: text.Series) -> _Meaning:
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
        numbers[column.row] = PageNumber(*order, value or 0, status)


# -- one page after the other ------------------------------------------------------------------------------------------


class _NodeNumbers:
    """The GPUs of one node on a page: whether their numbers are new. Their exporter refreshes all of them together."""

    def __init__(self, stale_ns: int, now_ns: int) -> None:
        self.new_at = now_ns  # when there was something new for the last time, by the steady clock
        self._allowed = stale_ns
        self._numbers: dict[str, dict[int, tuple[int, Status]]] = {}
        self._stale_at: int | None = None

    def changed(self, numbers: dict[str, dict[int, PageNumber]]) -> bool:
        """Whether these are other numbers than those of the page before; their time stamps do not count."""
        before = self._numbers
        self._numbers = {key: {row: n[2:4] for row, n in by_row.items()} for key, by_row in numbers.items()}
        return self._numbers != before

    def note(self, now_ns: int, whose: str, *, new: bool, visible: bool) -> list[Event]:
        """Tell once when there has been nothing new for too long, and once when that is over."""
        since = now_ns - self.new_at
        if new:
            self.new_at, stale_at = now_ns, self._stale_at
            if stale_at is None:
                self._allowed = max(self._allowed, _LONGER * since)
                return []
            self._stale_at, lasted = None, now_ns - stale_at
            detail = f"{whose} has new numbers again after {lasted / 1e9:.0f} s"
            return [Event(EventKind.SOURCE_BACK, None, detail, duration_ns=lasted)]
        if self._stale_at is not None or since <= self._allowed:
            return []
        self._stale_at = self.new_at
        detail = f"{whose} has shown no GPU for {since / 1e9:.0f} s; does its exporter see them?"
        if visible:
            why = "which are not stored again; is the exporter stuck? Restart it"
            detail = f"{whose} has shown the same numbers for {since / 1e9:.0f} s, {why}"
        return [Event(EventKind.SOURCE_GONE, None, detail)]


@dataclass(slots=True)
class _GpuOnPage:
    """What is remembered of one GPU: its last XID, and the time stamps of the page before."""

    last_at: int  # when it was on the page for the last time, by the steady clock
    xid: int | None = None
    stamps: set[int] = field(default_factory=set)  # not only the newest: a clock may be set back


class History:
    """What the pages at one address have shown. `host` is the node of GPUs whose labels name none.

    `stale_ns`: for how long a page may repeat its numbers, or not show a GPU, before that is told.
    """

    def __init__(self, url: str, host: str | None, stale_ns: int, limits: PageLimits) -> None:
        self.devices: list[Device] = []
        """Those that are there."""
        self.instead = ""
        """What the page shows where it has no GPU, as the end of a sentence."""
        self._url, self._host, self._stale_ns = url, host, stale_ns
        self._reader = PageReader(limits)
        self._gpus: dict[str, _GpuOnPage] = {}
        self._nodes: dict[str, _NodeNumbers] = {}
        self._read_at = 0  # the last page, by the steady clock
        self._names = {_POWER: _POWER_NAME}  # by column: its name on the page
        self._unknown: set[str] = set()
        self._told: set[tuple[str, str | None]] = set()  # remarks, by what they are about and the column

    def take(self, body: bytes | bytearray, *, asked_ns: int, now_ns: int) -> tuple[list[Reading], list[Event]]:
        """The new readings of a page that was asked for at `asked_ns` (UTC), and what happened.

        `now_ns` is the time by the steady clock. Raises NoPage for a page that is too large.
        """
        page = self._reader.read(body)
        devices = self._reader.devices
        if now_ns - self._read_at > self._stale_ns:  # there was no page in which something new could have been
            for node in self._nodes.values():
                node.new_at = now_ns
        self._read_at = now_ns
        events = self._new_xids(page, now_ns)
        by_node: dict[str, list[str]] = {}
        for key in devices:
            by_node.setdefault(self._reader.node_of(key), []).append(key)
        self._nodes = {name: self._nodes.get(name) or _NodeNumbers(self._stale_ns, now_ns) for name in by_node}
        readings: list[Reading] = []
        lost: set[str] = set()
        for name, keys in by_node.items():
            numbers = {key: page.numbers[key] for key in keys if key in page.numbers}
            changed = self._nodes[name].changed(numbers)
            new = [reading for key in numbers if (reading := self._reading(key, page, asked_ns))] if changed else []
            readings += new
            whose = f"{self._url} of {name}" if name else self._url
            events += self._nodes[name].note(now_ns, whose, new=bool(new), visible=bool(numbers))
            allowed = self._stale_ns if numbers else max(_DAY_NS, self._stale_ns)
            lost |= {key for key in keys if key in self._gpus and now_ns - self._gpus[key].last_at > allowed}
        events += self._remarks(page)
        for key in lost:
            del self._gpus[key]
        self._reader.forget(lost)
        hosted = {} if self._host is None else {"node": self._host}
        self.devices = [replace(device, row=hosted | device.row) for device in self._reader.devices.values()]
        self.instead = self._instead(page)
        return readings, events

    def _reading(self, key: str, page: PageContent, asked_ns: int) -> Reading | None:
        """The numbers of a GPU whose time stamps are new; numbers without a stamp are new."""
        gpu, numbers = self._gpus[key], page.numbers[key]
        before, gpu.stamps = gpu.stamps, {number.stamp_ns for number in numbers.values()}
        possible = {stamp for stamp in gpu.stamps if stamp <= asked_ns + _AHEAD_NS}
        if possible != gpu.stamps:
            page.strange["ts"] = "a time stamp is more than an hour ahead of this node's clock"
        new_stamps = (possible - before) | (possible & {0})
        new = {row: number for row, number in numbers.items() if number.stamp_ns in new_stamps}
        if not new:
            return None
        timed = (new[row].stamp_ns for row in _TIMED if row in new)
        values, statuses = [0] * len(METRICS), bytearray([Status.UNREAD]) * len(METRICS)
        for row, number in new.items():
            values[row], statuses[row] = number.value, number.status
        return Reading(key, values, bytes(statuses), next(timed, max(new_stamps)) or asked_ns)

    # -- what is to be said about the page -----------------------------------------------------------------

    def _remarks(self, page: PageContent) -> list[Event]:
        """Each thing that is wrong with the page, and each metric that it lacks, once."""
        remarks: list[tuple[str, str | None, str]] = []  # what it is about, the column, and the sentence
        for column, sentence in page.strange.items():
            effect = "NULL is stored" if column in ROW else "its readings are not stored: set the clocks"
            remarks.append(("number", column, f"{sentence}; {effect}"))
        if page.cut:
            remarks.append(("cut", None, "the page ends within a line, which is left out"))
        if page.damage is not None:
            line, why = page.damage.line, page.damage.why
            remarks.append(("damage", None, f"line {line} of the page cannot be read ({why}); it is left out"))
        if self._reader.full:
            count = len(self._reader.devices)
            remarks.append(("full", None, f"the page has more than {count} GPUs; the others are left out"))
        by_name = ((gpus.column(name), name) for name in sorted(page.names, reverse=True))
        if names := {column.metric.name: name for column, name in by_name if column is not None}:
            unknown = ", ".join(sorted(page.unknown - self._unknown)[:_SHOWN])
            suffix = f"; on it, and unknown to whorl: {unknown}" if unknown else ""
            for column, name in self._names.items():
                if column not in names:
                    remarks.append(("name", column, f"{name} is not on the page, so {column} is NULL{suffix}"))
            self._names, self._unknown = self._names | names, page.unknown
        events = [
            Event(EventKind.EXPORTER, None, f"{self._url}: {sentence}", metric=column)
            for topic, column, sentence in remarks
            if (topic, column) not in self._told
        ]
        self._told.update((topic, column) for topic, column, _ in remarks)
        return events

    def _new_xids(self, page: PageContent, now_ns: int) -> list[Event]:
        """Note which GPUs are on the page; gives the XIDs that are new.

        What a page shows at first happened before; the same twice cannot be told from once. A GPU that was on a page
        without a series of XIDs had none: some exporters print it only from the first one on.
        """
        events = []
        for key in [*page.numbers, *(page.xids.keys() - page.numbers)]:
            gpu = self._gpus.setdefault(key, _GpuOnPage(now_ns))
            xid = page.xids.get(key, gpu.xid or 0)
            if xid and gpu.xid not in (None, xid):
                events.append(xid_event(key, xid))
            gpu.xid, gpu.last_at = xid, now_ns
            if parent := self._reader.devices[key].parent:  # a GPU is there as long as one of its instances is
                self._gpus.setdefault(parent, _GpuOnPage(now_ns)).last_at = now_ns
        return events

    def _instead(self, page: PageContent) -> str:
        if self._reader.nameless:
            return ": its series have no UUID of a GPU"
        if page.unknown:
            return f": whorl knows none of its metrics ({', '.join(sorted(page.unknown)[:_SHOWN])})"
        if page.damage is not None:
            return f": line {page.damage.line} cannot be read ({page.damage.why}); is it an exporter's page?"
        return ": it has no metric of DCGM; is it dcgm-exporter's, and does the exporter see the GPUs?"
