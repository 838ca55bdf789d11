"""Shockwave (Zheng et al., NSDI'23): plans rounds ahead for all jobs, whose changes of batch size it forecasts.

Rules, parameters and the program, which HiGHS solves, are those of the paper's published program
(uw-mad-dash/shockwave), restated. There, weights of points stand for the logarithm, and binaries tie neighbouring
points together. Here it is a sum of parts, of which each gains less than the one before it: the function is concave
and maximised, so both are the same. The scores of GPUs are not part of it: the time of a job counts as on the GPUs
that it can expect, and of the jobs that start in a round those with the most weight times work left choose first.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ..fleet import Floats, Ints
from ..jobs import Allocation
from ..world import Progress, Request, View
from .policy import Decision, Policy
from .shares import fitting, grant

if TYPE_CHECKING:
    from scipy.sparse import csr_array


POINTS = np.array((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
"""Shares of a job's epochs between which the logarithm of the utility is linear."""
LOGS = np.log(np.maximum(POINTS, 1e-6))
GAP = 1e-3
"""A plan is proven to be this near to the best one, as a share. No wall time limits it, so plans are the same on
every machine."""
NODE_LIMIT = 100  # nodes of the tree of branches; after them the best plan so far is taken
_INFEASIBLE = 2  # as `scipy.optimize.milp` numbers it


class SolverError(Exception):
    """HiGHS gave no plan; the text is its own message."""


@dataclass(frozen=True)
class Window:
    """The time that is planned ahead, and how the makespan is weighed."""

    gpus: int
    rounds: int = 20
    round_s: float = 120.0
    makespan_weight: float = 1e-3  # the paper's k: the utility that a second of makespan costs


@dataclass(frozen=True)
class Candidates:
    """The jobs to be planned, all (jobs,)."""

    widths: Ints  # GPUs
    epochs: Floats  # of the whole job
    done: Floats  # epochs that are done, whole ones
    epoch_s: Floats  # seconds of an epoch
    left_s: Floats  # seconds of work left, as forecast


def schedule(
    window: Window, jobs: Candidates, weights: Floats, least_s: Floats | None = None, *, gap: float = GAP
) -> Ints | None:
    """(jobs, rounds) 1 where a job is to run: the most weighted log utility less the weighted makespan.

    The rounds of a job come the sooner the more it weighs. `weights` (jobs,) of the utilities; `least_s` (jobs,) the
    seconds of work that each job must get in the window. None: no plan gives each job that much. Raises
    `SolverError`.
    """
    # How many rounds each job gets is a small program. Which ones nearly always fit into the window then; where wide
    # jobs leave no room for them, the large program decides both.
    for slots in (1, window.rounds):
        planned = _fill(window, jobs, weights, least_s, slots=slots, gap=gap)
        if planned is None:
            return None
        moved = _advance(window, jobs.widths, planned.sum(axis=1), weights, gap=gap)
        if moved is not None:
            return moved
    return planned


def _fill(
    window: Window, jobs: Candidates, weights: Floats, least_s: Floats | None, *, slots: int, gap: float
) -> Ints | None:
    """(jobs, slots) the rounds that each job gets in the window, which is cut into so many slots of equal length."""
    from scipy import sparse

    count, slot_rounds, parts = len(jobs.widths), window.rounds // slots, len(POINTS) - 1
    done = jobs.done / jobs.epochs
    utility = float(weights @ np.interp(done, POINTS, LOGS))
    # Work counts in rounds, and by the parts of the logarithm: those that gain most fill first by themselves.
    total, left = jobs.epochs * jobs.epoch_s / window.round_s, jobs.left_s / window.round_s
    part = np.maximum(POINTS[1:] - np.maximum(POINTS[:-1], done[:, None]), 0.0) * total[:, None]
    gain = np.outer(weights / total, np.diff(LOGS) / np.diff(POINTS))
    # What no plan can do in the window is no part of the cost, or the gap would be a share of that as well.
    late = max(0.0, float(np.max(left)) - window.rounds)
    # Columns: by job and slot the rounds; by job and part its work; the work left after the window, above `late`; 1.
    work = sparse.kron(sparse.eye_array(count), np.ones((1, parts)))
    empty = np.zeros((count, 1))
    rows = sparse.block_array(
        [
            [sparse.kron(jobs.widths[None, :], sparse.eye_array(slots)), None, None, None],
            [sparse.kron(sparse.eye_array(count), np.full((1, slots), -1.0)), work, None, None],
            [None, work, None, empty],
            [None, work, np.ones((count, 1)), None],
        ],
        format="csr",
    )
    unbounded = np.full(count, np.inf)
    least = np.zeros(count) if least_s is None else np.maximum(least_s, 0.0) / window.round_s
    lower = (np.zeros(slots), -unbounded, least, left - late)
    upper = (np.full(slots, window.gpus * slot_rounds), np.zeros(count), unbounded, unbounded)
    share = 1 / (count * window.rounds)
    cost = (np.zeros(count * slots), -share * gain.ravel(), (window.makespan_weight * window.round_s, -share * utility))
    most = np.concatenate((np.full(count * slots, slot_rounds), part.ravel(), (np.inf, 1.0)))
    solution = _solve(
        np.concatenate(cost),
        bounds=(np.arange(len(most)) == len(most) - 1.0, most),
        integral=np.arange(len(most)) < count * slots,
        rows=(rows, np.concatenate(lower), np.concatenate(upper)),
        gap=gap,
    )
    if solution is None:
        return None
    planned: Ints = np.round(solution[: count * slots]).astype(np.int32).reshape(count, slots)
    return planned


