"""The simulated GPU models: one row each, with limits, clocks and fitted physics.

Source: docs/how-we-know/simulation.md. V100 is fitted to one public air-cooled cluster; the
voltages, resistances, leakage and spread of the others are extrapolations. NVIDIA documents no voltages for
these parts: here they are calibration parameters.

What the driver of a simulated GPU reports: one row per model, and the noise of the power sensor.

The power sensors see part of the time only (`store/power_sensors.py`). Power is constant within a control step of
20 ms here, so a window of 10 ms has the step's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..store.power_sensors import sensor_of_model
from .draws import Floats, stream


@dataclass(frozen=True)
class GpuModel:
    """One product: what its data sheet limits, and the parameters of its physics; `NUMBERS` says what each is.

    Units are in the names.
    """

    name: str
    power_limit_w: float
    min_power_limit_w: float
    min_clock_mhz: float
    max_clock_mhz: float
    clock_step_mhz: float
    memory_clock_mhz: float
    bandwidth_gb_s: float
    memory_gb: int
    """Device memory, in units of 2^30 bytes."""
    lanes: int
    max_operating_c: float
    """Highest die temperature in operation, as the driver states it; the simulated ones do not heed it."""
    slowdown_c: float
    shutdown_c: float
    """Die temperature at which a real board would shut down; the simulated ones do not get there."""
    min_v: float
    max_v: float
    knee_mhz: float
    board_w: float
    leakage_w: float
    leakage_v: float
    leakage_per_k: float
    dynamic_w: float
    """Switching power at the highest clock, the highest voltage and activity 1."""
    memory_w_per_gb_s: float
    resistance_k_w: float
    inlet_c: float

    @property
    def clocks_mhz(self) -> NDArray[np.float64]:
        """Every SM clock that the model can run at, ascending, MHz."""
        bins = round((self.max_clock_mhz - self.min_clock_mhz) / self.clock_step_mhz) + 1
        return self.min_clock_mhz + self.clock_step_mhz * np.arange(bins, dtype=np.float64)


SEEN, FITTED, ASSUMED = "seen", "fitted", "assumed"
"""Seen in data sheets or in what drivers print; fitted to one public V100 cluster; assumed."""

_NAMES = ("V100-SXM2", "A100-SXM4-80", "H100-SXM5", "H200-SXM5")
NUMBERS: dict[str, tuple[tuple[float, float, float, float], str, str, str, str]] = {
    "power_limit_w": ((300, 400, 700, 700), "W", SEEN, SEEN, "default and highest power cap"),
    "min_power_limit_w": ((150, 100, 200, 200), "W", SEEN, SEEN, "lowest power cap"),
    "min_clock_mhz": ((135, 210, 345, 345), "MHz", ASSUMED, ASSUMED, "lowest SM clock"),
    "max_clock_mhz": ((1530, 1410, 1980, 1980), "MHz", SEEN, SEEN, "highest SM clock"),
    "clock_step_mhz": ((7.5, 15, 15, 15), "MHz", SEEN, ASSUMED, "step between two SM clocks"),
    "memory_clock_mhz": ((877, 1593, 2619, 3201), "MHz", SEEN, SEEN, "memory clock"),
    "bandwidth_gb_s": ((900, 2039, 3352, 4800), "GB/s", SEEN, SEEN, "peak memory bandwidth"),
    "memory_gb": ((16, 80, 80, 141), "GiB", SEEN, SEEN, "device memory"),
    "lanes": ((64 * 80, 64 * 108, 128 * 132, 128 * 132), "", SEEN, SEEN, "single-precision multiply-adds per clock"),
    "max_operating_c": (
        (83, 85, 87, 87),
        "degC",
        SEEN,
        SEEN,
        "highest die temperature in operation, as the driver states it",
    ),
    "slowdown_c": ((87, 89, 89, 89), "degC", SEEN, SEEN, "die temperature above which the clock is lowered"),
    "shutdown_c": ((90, 92, 92, 95), "degC", SEEN, SEEN, "die temperature at which a real board shuts down"),
    "min_v": ((0.712, 0.70, 0.67, 0.67), "V", FITTED, ASSUMED, "core voltage at and below the knee"),
    "max_v": ((1.043, 1.00, 1.075, 1.075), "V", FITTED, ASSUMED, "core voltage at the highest clock"),
    "knee_mhz": ((945, 900, 1095, 1095), "MHz", FITTED, ASSUMED, "clock up to which the voltage is flat"),
    "board_w": ((43.6, 58, 66, 70), "W", FITTED, ASSUMED, "board power that does not depend on the load"),
    "leakage_w": ((21.4, 32, 55, 55), "W", FITTED, ASSUMED, "leakage at leakage_v and 60 degC"),
    "leakage_v": ((0.95, 0.90, 0.90, 0.90), "V", FITTED, ASSUMED, "voltage of leakage_w"),
    "leakage_per_k": ((0.036, 0.034, 0.032, 0.032), "1/K", FITTED, ASSUMED, "growth of the leakage with temperature"),
    "dynamic_w": ((300, 355, 780, 770), "W", FITTED, ASSUMED, "switching power of SGEMM at the highest clock"),
    "memory_w_per_gb_s": ((0.030, 0.025, 0.024, 0.022), "W/(GB/s)", FITTED, ASSUMED, "power of memory traffic"),
    "resistance_k_w": (
        (0.136, 0.095, 0.060, 0.060),
        "K/W",
        FITTED,
        ASSUMED,
        "thermal resistance from the die to the inlet air",
    ),
    "inlet_c": ((21.9, 24, 25, 25), "degC", FITTED, ASSUMED, "mean inlet air temperature"),
}
"""By field of `GpuModel`: its values of the four models, its unit, what it rests on for V100 and for the others, and
what it means. H200's slowdown threshold is that of the other ones."""

