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
    until = time.monotonic() + timeout_s
    sockets: list[socket] = []
    opener = urllib.request.OpenerDirector()
    opener.add_handler(_Handler(sockets, until, tls))
    opener.add_handler(urllib.request.UnknownHandler())
    if proxies:
        opener.add_handler(urllib.request.ProxyHandler())
    answers: queue.SimpleQueue[HttpAnswer | Exception] = queue.SimpleQueue()

    def read() -> None:
        try:
            with opener.open(request, timeout=timeout_s) as response:
                answers.put(_read(response, most_bytes))
        except urllib.error.URLError as error:
            answers.put(error.reason if isinstance(error.reason, Exception) else error)
        except Exception as error:  # raised again by who waits
            answers.put(error)

    stuck = _LEFT.pop(request.host, None)
    if stuck is not None:
        stuck.join(timeout_s)
    if stuck is None or not stuck.is_alive():
        stuck = threading.Thread(target=read, name="whorl-fetch", daemon=True)
        stuck.start()
    try:
        answer = answers.get(timeout=max(0.0, until - time.monotonic()))
    except queue.Empty:
        _LEFT[request.host] = stuck
        raise TimeoutError from None
    finally:
        for connected in sockets:
            with suppress(OSError):  # it was closed
                connected.shutdown(SHUT_RDWR)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(response: http.client.HTTPResponse, most_bytes: int) -> HttpAnswer:
    body = bytearray()
    while piece := response.read1(_PIECE):  # `read` keeps an object for each chunk, which may be of one byte
        body += piece
        if len(body) > most_bytes:
            raise TooLarge
    if response.length:  # bytes that the server announced and did not send
        raise http.client.IncompleteRead(b"", response.length)
    return HttpAnswer(response.status, response.reason, response.headers, body)


class _Plain(http.client.HTTPConnection):
    """A connection whose socket another thread can shut."""

    def __init__(self, host: str, *, sockets: list[socket], until: float, **options: Any) -> None:
        super().__init__(host, **options)
        self._sockets, self._until = sockets, until

    def connect(self) -> None:
        super().connect()
        self._sockets.append(self.sock)
        if time.monotonic() > self._until:  # nobody waits for the answer
            self.close()
            raise TimeoutError


class _Safe(_Plain, http.client.HTTPSConnection):
    """The same by TLS."""


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens http:// and https://, and nothing else."""

    def __init__(self, sockets: list[socket], until: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._plain = partial(_Plain, sockets=sockets, until=until)
        self._safe = partial(_Safe, sockets=sockets, until=until, context=tls)

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._plain, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._safe, request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_
