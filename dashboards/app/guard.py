"""Who is let in: the token, the cookie that stands for it, and what a browser may do with the pages."""

from __future__ import annotations

import hashlib
import hmac
from html import escape
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from dash.exceptions import DependencyException
from flask import Response, request

if TYPE_CHECKING:
    from flask import Flask

ASSETS = Path(__file__).parent / "assets"
_ASKING = "/_dash-update-component"
_DAYS = 7
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


def install(server: Flask, *, token: str | None, prefix: str) -> None:
    """Let a request through only if it may, and tell the browser what the pages may do.

    `token`: what every request must bring; None lets every request through that names this machine.
    """

    @server.before_request
    def check() -> Response | None:
        if token is None:
            return None if _names_this_machine(request.host) else _refuse_host()
        return _check_token(token, prefix)

    @server.after_request
    def add_headers(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @server.errorhandler(DependencyException)
    def refuse_path(_: Exception) -> Response:
        """Dash raises this for a file that is none of its own."""
        return Response("there is no such file\n", HTTPStatus.NOT_FOUND, content_type="text/plain; charset=utf-8")


def refuse_strange_questions(server: Flask, callbacks: dict[str, Any]) -> None:
    """Refuse the questions that no page asks, without a word in the log: Dash would fail in the middle of them.

    `callbacks`: Dash's map of all callbacks, by the name of what they fill.
    """

    @server.before_request
    def check() -> Response | None:
        if request.method != "POST" or request.path != _ASKING:
            return None
        try:
            usual = _is_usual(callbacks, request.get_json(silent=True))
        except (LookupError, TypeError, RecursionError):
            usual = False
        return None if usual else Response("no page asks this\n", HTTPStatus.BAD_REQUEST, content_type="text/plain")


def _is_usual(callbacks: dict[str, Any], question: Any) -> bool:
    """Whether a page asks this. Raises LookupError or TypeError where it has not even the parts of a question."""
    callback = callbacks[question["output"]]
    several = isinstance(callback["output"], list)
    outputs = [] if callback["no_output"] else question["outputs"] if several else [question["outputs"]]
    return (
        "callback" in callback  # the others run in the browser
        and len(outputs) == (len(callback["output"]) if several else 1)
        and all(isinstance(output[word], str) for output in outputs for word in ("id", "property"))
        and all(
            len(question.get(side, [])) == len(callback[side])
            and all(map(_fits, question.get(side, []), callback[side]))
            for side in ("inputs", "state")
        )
        and all(isinstance(name, str) for name in question.get("changedPropIds", []))
    )


def _fits(value: Any, wanted: dict[str, str]) -> bool:
    """Whether a property of a component that came with a question is the one that the callback takes."""
    if wanted["id"].startswith("{"):  # of any number of components
        return isinstance(value, list) and all(
            isinstance(part["id"], dict) and part["property"] == wanted["property"] for part in value
        )
    return all(value[word] == wanted[word] for word in ("id", "property"))


def _check_token(token: str, prefix: str) -> Response | None:
    name, stands_for_it = f"whorl-{_digest(token, 'name')[:8]}", _digest(token, "dashboard")
    if _same(request.cookies.get(name, ""), stands_for_it):
        return _welcome(name, stands_for_it, prefix) if "token" in request.args else None
    given = request.form.get("token", "") if request.method == "POST" else request.args.get("token", "")
    if given and _same(given.strip(), token):
        return _welcome(name, stands_for_it, prefix)
    return Response(
        _ASK.format(action=escape(_asked(prefix)), wrong="That is not the token." if given else ""),
        HTTPStatus.UNAUTHORIZED,
        content_type="text/html; charset=utf-8",
    )


def _welcome(name: str, cookie: str, prefix: str) -> Response:
    """Give the cookie, and send the browser to the same page without the token in its address."""
    response = Response("", HTTPStatus.SEE_OTHER, {"Location": _asked(prefix)})
    response.set_cookie(
        name, cookie, max_age=_DAYS * 86_400, path=prefix, httponly=True, samesite="Lax", secure=_is_secure()
    )
    return response


def _asked(prefix: str) -> str:
    """The address that was asked for, without the token."""
    rest = [(name, value) for name, value in request.args.items(multi=True) if name != "token"]
    return f"{prefix}{quote(request.path.lstrip('/'))}{f'?{urlencode(rest)}' if rest else ''}"


def _is_secure() -> bool:
    """Whether the browser reached this over https, so that the cookie may be kept from plain http."""
    return request.is_secure or request.headers.get("X-Forwarded-Proto", "") == "https"


def _digest(token: str, purpose: str) -> str:
    """The name of the cookie, or what it holds: made of the token, which cannot be read from it.

    Dashboards of one machine share its cookies, whatever their ports: each has a name of its own.
    """
    return hmac.new(token.encode(), f"whorl {purpose}".encode(), hashlib.sha256).hexdigest()


def _same(given: str, known: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode(), known.encode())


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
    said = "Open http://127.0.0.1 with the port, or start whorl dashboard without --no-token to use another name.\n"
    return Response(said, HTTPStatus.FORBIDDEN, content_type="text/plain; charset=utf-8")


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
