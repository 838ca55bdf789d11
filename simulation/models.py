"""The simulated GPU models: one row each, with limits, clocks and fitted physics.

Source: docs/how-we-know/simulation.md. V100 is fitted to one public air-cooled cluster; the
voltages, resistances, leakage and spread of the others are extrapolations. NVIDIA documents no voltages for
these parts: here they are calibration parameters.

What the driver of a simulated GPU reports: one row per model, and the noise of the power sensor.

The power sensors see part of the time only (`store/power_sensors.py`). Power is constant within a control step of
20 ms here, so a window of 10 ms has the step's value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..store.power_sensors import sensor_of_model
from .draws import Floats, stream


@dataclass(frozen=True)
class GpuModel:
    """One product: what its data sheet limits, and the parameters of its physics. Units are in the names."""

    name: str
    power_limit_w: float
    """Default (and highest) power cap."""
    min_power_limit_w: float
    """Lowest cap that the driver accepts."""
    min_clock_mhz: float
    max_clock_mhz: float
    clock_step_mhz: float
    memory_clock_mhz: float
    bandwidth_gb_s: float
    """Peak DRAM bandwidth."""
    memory_gb: int
    """Device memory, in units of 2^30 bytes."""
    lanes: int
    """Single-precision multiply-adds per clock: lanes of a multiprocessor times multiprocessors."""
    max_operating_c: float
    """Highest die temperature in operation, as the driver states it; the simulated ones do not heed it."""
    slowdown_c: float
    """Die temperature above which the clock is lowered."""
    shutdown_c: float
    """Die temperature at which a real board would shut down; the simulated ones do not get there."""
    min_v: float
    """Voltage at and below the knee."""
    max_v: float
    """Voltage at the highest clock."""
    knee_mhz: float
    """Clock up to which the voltage is flat."""
    board_w: float
    """Board power that does not depend on the load."""
    leakage_w: float
    """Leakage at `leakage_v` and 60 °C."""
    leakage_v: float
    leakage_per_k: float
    """Relative growth of the leakage with temperature, 1/K."""
    dynamic_w: float
    """Switching power at the highest clock, the highest voltage and activity 1."""
    memory_w_per_gb_s: float
    resistance_k_w: float
    """Thermal resistance from the die to the inlet air."""
    inlet_c: float
    """Mean inlet air temperature."""

    @property
    def clocks_mhz(self) -> NDArray[np.float64]:
        """Every SM clock that the model can run at, ascending, MHz."""
        bins = round((self.max_clock_mhz - self.min_clock_mhz) / self.clock_step_mhz) + 1
        return self.min_clock_mhz + self.clock_step_mhz * np.arange(bins, dtype=np.float64)


V100 = GpuModel(
    name="V100-SXM2",
    power_limit_w=300,
    min_power_limit_w=150,
    min_clock_mhz=135,
    max_clock_mhz=1530,
    clock_step_mhz=7.5,
    memory_clock_mhz=877,
    bandwidth_gb_s=900,
    memory_gb=16,
    lanes=64 * 80,
    shutdown_c=90,
    max_operating_c=83,
    slowdown_c=87,
    min_v=0.712,
    max_v=1.043,
    knee_mhz=945,
    board_w=43.6,
    leakage_w=21.4,
    leakage_v=0.95,
    leakage_per_k=0.036,
    dynamic_w=300,
    memory_w_per_gb_s=0.030,
    resistance_k_w=0.136,
    inlet_c=21.9,
)
A100 = GpuModel(
    name="A100-SXM4-80",
    power_limit_w=400,
    min_power_limit_w=100,
    min_clock_mhz=210,
    max_clock_mhz=1410,
    clock_step_mhz=15,
    memory_clock_mhz=1593,
    bandwidth_gb_s=2039,
    memory_gb=80,
    lanes=64 * 108,
    shutdown_c=92,
    max_operating_c=85,
    slowdown_c=89,
    min_v=0.70,
    max_v=1.00,
    knee_mhz=900,
    board_w=58,
    leakage_w=32,
    leakage_v=0.90,
    leakage_per_k=0.034,
    dynamic_w=355,
    memory_w_per_gb_s=0.025,
    resistance_k_w=0.095,
    inlet_c=24,
)
H100 = GpuModel(
    name="H100-SXM5",
    power_limit_w=700,
    min_power_limit_w=200,
    min_clock_mhz=345,
    max_clock_mhz=1980,
    clock_step_mhz=15,
    memory_clock_mhz=2619,
    bandwidth_gb_s=3352,
    memory_gb=80,
    lanes=128 * 132,
    shutdown_c=92,
    max_operating_c=87,
    slowdown_c=89,
    min_v=0.67,
    max_v=1.075,
    knee_mhz=1095,
    board_w=66,
    leakage_w=55,
    leakage_v=0.90,
    leakage_per_k=0.032,
    dynamic_w=780,
    memory_w_per_gb_s=0.024,
    resistance_k_w=0.060,
    inlet_c=25,
)
H200 = GpuModel(
    name="H200-SXM5",
    power_limit_w=700,
    min_power_limit_w=200,
    min_clock_mhz=345,
    max_clock_mhz=1980,
    clock_step_mhz=15,
    memory_clock_mhz=3201,
    bandwidth_gb_s=4800,
    memory_gb=141,
    lanes=128 * 132,
    shutdown_c=95,
    max_operating_c=87,
    # Like the other rows the slowdown threshold; the prototype took the maximum operating temperature, 87 °C.
    slowdown_c=89,
    min_v=0.67,
    max_v=1.075,
    knee_mhz=1095,
    board_w=70,
    leakage_w=55,
    leakage_v=0.90,
    leakage_per_k=0.032,
    dynamic_w=770,
    memory_w_per_gb_s=0.022,
    resistance_k_w=0.060,
    inlet_c=25,
)

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