def _advance(window: Window, widths: Ints, lengths: Ints, weights: Floats, *, gap: float) -> Ints | None:
    """(jobs, rounds) a plan in which each job has its number of rounds, those of more weight first; None: they do not
    fit, or the solver finds not how."""
    from scipy import sparse

    planned: Ints = np.zeros((len(widths), window.rounds), dtype=np.int32)
    running = np.flatnonzero(lengths)
    if not len(running):
        return planned
    counts, rounds = lengths[running], np.arange(window.rounds)
    rows = sparse.vstack(
        [
            sparse.kron(widths[running][None, :], sparse.eye_array(window.rounds)),
            sparse.kron(sparse.eye_array(len(running)), np.ones((1, window.rounds))),
        ],
        format="csr",
    )
    cost = np.outer(weights[running] / counts, rounds).ravel()
    lower = np.concatenate((np.zeros(window.rounds), counts.astype(float)))
    upper = np.concatenate((np.full(window.rounds, float(window.gpus)), counts.astype(float)))
    try:
        solution = _solve(cost, bounds=(0.0, 1.0), integral=np.ones(len(cost)), rows=(rows, lower, upper), gap=gap)
    except SolverError:
        return None
    if solution is None:
        return None
    planned[running] = np.round(solution).astype(np.int32).reshape(len(running), window.rounds)
    return planned


@contextmanager
def _unprinted() -> Iterator[None]:
    """HiGHS writes to file 1 by itself now and then, which would stand in the middle of an answer."""
    sys.stdout.flush()
    output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)


