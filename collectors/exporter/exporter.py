"""GPUs as exporters show them: dcgm-exporter's pages, or the page of a Prometheus that collects many of them.

An exporter reads its GPUs at times (dcgm-exporter: every 30 s) and shows the same numbers until then. So there is a
reading of a GPU for each page with new numbers, not for each page: numbers that were stored once are no new reading.
Its time is the page's time stamp, else that just before the page was asked for; what the page shows is older than that
by up to the exporter's own interval.

Each page has a thread of its own. `read` wakes those that are idle and waits for them a little, so that the pages of
quick exporters are in this tick; of a slow one it takes the page at the tick after it has come.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from ...errors import InputError
from ...store.events import Event
from ...store.system.network import HttpAnswer, TooLarge, fetch
from ...store.vocabulary import EventKind
from ..backend import Backend, Device, Reading
from .page import History, NoPage, PageLimits

_LEAST_S, _MOST_S = 4.0, 10.0  # for a page
_PATIENCE, _PATIENCE_S = 0.25, 0.5  # of the interval, and at most: how long a tick waits for the pages it asked for
_FIRST_S = 10.0  # to read the first pages, besides the time for getting them
_WANTED = "text/plain;version=0.0.4, application/openmetrics-text;q=0.5, */*;q=0.1"
_TYPES = ("text/plain", "application/openmetrics-text", "application/octet-stream", "")
_ADVICE = {
    **dict.fromkeys((301, 302, 303, 307, 308), "redirections are not followed: give the address to which it sends on"),
    401: "give a user and a password: http://USER:PASSWORD@HOST:PORT/...",
    403: "ask the exporter's owner for access",
    404: "dcgm-exporter's page is /metrics, that of a Prometheus /federate?match[]=...",
    500: "look into the exporter's log",
    503: "the exporter may still be starting",
}


class ExporterPages(Backend):
    """The pages of one or several exporters.

    `url` are their addresses; `interval_s` is the time between two calls of `read`; `stale_s` is for how long a page
    may repeat the same numbers before that is told; `timeout_s` is for one page.
    """

    name = "prometheus"
    one_by_one = False

    def __init__(
        self,
        *,
        url: str | Sequence[str],
        interval_s: float = 1.0,
        stale_s: float | None = None,
        timeout_s: float | None = None,
        limits: PageLimits | None = None,
    ) -> None:
        self._urls = [url] if isinstance(url, str) else list(dict.fromkeys(url))
        self._patience_s = min(_PATIENCE * interval_s, _PATIENCE_S)
        self._stale_ns = round((max(120.0, 5 * interval_s) if stale_s is None else stale_s) * 1e9)
        self._timeout_s = min(max(interval_s, _LEAST_S), _MOST_S) if timeout_s is None else timeout_s
        self._limits = limits or PageLimits()
        self._targets: list[_PageTarget] = []
        self._fresh = False  # the pages that `devices` asked for are not read yet
        self._source: dict[str, _PageTarget] = {}  # by GPU: the first of the pages that show it

    def devices(self) -> list[Device]:
        """The GPUs on all pages. Raises InputError where no page can be had, or none of them showed a GPU yet."""
        if not self._urls:
            raise InputError("--backend prometheus reads pages: write prometheus:url=http://localhost:9400/metrics")
        if not self._targets:
            urls = [checked(url) for url in self._urls]
            self._targets = [_PageTarget(url, self._stale_ns, self._timeout_s, self._limits) for url in urls]
        if self._gone():
            self._ask(self._patience_s if self._source else self._timeout_s + _FIRST_S)
            self._fresh = True
            if gone := self._gone():
                raise InputError(gone)
        devices: dict[str, Device] = {}
        for target in self._targets:
            for device in target.history.devices:
                if devices.setdefault(device.gpu, device) is device:
                    self._source[device.gpu] = target
        if not self._source:
            raise InputError("; ".join(map(str, self._targets)))
        return list(devices.values())

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:  # noqa: ARG002 - a page has all of them
        """The new numbers of each page that has come. Raises InputError where no page can be had."""
        if not self._fresh:
            self._ask(self._patience_s)
        self._fresh = False
        pages = [target.take() for target in self._targets]
        gone = self._gone()
        if gone and not any(pages):
            raise InputError(gone)
        for target, page in zip(self._targets, pages, strict=True):
            readings, events = page or ([], [])
            yield from [] if gone else target.changes()
            yield from events
            yield from (reading for reading in readings if self._source.get(reading.gpu, target) is target)

    def close(self) -> list[Event]:
        """End the threads, each when its page has come or its time is over."""
        for target in self._targets:
            target.close()
        self._targets = []
        return []

    def _ask(self, patience_s: float) -> None:
        """Ask for the page of each target that is idle, and wait for these pages."""
        targets = [target for target in self._targets if target.ask()]
        until = time.monotonic() + patience_s
        for target in targets:
            target.idle.wait(max(0.0, until - time.monotonic()))

    def _gone(self) -> str:
        """Why no page can be had; "" where one can."""
        return "; ".join(map(str, self._targets)) if all(target.failure for target in self._targets) else ""


class _PageTarget:
    """The page at one address, which a thread gets when it is asked for."""

    def __init__(self, url: str, stale_ns: int, timeout_s: float, limits: PageLimits) -> None:
        self.url = without_password(url)
        self.failure: str | None = f"it has not sent its page within {timeout_s:g} s"
        """Why there was no page when it was asked for the last time."""
        self.idle = threading.Event()
        """Set while no page is asked for."""
        self.history = History(self.url, _host(url), stale_ns, limits)
        self._address, self._timeout_s, self._limits = url, timeout_s, limits
        self._pages: deque[tuple[list[Reading], list[Event]]] = deque()
        self._asked, self._closed = threading.Event(), False
        self._gone_at: int | None = None  # since when that it is gone was told, by the steady clock
        self.idle.set()
        threading.Thread(target=self._run, name="whorl-page", daemon=True).start()

    def __str__(self) -> str:
        return f"{self.url}: {self.failure}" if self.failure else f"{self.url} shows no GPU{self.history.instead}"

    def ask(self) -> bool:
        """Ask for the page, if that is not done already; tells whether it was."""
        if not self.idle.is_set():
            return False
        self.idle.clear()
        self._asked.set()
        return True

    def take(self) -> tuple[list[Reading], list[Event]] | None:
        """What is new on the oldest page that was not taken yet."""
        return self._pages.popleft() if self._pages else None

    def changes(self) -> list[Event]:
        """An event when the page cannot be had, and one when it is back."""
        if self.failure and self._gone_at is None:
            self._gone_at = time.monotonic_ns()
            return [Event(EventKind.SOURCE_GONE, None, str(self))]
        if not self.failure and self._gone_at is not None:
            lasted, self._gone_at = time.monotonic_ns() - self._gone_at, None
            detail = f"{self.url} answers again after {lasted / 1e9:.1f} s"
            return [Event(EventKind.SOURCE_BACK, None, detail, duration_ns=lasted)]
        return []

    def close(self) -> None:
        """End the thread as soon as it is idle."""
        self._closed = True
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closed:
                return
            asked_ns = time.time_ns()
            try:
                body = download(self._address, timeout_s=self._timeout_s, most_bytes=self._limits.page_bytes)
                self._pages.append(self.history.take(body, asked_ns=asked_ns, now_ns=time.monotonic_ns()))
                self.failure = None
            except NoPage as error:
                self.failure = str(error)
            except Exception as error:  # the other pages are read on, whatever is on this one
                self.failure = f"its page cannot be read ({type(error).__name__}: {error})"
            self.idle.set()


def _host(url: str) -> str | None:
    """The node of GPUs whose page names none; None for this node."""
    host = urlsplit(url).hostname or ""
    return None if host in ("localhost", "::1") or host.startswith("127.") else host


# -- one page over HTTP ------------------------------------------------------------------------------------------------


def checked(url: str) -> str:
    """The URL of a page, with `/metrics` where it has no path. Raises InputError where it is none."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or any(character.isspace() or not character.isprintable() for character in url):
        raise InputError(f"url {url!r} is no address of a page; an example is http://localhost:9400/metrics")
    return parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment="").geturl()


