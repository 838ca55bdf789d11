"""One page over HTTP, within a time limit, or one sentence about why there is none."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import zlib
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from ...errors import InputError

_MOST = 64 << 20  # bytes of a page: that of a thousand GPUs has 10 MB
_PIECE = 1 << 16
_REDIRECTS = 3
_WANTED = "text/plain;version=0.0.4, application/openmetrics-text;q=0.5, */*;q=0.1"
_TYPES = ("text/plain", "application/openmetrics-text", "application/octet-stream", "")
_ADVICE = {
    401: "give a user and a password: http://USER:PASSWORD@HOST:PORT/...",
    403: "ask the exporter's owner for access",
    404: "dcgm-exporter's page is /metrics, that of a Prometheus /federate?match[]=...",
    500: "look into the exporter's log",
    503: "the exporter may still be starting",
}


class NoPage(Exception):  # noqa: N818 - said to people, and told apart from errors of the program
    """There is no page; the text says why and what to do."""


def checked(url: str) -> str:
    """The URL of a page, with `/metrics` where it has no path. Raises InputError where it is none."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or any(character.isspace() or not character.isprintable() for character in url):
        raise InputError(f"--url {url!r} is no address of a page; an example is http://localhost:9400/metrics")
    return parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment="").geturl()


def shown(url: str) -> str:
    """A URL without the password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class Fetcher:
    """Fetches one page again and again. The connection is kept where the server keeps it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self._timeout = url, timeout_s
        self._kept: tuple[tuple[str, str], http.client.HTTPConnection] | None = None

    def page(self) -> str:
        """The page. Raises NoPage."""
        until = time.monotonic() + self._timeout
        url = self.url
        for _ in range(_REDIRECTS + 1):
            answer, body = self._answer(url, until)
            where = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not where:
                return self._text(answer, body)
            url = _joined(url, where)
            if urlsplit(url).scheme not in ("http", "https"):
                raise NoPage(f"it sends on to {url!r}, which is no web page; give the exporter's own address")
        raise NoPage(f"it sends on more than {_REDIRECTS} times; give the exporter's own address")

    def close(self) -> None:
        """Leave the server."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()

    def _answer(self, url: str, until: float) -> tuple[http.client.HTTPResponse, bytes]:
        parts = urlsplit(url)
        again = self._kept is not None and self._kept[0] == (parts.scheme, parts.netloc)
        try:
            return self._asked(parts, until)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not again:
                raise NoPage("it closed the connection without an answer; look into the exporter's log") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise NoPage(_why(error, self._timeout)) from error
        try:  # the server had closed the connection that was kept
            return self._asked(parts, until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise NoPage(_why(error, self._timeout)) from error

    def _asked(self, parts: SplitResult, until: float) -> tuple[http.client.HTTPResponse, bytes]:
        place = (parts.scheme, parts.netloc)
        if self._kept is not None and self._kept[0] != place:
            self.close()
        if self._kept is None:
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            self._kept = (place, kind(parts.hostname or "", parts.port, timeout=_left(until)))
        connection = self._kept[1]
        connection.timeout = _left(until)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        headers = {"Accept": _WANTED, "Accept-Encoding": "gzip", "User-Agent": "whorl"}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
        connection.request("GET", parts._replace(scheme="", netloc="").geturl() or "/", headers=headers)
        answer = connection.getresponse()
        pieces, size = [], 0
        while True:  # a server that sends a byte now and then must not keep us
            if connection.sock is not None:
                connection.sock.settimeout(_left(until))
            piece = answer.read1(_PIECE)
            if not piece:
                break
            size += len(piece)
            if size > _MOST:
                raise http.client.HTTPException(f"its page has more than {_MOST >> 20} MiB; give fewer series")
            pieces.append(piece)
            _left(until)
        if answer.length:  # what the server announced and did not send
            raise http.client.IncompleteRead(b"", answer.length)
        answer.close()  # now the connection can be used again
        if answer.will_close:
            self.close()
        return answer, b"".join(pieces)

    def _text(self, answer: http.client.HTTPResponse, body: bytes) -> str:
        if answer.status != 200:
            advice = _ADVICE.get(answer.status, _ADVICE[500] if answer.status > 500 else "check the address")
            raise NoPage(f"it answers {answer.status} {answer.reason}; {advice}".replace(" ;", ";"))
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in _TYPES:
            raise NoPage(f"its page is {kind}, not the text that Prometheus scrapes; {_ADVICE[404]}")
        if answer.headers.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip"):
            body = _unpacked(body)
        return body.decode("utf-8", "replace")


def _joined(url: str, where: str) -> str:
    """Where an answer sends on to, which may be anything. Raises NoPage."""
    try:
        joined = urljoin(url, where)
        urlsplit(joined).port  # noqa: B018 - raises where it is none
    except ValueError:
        raise NoPage(f"it sends on to {where!r}, which is no address; give the exporter's own") from None
    return joined


def _unpacked(packed: bytes) -> bytes:
    """What a gzip stream holds, which may have several members, one behind the other. Raises NoPage."""
    body = b""
    while packed:
        unpacking = zlib.decompressobj(wbits=31)
        try:
            body += unpacking.decompress(packed, _MOST + 1 - len(body))
        except zlib.error as error:
            raise NoPage(f"its compressed page is damaged ({error})") from error
        if not unpacking.eof or len(body) > _MOST:
            raise NoPage("its compressed page is cut short, or unpacks to more than can be read")
        packed = unpacking.unused_data
    return body


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _why(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"it has not sent its page within {timeout_s:g} s; is the exporter stuck?"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused); is the exporter running, and on this port?"
    if isinstance(error, socket.gaierror):
        return f"its host is not known ({error.strerror}); check the name"
    if isinstance(error, ssl.SSLError):
        return f"no safe connection can be made ({error.reason or error}); is it http:// and not https://?"
    if isinstance(error, http.client.IncompleteRead):
        return "its page is cut short; look into the exporter's log"
    if isinstance(error, http.client.BadStatusLine):
        return "it does not speak HTTP; check the port"
    if isinstance(error, UnicodeError):
        return "its host cannot be a name; check it"
    if isinstance(error, OSError):
        return f"it cannot be reached ({error.strerror or error})"
    return str(error) or type(error).__name__
