"""Which engine is read and how it is reached, and what its refusals mean for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError

if TYPE_CHECKING:
    from .bindings import Bindings

PORT = 5555
LOCAL, LOCAL_SOCKET = f"127.0.0.1:{PORT}", "/tmp/nv-hostengine"  # noqa: S108 - where the engine puts it
_PATIENCE_MS = 2000
_EMBEDDED = 1  # an engine that samples by itself

# DCGM's status codes
TIMEOUT, MISMATCH, NO_PERMISSION, LOST, RESET_REQUIRED = -11, -12, -17, -18, -19
NO_FUNCTION, GONE, NO_LIBRARY, DUPLICATE, REQUIRES_ROOT = -20, -21, -25, -26, -29
NO_MODULE, NO_PROFILING, IN_USE = -33, -36, -37


def code_of(error: BaseException) -> int:
    """DCGM's status code of an error that its bindings raised."""
    return int(getattr(error, "value", 0))


@dataclass(frozen=True)
class Target:
    """Which engine: that at HOST:PORT, or at a unix socket; with neither, this node's, else one within this process."""

    host: str | None = None
    socket: str | None = None

    def address(self) -> str | None:
        """HOST:PORT. Raises InputError where it is none."""
        if self.host is None:
            return None
        host, colon, port = self.host.rpartition(":")
        if not colon or self.host.endswith("]"):
            host, port = self.host, str(PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InputError(f"{self.host!r} is not the address of an engine: write HOST or HOST:PORT, as {LOCAL}")
        return f"{host}:{int(port)}"


@dataclass(frozen=True)
class Reached:
    """An engine that answers: its handle, and where it is."""

    handle: Any
    where: str
    embedded: bool


def reach(bindings: Bindings, target: Target) -> Reached:
    """An engine. Raises InputError where none answers."""
    address = target.address()
    if target.socket is not None:
        if not Path(target.socket).exists():
            raise InputError(
                f"there is no socket {target.socket}: start the engine with nv-hostengine -d, or use --host"
            )
        return _handle(bindings, target.socket, unixSocketPath=target.socket)
    if address is not None:
        return _handle(bindings, address, ipAddress=address)
    for where, known in (("ipAddress", LOCAL), ("unixSocketPath", LOCAL_SOCKET)):
        if where == "ipAddress" or Path(known).exists():
            try:
                return _handle(bindings, known, **{where: known})
            except _NoAnswerError:
                continue
    try:
        return _handle(bindings, "this process", opMode=_EMBEDDED)
    except InputError as error:
        raise InputError(f"no DCGM engine answers at {LOCAL}, and none can run within this process: {error}") from error


def reach_again(bindings: Bindings, where: str) -> Reached:
    """Another connection to the engine that was reached at `where`."""
    kind = "unixSocketPath" if where.startswith("/") else "ipAddress"
    return _handle(bindings, where, **{kind: where})


class _NoAnswerError(InputError):
    """Nothing answers there."""


def _handle(bindings: Bindings, where: str, **how: Any) -> Reached:
    embedded = "opMode" in how
    try:
        made = bindings.pydcgm.DcgmHandle(**how, **({} if embedded else {"timeoutMs": _PATIENCE_MS}))
    except bindings.error as error:
        kind = _NoAnswerError if code_of(error) in (GONE, TIMEOUT) else InputError
        raise kind(sentence(bindings, error, where)) from error
    # Its destructor would leave the engine whenever Python pleases, and wait for one that hangs: `close` leaves it.
    handle, made._handleCreated = made.handle, False
    return Reached(handle, where, embedded)


def sentence(bindings: Bindings, error: BaseException, where: str) -> str:
    """What an error of DCGM means for people, and what to do."""
    code = code_of(error)
    if code in (GONE, TIMEOUT):
        return (
            f"no DCGM engine answers at {where}: check the address, and that nv-hostengine runs there "
            "(systemctl status nvidia-dcgm)"
        )
    if code in (MISMATCH, NO_FUNCTION):
        return (
            f"the DCGM bindings in {bindings.where} (for library {bindings.version() or 'of unknown version'}) do not "
            f"fit the engine at {where}: give the bindings of the engine's version in WHORL_PYDCGM_PATH"
        )
    if code in (NO_PERMISSION, REQUIRES_ROOT):
        return f"this user may not use the DCGM engine at {where}: {error}; run as root, or ask for access to it"
    if code == NO_LIBRARY:
        return f"the DCGM engine at {where} misses a library: {error} (is an NVIDIA driver installed and loaded?)"
    return f"the DCGM engine at {where} refuses: {error} (code {code})"
