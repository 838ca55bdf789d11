"""What GPUs had used by any time: a curve through the readings of each GPU's sensor, with what these leave open.

A curve has a knot wherever the sensor had a new value. Between two knots it is a straight line: nobody knows when,
within one step of the sensor, the energy was used. Its doubt is how far the line may be off at a time between them.

Energy comes from the driver's counter where it counts, else from power (trapezoids between new values), else it is a
gap: what the GPU drew before, between nothing and the most that the board can draw. Times are s on the steady clock.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...analysis.energy.aliasing import FLOOR, LIKELY, LOCKED_S, PART_S, PERIOD_S, SUMS, SensorWindow, beat, locked_w2
from ...collectors.allocation import visible_gpus
from ...collectors.backend import Backend, Device, Reading, Status, find_backend
from ...collectors.clock import Clock
from ...errors import InputError
from ...store.metrics import BOARD_POWER, FAST, METRICS
from ...store.power_sensors import SENSOR_ERROR, SensorError, sensor_of_model

Floats = NDArray[np.float64]

ENERGY, BELOW, ABOVE, SENSED_J, SENSED_S, COUNTER_S, SECONDS, DOUBT = range(8)
"""What is counted, in J and s: the energy, how much less and more it may be in gaps, energy and time with readings,
time with a counter, all time, and what the line between two values leaves open. Each adds up over times and spans."""
ALIASING = slice(8, 8 + len(SUMS))
"""`store.aliasing.SUMS`."""
WIDTH = ALIASING.stop

LONGEST_STEP_S = 1.0
"""A sensor without a new value for longer is not believed to be at work."""
MOST_W = 2000.0
"""What no board draws more than: for one whose power limit is not known."""
_OVER_LIMIT = 1.25  # for moments, boards draw more than their limit
_COUNTER, _POWER, _GAP = range(3)
_SHORTEST_S, _LONGEST_S = 0.02, 0.05  # between two readings
_LOOK_AGAIN_S = 2.0
_MEMORY = 64  # new values that tell how readings vary
_LIKE = 1 / 16  # weight of a new value in the mean of those before


class StepAliasing:
    """What the sensor of one GPU cannot have seen, step by step as readings come in (see `store.aliasing`).

    A counter misses nothing, but what it adds up may be the readings of the same sensor.
    """

    def __init__(self, sensor: SensorWindow, limit_w: float | None) -> None:
        self._sensor, self._limit = sensor, limit_w
        self._past: deque[bool] = deque(maxlen=_MEMORY)  # whether each new value was above the mean
        self._before: tuple[float, float] | None = None  # the last two
        self._mean = 0.0
        self._spread_w2 = 0.0
        self._lowest = self._highest = 0.0

    def step(self, watts: float, seconds: float, utilization: float | None, *, counter: bool) -> tuple[float, ...]:
        """`SUMS` of a step that ends with a new value.

        `utilization` is from 0 to 1. Of a `counter`, what the sensor sees is added up exactly.
        """
        if self._before is None:
            self._mean = self._lowest = self._highest = watts
            self._before = (watts, watts)
        self._lowest, self._highest = min(self._lowest, watts), max(self._highest, watts)
        bend = watts - 2 * self._before[1] + self._before[0]
        self._before = (self._before[1], watts)
        off = watts - self._mean
        self._mean += _LIKE * off
        self._spread_w2 = (1 - _LIKE) * (self._spread_w2 + _LIKE * off * off)
        self._past.append(off > 0)

        missed = self._sensor.missed
        if missed == 0:
            return 0.0, 0.0, 0.0
        usual = max(self._sensor.period_s, min(seconds, 1.0))
        past = list(self._past)
        crossings = sum(a != b for a, b in pairwise(past))
        beat_w2, coherent_s = beat(self._spread_w2, crossings, len(past) * usual)
        limit = self._limit or self._highest
        floor, full = min(self._lowest, FLOOR * limit), max(self._highest, LIKELY * limit)
        hidden = float(locked_w2(watts, 0.5 if utilization is None else utilization, floor, full))
        locked = max(hidden - beat_w2, 0.0)
        missed_s = missed * (missed if counter else 1.0) * seconds
        rate = usual * bend * bend / 6
        return rate * missed_s, (beat_w2 + locked) * missed_s, (beat_w2 * coherent_s + locked * LOCKED_S) * missed_s


class EnergyCurve:
    """The curve of one GPU, made by `read`, of which `forget` drops what nobody will ask for."""

    def __init__(self, limit_w: float | None, sensor: SensorWindow) -> None:
        self.most_w = MOST_W if limit_w is None else limit_w * _OVER_LIMIT
        self._sensor, self._period = sensor, sensor.period_s
        self._aliasing = StepAliasing(sensor, limit_w)
        self._times: list[float] = []
        self._rows: list[list[float]] = []
        self._kinds: list[int] = []  # of the line that ends at the knot
        self._slack: list[float] = []  # s: how exactly the knot's time is known, either way
        self._looked: float | None = None  # the last reading, with or without a new value
        self._counter: float | None = None  # at the last knot
        self._power: float | None = None
        self._stuck: float | None = None  # where the counter stands still
        self._utilization: float | None = None

    @property
    def end(self) -> float | None:
        """The time of the last knot; None before the first."""
        return self._times[-1] if self._times else None

    def read(self, at: float, values: Mapping[str, float]) -> None:
        """Take in a reading: by metric in its unit, of the energy counter (`energy_mj`), the power (`power_mw` or
        another of `BOARD_POWER`; 0 is no reading), what time this power averages, and the utilisation."""
        counter_j = values["energy_mj"] / 1000 if "energy_mj" in values else None
        power_w = next((values[name] / 1000 for name in BOARD_POWER if name in values), None) or None
        self._utilization = values["utilization"] / 100 if "utilization" in values else None
        looked, self._looked = self._looked, at
        if not self._times:
            if counter_j is not None or power_w is not None:
                self._add(at, [0.0] * WIDTH, _GAP, self._period / 2)
                self._counter, self._power = counter_j, power_w
            return
        last = self._times[-1]
        if at <= last:
            return
        late = min(at - (last if looked is None else looked), self._period) / 2
        if counter_j is not None and self._counter is not None and counter_j != self._stuck:
            used = counter_j - self._counter
            # A new value came since the last look: in the middle, as far as anybody knows.
            if 0 < used <= self.most_w * (at - late - last + 2 * self._period):
                self._line(at - late, used, _COUNTER, late)
            elif used == 0:
                if at - last > LONGEST_STEP_S and power_w is not None:
                    self._stuck = counter_j
                return
            else:  # it began anew, or jumped
                self._gap(at)
        elif power_w is not None and self._power is not None and at - last <= LONGEST_STEP_S:
            if power_w == self._power and at - last < self._period:
                return
            window_s = 0.0 if "power_instant_mw" in values else values.get("power_window_ms", 0.0) / 1000
            slack = (max(window_s, self._sensor.window_s) + self._period) / 2
            self._line(at, (self._power + power_w) / 2 * (at - last), _POWER, slack)
        elif counter_j is not None or power_w is not None:
            self._gap(at)
        else:
            if at - last > LONGEST_STEP_S:
                self._gap(at)
                self._counter = None
            return
        if counter_j is None or counter_j != self._stuck:
            self._counter, self._stuck = counter_j, None
        self._power = power_w

    def extend(self, to: float) -> None:
        """Make the curve reach so far, although the sensor has had no new value: that is a gap."""
        if self._times and to > self._times[-1]:
            self._gap(to)
            self._counter = None

    def _line(self, at: float, used: float, kind: int, slack: float) -> None:
        step = at - self._times[-1]
        row = list(self._rows[-1])
        row[ENERGY] += used
        if kind == _GAP:
            row[BELOW] += used
            row[ABOVE] += max(0.0, self.most_w * step - used)
        else:
            row[SENSED_J] += used
            row[SENSED_S] += step
            row[COUNTER_S] += step * (kind == _COUNTER)
            sums = self._aliasing.step(used / step, step, self._utilization, counter=kind == _COUNTER)
            row[ALIASING] = [total + step_sum for total, step_sum in zip(row[ALIASING], sums, strict=True)]
        self._add(at, row, kind, slack)

    def _gap(self, to: float) -> None:
        step = to - self._times[-1]
        self._line(to, min(self._power or self._slope(), self.most_w) * step, _GAP, 0.0)

    def _slope(self) -> float:
        """W, along the last line; half of the most where there is none."""
        if len(self._times) < 2 or self._kinds[-1] == _GAP:
            return self.most_w / 2
        return (self._rows[-1][ENERGY] - self._rows[-2][ENERGY]) / (self._times[-1] - self._times[-2])

    def _add(self, at: float, row: list[float], kind: int, slack: float) -> None:
        self._times.append(at)
        self._rows.append(row)
        self._kinds.append(kind)
        self._slack.append(slack)

    def at(self, times: Floats) -> Floats:
        """What was used by each time, with how far off the energy may be (DOUBT), shape (times, WIDTH).

        Times before the first knot have what it has: nothing. Those after the last one have what that has.
        """
        knots, rows = np.array(self._times), np.array(self._rows)
        if len(knots) < 2:
            counted = np.repeat(rows, len(times), axis=0)
        else:
            step, change = np.diff(knots), np.diff(rows, axis=0)
            watts = change[:, ENERGY] / step
            around = np.pad(watts, 1, mode="edge")
            swing = np.ptp([around[:-2], watts, around[2:]], axis=0)
            # A step in power may be in a later value, as the sensor has it late, or in an earlier one.
            displaced = watts * np.maximum(self._slack[:-1], self._slack[1:]) + swing * self._period
            line = np.searchsorted(knots[1:-1], times, side="right")
            used = change[line, ENERGY]
            since = np.clip(times - knots[line], 0.0, step[line])
            part = since / step[line]
            counted = rows[line] + part[:, None] * change[line]
            here = used * part
            above = np.minimum(self.most_w * since, used) - here
            below = here - np.maximum(0.0, used - self.most_w * (step[line] - since))
            doubt = np.maximum(np.maximum(above, below), 0.0) + displaced[line]
            counted[:, DOUBT] = doubt * (np.array(self._kinds[1:]) != _GAP)[line]  # a gap's bounds hold for its parts
        counted[:, SECONDS] = times
        return counted

    def forget(self, before: float) -> None:
        """Drop knots that no time from `before` on needs."""
        unneeded = min(int(np.searchsorted(self._times, before, side="right")) - 1, len(self._times) - 2)
        if unneeded > 0:
            for column in (self._times, self._rows, self._kinds, self._slack):
                del column[:unneeded]


@dataclass(frozen=True)
class BoardLimits:
    """What is known of some GPUs together: the most that they can draw, W, and the error of their sensors."""

    most_w: float = 0.0
    error: SensorError = SENSOR_ERROR


class BoardSensors:
    """The sensors of the GPUs that are asked for: by UUID or NVML index; None for those that this process may use.

    Raises InputError where there is no such GPU, or the backend cannot be opened. One thread at a time may call it.
    """

    def __init__(self, backend: str | Backend, gpus: Sequence[str | int] | None, clock: Clock) -> None:
        self._clock = clock
        self._backend: Backend = find_backend(backend)() if isinstance(backend, str) else backend
        try:
            devices = _chosen(list(self._backend.devices()), gpus, simulated=self._backend.name == "simulated")
        except BaseException:
            self._backend.close()
            raise
        self.gpus = [device.gpu for device in devices]
        first = {reading.gpu: _values(reading) for _, reading in self._readings()}
        periods, self.curves = [], []
        self._metrics: list[frozenset[str]] = []
        for device in devices:
            kind = sensor_of_model(device.row.get("model"))
            period_ms = self._backend.period_ms if kind is None else kind.period_ms
            window_ms = first.get(device.gpu, {}).get("power_window_ms") if kind is None else kind.window_ms
            period = PERIOD_S if not period_ms else period_ms / 1000
            sensor = SensorWindow(min(period, window_ms / 1000 if window_ms else PART_S), period)
            limits = [device.row.get(f"power_limit{name}_mw") for name in ("_max", "_default", "")]
            self.curves.append(EnergyCurve(max((limit / 1000 for limit in limits if limit), default=None), sensor))
            periods.append(period)
            # The counter and the instantaneous power of a Grace Hopper module are those of its processor too.
            of_module = kind is not None and kind.of_module
            power = ("power_mw",) if of_module else ("energy_mj", *BOARD_POWER)
            self._metrics.append(frozenset((*power, "power_window_ms", "utilization")))
        self.every_s = min(max(max(periods) / 2, _SHORTEST_S), _LONGEST_S)
        self.settled_s = 3 * max(*periods, _LONGEST_S)
        """After so long, no new value is to be expected."""
        models = {device.row.get("model") for device in devices}
        error = SensorError.of_model(models.pop()) if len(models) == 1 else SENSOR_ERROR
        self.boards = BoardLimits(sum(curve.most_w for curve in self.curves), error)
        self._look_at_s = 0.0

    def _readings(self) -> list[tuple[float, Reading]]:
        """The readings of this moment, each with its time; none where the driver is gone."""
        readings: list[tuple[float, Reading]] = []
        began = self._clock.steady()
        with contextlib.suppress(InputError):  # `read` looks for the driver again
            for reading in self._backend.read(self.gpus, slow=False):
                if isinstance(reading, Reading):
                    ended = self._clock.steady()
                    readings.append(((began + ended) / 2e9, reading))
                    began = ended
        return readings

    def read(self) -> None:
        """Read all sensors once."""
        answering = set()
        for at_s, reading in self._readings():
            place = self.gpus.index(reading.gpu)
            values, metrics = _values(reading), self._metrics[place]
            self.curves[place].read(at_s, {name: value for name, value in values.items() if name in metrics})
            if Status.LOST not in reading.statuses and Status.DRIVER not in reading.statuses:
                answering.add(reading.gpu)
        now_s = self._clock.steady() / 1e9
        if len(answering) < len(self.gpus) and now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_AGAIN_S
            with contextlib.suppress(InputError):
                self._backend.devices()  # by which a GPU that came back is found

    def end(self) -> float | None:
        """Up to when every curve reaches; None while one has not begun."""
        ends = [curve.end for curve in self.curves]
        return None if None in ends else min(end for end in ends if end is not None)

    def close(self) -> None:
        """Leave the driver."""
        self._backend.close()


def _values(reading: Reading) -> dict[str, float]:
    """What was read, by metric."""
    metrics = FAST if len(reading.values) == len(FAST) else range(len(METRICS))
    return {
        METRICS[row].name: float(value)
        for row, value in zip(metrics, reading.values, strict=True)
        if reading.statuses[row] == Status.OK
    }


def _chosen(devices: Sequence[Device], names: Sequence[str | int] | None, *, simulated: bool) -> list[Device]:
    """The devices that are named; without names those that CUDA shows to this process, or all simulated ones."""
    boards = [device for device in devices if device.parent is None]
    if names is None and simulated:
        return boards
    if names is None:
        gpus, problem = visible_gpus(devices, variables=("CUDA_VISIBLE_DEVICES",))
        if problem is not None:
            raise InputError(f"{problem}: name the GPUs: ledger.open(gpus=[...])")
        return [device for device in devices if device.gpu in gpus]
    chosen: list[Device] = []
    for name in names:
        if isinstance(name, int):
            matches = [device for device in boards if device.row.get("nvml_index") == name]
        else:
            matches = [device for device in devices if device.gpu.startswith(name)]
        if len(matches) != 1:
            present = ", ".join(f"{device.row.get('nvml_index')}: {device.gpu}" for device in devices) or "none"
            raise InputError(f"{len(matches) or 'no'} GPUs are called {name!r}; there are {present}")
        chosen += [device for device in matches if device not in chosen]
    if not chosen:
        raise InputError("no GPU is chosen: CUDA_VISIBLE_DEVICES is empty, or this node has none")
    return chosen
