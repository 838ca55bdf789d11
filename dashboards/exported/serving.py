"""A small HTTP server that answers Prometheus: one page, made anew for each request."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from ...errors import WhorlError
from ..listening import listening
from .prometheus import CONTENT_TYPE

log = logging.getLogger(__name__)

PATH = "/metrics"
_SLOW_S = 30.0  # a client that sends or takes nothing for so long is given up
_FIRST_PAGE = b"""<!doctype html><html lang="en"><title>whorl</title>
<h1>whorl</h1><p>Newest readings of GPUs, and findings about them: <a href="/metrics">/metrics</a>, for Prometheus.</p>
</html>
"""


class Server:
    """Listens from the start on; answers between `start` and `close`. Raises InputError where it cannot listen."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        handler = type("Handler", (_Handler,), {"page": staticmethod(page), "making": threading.Lock()})
        listens = listening(host, port)
        self._server = _Server(listens.getsockname(), handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listens
        self._server.server_address = listens.getsockname()
        self.host, self.port = self._server.server_address[:2]

    @property
    def url(self) -> str:
        """Where Prometheus finds the page."""
        host = str(self.host)
        if ip_address(host).is_unspecified:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{PATH}"

    def start(self) -> None:
        """Answer from now on, in threads."""
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that goes away in the middle is no error of ours."""
        log.debug("a client went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    page: Callable[[], bytes]
    making: threading.Lock

    protocol_version = "HTTP/1.1"
    server_version = "whorl"
    timeout = _SLOW_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(HTTPStatus.OK, _FIRST_PAGE, "text/html; charset=utf-8")
        elif path == PATH:
            self._metrics()
        else:
            self._answer(HTTPStatus.NOT_FOUND, f"there is nothing here; ask for {PATH}\n".encode())

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def _metrics(self) -> None:
        try:
            with self.making:
                page = self.page()
        except WhorlError as error:
            log.warning("no page for Prometheus: %s", error)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
            return
        except Exception as error:  # one scrape fails, and the next one is tried
            log.warning("no page for Prometheus: %s: %s", type(error).__name__, error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; the log says why\n")
            return
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            # Level 1 takes a quarter of the time of the usual level, for a page that is half as large again.
            self._answer(HTTPStatus.OK, gzip.compress(page, 1, mtime=0), CONTENT_TYPE, encoding="gzip")
        else:
            self._answer(HTTPStatus.OK, page, CONTENT_TYPE)

    def _answer(
        self, status: HTTPStatus, body: bytes, content: str = "text/plain; charset=utf-8", *, encoding: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Scrapes are not worth a line."""
