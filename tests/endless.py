"""Servers that never end: they drip, or send without a limit. They stop when whoever asked has gone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

HEAD = b"HTTP/1.1 200 OK\r\n"
GIVE_UP_S = 60.0  # a server ends by itself then, with an answer that is whole: a test fails and does not hang


Pieces = Iterator[bytes]


def dripped(start: bytes, piece: bytes, end: bytes) -> Pieces:
    """A piece now and then, and in the end an answer that is whole."""
    yield start
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        yield piece
    yield end


def endless(start: bytes, piece: bytes) -> Pieces:
    """256 MB: a test that reads all of it fails, and does not fill the memory."""
    yield HEAD + start
    for _ in range((256 << 20) // len(piece)):
        yield piece


SLOW: dict[str, Callable[[], Pieces]] = {
    "silent": lambda: dripped(b"", b"", HEAD + b"\r\n"),
    "dripped headers": lambda: dripped(HEAD + b"A: ", b"a", b"\r\nContent-Length: 0\r\n\r\n"),
    "dripped body": lambda: dripped(HEAD + b"\r\n", b"a", b""),
    "100 Continue for ever": lambda: dripped(
        b"", b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"Content-Length: 0\r\n\r\n"
    ),
    "dripped chunk size": lambda: dripped(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0", b"0", b"\r\n\r\n"),
    "trailers for ever": lambda: dripped(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n", b"\r\n"),
}
HUGE: dict[str, Callable[[], Pieces]] = {
    "endless body": lambda: endless(b"\r\n", b"x" * 65_536),
    "endless chunks": lambda: endless(b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000),
}


@contextlib.contextmanager
def serving(answer: Callable[[], Pieces], pause_s: float = 0.02) -> Iterator[tuple[str, list[int]]]:
    """A server for one request: its address, and how many bytes it could send. At the end nobody may be reading."""
    sent = [0]

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):  # who asked has gone
            for piece in answer():
                connection.settimeout(pause_s)
                with contextlib.suppress(TimeoutError):
                    if pause_s and not connection.recv(65_536):
                        return
                connection.settimeout(GIVE_UP_S)
                connection.sendall(piece)
                sent[0] += len(piece)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", sent
        thread.join()
