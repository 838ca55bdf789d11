"""Clients that do not end their requests, in great number, against a server of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from whorl.dashboards.serving import Server

BEGINNINGS = (b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\nb", b"\r\n")


@contextlib.contextmanager
def attacked(server: Server, *, clients: int) -> Iterator[Callable[..., bytes]]:
    """Start a server, hold connections to it that send a byte now and then, and give what asks it for a page."""
    server.start()
    place = ("127.0.0.1", server.port)
    attackers: list[socket.socket] = []
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            for number, attacker in enumerate(attackers):
                if number % 2:
                    with contextlib.suppress(OSError):  # the server has closed it
                        attacker.sendall(b"\r\n" if number % 4 == 3 else b"a")

    def ask(path: str, header: bytes = b"") -> bytes:
        with socket.create_connection(place, timeout=60) as client:
            client.sendall(
                b"GET " + path.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + header + b"\r\n"
            )
            return b"".join(iter(lambda: client.recv(65_536), b""))

    dripping = threading.Thread(target=drip)
    try:
        ask("/")
        threads = threading.active_count()
        for number in range(clients):
            attackers.append(socket.create_connection(place, timeout=60))
            attackers[-1].sendall(BEGINNINGS[number % len(BEGINNINGS)])
        dripping.start()
        yield ask
        assert threading.active_count() <= threads + 1, "no thread for each client; one is ours"
    finally:
        over.set()
        dripping.join()
        for attacker in attackers:
            attacker.close()
        server.close()
