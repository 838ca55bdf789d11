"""GPUs that should be on this node and that the driver does not show: events `absent`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.events import Event
from ..store.vocabulary import EventKind
from .clock import Clock, SystemClock
from .kernel_log import bus_address

if TYPE_CHECKING:
    from .backend import Device
    from .node_memory import NodeHistory

_AGAIN_NS = 3_600_000_000_000
_NVIDIA = "0x10de"
_DISPLAY, _COMPUTE = "0x0300", "0x0302"  # classes of PCI devices that are GPUs
_DRIVER = "nvidia"


class ExpectedGpus:
    """Compares the GPUs that the driver shows with those on the PCI bus and those that the store expects here.

    At the start and once an hour, each that is missing is an event `absent`, once in a run. `root` is where /sys, /proc
    and /dev are. A board that another driver has, as one that is given to a virtual machine, and one whose device file
    this process may not use, as in a job that has some GPUs of the node, is not missed.
    """

    def __init__(self, history: NodeHistory, *, root: str = "/", clock: Clock | None = None) -> None:
        self._history, self._root, self._clock = history, Path(root), clock or SystemClock()
        self._due_ns = 0  # by the steady clock
        self._missed: set[str | None] = set()  # keys or PCI addresses of which there is an event

    def look(self, devices: Sequence[Device]) -> list[Event]:
        """The GPUs that are missing beside `devices`, which are all that the driver ever showed in this run."""
        now_ns = self._clock.steady()
        if self._history.loading or now_ns < self._due_ns:
            return []
        self._due_ns = now_ns + _AGAIN_NS
        gpus = {device.gpu for device in devices}
        addresses = {bus_address(device.row.get("pci_bus_id")) for device in devices}
        on_bus = dict(self._boards())
        keys = {bus_address(at): gpu for gpu, at in self._history.expected.items()}
        missing: list[tuple[str | None, str | None, str]] = [
            (keys.get(address) or uuid, address, "is on the PCI bus, and the driver does not show it")
            for address, (uuid, usable) in on_bus.items()
            if usable and address not in addresses
        ]
        for gpu, pci_bus_id in self._history.expected.items():
            address = bus_address(pci_bus_id)
            if gpu not in gpus and (address not in on_bus or address in addresses):
                place = "another GPU is in its place" if address in addresses else "no GPU is in its place"
                missing.append((gpu, address, f"is expected on this node, and {place}"))
        events = [
            Event(EventKind.ABSENT, key, f"the GPU {detail}", pci_bus_id=address)
            for key, address, detail in missing
            if (key or address) not in self._missed
        ]
        self._missed = {key or address for key, address, _ in missing}
        return events

    def close(self) -> None:
        """Nothing is open."""

    def _boards(self) -> Iterator[tuple[str, tuple[str | None, bool]]]:
        """The GPUs on the bus by address: the UUID that the driver gave it, and whether NVML should show it to us."""
        folder = self._root / "sys/bus/pci/devices"
        for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
            address = bus_address(name)
            if address is None or not name.endswith(".0") or _text(folder / name / "vendor") != _NVIDIA:
                continue
            if _text(folder / name / "class")[:6] not in (_DISPLAY, _COMPUTE) or (folder / name / "physfn").exists():
                continue  # it is another device, or a part of a GPU for a virtual machine
            driver = folder / name / "driver"
            if not driver.is_symlink():  # the driver refused it, or fell over it
                yield address, (None, True)
            elif driver.readlink().name == _DRIVER:
                yield address, self._of_driver(name)
            else:
                yield address, (None, False)

    def _of_driver(self, name: str) -> tuple[str | None, bool]:
        """UUID, and whether this process may use it, of a board that NVIDIA's driver has."""
        about = _text(self._root / "proc/driver/nvidia/gpus" / name / "information")
        lines = dict(line.partition(":")[::2] for line in about.splitlines())
        uuid, minor = (lines.get(key, "").strip() for key in ("GPU UUID", "Device Minor"))
        usable = minor.isdecimal() and os.access(self._root / f"dev/nvidia{minor}", os.R_OK | os.W_OK)
        return (uuid if uuid and "?" not in uuid else None), usable


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