T = TypeVar("T")


def by_column(kind: Callable[..., T], rows: Mapping[str, tuple[Any, ...]]) -> list[T]:
    """An object for each column of a table of its fields."""
    return [kind(**dict(zip(rows, column, strict=True))) for column in zip(*rows.values(), strict=True)]


V100, A100, H100, H200 = by_column(GpuModel, {"name": _NAMES} | {name: row[0] for name, row in NUMBERS.items()})

PARAMETERS = "3"
"""Version of the parameter set: it grows when a number here, of a workload or of a fault changes."""

MODELS = {model.name: model for model in (V100, A100, H100, H200)}


def find_model(name: str) -> GpuModel:
    """The model of a full name ("V100-SXM2") or of its first part ("v100"); InputError when there is none."""
    key = name.strip().upper()
    for model in MODELS.values():
        if key in (model.name.upper(), model.name.split("-")[0]):
            return model
    raise InputError(f"no simulated GPU model {name!r}; there are {', '.join(MODELS)}")


# -- what its driver reports -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensors:
    """What one model's driver knows; times in ms."""

    instant_period_ms: int
    """How often the instantaneous power has a new value: the control step, 20 ms, or a block of five."""
    instant_window_ms: int
    """What time that value averages."""
    average_window_ms: int | None = None
    """What time the averaged power averages, with a new value every 100 ms; None where there is no such value."""
    memory_temperature: bool = False
    remapped_rows: bool = True
    profiling: bool = False

    @property
    def power_window_ms(self) -> int:
        """What time the value averages that the driver calls the power draw."""
        return self.average_window_ms or self.instant_window_ms


def _sensors(
    model: GpuModel, *, memory_temperature: bool = False, remapped_rows: bool = True, profiling: bool = False
) -> Sensors:
    chip = sensor_of_model(model.name)
    assert chip is not None
    assert chip.period_ms
    assert chip.window_ms
    average = chip.draw_ms if chip.draw_ms != chip.window_ms else None
    return Sensors(chip.period_ms, chip.window_ms, average, memory_temperature, remapped_rows, profiling)


SENSORS = {
    V100.name: _sensors(V100, remapped_rows=False),
    A100.name: _sensors(A100, memory_temperature=True),
    H100.name: _sensors(H100, memory_temperature=True, profiling=True),
    H200.name: _sensors(H200, memory_temperature=True, profiling=True),
}

NOISE_SHARE = 0.0008
"""Standard deviation of one instantaneous power reading, as a share of the power limit (assumed)."""

_NORMALS = 1 << 16


class Noise:
    """Normal draws that depend on the GPU and the sensor's tick alone, so that a value reads the same twice."""

    def __init__(self, seed: int, gpus: int) -> None:
        random = stream(seed, "sensor noise")
        self._normals = random.standard_normal(_NORMALS)
        self._keys: NDArray[np.uint64] = random.integers(0, 1 << 63, gpus, dtype=np.uint64)

    def at(self, tick: int, salt: int = 0) -> Floats:
        """The draws of one tick, shape (gpus,)."""
        mixed = self._keys + np.uint64((tick * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        return self._normals[(mixed >> np.uint64(48)).astype(np.intp)]
