"""GPUs as exporters show them: dcgm-exporter's pages, or the page of a Prometheus that collects many of them.

An exporter reads its GPUs now and then (dcgm-exporter: every 30 s) and shows the same numbers until then. So there is
a row of a GPU for each page with new numbers, not for each page: numbers that were stored once are no new reading, and
a page that stays the same for ever is no reading at all. `ts` is the page's time stamp, else the time just before the
page was asked for; what the page shows is older than that by up to the exporter's own interval.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from ...errors import InputError
from ...store.events import Event
from ...store.metrics import METRICS
from ..backends import Device, Readings, Status
from .fetching import NoPage, checked, page, shown
from .target import Row, Target

_LEAST_S, _MOST_S = 4.0, 10.0  # to wait for a page: less than the time after which a poll counts as hanging


class Prometheus:
    """The pages of one or several exporters as a `Stream`.

    `url` are the pages' addresses; `stale_s` is for how long a page may repeat the same numbers before that is told.
    """

    name = "prometheus"
    keeps = False

    def __init__(self, *, url: Sequence[str] = (), interval_s: float = 1.0, stale_s: float | None = None) -> None:
        self.period_ms: int | None = None
        self.poll_s = interval_s
        self._timeout = min(max(interval_s, _LEAST_S), _MOST_S)
        stale = max(120.0, 5 * interval_s) if stale_s is None else stale_s
        self._urls = [url] if isinstance(url, str) else list(dict.fromkeys(url))
        self._stale = stale
        self._targets: list[Target] = []
        self._addresses: list[str] = []  # with their passwords, in the order of `_targets`
        self._devices: list[Device] = []
        self._places: dict[str, int] = {}  # key of a GPU -> its position
        self._waiting: tuple[list[tuple[Target, list[Row]]], list[Event]] | None = None  # what opening has read

    def open(self) -> None:
        """Get every page once. Raises InputError where none of them shows a GPU."""
        if not self._urls:
            raise InputError("--backend prometheus reads pages: give --url, for example http://localhost:9400/metrics")
        if not self._targets:
            self._addresses = [checked(url) for url in self._urls]
            self._targets = [Target(shown(url), _host(url), self._stale) for url in self._addresses]
        try:
            rows, events = self._read()
        except InputError:
            self.close()
            raise
        if not self._devices:
            self.close()
            raise InputError("; ".join(f"{target.url} shows no GPU{target.instead}" for target in self._targets))
        self._waiting = (rows, events)

    def devices(self) -> Sequence[Device]:
        return self._devices

    def poll(self) -> tuple[Readings, list[Event]]:
        """New rows of all pages. Raises InputError where no page can be had."""
        found, events = self._waiting or ([], [])
        self._waiting = None
        rows, more = self._read()
        return self._readings(found + rows), events + more

    def end(self) -> list[Event]:
        """Nothing."""
        return []

    def close(self) -> None:
        """Nothing is open."""

    # -- pages --------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[tuple[Target, list[Row]]], list[Event]]:
        asked_ns, answers = time.time_ns(), self._pages()
        if all(isinstance(answer, NoPage) for answer in answers):
            said = [f"{target.url}: {answer}" for target, answer in zip(self._targets, answers, strict=True)]
            raise InputError("; ".join(said))
        rows: list[tuple[Target, list[Row]]] = []
        events: list[Event] = []
        for target, answer in zip(self._targets, answers, strict=True):
            if isinstance(answer, NoPage):
                events += target.gone(str(answer))
                continue
            new, told = target.take(answer, asked_ns)
            events += told
            rows.append((target, new))
            self._meet(target)
        return rows, events

    def _pages(self) -> list[str | NoPage]:
        """The page of each target, or why there is none. All are asked for at once."""

        def ask(url: str) -> str | NoPage:
            try:
                return page(url, self._timeout)
            except NoPage as error:
                return error

        with ThreadPoolExecutor(len(self._addresses), "whorl-page") as threads:
            return list(threads.map(ask, self._addresses))

    # -- rows ---------------------------------------------------------------------------------------------

    def _meet(self, target: Target) -> None:
        for gpu in target.gpus:
            row = dict(gpu.row)
            if "node" not in row and target.host is not None:
                row["node"] = target.host
            parent = None if gpu.parent is None else self._places[gpu.parent]
            place = self._places.setdefault(gpu.key, len(self._devices))
            if place == len(self._devices):
                self._devices.append(Device(gpu.key, row, parent))
            elif self._devices[place].row != row or self._devices[place].parent != parent:
                self._devices[place] = Device(gpu.key, row, parent)

    def _readings(self, found: list[tuple[Target, list[Row]]]) -> Readings:
        rows = [(self._places[target.gpus[row.gpu].key], row) for target, rows in found for row in rows]
        values = np.zeros((len(METRICS), len(rows)), np.int64)
        status = np.full((len(METRICS), len(rows)), Status.UNREAD, np.uint8)
        for number, (_, row) in enumerate(rows):
            values[:, number], status[:, number] = row.values, row.status
        device = np.array([place for place, _ in rows], np.intp)
        return Readings(device, np.array([row.ts_ns for _, row in rows], np.int64), values, status)


def _host(url: str) -> str | None:
    """The node of GPUs whose page names none; None for this node."""
    host = urlsplit(url).hostname or ""
    return None if host in ("localhost", "::1") or host.startswith("127.") else host
