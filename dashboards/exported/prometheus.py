"""Series in Prometheus' text format (version 0.0.4).

The page is written here and not by the package `prometheus-client`, which needs nearly 20 times as long for the page of
a large fleet: it makes objects and escapes labels for every sample (benchmarks/exporting.py). The tests read the page
with that package.
"""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from ...errors import WhorlError
from ..serving import Application, Limits
from .series import Series

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
LIMITS = Limits(connections=64, body_bytes=1024)
_TEXT = "text/plain; charset=utf-8"
_FIRST_PAGE = b"""<!doctype html><html lang="en"><title>whorl</title>
<h1>whorl</h1><p>Newest readings of GPUs, and findings about them: <a href="/metrics">/metrics</a>, for Prometheus.</p>
</html>
"""


def page(series: Iterable[Series]) -> bytes:
    """The page. A series without points is left out: a value that is not known is not 0."""
    found: list[str] = []
    for one in series:
        if one.labels:
            name, text = one.prometheus, one.help.replace("\\", r"\\").replace("\n", r"\n")
            kind = "counter" if one.kind == "counter" else "gauge"  # this format has no other kind for an info
            found.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            found += [f"{name}{labels.text}{value!r}\n" for labels, value in zip(one.labels, one.values, strict=True)]
    return "".join(found).encode()


def application(make_page: Callable[[], bytes]) -> Application:
    """What answers Prometheus over HTTP: the page, made anew for each request and by one thread at a time."""
    making = threading.Lock()

    def metrics() -> tuple[HTTPStatus, str, bytes]:
        try:
            with making:
                return HTTPStatus.OK, CONTENT_TYPE, make_page()
        except WhorlError as error:
            log.warning("no page for Prometheus: %s", error)
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{error}\n".encode()
        except Exception as error:  # one scrape fails, and the next one is tried
            log.warning("no page for Prometheus: %s: %s", type(error).__name__, error)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"the page could not be made; the log says why\n"

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        match environ["REQUEST_METHOD"], environ["PATH_INFO"]:
            case "GET" | "HEAD", "/":
                status, content, body = HTTPStatus.OK, "text/html; charset=utf-8", _FIRST_PAGE
            case "GET" | "HEAD", "/metrics":
                status, content, body = metrics()
            case "GET" | "HEAD", _:
                status, content, body = HTTPStatus.NOT_FOUND, _TEXT, f"there is nothing here; ask for {PATH}\n".encode()
            case _:
                status, content, body = HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET and HEAD are answered\n"
        headers = [("Content-Type", content)]
        if content == CONTENT_TYPE and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            # Level 1 takes a quarter of the time of the usual level, for a page that is half as large again.
            body = gzip.compress(body, 1, mtime=0)
            headers.append(("Content-Encoding", "gzip"))
        start(f"{status.value} {status.phrase}", [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return answer
