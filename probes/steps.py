"""The steps of every probe on one device: load, try, cool down, warm up, repeat, rest.

docs/how-we-know/probes.md states their rules, `protocol` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from ..kernels.device import Device, Loaded, Timed, Verdict
from ..kernels.sizing import scaled
from ..kernels.work import Kernel, Unfit, Work
from ..store.vocabulary import EndedBy
from .catalogue import Probe
from .conditions import Asked
from .effort import CLIMBING_SHARE, FEWEST_REPEATS, REPEAT_S, SENSOR_S, STEADY_BATCHES, STEADY_SHARE, Effort
from .figures import Interval, interval_of
from .watch import Watch

_FIRST_LIMIT_S = 60.0
"""A first repetition that takes longer hangs."""
_HANG_FACTOR, _HANG_S = 10.0, 30.0
"""A batch that takes so many times as long as expected, and that much more, hangs."""
BATCH_S = 0.2  # of a warm-up
SOAK_PART_S = 10.0
"""Of a soak: after so long it is checked, and steady load and pulses take turns."""
_MEANT_S, _SHORT_S, _LONG_S = 6e-3, 1e-3, 40e-3
"""How long a repetition is meant to take, about, and when it is built for other rates."""
_LOOK_S = 1.0  # between two looks at the temperature while a GPU cools down
_CLOCK_SHARE = 0.005  # by which the median clocks of the two halves of a steady span may differ
_ENOUGH = 20_000  # repeats: more would not fit a result table for anybody's use


@dataclass(frozen=True)
class Pulses:
    """Load for the share `duty` of every `period_s`."""

    period_s: float
    duty: float

    @property
    def load_s(self) -> float:
        return self.period_s * self.duty


@dataclass(frozen=True)
class Repeats:
    """What a measurement of one work came to."""

    times_ms: NDArray[np.float64]
    interval: Interval
    began_ns: int
    ended_ns: int
    each: int
    ended_by: EndedBy


class UnfitError(Exception):
    """A probe cannot be run on a device, for the reason that it holds. This is an answer, not an error."""


Parameters = dict[str, float | int | str]
"""Of a kernel's `build`."""


@dataclass(frozen=True)
class Task:
    """A probe that a GPU is to run."""

    probe: Probe
    asked: Asked
    first: bool
    """Whether the GPU has not worked yet."""


