"""Many replays: traces, policies, schedulers and seeds crossed, in several processes where that pays, and compared.

What comes out depends on the cases alone, never on how many processes ran them. Within a seed every policy meets the
same fleet, the same failures and the same random numbers, so that differences are paired.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import active_children, get_context
from threading import Thread, current_thread, main_thread
from typing import Any, Protocol

import numpy as np

from ...errors import InputError, WhorlError
from ...store.system import processes, signals
from .engine import replay
from .fleet import Failure, Floats, drawn_failures
from .jobs import Trace, resampled
from .options import Options
from .outcome import Metrics, Outcome
from .policies import find_policy
from .power import ANY, Power
from .published import Profiles, pal_sc24, published_world
from .world import World

BASELINES = ("packed", "drain-outliers")
_PAYS_S = 3.0  # of work left, from which starting further processes is worth it
_LOOK_S = 0.2  # at most between looks whether an interrupt came
_FAILURES, _JOBS = 3, 5  # words of the random numbers that failures and jobs are drawn with

Progress = Callable[[int, int], None]  # `progress(replays ended, replays)`


# -- cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One replay to be run: which trace (its place), policy, scheduler and seed."""

    trace: int
    policy: str
    scheduler: str | None  # None: the policy is a whole scheduler
    seed: int
    record: bool = False  # keep the outcome whole, with its spans and series, for drawing
    resampled: bool = False  # the jobs are drawn again from the trace's, by the seed
    flat: bool = False  # the policy is shown 1 for every score: its control


@dataclass(frozen=True)
class Replayed:
    """What a case gave."""

    case: Case
    trace: str
    metrics: Metrics
    jct_s: Floats
    fairness: Floats
    shockwave_fairness: Floats  # (jobs,) as `Outcome` has them
    wall_s: float
    notes: tuple[str, ...] = ()
    outcome: Outcome | None = None  # of recorded cases
    world: World | None = None  # of recorded cases

    @classmethod
    def of(cls, case: Case, outcome: Outcome, metrics: Metrics, world: World | None) -> Replayed:
        """Without the outcome and the world, unless the case is recorded."""
        recorded = (outcome, world) if case.record else (None, None)
        fairness = (outcome.fairness(), outcome.shockwave_fairness())
        return cls(case, outcome.trace, metrics, outcome.jct_s, *fairness, outcome.wall_s, outcome.notes, *recorded)

    def place(self) -> dict[str, object]:
        """Which replay it is, as every list of `whorl.replay/1` has it."""
        case = self.case
        return {"trace": self.trace, "policy": case.policy, "scheduler": case.scheduler, "seed": case.seed}

    def row(self) -> dict[str, object]:
        """The row of `whorl.replay/1`: all of `FIGURES`."""
        return self.place() | asdict(self.metrics) | {"wall_s": self.wall_s}


class Fleets(Protocol):
    """A fleet for every seed."""

    def draw(self, seed: int) -> World: ...


class Study(Protocol):
    """What the cases have in common; it goes to other processes, so it can be pickled."""

    @property
    def traces(self) -> Sequence[Trace]: ...

    def informed(self, seeds: Sequence[int]) -> bool:
        """Whether policies see any difference between GPUs."""
        ...

    def run(self, case: Case) -> Replayed: ...


@dataclass(frozen=True)
class WorldFacts:
    """What is said of a world beside its fleet, and what policies are told of jobs."""

    tables: Mapping[str, Any] = field(default_factory=dict)  # fields of `Rates`, such as pairs and curves
    gpu_w: float | None = None  # power of a GPU with a job, in W, where none was measured
    power: Mapping[str, float] = field(default_factory=dict)  # fields of `Power`
    knowledge: str = "exact"
    error: float = 0.3

    def about(self, world: World) -> World:
        """The world of which they are said; policies believe the same tables."""
        fields = dict(self.tables)
        if self.power or self.gpu_w is not None:
            gpu_w = math.nan if self.gpu_w is None else self.gpu_w
            measured = {} if world.rates.power is None else world.rates.power.gpu_w
            known = {workload: np.where(np.isnan(watts), gpu_w, watts) for workload, watts in measured.items()}
            fields["power"] = Power(known | {ANY: np.full(len(world.fleet), gpu_w)}, **self.power)
        beliefs = world.beliefs
        rates = replace(beliefs.rates, **fields)
        beliefs = replace(beliefs, rates=rates, knowledge=self.knowledge, error=self.error)
        return World(replace(world.rates, **fields), beliefs)


