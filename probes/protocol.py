"""How a probe is run on one GPU: load, check, cool down, warm up, measure, check again.

    measured = await measure(device, watch, probe, find_kernel, asked, first=True)

The same code runs over real and simulated devices: all time is the device's, and what takes time is awaited.
docs/probes.md states the rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import numpy as np

from ..errors import DeviceError
from ..kernels.device import Device, Verdict
from ..kernels.work import Kernel, Unfit
from ..store.vocabulary import EndedBy, Outcome
from . import figures as of
from . import overlap
from .conditions import Asked, of_work
from .figures import LATENCY, Figure
from .interval import Interval, interval_of
from .patterns import FINDINGS, memory_size
from .probe import Kind, Probe
from .steps import BATCH_S, SOAK_PART_S, Pulses, Steps, shape
from .watch import Watch, Window

_NAMED_SMS = 4  # in a sentence; the conditions have them all
_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Unrun:
    """Why a probe was not run on a device. This is an answer, not an error."""

    reason: str


@dataclass
class Measured:
    """What a probe found on one GPU."""

    began_ns: int
    """Of the measured window, UTC."""
    ended_ns: int
    window: Window
    figures: list[Figure]
    ended_by: EndedBy
    verdict: Verdict
    conditions: dict[str, object]
    interval: Interval | None = None
    note: str | None = None
    """What somebody should know although no result was wrong."""
    failure: DeviceError | None = None
    """Of a soak: what the GPU failed with; the figures are those until then."""

    @property
    def status(self) -> Outcome:
        """Whether the figures are to be trusted."""
        if self.verdict.wrong:
            return Outcome.WRONG_RESULT
        return Outcome.OK if self.failure is None else Outcome(self.failure.outcome)

    @property
    def status_detail(self) -> str | None:
        """The same in a sentence; None where it is OK."""
        sentences = [wrong_words(self.verdict)] if self.verdict.wrong else []
        sentences += [] if self.failure is None else [str(self.failure)]
        return "; ".join(sentences) or None


def wrong_words(verdict: Verdict) -> str:
    """A sentence for a wrong result."""
    first = f"; the first: {verdict.first}" if verdict.first else ""
    worst = sorted(verdict.by_sm.items(), key=lambda counted: -counted[1])[:_NAMED_SMS]
    by_sm = f"; by multiprocessor: {', '.join(f'{sm}: {wrong:,}' for sm, wrong in worst)}" if worst else ""
    return f"{verdict.wrong:,} of {verdict.elements:,} elements of the result are wrong{first}{by_sm}"


async def measure(
    device: Device,
    watch: Watch,
    probe: Probe,
    find: Callable[[str], Kernel],
    asked: Asked,
    *,
    first: bool,
    ended: Callable[[], bool] = lambda: False,
    warm: Callable[[], bool] = lambda: True,
) -> Measured | Unrun:
    """Run a probe on a device.

    `find` looks up kernels, `first` says that the GPU has not worked yet, `ended` that somebody wants to stop: it is
    asked between two batches, and KeyboardInterrupt raised. `warm` is asked when the GPU is warm, and after each
    further batch until the GPUs that measure at the same time are warm too. DeviceError where the GPU fails.
    """
    on = _Protocol(device, watch, probe, asked, first=first, ended=ended, warm=warm)
    kernel = find(probe.kernel)
    parameters = dict(probe.parameters)
    if asked.input is not None and takes_input(kernel):
        parameters["input"] = asked.input
    match probe.kind:
        case Kind.IDLE:
            return await on.idle(kernel, parameters)
        case Kind.SQUARE:
            return await on.square(kernel, parameters)
        case Kind.STAIRCASE:
            return await on.staircase(kernel, parameters)
        case Kind.SCAN:
            return await on.scan(kernel, parameters)
        case Kind.PATTERNS:
            return await on.patterns(kernel, parameters)
        case Kind.OVERLAP:
            return await on.overlap(kernel, parameters)
        case Kind.SOAK:
            return await on.soak(kernel, parameters)
    return await on.steady(kernel, parameters)


def takes_input(kernel: Kernel) -> bool:
    """Whether the distribution of a kernel's input can be chosen."""
    return "input" in inspect.signature(kernel.build).parameters


