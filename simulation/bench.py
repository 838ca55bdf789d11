"""A simulated fleet on a test bench: coroutines give its GPUs work, on the simulated clock.

    bench = Bench(Fleet.draw(V100, 8, seed=1), began_ns=0)

    async def measure(gpu: int) -> float:
        bench.hold(gpu)
        product = bench.prepare(gpu, SGEMM, unit_s=0.003)
        done = await bench.work(product, repeats=100, each=7)
        return float(np.median(done.times_s))

    times = bench.run([measure(gpu) for gpu in range(8)])

A coroutine suspends in `pause` and `work`, and goes on when the simulated clock has come so far; no thread is
started, and nothing waits in real time. The same fleet, start and coroutines give the same bits, in whatever order
the coroutines are given, as long as each GPU belongs to one of them.

As on real GPUs, the clock of a GPU that is held (a process has a context on it) jumps to the highest and stays up
without work too; when nobody holds it any more it falls to the lowest at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, sqrt
from types import coroutine
from typing import Any, TypeVar

import numpy as np

from ..errors import DeviceError
from ..store.vocabulary import Outcome
from .campaigns import REPEAT_NOISE
from .cluster import Identity, identities
from .control import STEP_NS, STEP_S
from .draws import Floats, stream
from .faults import THROTTLED_TIME
from .fleet import Fleet
from .load import IDLE, Load, Workload, find_load
from .nodes import NodeReadings
from .stepping import Happening, Readings, Simulation


class Tasks:
    """The coroutines of one run of a bench, numbered in the order in which they were given."""

    def __init__(self) -> None:
        self.running = -1
        """Which one runs now."""
        self.results: list[Any] = []
        self._all: list[Coroutine[Any, Any, Any]] = []
        self._sleeping: list[tuple[int, int]] = []  # (step, task)
        self._ready: list[tuple[int, Any]] = []  # (task, the value sent to it)

    def __len__(self) -> int:
        """How many there are; 0 between two runs."""
        return len(self._all)

    def start(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> None:
        """Make coroutines ready to begin."""
        self._all = list(coroutines)
        self.results = [None] * len(self._all)
        self._ready = [(task, None) for task in range(len(self._all))]

    async def sleep(self, step: int) -> None:
        """Suspend the running coroutine up to a step."""
        heapq.heappush(self._sleeping, (step, self.running))
        await suspended()

    @property
    def wakes_at(self) -> int | None:
        """The step at which the next one wakes."""
        return self._sleeping[0][0] if self._sleeping else None

    def wake(self, step: int) -> None:
        """Make those ready that slept up to this step."""
        while self._sleeping and self._sleeping[0][0] <= step:
            self.answer(heapq.heappop(self._sleeping)[1], None)

    def answer(self, task: int, answer: object) -> None:
        """Make one ready, and tell it something."""
        self._ready.append((task, answer))

    def resume(self) -> None:
        """Let those go on that are ready, in their order, until each suspends again or ends."""
        ready, self._ready = sorted(self._ready, key=lambda entry: entry[0]), []
        for task, answer in ready:
            self.running = task
            try:
                if self._all[task].send(answer) is not None:
                    self._all[task].throw(RuntimeError("a coroutine on the bench awaits what is not the bench's"))
            except StopIteration as done:
                self.results[task] = done.value
            except Exception as error:  # its result; the others go on
                self.results[task] = error
        self.running = -1

    def close(self) -> None:
        """Close those that have not ended."""
        for task in self._all:
            try:
                task.close()
            except Exception:  # noqa: S112 - the first error is on its way, and all are to be closed
                continue
        self._all, self._ready, self._sleeping, self.running = [], [], [], -1


@coroutine
def suspended() -> Generator[None, Any, Any]:
    """Suspend the awaiting coroutine; returns the value sent to it when it continues."""
    return (yield)


CONTEXT_BYTES = 300 << 20
"""Device memory that a context takes (assumed)."""

T = TypeVar("T")
Tick = Callable[[Readings, list[Happening]], None]
"""Called with the drivers' readings and the events since the last call."""

DAY_NS = 86_400_000_000_000

_NEVER = 1 << 62
_MOST_OVER = 256  # control steps that are kept although no job needs them


@dataclass(frozen=True)
class Prepared:
    """A workload made ready on one GPU: one run, whose noise all of its repeats share."""

    gpu: int
    workload: Workload
    unit_s: float
    """Time of a repetition at the model's highest clock, with the noise of this run."""
    random: np.random.Generator
    losses: int
    """How often the GPU had been lost by then: what was prepared before a loss is gone with it."""


