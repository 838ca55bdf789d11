"""The power of this node, read beside its GPUs: rows of the table `node_power`.

A meter is a small class. `read` gives what it shows now, and may take long; `reason` says why it shows nothing here,
for `whorl doctor`. Each is an aside of its own: neither a tick of the GPUs nor another meter waits for a slow BMC.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..store.node_power import dcmi_watts
from ..store.vocabulary import PowerMeter, PowerOf
from .backend import Aside
from .clock import Clock, SystemClock
from .kernel_log import text_in

if TYPE_CHECKING:
    from ..store.events import Event
    from .backend import Device
    from .job_labels import RowRecorder

LEAST_S = 10.0
"""No meter is asked more often: a BMC takes a good part of a second to answer."""
_PATIENCE_S = 5.0
_DCMI = ("ipmitool", "dcmi", "power", "reading")
_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")  # where ipmitool looks for the BMC
_FAILURES, _REST_NS = 3, 600_000_000_000  # so many in a row, and it is left alone for so long


@dataclass(frozen=True, slots=True)
class PowerReading:
    """What one meter showed at one time: the columns of `node_power`, but for the node's; `ts` in ns, UTC."""

    ts: int
    source: PowerMeter
    covers: PowerOf
    part: str | None = None
    power_mw: int | None = None
    window_ms: int | None = None
    energy_mj: int | None = None


class MeterReader(Protocol):
    """A meter of the node; see the module's text."""

    reason: str | None

    def read(self) -> list[PowerReading]: ...


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(text_in(path))
    return None


class RaplCounters:
    """The energy counters of CPU packages and their memory, from Linux' powercap.

    The kernel's counter of a zone wraps after minutes or hours; what is given goes on. It begins anew with the process.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self._zones: dict[Path, tuple[PowerOf, str | None, int]] = {}  # with the number at which the kernel's wraps
        self._last_uj: dict[Path, tuple[int, int]] = {}  # the kernel's number, and the sum without wraps
        self.reason: str | None = "the kernel has none (no /sys/class/powercap/intel-rapl:*)"
        for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
            kind, range_uj = self._kind_of(zone), _number(zone / "max_energy_range_uj")
            if kind is not None and _number(zone / "energy_uj") is not None and range_uj is not None:
                self._zones[zone] = *kind, range_uj
            elif kind is not None:
                self.reason = "only root may read them (/sys/class/powercap/intel-rapl:*/energy_uj)"
        if self._zones:
            self.reason = None

    @staticmethod
    def _kind_of(zone: Path) -> tuple[PowerOf, str | None] | None:
        """What a zone counts and which package it is; None for a part of a package, which would count twice."""
        name = text_in(zone / "name")
        if name == "psys":
            return PowerOf.PLATFORM, None
        if name == "dram":
            return PowerOf.DRAM, text_in(zone.parent / zone.name.rpartition(":")[0] / "name").removeprefix("package-")
        return (PowerOf.CPU, name.removeprefix("package-")) if name.startswith("package-") else None

    def read(self) -> list[PowerReading]:
        """The counters now, with one time, as they add up; without those that cannot be read any more."""
        readings, stamp = [], self._clock.wall()
        for zone, (covers, part, range_uj) in self._zones.items():
            if (now_uj := _number(zone / "energy_uj")) is not None:
                last_uj, sum_uj = self._last_uj.get(zone, (now_uj, now_uj))
                sum_uj += now_uj - last_uj + (range_uj if now_uj < last_uj else 0)
                self._last_uj[zone] = now_uj, sum_uj
                readings.append(PowerReading(stamp, PowerMeter.RAPL, covers, part, energy_mj=sum_uj // 1000))
        return readings


class AcpiMeter:
    """The power meter of ACPI, as Linux has it under hwmon."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self._file: Path | None = None
        self.reason: str | None = "the kernel has none (no power_meter in /sys/class/hwmon)"
        # Until Linux 6.13 the files of a chip are those of its device.
        for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
            for chip in (folder, folder / "device"):
                if text_in(chip / "name") == "power_meter":
                    self.reason = (
                        "it is there and gives no number: its firmware does not answer, or only root may read it"
                    )
                    files = (chip / name for name in ("power1_average", "power1_input"))
                    self._file = next((file for file in files if _number(file) is not None), self._file)
        if self._file is not None:
            self.reason = None

    def read(self) -> list[PowerReading]:
        """The power now; nothing where the firmware does not answer."""
        power_mw = None if self._file is None else (_number(self._file) or 0) // 1000
        if self._file is None or not power_mw:
            return []
        window_ms = _number(self._file.with_name(f"{self._file.name}_interval")) or None
        return [PowerReading(self._clock.wall(), PowerMeter.HWMON, PowerOf.NODE, None, power_mw, window_ms)]