class _Protocol(Steps):
    """One probe on one device."""

    def __init__(
        self,
        device: Device,
        watch: Watch,
        probe: Probe,
        asked: Asked,
        *,
        first: bool,
        ended: Callable[[], bool],
        warm: Callable[[], bool],
    ) -> None:
        super().__init__(device, watch, asked, first=first, ended=ended, warm=warm)
        self._probe = probe

    # -- kinds --------------------------------------------------------------------------------------------

    async def steady(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Warm up, then repeat until the median is known well enough."""
        started = await self.start(kernel, parameters)
        if isinstance(started, Unfit):
            return Unrun(started.reason)
        loaded, time_s = started.loaded, started.time_s
        try:
            await self.cool_down()
            if not self.device.simulated:  # whose energy counter is renewed at every reading
                self.watch.hurry(self.gpu, on=True)
            time_s = await self.warm_up(loaded, time_s, self.most_warm_up_s, by_times_alone=False)
            got = await self.repeat(loaded, time_s, self.effort.least_s, self.asked.limit_s)
            await self.check(loaded)
        finally:
            self.watch.hurry(self.gpu, on=False)
            loaded.unload()
        window = self.watch.window(self.gpu, got.began_ns, got.ended_ns)
        rows = of.of_times(got.times_ms, got.interval)
        rows += of.of_work(loaded.work, got.interval.median, serial=self._probe.figure.startswith(LATENCY))
        energy, source = of.of_energy(loaded.work, got.interval.median, window)
        self.found.conditions |= {
            "repeats": got.interval.n,
            "each": got.each,
            "block": got.interval.block,
            "independent": got.interval.settled,
            "drift": of.drift(got.times_ms),
            "energy_from": source,
        }
        return self._measured(got.began_ns, got.ended_ns, window, rows + energy, got.ended_by, got.interval)

    async def scan(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """The kernel at several values of one parameter, each warmed up and measured for a short while."""
        assert self._probe.scan is not None, "a probe of kind SCAN says what it scans"
        name, values = self._probe.scan
        rows: list[Figure] = []
        began_ns: int | None = None
        ended_ns, reasons, enough = 0, [], True
        await self.cool_down()
        for value in values:
            started = await self.start(kernel, parameters | {name: value})
            if isinstance(started, Unfit):
                reasons.append(started.reason)
                continue
            loaded, time_s = started.loaded, started.time_s
            try:
                time_s = await self.warm_up(loaded, time_s, self.effort.scan_s, by_times_alone=True)
                got = await self.repeat(loaded, time_s, self.effort.scan_s / 4, self.effort.scan_s)
                await self.check(loaded)
            finally:
                loaded.unload()
            began_ns = got.began_ns if began_ns is None else began_ns
            ended_ns, enough = got.ended_ns, enough and got.ended_by == EndedBy.PRECISE
            at = of.of_times(got.times_ms, got.interval)
            at += of.of_work(loaded.work, got.interval.median, serial=self._probe.figure.startswith(LATENCY))
            rows += [Figure(f"{row.name}_at_{value}", row.unit, row.value, row.repeat) for row in at]
            rows.append(Figure(f"repeats_at_{value}", "", float(got.interval.n)))
        if began_ns is None:
            return Unrun(reasons[0])
        self.found.conditions |= {"scanned": name, "values": list(values)}
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        return self._measured(began_ns, ended_ns, window, rows, EndedBy.PRECISE if enough else EndedBy.TIME_LIMIT)

    async def idle(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Work is loaded, so that the GPU has a context, and is not run: settle, then watch."""
        work = kernel.build(self.device.facts, **parameters)
        if isinstance(work, Unfit):
            return Unrun(work.reason)
        loaded = await self.load(work)
        try:
            await self.cool_down()
            await self.rest(self.effort.idle_s)
            began_ns = self.device.now_ns()
            await self.rest(self.effort.idle_s)
            ended_ns = self.device.now_ns()
        finally:
            loaded.unload()
        self.found.works.clear()  # none ran
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        watts = window.counter_w if window.counter_w is not None else window.power_w
        rows = [] if watts is None else [Figure("power", "W", watts)]
        return self._measured(began_ns, ended_ns, window, rows, EndedBy.COMPLETE)

    async def staircase(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Rising shares of load, each held for a while; the power of a level is that of its second half."""
        rows: list[Figure] = []
        await self.cool_down()
        began_ns, ended_ns = self.device.now_ns(), 0
        for share in _LEVELS:
            if share == 0:
                from_ns = self.device.now_ns()
                await self.rest(self.effort.level_s)
                ended_ns = self.device.now_ns()
            else:
                started = await self.start(kernel, parameters | {"share": share})
                if isinstance(started, Unfit):
                    return Unrun(started.reason)
                loaded, time_s = started.loaded, started.time_s
                try:
                    from_ns, ended_ns = await self.keep_busy(loaded, time_s, self.effort.level_s)
                    await self.check(loaded)
                finally:
                    loaded.unload()
            window = self.watch.window(self.gpu, (from_ns + ended_ns) // 2, ended_ns)
            if window.power_w is not None:
                rows.append(Figure(f"power_at_{round(100 * share)}", "W", window.power_w))
        whole_window = self.watch.window(self.gpu, began_ns, ended_ns)
        return self._measured(began_ns, ended_ns, whole_window, rows, EndedBy.COMPLETE)

    async def square(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Load and rest in turns; before that, steady load and steady rest for comparison."""
        started = await self.start(kernel, parameters)
        if isinstance(started, Unfit):
            return Unrun(started.reason)
        loaded, time_s = started.loaded, started.time_s
        period_s, load_s = self.asked.period_s, self.asked.period_s * self.asked.duty
        try:
            await self.cool_down()
            time_s = await self.warm_up(loaded, time_s, self.most_warm_up_s, by_times_alone=False)
            if time_s > load_s:
                return Unrun(
                    f"one repetition takes {1000 * time_s:.3g} ms, longer than the wave's load of "
                    f"{1000 * load_s:.3g} ms: choose a longer --period or a larger --duty"
                )
            self.watch.hurry(self.gpu, on=True)
            busy = await self.keep_busy(loaded, time_s, self.effort.level_s)
            load_w = self.shown(busy[1])
            await self.rest(self.effort.level_s)
            rest_w = self.shown(self.device.now_ns())
            fall = self.watch.window(self.gpu, busy[1], self.device.now_ns())
            wave = await self.wave(loaded, time_s, period_s, load_s)
            await self.check(loaded)
        finally:
            self.watch.hurry(self.gpu, on=False)
            loaded.unload()
        began_ns, ended_ns, busy_s = wave
        seconds = (ended_ns - began_ns) / 1e9
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        rows = of.of_square(window, load_w, rest_w, fall, seconds)
        rows.append(Figure("duty_found", "%", 100 * busy_s / seconds))
        return self._measured(began_ns, ended_ns, window, rows, EndedBy.COMPLETE)

    async def patterns(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Every turn of the kernel at least once, for the time of the suite; then where it found errors."""
        if kernel.name == "memory" and "size" not in parameters:
            size = memory_size(self.device)
            if isinstance(size, str):
                return Unrun(size)
            parameters["size"] = size
        work = kernel.build(self.device.facts, **parameters)
        if isinstance(work, Unfit):
            return Unrun(work.reason)
        loaded = await self.load(work)
        try:
            time_s = await self.attempt(loaded)
            await self.cool_down()
            began_ns, times, turns = self.device.now_ns(), [], len(work.turns)
            limit_s = self.asked.time_limit_s or self.effort.least_s
            while True:
                repeats, each = shape(loaded, time_s, max(BATCH_S, turns * time_s))
                repeats = max(repeats, ceil(turns / each))
                times.append(await self.run_batch(loaded, repeats, each, time_s))
                time_s = float(np.median(times[-1])) / 1000
                ended_ns = self.device.now_ns()
                if (ended_ns - began_ns) / 1e9 + repeats * each * time_s > limit_s:
                    break
            await self.check(loaded)
            buffer, understand = FINDINGS[kernel.name]
            findings = understand(await loaded.read(buffer), work, self.device.facts)
        finally:
            loaded.unload()
        if findings.detail is not None:
            self.found.verdict = replace(self.found.verdict, first=findings.detail)
        times_ms = np.concatenate(times)
        interval = interval_of(times_ms)
        self.found.conditions |= {"repeats": interval.n, "each": each} | dict(findings.conditions)
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        rows = [*of.of_times(times_ms, interval), *of.of_work(work, interval.median, serial=False), *findings.figures]
        measured = self._measured(began_ns, ended_ns, window, rows, EndedBy.COMPLETE)
        return replace(measured, note=findings.note)

    async def overlap(self, kernel: Kernel, given: dict[str, float | int | str]) -> Measured | Unrun:
        """Warm up, make the kernels as long as the copies beside them, then measure both together and apart."""
        started = await self.start(kernel, given)
        if isinstance(started, Unfit):
            return Unrun(started.reason)
        loaded = started.loaded
        try:
            await self.cool_down()
            time_s = await self.warm_up(loaded, started.time_s, self.most_warm_up_s, by_times_alone=False)
            loaded = await overlap.balanced(self, loaded, kernel, given)
            got = await overlap.measured(self, loaded, time_s)
            await self.check(loaded)
        finally:
            loaded.unload()
        interval = got.interval
        self.found.conditions |= {
            "repeats": interval.n,
            "each": got.repetitions,
            "block": interval.block,
            "independent": interval.settled,
            "drift": of.drift(got.pairs.times_ms),
        }
        window = self.watch.window(self.gpu, got.began_ns, got.ended_ns)
        rows = overlap.figures(loaded.work, got)
        return self._measured(got.began_ns, got.ended_ns, window, rows, got.ended_by, interval)

    async def soak(self, kernel: Kernel, parameters: dict[str, float | int | str]) -> Measured | Unrun:
        """Steady load and pulses of load in turns until the time is over; all of it is checked, a part at a time.

        A GPU that fails, or somebody who stops it, ends it early, and what was found until then is kept.
        """
        started = await self.start(kernel, parameters)
        if isinstance(started, Unfit):
            return Unrun(started.reason)
        loaded, time_s, asked = started.loaded, started.time_s, self.asked
        medians_ms: list[float] = []
        ended_by, failure = EndedBy.TIME_LIMIT, None
        try:
            began_ns = ended_ns = self.device.now_ns()
            while ended_by is EndedBy.TIME_LIMIT and ended_ns - began_ns < 1e9 * asked.soak_s:
                part_s = min(SOAK_PART_S, asked.soak_s - (ended_ns - began_ns) / 1e9)
                pulses = Pulses(asked.period_s, asked.duty) if len(medians_ms) % 2 else Pulses(1.0, 1.0)
                times_ms: list[float] = []
                try:
                    await self.pulse(loaded, time_s, pulses, ceil(part_s / pulses.period_s), times_ms)
                except KeyboardInterrupt:
                    if not (times_ms or medians_ms):
                        raise
                    ended_by = EndedBy.STOPPED
                verdict = await self.check(loaded)
                if times_ms:
                    medians_ms.append(median(times_ms))
                    time_s = medians_ms[-1] / 1000
                ended_ns = self.device.now_ns()
                if verdict.wrong and asked.until_wrong:
                    ended_by = EndedBy.WRONG
        except DeviceError as error:
            if not medians_ms:
                raise
            ended_by, failure = EndedBy.FAILED, error
        finally:
            loaded.unload()
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        rows = of.of_soak(medians_ms, self.found.verdict.repetitions)
        rows += of.of_work(loaded.work, median(medians_ms), serial=False)
        return replace(self._measured(began_ns, ended_ns, window, rows, ended_by), failure=failure)

    def _measured(
        self,
        began_ns: int,
        ended_ns: int,
        window: Window,
        rows: list[Figure],
        ended_by: EndedBy,
        interval: Interval | None = None,
    ) -> Measured:
        findings = self.found
        if findings.works:
            rows = rows + of.of_verdict(findings.verdict, findings.repetitions)
        conditions = of_work(findings.works) | findings.conditions | {"readings": window.readings}
        if findings.verdict.by_sm:
            conditions["wrong_by_sm"] = {str(sm): wrong for sm, wrong in findings.verdict.by_sm.items()}
        return Measured(began_ns, ended_ns, window, rows, ended_by, findings.verdict, conditions, interval)
