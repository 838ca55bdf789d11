"""The pages of one exporter over time: what is new on each, which GPUs are there, and what is wrong."""

from __future__ import annotations

from ...store.events import Event
from ...store.exposition import gpus
from ...store.exposition.gpus import NS
from ...store.metrics import METRICS, ROW
from ...store.vocabulary import EventKind
from ..backend import Device, Reading, Status
from ..xids import xid_event
from .page import Limits, Number, Page, Reader

_AHEAD_NS = 3_600_000_000_000  # a time stamp further ahead than that is none
_DAY_NS = 86_400_000_000_000
_LONGER = 3  # times the longest time between two new pages is no reason to worry
_SHOWN = 6  # names
_POWER = "power_mw"
_POWER_NAME = METRICS[ROW[_POWER]].prometheus[-1]
_TIMED = (ROW["energy_mj"], ROW[_POWER])  # a row has the time of these, as they are integrated over time
_Numbers = dict[str, dict[int, tuple[int, Status]]]


class _Node:
    """The GPUs of one node on a page: whether their numbers are new. Their exporter refreshes all of them together."""

    def __init__(self, stale_ns: int, now_ns: int) -> None:
        self.new_at = now_ns  # when there was something new for the last time, by the steady clock
        self._allowed = stale_ns
        self._numbers: _Numbers | None = None
        self._stale_at: int | None = None

    def changed(self, numbers: _Numbers) -> bool:
        """Whether these are other numbers than those of the page before."""
        before, self._numbers = self._numbers, numbers
        return numbers != before

    def note(self, now_ns: int, *, new: bool, shown: bool) -> tuple[str, int] | None:
        """Say once when there has been nothing new for too long, and once when that is over (and lasted so long)."""
        since = now_ns - self.new_at
        if new:
            self.new_at = now_ns
            if self._stale_at is not None:
                lasted, self._stale_at = now_ns - self._stale_at, None
                return f"has new numbers again after {lasted / 1e9:.0f} s", lasted
            self._allowed = max(self._allowed, _LONGER * since)
            return None
        if self._stale_at is not None or since <= self._allowed:
            return None
        self._stale_at = self.new_at
        if not shown:
            return f"has shown no GPU for {since / 1e9:.0f} s; does its exporter see them?", 0
        why = "which are not stored again; is the exporter stuck? Restart it"
        return f"has shown the same numbers for {since / 1e9:.0f} s, {why}", 0