@dataclass(frozen=True)
class General:
    """Traces on fleets that differ from seed to seed."""

    traces: tuple[Trace, ...]
    fleets: Fleets
    options: Options
    facts: WorldFacts = WorldFacts()
    arguments: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # by policy, what it is made with
    mtbf_h: float | None = None  # mean time between failures of a node; None for none but those of `options`
    repair_h: float = 24.0

    def informed(self, seeds: Sequence[int]) -> bool:
        """Whether policies see any difference between GPUs: in scores or, where power is asked for, in power."""
        for seed in seeds:
            rates = self.facts.about(self.fleets.draw(seed)).beliefs.rates
            watts = rates.power.gpu_w if rates.power is not None and self.facts.power else {}
            known_watts = [numbers[~np.isnan(numbers)] for numbers in watts.values()]
            if any(numbers.size and np.ptp(numbers) > 0 for numbers in (*rates.scores.values(), *known_watts)):
                return True
        return False

    def run(self, case: Case) -> Replayed:
        """One replay. Raises InputError where it cannot be."""
        trace = _trace_of(case, self.traces)
        world = self.facts.about(self.fleets.draw(case.seed))
        world = world.flat() if case.flat else world
        options = replace(self.options, record=case.record)
        if self.mtbf_h is not None:
            options = replace(options, failures=(*options.failures, *self._failures(trace, world, case.seed)))
        policy = find_policy(case.policy)
        made = policy(*self.arguments[case.policy]) if case.policy in self.arguments else policy
        outcome = replay(trace, world, made, case.scheduler or "fifo", options=options, seed=case.seed)
        outcome = replace(outcome, notes=tuple(note for note in outcome.notes if note not in trace.notes))
        return Replayed.of(case, outcome, outcome.metrics(), world)

    def _failures(self, trace: Trace, world: World, seed: int) -> tuple[Failure, ...]:
        """Failures until long after the last job can have ended, were there none."""
        assert self.mtbf_h is not None
        rates, nodes = world.rates, len(world.fleet.node_names)
        slowest = rates.locality * max((float(scores.max()) for scores in rates.scores.values()), default=1.0)
        work = sum(job.gpus * job.ideal_s for job in trace.jobs) / len(world.fleet)
        longest = max(job.ideal_s for job in trace.jobs)
        until = trace.jobs[-1].submit_s + 2 * slowest * (work + longest)
        random = np.random.default_rng([seed, _FAILURES])
        return drawn_failures(nodes, until, mtbf_h=self.mtbf_h, repair_h=self.repair_h, random=random)


@dataclass(frozen=True)
class Published:
    """Traces as the artifact of PAL (SC'24) simulates them."""

    traces: tuple[Trace, ...]
    profiles: Profiles

    def informed(self, seeds: Sequence[int]) -> bool:  # noqa: ARG002 (the scores of the profiles always differ)
        """True: policies see the scores of the profiles."""
        return True

    def run(self, case: Case) -> Replayed:
        """One replay. Raises InputError where it cannot be."""
        trace, scheduler = _trace_of(case, self.traces), case.scheduler or "fifo"
        outcome = pal_sc24(
            trace, self.profiles, case.policy, scheduler, seed=case.seed, flat=case.flat, record=case.record
        )
        world = published_world(self.profiles, seed=case.seed)[0] if case.record else None
        return Replayed.of(case, outcome, outcome.metrics(published=True), world)


def _trace_of(case: Case, traces: Sequence[Trace]) -> Trace:
    trace = traces[case.trace]
    return resampled(trace, np.random.default_rng([case.seed, _JOBS, case.trace])) if case.resampled else trace


# -- processes --------------------------------------------------------------------------------------------------


def run_all(
    study: Study, cases: Sequence[Case], *, workers: int = 1, progress: Progress | None = None
) -> tuple[list[Replayed], list[tuple[Case, WhorlError]]]:
    """What each case gave, in their order, and the cases that cannot be replayed, each with why.

    `progress` is called after each. The first cases run here; the others go to `workers` processes if they would take
    some seconds. A case whose process ends before its work does, as when memory runs out, is one of those that cannot
    be replayed.
    """
    replayed: dict[int, Replayed] = {}
    refused: dict[int, WhorlError] = {}
    for number, result in _results(study, cases, workers):
        if isinstance(result, Replayed):
            replayed[number] = result
        else:
            refused[number] = result
        if progress is not None:
            progress(len(replayed) + len(refused), len(cases))
    return [replayed[n] for n in sorted(replayed)], [(cases[n], refused[n]) for n in sorted(refused)]


_Result = Replayed | WhorlError


def _results(study: Study, cases: Sequence[Case], workers: int) -> Iterator[tuple[int, _Result]]:
    """The number of each case and what it gave, as they come."""
    began = time.perf_counter()
    for number, case in enumerate(cases):
        remaining = len(cases) - number
        passed_s = time.perf_counter() - began
        if workers > 1 and number and remaining > 1 and remaining * passed_s / number > _PAYS_S:
            yield from _in_processes(study, dict(enumerate(cases[number:], number)), workers)
            return
        yield number, _result(study, case)


def _result(study: Study, case: Case) -> _Result:
    try:
        return study.run(case)
    except InputError as error:
        return error


def _in_processes(study: Study, cases: dict[int, Case], workers: int) -> Iterator[tuple[int, _Result]]:
    others, running = set(active_children()), dict[Future[_Result], int]()
    # Not forked: polars and DuckDB hold threads, whose locks a forked process would wait for without end.
    pool = ProcessPoolExecutor(min(workers, len(cases)), get_context("spawn"), _prepare, (study,))
    try:
        with _no_interrupt():
            running |= {pool.submit(_result_here, case): number for number, case in cases.items()}
        while running:
            # A signal that another thread is given does not end the wait: it is seen at its end.
            for future in wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                try:
                    yield number, future.result()
                except BrokenExecutor:
                    killed = "a process of the replay was killed, perhaps because memory ran out; try --workers 1"
                    yield number, WhorlError(killed)
    except OSError as error:
        raise WhorlError(f"no further process can be started ({error.strerror}); try --workers 1") from error
    finally:
        # After an error or Ctrl-C, what they still compute, perhaps for minutes, is for nobody.
        pool.shutdown(wait=not running, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()


_study: Study  # in a process started for it: the study whose cases it runs


def _prepare(study: Study) -> None:
    """In a new process, before its first case."""
    global _study  # sent once; with each case it would be sent anew
    _study = study
    Thread(target=processes.end_with_parent, daemon=True).start()


def _result_here(case: Case) -> _Result:
    return _result(_study, case)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the processes have started, or one would be lost half-started.

    They inherit that it is blocked, and so leave it to their parent. Blocking alone does not hold it off here, where
    a thread of a library may take it.
    """
    if current_thread() is not main_thread():
        yield
        return
    with signals.held((signal.SIGINT,)):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
