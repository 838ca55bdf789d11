"""Addresses to listen on: what --listen means, and why an address cannot be used."""

from __future__ import annotations

import errno
import socket

from ..errors import InputError


def address(text: str, example: str = "127.0.0.1:9500") -> tuple[str, int]:
    """Host and port of "127.0.0.1:9500", "[::1]:9500" or ":9500" (all addresses). Raises InputError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 65535 or ("]" in port):
        raise InputError(f"--listen {text!r} is no address: write HOST:PORT, as {example}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InputError(f"--listen {text!r} is no address: write an IPv6 address in brackets, as [::1]:9500")
    return host, int(port)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError where that is not possible."""
    try:
        family, _, _, _, full = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(full[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise InputError(f"--listen: nothing is known of the host {host!r}: give an address of this machine") from error
    except OSError as error:
        where = f"{host or 'every address'}, port {port}"
        raise InputError(f"cannot listen on {where}: {_why(error)}") from error


def _why(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there; choose another port with --listen, or stop that program"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; choose another with --listen"
        case errno.EACCES | errno.EPERM:
            return "this user may not; choose a port above 1023 with --listen"
    return f"{error.strerror or error}; choose another address with --listen"
