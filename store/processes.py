"""Processes, as files name them: which one writes, and whether it lives.

A process number means something within one boot of one machine and one PID namespace only; a file's name carries all
three.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import zlib
from pathlib import Path


def host() -> str:
    """This host's name, as file names carry it."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


@functools.cache
def pid_namespace() -> str:
    """This boot of this machine and this PID namespace, as eight hexadecimal digits.

    Host names do not tell that: containers share their host's name and have processes of their own.
    """
    known = ""
    with contextlib.suppress(OSError):  # no /proc: the host's name has to do
        known += Path("/proc/sys/kernel/random/boot_id").read_text()
        known += str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(known.encode()):08x}"


def owner() -> str:
    """This process, in the names of files that it may leave behind."""
    return f"{host()}-{pid_namespace()}-{os.getpid()}"


def owner_alive(name: str) -> bool | None:
    """Whether the process at the start of a name lives; None where that cannot be told from here."""
    where, _, rest = name.partition("-")
    namespace, _, rest = rest.partition("-")
    pid = rest.partition("-")[0]
    if (where, namespace) != (host(), pid_namespace()) or not pid.isdigit():
        return None
    return alive(int(pid))


def alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
