"""A job trace replayed in a world: who would have run where and when under a policy.

A policy says which GPUs, in which roles, at which clock, and when to be asked again; the world says how fast that goes.
Speed is piecewise constant: it changes with a job's allocation, with those who share its GPUs, and at the edges of its
pieces. One heap holds what is to come. By events the policy decides at each moment at which a job comes or ends, a node
goes or comes back, or the policy asked to be woken up; by rounds at the first edge of a round that is not before them,
and jobs still end at the moment at which their work is done, unless that is `quantised` too.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import InputError
from .checking import check_job, check_trace, checked_allocation, checked_answers, failing, naming
from .fleet import moments_of
from .jobs import Allocation, Job, Piece, Trace
from .options import Options
from .outcome import Others, Outcome, Series, Span
from .policies import Policy, Queued, Scheduler, made
from .policies.policy import Decision
from .policies.queue import EDGE
from .power import EnergyLedger
from .rates import Tenant, Tenants
from .world import Progress, Request, View, World

ProgressReport = Callable[[int, int, float], None]  # `progress(jobs ended, jobs, replayed seconds)`

_REPORT_EVERY = 512
_QUIET = 100_000
"""Times in a row that a policy wakes up, nothing happens and no work is done: it will never be."""
_SPARED_S = 5.0  # by rounds, a job that ends this long before the edge pays no start (`Options.start_s`)
_ESTIMATES = 4  # a word of the random numbers: the errors of estimates

_FIGURES = {
    "start_s": float,
    "finish_s": float,
    "held_s": float,
    "gpu_seconds": float,
    "preemptions": np.int32,
    "migrations": np.int32,
    "restarts": np.int32,
    "limit_hit": np.bool_,
    "wasted_gpu_s": float,
}
"""What `Outcome` has of every job: fields of `JobRun`."""

_OF_JOB = sorted({field.name for field in fields(Request)} & set(dir(Job)))  # what a policy sees of a job as it is

# Kinds of events; at one moment they come in this order.
_ENDS, _LIMITS, _NODES, _ARRIVALS, _WAKES = range(5)


def replay(
    trace: Trace,
    world: World,
    policy: str | type[Policy] | Policy = "packed",
    scheduler: str | Scheduler = "fifo",
    *,
    options: Options | None = None,
    seed: int | random.Random = 0,
    progress: ProgressReport | None = None,
) -> Outcome:
    """Replay a trace in a world.

    `policy`: a name, a class, or a new object. `scheduler`: orders placements; whole schedulers have an order of their
    own. `seed`: of the policies that draw and of estimates, or the caller's own stream, which is then used up in part.
    `progress` is called now and then, and at the end.

    Raises `InputError` for a trace that has no jobs or has them out of order, for a job that has no length, is wider
    than the fleet or of a class without scores, for options that exclude each other, for what a policy may not decide,
    and when a job waits for ever.
    """
    began = time.perf_counter()
    engine = ReplayEngine(trace, world, made(policy, scheduler), options or Options(), seed, progress)
    with naming(trace):
        engine.run()
    return engine.outcome(time.perf_counter() - began)


@dataclass(slots=True, eq=False)
class JobRun:
    """A job on its way: the work it has left, what it holds, and what it has cost. Work is in ideal seconds."""

    number: int
    job: Job
    scale: float  # of its true work, what a policy is told
    pieces: tuple[Piece, ...]
    progress: Progress
    allocation: Allocation | None = None
    speed: float = 0.0
    began_s: float = 0.0  # when it was given this allocation
    works_from_s: float = 0.0  # from here on the speed holds
    version: int = 0  # of the allocation and its speed: an end foretold for an older one is void
    piece: int = 0
    left_s: float = 0.0  # of the piece, until `progress.since_s`
    busy_s: float = 0.0  # for which it worked on the piece
    regimes: tuple[tuple[int | None, float, float], ...] = ()  # pieces that are done, as in `Progress`
    start_s: float = math.nan
    finish_s: float = math.nan
    held_s: float = 0.0
    gpu_seconds: float = 0.0
    useful_s: float = 0.0  # GPU-seconds of work that counts so far
    wasted_gpu_s: float = 0.0  # GPU-seconds of no work, or of work that was lost
    preemptions: int = 0
    migrations: int = 0
    restarts: int = 0
    lost_node: bool = False
    limit_hit: bool = False

    @property
    def in_last_piece(self) -> bool:
        return self.piece + 1 == len(self.pieces)

    def from_scratch(self) -> None:
        """No work is done, or none counts."""
        self.wasted_gpu_s += self.useful_s
        self.piece, self.left_s, self.regimes = 0, self.pieces[0].work_s, ()
        self.useful_s = self.busy_s = self.progress.attained_s = self.progress.gpu_s = 0.0

    def left_at(self, now_s: float) -> float:
        """The work left of the piece, at a moment that is not before the last change."""
        if self.allocation is None or now_s <= self.works_from_s:
            return self.left_s
        return max(0.0, self.left_s - (now_s - self.works_from_s) * self.speed)

    def settle(self, now_s: float) -> None:
        """Bring the sums up to a moment; the job holds GPUs."""
        progress = self.progress
        elapsed_s = now_s - progress.since_s
        self.left_s = self.left_at(now_s)
        works_s = max(0.0, now_s - self.works_from_s)
        self.busy_s += works_s
        self.useful_s += works_s * progress.gpus
        self.wasted_gpu_s += (elapsed_s - works_s) * progress.gpus
        self.held_s += elapsed_s
        self.gpu_seconds += elapsed_s * progress.gpus
        progress.attained_s += elapsed_s
        progress.gpu_s += elapsed_s * progress.gpus
        progress.since_s = now_s
        self.works_from_s = max(self.works_from_s, now_s)

    def next_piece(self, now_s: float) -> bool:
        """A piece is done; False if it was the last."""
        if self.in_last_piece:
            return False
        self.settle(now_s)
        piece = self.pieces[self.piece]
        self.regimes += ((piece.batch, piece.epochs, self.busy_s),)
        self.piece += 1
        self.busy_s, self.left_s = 0.0, self.pieces[self.piece].work_s
        return True

    def work_left_s(self, now_s: float) -> float:
        """Over all pieces."""
        return math.fsum((self.left_at(now_s), *(piece.work_s for piece in self.pieces[self.piece + 1 :])))

    def observe(self, now_s: float, *, work_is_known: bool) -> None:
        """Write into `progress` what a policy sees of epochs, and where it is told of the work, of the work left."""
        piece = self.pieces[self.piece]
        done = piece.epochs * (1 - self.left_at(now_s) / piece.work_s)
        busy_s = self.busy_s
        if self.allocation is not None:
            busy_s += max(0.0, now_s - self.works_from_s)
        self.progress.epochs_done = math.fsum((done, *(epochs for _, epochs, _ in self.regimes)))
        self.progress.regimes = (*self.regimes, (piece.batch, done, busy_s)) if busy_s else self.regimes
        if work_is_known:
            self.progress.left_s = self.work_left_s(now_s) * self.scale


class ReplayEngine:
    """One replay: its events, and what it keeps of every job."""

    def __init__(
        self,
        trace: Trace,
        world: World,
        policy: Policy,
        options: Options,
        seed: int | random.Random,
        progress: ProgressReport | None,
    ) -> None:
        self.trace, self.world, self.policy, self.options = trace, world, policy, options
        beliefs, fleet = world.beliefs, world.fleet
        self._work_is_known = beliefs.knowledge != "none"
        with naming(trace):
            check_trace(trace, world)
            if policy.knowledge != "none" and not self._work_is_known:
                raise InputError(
                    f"{_scheduler(policy) or policy.name} needs to know the work of jobs, and nothing is known of it; "
                    "use knowledge=exact or knowledge=estimate"
                )
        self.seed = None if isinstance(seed, random.Random) else seed
        self._errors = np.random.default_rng([self.seed or 0, _ESTIMATES]) if beliefs.knowledge == "estimate" else None
        rounds = options.quantised or (policy.by_rounds if options.rounds is None else options.rounds)
        self._requests: dict[int, Request] = {}
        self._running: dict[int, Allocation] = {}
        self._progress: dict[int, Progress] = {}
        self.view = View(
            fleet,
            beliefs,
            replace(options, failures=(), others=None),
            seed if isinstance(seed, random.Random) else random.Random(seed),  # noqa: S311 (no secret)
            up=np.ones(len(fleet), dtype=np.bool_),
            rounds=rounds,
            classes=frozenset(job.workload for job in trace.jobs),
            widest=max(job.gpus for job in trace.jobs),
            tenants=[()] * len(fleet),
            requests=MappingProxyType(self._requests),
            running=MappingProxyType(self._running),
            progress=MappingProxyType(self._progress),
        )
        power = world.rates.power
        self.ledger = None if power is None else EnergyLedger(power, fleet.node.tolist())
        self.events = self.decisions = 0
        self.ended = 0  # jobs of the trace that have ended
        self.runs: dict[int, JobRun] = {}  # jobs in the system
        self._figures = np.full((len(trace.jobs), len(_FIGURES)), math.nan)
        self._besides: list[tuple[int, float, float, int]] = []  # number, submission, end and GPUs of other jobs
        self.busy = 0  # GPUs that are held; one that several jobs share counts once
        self.busy_s = 0.0
        self._busy_until_s = 0.0
        self.spans: list[Span] = []
        self._series: list[tuple[float, int, int]] = []
        self._edge = -1  # the number of the round that was decided last
        self._due = self._woken = False  # something happened that asks for a decision; the policy asked for one
        self._heap: list[tuple[float, int, int, int]] = []
        self._moments = moments_of(options.failures, fleet.node_names)
        self._down: set[int] = set()
        self._coming: dict[int, tuple[Job, Iterator[tuple[int, Job]]]] = {}  # by number, the next of each stream
        self._report = progress

    # Running

    def run(self) -> None:
        """Until the last job of the trace has ended."""
        heap, jobs = self._heap, len(self.trace.jobs)
        heap += [(at_s, _NODES, place, 0) for place, (at_s, _, _) in enumerate(self._moments)]
        heapq.heapify(heap)
        self._expect(iter(enumerate(self.trace.jobs)))
        if self.options.others is not None:
            self._expect(enumerate(self.options.others(), jobs))
        with failing(self.policy.name, self.view.now_s):
            self.policy.begin(self.view)
        quiet, left_s = 0, math.inf
        while self.ended < jobs:
            moment = self._soonest()
            if self.view.rounds and math.isfinite(moment):
                moment = self._next_edge(moment)
            if math.isinf(moment):
                raise InputError(self._stuck())
            self._until(moment)
            if self.ended == jobs:
                break
            quiet = 0 if self._due else quiet + 1
            if quiet % _QUIET == 1:
                before_s, left_s = left_s, math.fsum(run.work_left_s(self.view.now_s) for run in self.runs.values())
                if quiet > 1 and self.runs and left_s >= before_s:
                    raise InputError(self._stuck())
            if self._due or self._woken:
                self._decide(moment)
        if self._report is not None:
            self._report(self.ended, jobs, self.view.now_s)

    def _next_edge(self, moment: float) -> float:
        """The edge at which the next decision is due: the first that is not before the next event."""
        round_s = self.options.round_s
        edge = max(self._edge + 1, math.ceil(moment / round_s - EDGE))
        if edge * round_s < moment:
            edge += 1
        self._edge = edge
        self.view.edge_s = (edge + 1) * round_s
        return edge * round_s

    def _soonest(self) -> float:
        """When something happens next; infinite: never."""
        heap = self._heap
        while heap:
            moment, kind, number, version = heap[0]
            run = self.runs.get(number)
            foretold = kind <= _LIMITS and (run is None or run.version != version)
            if not (foretold or (kind == _WAKES and number != self.decisions)):
                return moment
            heapq.heappop(heap)
        return math.inf

    def _until(self, end_s: float) -> None:
        """All events up to a moment, each at its own."""
        jobs = len(self.trace.jobs)
        while self.ended < jobs and self._soonest() <= end_s:
            self.view.now_s, kind, number, _ = heapq.heappop(self._heap)
            if kind == _WAKES:
                self._woken = True
                continue
            if kind == _ENDS and self.runs[number].next_piece(self.view.now_s):
                self._reschedule(self.runs[number])
                self._resettle(self.runs[number].allocation, except_for={number})
                continue
            self._due = True
            self.events += 1
            if self._report is not None and self.events % _REPORT_EVERY == 0:
                self._report(self.ended, jobs, self.view.now_s)
            if kind <= _LIMITS:
                self._end(self.runs[number], limited=kind == _LIMITS)
            elif kind == _NODES:
                self._change_node(number)
            else:
                self._arrive(number)

    # What happens

    def _expect(self, stream: Iterator[tuple[int, Job]]) -> None:
        """Draw the next job of a stream of numbers and jobs, if it has one."""
        for number, job in stream:
            self._coming[number] = job, stream
            heapq.heappush(self._heap, (job.submit_s, _ARRIVALS, number, 0))
            break

    def _arrive(self, number: int) -> None:
        job, stream = self._coming.pop(number)
        if number >= len(self.trace.jobs):
            check_job(job, self.world)
        scale = 1.0 if self._errors is None else math.exp(self._errors.normal(0.0, self.world.beliefs.error))
        progress = self._progress[number] = Progress(since_s=job.submit_s)
        run = self.runs[number] = JobRun(number, job, scale, job.pieces or (Piece(job.ideal_s),), progress)
        run.from_scratch()
        self._requests[number] = _request(number, job, job.ideal_s * scale if self._work_is_known else None)
        self.view.arrived.append(number)
        self._expect(stream)

    def _end(self, run: JobRun, *, limited: bool) -> None:
        """The job is done, or its limit ends it."""
        allocation = run.allocation
        self._vacate(run)
        self._let_go(run)
        self._resettle(allocation)
        run.finish_s, run.limit_hit = self.view.now_s, limited
        if limited:
            run.from_scratch()
        del self.runs[run.number], self._requests[run.number], self._progress[run.number]
        self.view.ended.append(run.number)
        if run.number < len(self.trace.jobs):
            self._figures[run.number] = [getattr(run, name) for name in _FIGURES]
            self.ended += 1
        else:
            self._besides.append((run.number, run.job.submit_s, run.finish_s, run.job.gpus))
        self._note()

    def _change_node(self, place: int) -> None:
        _, sign, node = self._moments[place]
        view = self.view
        gpus = np.flatnonzero(self.world.fleet.node == node).tolist()
        view.up[gpus] = sign > 0
        if sign > 0:
            self._down.difference_update(gpus)
            view.nodes_up.append(node)
            if self.ledger is not None:
                self.ledger.up(node, view.now_s)
            return
        view.nodes_down.append(node)
        allocations: list[Allocation | None] = []
        for number in sorted({number for gpu in gpus for number in view.tenants[gpu]}):
            run = self.runs[number]
            allocations.append(run.allocation)
            self._vacate(run)
            self._let_go(run)
            if self.options.on_failure == "restart":
                run.from_scratch()
            run.restarts += 1
            run.lost_node = True
            view.lost.append(number)
        self._resettle(*allocations)
        self._down.update(gpus)
        if self.ledger is not None:
            self.ledger.down(node, view.now_s)

    # Decisions

    def _decide(self, moment: float) -> None:
        view, policy = self.view, self.policy
        view.now_s = moment
        self._due = self._woken = False
        self.decisions += 1
        if policy.needs_progress:
            for run in self.runs.values():
                run.observe(moment, work_is_known=self._work_is_known)
        with failing(policy.name, moment):
            decision = policy.decide(view)
        view.now_s = moment  # a policy may have set it
        if not isinstance(decision, Decision):
            raise InputError(f"the policy {policy.name} decides {decision!r:.80} at {moment:g} s, which is no Decision")
        changes, again_s = checked_answers(policy.name, moment, decision.changes, decision.again_s)
        if again_s < math.inf:
            heapq.heappush(self._heap, (again_s, _WAKES, self.decisions, 0))
        if changes:
            self._carry_out(changes)
        for events in (view.arrived, view.ended, view.lost, view.nodes_down, view.nodes_up):
            events.clear()
        self._note()

    def _carry_out(self, changes: Mapping[int, object]) -> None:
        """Take GPUs back from all jobs whose allocation changes, then give."""
        view, count = self.view, len(self.world.fleet)
        changed: list[Allocation] = []
        granted: list[tuple[JobRun, Allocation, Allocation | None]] = []
        for number, answer in changes.items():
            run = self.runs.get(number)
            if run is None:
                raise InputError(
                    f"the policy {self.policy.name} gives GPUs to job number {number} at {view.now_s:g} s, which is "
                    "not in the system"
                )
            before = run.allocation
            allocation = None if answer is None else checked_allocation(self._grant(run), run.job, answer, count)
            if allocation == before:
                continue
            if before is not None:
                changed.append(before)
                self._vacate(run)
            if allocation is not None:
                granted.append((run, allocation, before))
            else:
                run.preemptions += 1
                self._let_go(run)
        for run, allocation, _ in granted:
            self._occupy(run, allocation)
        for run, allocation, before in granted:
            self._begin(run, allocation, before)
            self._reschedule(run)
            changed.append(allocation)
        self._resettle(*changed, except_for={run.number for run, _, _ in granted})

    def _occupy(self, run: JobRun, allocation: Allocation) -> None:
        """The job's GPUs are busy. Raises `InputError` where another job holds one, or its node is down."""
        tenants, gpus = self.view.tenants, allocation.gpus
        if self._down and (down := self._down.intersection(gpus)):
            raise InputError(f"{self._grant(run)} the GPU {min(down)}, which is on a node that is down")
        for gpu in gpus:
            for tenant in tenants[gpu]:
                if not (allocation.shared and self._running[tenant].shared):
                    name = self.runs[tenant].job.name
                    raise InputError(
                        f"{self._grant(run)} the GPU {gpu}, which job {name} holds, and they do not both share"
                    )
        self._count_busy(sum(not tenants[gpu] for gpu in gpus))
        for gpu in gpus:
            tenants[gpu] += (run.number,)
        run.allocation = self._running[run.number] = allocation
        run.progress.gpus = len(gpus)

    def _begin(self, run: JobRun, allocation: Allocation, before: Allocation | None) -> None:
        """What a start or a move costs."""
        options, now_s, progress = self.options, self.view.now_s, run.progress
        cost_s = 0.0
        if before is None:
            if not progress.started:
                run.start_s, progress.started = now_s, True
            elif not run.lost_node:
                cost_s = options.preemption_s
            run.lost_node = False
            progress.since_s = run.works_from_s = now_s
            cost_s += self._start_s(run)
        elif allocation.gpus != before.gpus:
            run.migrations += 1
            cost_s = options.migration_s
        run.began_s = now_s
        run.works_from_s = max(run.works_from_s, now_s + cost_s)  # what is still due of an earlier cost stays due
        if cost_s:
            progress.keeps_until_s = run.works_from_s + cost_s

    def _start_s(self, run: JobRun) -> float:
        """What the start of a job costs by `Options.start_s`."""
        now_s, start_s = self.view.now_s, self.options.start_s
        if now_s > 0 and start_s and self.view.rounds and run.in_last_piece:
            speed = self._speed(run)
            if speed and now_s + run.left_s / speed < self.view.edge_s - _SPARED_S:
                return 0.0
        return start_s if now_s > 0 else 0.0

    def _reschedule(self, run: JobRun) -> None:
        """The job's speed and power, and when its piece or the job will end, from its allocation and its tenants."""
        now_s, allocation, progress, options = self.view.now_s, run.allocation, run.progress, self.options
        assert allocation is not None
        run.speed = self._speed(run)
        if self.ledger is not None:
            draw = self.world.rates.draw(*self._tenant(run), self._tenants(run))
            wait_s = self.ledger.hold(run.number, allocation.gpus, draw, now_s=now_s)
            run.works_from_s = max(run.works_from_s, now_s + wait_s)
        run.version += 1
        end_s = run.works_from_s + run.left_s / run.speed if run.speed else math.inf
        kind, last = _ENDS, run.in_last_piece
        if run.job.limit_s is not None:
            limit_s = now_s + max(0.0, run.job.limit_s - progress.attained_s)
            if limit_s < end_s:
                end_s, kind, last = limit_s, _LIMITS, True
        if options.quantised and last and end_s < math.inf:
            following = math.floor(now_s / options.round_s + EDGE) + 1
            end_s = max(math.ceil(end_s / options.round_s - EDGE), following) * options.round_s
        heapq.heappush(self._heap, (end_s, kind, run.number, run.version))

    def _resettle(self, *allocations: Allocation | None, except_for: Set[int] = frozenset()) -> None:
        """New speeds for the jobs that share GPUs of these allocations, of which a tenant has come, gone or changed."""
        tenants = self.view.tenants
        numbers = {
            number
            for allocation in allocations
            if allocation is not None and allocation.shared
            for gpu in allocation.gpus
            for number in tenants[gpu]
        }
        for number in sorted(numbers - except_for):
            self.runs[number].settle(self.view.now_s)
            self._reschedule(self.runs[number])

    def _tenants(self, run: JobRun) -> Tenants:
        """By GPU of a job, the other jobs on it."""
        allocation = run.allocation
        assert allocation is not None
        if not allocation.shared:
            return ()
        numbers = ([number for number in self.view.tenants[gpu] if number != run.number] for gpu in allocation.gpus)
        return [[self._tenant(self.runs[number]) for number in others] for others in numbers]

    def _tenant(self, run: JobRun) -> Tenant:
        assert run.allocation is not None
        return Tenant(run.job, run.pieces[run.piece].batch, run.allocation)

    def _speed(self, run: JobRun) -> float:
        tenant = self._tenant(run)
        try:
            return self.world.rates.speed(*tenant, self._tenants(run))
        except InputError as error:
            raise InputError(f"{self._grant(run)} GPUs {list(tenant.allocation.gpus)}: {error}") from error

    def _grant(self, run: JobRun) -> str:
        """How a sentence about what a job is given begins."""
        return f"the policy {self.policy.name} gives job {run.job.name} at {self.view.now_s:g} s"

    def _vacate(self, run: JobRun) -> None:
        """The job's GPUs are free, but for those that it shared; its sums are brought up to now."""
        assert run.allocation is not None
        run.settle(self.view.now_s)
        self._close_span(run)
        tenants, gpus = self.view.tenants, run.allocation.gpus
        for gpu in gpus:
            tenants[gpu] = tuple(number for number in tenants[gpu] if number != run.number)
        self._count_busy(-sum(not tenants[gpu] for gpu in gpus))

    def _let_go(self, run: JobRun) -> None:
        """The job, whose GPUs are free, holds nothing."""
        run.version += 1
        run.allocation, run.progress.gpus = None, 0
        del self._running[run.number]
        if self.ledger is not None:
            self.ledger.release(run.number, self.view.now_s)

    # What is recorded

    def _count_busy(self, change: int) -> None:
        now_s = self.view.now_s
        self.busy_s += self.busy * (now_s - self._busy_until_s)
        self._busy_until_s = now_s
        self.busy += change

    def _close_span(self, run: JobRun) -> None:
        """Keep what a job held until now."""
        now_s = self.view.now_s
        if self.options.record and now_s > run.began_s:
            assert run.allocation is not None
            self.spans.append(Span(run.number, run.allocation.gpus, run.began_s, now_s))

    def _note(self) -> None:
        """Keep the length of the queue and the busy GPUs as of now."""
        if self.options.record:
            row = (self.view.now_s, len(self.runs) - len(self._running), self.busy)
            if self._series and self._series[-1][0] == row[0]:
                self._series[-1] = row
            else:
                self._series.append(row)

    def _stuck(self) -> str:
        """Why the replay does not end."""
        name, now_s = self.policy.name, self.view.now_s
        waiting = [run.job for run in self.runs.values() if run.allocation is None]
        if not waiting or self.busy:
            job = next(iter(self.runs.values())).job
            return (
                f"job {job.name} never ends: at {now_s:g} s the policy {name} has stopped or moved it again and again "
                "before it has done any work; let the policy leave it alone, or lower what this costs"
            )
        job, up = waiting[0], int(self.view.up.sum())
        return (
            f"job {job.name} waits for ever: {name} gives it no GPUs, and after {now_s:g} s nothing else will happen "
            f"(it asks for {job.gpus:,}, {up:,} are up)"
        )

    def outcome(self, wall_s: float) -> Outcome:
        """What the replay gave."""
        now_s = self.view.now_s
        for run in self.runs.values():
            if run.allocation is not None:
                run.settle(now_s)
                self._close_span(run)
        self._note()
        self._count_busy(0)
        figures: dict[str, Any] = {
            name: row.astype(_FIGURES[name]) for name, row in zip(_FIGURES, self._figures.T, strict=True)
        }
        running = [(run.number, run.job.submit_s, math.nan, run.job.gpus) for run in self.runs.values()]
        others = np.array(sorted(self._besides + running), dtype=np.float64).reshape(-1, 4).T
        series = None
        if self.options.record:
            at_s, queue, busy = (np.array(column) for column in zip(*self._series, strict=True))
            series = Series(at_s.astype(np.float64), queue.astype(np.int32), busy.astype(np.int32))
        return Outcome(
            trace=self.trace.name,
            policy=self.policy.name,
            scheduler=_scheduler(self.policy) or "",
            seed=self.seed,
            jobs=self.trace.jobs,
            **figures,
            gpus=len(self.world.fleet),
            end_s=now_s,
            held_gpu_seconds=self.busy_s,
            others=Others(others[1], others[2], others[3].astype(np.int32)),
            events=self.events,
            wall_s=wall_s,
            series=series,
            spans=tuple(self.spans) if self.options.record else None,
            notes=self.trace.notes,
            energy=None if self.ledger is None else self.ledger.close(now_s),
        )


def _scheduler(policy: Policy) -> str | None:
    """The name of the scheduler that orders a placement; None for a whole scheduler."""
    return policy.scheduler.name if isinstance(policy, Queued) else None


def _request(number: int, job: Job, work_s: float | None) -> Request:
    """What a policy sees of a job: of its pieces only which regimes there are, and how many epochs in all."""
    epochs = math.fsum(piece.epochs for piece in job.pieces) if job.pieces else None
    modes = {piece.batch: piece.work_s / piece.epochs for piece in reversed(job.pieces)}
    in_order = tuple(sorted(modes.items(), key=lambda mode: (mode[0] or 0, mode[1])))
    same = {name: getattr(job, name) for name in _OF_JOB}
    return Request(number, **same, modes=in_order, epochs=epochs, work_s=work_s)
