"""Telemetry of a GPU while a probe runs on it: the latest reading, and a window of readings.

`Recent` keeps the last readings of a node, or of a simulated fleet, in memory: the collector that feeds it stores
the same rows as well, but a protocol cannot wait for them to be read back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..store.metrics import board_power_of
from ..store.vocabulary import CLOCK_EVENTS
from .catalogue import Kind, Probe
from .effort import LEVELS
from .health import GpuHealth, simulated_health

if TYPE_CHECKING:
    from ..simulation.stepping import Readings
    from ..store.journal_file import Ticks
    from .conditions import Asked

INTERVAL_S = 0.1
"""Between two readings beside a probe."""
FAST_S = 0.02
"""The same while it is measured: an energy counter is renewed between two readings, no one knows when."""
_MOST_KEPT_S = 60.0

_COUNTERS = {event.counter: event.name for event in CLOCK_EVENTS if event.counter is not None}
_BITS = {event.bit: event.name for event in CLOCK_EVENTS if event.bit is not None}
_COLUMNS = (
    "power_mw",
    "power_instant_mw",
    "energy_mj",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "temperature_c",
    "clock_event_reasons",
    *_COUNTERS,
)
_FEWEST_S = 0.3  # a counter that is read over less time says little: drivers renew theirs every 20 to 100 ms


@dataclass(frozen=True)
class Reading:
    """The last that is known of a GPU."""

    ts_ns: int
    temperature_c: float | None
    """None where its driver does not tell."""


@dataclass(frozen=True)
class Window:
    """What telemetry says of one GPU between two times; None where nothing is known."""

    readings: int = 0
    sm_clock_mhz: float | None = None
    """A median, as the next three."""
    mem_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    """Of the instantaneous reading where the driver has one."""
    temperature_slope_k_s: float | None = None
    """By least squares, K/s."""
    sm_clock_change_mhz: float | None = None
    """Median SM clock of the window's second half less that of its first."""
    counter_w: float | None = None
    """Mean power by the energy counter, between its first and its last renewal in the window."""
    counter_low_w: float | None = None
    """With `counter_high_w` what it can be at least and at most: a renewal lies between two readings."""
    counter_high_w: float | None = None
    clock_events: Mapping[str, float] | None = None
    """For how long the clock was held down, s, by reason; None where the driver tells of none."""
    shown_w: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Every reading of the board power as the driver shows it, in order of time."""
    shown_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """When each of these was read, s after the window began."""
    instant_w: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The same of the instantaneous power; empty where the driver has none."""


class Watch(Protocol):
    """Where a protocol looks up what the driver says of a GPU."""

    def latest(self, gpu: str) -> Reading | None: ...

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window: ...

    def hurry(self, gpu: str, *, on: bool) -> None:
        """Ask for readings as fast as the sensor has new ones, or no more; where the pace is fixed, nothing happens."""
        ...


