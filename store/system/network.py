"""Answers of other machines over HTTP, each within a stated time and of a stated size.

The time limit of a socket holds for one step only: a server that sends a byte now and then, or headers without an end,
is never late by it, and a name may take a minute to look up. So a thread reads the answer. When the time is over it is
left, and its connection is shut, which ends it. A look-up cannot be ended: the host is not asked again before it is.
"""

from __future__ import annotations

import http.client
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from socket import SHUT_RDWR, socket
from typing import Any

_PIECE = 1 << 16
_LEFT: dict[str, threading.Thread] = {}  # by host: a thread whose time was over


class TooLarge(Exception):  # noqa: N818 - what callers tell people depends on what was asked for
    """An answer has more bytes than its reader allows."""


@dataclass(frozen=True)
class HttpAnswer:
    """What a server said, whatever its status."""

    status: int
    reason: str
    headers: Message
    body: bytes | bytearray


def fetch(
    request: urllib.request.Request,
    *,
    timeout_s: float,
    most_bytes: int,
    tls: ssl.SSLContext | None = None,
    proxies: bool = True,
) -> HttpAnswer:
    """The answer to a request. A redirection is an answer too, and is not followed.

    `timeout_s` is for all of it, from the look-up of the name to the last byte. `proxies`: use those that the
    environment names. Raises TimeoutError, TooLarge, other OSErrors, http.client.HTTPException, and ValueError for an
    address that is none.
    """
    connected = _Connected()
    opener = urllib.request.OpenerDirector()
    opener.add_handler(_Handler(connected, tls))
    opener.add_handler(urllib.request.UnknownHandler())
    if proxies:
        opener.add_handler(urllib.request.ProxyHandler())
    answers: queue.SimpleQueue[HttpAnswer | Exception] = queue.SimpleQueue()

    def read() -> None:
        try:
            answers.put(_read(opener, request, timeout_s, most_bytes))
        except urllib.error.URLError as error:
            answers.put(error.reason if isinstance(error.reason, Exception) else error)
        except Exception as error:  # raised again by who waits
            answers.put(error)

    until = time.monotonic() + timeout_s
    stuck_lookup = _LEFT.pop(request.host, None)
    if stuck_lookup is not None:
        stuck_lookup.join(timeout_s)
        if stuck_lookup.is_alive():
            _LEFT[request.host] = stuck_lookup
            raise TimeoutError
    thread = threading.Thread(target=read, name="whorl-fetch", daemon=True)
    thread.start()
    try:
        answer = answers.get(timeout=max(0.0, until - time.monotonic()))
    except queue.Empty:
        _LEFT[request.host] = thread
        raise TimeoutError from None
    finally:
        connected.shut()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float, most_bytes: int
) -> HttpAnswer:
    with opener.open(request, timeout=timeout_s) as response:
        body = bytearray()
        while piece := response.read1(_PIECE):  # `read` keeps an object for each chunk, which may be of one byte
            body += piece
            if len(body) > most_bytes:
                raise TooLarge
        if response.length:  # bytes that the server announced and did not send
            raise http.client.IncompleteRead(b"", response.length)
        return HttpAnswer(response.status, response.reason, response.headers, body)


class _Connected:
    """The socket of one request, which another thread may shut at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket | None = None
        self._over = False

    def hold(self, connection: http.client.HTTPConnection) -> None:
        """Keep the socket of a connection that was just made; close it if nobody waits for its answer."""
        with self._lock:
            self._socket = connection.sock
            if self._over:
                connection.close()
                raise TimeoutError

    def shut(self) -> None:
        """End the connection: whoever reads from it meets its end."""
        with self._lock:
            self._over = True
            if self._socket is not None:
                with suppress(OSError):  # it was closed
                    self._socket.shutdown(SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str, *, connected: _Connected, **options: Any) -> None:
        super().__init__(host, **options)
        self._connected = connected

    def connect(self) -> None:
        super().connect()
        self._connected.hold(self)


class _Safe(_Plain, http.client.HTTPSConnection):
    """The same by TLS."""


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens http:// and https://, and nothing else."""

    def __init__(self, connected: _Connected, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._connected, self._tls = connected, tls

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Plain, connected=self._connected), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Safe, connected=self._connected, context=self._tls), request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_
