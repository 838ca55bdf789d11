"""What an exporter keeps, and the page for Prometheus.

Every look brings the readings up to date. Findings and energy are read by a thread of their own: a look never waits
for them, and takes those of the last time. `prometheus-client` writes the page.
"""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import numpy as np
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ... import __version__
from ...errors import WhorlError
from ...store import Store
from ...store.newest import Following, Gpu, Newest
from ..serving import Application, Limits
from . import findings
from .series import ONE, SECONDS, TIMESTAMP, GpuLabels, Point, Series, dcgm_readings, identities, readings, series

log = logging.getLogger(__name__)

PATH = "/metrics"
LIMITS = Limits(connections=64, body_bytes=1024)
_PAUSE_S = 60.0
_SHARE = 20  # at most one part in so many of the time goes into findings
_END_S = 10.0
_TEXT = "text/plain; charset=utf-8"
_FIRST_PAGE = b"""<!doctype html><html lang="en"><title>whorl</title>
<h1>whorl</h1><p>Newest readings of GPUs, and findings about them: <a href="/metrics">/metrics</a>, for Prometheus.</p>
</html>
"""


@dataclass(frozen=True)
class Settings:
    """`age_s`: older readings are left out. `dcgm_names`: readings also under the names of dcgm-exporter."""

    age_s: float = 60.0
    dcgm_names: bool = False


