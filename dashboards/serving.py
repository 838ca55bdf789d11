"""Serves pages over HTTP: where it may listen, and limits that hold however many clients do not end what they began."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import waitress
from waitress import wasyncore
from waitress.channel import HTTPChannel

from ..errors import InputError

_END_S = 5.0
_HEADER_BYTES = 64 << 10
_IDLE_S = 120

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def address(text: str, example: str = "127.0.0.1:9500") -> tuple[str, int]:
    """Host and port of "127.0.0.1:9500", "[::1]:9500" or ":9500" (all addresses). Raises InputError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 65535 or ("]" in port):
        raise InputError(f"--listen {text!r} is no address: write HOST:PORT, as {example}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InputError(f"--listen {text!r} is no address: write an IPv6 address in brackets, as [::1]:9500")
    return host, int(port)


@dataclass(frozen=True)
class Limits:
    """What clients may take. `arrive_s`: seconds from the first byte of a request to its last one."""

    connections: int
    body_bytes: int
    threads: int = 4
    arrive_s: float = 30.0


class Server:
    """Answers requests for an application, in a fixed number of threads, between `start` and `close`.

    It listens from the beginning on. Raises InputError where it cannot.
    """

    def __init__(self, application: Application, host: str, port: int, limits: Limits, *, path: str = "/") -> None:
        self._socket = _listening(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._path = path
        for name in ("waitress", "waitress.queue"):
            logging.getLogger(name).setLevel(logging.ERROR)  # a busy moment and a client that goes away are no fault
        self._channels: dict[int, Any] = {}
        self._server = waitress.create_server(
            application,
            map=self._channels,
            sockets=[self._socket],
            threads=limits.threads,
            ident="whorl",
            connection_limit=2 * limits.connections,  # `_Channel` makes room long before
            channel_timeout=_IDLE_S,
            cleanup_interval=10,
            max_request_header_size=_HEADER_BYTES,
            max_request_body_size=limits.body_bytes,
            outbuf_overflow=16 << 20,  # a file for an answer would stay open where a client leaves in the middle of it
            asyncore_use_poll=True,  # `select` cannot wait for a file whose number is above 1,023
            clear_untrusted_proxy_headers=False,  # X-Forwarded-Proto says only whether the cookie needs https
        )
        self._server.channel_class = type("Channel", (_Channel,), {"limits": limits})
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def url(self) -> str:
        """Where a client finds it."""
        address = ip_address(self.host)
        host = socket.gethostname() if address.is_unspecified else str(address)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self._path}"

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # `close` takes the sockets away
            self._server.run()

    def close(self) -> None:
        """Stop answering: at once where no client waits for an answer."""
        self._server.close()
        wasyncore.close_all(self._channels, ignore_all=True)
        self._server.task_dispatcher.shutdown(timeout=_END_S)
        if self._thread.ident is not None:
            self._thread.join(_END_S)


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection. waitress closes one that is silent; this one also ends where its request drips in too slowly, and
    makes room for a new one where there are too many: who has kept the server waiting longest goes first.
    """

    limits: Limits
    since = 0.0
    """When the first byte of the request came that is not complete."""

    def __init__(self, server: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(server, *arguments, **options)
        channels = list(server.active_channels.values())
        waiting = [channel for channel in channels if not channel.requests and not channel.will_close]
        if len(channels) > self.limits.connections and waiting:
            min(waiting, key=_Channel.waits_since).will_close = True

    def waits_since(self) -> float:
        """Since when the server has waited for this client, by the system's clock."""
        return self.since if self.request is not None else float(self.last_activity)

    def received(self, data: bytes) -> bool:
        if self.request is None:
            self.since = time.time()
        return bool(super().received(data))

    def readable(self) -> bool:
        if self.request is not None and time.time() - self.since > self.limits.arrive_s:
            self.will_close = True
        return bool(super().readable())


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError where that is not possible."""
    try:
        family, _, _, _, full = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(full[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise InputError(f"--listen: nothing is known of the host {host!r}: give an address of this machine") from error
    except OSError as error:
        place = f"{host or 'every address'}, port {port}"
        raise InputError(f"cannot listen on {place}: {_why(error)}") from error


def _why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there; choose another port with --listen, or stop that program"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; choose another with --listen"
        case errno.EACCES | errno.EPERM:
            return "this user may not; choose a port above 1023 with --listen"
    return f"{error.strerror or error}; choose another address with --listen"
