"""EaCO (arXiv 2412.08294): jobs share GPUs while all deadlines hold, so that fewer nodes are awake.

The method is the paper's; its code is not public, so the rules are restated from the text. A job takes the GPUs of
another job if the two are believed to do more work together than one after the other and both still end in time.
When each has finished an epoch, what was seen replaces what was believed, and the pair is kept or undone. Everything
else is packed, so that empty nodes can sleep. With the power of each GPU, jobs share where work costs the least
energy, and of equally full nodes the one where it costs the most is left to sleep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....errors import InputError
from ..fleet import Floats
from ..jobs import Allocation
from ..tables import JobType
from ..world import Request, View
from .policy import Decision, Policy

EPOCHS = 20  # a job whose epochs are not known is looked at again as if it had so many
SOONEST_S = 1.0  # from one look at a pair to the next
WATCH_S = 60.0  # the same after a pair has been kept, while a batch size may still change
LOOKED_AT = 64  # jobs of the queue for which GPUs are sought: in a long queue, those behind them wait
ROUNDING = 1e-9  # relative: predictions that differ by less are equal


@dataclass(frozen=True)
class Sharing:
    """When jobs may share GPUs."""

    deadline_slack: float = 1.25
    """A job that states no deadline is to end within so many times its time alone, from its submission on."""
    pair_at_least: float = 1.1  # the least sum of the shares of their solo speeds that the jobs on a GPU keep
    alpha: float = 1.0
    """The weight of the energy of work; 1 - alpha is that of the time of an epoch, and 0 shares nothing."""
    most_jobs: int = 2  # On a GPU. The share that a job keeps beside several is the product of those beside each.

    def __post_init__(self) -> None:
        if not self.deadline_slack >= 1:
            raise InputError(f"the deadline slack must be at least 1, not {self.deadline_slack:g}")
        if not self.pair_at_least >= 1:
            raise InputError(f"a pair must do at least 1 of the work of a GPU alone, not {self.pair_at_least:g}")
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha, the weight of energy against time, must be between 0 and 1, not {self.alpha:g}")
        if self.most_jobs < 1:
            raise InputError(f"a GPU must hold at least one job, not {self.most_jobs}")


class _Mark(NamedTuple):
    """What was seen of a job when it began to share."""

    regimes: int
    work_s: float
    busy_s: float
    edge: float  # epochs done when it has finished one: what was seen until then is learnt


@dataclass(slots=True)
class _Trial:
    """Jobs that share GPUs, and when they are looked at again."""

    marks: dict[int, _Mark]  # in the order in which they came to the GPUs
    learnt: bool = False  # each has finished an epoch
    must_part: bool = False  # they may not go on, but no GPU is free: the last that came leaves as soon as one is
    again_s: float = math.inf


class EaCO(Policy):
    """Shares GPUs by measured pairs under deadlines; otherwise first come, first served on the fullest node."""

    name = "eaco"
    summary = "EaCO: jobs share GPUs where a pair saves energy and all deadlines hold; empty nodes sleep"
    nodes_sleep = True
    knowledge = "exact"
    needs_progress = True

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.sharing = sharing or Sharing()
        self._trials: dict[tuple[int, ...], _Trial] = {}
        self._history: dict[tuple[JobType, JobType], float] = {}
        """(job, the one beside it) -> the share of its solo speed that was seen; first what the table of pairs says."""
        self._energies: dict[str, Floats] = {}

    def decide(self, view: View) -> Decision:
        floor = _Floor(view)
        changes: dict[int, Allocation | None] = {}
        for gpus, trial in self._trials.items():
            jobs = [job for job in trial.marks if job in floor.jobs.get(gpus, ())]
            if len(jobs) < len(trial.marks):
                trial.marks, trial.again_s = {job: _mark(view, job) for job in jobs}, math.inf
            if len(jobs) > 1 and view.now_s >= trial.again_s - ROUNDING:
                trial.must_part = not self._holds(view, gpus, trial)
                newcomer = jobs[-1]
                free = self._pack(view, floor, newcomer) if trial.must_part else None
                if free is not None:
                    floor.move(newcomer, gpus, free)
                    changes[newcomer] = Allocation(free, shared=True)
                    trial.marks, trial.must_part = {job: _mark(view, job) for job in jobs[:-1]}, False
        queue_waits = False
        for number in view.waiting()[:LOOKED_AT]:
            target = self._partner(view, floor, number)
            if target is not None:
                self._trials[target] = _Trial({job: _mark(view, job) for job in (*floor.jobs[target], number)})
            elif not queue_waits:
                target = self._pack(view, floor, number)
                queue_waits = target is None
            if target is not None:
                floor.move(number, (), target)
                changes[number] = Allocation(target, shared=True)
        self._trials = {gpus: trial for gpus, trial in self._trials.items() if len(trial.marks) > 1}
        for gpus, trial in self._trials.items():
            if not view.now_s < trial.again_s < math.inf:
                trial.again_s = view.now_s + (0.0 if trial.must_part else self._until_look(view, gpus, trial))
        later = (trial.again_s for trial in self._trials.values() if not trial.must_part)
        return Decision(changes, min(later, default=math.inf))

    def _partner(self, view: View, floor: _Floor, number: int) -> tuple[int, ...] | None:
        """The GPUs whose jobs a job may join: those with most jobs first, then where work costs least."""
        request, best = view.requests[number], None
        if view.beliefs.rates.pairs is None:
            return None
        for gpus, jobs in floor.jobs.items():
            if len(gpus) != request.gpus or not 0 < len(jobs) < self.sharing.most_jobs:
                continue
            cost = self._cost(view, gpus, (*jobs, number))
            if cost is not None:
                key = (-len(jobs), cost, gpus)
                best = key if best is None else min(best, key)
        return None if best is None else best[2]

    def _cost(self, view: View, gpus: tuple[int, ...], numbers: Sequence[int]) -> float | None:
        """What work costs if these jobs share these GPUs; None if they may not.

        It is alpha times the energy of a unit of work plus (1 - alpha) times the mean time of an epoch, each beside
        that of a job alone on a GPU of the median energy. Ends are predicted by the shares at present. Where a batch
        size may change, there must be time to see that at the next look and to part.
        """
        sharing, requests = self.sharing, [view.requests[number] for number in numbers]
        shares = self._shares(view, [[_kind(view, number)] for number in numbers])
        if not all(shares) or sum(shares) < sharing.pair_at_least * (1 - ROUNDING):
            return None
        time = sum(1 / share for share in shares) / len(shares)
        if sharing.alpha / sum(shares) + (1 - sharing.alpha) * time >= 1:
            return None
        kinds = [_kinds(request) for request in requests]
        may_change = any(len(kinds_of_job) > 1 for kinds_of_job in kinds)
        lowest = self._shares(view, kinds) if may_change else shares
        if not all(lowest):
            return None
        for request, share, least in zip(requests, shares, lowest, strict=True):
            left_s, work_s = view.progress[request.number].left_s, request.work_s
            if left_s is None or work_s is None:
                return None
            deadline_s = request.deadline_s
            if deadline_s is None:
                deadline_s = request.submit_s + sharing.deadline_slack * work_s
            end_s = view.now_s + left_s / (share * _alone(view, request, gpus))
            if may_change:
                end_s += WATCH_S * (1 - least) + view.options.migration_s
            if end_s > deadline_s + ROUNDING * (deadline_s + work_s):
                return None
        energy = sum(float(self._energy(view, request.workload)[gpu]) for request in requests for gpu in gpus)
        return sharing.alpha * energy / (len(requests) * len(gpus)) / sum(shares) + (1 - sharing.alpha) * time

    def _shares(self, view: View, kinds: Sequence[Sequence[JobType]]) -> list[float]:
        """The least share of its solo speed that each job keeps beside the others, over all that they may be.

        0 if two do not fit, or nothing says it.
        """
        return [
            math.prod(
                min(self._believed(view, kind, peer) for kind in kinds[job] for peer in kinds[beside])
                for beside in range(len(kinds))
                if beside != job
            )
            for job in range(len(kinds))
        ]

    def _believed(self, view: View, kind: JobType, peer: JobType) -> float:
        share = self._history.get((kind, peer))
        if share is None:
            pairs = view.beliefs.rates.pairs
            share = self._history[kind, peer] = (pairs and pairs.find(kind, peer)) or 0.0
        return share

    def _holds(self, view: View, gpus: tuple[int, ...], trial: _Trial) -> bool:
        """Look at jobs that share again: whether they may go on."""
        if not trial.learnt and all(_epochs(view, job) >= mark.edge - ROUNDING for job, mark in trial.marks.items()):
            trial.learnt = True
            self._learn(view, gpus, trial)
        return self._cost(view, gpus, list(trial.marks)) is not None

    def _learn(self, view: View, gpus: tuple[int, ...], trial: _Trial) -> None:
        """Write what was seen into the history, unless a batch size changed meanwhile."""
        if any(_mark(view, number).regimes != mark.regimes for number, mark in trial.marks.items()):
            return
        kinds = {number: _kind(view, number) for number in trial.marks}
        for number, mark in trial.marks.items():
            now = _mark(view, number)
            peers = [kind for peer, kind in kinds.items() if peer != number]
            believed = math.prod(self._believed(view, kinds[number], peer) for peer in peers)
            if now.busy_s > mark.busy_s:
                speed = (now.work_s - mark.work_s) / (now.busy_s - mark.busy_s)
                error = speed / (believed * _alone(view, view.requests[number], gpus))
                for peer in peers:
                    share = self._believed(view, kinds[number], peer) * error ** (1 / len(peers))
                    self._history[kinds[number], peer] = share

    def _until_look(self, view: View, gpus: tuple[int, ...], trial: _Trial) -> float:
        """Seconds until jobs that share are looked at again.

        That is when each is believed to have finished its first epoch beside the others; and, where a batch size may
        change, when the first of them is at the end of an epoch, as it changes only there.
        """
        numbers = list(trial.marks)
        shares = self._shares(view, [[_kind(view, number)] for number in numbers])
        learnt_s, edge_s = 0.0, math.inf
        for number, share in zip(numbers, shares, strict=True):
            done = _epochs(view, number)
            epoch_s = _epoch_s(view, number) / (share * _alone(view, view.requests[number], gpus))
            learnt_s = max(learnt_s, (trial.marks[number].edge - done) * epoch_s)
            edge_s = min(edge_s, (math.floor(done + ROUNDING) + 1 - done) * epoch_s)
        until_s = math.inf if trial.learnt else max(SOONEST_S, learnt_s)
        if any(len(_kinds(view.requests[number])) > 1 for number in numbers):
            until_s = min(until_s, max(WATCH_S, edge_s))
        return until_s

    def _pack(self, view: View, floor: _Floor, number: int) -> tuple[int, ...] | None:
        """The fullest node that has room; else the nodes with most free GPUs. On ties, where work costs least."""
        request = view.requests[number]
        energy = self._energy(view, request.workload)
        sizes = np.bincount(view.fleet.node)
        of_node = np.bincount(view.fleet.node, weights=energy) / sizes
        rooms = [
            (len(free), float(of_node[node]), node) for node, free in floor.free.items() if len(free) >= request.gpus
        ]
        if rooms:
            nodes = [min(rooms)[2]]
        else:
            nodes = sorted(floor.free, key=lambda node: (-len(floor.free[node]), of_node[node], node))
        gpus = [gpu for node in nodes for gpu in sorted(floor.free[node], key=lambda gpu: (energy[gpu], gpu))]
        return tuple(sorted(gpus[: request.gpus])) if len(gpus) >= request.gpus else None

    def _energy(self, view: View, workload: str) -> Floats:
        """(gpus,) the believed energy of a unit of work with the GPU's part of its node, beside that of the median.

        It is the score alone where no power is believed.
        """
        if workload not in self._energies:
            rates = view.beliefs.rates
            score, power = rates.score(workload), rates.power
            watts = None if power is None else power.of(workload)
            energy = score
            if power is not None and watts is not None and np.isfinite(watts).any():
                parts = (power.node_w or 0.0) / np.bincount(view.fleet.node)[view.fleet.node]
                energy = score * (np.where(np.isfinite(watts), watts, np.nanmedian(watts)) + parts)
            self._energies[workload] = energy / np.median(energy)
        return self._energies[workload]


class _Floor:
    """Who holds which GPUs, with the changes of a decision that is being made."""

    def __init__(self, view: View) -> None:
        self.jobs: dict[tuple[int, ...], tuple[int, ...]] = {}  # the GPUs that jobs hold together -> the jobs
        self.free: dict[int, set[int]] = {}  # node -> its free GPUs; only nodes that have some
        self._node = view.fleet.node.tolist()
        for number, allocation in view.running.items():
            self.jobs[allocation.gpus] = (*self.jobs.get(allocation.gpus, ()), number)
        for gpu in view.free():
            self.free.setdefault(self._node[gpu], set()).add(gpu)

    def move(self, number: int, gpus: tuple[int, ...], target: tuple[int, ...]) -> None:
        """A job leaves GPUs that others keep (() if it held none), and takes others."""
        if gpus:
            self.jobs[gpus] = tuple(job for job in self.jobs[gpus] if job != number)
        if target not in self.jobs:
            for gpu in target:
                node = self._node[gpu]
                self.free[node].discard(gpu)
                if not self.free[node]:
                    del self.free[node]
        self.jobs[target] = (*self.jobs.get(target, ()), number)


def _kinds(request: Request) -> list[JobType]:
    """What a job may be to the table of pairs: one kind for each of its batch sizes."""
    batches = dict.fromkeys(batch for batch, _ in request.modes) or {request.batch: None}
    return [JobType(request.model, batch, request.gpus) for batch in batches]


def _kind(view: View, number: int) -> JobType:
    """What a job is at present."""
    request, regimes = view.requests[number], view.progress[number].regimes
    return JobType(request.model, regimes[-1][0] if regimes else request.batch, request.gpus)


def _alone(view: View, request: Request, gpus: tuple[int, ...]) -> float:
    """The believed speed of a job alone on GPUs."""
    return view.beliefs.rates.speed(request, request.batch, Allocation(gpus))


def _epochs(view: View, number: int) -> float:
    """The epochs that a job has done, with the part of the one it is in."""
    done = view.progress[number].epochs_done
    return done if view.requests[number].modes else done * EPOCHS


def _epoch_s(view: View, number: int) -> float:
    """Seconds of an epoch alone, of the batch size that a job has at present."""
    request = view.requests[number]
    seconds = dict(request.modes).get(_kind(view, number).batch)
    return (request.work_s or 0.0) / EPOCHS if seconds is None else seconds


def _mark(view: View, number: int) -> _Mark:
    request, progress = view.requests[number], view.progress[number]
    modes = dict(request.modes)
    work_s = sum(done * modes.get(batch, request.work_s or 0.0) for batch, done, _ in progress.regimes)
    busy_s = sum(busy for _, _, busy in progress.regimes)
    return _Mark(max(1, len(progress.regimes)), work_s, busy_s, math.floor(_epochs(view, number) + ROUNDING) + 1)