class DcmiPower:
    """The power that the node's BMC shows, asked through `ipmitool dcmi power reading`."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self._failures, self._rest_until = 0, 0  # steady ns
        devices = [root / device for device in _DEVICES]
        self._program = shutil.which(_DCMI[0])
        self.reason: str | None = None
        if not any(device.exists() for device in devices):
            self.reason = "this node shows no BMC (no /dev/ipmi0; the module ipmi_devintf makes it)"
        elif not any(os.access(device, os.R_OK | os.W_OK) for device in devices):
            self.reason = "only root may ask the BMC (/dev/ipmi0)"
        elif self._program is None:
            self.reason = "ipmitool is not installed"

    def read(self) -> list[PowerReading]:
        """The power now, dated in the middle of the call; nothing where the BMC does not say it in time.

        After three failures in a row it is left alone for ten minutes.
        """
        began = self._clock.steady()
        if self._program is None or began < self._rest_until:
            return []
        watts = None
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            answer = subprocess.run(  # noqa: S603 - constant arguments
                [self._program, *_DCMI[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=True,
                start_new_session=True,  # Ctrl-C is for the collector
            )
            watts = dcmi_watts(answer.stdout)
        ended = self._clock.steady()
        self._failures = self._failures + 1 if watts is None else 0
        if self._failures >= _FAILURES:
            self._rest_until = ended + _REST_NS
        if watts is None:
            return []
        stamp = self._clock.wall() - (ended - began) // 2
        return [PowerReading(stamp, PowerMeter.IPMI, PowerOf.NODE, power_mw=1000 * watts)]


METERS: dict[str, Callable[[Path, Clock], MeterReader]] = {
    "RAPL": RaplCounters,
    "ACPI power meter": AcpiMeter,
    "IPMI": DcmiPower,
}
"""The meters of a node by name. `root` is where /sys and /dev are."""


def node_meters(root: str = "/", clock: Clock | None = None) -> dict[str, MeterReader]:
    """All meters by name, also those that show nothing here."""
    return {name: meter(Path(root), clock or SystemClock()) for name, meter in METERS.items()}


class NodePower(Aside):
    """Stores what a meter of a node shows, every `interval_s` but not more often than every `LEAST_S`."""

    def __init__(
        self, recorder: RowRecorder, meter: MeterReader, *, cluster: str, node: str, interval_s: float = LEAST_S
    ) -> None:
        self._recorder, self._meter = recorder, meter
        self._cluster, self._node = cluster, node
        self.interval_s = max(interval_s, LEAST_S)

    def look(self, devices: Sequence[Device]) -> list[Event]:  # noqa: ARG002 - of the node, not of its GPUs
        """Read the meter and store what it shows. There are no events."""
        if readings := self._meter.read():
            rows = [{"cluster": self._cluster, "node": self._node} | asdict(reading) for reading in readings]
            self._recorder.append_rows({name: [row[name] for row in rows] for name in rows[0]}, "node_power")
        return []
