"""The physics of simulated GPUs: voltage, power, temperature and time as pure functions of arrays.

Nothing here holds state or draws a random number. Arrays have one element per GPU. Source of every formula:
docs/how-we-know/simulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .draws import Floats
from .faults import SLOWDOWN_DIVISOR
from .load import Workload
from .models import GpuModel

LEAKAGE_REFERENCE_C = 60.0
LEAKAGE_VOLTAGE_EXPONENT = 3.0
OVERLAP = 0.95
"""Share of copies and kernels of equal length that hide each other, of a GPU of the model (assumed)."""
HOST_SHARED = 0.6
"""Share of its link that each GPU of a node has when all of them copy from or to the host at once (assumed)."""

HOTTEST_C = 125.0
"""The model's temperatures end here; a real board would have shut down long before."""

# Newton's method from the cold side converges in three or four rounds; the rest serve boards near runaway.
_TEMPERATURE_ROUNDS = 10


@dataclass(frozen=True)
class Silicon:
    """What the factory and the machine room made of each GPU: arrays of shape (gpus,)."""

    voltage: Floats
    """Factor on the voltage that a clock needs."""
    leakage: Floats
    """Factor on the leakage."""
    capacitance: Floats
    """Factor on the switching power."""
    board: Floats
    """Factor on the board power."""
    sensor: Floats
    """Gain of the power sensor: reported power, without its offset, over true power."""
    sensor_offset_w: Floats
    """What the power sensor adds, W; the power cap acts on the reported power without it."""
    resistance_k_w: Floats
    """Thermal resistance that the GPU's own power sees, K/W, with the preheat of its air."""
    preheat_k_w: Floats
    """The part of `resistance_k_w` that stands for the power of the GPU upstream in the air, K/W."""
    inlet_c: Floats
    """Temperature without any power, °C, with the constant part of the preheat."""
    cap_w: Floats
    """Power cap that the board enforces on the reported power, W."""
    ceiling_mhz: Floats
    """Highest clock that the GPU can reach, MHz."""
    slowdown_share: Floats
    """Fraction of the time under load in which the hardware slowdown holds the clock down."""
    memory: Floats
    """Factor on the speed of the memory."""
    compute: Floats
    """Factor on the speed of the multiprocessors at one clock."""
    link: Floats
    """Factor on the speed of copies from and to the host."""
    peer: Floats
    """Factor on the speed of copies to another GPU of the node."""
    launch: Floats
    """Factor on the speed of launches."""
    overlap: Floats
    """Share of copies and kernels of equal length that hide each other."""
    host_shared: Floats
    """Share of its link that the GPU has when all GPUs of its node copy from or to the host at once."""

    def take(self, gpus: slice | NDArray[np.int64]) -> Silicon:
        """The silicon of some of the GPUs."""
        return Silicon(**{column.name: getattr(self, column.name)[gpus] for column in fields(self)})


def voltage(model: GpuModel, silicon: Silicon, clock_mhz: Floats) -> Floats:
    """Core voltage at a clock, V: flat up to the knee, then linear to the highest clock."""
    above_knee = np.maximum(0.0, (clock_mhz - model.knee_mhz) / (model.max_clock_mhz - model.knee_mhz))
    return (model.min_v + (model.max_v - model.min_v) * above_knee) * silicon.voltage


def power(model: GpuModel, silicon: Silicon, workload: Workload, clock_mhz: Floats, temperature_c: Floats) -> Floats:
    """Mean true power, W, of GPUs held at a clock and a temperature, slowdown included."""
    fixed, leakage = power_parts(model, silicon, workload, clock_mhz)
    return fixed + leakage * _leakage_growth(model, temperature_c)


