"""A job trace replayed on a fleet: who would have run where and when under a policy and a scheduler.

One engine, two clocks. It knows the moments at which something happens: a job comes, a job's work is done, a node goes
or comes back. By events it decides at each of them; by rounds it decides at the first edge of a round that is not
before them, and jobs still end at the moment at which their work is done, unless that is `quantised` too. What cannot
change a decision causes none, so quiet rounds cost nothing.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from ...errors import InputError
from .checking import check_job, check_trace, naming
from .cluster import Cluster
from .deciding import Decisions
from .failures import checked
from .fleet import Fleet
from .holdings import EDGE, Holdings
from .job import Job, Trace
from .options import Options
from .outcome import Others, Outcome
from .policies import Policy, find_policy
from .schedulers import Scheduler, find_scheduler
from .state import State
from .view import View

Progress = Callable[[int, int, float], None]
"""`progress(jobs ended, jobs, replayed seconds)`."""

_PROGRESS_EVERY = 512
_QUIET_ROUNDS = 100_000
"""Rounds in which nothing happens and no work is done, after which a policy is taken to do nothing for ever."""


def replay(
    trace: Trace,
    fleet: Fleet,
    policy: str | Policy = "packed",
    scheduler: str | Scheduler = "fifo",
    *,
    options: Options | None = None,
    seed: int | random.Random = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Replay a trace on a fleet.

    `seed`: of the policies that draw, or the caller's own stream, which is then used up in part. `progress` is called
    now and then, and at the end.

    Raises `InputError` for a trace that has no jobs or has them out of order, for a job that has no length, is wider
    than the fleet or of a class without scores, for options that exclude each other, and when a job waits for ever.
    """
    began = time.perf_counter()
    row = find_policy(policy) if isinstance(policy, str) else policy
    order = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
    engine = Engine(trace, fleet, row, order, options or Options(), seed, progress)
    with naming(trace):
        engine.run()
    return engine.outcome(time.perf_counter() - began)


