"""One page over HTTP, of a stated size and within a stated time, or one sentence about why there is none."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from urllib.parse import unquote, urljoin, urlsplit

from ...errors import InputError
from ...store.system.network import HttpAnswer, TooLarge, fetch

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


class NoPage(Exception):  # noqa: N818 - told to people; it is no error of the program
    """There is no page; the text says why and what to do."""


def checked(url: str) -> str:
    """The URL of a page, with `/metrics` where it has no path. Raises InputError where it is none."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or any(character.isspace() or not character.isprintable() for character in url):
        raise InputError(f"url {url!r} is no address of a page; an example is http://localhost:9400/metrics")
    return parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment="").geturl()


def without_password(url: str) -> str:
    """A URL without the user and the password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def download(url: str, *, timeout_s: float, most_bytes: int) -> bytes | bytearray:
    """The page at a URL, within `timeout_s` for all redirections together. Raises NoPage."""
    until = time.monotonic() + timeout_s
    for _ in range(_REDIRECTS + 1):
        left_s = max(0.0, until - time.monotonic())
        try:
            answer = fetch(_request(url), timeout_s=left_s, most_bytes=most_bytes, proxies=False)
        except TimeoutError as error:
            raise NoPage(f"it has not sent its page within {timeout_s:g} s; is the exporter stuck?") from error
        except TooLarge as error:
            raise NoPage(f"its page has more than {most_bytes} bytes; ask for fewer series") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoPage(_reason(error)) from error
        location = answer.headers.get("Location")
        if answer.status not in (301, 302, 303, 307, 308) or not location:
            return _body(answer)
        try:
            url = urljoin(url, location)
            scheme, _ = urlsplit(url).scheme, urlsplit(url).port  # the port raises where it is none
        except ValueError:
            raise NoPage(f"it sends on to {location[:200]!r}, which is no address; give the exporter's own") from None
        if scheme not in ("http", "https"):
            raise NoPage(f"it sends on to {url[:200]!r}, which is no web page; give the exporter's own address")
    raise NoPage(f"it sends on more than {_REDIRECTS} times; give the exporter's own address")


def _request(url: str) -> urllib.request.Request:
    headers = {"Accept": _WANTED, "Accept-Encoding": "identity", "User-Agent": "whorl"}
    parts = urlsplit(url)
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
    return urllib.request.Request(without_password(url), headers=headers)  # noqa: S310 - the scheme was checked


def _body(answer: HttpAnswer) -> bytes | bytearray:
    if answer.status != 200:
        advice = _ADVICE.get(answer.status, _ADVICE[500] if answer.status > 500 else "check the address")
        raise NoPage(f"it answers {answer.status} {answer.reason[:200]}; {advice}".replace(" ;", ";"))
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in _TYPES:
        raise NoPage(f"its page is {kind[:200]}, not the text that Prometheus scrapes; {_ADVICE[404]}")
    packed = answer.headers.get("Content-Encoding", "").strip().lower()
    if packed not in ("", "identity"):
        raise NoPage(f"its page is packed ({packed[:200]}), and whorl asked for text; check what stands between")
    return answer.body


def _reason(error: Exception) -> str:
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "it closed the connection without an answer; look into the exporter's log"
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
    return str(error)[:200] or type(error).__name__
