"""Who may see the dashboard: where it listens, its prefix, its token, and what a browser may do with its pages."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from html import escape
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from flask import Response, request

from ...errors import InputError
from ..serving import Application, Limits

if TYPE_CHECKING:
    from flask import Flask

LIMITS = Limits(connections=256, body_bytes=16 << 20, threads=8)
"""A request may name every GPU of a large fleet, brushed."""
_SHORTEST_TOKEN = 16
_PREFIX = re.compile(r"/([A-Za-z0-9._~-]+/)*")
_COOKIE_DAYS = 7
_TEXT = "text/plain; charset=utf-8"
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,  # a browser asks no other host, whatever a page says
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


# -- what the command line gives ---------------------------------------------------------------------------------


def make_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_hex(16)


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
    if len(text) < _SHORTEST_TOKEN or not text.isprintable() or " " in text:
        raise InputError(
            f"--token-file {path} needs one word of {_SHORTEST_TOKEN} characters or more, "
            "as `openssl rand -hex 16` prints it"
        )
    return text


def check_prefix(text: str) -> str:
    """A prefix with a slash at both ends. Raises InputError for a text that is no path."""
    prefix = f"/{text.strip('/')}/" if text.strip("/") else "/"
    if not _PREFIX.fullmatch(prefix):
        raise InputError(f"prefix {text!r} is no path: write it as /node/7/, with letters, digits and . _ ~ -")
    return prefix


def refuse_open(host: str, token: str | None) -> None:
    """Raises InputError for an address that other machines reach where there is no token."""
    if token is None and not _is_loopback(host):
        address = host or "every address"
        raise InputError(
            f"--listen: other machines reach {address}, and so everybody there could read the store: leave out "
            "--token-file none, or listen on 127.0.0.1 and use ssh -L"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


# -- requests ----------------------------------------------------------------------------------------------------


def without_prefix(application: Application, prefix: str) -> Application:
    """The application for requests with the prefix in their path and without: some proxies remove it, others do not."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if prefix != "/" and (path + "/").startswith(prefix):
            environ = {**environ, "PATH_INFO": "/" + path.removeprefix(prefix[:-1]).lstrip("/")}
        return application(environ, start)

    return answer


def protect(server: Flask, *, token: str | None, prefix: str) -> None:
    """Let a request through only if it may, and tell the browser what the pages may do.

    `token`: what every request must bring; None lets every request through that names this machine.
    """
    from dash.exceptions import (  # Dash takes long to load: the store is read meanwhile
        DashException,
        DependencyException,
    )

    @server.before_request
    def check() -> Response | None:
        if token is not None:
            return _check_token(token, prefix)
        return None if _names_this_machine(request.host) else _refuse_host()

    @server.after_request
    def add_headers(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @server.errorhandler(DependencyException)
    def refuse_path(_: Exception) -> Response:
        """Dash raises this for a file that is none of its own."""
        return Response("there is no such file\n", HTTPStatus.NOT_FOUND, content_type=_TEXT)

    def refuse_question(_: Exception) -> Response:
        """Dash fails so in the middle of a question that no page asks."""
        return Response("no page asks this\n", HTTPStatus.BAD_REQUEST, content_type=_TEXT)

    for kind in (AttributeError, LookupError, TypeError, RecursionError, DashException):
        server.register_error_handler(kind, refuse_question)


def _check_token(token: str, prefix: str) -> Response | None:
    name, secret = f"whorl-{_digest(token, 'name')[:8]}", _digest(token, "dashboard")
    if _same(request.cookies.get(name, ""), secret):
        return _welcome(name, secret, prefix) if "token" in request.args else None
    typed = request.form.get("token", "") if request.method == "POST" else request.args.get("token", "")
    if typed and _same(typed.strip(), token):
        return _welcome(name, secret, prefix)
    return Response(
        _ASK.format(action=escape(_address(prefix)), wrong="That is not the token." if typed else ""),
        HTTPStatus.UNAUTHORIZED,
        content_type="text/html; charset=utf-8",
    )


def _welcome(name: str, cookie: str, prefix: str) -> Response:
    """Give the cookie, and send the browser to the same page without the token in its address."""
    response = Response("", HTTPStatus.SEE_OTHER, {"Location": _address(prefix)})
    secure = request.is_secure or request.headers.get("X-Forwarded-Proto", "") == "https"  # else plain http has it too
    response.set_cookie(
        name, cookie, max_age=_COOKIE_DAYS * 86_400, path=prefix, httponly=True, samesite="Lax", secure=secure
    )
    return response


def _address(prefix: str) -> str:
    """The address of the request, without the token."""
    pairs = [(name, value) for name, value in request.args.items(multi=True) if name != "token"]
    return f"{prefix}{quote(request.path.lstrip('/'))}{f'?{urlencode(pairs)}' if pairs else ''}"


def _digest(token: str, purpose: str) -> str:
    """The name of the cookie, or what it holds: made of the token, which cannot be read from it.

    Dashboards of one machine share its cookies, whatever their ports: each has a name of its own.
    """
    return hmac.new(token.encode(), f"whorl {purpose}".encode(), hashlib.sha256).hexdigest()


def _same(text: str, secret: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(text.encode(), secret.encode())


def _names_this_machine(host: str) -> bool:
    """Whether a request was sent to an address or to localhost, and not to a name that somebody else may own."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True


def _refuse_host() -> Response:
    sentence = "Open http://127.0.0.1 with the port, or start whorl dashboard with a token to use another name.\n"
    return Response(sentence, HTTPStatus.FORBIDDEN, content_type=_TEXT)


_ASK = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>whorl</title><link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 32em; margin: 15vh auto; padding: 0 20px; }}
input, button {{ font: inherit; padding: 6px 10px; }}
</style></head>
<body><h1>whorl</h1>
<form method="post" action="{action}"><p><label for="token">The token of this dashboard</label></p>
<p><input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Open</button></p><p role="alert">{wrong}</p></form>
<p>It stands in the address that whorl dashboard printed, or in the file of its option --token-file.</p>
</body></html>
"""
