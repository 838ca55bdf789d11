"""This process and others: which one writes, in names of files, and whether it lives; and the end of one.

A process number is valid only within one boot of one machine and one PID namespace. A file's name holds all three.
A number may be given again, also all of them to a container that starts again, so the name also holds when the process
began.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import zlib
from pathlib import Path

_DRAWN = os.urandom(4).hex()  # where the system does not say when a process began


def host() -> str:
    """This host's name in the form that file names use."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


@functools.cache
def pid_namespace() -> str:
    """This boot of this machine and this PID namespace, as eight hexadecimal digits.

    Host names are not enough: containers may share their host's name and have their own processes.
    """
    boot = ""
    with contextlib.suppress(OSError):  # no /proc: only the host's name is left
        boot += Path("/proc/sys/kernel/random/boot_id").read_text()
        boot += str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(boot.encode()):08x}"


def owner() -> str:
    """This process, in the names of files that it may leave behind."""
    return f"{host()}-{pid_namespace()}-{os.getpid()}-{began(os.getpid()) or _DRAWN}"


def owner_alive(name: str) -> bool | None:
    """Whether the process named at the start of a file's name lives; None if this host cannot know."""
    host_name, namespace, pid, start = [*name.split("-"), "", "", ""][:4]
    if (host_name, namespace) != (host(), pid_namespace()) or not pid.isdigit():
        return None
    if not alive(int(pid)):
        return False
    living_start = began(int(pid)) or (_DRAWN if int(pid) == os.getpid() else None)
    return living_start in (None, start)  # else an earlier process had this number


def began(pid: int) -> str | None:
    """When a process began, in ticks since the machine started, as hexadecimal digits; None where nobody says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{int(fields[19]):x}"
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def end_with_parent() -> None:
    """End this process when the one that started it was killed: what it computes is for nobody then."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
