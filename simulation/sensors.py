"""What the driver of a simulated GPU reports: one row per model, and the noise of the power sensor.

The power sensors see part of the time only (`store/power_sensors.py`). Power is constant within a control step of
20 ms here, so a window of 10 ms has the step's value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..store.power_sensors import sensor_of_model
from .draws import stream
from .models import A100, H100, H200, V100, GpuModel
from .physics import Floats


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