def without_password(url: str) -> str:
    """A URL without the user and the password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def download(url: str, *, timeout_s: float, most_bytes: int) -> bytes | bytearray:
    """The page at a URL, within `timeout_s`. Raises NoPage."""
    headers = {"Accept": _WANTED, "Accept-Encoding": "identity", "User-Agent": "whorl"}
    parts = urlsplit(url)
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
    request = urllib.request.Request(without_password(url), headers=headers)  # noqa: S310 - the scheme was checked
    try:
        answer = fetch(request, timeout_s=timeout_s, most_bytes=most_bytes, proxies=False)
    except TimeoutError as error:
        raise NoPage(f"it has not sent its page within {timeout_s:g} s; is the exporter stuck?") from error
    except TooLarge as error:
        raise NoPage(f"its page has more than {most_bytes} bytes; ask for fewer series") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoPage(_reason(error)) from error
    return _body(answer)


def _body(answer: HttpAnswer) -> bytes | bytearray:
    if answer.status != 200:
        advice = _ADVICE.get(answer.status, _ADVICE[500] if answer.status > 500 else "check the address")
        raise NoPage(f"it answers {answer.status} {answer.reason[:200]}; {advice}".replace(" ;", ";"))
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in _TYPES:
        raise NoPage(f"its page is {kind[:200]}, not the text that Prometheus scrapes; {_ADVICE[404]}")
    packed = answer.headers.get("Content-Encoding", "").strip().lower()
    if packed not in ("", "identity"):
        raise NoPage(f"its page is packed ({packed[:200]}), and whorl asked for text; check what stands between")
    return answer.body


def _reason(error: Exception) -> str:
    sentences: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        (
            (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError),
            "it closed the connection without an answer; look into the exporter's log",
        ),
        (
            ConnectionRefusedError,
            "nothing listens there (connection refused); is the exporter running, and on this port?",
        ),
        (socket.gaierror, f"its host is not known ({getattr(error, 'strerror', '')}); check the name"),
        (
            ssl.SSLError,
            f"no safe connection can be made ({getattr(error, 'reason', None) or error}); is it http:// and not https://?",
        ),
        (http.client.IncompleteRead, "its page is cut short; look into the exporter's log"),
        (http.client.BadStatusLine, "it does not speak HTTP; check the port"),
        (UnicodeError, "its host cannot be a name; check it"),
        (OSError, f"it cannot be reached ({getattr(error, 'strerror', None) or error})"),
    ]
    first = next((sentence for kind, sentence in sentences if isinstance(error, kind)), None)
    return first or str(error)[:200] or type(error).__name__
