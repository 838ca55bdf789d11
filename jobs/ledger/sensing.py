"""Reads the sensors of some GPUs through a backend, into their curves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...collectors.allocation import visible_gpus
from ...collectors.backend import Backend, Device, Reading, Status, find_backend
from ...collectors.clock import Clock
from ...errors import InputError
from ...store.metrics import BOARD_POWER, FAST, METRICS
from ...store.power_sensors import sensor_of_model
from .curve import Curve
from .unseen import sees

_SHORTEST_S, _LONGEST_S = 0.02, 0.05  # between two readings
_LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class _Sensed:
    """What one reading gave: when (steady s), and the values by metric; `time_s` is None where there was none."""

    time_s: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    gone: bool = False


class Sensing:
    """The sensors of the GPUs that are asked for: by UUID or NVML index; None for those that this process may use.

    Raises InputError where there is no such GPU, or the backend cannot be opened. One thread at a time may call it.
    """

    def __init__(self, backend: str | Backend, gpus: Sequence[str | int] | None, clock: Clock) -> None:
        self._clock = clock
        self._backend: Backend = find_backend(backend)() if isinstance(backend, str) else backend
        try:
            devices = list(self._backend.devices())
            if gpus is None:
                gpus = _whole(devices) if self._backend.name == "simulated" else _visible(devices)
            chosen = [devices[position] for position in _chosen(devices, gpus)]
        except BaseException:
            self._backend.close()
            raise
        self.gpus = tuple(device.gpu for device in chosen)
        first = self._readings()
        sensors = [
            sees(
                device.row.get("model"),
                period_ms=self._backend.period_ms,
                window_ms=first[device.gpu].values.get("power_window_ms"),
            )
            for device in chosen
        ]
        # The counter and the instantaneous power of a Grace Hopper module are those of its processor too.
        models = [sensor_of_model(device.row.get("model")) for device in chosen]
        self._metrics = tuple(
            ("power_mw",) if model is not None and model.of_module else ("energy_mj", *BOARD_POWER) for model in models
        )
        period_s = max(sensor.period_s for sensor in sensors)
        self.every_s = min(max(period_s / 2, _SHORTEST_S), _LONGEST_S)
        self.settled_s = 3 * max(period_s, _LONGEST_S)  # after so long, no new value is to be expected
        self.curves = tuple(Curve(_limit_w(device), sensor) for device, sensor in zip(chosen, sensors, strict=True))
        self._look_at = 0.0

    def _readings(self) -> dict[str, _Sensed]:
        """The readings of now, by GPU."""
        sensed = {gpu: _Sensed(gone=True) for gpu in self.gpus}
        began = self._clock.steady()
        with contextlib.suppress(InputError):  # the driver is gone: `read` looks for it again
            for reading in self._backend.read(self.gpus, slow=False):
                if isinstance(reading, Reading):
                    ended = self._clock.steady()
                    sensed[reading.gpu] = _sensed(reading, (began + ended) / 2e9)
                    began = ended
        return sensed

    def read(self) -> None:
        """Read all sensors once."""
        readings = self._readings()
        for gpu, curve, metrics in zip(self.gpus, self.curves, self._metrics, strict=True):
            reading = readings[gpu]
            if reading.time_s is None:
                continue
            answers = {name: reading.values[name] / 1000 for name in metrics if name in reading.values}
            power = next((answers[name] for name in BOARD_POWER if name in answers), None)
            used_pct = reading.values.get("utilization")
            curve.read(
                reading.time_s,
                answers.get("energy_mj"),
                power,
                reading.values.get("power_window_ms", 0.0) / 1000,
                None if used_pct is None else used_pct / 100,
            )
        now_s = self._clock.steady() / 1e9
        if any(reading.gone for reading in readings.values()) and now_s >= self._look_at:
            self._look_at = now_s + _LOOK_AGAIN_S
            with contextlib.suppress(InputError):
                self._backend.devices()  # by which a GPU that came back is found

    def end(self) -> float | None:
        """Up to when every curve reaches; None while one has not begun."""
        ends = [curve.end for curve in self.curves]
        return None if None in ends else min(end for end in ends if end is not None)

    def close(self) -> None:
        """Leave the driver."""
        self._backend.close()


def _sensed(reading: Reading, time_s: float) -> _Sensed:
    metrics = FAST if len(reading.values) == len(FAST) else range(len(METRICS))
    values = {
        METRICS[row].name: float(value)
        for row, value in zip(metrics, reading.values, strict=True)
        if reading.statuses[row] == Status.OK
    }
    return _Sensed(time_s, values, Status.LOST in reading.statuses or Status.DRIVER in reading.statuses)


def _limit_w(device: Device) -> float | None:
    limits = [device.row.get(name) for name in ("power_limit_max_mw", "power_limit_default_mw", "power_limit_mw")]
    return max((one / 1000 for one in limits if one), default=None)


def _whole(devices: Sequence[Device]) -> list[str]:
    return [device.gpu for device in devices if device.parent is None]


def _visible(devices: Sequence[Device]) -> list[str]:
    """The GPUs that CUDA shows to this process. Raises InputError where nobody can tell which these are."""
    gpus, problem = visible_gpus(devices, variables=("CUDA_VISIBLE_DEVICES",))
    if problem is not None:
        raise InputError(f"{problem}: name the GPUs: ledger.open(gpus=[...])")
    return [device.gpu for device in devices if device.gpu in gpus]


def _chosen(devices: Sequence[Device], asked: Sequence[str | int]) -> list[int]:
    found: list[int] = []
    for one in asked:
        matches = [
            position
            for position, device in enumerate(devices)
            if (
                device.row.get("nvml_index") == one and device.parent is None
                if isinstance(one, int)
                else device.gpu.startswith(one)
            )
        ]
        if len(matches) != 1:
            there = ", ".join(f"{d.row.get('nvml_index')}: {d.gpu}" for d in devices) or "none"
            raise InputError(f"{len(matches) or 'no'} GPUs are called {one!r}; there are {there}")
        found += [match for match in matches if match not in found]
    if not found:
        raise InputError("no GPU is chosen: CUDA_VISIBLE_DEVICES is empty, or this node has none")
    return found
