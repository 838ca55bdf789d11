"""One exporter over time: what is new on its page, what is gone from it, and whether it still answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...store.events import Event
from ...store.exposition import gpus
from ...store.exposition.gpus import NS
from ...store.metrics import METRICS, ROW
from ...store.vocabulary import EventKind
from ..backends import Status
from ..xids import xid_event
from .page import Gpu, Page, Reader

_AHEAD_NS = 3_600_000_000_000  # a time stamp further ahead than that is none
_LONGER = 3  # times the longest time between two new pages is no reason to worry
_SHOWN = 6  # names
_POWER = "power_mw"
_ITS_NAME = METRICS[ROW[_POWER]].prometheus[-1]


@dataclass(slots=True)
class Row:
    """Readings of one GPU, by its number on this page, at one time; arrays (metrics,)."""

    gpu: int
    ts_ns: int
    values: NDArray[np.int64]
    status: NDArray[np.uint8]


class Node:
    """The GPUs of one node on a page: whether their numbers are new. All are refreshed together by their exporter."""

    def __init__(self, name: str, stale_ns: int) -> None:
        self.name, self._allowed = name, stale_ns
        self._numbers = b""
        self._new_at = 0  # when there was something new for the last time, by the steady clock
        self._stale_at: int | None = None

    def changed(self, numbers: bytes) -> bool:
        """Whether these are other numbers than those before."""
        before, self._numbers = self._numbers, numbers
        return numbers != before

    def again(self, now: int) -> None:
        """There was no page for some time: nothing new was to be seen."""
        self._new_at = now

    def refreshed(self, now: int, *, new: bool, shown: bool) -> tuple[str, int] | None:
        """Say once when there has been nothing new for too long, and once when that is over (and lasted so long)."""
        since = now - self._new_at if self._new_at else 0
        if new:
            if self._stale_at is None:
                self._allowed = max(self._allowed, _LONGER * since)
            self._new_at = now
        elif not self._new_at:
            self._new_at = now
        if new and self._stale_at is not None:
            took, self._stale_at = now - self._stale_at, None
            return f"has new numbers again after {took / 1e9:.0f} s", took
        if new or self._stale_at is not None or since <= self._allowed:
            return None
        self._stale_at = now - since
        if not shown:
            return f"has shown no GPU for {since / 1e9:.0f} s; does its exporter see them?", 0
        why = "which are not stored again; is the exporter stuck? Restart it"
        return f"has shown the same numbers for {since / 1e9:.0f} s, {why}", 0


class Target:
    """The page at one address. `host` is the node of GPUs whose labels name none."""

    def __init__(self, url: str, host: str | None, stale_s: float) -> None:
        self.url, self.host = url, host
        self.instead = ""
        """What the page shows where it has no GPU, as the end of a sentence."""
        self._reader = Reader()
        self._stale = round(stale_s * 1e9)
        self._nodes: dict[str, Node] = {}
        self._read_at = 0  # the last page, by the steady clock
        self._stamps: dict[int, set[int]] = {}  # by GPU, the time stamps of the page before: its clock may be set back
        self._shown_at: dict[int, int] = {}  # by GPU, when it was on the page for the last time
        self._lost: set[int] = set()
        self._gone_at: int | None = None
        self._columns: dict[str, str] = {}  # column -> its name on the page
        self._unknown: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._xids: dict[int, int] = {}

    @property
    def gpus(self) -> list[Gpu]:
        """Those that have ever been on the page."""
        return self._reader.gpus

    def gone(self, why: str) -> list[Event]:
        """There is no page, for this reason."""
        self.instead = f": {why}"
        if self._gone_at is not None:
            return []
        self._gone_at = time.monotonic_ns()
        return [Event(EventKind.SOURCE_GONE, None, f"{self.url}: {why}")]

    def _back(self, now: int) -> list[Event]:
        if self._gone_at is None:
            return []
        took, self._gone_at = now - self._gone_at, None
        detail = f"{self.url} answers again after {took / 1e9:.1f} s"
        return [Event(EventKind.SOURCE_BACK, None, detail, duration_ns=took)]

    def take(self, text: str, asked_ns: int) -> tuple[list[Row], list[Event]]:
        """The new rows of a page that was asked for at `asked_ns`, and what happened."""
        now = time.monotonic_ns()
        events = self._back(now)
        if now - self._read_at > self._stale:
            for node in self._nodes.values():
                node.again(now)
        self._read_at = now
        page = self._reader.read(text, asked_ns)
        said = page.status != Status.UNREAD
        shown = said.any(axis=0)
        rows: list[Row] = []
        for name, numbers in self._by_node().items():
            node = self._nodes.setdefault(name, Node(name, self._stale))
            here = [gpu for gpu in numbers if shown[gpu]]
            changed = node.changed(page.values[:, here].tobytes() + page.status[:, here].tobytes())
            new = [row for gpu in here for row in self._rows(page, gpu, said[:, gpu], asked_ns)] if changed else []
            told = node.refreshed(now, new=bool(new), shown=bool(here))
            if told is not None:
                kind = EventKind.SOURCE_BACK if told[1] else EventKind.SOURCE_GONE
                whose = f"{self.url} of {name}" if name else self.url
                events.append(Event(kind, None, f"{whose} {told[0]}", duration_ns=told[1] or None))
            rows += new
            rows += self._missing(page, now, asked_ns, numbers, here)
        events += self._odd(page) + self._names(page) + self._xid(page)
        self.instead = self._instead(page)
        return rows, events

    # -- rows ---------------------------------------------------------------------------------------------

    def _by_node(self) -> dict[str, list[int]]:
        nodes: dict[str, list[int]] = {}
        for number, gpu in enumerate(self.gpus):
            nodes.setdefault(gpu.row.get("node", ""), []).append(number)
        return nodes

    def _rows(self, page: Page, gpu: int, said: NDArray[np.bool_], asked_ns: int) -> list[Row]:
        rows: list[Row] = []
        stamps = page.stamps[:, gpu]
        before = self._stamps.get(gpu, set())
        self._stamps[gpu] = set(stamps[said].tolist())
        for stamp in sorted(self._stamps[gpu]):
            if stamp > asked_ns + _AHEAD_NS:
                page.strange["ts"] = "a time stamp is more than an hour ahead of this node's clock"  # it costs the row
            elif not stamp or stamp not in before:
                of_it = said & (stamps == stamp)
                status = np.where(of_it, page.status[:, gpu], np.uint8(Status.UNREAD))
                rows.append(Row(gpu, stamp or asked_ns, page.values[:, gpu], status))
        return rows

    def _missing(self, page: Page, now: int, asked_ns: int, known: list[int], here: list[int]) -> list[Row]:
        """A last row, without numbers, of each GPU that is not on the page for long while others of its node are."""
        self._shown_at |= dict.fromkeys(here, now)
        self._lost -= set(here)
        gone = [g for g in known if here and g not in self._lost and now - self._shown_at.get(g, now) > self._stale]
        self._lost |= set(gone)
        none = np.zeros(len(page.values), np.int64)
        return [Row(gpu, asked_ns, none, np.full(len(none), Status.LOST, np.uint8)) for gpu in gone]

    # -- what is to be said about the page -----------------------------------------------------------------

    def _odd(self, page: Page) -> list[Event]:
        """Each thing that is wrong with the page, once."""
        said = {
            column: f"{what}; {'NULL is stored' if column in ROW else 'its readings are not stored: set the clocks'}"
            for column, what in page.strange.items()
        }
        if page.cut:
            said["cut"] = "the page ends within a line, which is left out"
        if page.damaged:
            first = page.damaged[0]
            said["damaged"] = f"line {first.line} of the page cannot be read ({first.why}); it is left out"
        for node, unit in self._reader.units.items():
            if unit.factor is not None:
                whose = f" of {node}" if node else ""
                name = "ns" if unit.factor == NS else "us"
                said[f"unit of {node}"] = f"times held down{whose} are in {name}: {unit.because}"
        return self._once(said)

    def _names(self, page: Page) -> list[Event]:
        """Metrics that have another name now, or none; and power, where it never had a name that is known."""
        names = sorted(page.names, reverse=True)
        now = {known.metric.name: name for name in names if (known := gpus.column(name)) is not None}
        before, new = self._columns, page.unknown - self._unknown
        if not now or (now == before and not new):
            return []
        said = {}
        unknown = ", ".join(sorted(new)[:_SHOWN])
        if not before and _POWER not in now:
            other = f"; on it, and unknown to whorl: {unknown}" if unknown else ""
            said[f"{_POWER} without"] = f"{_ITS_NAME} is not on the page, so {_POWER} is NULL{other}"
        for column, name in before.items():
            if column not in now:
                other = f"; new on it, and unknown to whorl: {unknown}" if unknown else ""
                said[f"{column} without"] = f"{name} is not on the page any more, so {column} is NULL{other}"
            elif now[column] != name:
                said[f"{column} {now[column]}"] = f"{column} is called {now[column]} now, and was {name}"
        self._columns, self._unknown = before | now, self._unknown | page.unknown
        return self._once(said)

    def _once(self, said: dict[str, str]) -> list[Event]:
        """Events of sentences by key, which begins with the column if the sentence is about one."""
        events = []
        for key in (key for key in said if key not in self._told):
            column = key.partition(" ")[0]
            metric = column if column in ROW or column == "ts" else None
            events.append(Event(EventKind.EXPORTER, None, f"{self.url}: {said[key]}", metric=metric))
        self._told.update(said)
        return events

    def _xid(self, page: Page) -> list[Event]:
        """XIDs that are new. What a page shows at first happened before; the same twice cannot be told from once.

        A GPU that was on a page without a series of XIDs had none: some exporters print it only from the first one on.
        """
        events = [
            xid_event(self.gpus[gpu].key, code)
            for gpu, code in page.xids.items()
            if code and self._xids.get(gpu, code) != code
        ]
        shown = (page.status != Status.UNREAD).any(axis=0).nonzero()[0].tolist()
        self._xids = dict.fromkeys(shown, 0) | self._xids | page.xids
        return events

    def _instead(self, page: Page) -> str:
        if self._reader.nameless:
            return ": its series have no UUID of a GPU"
        if page.unknown:
            return f": whorl knows none of its metrics ({', '.join(sorted(page.unknown)[:_SHOWN])})"
        if page.damaged:
            return f": line {page.damaged[0].line} cannot be read ({page.damaged[0].why}); is it an exporter's page?"
        return ": it has no metric of DCGM; is it dcgm-exporter's, and does the exporter see the GPUs?"