def _solve(
    cost: Floats,
    *,
    bounds: tuple[NDArray[Any] | float, NDArray[Any] | float],
    integral: NDArray[Any],
    rows: tuple[csr_array, Floats, Floats],
    gap: float,
) -> Floats | None:
    """(columns,) the cheapest unknowns within their bounds for which rows @ unknowns is within its own; None: none is.

    `integral` (columns,): whether each is an integer.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    with _unprinted():
        answer = milp(
            cost,
            integrality=integral,
            bounds=Bounds(*bounds),
            constraints=LinearConstraint(*rows),
            options={"mip_rel_gap": gap, "node_limit": NODE_LIMIT},
        )
    if answer.x is None and answer.status != _INFEASIBLE:
        raise SolverError(answer.message)
    solution: Floats | None = answer.x
    return solution


ROUNDS_KEPT = 8  # a plan is made anew after so many rounds, and at an arrival or an end
PARAMETERS = {32: (1e-3, 12.0), 64: (10.0, 5.0), 128: (1e-3, 15.0), 256: (1e5, 5.0)}
"""By GPUs of the fleet, the nearest: k, the weight of a second of makespan; lambda, by which a late job weighs more."""
SHORT_POWER = 100.0  # stands for lambda where a job has less than a round left
MOST_WEIGHT = 1e6  # costs further apart than that are beyond the precision of the solver


@dataclass(frozen=True)
class Course:
    """How far a job is."""

    epochs: int
    epoch_s: Mapping[int | None, float]
    """By batch size, seconds of an epoch. Those that the job will have are known, their order is not."""
    observed: Mapping[int | None, int]  # by batch size, epochs seen: those done, and the one that runs
    batch: int | None  # of the epoch that runs

    @classmethod
    def of(cls, request: Request, progress: Progress) -> Course:
        """As the replay shows it. A job without epochs counts as one of epochs of a second. Raises `InputError` where
        not even its work is known."""
        if request.epochs is None or not request.modes:
            if request.work_s is None or progress.left_s is None:
                raise InputError(
                    f"shockwave must know the epochs of job {request.name}, or its work: give its regimes, or the "
                    "knowledge exact or estimate"
                )
            done = max(0, int(request.work_s - progress.left_s))
            return cls(max(math.ceil(request.work_s), done + 1), {None: 1.0}, {None: done + 1}, None)
        observed = Counter[int | None]()
        for batch, epochs, _ in progress.regimes:
            observed[batch] += int(epochs + 1e-6)
        running = progress.regimes[-1][0] if progress.regimes else request.batch
        observed[running] += 1
        # Only whole seconds of an epoch are known, at least 1.
        seconds = {batch: max(1.0, float(round(epoch_s))) for batch, epoch_s in request.modes}
        return cls(max(round(request.epochs), observed.total()), seconds, observed, running)

    @property
    def done(self) -> int:
        """Epochs done."""
        return sum(self.observed.values()) - 1

    @property
    def done_s(self) -> float:
        """Seconds of the epochs done."""
        return sum(self.epoch_s[batch] * count for batch, count in self.observed.items()) - self.epoch_s[self.batch]

    @property
    def mean_s(self) -> float:
        """Mean seconds of the epochs seen."""
        return (self.done_s + self.epoch_s[self.batch]) / (self.done + 1)

    def left_s(self) -> float:
        """Seconds of work left, as forecast: at first all batch sizes are as likely, and each epoch seen makes its own
        likelier (a Dirichlet prior)."""
        left_epochs, scale = self.epochs - self.done, self.epochs / (self.epochs + self.done + 1)
        epochs_left = {}
        for batch in self.epoch_s:
            count = self.observed.get(batch, 0)
            expected = scale * (self.epochs / len(self.epoch_s) + count)
            epochs_left[batch] = expected - min(count, int(expected))
        work_s = sum(self.epoch_s[batch] * count for batch, count in epochs_left.items())
        return work_s * left_epochs / max(left_epochs, int(sum(epochs_left.values()) + 1))


class FairFinish:
    """When a job would end with its equal share of the fleet, as forecast from time to time."""

    def __init__(self, first_round: int, finish_s: float) -> None:
        self.first_round = self.last_round = first_round
        self.finish_s = finish_s
        self.total = 0.0  # sum of the forecasts before the last one, each times the rounds for which it stood

    def forecast(self, at_round: int, finish_s: float) -> None:
        """Takes the forecast of a later round."""
        self.total += self.finish_s * (at_round - self.last_round)
        self.last_round, self.finish_s = at_round, finish_s

    def at(self, at_round: int) -> float:
        """0.9 of the mean forecast, by the rounds for which each stood, and 0.1 of the last one."""
        stood = at_round - self.first_round
        if not stood:
            return self.finish_s
        mean = (self.total + self.finish_s * (at_round - self.last_round)) / stood
        return 0.9 * mean + 0.1 * self.finish_s


Seconds = Mapping[int, float]  # by job, seconds of work left on GPUs of score 1, as forecast


class Shockwave(Policy):
    """The plan of the rounds ahead, kept from one decision to the next."""

    name = "shockwave"
    summary = "plans 20 rounds ahead for efficiency and fairness, with forecast batch sizes (Shockwave, NSDI'23)"
    by_rounds = True
    needs_progress: ClassVar[bool] = True
    round_s: ClassVar[float] = 120.0  # of the published simulation, and so of all rows beside it, like `start_s`
    start_s: ClassVar[float] = 20.0  # what a job loses that did not run in the round before

    def begin(self, view: View) -> None:
        """Takes the parameters for a fleet of this size."""
        self.makespan_weight, self.power = PARAMETERS[min(PARAMETERS, key=lambda gpus: abs(gpus - len(view.fleet)))]
        self.fair: dict[int, FairFinish] = {}
        self.plan: dict[int, list[int]] = {}  # by job, whether it runs (1) in each round from `planned_round` on
        self.planned_round = 0
        self.weights: dict[int, float] = {}

    def decide(self, view: View) -> Decision:
        """The jobs of this round by the plan; what it leaves goes to the longest jobs that fit."""
        now_round = int(view.now_s / view.options.round_s + 1e-9)
        again_s = (now_round + 1) * view.options.round_s
        if not (view.requests and view.up.any()):
            return Decision(again_s=again_s)
        courses = {n: Course.of(request, view.progress[n]) for n, request in view.requests.items()}
        left_s = {n: course.left_s() for n, course in courses.items()}
        news = bool(view.arrived or view.ended or view.lost or view.nodes_down or view.nodes_up)
        if news or now_round - self.planned_round >= ROUNDS_KEPT:
            self._plan(view, courses, left_s, news=news)
        planned = {n for n, rounds in self.plan.items() if rounds[now_round - self.planned_round]}
        order = sorted(view.requests.values(), key=lambda job: (job.number not in planned, -left_s[job.number]))
        chosen = self._by_weight(fitting(order, int(view.up.sum())), left_s)
        return Decision(grant(view, chosen, fastest), again_s=again_s)

    def _plan(self, view: View, courses: Mapping[int, Course], left_s: Seconds, *, news: bool) -> None:
        """Plans the rounds from now on. Raises `InputError` if the solver fails."""
        now_round = int(view.now_s / view.options.round_s + 1e-9)
        gpus, numbers = int(view.up.sum()), list(view.requests)
        share = min(1.0, gpus / len(numbers))
        if news:
            for number, request in view.requests.items():  # when each would end with this share of its own time
                finish_s = request.submit_s + (courses[number].done_s + left_s[number]) / share
                if number in self.fair:
                    self.fair[number].forecast(now_round, finish_s)
                else:
                    self.fair[number] = FairFinish(now_round, finish_s)
        fair_s = np.array([self.fair[n].at(now_round) for n in numbers])
        window = Window(gpus, round_s=view.options.round_s, makespan_weight=self.makespan_weight)
        steps = self._steps(view, left_s)
        jobs = Candidates(
            widths=np.array([request.gpus for request in view.requests.values()], dtype=np.int32),
            epochs=np.array([float(courses[n].epochs) for n in numbers]),
            done=np.array([float(courses[n].done) for n in numbers]),
            epoch_s=np.array([courses[n].mean_s for n in numbers]) * steps,
            left_s=np.array([left_s[n] for n in numbers]) * steps,
        )
        try:
            planned, weights = self._solve(window, jobs, fair_s, view.now_s)
        except SolverError as failure:
            raise InputError(
                f"shockwave has no plan for the {len(numbers)} jobs at {view.now_s:g} s: the solver says {failure}"
            ) from failure
        self.plan = dict(zip(numbers, planned.tolist(), strict=True))
        self.weights = dict(zip(numbers, weights.tolist(), strict=True))
        self.planned_round = now_round

    def _solve(self, window: Window, jobs: Candidates, fair_s: Floats, now_s: float) -> tuple[Ints, Floats]:
        """The plan (jobs, rounds), and what each job weighs in it (jobs,)."""
        share = min(1.0, window.gpus / len(fair_s))
        spare_s = fair_s - (now_s + window.rounds * window.round_s)
        if spare_s.min() >= 0:  # else no plan lets every job end in its fair time, and no solver must be asked
            weights = np.ones(len(fair_s))
            with suppress(SolverError):  # that none is found within the limits of the solver: as if there were none
                planned = schedule(window, jobs, weights, jobs.left_s - share * spare_s)
                if planned is not None:
                    return planned, weights
        lateness = (now_s + jobs.left_s / share) / np.maximum(fair_s, window.round_s)
        powers = np.where(jobs.left_s < window.round_s, SHORT_POWER, self.power)
        weights = np.minimum(np.maximum(lateness, 1.0) ** powers, MOST_WEIGHT)
        planned = schedule(window, jobs, weights)
        if planned is None:
            raise SolverError("that there is none, where even an idle fleet would be a plan")
        return planned, weights

    def _by_weight(self, requests: Iterable[Request], left_s: Seconds) -> list[Request]:
        """Those first that have the most weight times work left."""
        return sorted(requests, key=lambda job: -self.weights.get(job.number, 1.0) * left_s[job.number])

    def _steps(self, view: View, left_s: Seconds) -> Floats:
        """(jobs,) the time of a step on the GPUs that each job can expect, beside that on GPUs of score 1.

        As if all chose in turn, and began anew on a free fleet where no GPUs are left.
        """
        steps, everything = {}, np.flatnonzero(view.up).tolist()
        free = everything
        for request in self._by_weight(view.requests.values(), left_s):
            if request.gpus > len(free):
                free = everything
            if request.gpus > len(free):
                steps[request.number] = 1.0
                continue
            gpus = fastest(view, request, free)
            steps[request.number] = step(view, request, gpus)
            free = [gpu for gpu in free if gpu not in gpus]
        return np.array([steps[number] for number in view.requests])


def fastest(view: View, request: Request, free: Sequence[int]) -> Sequence[int]:
    """The free GPUs on which the job should be fastest: of one node, or of all; the fullest node on ties."""
    scores = view.beliefs.rates.score(request.workload)
    ranked = sorted(free, key=scores.__getitem__)
    if request.gpus == 1:
        return ranked[:1]
    by_node = defaultdict[int, list[int]](list)
    for gpu in ranked:
        by_node[int(view.fleet.node[gpu])].append(gpu)
    nodes = sorted((gpus for gpus in by_node.values() if len(gpus) >= request.gpus), key=len)
    return min((gpus[: request.gpus] for gpus in (*nodes, ranked)), key=lambda gpus: step(view, request, gpus))


def step(view: View, request: Request, gpus: Sequence[int]) -> float:
    """The believed time of a step on these GPUs, beside that on GPUs of score 1."""
    return 1 / view.beliefs.rates.speed(request, request.batch, Allocation(tuple(gpus)))