@dataclass(frozen=True)
class Done:
    """Work that has ended."""

    began_ns: int
    ended_ns: int
    """UTC on the simulated clock; the end lies between two control steps, the coroutine goes on at the next."""
    times_s: Floats
    """Of a repetition, in each repeat. Shape (repeats,)."""


@dataclass
class _Job:
    task: int
    since: int
    """The control step at which it began."""
    bounds: Floats
    """Where each repeat ends, as steps of work at the highest clock since then."""
    start: float
    """What the GPU had worked by then, in the same unit."""
    each: int
    deadline: int


class Bench:
    """A fleet whose GPUs work by coroutines; see the module's text.

    It is the day of its start all the time (`Fleet.on_day`).

    `began_ns`, `cap_w` (W), `lock_mhz` (MHz), `span_s` and `age_days` are as in `stepping.Simulation`. InputError for
    a cap or lock that the model cannot hold. `who` the GPUs are follows from the fleet where it is not given. Under a
    `load` that has work the GPUs follow its turns, and coroutines only watch them.
    """

    def __init__(
        self,
        fleet: Fleet,
        load: Load | None = None,
        *,
        began_ns: int,
        cap_w: float | None = None,
        lock_mhz: float | None = None,
        span_s: float = 3600.0,
        age_days: float = 0.0,
        who: Sequence[Identity] | None = None,
    ) -> None:
        n = len(fleet)
        fleet = fleet.on_day(began_ns // DAY_NS)
        self.fleet, self.began_ns, self.span_s = fleet, began_ns, span_s
        self.cap_w, self.lock_mhz = cap_w, lock_mhz
        self.who = tuple(who) if who is not None else identities(fleet.seed, n, fleet.model.name)
        self._simulation = Simulation(
            fleet,
            load or find_load("idle"),
            began_ns=began_ns,
            span_s=span_s,
            age_days=age_days,
            cap=cap_w,
            lock=lock_mhz,
        )
        self._step = 0
        self._holds = np.zeros(n, dtype=np.int64)
        self._bytes = np.zeros(n, dtype=np.int64)
        self._losses = np.zeros(n, dtype=np.int64)  # those that were noticed
        self._prepared: dict[tuple[int, str], int] = {}
        self._of_day: dict[str, Floats] = {}

        self._working: dict[int, Workload] = {}  # by GPU: what its SMs do
        self._asked: dict[int, Workload] = {}  # what they are to do from this instant on
        self._jobs: dict[int, _Job] = {}  # by GPU
        self._target = np.full(n, inf)  # where a GPU's job ends, as steps of work
        self._first_deadline = _NEVER  # no job is late before
        # What each GPU had worked, as steps at the highest clock, at the end of each control step from a first one on.
        self._worked: list[Floats] = []
        self._worked_from = 0
        self._tick_s, self._ticked_ns = 0.1, 0  # the second since the start

        self._tasks = Tasks()

    # -- what can be read ---------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The simulated clock: the end of the last control step, UTC ns."""
        return self.began_ns + self._step * STEP_NS

    @property
    def sensor_period_s(self) -> float:
        """How often the power sensors have a new value."""
        return self._simulation.sensors.instant_period_ms / 1000

    def readings(self) -> Readings:
        """What the drivers would report now."""
        readings = self._simulation.readings()
        if self._simulation.load.workloads:
            return readings
        used = (IDLE.memory_mib << 20) + CONTEXT_BYTES * (self._holds > 0) + self._bytes
        return replace(readings, values=readings.values | {"memory_used": used})

    def node_readings(self) -> NodeReadings:
        """What the meters of the nodes would show now."""
        return self._simulation.node_readings()

    @property
    def true_power_w(self) -> Floats:
        """True board power in the last control step, W, which no sensor shows. Shape (gpus,)."""
        return self._simulation.true_power_w

    def worked_s(self, gpu: int) -> float:
        """The work that a GPU has done, as seconds that it takes one of its model at its highest clock."""
        return float(self._simulation.worked_steps[gpu]) * STEP_S

    def away(self, gpu: int, began_ns: int, ended_ns: int) -> bool:
        """Whether a GPU was off the bus at some time between two times (UTC ns)."""
        onset_s, end_s = self._simulation.onsets_s
        falls = self.fleet.fault_of(gpu).falls
        onset, back = (self.began_ns + 1e9 * float(times_s[gpu]) for times_s in (onset_s, end_s))
        return falls and onset < ended_ns and back > began_ns

    def lost(self, gpu: int) -> bool:
        """Whether a GPU has fallen off the bus."""
        return bool(self._simulation.lost[gpu])

    def name(self, gpu: int) -> str:
        """A GPU in an error's sentence."""
        who = self.who[gpu]
        return f"simulated GPU {who.uuid} (device {who.device} of {who.host})"

    def host_slowness(self, gpu: int) -> float:
        """By what factor copies from and to the host take longer because other GPUs of the node are in use too."""
        first = gpu - gpu % self.fleet.per_node
        busy = np.count_nonzero(self._holds[first : first + self.fleet.per_node])
        return max(1.0, float(busy / (self.fleet.per_node * self.fleet.silicon.host_shared[gpu])))

    # -- commands -----------------------------------------------------------------------------------------

    def hold(self, gpu: int) -> None:
        """A process has a context on the GPU from now on. Counted: each `hold` needs its `release`."""
        self._holds[gpu] += 1
        if gpu not in self._working and not self.lost(gpu):
            self._simulation.wake(np.array([gpu], dtype=np.intp))

    def release(self, gpu: int) -> None:
        """The process has left; where no other one is there, the clock falls."""
        self._holds[gpu] -= 1
        if gpu not in self._working:
            self._rest([gpu])

    def free_bytes(self, gpu: int) -> int:
        """Memory of a GPU that is not taken. DeviceError if the GPU is lost."""
        self._refuse_lost(gpu)
        return (self.fleet.model.memory_gb << 30) - (IDLE.memory_mib << 20) - CONTEXT_BYTES - int(self._bytes[gpu])

    def take(self, gpu: int, count: int) -> None:
        """Allocate bytes of a GPU's memory. DeviceError if too little is left, or the GPU is lost."""
        free = self.free_bytes(gpu)
        if count > free:
            raise DeviceError(
                f"{self.name(gpu)} has {free:,} bytes of memory left, but {count:,} are needed: choose less work"
            )
        self._bytes[gpu] += count

    def give_back(self, gpu: int, count: int) -> None:
        """Give back bytes that were taken."""
        self._bytes[gpu] -= count

    def prepare(self, gpu: int, workload: Workload, unit_s: float) -> Prepared:
        """Make a workload ready for one run, whose unit takes `unit_s` at the model's highest clock.

        The noise is drawn from the fleet's seed, the bench's start, the GPU, the workload's name and how often that
        was prepared on this GPU. DeviceError where the GPU is lost.
        """
        self._refuse_lost(gpu)
        if not unit_s > 0:
            raise ValueError(f"a unit of work must take more than 0 s, not {unit_s} s")
        random = self.draws(f"run of {workload.name}", gpu)
        throttled = self.fleet.fault_of(gpu).throttled_share
        if throttled and self.draws(f"throttling of {workload.name}", gpu).random() < throttled:
            workload = replace(workload, slowdown=THROTTLED_TIME)
        noise = self._noise(gpu, workload, float(random.standard_normal()))
        return Prepared(gpu, workload, unit_s * noise, random, int(self._losses[gpu]))

    def _noise(self, gpu: int, workload: Workload, draw: float) -> float:
        """Factor on the times of a run: its noise, of which the normal draw is given, and the day's."""
        spread = self.fleet.spread
        if spread.run_tail is not None:
            of_tail = self.draws(f"tail of {workload.name}", gpu)
            draw *= sqrt((spread.run_tail - 2) / of_tail.chisquare(spread.run_tail))
        of_day = self._of_day.get(workload.name)
        if of_day is None:
            of_day = self._of_day[workload.name] = self.fleet.noise_of_day(workload)
        factor = exp(workload.noise * (draw + float(of_day[gpu])))
        if spread.glitch_share:
            glitch = self.draws(f"glitch of {workload.name}", gpu)
            if glitch.random() < spread.glitch_share:
                factor *= 1 + spread.glitch * float(glitch.standard_exponential())
        return factor

    def draws(self, subject: str, gpu: int) -> np.random.Generator:
        """Random numbers for a subject on a GPU: others each time, the same ones in the same order for every bench."""
        number = self._prepared[gpu, subject] = self._prepared.get((gpu, subject), -1) + 1
        return stream(self.fleet.seed, subject, self.began_ns // STEP_NS, gpu, number)

    async def pause(self, seconds: float) -> None:
        """Let time pass: whole control steps, at least so long."""
        steps = ceil(seconds / STEP_S - 1e-9)
        if steps > 0:
            await self._tasks.sleep(self._step + steps)

    async def until(self, at_ns: int) -> None:
        """Wait for the last control step that ends by a time (UTC ns)."""
        step = (at_ns - self.began_ns) // STEP_NS
        if step > self._step:
            await self._tasks.sleep(step)

    async def work(self, prepared: Prepared, repeats: int, each: int = 1, *, limit_s: float = inf) -> Done:
        """Do `repeats` times `each` units, all back to back.

        DeviceError where the GPU is lost by then or meanwhile, or they do not end within `limit_s`.
        """
        gpu, n = prepared.gpu, repeats * each
        if repeats < 1 or each < 1:
            raise ValueError(f"work needs at least one repeat of one unit, not {repeats} of {each}")
        if gpu in self._jobs:
            raise RuntimeError(f"{self.name(gpu)} already works for another coroutine")
        self._refuse_lost(gpu)
        if prepared.losses != self._losses[gpu]:
            raise DeviceError(
                f"{self.name(gpu)} was lost since the work was loaded: load it again", outcome=Outcome.LOST
            )
        units = np.full(repeats, prepared.unit_s * each / STEP_S)
        units *= np.exp(REPEAT_NOISE * prepared.random.standard_normal(repeats))
        deadline = _NEVER if limit_s == inf else self._step + ceil(limit_s / STEP_S - 1e-9)
        start = float(self._simulation.worked_steps[gpu])
        job = _Job(self._tasks.running, self._step, np.cumsum(units), start, each, deadline)
        if not self._jobs:
            self._worked, self._worked_from = [self._simulation.worked_steps.copy()], self._step
        self._jobs[gpu] = job
        self._first_deadline = min(self._first_deadline, deadline)
        self._target[gpu] = start + job.bounds[-1]
        self._asked[gpu] = prepared.workload
        answer = await suspended()
        if isinstance(answer, DeviceError):
            raise answer
        if answer is None:
            raise DeviceError(
                f"{self.name(gpu)} did not end {n} repetitions of {prepared.workload.name} within {limit_s:g} s: "
                "allow more time or choose less work",
                outcome=Outcome.HUNG,
            )
        assert isinstance(answer, Done)
        return answer

    def _refuse_lost(self, gpu: int) -> None:
        if self._simulation.lost[gpu]:
            raise self.gone(gpu)

    def gone(self, gpu: int) -> DeviceError:
        """What is raised for a GPU that has fallen off the bus."""
        sentence = f"{self.name(gpu)} has fallen off the bus (XID 79): check its node"
        return DeviceError(sentence, gone=True, outcome=Outcome.LOST)

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def every_s(self) -> float:
        """How often `on_tick` is called; a coroutine may change it while they run."""
        return self._tick_s

    @every_s.setter
    def every_s(self, seconds: float) -> None:
        if not seconds >= STEP_S - 1e-9:
            raise ValueError(f"the simulated clock steps by {STEP_S:g} s: readings every {seconds:g} s are too often")
        self._tick_s = seconds

    def run(
        self, coroutines: Sequence[Coroutine[Any, Any, T]], *, every_s: float = 0.1, on_tick: Tick | None = None
    ) -> list[T | Exception]:
        """Run coroutines until all have ended: what each returned or raised, in their order.

        Whenever so many seconds of the simulated clock have passed, `on_tick` is told the readings, before any
        coroutine that goes on at that instant; between two control steps they are those of the earlier one. What it
        raises, and KeyboardInterrupt or another BaseException of a coroutine, ends the run: all coroutines are closed,
        and it passes through.
        """
        if self._tasks:
            raise RuntimeError("this bench is already running")
        self._tasks.start(coroutines)
        results = self._tasks.results
        try:
            self.every_s = every_s
            while True:
                self._tasks.resume()
                self._turn()
                if not self._jobs and self._tasks.wakes_at is None:
                    return results
                self._advance(on_tick)
        finally:
            self._close()

    def _turn(self) -> None:
        """Give and take the work that coroutines asked for, or left, at this instant."""
        starting: dict[Workload, list[int]] = {}
        for gpu, workload in self._asked.items():
            if self._working.get(gpu) != workload:
                starting.setdefault(workload, []).append(gpu)
        self._working |= self._asked
        self._asked.clear()
        for workload, gpus in starting.items():
            self._simulation.give(np.array(sorted(gpus), dtype=np.intp), workload)
        idle = [gpu for gpu in self._working if gpu not in self._jobs]
        for gpu in idle:
            del self._working[gpu]
        self._rest(idle)

    def _rest(self, gpus: Sequence[int]) -> None:
        """Take the work from GPUs: the clocks of those that are held stay up."""
        for is_held in (True, False):
            changed = sorted(gpu for gpu in gpus if bool(self._holds[gpu]) is is_held)
            if changed:
                self._simulation.rest(np.array(changed, dtype=np.intp), awake=is_held)

    def _advance(self, on_tick: Tick | None) -> None:
        """Let the clock go on, to where the next thing may happen."""
        every_ns = round(self._tick_s * 1e9)
        ticks_ns = (max(self._ticked_ns, self._step * STEP_NS) // every_ns + 1) * every_ns  # the next one
        if self._jobs:
            to = self._step + 1  # the curve of the work has a point for every step
        else:
            to = _NEVER if self._tasks.wakes_at is None else self._tasks.wakes_at
            if on_tick:
                to = min(to, ticks_ns // STEP_NS)
            to = max(self._step + 1, to)
        self._simulation.advance(self.began_ns + to * STEP_NS)
        self._step = to
        self._notice_losses()
        if self._jobs:
            self._look_at_jobs()
        self._tasks.wake(to)
        if on_tick and to * STEP_NS > ticks_ns - STEP_NS:
            self._ticked_ns = ticks_ns
            on_tick(self._read_at(self.began_ns + ticks_ns), self._simulation.happened())

    def _read_at(self, ts_ns: int) -> Readings:
        """What was reported at the last control step, as a reader sees it that asks a little later."""
        readings = self.readings()
        age_us = readings.values["power_age_us"] + (ts_ns - readings.ts_ns) // 1000
        return replace(readings, ts_ns=ts_ns, values=readings.values | {"power_age_us": age_us})

    def _notice_losses(self) -> None:
        if self._simulation.load.workloads:
            return  # a GPU that returns goes on with its turn
        losses = self._simulation.losses
        for gpu in np.flatnonzero(losses > self._losses).tolist():
            self._simulation.rest(np.array([gpu], dtype=np.intp), awake=False)
            self._working.pop(gpu, None)
            if gpu in self._jobs:
                self._end(gpu, self.gone(gpu))
        self._losses = losses.copy()

    # -- jobs ---------------------------------------------------------------------------------------------

    def _look_at_jobs(self) -> None:
        """Note the work done in this step, and end the jobs that are done or late."""
        worked = self._simulation.worked_steps
        self._worked.append(worked.copy())
        over = next(iter(self._jobs.values())).since - self._worked_from  # they stand in the order in which they began
        if over > _MOST_OVER:
            del self._worked[:over]
            self._worked_from += over
        for gpu in np.flatnonzero(worked >= self._target).tolist():
            self._end(gpu, self._measured(gpu, self._jobs[gpu]))
        if self._first_deadline <= self._step:
            for gpu in [gpu for gpu, job in self._jobs.items() if job.deadline <= self._step]:
                self._end(gpu, None)
            self._first_deadline = min((job.deadline for job in self._jobs.values()), default=_NEVER)

    def _end(self, gpu: int, answer: Done | DeviceError | None) -> None:
        self._tasks.answer(self._jobs.pop(gpu).task, answer)
        self._target[gpu] = inf

    def _measured(self, gpu: int, job: _Job) -> Done:
        """When each repeat ended: where the curve of the work done crosses its bound."""
        curve = [worked[gpu] for worked in self._worked[job.since - self._worked_from :]]
        ends = np.interp(job.start + job.bounds, curve, np.arange(len(curve), dtype=np.float64))
        began_ns = self.began_ns + job.since * STEP_NS
        times = ends.copy()
        times[1:] -= ends[:-1]
        times *= STEP_S / job.each
        return Done(began_ns, began_ns + round(float(ends[-1]) * STEP_NS), times)

    def _close(self) -> None:
        """Close what has not ended, and forget what it was at; the fleet stays as it is."""
        self._tasks.close()
        self._jobs.clear()
        self._asked.clear()
        self._target[:] = inf
        self._turn()