class Recent:
    """A `Watch` over the last `seconds` of readings, taken every `interval_s`, of the GPUs named. Thread-safe.

    Of a GPU that is not named it knows nothing. `pace` is told True when some GPU's readings are in a hurry, and
    False when none is any more. `names` are the names by which telemetry tells of GPUs that have another one there: of
    a MIG instance, that of its whole GPU.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        *,
        seconds: float,
        interval_s: float,
        pace: Callable[[bool], None] | None = None,
        names: Mapping[str, str | None] | None = None,
    ) -> None:
        self._position = {gpu: position for position, gpu in enumerate(gpus)}
        self._names = names or {}
        self._size = max(16, round(seconds / interval_s))
        shape = (self._size, len(gpus))
        self._ts = np.zeros(shape, np.int64)
        self._values = np.full((len(_COLUMNS), *shape), np.nan)
        self._next = 0
        self._lock = threading.Lock()
        self._pace, self._hurried = pace, set[str]()
        self._simulated: Readings | None = None
        """The last readings of a simulated fleet, whose energy counters are renewed at every reading."""

    def feed(self, ticks: Ticks) -> None:
        """Take readings, at most one of each GPU; those of other GPUs are passed over."""
        positions = [self._position.get(gpu or "") for _, gpu in ticks.gpus]
        here = [place for place, position in enumerate(positions) if position is not None]
        to = [position for position in positions if position is not None]
        values = ticks.by_name()
        with self._lock:
            at = self._turn()
            self._ts[at, to] = [1000 * ticks.ts[place] for place in here]
            for row, name in enumerate(_COLUMNS):
                if name in values:
                    self._values[row, at, to] = np.array([values[name][place] for place in here], np.float64)

    def feed_readings(self, readings: Readings) -> None:
        """Take what the drivers of a simulated fleet report, whose GPUs are those named, in order."""
        self._simulated = readings
        with self._lock:
            at = self._turn()
            self._ts[at] = np.where(readings.lost, 0, readings.ts_ns)
            for row, name in enumerate(_COLUMNS):
                if name in readings.values:
                    self._values[row, at] = readings.values[name]

    def hurry(self, gpu: str, *, on: bool) -> None:
        """Ask for readings as fast as the sensor has new ones, or no more."""
        with self._lock:
            before = bool(self._hurried)
            (self._hurried.add if on else self._hurried.discard)(gpu)
            after = bool(self._hurried)
        if self._pace and before != after:
            self._pace(after)

    def _turn(self) -> int:
        at = self._next
        self._next = (at + 1) % self._size
        self._ts[at] = 0
        self._values[:, at] = np.nan
        return at

    def _position_of(self, gpu: str) -> int | None:
        return self._position.get(self._names.get(gpu, gpu) or "")

    def latest(self, gpu: str) -> Reading | None:
        """The last reading of a GPU; None where there is none."""
        position = self._position_of(gpu)
        if position is None:
            return None
        with self._lock:
            at = int(self._ts[:, position].argmax())
            ts = int(self._ts[at, position])
            if ts == 0:
                return None
            temperature_c = float(self._values[_COLUMNS.index("temperature_c"), at, position])
        return Reading(ts, None if np.isnan(temperature_c) else temperature_c)

    def health(self, gpu: str) -> GpuHealth | None:
        """The health of a simulated GPU; None of another one, and of one that is lost."""
        readings, position = self._simulated, self._position.get(gpu)
        return None if readings is None or position is None else simulated_health(readings, position)

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        """What was read of a GPU from one time to another, both included (UTC ns)."""
        position = self._position_of(gpu)
        if position is None:
            return Window()
        with self._lock:
            stamps = self._ts[:, position]
            rows = np.flatnonzero((stamps >= max(began_ns, 1)) & (stamps <= ended_ns))  # 0 is none
            if not len(rows):
                return Window()
            rows = rows[np.argsort(stamps[rows])]
            values = dict(zip(_COLUMNS, self._values[:, rows, position], strict=True))
            seconds = (stamps[rows] - began_ns) / 1e9
        instant = values["power_instant_mw"]
        mean, low, high = power_between_renewals(seconds, values["energy_mj"], always=self._simulated is not None)
        return Window(
            readings=len(rows),
            sm_clock_mhz=_median(values["sm_clock_mhz"]),
            mem_clock_mhz=_median(values["mem_clock_mhz"]),
            temperature_c=_median(values["temperature_c"]),
            power_w=_scaled(_median(board_power_of(values))),
            temperature_slope_k_s=_slope(seconds, values["temperature_c"]),
            sm_clock_change_mhz=_change(seconds, values["sm_clock_mhz"], (ended_ns - began_ns) / 2e9),
            counter_w=mean,
            counter_low_w=low,
            counter_high_w=high,
            clock_events=_events(seconds, values, (ended_ns - began_ns) / 1e9),
            shown_w=_present(values["power_mw"]) / 1000,
            shown_s=seconds[~np.isnan(values["power_mw"])],
            instant_w=_present(instant) / 1000,
        )


def recent(
    probes: Sequence[Probe],
    asked: Asked,
    gpus: Sequence[str],
    *,
    interval_s: float,
    pace: Callable[[bool], None] | None = None,
    names: Mapping[str, str | None] | None = None,
) -> Recent:
    """The memory of readings of these GPUs that the windows of the probes need; the last three as in `Recent`."""
    effort = asked.effort
    longest = max(asked.limit_s, effort.slope_s, effort.idle_s)
    if any(probe.kind in (Kind.STAIRCASE, Kind.SCAN) for probe in probes):
        longest = max(longest, len(LEVELS) * (effort.level_s + 2), max(map(effort.expected_s, probes)))
    seconds = min(longest + 5, _MOST_KEPT_S)
    if any(probe.kind is Kind.SQUARE for probe in probes):
        wave_s = max(effort.wave_s, 10 * asked.period_s) + 2
        seconds = max(seconds, wave_s * (interval_s / FAST_S if pace else 1.0))
    return Recent(gpus, seconds=seconds, interval_s=interval_s, pace=pace, names=names)


def _scaled(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _present(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(values[~np.isnan(values)])


def _median(values: NDArray[np.float64]) -> float | None:
    ordered = _present(values)
    if not len(ordered):
        return None
    ordered.sort()  # numpy's own median takes ten times as long for a few values
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _change(seconds: NDArray[np.float64], values: NDArray[np.float64], middle_s: float) -> float | None:
    before, after = _median(values[seconds <= middle_s]), _median(values[seconds > middle_s])
    return None if before is None or after is None else after - before


def _slope(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> float | None:
    present = ~np.isnan(values)
    if present.sum() < 3:
        return None
    at = seconds[present] - seconds[present].mean()
    squares = float(at @ at)
    return float(at @ values[present]) / squares if squares > 0 else None


def power_between_renewals(
    seconds: NDArray[np.float64], counter_mj: NDArray[np.float64], *, always: bool
) -> tuple[float | None, float | None, float | None]:
    """Mean power, W, and the least and the most that it can be, from an energy counter that the driver renews at times.

    A renewal lies between the last reading of an old value and the first of a new one; the mean takes the middle. From
    the first renewal to the last the growth of the counter is exact. None where the counter fell: it was reset.
    """
    present = ~np.isnan(counter_mj)
    at, counter = seconds[present], counter_mj[present]
    steps = np.diff(counter)
    new = np.flatnonzero(steps > 0) + 1
    if len(new) < 2 or steps.min() < 0:
        return None, None, None
    first, last = (int(new[0]) - 1, int(new[-1])) if always else (int(new[0]), int(new[-1]))
    before = (first, last) if always else (first - 1, last - 1)
    joules = float(counter[last] - counter[first]) / 1000
    longest, shortest = float(at[last] - at[before[0]]), float(at[before[1]] - at[first])
    middle = (longest + shortest) / 2
    if middle < _FEWEST_S:
        return None, None, None
    return joules / middle, joules / longest, joules / shortest if shortest > 0 else None


def _rate(seconds: NDArray[np.float64], counter: NDArray[np.float64]) -> float | None:
    """Growth of a counter a second between its first and its last reading; None where it fell: it was reset."""
    present = np.flatnonzero(~np.isnan(counter))
    if len(present) < 2:
        return None
    first, last = present[0], present[-1]
    span, grown = float(seconds[last] - seconds[first]), float(counter[last] - counter[first])
    return grown / span if span >= _FEWEST_S and grown >= 0 else None


def _events(
    seconds: NDArray[np.float64], values: Mapping[str, NDArray[np.float64]], length_s: float
) -> dict[str, float] | None:
    """For how long the clock was held down in a window, by reason: by counters where there are, else by the share
    of the readings that show the reason."""
    seconds_by_reason: dict[str, float] = {}
    counted = set()
    for column, name in _COUNTERS.items():
        rate = _rate(seconds, values[column])
        if rate is not None:
            counted.add(name)
            if rate > 0:
                seconds_by_reason[name] = min(rate / 1e9, 1.0) * length_s
    reasons = _present(values["clock_event_reasons"]).astype(np.int64)
    if len(reasons):
        for bit, name in _BITS.items():
            number = int(np.count_nonzero(reasons & bit))
            if name not in counted and number:
                seconds_by_reason[name] = number / len(reasons) * length_s
    elif not counted:
        return None
    return {name: round(seconds_down, 4) for name, seconds_down in sorted(seconds_by_reason.items())}