@dataclass
class Steps:
    """The steps of one probe on one device, and what comes together on the way. The arguments are `protocol.measure`'s.

    One work is loaded at a time, until the next one is, or until `leave`.
    """

    device: Device
    watch: Watch
    task: Task
    kernel: Kernel
    parameters: Parameters
    ended: Callable[[], bool]
    warm: Callable[[], bool]
    works: list[Work] = field(default_factory=list)
    verdict: Verdict = field(default_factory=lambda: Verdict(0, 0))
    """Of all checks together."""
    repetitions: int = 0
    """That ran: of trials, warm-up and measurement."""
    conditions: dict[str, object] = field(default_factory=dict)
    _loaded: Loaded | None = None
    _hurried: bool = False

    @property
    def asked(self) -> Asked:
        return self.task.asked

    @property
    def effort(self) -> Effort:
        return self.asked.effort

    @property
    def gpu(self) -> str:
        return self.device.facts.gpu

    @property
    def most_warm_up_s(self) -> float:
        """How long this GPU may warm up."""
        return self.effort.first_warm_up_s if self.task.first else self.effort.warm_up_s

    def leave(self) -> None:
        """Unload what is loaded, and ask for readings in a hurry no more."""
        if self._hurried:
            self.watch.hurry(self.gpu, on=False)
        self._unload()

    def _unload(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.unload()

    def hurry(self) -> None:
        """Ask for readings as fast as the sensor has new ones."""
        self._hurried = True
        self.watch.hurry(self.gpu, on=True)

    def build(self, **parameters: float | int | str) -> Work:
        """The work for this device, with these parameters beside those of the probe."""
        work = self.kernel.build(self.device.facts, **self.parameters, **parameters)
        if isinstance(work, Unfit):
            raise UnfitError(work.reason)
        return work

    async def load(self, work: Work) -> Loaded:
        self._look()
        self._unload()
        if work.memory_bytes > self.device.facts.memory_bytes:
            raise DeviceError(
                f"{self.gpu}: {work.kernel} takes {work.memory_bytes:,} B, more than the "
                f"{self.device.facts.memory_bytes:,} B of the GPU: choose smaller parameters"
            )
        self._loaded = await self.device.load(work, seed=self.asked.seed)
        self.works.append(work)
        return self._loaded

    async def start(self, **parameters: float | int | str) -> tuple[Loaded, float]:
        """Build the work, load it and try it; the answer is also how long a repetition takes, s.

        The rates of a device, from which sizes follow, are what its driver tells, and may be far off. So a work that
        takes much longer or shorter than meant is built once more, for rates that are scaled by what was measured.
        """
        work = self.build(**parameters)
        loaded, time_s = await self.load_and_try(work)
        if _SHORT_S <= time_s <= _LONG_S:
            return loaded, time_s
        facts = scaled(self.device.facts, _MEANT_S / time_s)
        resized = self.kernel.build(facts, **self.parameters, **parameters)
        if isinstance(resized, Unfit) or (resized.flop, resized.bytes) == (work.flop, work.bytes):
            return loaded, time_s
        self.works.remove(work)
        return await self.load_and_try(resized)

    async def load_and_try(self, work: Work) -> tuple[Loaded, float]:
        loaded = await self.load(work)
        return loaded, await self.attempt(loaded)

    async def attempt(self, loaded: Loaded) -> float:
        """Run it once over poisoned outputs and check them, then once more; the answer is how long a repetition takes,
        s.

        The first run may include what is done once only: loading code, capturing a graph. So everything is poisoned
        again, and what is timed, warmed up with and measured finds no result but its own.
        """
        await loaded.poison()
        await self._run(loaded, 1, 1, _FIRST_LIMIT_S)
        await self.check(loaded)
        await loaded.poison()
        timed = await self._run(loaded, 1, 1, _FIRST_LIMIT_S)
        return max(float(timed.times_ms[0]) / 1000, 1e-7)

    async def check(self, loaded: Loaded) -> Verdict:
        """Check what has run since the last check."""
        verdict = await loaded.check()
        self.verdict += verdict
        return verdict

    async def _run(self, loaded: Loaded, repeats: int, each: int, limit_s: float) -> Timed:
        timed = await loaded.run(repeats, each=each, limit_s=limit_s)
        self.repetitions += timed.repetitions
        return timed

    async def cool_down(self) -> None:
        """Wait until the GPU is as cool as asked, or the time for that is over."""
        began_ns, asked_c = self.device.now_ns(), self.asked.start_temperature_c
        latest = self.watch.latest(self.gpu)
        while asked_c is not None and latest is not None and latest.temperature_c is not None:
            waited_s = (self.device.now_ns() - began_ns) / 1e9
            if latest.temperature_c <= asked_c or waited_s >= self.asked.cool_down_s:
                break
            await self.rest(_LOOK_S)
            latest = self.watch.latest(self.gpu)
        self.conditions |= {
            "start_temperature_c": None if latest is None else latest.temperature_c,
            "cool_down_s": round((self.device.now_ns() - began_ns) / 1e9, 3),
        }

    async def warm_up(self, loaded: Loaded, time_s: float, limit_s: float, *, by_times_alone: bool) -> float:
        """Run batches until they are steady or the limit is reached; the answer is how long a repetition takes, s."""
        began_ns = self.device.now_ns()
        medians: list[float] = []
        steady = False
        while not steady:
            repeats, each = shape(loaded, time_s, BATCH_S)
            timed = await self.run_batch(loaded, repeats, each, time_s)
            medians.append(median(timed.tolist()) / 1000)
            time_s = medians[-1]
            spent_s = (self.device.now_ns() - began_ns) / 1e9
            steady = _within(medians, STEADY_SHARE) and (by_times_alone or self._settled(began_ns))
            # A GPU that rested for long climbs from its lowest clock: it is not cut off on the way.
            most_s = limit_s if _within(medians, CLIMBING_SHARE) else max(limit_s, self.effort.first_warm_up_s)
            if spent_s + max(BATCH_S, time_s) > most_s:
                break
        while not by_times_alone and not self.warm():
            times = await self.run_batch(loaded, *shape(loaded, time_s, BATCH_S), time_s)
            time_s = median(times.tolist()) / 1000
        self.conditions |= {
            "steady": bool(steady) and bool(self.conditions.get("steady", True)),
            "warm_up_s": round((self.device.now_ns() - began_ns) / 1e9, 3),
        }
        return time_s

    def _settled(self, began_ns: int) -> bool:
        """Whether clock and temperature have kept still; True where no telemetry tells."""
        now_ns = self.device.now_ns()
        from_ns = now_ns - round(self.effort.slope_s * 1e9)
        if self.watch.latest(self.gpu) is None:
            return True
        if from_ns < began_ns:
            return False
        window = self.watch.window(self.gpu, from_ns, now_ns)
        slope = window.temperature_slope_k_s
        if slope is not None and abs(slope) >= self.effort.slope_k_s:
            return False
        change, clock = window.sm_clock_change_mhz, window.sm_clock_mhz
        return change is None or clock is None or abs(change) <= _CLOCK_SHARE * clock

    async def repeat(self, loaded: Loaded, time_s: float, least_s: float, limit_s: float) -> Repeats:
        """Repeat until the median is known as well as asked; the first and last of each batch are not counted."""
        each = _each(loaded, time_s)
        repeat_s = each * time_s
        most = max(FEWEST_REPEATS, min(int(limit_s / repeat_s) - 2, _ENOUGH))
        want = min(most, max(self.asked.least_repeats, ceil(least_s / repeat_s)))
        parts: list[NDArray[np.float64]] = []
        began_ns, ended_ns, have = None, 0, 0
        while True:
            self._look()
            count = want - have
            timed = await self._run(loaded, count + 2, each, _HANG_S + _HANG_FACTOR * (count + 2) * each * time_s)
            parts.append(timed.times_ms[1:-1])
            have += count
            began_ns = timed.began_ns if began_ns is None else began_ns
            ended_ns = timed.ended_ns
            times = np.concatenate(parts)
            interval = interval_of(times)
            relative = interval.relative
            if have >= self.asked.least_repeats and relative is not None and relative <= self.asked.half_width:
                if interval.settled:
                    return Repeats(times, interval, began_ns, ended_ns, each, EndedBy.PRECISE)
                relative = 2 * self.asked.half_width  # the blocks are too few: more are needed
            repeats_left = int((limit_s - (ended_ns - began_ns) / 1e9) / repeat_s) - 2
            if min(repeats_left, most - have) < 1:
                ended_by = EndedBy.MOST_REPEATS if have >= _ENOUGH else EndedBy.TIME_LIMIT
                return Repeats(times, interval, began_ns, ended_ns, each, ended_by)
            # The interval narrows with the root of the number; at most twice as many, as that is an estimate.
            repeats_more = have if relative is None else ceil(have * ((relative / self.asked.half_width) ** 2 - 1))
            want = have + min(max(repeats_more, 10), have, repeats_left, most - have)

    async def keep_busy(self, loaded: Loaded, time_s: float, seconds: float) -> tuple[int, int]:
        """Run for a time; the answer is when that began and ended, UTC ns."""
        began_ns = self.device.now_ns()
        while (left_s := seconds - (self.device.now_ns() - began_ns) / 1e9) > 0:
            repeats, each = shape(loaded, time_s, max(min(left_s, 1.0), time_s))
            times = await self.run_batch(loaded, repeats, each, time_s)
            time_s = median(times.tolist()) / 1000
        return began_ns, self.device.now_ns()

    async def wave(self, loaded: Loaded, time_s: float, pulses: Pulses) -> tuple[int, int, float]:
        """Load and rest in turns; the answer is when that began and ended, UTC ns, and how long work ran, s.

        The first turns are not counted: a sensor may still average over what was before.
        """
        times_ms: list[float] = []
        time_s = await self.pulse(loaded, time_s, pulses, ceil(SENSOR_S / pulses.period_s), [])
        began_ns = self.device.now_ns()
        await self.pulse(loaded, time_s, pulses, max(10, ceil(self.effort.wave_s / pulses.period_s)), times_ms)
        return began_ns, self.device.now_ns(), sum(times_ms) / 1000

    async def pulse(self, loaded: Loaded, time_s: float, pulses: Pulses, count: int, times_ms: list[float]) -> float:
        """A number of pulses; the time of each repetition is added to `times_ms`, the answer is the last median, s.

        One that ends late does not shift the next ones, as long as they catch up. With a duty of 1 none rests.
        """
        began_ns = self.device.now_ns()
        for number in range(1, count + 1):
            times = (await self.run_batch(loaded, max(1, round(pulses.load_s / time_s)), 1, time_s)).tolist()
            times_ms += times
            time_s = median(times) / 1000
            left_s = number * pulses.period_s - (self.device.now_ns() - began_ns) / 1e9
            if pulses.duty < 1 and left_s > 0:
                await self.device.pause(left_s)
        return time_s

    async def run_batch(self, loaded: Loaded, repeats: int, each: int, time_s: float) -> NDArray[np.float64]:
        self._look()
        timed = await self._run(loaded, repeats, each, _HANG_S + _HANG_FACTOR * repeats * each * time_s)
        return timed.times_ms

    async def batch_of_both(
        self, loaded: Loaded, repetitions: int, *, apart: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each repetition of a work that has copies beside its turns: when the turn was done, and all of it, ms."""
        self._look()
        timed = await loaded.run(repetitions, limit_s=_FIRST_LIMIT_S, apart=apart)
        self.repetitions += timed.repetitions
        assert timed.turns_ms is not None
        return timed.turns_ms, timed.times_ms

    async def rest(self, seconds: float) -> None:
        self._look()
        await self.device.pause(seconds)

    def shown(self, to_ns: int) -> float | None:
        """What the power sensor showed in the last part of a level, W: a sensor may average over a second."""
        from_ns = to_ns - round(_SHOWN_S * 1e9)
        readings_w = self.watch.window(self.gpu, from_ns, to_ns).shown_w
        return float(np.median(readings_w)) if len(readings_w) else None

    def _look(self) -> None:
        if self.ended():
            raise KeyboardInterrupt


_SHOWN_S = 0.4


def _each(loaded: Loaded, time_s: float) -> int:
    """Repetitions in a repeat: of a work with laps a divisor of a lap, which wastes none."""
    each, lap = max(1, ceil(REPEAT_S / time_s)), loaded.work.lap
    return next((divisor for divisor in range(each, lap) if lap % divisor == 0), lap) if lap else each


def shape(loaded: Loaded, time_s: float, seconds: float) -> tuple[int, int]:
    """Repeats, and repetitions in each, that take about so long."""
    each = _each(loaded, time_s)
    return max(1, round(seconds / (each * time_s))), each


def _within(medians: list[float], share: float) -> bool:
    """Whether the last batches lie within a share of their median of each other."""
    last = medians[-STEADY_BATCHES:]
    return len(last) == STEADY_BATCHES and max(last) - min(last) <= share * median(last)