class Engine:
    """The state of one replay and its events; what is decided stands in `Decisions`."""

    def __init__(
        self,
        trace: Trace,
        fleet: Fleet,
        policy: Policy,
        scheduler: Scheduler,
        options: Options,
        seed: int | random.Random,
        progress: Progress | None,
    ) -> None:
        with naming(trace):
            check_trace(trace, fleet)
        self.trace, self.fleet, self.policy, self.scheduler = trace, fleet, policy, scheduler
        self.options = options
        classes = {job.workload for job in trace.jobs}
        widest = max(job.gpus for job in trace.jobs)
        avoided = None if policy.avoids is None else policy.avoids(fleet, classes, widest)
        ranks = None if policy.ranks is None else policy.ranks(fleet, classes)
        self.cluster = Cluster(fleet.node, avoided, ranks)
        self.seed = None if isinstance(seed, random.Random) else seed
        stream = seed if isinstance(seed, random.Random) else random.Random(seed)  # noqa: S311 (no secret)
        self.view = View(fleet, self.cluster, options, stream)
        self.states: dict[int, State] = self.view.states
        by_rounds = policy.by_rounds or scheduler.by_rounds
        self.rounds = options.quantised or (by_rounds if options.rounds is None else options.rounds)
        self.events = 0
        self.holdings = Holdings(fleet, self.view, options)
        self.decisions = Decisions(trace.jobs, policy, scheduler, options, self.view, self.holdings, rounds=self.rounds)
        self._quiet = 0
        self._left_s = math.inf
        self._ended = 0
        self._all: list[State] = []
        self._arrivals: Iterator[Job] = chain(trace.jobs, options.arrivals() if options.arrivals else ())
        self._next: Job | None = next(self._arrivals)
        self._arrived = 0
        self._moments = checked(options.failures, fleet.node_names)
        self._moment = 0
        self._progress = progress

    # Running

    def run(self) -> None:
        """Until the last job of the trace has ended."""
        for job in self.trace.jobs:
            if job.gpus > self.cluster.capacity:
                raise InputError(
                    f"job {job.name} asks for {job.gpus:,} GPUs and the policy {self.policy.name} uses "
                    f"{self.cluster.capacity:,} of the fleet's {len(self.fleet):,}; leave out the job or the policy"
                )
        jobs = len(self.trace.jobs)
        while self._ended < jobs:
            moment = self._soonest()
            if self.rounds:
                moment = self._next_edge(moment)
            if math.isinf(moment):
                raise InputError(self._stuck())
            self._until(moment)
            if self._ended < jobs:
                self.view.now_s = moment
                self.decisions.queue.lose_patience()
                self.decisions.decide()
                if self.options.record:
                    self.holdings.note(len(self.decisions.queue.waiting))
        if self._progress is not None:
            self._progress(self._ended, jobs, self.view.now_s)

    def _next_edge(self, moment: float) -> float:
        """The edge at which the next decision is due: the first that is not before the next event, or the very next."""
        round_s = self.options.round_s
        if self.decisions.restless() and moment > (self.holdings.edge + 1) * round_s:
            if self._quiet % _QUIET_ROUNDS == 0:
                before, self._left_s = self._left_s, self._work_left_s()
                if self._quiet and self._left_s >= before:
                    return math.inf
            self._quiet += 1
            self.holdings.edge += 1
        elif math.isinf(moment):
            return moment
        else:
            self._quiet = 0
            self.holdings.edge = math.ceil(moment / round_s - EDGE)
            if self.holdings.edge * round_s < moment:
                self.holdings.edge += 1
        return self.holdings.edge * round_s

    def _work_left_s(self) -> float:
        """Of all jobs that have come, as of the last decision."""
        return math.fsum(state.left_at(self.view.now_s) for state in self.states.values())

    def _soonest(self) -> float:
        """The moment of the next event; infinite if there is none."""
        soonest = min(self.holdings.next_finish_s(), self.decisions.queue.next_impatient_s())
        if self._next is not None:
            soonest = min(soonest, self._next.submit_s)
        if self._moment < len(self._moments):
            soonest = min(soonest, self._moments[self._moment][0])
        return soonest

    def _until(self, end_s: float) -> None:
        """All events up to a moment, each at its own: first those that end, then nodes, then those that come."""
        jobs = len(self.trace.jobs)
        while self._ended < jobs:
            finish = self.holdings.next_finish_s()
            moment = self._moments[self._moment][0] if self._moment < len(self._moments) else math.inf
            submit = math.inf if self._next is None else self._next.submit_s
            soonest = min(finish, moment, submit)
            if soonest > end_s:
                return
            self.events += 1
            if self._progress is not None and self.events % _PROGRESS_EVERY == 0:
                self._progress(self._ended, jobs, soonest)
            self.view.now_s = soonest
            if soonest == finish:
                self._finish()
            elif soonest == moment:
                self._change_of_node()
            else:
                self._arrive()

    def _arrive(self) -> None:
        job = self._next
        assert job is not None
        number = self._arrived
        if number >= len(self.trace.jobs):
            check_job(job, self.fleet)
            if job.gpus > self.cluster.capacity and self._moment >= len(self._moments):
                raise InputError(
                    f"job {job.name} asks for {job.gpus:,} GPUs and the policy {self.policy.name} uses "
                    f"{self.cluster.capacity:,}"
                )
        self._arrived += 1
        self._next = next(self._arrivals, None)
        state = State(number, job)
        self.states[number] = state
        self._all.append(state)
        self.decisions.wait(state)

    def _finish(self) -> None:
        state = self.states.pop(self.holdings.pop_finish())
        state.settle(self.view.now_s)
        state.finish_s = self.view.now_s
        self.decisions.release(state)
        self.holdings.let_go(state)
        if state.number < len(self.trace.jobs):
            self._ended += 1
        if self.options.record:
            self.holdings.note(len(self.decisions.queue.waiting))

    def _change_of_node(self) -> None:
        _, sign, node = self._moments[self._moment]
        self._moment += 1
        if sign > 0:
            self.cluster.open(node)
        else:
            hit = [s for s in self.states.values() if s.gpus and any(self.cluster.node[gpu] == node for gpu in s.gpus)]
            self.cluster.close(node)
            for state in hit:
                self.decisions.release(state)
                self.holdings.lose(state)
                self.decisions.wait(state)
            if self._moment >= len(self._moments) or all(sign < 0 for _, sign, _ in self._moments[self._moment :]):
                for number, job in enumerate(self.trace.jobs):
                    is_open = number >= self._arrived or number in self.states
                    if is_open and job.gpus > self.cluster.capacity:
                        raise InputError(
                            f"job {job.name} waits for ever: it asks for {job.gpus:,} GPUs and after "
                            f"{self.view.now_s:g} s, when a node has failed, the policy {self.policy.name} uses "
                            f"{self.cluster.capacity:,}; leave out the job, or let the node return"
                        )
        self.decisions.cluster_changed()

    def _stuck(self) -> str:
        waiting = [state.job for state in self.states.values() if not state.gpus]
        if not waiting or self.holdings.busy:
            job = next(iter(self.states.values())).job
            return (
                f"job {job.name} never ends: the policy {self.policy.name} stops or moves it, round after round, "
                "before it has done any work; let the policy leave it alone, or lower what this costs"
            )
        job = waiting[0]
        return (
            f"job {job.name} waits for ever: {self.policy.name} gives it no GPUs although nothing else will happen "
            f"(it wants {job.gpus}, {self.cluster.free_count} are free)"
        )

    def outcome(self, wall_s: float) -> Outcome:
        """What the replay gave."""
        for state in self.states.values():
            if state.gpus:
                state.settle(self.view.now_s)
                self.holdings.close_span(state)
        if self.options.record:
            self.holdings.note(len(self.decisions.queue.waiting))
        mine, others = self._all[: len(self.trace.jobs)], self._all[len(self.trace.jobs) :]
        return Outcome(
            trace=self.trace.name,
            policy=self.policy.name,
            scheduler=self.scheduler.name,
            seed=self.seed,
            jobs=self.trace.jobs,
            start_s=np.array([s.start_s for s in mine]),
            finish_s=np.array([s.finish_s for s in mine]),
            held_s=np.array([s.held_s for s in mine]),
            gpu_seconds=np.array([s.gpu_seconds for s in mine]),
            preemptions=np.array([s.preemptions for s in mine], dtype=np.int32),
            migrations=np.array([s.migrations for s in mine], dtype=np.int32),
            restarts=np.array([s.restarts for s in mine], dtype=np.int32),
            energy_j=np.array([s.energy_j for s in mine]),
            gpus=len(self.fleet),
            end_s=self.view.now_s,
            held_gpu_seconds=math.fsum(s.gpu_seconds for s in self._all) - self.holdings.twice_s(),
            others=Others(
                np.array([s.job.submit_s for s in others], dtype=np.float64),
                np.array([s.finish_s for s in others], dtype=np.float64),
                np.array([s.job.gpus for s in others], dtype=np.int32),
            ),
            events=self.events,
            decisions=self.decisions.made,
            wall_s=wall_s,
            series=self.holdings.series() if self.options.record else None,
            spans=tuple(self.holdings.spans) if self.options.record else None,
            notes=self.trace.notes,
        )
