"""How a probe is run on one GPU: load, check, cool down, warm up, measure, check again.

    measured = await measure(device, watch, Task(probe, asked, first=True), find_kernel)

The same code runs over real and simulated devices: all time is the device's, and what takes time is awaited.
docs/how-we-know/probes.md states the rules.
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
from ..kernels.work import Kernel, Work
from ..store.vocabulary import EndedBy, Outcome
from . import figures as of
from . import overlap
from .catalogue import Kind
from .conditions import of_work
from .effort import LEVELS
from .figures import LATENCY, Figure, interval_of
from .patterns import FINDINGS, memory_size
from .steps import BATCH_S, SOAK_PART_S, Pulses, Repeats, Steps, Task, UnfitError, shape
from .watch import Watch, Window

_NAMED_SMS = 4  # in a sentence; the conditions have them all


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
    note: str | None = None
    """What somebody should know although no result was wrong."""
    failure: DeviceError | None = None
    """What the GPU failed with; the figures are those until then, of a soak, or none."""

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


def failed(at_ns: int, error: DeviceError) -> Measured:
    """Of a probe that ended at a time by an error: no figures."""
    return Measured(at_ns, at_ns, Window(), [], EndedBy.FAILED, Verdict(0, 0), {}, failure=error)


def wrong_words(verdict: Verdict) -> str:
    """A sentence for a wrong result."""
    first = f"; the first: {verdict.first}" if verdict.first else ""
    worst = sorted(verdict.by_sm.items(), key=lambda counted: -counted[1])[:_NAMED_SMS]
    by_sm = f"; by multiprocessor: {', '.join(f'{sm}: {wrong:,}' for sm, wrong in worst)}" if worst else ""
    return f"{verdict.wrong:,} of {verdict.elements:,} elements of the result are wrong{first}{by_sm}"


async def measure(
    device: Device,
    watch: Watch,
    task: Task,
    find: Callable[[str], Kernel],
    *,
    ended: Callable[[], bool] = lambda: False,
    warm: Callable[[], bool] = lambda: True,
) -> Measured | Unrun:
    """Run a probe on a device.

    `find` looks up kernels, `ended` says that somebody wants to stop: it is asked between two batches, and
    KeyboardInterrupt raised. `warm` is asked when the GPU is warm, and after each further batch until the GPUs that
    measure at the same time are warm too. DeviceError where the GPU fails.
    """
    kernel = find(task.probe.kernel)
    parameters = dict(task.probe.parameters)
    if task.asked.input is not None and takes_input(kernel):
        parameters["input"] = task.asked.input
    on = _Protocol(device, watch, task, kernel, parameters, ended, warm)
    try:
        match task.probe.kind:
            case Kind.IDLE:
                return await on.idle()
            case Kind.SQUARE:
                return await on.square()
            case Kind.STAIRCASE:
                return await on.staircase()
            case Kind.SCAN:
                return await on.scan()
            case Kind.PATTERNS:
                return await on.patterns()
            case Kind.OVERLAP:
                return await on.overlap()
            case Kind.SOAK:
                return await on.soak()
        return await on.steady()
    except UnfitError as reason:
        return Unrun(str(reason))
    finally:
        on.leave()


def takes_input(kernel: Kernel) -> bool:
    """Whether the distribution of a kernel's input can be chosen."""
    return "input" in inspect.signature(kernel.build).parameters


