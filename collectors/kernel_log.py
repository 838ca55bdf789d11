"""What the kernel's log tells of GPUs: XIDs, and boards that fell off the bus, also where NVML answers nobody."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.events import Event
from ..store.vocabulary import EventKind
from .backend import Aside
from .clock import Clock, SystemClock

if TYPE_CHECKING:
    from .backend import Device

FALLEN = 79
_XIDS = {  # the common ones, in words; NVIDIA's "XID Errors" lists them all
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping",
    64: "ECC page retirement or row remapping failed",
    74: "NVLink error",
    FALLEN: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}
KMSG = "/dev/kmsg"
_JOURNAL = ("journalctl", "-k", "-o", "json", "--output-fields=MESSAGE", "--no-pager")
_JOURNAL_S = 5.0
_BY_USERS = 8  # from this priority on, a process wrote the message, not the kernel
_READ_BYTES = 16_384  # more than the longest record of the kernel, of which a read gives one
_MOST_READS = 1_000  # of a look: some ms; the kernel keeps the rest for the next one
_EVERY_READ = 1_000_000
_MOST_LINE = 65_536  # bytes of a line that has no end yet
_MOST_ALIKE = 10  # events of one GPU and code of a look
_LOST_AGAIN_NS = 3_600_000_000_000  # every attempt to open a dead GPU is a line

_ADDRESS = r"(?:PCI:)?((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}\): ([0-9]{{1,5}})\b")
_GPU = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_ADDRESS}\b:?(.*)", re.DOTALL)
_UUID = re.compile(r" (GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_FALLEN, _NOT_STARTED = re.compile(r"fallen\s+off\s+the\s+bus"), "RmInitAdapter failed"
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")  # how /dev/kmsg spells a byte that is no plain text


def xid_event(gpu: str | None, code: int, *, ts_ns: int | None = None, pci_bus_id: str | None = None) -> Event:
    """An XID of a GPU (its UUID, and where on its node it is) as an event; without a time, it happened now."""
    meaning = _XIDS.get(code, "see NVIDIA's list of XID errors")
    return Event(EventKind.XID, gpu, f"XID {code}: {meaning}", ts_ns=ts_ns, pci_bus_id=pci_bus_id, code=code)


def text_in(path: Path) -> str:
    """What a small file of the kernel holds; "" where it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def bus_address(text: str | None) -> str | None:
    """A PCI address as NVML spells it, `00000000:3B:00.0`, from any spelling of one; None where it is none."""
    parts = (text or "").removeprefix("PCI:").partition(".")[0].split(":")
    try:
        domain, bus, device = [int(part, 16) for part in (["0"] * (3 - len(parts)) + parts)]
    except ValueError:
        return None
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


@dataclass
class _Announcements:
    """Reads messages as events. `uuids` are those that the log itself names, by PCI address."""

    uuids: dict[str, str] = field(default_factory=dict)

    def event(self, message: str, ts_ns: int) -> Event | None:
        """The XID or the loss that a message tells of; None for any other message."""
        if xid := _XID.match(message):
            address = bus_address(xid[1])
            uuid = self.uuids.get(address or "")
            return xid_event(uuid, int(xid[2]), ts_ns=ts_ns, pci_bus_id=address)
        gpu = _GPU.match(message)
        address = None if gpu is None else bus_address(gpu[1])
        if gpu is None or address is None:
            return None
        if uuid_match := _UUID.match(gpu[2]):
            self.uuids[address] = uuid_match[1]
        if _FALLEN.search(gpu[2]):
            reason = "the GPU has fallen off the bus"
        elif _NOT_STARTED in gpu[2]:
            reason = "the driver cannot start the GPU"
        else:
            return None
        detail = f"{reason}, says the kernel's log"
        return Event(EventKind.LOST, self.uuids.get(address), detail, ts_ns=ts_ns, pci_bus_id=address)


def _message(line: bytes, ahead_ns: int) -> tuple[str, int] | None:
    """A line of /dev/kmsg or of journalctl as JSON: its text, and when, UTC in ns.

    `ahead_ns`: of the wall clock before the steady one, by which the kernel tells times.
    """
    if b"NVRM: " not in line:
        return None
    try:
        if line.startswith(b"{"):
            entry = json.loads(line)
            return str(entry["MESSAGE"]), int(entry["__REALTIME_TIMESTAMP"]) * 1000
        head, _, text = line.decode(errors="replace").partition(";")
        priority, _, stamp_us = head.split(",")[:3]
        if int(priority) >= _BY_USERS:
            return None
        return _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text), int(stamp_us) * 1000 + ahead_ns
    except (ValueError, LookupError, TypeError):
        return None  # a line that was cut short, or none of the kernel's


def _read_lines(file: int, tail: bytes, *, most: int) -> tuple[list[bytes], bytes]:
    """The lines that are there for reading without waiting, by so many reads at most, and the beginning of the next.

    `tail` is that beginning at the read before; `file` is -1 where there is nothing to read.
    """
    lines: list[bytes] = []
    for _ in range(most if file >= 0 else 0):
        try:
            content = os.read(file, _READ_BYTES)
        except BrokenPipeError:  # the kernel wrote over messages that nobody had read: the next read goes on
            continue
        except OSError:  # there is nothing more now, or for good
            break
        if not content:
            break
        *whole, tail = (tail + content).split(b"\n")
        lines += whole
        tail = tail if len(tail) < _MOST_LINE else b""
    return lines, tail