def settle(model: GpuModel, silicon: Silicon, workload: Workload, clock_mhz: Floats) -> tuple[Floats, Floats]:
    """Mean true power (W) and temperature (°C) at which GPUs settle that run at a clock, slowdown included.

    Solves T = inlet + R·P(T) for the cooler of its two roots. The right side is convex in T and the search
    starts on the cold side of the root, so Newton's method climbs to it and never past it; without a root
    (thermal runaway) it ends at `HOTTEST_C`.
    """
    fixed, leakage = power_parts(model, silicon, workload, clock_mhz)
    start = silicon.inlet_c + silicon.resistance_k_w * fixed
    temperature = np.minimum(start, HOTTEST_C)
    for _ in range(_TEMPERATURE_ROUNDS):
        heating = silicon.resistance_k_w * leakage * _leakage_growth(model, temperature)
        slope = np.maximum(1.0 - model.leakage_per_k * heating, 0.05)
        temperature = np.minimum(temperature + (start + heating - temperature) / slope, HOTTEST_C)
    return fixed + leakage * _leakage_growth(model, temperature), temperature


def slowed(model: GpuModel, clock_mhz: Floats) -> Floats:
    """Clock while the hardware slowdown is asserted, MHz."""
    return np.maximum(clock_mhz / SLOWDOWN_DIVISOR, model.min_clock_mhz)


def relative_time(model: GpuModel, silicon: Silicon, workload: Workload, clock_mhz: Floats) -> Floats:
    """Run time over that of a GPU of the model at the highest clock (dimensionless), without noise.

    At one clock it is the sum of kappa·f_max/f and the shares of memory, link, peer and launches, each over the GPU's
    own speed in it; a duty-cycled slowdown averages the rates at its two clocks.
    """
    share = silicon.slowdown_share + workload.slowdown
    rate = (1 - share) / _time_at(model, workload, clock_mhz, silicon)
    rate = rate + share / _time_at(model, workload, slowed(model, clock_mhz), silicon)
    return 1 / rate


def power_parts(model: GpuModel, silicon: Silicon, workload: Workload, clock_mhz: Floats) -> tuple[Floats, Floats]:
    """Mean true power, W: the part that no temperature changes, and the leakage at `LEAKAGE_REFERENCE_C`."""
    fixed, leakage = _power_parts_at(model, silicon, workload, clock_mhz)
    share = silicon.slowdown_share + workload.slowdown
    if not np.any(share):
        return fixed, leakage
    # The slowdown comes and goes faster than the die warms: temperature and leakage follow the mean power.
    slow_fixed, slow_leakage = _power_parts_at(model, silicon, workload, slowed(model, clock_mhz))
    return fixed + share * (slow_fixed - fixed), leakage + share * (slow_leakage - leakage)


def _power_parts_at(model: GpuModel, silicon: Silicon, workload: Workload, clock_mhz: Floats) -> tuple[Floats, Floats]:
    volts = voltage(model, silicon, clock_mhz)
    dynamic = workload.activity * model.dynamic_w * silicon.capacitance
    dynamic = dynamic * (volts / model.max_v) ** 2 * (clock_mhz / model.max_clock_mhz)
    memory = model.memory_w_per_gb_s * workload.bandwidth_share * model.bandwidth_gb_s
    # Slow memory moves less: as much less as the work takes longer.
    moved = memory * (_time_at(model, workload, clock_mhz) / _time_at(model, workload, clock_mhz, silicon))
    leakage = model.leakage_w * silicon.leakage * (volts / model.leakage_v) ** LEAKAGE_VOLTAGE_EXPONENT
    return model.board_w * silicon.board + dynamic + moved, leakage


def _time_at(model: GpuModel, workload: Workload, clock_mhz: Floats, silicon: Silicon | None = None) -> Floats:
    """Relative time at a clock; without silicon, of a GPU that is as its model."""
    scaling, unscaled = workload.compute_share * model.max_clock_mhz / clock_mhz, 1 - workload.compute_share
    if silicon is None:
        return scaling + unscaled
    time = scaling / silicon.compute + (unscaled - workload.fixed_share) / silicon.memory
    for share, speed in (
        (workload.link_share, silicon.link),
        (workload.peer_share, silicon.peer),
        (workload.launch_share, silicon.launch),
    ):
        if share:
            time = time + share / speed
    return time


def _leakage_growth(model: GpuModel, temperature_c: Floats) -> Floats:
    return np.exp(model.leakage_per_k * (temperature_c - LEAKAGE_REFERENCE_C))
