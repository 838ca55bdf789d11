"""The health of a GPU before and after its probes: what the driver counts, and the state that it tells.

    driver = DriverHealth(gpu)
    before = driver.read()
    ...                         # a probe runs
    changes = changes_between(before, driver.read())

A number that the driver does not tell is NaN, and is no change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..collectors.backend import Status
from ..store.metrics import METRICS, ROW
from ..store.vocabulary import reason_bit

if TYPE_CHECKING:
    from ..simulation.stepping import Readings

COUNTED = (
    "ecc_uncorrected", "ecc_uncorrected_lifetime", "row_remap_failed", "sram_errors_exceeded", "inforom_valid",
    "recovery_action", "fabric_state", "fabric_error", "remapped_rows_uncorrected", "retired_pages_uncorrected",
    "row_remap_pending", "retired_pages_pending", "remapped_rows_corrected", "retired_pages_corrected",
    "nvlink_recoveries", "nvlink_crc_errors", "nvlink_replays", "pcie_width", "pcie_width_max",
    "pcie_generation_max", "pcie_replays",
    "ecc_corrected", "ecc_corrected_lifetime",
)  # fmt: skip
"""Columns of `telemetry` that say how a GPU is, the worst first. A change of one is worth telling."""
_ROWS = [ROW[name] for name in COUNTED]


@dataclass(frozen=True)
class GpuHealth:
    """What the driver says of a GPU at one time."""

    values: NDArray[np.float64]
    """In the order of `COUNTED`; NaN where it does not tell."""
    xids: Sequence[int] = ()
    """Numbers of the XIDs that it announced since the reading before."""
    clock_reasons: int = 0
    """The driver's mask of why the clock has its value; 0 where it does not tell."""

    def value(self, name: str) -> float | None:
        """The value of a metric; None where the driver does not tell."""
        value = float(self.values[COUNTED.index(name)])
        return None if np.isnan(value) else value


@dataclass(frozen=True)
class HealthChange:
    """A metric that changed, or XIDs that came, without a metric."""

    metric: str | None
    before: float | None = None
    value: float | None = None
    code: int | None = None
    n: int | None = None

    @property
    def sentence(self) -> str:
        if self.metric is None:
            return f"the driver told of XID {self.code}" + (f" and {self.n - 1} more" if self.n and self.n > 1 else "")
        return f"{self.metric} was {self.before:g} before and is {self.value:g}"


def changes_between(before: GpuHealth | None, after: GpuHealth | None) -> list[HealthChange]:
    """What changed from one reading to the next, the worst first. A counter that fell was reset, and is no change."""
    if before is None or after is None:
        return []
    moved = np.flatnonzero(after.values != before.values)  # NaN differs from itself
    pairs = [(COUNTED[row], float(before.values[row]), float(after.values[row])) for row in moved.tolist()]
    changes = [
        HealthChange(name, was, value)
        for name, was, value in pairs
        if not np.isnan(was + value) and (value > was or METRICS[ROW[name]].kind != "counter")
    ]
    if after.xids:
        changes.insert(0, HealthChange(None, code=after.xids[-1], n=len(after.xids)))
    return changes


_RECOVERY = {1: "a reset", 2: "a reboot of the node", 3: "an end of peer traffic", 4: "a drain and a reset"}
_HELD_DOWN = ("hw_slowdown", "thermal_hardware", "power_brake")


def unfit_reasons(health: GpuHealth) -> list[str]:
    """Why a GPU should get no job by what its driver says, in a few words each; what it does not say is no reason."""
    value = health.value
    width, most, state, error = map(value, ("pcie_width", "pcie_width_max", "fabric_state", "fabric_error"))
    action = value("recovery_action")
    held_down = [name for name in _HELD_DOWN if health.clock_reasons & reason_bit(name)]
    reasons = {
        "a memory row could not be remapped": value("row_remap_failed"),
        "too many errors of on-chip memory": value("sram_errors_exceeded"),
        f"the driver asks for {_RECOVERY.get(int(action or 0), 'a recovery')}": action,
        "memory waits for a reset to be repaired": value("row_remap_pending") or value("retired_pages_pending"),
        "the InfoROM is corrupted": value("inforom_valid") == 0,
        "it has not joined the fabric of its NVSwitches": state in (1, 2),
        f"joining the fabric of its NVSwitches gave error {error or 0:g}": state == 4 or error,
        f"PCIe has {width or 0:g} of {most or 0:g} lanes": width is not None and most is not None and width < most,
        f"the clock is held down: {', '.join(held_down)}": held_down,
    }
    return [reason for reason, applies in reasons.items() if applies]


def simulated_health(readings: Readings, position: int) -> GpuHealth | None:
    """The health of a simulated GPU; None of one that is lost."""
    if readings.lost[position]:
        return None
    counted = [readings.values[name][position] if name in readings.values else np.nan for name in COUNTED]
    reasons = readings.values.get("clock_event_reasons")
    return GpuHealth(np.array(counted, np.float64), clock_reasons=0 if reasons is None else int(reasons[position]))


class DriverHealth:
    """The health of a GPU of this node by NVML, by its UUID; of a MIG instance that of the whole GPU.

    Raises InputError where the driver cannot be reached, DeviceError where it does not show the GPU.
    """

    def __init__(self, gpu: str) -> None:
        from ..collectors.nvml_driver import answer_of, open_library, status_of, whole_gpu
        from ..collectors.nvml_reader import Reader

        nv, handle = open_library(), whole_gpu(gpu)
        self._reader = Reader(handle)
        self._events = answer_of(nv.nvmlEventSetCreate)
        if self._events is not None:
            announces = status_of(nv.nvmlDeviceRegisterEvents, handle, nv.nvmlEventTypeXidCriticalError, self._events)
            self._events = self._events if announces == Status.OK else None
        self._last = np.full(len(COUNTED), np.nan)

    def read(self) -> GpuHealth:
        """The health now; of a number that is not read each time, or not told any more, the last one that is known."""
        import pynvml as nv

        from ..collectors.nvml_driver import answer_of

        values, statuses = self._reader.read(slow=True)
        answered = np.array([statuses[row] == Status.OK for row in _ROWS])
        self._last = np.where(answered, np.array([values[row] for row in _ROWS], np.float64), self._last)
        xids = []
        while self._events is not None and (event := answer_of(nv.nvmlEventSetWait_v2, self._events, 0)) is not None:
            xids.append(int(event.eventData))
        row = ROW["clock_event_reasons"]
        return GpuHealth(self._last, xids, values[row] if statuses[row] == Status.OK else 0)