class _Protocol(Steps):
    """One probe on one device: a method for each kind."""

    async def steady(self) -> Measured:
        """Warm up, then repeat until the median is known well enough."""
        loaded, time_s = await self.start()
        await self.cool_down()
        if not self.device.simulated:  # whose energy counter is renewed at every reading
            self.hurry()
        time_s = await self.warm_up(loaded, time_s, self.most_warm_up_s, by_times_alone=False)
        got = await self.repeat(loaded, time_s, self.effort.least_s, self.asked.limit_s)
        await self.check(loaded)
        window = self.watch.window(self.gpu, got.began_ns, got.ended_ns)
        energy, source = of.of_energy(loaded.work, got.interval.median, window)
        self.conditions |= _conditions_of(got) | {"energy_from": source}
        rows = self._times_and_rates(loaded.work, got) + energy
        return self._measured(got.began_ns, got.ended_ns, rows, got.ended_by, window)

    async def scan(self) -> Measured:
        """The kernel at several values of one parameter, each warmed up and measured for a short while."""
        assert self.task.probe.scan is not None, "a probe of kind SCAN says what it scans"
        name, values = self.task.probe.scan
        rows: list[Figure] = []
        measured: list[Repeats] = []
        reasons = []
        await self.cool_down()
        for value in values:
            try:
                loaded, time_s = await self.start(**{name: value})
            except UnfitError as reason:
                reasons.append(reason)
                continue
            time_s = await self.warm_up(loaded, time_s, self.effort.scan_s, by_times_alone=True)
            got = await self.repeat(loaded, time_s, self.effort.scan_s / 4, self.effort.scan_s)
            await self.check(loaded)
            measured.append(got)
            at = self._times_and_rates(loaded.work, got)
            rows += [Figure(f"{row.name}_at_{value}", row.unit, row.value, row.repeat) for row in at]
            rows.append(Figure(f"repeats_at_{value}", "", float(got.interval.n)))
        if not measured:
            raise reasons[0]
        self.conditions |= {"scanned": name, "values": list(values)}
        began_ns, ended_ns = measured[0].began_ns, measured[-1].ended_ns
        precise = all(got.ended_by == EndedBy.PRECISE for got in measured)
        return self._measured(began_ns, ended_ns, rows, EndedBy.PRECISE if precise else EndedBy.TIME_LIMIT)

    async def idle(self) -> Measured:
        """Work is loaded, so that the GPU has a context, and is not run: settle, then watch."""
        await self.load(self.build())
        await self.cool_down()
        await self.rest(self.effort.idle_s)
        began_ns = self.device.now_ns()
        await self.rest(self.effort.idle_s)
        ended_ns = self.device.now_ns()
        self.works.clear()  # none ran
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        watts = window.counter_w if window.counter_w is not None else window.power_w
        rows = [] if watts is None else [Figure("power", "W", watts)]
        return self._measured(began_ns, ended_ns, rows, EndedBy.COMPLETE, window)

    async def staircase(self) -> Measured:
        """Rising shares of load, each held for a while; the power of a level is that of its second half."""
        rows: list[Figure] = []
        await self.cool_down()
        began_ns, ended_ns = self.device.now_ns(), 0
        for share in LEVELS:
            if share == 0:
                from_ns = self.device.now_ns()
                await self.rest(self.effort.level_s)
                ended_ns = self.device.now_ns()
            else:
                loaded, time_s = await self.start(share=share)
                from_ns, ended_ns = await self.keep_busy(loaded, time_s, self.effort.level_s)
                await self.check(loaded)
            window = self.watch.window(self.gpu, (from_ns + ended_ns) // 2, ended_ns)
            if window.power_w is not None:
                rows.append(Figure(f"power_at_{round(100 * share)}", "W", window.power_w))
        return self._measured(began_ns, ended_ns, rows, EndedBy.COMPLETE)

    async def square(self) -> Measured:
        """Load and rest in turns; before that, steady load and steady rest for comparison."""
        loaded, time_s = await self.start()
        pulses = Pulses(self.asked.period_s, self.asked.duty)
        await self.cool_down()
        time_s = await self.warm_up(loaded, time_s, self.most_warm_up_s, by_times_alone=False)
        if time_s > pulses.load_s:
            raise UnfitError(
                f"one repetition takes {1000 * time_s:.3g} ms, longer than the wave's load of "
                f"{1000 * pulses.load_s:.3g} ms: choose a longer period or a larger duty"
            )
        self.hurry()
        busy = await self.keep_busy(loaded, time_s, self.effort.level_s)
        load_w = self.shown(busy[1])
        await self.rest(self.effort.level_s)
        rest_w = self.shown(self.device.now_ns())
        fall = self.watch.window(self.gpu, busy[1], self.device.now_ns())
        began_ns, ended_ns, busy_s = await self.wave(loaded, time_s, pulses)
        await self.check(loaded)
        seconds = (ended_ns - began_ns) / 1e9
        window = self.watch.window(self.gpu, began_ns, ended_ns)
        rows = of.of_square(window, load_w, rest_w, fall, seconds)
        rows.append(Figure("duty_found", "%", 100 * busy_s / seconds))
        return self._measured(began_ns, ended_ns, rows, EndedBy.COMPLETE, window)

    async def patterns(self) -> Measured:
        """Every turn of the kernel at least once, for the time of the suite; then where it found errors."""
        if self.kernel.name == "memory" and "size" not in self.parameters:
            size = memory_size(self.device)
            if isinstance(size, str):
                raise UnfitError(size)
            self.parameters["size"] = size
        work = self.build()
        loaded, time_s = await self.load_and_try(work)
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
        buffer, understand = FINDINGS[self.kernel.name]
        findings = understand(await loaded.read(buffer), work, self.device.facts)
        if findings.detail is not None:
            self.verdict = replace(self.verdict, first=findings.detail)
        times_ms = np.concatenate(times)
        interval = interval_of(times_ms)
        self.conditions |= {"repeats": interval.n, "each": each} | dict(findings.conditions)
        rows = [*of.of_times(times_ms, interval), *of.of_work(work, interval.median, serial=False), *findings.figures]
        measured = self._measured(began_ns, ended_ns, rows, EndedBy.COMPLETE)
        return replace(measured, note=findings.note)

    async def overlap(self) -> Measured:
        """Warm up, make the kernels as long as the copies beside them, then measure both together and apart."""
        loaded, time_s = await self.start()
        await self.cool_down()
        time_s = await self.warm_up(loaded, time_s, self.most_warm_up_s, by_times_alone=False)
        loaded = await overlap.balanced(self, loaded)
        pairs, got = await overlap.measured(self, loaded, time_s)
        await self.check(loaded)
        self.conditions |= _conditions_of(got)
        rows = overlap.figures(loaded.work, pairs, got.interval)
        return self._measured(got.began_ns, got.ended_ns, rows, got.ended_by)

    async def soak(self) -> Measured:
        """Steady load and pulses of load in turns until the time is over; all of it is checked, a part at a time.

        A GPU that fails, or somebody who stops it, ends it early, and what was found until then is kept.
        """
        loaded, time_s = await self.start()
        asked, medians_ms = self.asked, list[float]()
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
        rows = of.of_soak(medians_ms, self.verdict.repetitions)
        rows += of.of_work(loaded.work, median(medians_ms), serial=False)
        return replace(self._measured(began_ns, ended_ns, rows, ended_by), failure=failure)

    def _times_and_rates(self, work: Work, got: Repeats) -> list[Figure]:
        rows = of.of_times(got.times_ms, got.interval)
        return rows + of.of_work(work, got.interval.median, serial=self.task.probe.figure.startswith(LATENCY))

    def _measured(
        self, began_ns: int, ended_ns: int, rows: list[Figure], ended_by: EndedBy, window: Window | None = None
    ) -> Measured:
        window = window or self.watch.window(self.gpu, began_ns, ended_ns)
        if self.works:
            rows = rows + of.of_verdict(self.verdict, self.repetitions)
        conditions = of_work(self.works) | self.conditions | {"readings": window.readings}
        if self.verdict.by_sm:
            conditions["wrong_by_sm"] = {str(sm): wrong for sm, wrong in self.verdict.by_sm.items()}
        return Measured(began_ns, ended_ns, window, rows, ended_by, self.verdict, conditions)


def _conditions_of(repeats: Repeats) -> dict[str, object]:
    return {
        "repeats": repeats.interval.n,
        "each": repeats.each,
        "block": repeats.interval.block,
        "independent": repeats.interval.settled,
        "drift": of.drift(repeats.times_ms),
    }
