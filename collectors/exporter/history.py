"""The pages of one exporter over time: what is new on each, which GPUs are there, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...store.events import Event
from ...store.exposition import gpus
from ...store.exposition.gpus import NS
from ...store.metrics import METRICS, ROW
from ...store.vocabulary import EventKind
from ..backend import Device, Reading, Status
from ..xids import xid_event
from .page import PageContent, PageLimits, PageNumber, PageReader

_AHEAD_NS = 3_600_000_000_000  # a time stamp further ahead than that is none
_DAY_NS = 86_400_000_000_000
_LONGER = 3  # times the longest time between two new pages is no reason to worry
_SHOWN = 6  # names
_POWER = "power_mw"
_POWER_NAME = METRICS[ROW[_POWER]].prometheus[-1]
_TIMED = (ROW["energy_mj"], ROW[_POWER])  # a row has the time of these, as they are integrated over time


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
    """What is remembered of one GPU: its last XID, the time stamps of the page before, and its last statuses."""

    last_at: int  # when it was on the page for the last time, by the steady clock
    xid: int | None = None
    stamps: set[int] = field(default_factory=set)  # not only the newest: a clock may be set back
    statuses: bytes = b""


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
        self._names: dict[str, str] = {}  # column -> its name on the page
        self._unknown: set[str] = set()
        self._sentences: set[str] = set()  # keys of those that were told

    def take(self, body: bytes | bytearray, *, asked_ns: int, now_ns: int) -> tuple[list[Reading], list[Event]]:
        """The new readings of a page that was asked for at `asked_ns` (UTC), and what happened.

        `now_ns` is the time by the steady clock. Raises NoPage for a page that is too large.
        """
        page = self._reader.read(body, asked_ns)
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
        events += self._odd(page) + self._renamed(page)
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
        if statuses != gpu.statuses:
            gpu.statuses = bytes(statuses)
        return Reading(key, values, gpu.statuses, next(timed, max(new_stamps)) or asked_ns)

    # -- what is to be said about the page -----------------------------------------------------------------

    def _odd(self, page: PageContent) -> list[Event]:
        """Each thing that is wrong with the page, once."""
        sentences = {}
        for column, sentence in page.strange.items():
            effect = "NULL is stored" if column in ROW else "its readings are not stored: set the clocks"
            sentences[column] = f"{sentence}; {effect}"
        if page.cut:
            sentences["cut"] = "the page ends within a line, which is left out"
        if page.damage is not None:
            line, why = page.damage.line, page.damage.why
            sentences["damage"] = f"line {line} of the page cannot be read ({why}); it is left out"
        if self._reader.full:
            sentences["full"] = f"the page has more than {len(self._reader.devices)} GPUs; the others are left out"
        for node, unit in self._reader.units.items():
            if unit.factor is not None:
                whose = f" of {node}" if node else ""
                name = "ns" if unit.factor == NS else "us"
                sentences[f"unit of {node}"] = f"times held down{whose} are in {name}: {unit.because}"
        return self._once(sentences)

    def _renamed(self, page: PageContent) -> list[Event]:
        """Metrics that have another name than on the page before, or none; and power, where it never had a name."""
        by_name = ((gpus.column(name), name) for name in sorted(page.names, reverse=True))
        names = {column.metric.name: name for column, name in by_name if column is not None}
        before, new = self._names, page.unknown - self._unknown
        if not names or (names == before and not new):
            return []
        unknown = ", ".join(sorted(new)[:_SHOWN])
        suffix = f"; on it, and unknown to whorl: {unknown}" if unknown else ""
        sentences = {}
        if not before and _POWER not in names:
            sentences[f"{_POWER} without"] = f"{_POWER_NAME} is not on the page, so {_POWER} is NULL{suffix}"
        for column, name in before.items():
            if column not in names:
                sentences[f"{column} without"] = f"{name} is not on the page any more, so {column} is NULL{suffix}"
            elif names[column] != name:
                sentences[f"{column} {names[column]}"] = f"{column} is called {names[column]} now, and was {name}"
        self._names, self._unknown = before | names, page.unknown
        return self._once(sentences)

    def _once(self, sentences: dict[str, str]) -> list[Event]:
        """Events of sentences by key, which begins with the column if the sentence is about one."""
        events = []
        for key in (key for key in sentences if key not in self._sentences):
            column = key.partition(" ")[0]
            metric = column if column in ROW or column == "ts" else None
            events.append(Event(EventKind.EXPORTER, None, f"{self._url}: {sentences[key]}", metric=metric))
        self._sentences.update(sentences)
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
