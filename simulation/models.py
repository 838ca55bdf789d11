"""The simulated GPU models: one row each, with limits, clocks and fitted physics.

Source: docs/how-we-know/simulation.md. V100 is fitted to one public air-cooled cluster; the
voltages, resistances, leakage and spread of the others are extrapolations. NVIDIA documents no voltages for
these parts: here they are calibration parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError


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
    wanted = name.strip().upper()
    for model in MODELS.values():
        if wanted in (model.name.upper(), model.name.split("-")[0]):
            return model
    raise InputError(f"no simulated GPU model {name!r}; there are {', '.join(MODELS)}")