class Exporter:
    """Gives the series of a store, as often as it is asked."""

    def __init__(self, store: Store, settings: Settings, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._following = Following(store, settings.age_s)
        self._labels = GpuLabels()
        self._conclusions = findings.Conclusions()
        self._concluded_at: int | None = None
        self._metered = findings.Metered(store, clock())
        self._took_s = 0.0
        self._new_gpus: set[Gpu] = set()  # that were not known when they were seen first
        self._met: frozenset[Gpu] = frozenset()  # GPUs that had been seen when identities were read last
        self._urgent = threading.Event()  # such a GPU was seen: findings are read soon
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Bring everything that is slow up to date. Raises WhorlError."""
        began = time.monotonic()
        self._following.catch_up(self._clock())
        met = frozenset(self._following.now(self._clock()).gpus)
        self._conclusions = findings.find(self._store, self._labels, self._clock())
        self._concluded_at, self._met = self._clock(), met
        self._took_s = time.monotonic() - began

    def start(self) -> None:
        """Read what is there, and then keep the findings up to date in a thread, until `close`. Raises WhorlError."""
        self._following.catch_up(self._clock())
        self._thread = threading.Thread(target=self._run, name="findings", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread: as soon as it has done what it does, which is not waited for if it takes long."""
        self._ended.set()
        self._urgent.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        """Read findings and meter energy once a minute, or less often where that takes long; soon for a new GPU."""
        earlier: set[str] = set()
        while not self._ended.is_set():
            self._urgent.clear()
            began = time.monotonic()
            problems = {problem for problem in (_problem(self.refresh), _problem(self._meter)) if problem}
            for problem in problems - earlier:
                log.warning("%s; the findings stay as they were", problem)
            earlier = problems
            rest_s = _SHARE * (time.monotonic() - began)
            if not self._ended.wait(rest_s):
                self._urgent.wait(max(0.0, _PAUSE_S - rest_s))

    def _meter(self) -> None:
        self._metered.advance(self._clock(), self._ended.is_set)

    def series(self) -> list[Series]:
        """All series of this moment. Raises StoreError."""
        began = time.monotonic()
        newest, conclusions = self._following.now(self._clock()), self._conclusions
        unknown = {gpu for gpu in newest.gpus if gpu not in conclusions.identity} - self._new_gpus
        if unknown:
            self._new_gpus |= unknown
            self._urgent.set()
        all_series = [*readings(newest, self._labels), *identities(self._identities(newest, conclusions))]
        all_series += [*conclusions.series, *self._metered.series(self._labels)]
        if self._settings.dcgm_names:
            # Labels say who a GPU is: shown before that is known, its series would be others from then on.
            is_known = np.array([gpu in self._met or gpu in conclusions.identity for gpu in newest.gpus], bool)
            identified = replace(newest, known=newest.known & is_known, fresh=newest.fresh & is_known)
            all_series += dcgm_readings(identified, conclusions.rows, conclusions.last_xid)
        return [*all_series, *self._about_itself(time.monotonic() - began)]

    def reads(self) -> bool:
        """Whether any GPU was read lately. Raises StoreError."""
        return bool(self._following.now(self._clock()).fresh.any())

    def rows(self) -> dict[Gpu, dict[str, Any]]:
        """By GPU, its row of `gpus_now`, as it was read last."""
        return self._conclusions.rows

    def _identities(self, newest: Newest, conclusions: findings.Conclusions) -> list[tuple[Point, Point | None]]:
        """Who the GPUs are that other series are about."""
        fresh = {gpu for gpu, is_fresh in zip(newest.gpus, newest.fresh.tolist(), strict=True) if is_fresh}
        gpus = sorted(fresh | conclusions.about, key=str)
        return [conclusions.identity[gpu] for gpu in gpus if gpu in conclusions.identity]

    def _about_itself(self, took_s: float) -> list[Series]:
        """What the exporter says of itself."""
        now = self._clock()
        at: list[Point] = [] if self._concluded_at is None else [({}, self._concluded_at / 1e9, now)]
        return [
            series("export_look", SECONDS, "gauge", "how long it took to look for newer readings", [({}, took_s, now)]),
            series("export_findings", TIMESTAMP, "gauge", "when findings and identities were read last, since 1970",
                   at),
            series("export_findings", SECONDS, "gauge", "how long that took", [({}, self._took_s, now)]),
            series("export", ONE, "info", "the version of whorl", [({"version": __version__}, 1, now)]),
        ]  # fmt: skip


def _problem(work: Callable[[], None]) -> str:
    """Why work failed; "" where it did not."""
    try:
        work()
    except WhorlError as error:
        return str(error)
    except Exception as error:  # it must not end the thread
        return f"the findings cannot be read ({type(error).__name__}: {error})"
    return ""


# -- Prometheus --------------------------------------------------------------------------------------------------


class _Page(Collector):
    """The series as Prometheus' client takes them."""

    def __init__(self, all_series: Iterable[Series]) -> None:
        self._series = all_series

    def collect(self) -> Iterator[Family]:
        """Those that have points: a value that is not known is not 0."""
        return (part.family() for part in self._series if part.labels)


def page(all_series: Iterable[Series]) -> bytes:
    """The page in Prometheus' text format, version 0.0.4."""
    return generate_latest(_Page(all_series))


def application(make_page: Callable[[], bytes]) -> Application:
    """What answers Prometheus over HTTP: the page, made anew for each request and by one thread at a time."""
    making = threading.Lock()

    def metrics() -> tuple[HTTPStatus, str, bytes]:
        try:
            with making:
                return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, make_page()
        except WhorlError as error:
            log.warning("no page for Prometheus: %s", error)
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{error}\n".encode()
        except Exception as error:  # one scrape fails, and the next one is tried
            log.warning("no page for Prometheus: %s: %s", type(error).__name__, error)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"the page could not be made; the log says why\n"

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET and HEAD are answered\n"
        elif environ["PATH_INFO"] == PATH:
            status, kind, body = metrics()
        elif environ["PATH_INFO"] == "/":
            status, kind, body = HTTPStatus.OK, "text/html; charset=utf-8", _FIRST_PAGE
        else:
            status, kind, body = HTTPStatus.NOT_FOUND, _TEXT, f"there is nothing here; ask for {PATH}\n".encode()
        headers = [("Content-Type", kind)]
        if status is HTTPStatus.OK and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 1, mtime=0)  # a fifth of the time of level 9, for a tenth more bytes
            headers.append(("Content-Encoding", "gzip"))
        start(f"{status.value} {status.phrase}", [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return answer
