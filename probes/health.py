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

import numpy as np
from numpy.typing import NDArray

from ..collectors.backend import Status
from ..errors import InputError
from ..store.metrics import METRICS, ROW

COUNTED = (
    "ecc_uncorrected", "ecc_uncorrected_lifetime", "row_remap_failed", "sram_errors_exceeded", "inforom_valid",
    "recovery_action", "fabric_state", "fabric_error", "remapped_rows_uncorrected", "retired_pages_uncorrected",
    "row_remap_pending", "retired_pages_pending", "remapped_rows_corrected", "retired_pages_corrected",
    "nvlink_recoveries", "nvlink_crc_errors", "nvlink_replays", "pcie_width", "pcie_generation_max", "pcie_replays",
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


class DriverHealth:
    """The health of a GPU of this node by NVML, by its UUID; of a MIG instance that of the whole GPU.

    Raises InputError where the driver cannot be reached, or does not show the GPU.
    """

    def __init__(self, gpu: str) -> None:
        from ..collectors.nvml_driver import answer_of, status_of
        from ..collectors.nvml_reader import Reader

        try:
            import pynvml as nv

            nv.nvmlInit()
            handle = nv.nvmlDeviceGetHandleByUUID(gpu)
        except ImportError as error:
            raise InputError("the NVML bindings are not installed: pip install nvidia-ml-py") from error
        except nv.NVMLError as error:
            raise InputError(f"{gpu}: NVML tells nothing of it: {error}") from error
        if answer_of(nv.nvmlDeviceIsMigDeviceHandle, handle):
            handle = answer_of(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
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
        known = np.array([statuses[row] == Status.OK for row in _ROWS])
        self._last = np.where(known, np.array([values[row] for row in _ROWS], np.float64), self._last)
        xids = []
        while self._events is not None and (event := answer_of(nv.nvmlEventSetWait_v2, self._events, 0)) is not None:
            xids.append(int(event.eventData))
        return GpuHealth(self._last, xids)
