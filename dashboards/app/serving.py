"""Serves the dashboard: where it may listen, with which token, under which prefix."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import waitress
from waitress import wasyncore

from ...errors import InputError
from ..listening import listening

_THREADS = 8
_SHORTEST = 16
_END_S = 5.0
_LARGEST = 16 << 20  # of a request, in bytes: every GPU of a large fleet, brushed
_PREFIX = re.compile(r"/([A-Za-z0-9._~-]+/)*")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def read_token(path: Path) -> str:
    """The token in a file. Raises InputError where there is none, or others than its owner may read it."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"--token-file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--token-file {path} is not UTF-8 text: write one line of letters and digits") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"--token-file {path} can be used by others than its owner: run chmod 600 {path}")
    if len(text) < _SHORTEST or not text.isprintable() or " " in text:
        raise InputError(
            f"--token-file {path} needs one word of {_SHORTEST} characters or more, as `openssl rand -hex 16` prints it"
        )
    return text


def check_prefix(text: str) -> str:
    """A prefix with a slash at both ends. Raises InputError for what is none."""
    whole = f"/{text.strip('/')}/" if text.strip("/") else "/"
    if not _PREFIX.fullmatch(whole):
        raise InputError(f"--prefix {text!r} is no path: write it as /node/7/, with letters, digits and . _ ~ -")
    return whole


def refuse_open(host: str, token: str | None) -> None:
    """Raises InputError for an address that other machines reach where there is no token."""
    if token is None and not _only_here(host):
        where = host or "every address"
        raise InputError(
            f"--listen: other machines reach {where}, and so everybody there could read the store: give --token-file, "
            "or listen on 127.0.0.1 and use ssh -L"
        )


def _only_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """Listens from the start on; answers between `start` and `close`. Raises InputError where it cannot listen."""

    def __init__(self, application: Application, host: str, port: int, prefix: str = "/") -> None:
        self._socket = listening(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._prefix = prefix
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a busy moment is no fault
        self._server = waitress.create_server(
            without_prefix(application, prefix),
            sockets=[self._socket],
            threads=_THREADS,
            ident="whorl",
            max_request_body_size=_LARGEST,
            outbuf_overflow=_LARGEST,  # a file for an answer would stay open where a browser leaves in the middle of it
            clear_untrusted_proxy_headers=False,  # X-Forwarded-Proto says only whether the cookie needs https
        )
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        at = ip_address(self.host)
        host = socket.gethostname() if at.is_unspecified else f"[{at}]" if at.version == 6 else str(at)
        return f"http://{host}:{self.port}{self._prefix}"

    def start(self) -> None:
        """Answer from now on, in threads."""
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # `close` takes the sockets away
            self._server.run()

    def close(self) -> None:
        """Stop answering: at once where a browser waits for nothing."""
        self._server.close()
        wasyncore.close_all(self._server._map, ignore_all=True)
        self._server.task_dispatcher.shutdown(timeout=_END_S)
        if self._thread.ident is not None:
            self._thread.join(_END_S)


def without_prefix(application: Application, prefix: str) -> Application:
    """The application for requests with the prefix in their path and without: some proxies remove it, others do not."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if prefix != "/" and (path + "/").startswith(prefix):
            environ = {**environ, "PATH_INFO": "/" + path.removeprefix(prefix[:-1]).lstrip("/")}
        return application(environ, start)

    return answer