class History:
    """What the pages at one address have shown. `host` is the node of GPUs whose labels name none.

    `stale_ns`: for how long a page may repeat its numbers, or not show a GPU, before that is told.
    """

    def __init__(self, url: str, host: str | None, stale_ns: int, limits: Limits) -> None:
        self.devices: list[Device] = []
        """Those that are there."""
        self.instead = ""
        """What the page shows where it has no GPU, as the end of a sentence."""
        self._url, self._host, self._stale_ns = url, host, stale_ns
        self._reader = Reader(limits)
        self._nodes: dict[str, _Node] = {}
        self._read_at = 0  # the last page, by the steady clock
        self._stamps: dict[str, set[int]] = {}  # by GPU, those of the page before: its clock may be set back
        self._statuses: dict[str, bytes] = {}  # by GPU, of its last reading
        self._shown_at: dict[str, int] = {}  # by GPU, when it was on the page for the last time
        self._names: dict[str, str] = {}  # column -> its name on the page
        self._unknown: set[str] = set()
        self._said: set[str] = set()
        self._xids: dict[str, int] = {}

    def take(self, body: bytes | bytearray, *, asked_ns: int, now_ns: int) -> tuple[list[Reading], list[Event]]:
        """The new readings of a page that was asked for at `asked_ns` (UTC), and what happened.

        `now_ns` is the time by the steady clock. Raises NoPage for a page that is too large.
        """
        page = self._reader.read(body, asked_ns)
        if now_ns - self._read_at > self._stale_ns:  # there was no page in which something new could have been
            for node in self._nodes.values():
                node.new_at = now_ns
        self._read_at = now_ns
        readings: list[Reading] = []
        events: list[Event] = []
        lost: set[str] = set()
        on_page = page.numbers.keys() | {parent for key in page.numbers if (parent := self._reader.gpus[key].parent)}
        by_node = self._by_node()
        self._nodes = {name: self._nodes.get(name) or _Node(self._stale_ns, now_ns) for name in by_node}
        for name, keys in by_node.items():
            here = [key for key in keys if key in page.numbers]
            numbers = {key: {row: (n.value, n.status) for row, n in page.numbers[key].items()} for key in here}
            changed = self._nodes[name].changed(numbers)
            new = [reading for key in here if (reading := self._reading(key, page, asked_ns))] if changed else []
            readings += new
            said = self._nodes[name].note(now_ns, new=bool(new), shown=bool(here))
            if said is not None:
                kind = EventKind.SOURCE_BACK if said[1] else EventKind.SOURCE_GONE
                whose = f"{self._url} of {name}" if name else self._url
                events.append(Event(kind, None, f"{whose} {said[0]}", duration_ns=said[1] or None))
            lost |= self._lost(set(keys), on_page, now_ns)
        events += self._odd(page) + self._renamed(page) + self._new_xids(page)
        for by_gpu in (self._stamps, self._statuses, self._shown_at, self._xids):
            for key in lost & by_gpu.keys():
                del by_gpu[key]
        self._reader.forget(lost)
        self.devices = [self._device(key) for key in self._reader.gpus]
        self.instead = self._instead(page)
        return readings, events

    # -- readings -----------------------------------------------------------------------------------------

    def _by_node(self) -> dict[str, list[str]]:
        nodes: dict[str, list[str]] = {}
        for key, gpu in self._reader.gpus.items():
            nodes.setdefault(gpu.node, []).append(key)
        return nodes

    def _reading(self, key: str, page: Page, asked_ns: int) -> Reading | None:
        """The numbers of a GPU whose time stamps are new; numbers without a stamp are new."""
        numbers = page.numbers[key]
        before, self._stamps[key] = self._stamps.get(key, set()), {number.stamp_ns for number in numbers.values()}
        new: dict[int, Number] = {}
        for row, number in numbers.items():
            if number.stamp_ns > asked_ns + _AHEAD_NS:
                page.strange["ts"] = "a time stamp is more than an hour ahead of this node's clock"
            elif not number.stamp_ns or number.stamp_ns not in before:
                new[row] = number
        if not new:
            return None
        stamp_ns = next((new[row].stamp_ns for row in _TIMED if row in new), None)
        if stamp_ns is None:
            stamp_ns = max(number.stamp_ns for number in new.values())
        values, statuses = [0] * len(METRICS), bytearray([Status.UNREAD]) * len(METRICS)
        for row, number in new.items():
            values[row], statuses[row] = number.value, number.status
        as_before, packed = self._statuses.get(key), bytes(statuses)
        if packed != as_before:
            self._statuses[key] = packed
        return Reading(key, values, self._statuses[key], stamp_ns or asked_ns)

    def _lost(self, keys: set[str], on_page: set[str], now_ns: int) -> set[str]:
        """The GPUs of a node that are not on the page for long while others of it are, or for a day."""
        self._shown_at.update(dict.fromkeys(keys & on_page, now_ns))
        allowed = self._stale_ns if keys & on_page else max(_DAY_NS, self._stale_ns)
        return {key for key in keys - on_page if now_ns - self._shown_at.get(key, now_ns) > allowed}

    def _device(self, key: str) -> Device:
        gpu = self._reader.gpus[key]
        return Device(key, ({} if self._host is None else {"node": self._host}) | gpu.row, gpu.parent)

    # -- what is to be said about the page -----------------------------------------------------------------

    def _odd(self, page: Page) -> list[Event]:
        """Each thing that is wrong with the page, once."""
        sentences = {
            column: f"{what}; {'NULL is stored' if column in ROW else 'its readings are not stored: set the clocks'}"
            for column, what in page.strange.items()
        }
        if page.cut:
            sentences["cut"] = "the page ends within a line, which is left out"
        if page.damage is not None:
            sentences["damage"] = (
                f"line {page.damage.line} of the page cannot be read ({page.damage.why}); it is left out"
            )
        if self._reader.full:
            sentences["full"] = f"the page has more than {len(self._reader.gpus)} GPUs; the others are left out"
        for node, unit in self._reader.units.items():
            if unit.factor is not None:
                whose = f" of {node}" if node else ""
                name = "ns" if unit.factor == NS else "us"
                sentences[f"unit of {node}"] = f"times held down{whose} are in {name}: {unit.because}"
        return self._once(sentences)

    def _renamed(self, page: Page) -> list[Event]:
        """Metrics that have another name than on the page before, or none; and power, where it never had a name."""
        by_name = ((gpus.column(name), name) for name in sorted(page.names, reverse=True))
        names = {column.metric.name: name for column, name in by_name if column is not None}
        before, new = self._names, page.unknown - self._unknown
        if not names or (names == before and not new):
            return []
        sentences = {}
        unknown = ", ".join(sorted(new)[:_SHOWN])
        if not before and _POWER not in names:
            other = f"; on it, and unknown to whorl: {unknown}" if unknown else ""
            sentences[f"{_POWER} without"] = f"{_POWER_NAME} is not on the page, so {_POWER} is NULL{other}"
        for column, name in before.items():
            if column not in names:
                other = f"; new on it, and unknown to whorl: {unknown}" if unknown else ""
                sentences[f"{column} without"] = f"{name} is not on the page any more, so {column} is NULL{other}"
            elif names[column] != name:
                sentences[f"{column} {names[column]}"] = f"{column} is called {names[column]} now, and was {name}"
        self._names, self._unknown = before | names, page.unknown
        return self._once(sentences)

    def _once(self, sentences: dict[str, str]) -> list[Event]:
        """Events of sentences by key, which begins with the column if the sentence is about one."""
        events = []
        for key in (key for key in sentences if key not in self._said):
            column = key.partition(" ")[0]
            metric = column if column in ROW or column == "ts" else None
            events.append(Event(EventKind.EXPORTER, None, f"{self._url}: {sentences[key]}", metric=metric))
        self._said.update(sentences)
        return events

    def _new_xids(self, page: Page) -> list[Event]:
        """XIDs that are new. What a page shows at first happened before; the same twice cannot be told from once.

        A GPU that was on a page without a series of XIDs had none: some exporters print it only from the first one on.
        """
        events = [xid_event(key, xid) for key, xid in page.xids.items() if xid and self._xids.get(key, xid) != xid]
        self._xids = dict.fromkeys(page.numbers, 0) | self._xids | page.xids
        return events

    def _instead(self, page: Page) -> str:
        if self._reader.nameless:
            return ": its series have no UUID of a GPU"
        if page.unknown:
            return f": whorl knows none of its metrics ({', '.join(sorted(page.unknown)[:_SHOWN])})"
        if page.damage is not None:
            return f": line {page.damage.line} cannot be read ({page.damage.why}); is it an exporter's page?"
        return ": it has no metric of DCGM; is it dcgm-exporter's, and does the exporter see the GPUs?"
