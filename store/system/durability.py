"""How often a journal is made durable: on every append on a local disk, every few seconds on a network file system."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

_NETWORK_S = 5.0

# `f_type` of statfs(2), from the file systems' own headers and the manual page.
_NETWORK = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x00C36400: "Ceph",
    0x19830326: "BeeGFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB 2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}


@dataclass(frozen=True, slots=True)
class Durability:
    """Seconds between flushes (0: flush at every append), and the reason in words."""

    seconds: float
    why: str

    def __str__(self) -> str:
        often = "every append is made durable" if self.seconds <= 0 else f"made durable every {self.seconds:g} s"
        return f"{often} ({self.why})"


def of_type(magic: int | None) -> Durability:
    """The default for a type of file system, by its number in statfs(2); None if the type is not known."""
    if magic is None:
        return Durability(0.0, "the type of the file system is not known")
    name = _NETWORK.get(magic & 0xFFFFFFFF)
    if name is None:
        return Durability(0.0, "the store lies on a local file system")
    return Durability(_NETWORK_S, f"the store lies on {name}, where making data durable is slow")


def of(path: Path, seconds: float | None = None) -> Durability:
    """The durability of a journal under `path`: so many seconds, or the default of its file system."""
    return of_type(_magic(path)) if seconds is None else Durability(max(0.0, seconds), "as requested")


def _magic(path: Path) -> int | None:
    """`f_type` of the file system of `path`, which Python's own statvfs does not give."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        content = ctypes.create_string_buffer(512)  # larger than any struct statfs; f_type, a long, comes first
        if libc.statfs(os.fsencode(path), content) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return ctypes.c_long.from_buffer(content).value
