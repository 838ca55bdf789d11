"""How the dashboard can be reached: with which token, under which prefix, within which limits."""

from __future__ import annotations

import re
import secrets
import stat
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..serving import Application, Limits

LIMITS = Limits(connections=256, body_bytes=16 << 20, threads=8)
"""A request may name every GPU of a large fleet, brushed."""
_SHORTEST = 16
_PREFIX = re.compile(r"/([A-Za-z0-9._~-]+/)*")


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
            f"--listen: other machines reach {where}, and so everybody there could read the store: leave out "
            "--no-token, or listen on 127.0.0.1 and use ssh -L"
        )


def _only_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_prefix(application: Application, prefix: str) -> Application:
    """The application for requests with the prefix in their path and without: some proxies remove it, others do not."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if prefix != "/" and (path + "/").startswith(prefix):
            environ = {**environ, "PATH_INFO": "/" + path.removeprefix(prefix[:-1]).lstrip("/")}
        return application(environ, start)

    return answer
