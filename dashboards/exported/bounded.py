"""How the SDK of OpenTelemetry reaches a collector: through `fetch`, which ends in time and reads a bounded answer."""

from __future__ import annotations

import io
import ssl
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from ...store.system.network import TooLarge, fetch

_MOST = 1 << 16  # bytes of a collector's answer, which says little


class Bounded(BaseAdapter):
    """Sends requests until the time `until`, in seconds of the clock that is never set."""

    def __init__(self) -> None:
        super().__init__()
        self.until = 0.0

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - the parameters are those of requests
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> requests.Response:
        """The answer. Raises requests' ConnectionError for what may be tried again, else TimeoutError."""
        assert request.url is not None
        assert isinstance(request.body, bytes)
        left_s = min(timeout, self.until - time.monotonic())
        if left_s <= 0:
            raise TimeoutError("the time is over")
        headers = {name: str(text) for name, text in request.headers.items()}
        asked = urllib.request.Request(request.url, request.body, headers, method=request.method)  # noqa: S310 - see `address`
        try:
            tls = _tls(verify, cert) if request.url.startswith("https:") else None
            answer = fetch(asked, timeout_s=left_s, most_bytes=_MOST, tls=tls)
        except TimeoutError:
            raise TimeoutError(f"no answer within {left_s:.0f} s") from None
        except TooLarge:
            raise ValueError(f"its answer has more than {_MOST:,} bytes") from None
        except OSError as error:
            raise requests.ConnectionError(error) from error
        if 300 <= answer.status < 400:  # the SDK would take it for success
            raise ValueError(f"it sends on to {answer.headers.get('Location')!r}: give that as --endpoint")
        response = requests.Response()
        response.status_code, response.reason, response.url = answer.status, answer.reason, request.url
        response.headers = CaseInsensitiveDict(answer.headers.items())
        response.raw, response.request = io.BytesIO(answer.body), request
        return response

    def close(self) -> None:
        """Nothing stays open."""


def bounded_session(bounded: Bounded) -> requests.Session:
    """A session of requests that sends through `bounded` alone."""
    session = requests.Session()
    session.mount("http://", bounded)
    session.mount("https://", bounded)
    return session


def _tls(verify: bool | str, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if cert:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context
