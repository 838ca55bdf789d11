"""The settings of GPUs that whorl may change when it is asked to: the power limit, and a lock of the SM clock.

Every call of NVML that changes something of a GPU stands in this file. `probes.settings` uses it, which remembers
what there was and brings it back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pynvml as nv

from ..errors import DeviceError, InputError, WhorlError
from ..store.vocabulary import Outcome
from .nvml_driver import answer_of, driver_version, open_library, whole_gpu

_NEAR_MW = 1000  # a driver may round what it is given,
_SHOWN_S = 0.5  # and take a moment to show it
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_ROOT = "needs root (on Linux CAP_SYS_ADMIN, which root in a container usually lacks)"


class Controls:
    """A session with the driver in which settings are read and changed; a context manager.

    Raises InputError where the driver cannot be reached.
    """

    def __init__(self) -> None:
        open_library()
        self.driver: str | None = driver_version()
        """Version of the loaded driver; None where it does not tell."""

    def __enter__(self) -> Controls:
        return self

    def __exit__(self, *_: object) -> None:
        answer_of(nv.nvmlShutdown)

    def find(self, gpu: str) -> Control:
        """The settings of the GPU with a UUID. DeviceError where it is not here, InputError for a MIG instance."""
        try:
            handle = nv.nvmlDeviceGetHandleByUUID(gpu)
        except nv.NVMLError as error:
            if error.value in (nv.NVML_ERROR_NOT_FOUND, nv.NVML_ERROR_INVALID_ARGUMENT):
                raise DeviceError(f"{gpu}: the driver does not show this GPU here", gone=True) from error
            raise _refusal(gpu, "finding it", error) from error
        if answer_of(nv.nvmlDeviceIsMigDeviceHandle, handle):
            raise InputError(
                f"{gpu} is a MIG instance, but clocks and power limits belong to the whole GPU: turn MIG off, or "
                f"measure as it is set"
            )
        return Control(gpu, handle)


@dataclass(frozen=True)
class Control:
    """The settings of one GPU. Every method raises DeviceError where the GPU does not answer (`gone`: any more), and
    InputError where it has no such setting or this user may not change it."""

    gpu: str
    handle: Any

    def power_limit_mw(self) -> int:
        """The power limit that was set, mW."""
        return int(self._call("reading the power limit", "nvmlDeviceGetPowerManagementLimit"))

    def index(self) -> int:
        """Its number in `nvidia-smi`."""
        return int(self._call("reading its index", "nvmlDeviceGetIndex"))

    def default_power_limit_mw(self) -> int:
        """The power limit that it has where nobody sets another one, mW."""
        return int(self._call("reading the default power limit", "nvmlDeviceGetPowerManagementDefaultLimit"))

    def power_range_mw(self) -> tuple[int, int]:
        """The lowest and the highest power limit that this GPU can have, mW."""
        least, most = self._call("reading the range of the power limit", "nvmlDeviceGetPowerManagementLimitConstraints")
        return int(least), int(most)

    def check_power_limit(self, milliwatt: int) -> None:
        """Raises InputError, with the range, for a power limit that this GPU cannot have."""
        least, most = self.power_range_mw()
        if not least <= milliwatt <= most:
            raise InputError(
                f"{self.gpu}: a power limit of {milliwatt / 1000:g} W is not allowed; it accepts {least / 1000:g} to "
                f"{most / 1000:g} W"
            )

    def set_power_limit(self, milliwatt: int) -> None:
        """Set the power limit, and look whether the driver has it."""
        self._call("setting the power limit", "nvmlDeviceSetPowerManagementLimit", milliwatt)
        last = time.monotonic() + _SHOWN_S
        while not same_limit(shown := self.power_limit_mw(), milliwatt) and time.monotonic() < last:
            time.sleep(0.05)
        if not same_limit(shown, milliwatt):
            raise DeviceError(
                f"{self.gpu}: the driver took a power limit of {milliwatt / 1000:g} W and shows {shown / 1000:g} W"
            )

    def restore_power_limit(self, before_mw: int, set_mw: int) -> list[str]:
        """Set the power limit of before again where it is the one that was set; what there is to tell."""
        limit_mw = self.power_limit_mw()
        if same_limit(limit_mw, before_mw):
            return []  # it was not changed yet, or the GPU was reset
        if not same_limit(limit_mw, set_mw):
            return [f"{self.gpu}: somebody else set the power limit since: it stays at {limit_mw / 1000:g} W"]
        self.check_power_limit(before_mw)  # who wrote the restore file may have been wrong
        self.set_power_limit(before_mw)
        return [f"{self.gpu}: the power limit is {before_mw / 1000:g} W again"]

    def memory_clocks(self) -> list[int]:
        """The memory clocks that it has, ascending, MHz; none where the driver lists none."""
        return sorted(self._call("listing its memory clocks", "nvmlDeviceGetSupportedMemoryClocks"))

    def clocks(self) -> list[int]:
        """The SM clocks that it can be locked to, ascending, MHz. InputError where the driver lists none."""
        memory = self.memory_clocks()
        clocks = self._call("listing its clocks", "nvmlDeviceGetSupportedGraphicsClocks", memory[-1]) if memory else []
        if not clocks:
            raise InputError(f"{self.gpu}: the driver lists no clocks for it")
        return sorted(clocks)

    def nearest_clock(self, mhz: float) -> int:
        """The clock that this GPU can be locked to, nearest to `mhz`. InputError, with the range, outside of it."""
        clocks = self.clocks()
        if not min(clocks) <= mhz <= max(clocks):
            raise InputError(
                f"{self.gpu}: a clock of {mhz:g} MHz is not allowed; it accepts {min(clocks)} to {max(clocks)} MHz"
            )
        return int(min(clocks, key=lambda clock: (abs(clock - mhz), clock)))

    def lock_clock(self, mhz: int) -> None:
        """Lock the SM clock. NVML tells nobody whether it is locked: only the clock under load shows it."""
        self._call("locking the clock", "nvmlDeviceSetGpuLockedClocks", mhz, mhz)

    def unlock_clock(self) -> None:
        """Let the SM clock move freely, as after the driver was loaded."""
        self._call("unlocking the clock", "nvmlDeviceResetGpuLockedClocks")

    def _call(self, doing: str, function: str, *arguments: Any) -> Any:
        try:
            return getattr(nv, function)(self.handle, *arguments)
        except nv.NVMLError as error:
            raise _refusal(self.gpu, doing, error) from error


def same_limit(one_mw: int, other_mw: int) -> bool:
    """Whether two power limits are the same but for rounding."""
    return abs(one_mw - other_mw) < _NEAR_MW


def _refusal(gpu: str, doing: str, error: Any) -> WhorlError:
    if error.value == nv.NVML_ERROR_NO_PERMISSION:
        return InputError(f"{gpu}: {doing} {_ROOT}")
    if error.value in (nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_FUNCTION_NOT_FOUND):
        return InputError(f"{gpu}: {doing} is not possible with this GPU or driver")
    lost = error.value == nv.NVML_ERROR_GPU_IS_LOST
    gone = lost or error.value == nv.NVML_ERROR_UNINITIALIZED
    return DeviceError(f"{gpu}: {doing} failed: {error}", gone=gone, outcome=Outcome.LOST if lost else Outcome.FAILED)


def settings_of(gpu: str) -> dict[str, Any]:
    """The settings of a GPU, or of the GPU of a MIG instance, that move its figures; None where it does not tell.

    Keys: power_limit_w and power_limit_default_w (W), compute_mode, mig, persistence and ecc (bool). Never raises.
    """
    names = ("power_limit_w", "power_limit_default_w", "compute_mode", "mig", "persistence", "ecc")
    try:
        session = Controls()
    except WhorlError:
        return dict.fromkeys(names)
    with session:
        try:
            handle = whole_gpu(gpu)
        except DeviceError:
            return dict.fromkeys(names)
        watts = [
            None if limit is None else limit / 1000
            for limit in (
                answer_of(nv.nvmlDeviceGetEnforcedPowerLimit, handle),
                answer_of(nv.nvmlDeviceGetPowerManagementDefaultLimit, handle),
            )
        ]
        mode = answer_of(nv.nvmlDeviceGetComputeMode, handle)
        mig, ecc = answer_of(nv.nvmlDeviceGetMigMode, handle), answer_of(nv.nvmlDeviceGetEccMode, handle)
        persistence = answer_of(nv.nvmlDeviceGetPersistenceMode, handle)
        settings = (
            *watts,
            None if mode is None else _COMPUTE_MODES.get(mode, f"mode {mode}"),
            None if mig is None else bool(mig[0]),
            None if persistence is None else bool(persistence),
            None if ecc is None else bool(ecc[0]),
        )
        return dict(zip(names, settings, strict=True))