def _open(path: str | None) -> int:
    return os.open(path or KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class KernelLog(Aside):
    """The kernel's log from now on. Where this user may not read /dev/kmsg, journald's copy of it is read.

    Nothing waits: `look` reads what is there. `readable` says whether there is anything to read.
    """

    interval_s = 2.0

    def __init__(self, path: str | None = None, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._child: subprocess.Popen[bytes] | None = None
        self.readable = True
        """Whether this user may read the kernel's log."""
        self._reader = _Announcements()
        self._lost_at: dict[str, int] = {}  # by PCI address, UTC
        self._since_ns = self._clock.wall()
        self._tail = b""
        try:
            self._file = _open(path)
            with contextlib.suppress(OSError):  # a pipe has no end to go to
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._file = self._follow_journal()
            self.readable = self._child is not None

    def _follow_journal(self) -> int:
        program = shutil.which(_JOURNAL[0])
        if program is None:
            return -1
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(  # noqa: S603 - constant arguments
                [program, *_JOURNAL[1:], "-f", "-n", "0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the collector
            )
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
            return self._child.stdout.fileno()
        return -1

    def look(self, devices: Sequence[Device]) -> list[Event]:
        """What the log told since the last call, with the GPU's key where `devices` or the log itself name it."""
        alike: dict[tuple[str | None, int | None], list[Event]] = {}
        now_ns = self._clock.wall()
        ahead_ns = now_ns - self._clock.steady()
        lines, self._tail = _read_lines(self._file, self._tail, most=_MOST_READS)
        whole = [device for device in devices if lines and device.parent is None]
        keys = {bus_address(device.row.get("pci_bus_id")): device for device in whole}
        for message, utc_ns in filter(None, (_message(line, ahead_ns) for line in lines)):
            # The kernel's own clock drifts by seconds in weeks; the message came between the last look and this one.
            event = self._reader.event(message, min(max(utc_ns, self._since_ns), now_ns))
            if event is None or not self._is_new(event, event.pci_bus_id or "", event.ts_ns or 0):
                continue
            if (device := keys.get(event.pci_bus_id)) is not None:
                event = replace(event, gpu=device.gpu, pci_bus_id=device.row["pci_bus_id"])
            alike.setdefault((event.pci_bus_id, event.code), []).append(event)
        self._since_ns = now_ns
        events = [event for group in alike.values() for event in group[:_MOST_ALIKE]]
        return events + [
            replace(group[-1], n=more, detail=f"{group[-1].detail}; {more} more at that time")
            for group in alike.values()
            if (more := len(group) - _MOST_ALIKE) > 0
        ]

    def _is_new(self, event: Event, address: str, ts_ns: int) -> bool:
        """Whether it is more than another line about a GPU that fell off the bus."""
        if event.kind is EventKind.XID and event.code != FALLEN:
            return True
        before = self._lost_at.get(address)
        if event.kind is EventKind.LOST and before is not None and ts_ns - before < _LOST_AGAIN_NS:
            return False
        self._lost_at[address] = ts_ns
        return True

    def close(self) -> None:
        """Stop reading."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        elif self._file >= 0:
            os.close(self._file)
        self._child, self._file = None, -1


def lost_boards(path: str | None = None) -> list[Event]:
    """The boards that fell off the bus, or could not be started, since this machine booted: the last event of each."""
    reader, boards = _Announcements(), dict[str, Event]()
    now_ns = SystemClock.wall()
    ahead_ns = now_ns - SystemClock.steady()
    for message, utc_ns in filter(None, (_message(line, ahead_ns) for line in _boot_lines(path))):
        event = reader.event(message, min(utc_ns, now_ns))
        if event is not None and event.pci_bus_id is not None and event.code in (None, FALLEN):
            boards[event.pci_bus_id] = event
    return [replace(event, gpu=reader.uuids.get(address)) for address, event in sorted(boards.items())]


def name_lost_boards(path: str | None = None) -> str:
    """What the kernel's log says of `lost_boards`, to be put behind a sentence without a full stop; "" for nothing."""
    boards = [
        f"GPU {event.pci_bus_id}{f' ({event.gpu})' if event.gpu else ''} fell off the bus or did not start, "
        f"{datetime.fromtimestamp((event.ts_ns or 0) // 10**9, UTC):%Y-%m-%d %H:%M} UTC"
        for event in lost_boards(path)
    ]
    return f"; the kernel's log says: {'; '.join(boards)}" if boards else ""


def _boot_lines(path: str | None) -> list[bytes]:
    try:
        file = _open(path)
    except OSError:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(  # noqa: S603 - constant arguments
                [*_JOURNAL, "-b"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_JOURNAL_S, check=False
            )
            return done.stdout.splitlines()
        return []
    lines, _ = _read_lines(file, b"", most=_EVERY_READ)
    os.close(file)
    return lines
