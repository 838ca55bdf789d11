"""Training that leaves a part of its GPUs' time to others: burst-parallel (DeepPool), partial backpropagation (JigSaw).

Some jobs lead: they have their GPUs in roles, and leave some idle for a part of each step. The others are guests. They
get free GPUs where there are enough, else the idle time of GPUs that a leader holds, one guest on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np

from ...placement import sets
from ...training.gang import depths_of
from ..jobs import Allocation
from ..rates import Tenant
from ..tables import JobType
from ..world import Request, View
from .policy import Decision, Policy

Granted = Callable[[tuple[int, ...]], Allocation]
LEAST = 0.05  # a guest must get this share of each GPU, or it waits


class Filling(Policy):
    """Leaders first come, first served on the fastest GPUs, the fastest in the role that works most; guests fill up."""

    note: ClassVar[str] = "a job keeps `foreground` of its speed beside those in its idle time; 1 was not measured"

    def leads(self, request: Request) -> bool:
        """Whether a job leads."""
        raise NotImplementedError

    def granted(self, gpus: tuple[int, ...]) -> Allocation:
        """What a leader gets, of GPUs that stand fastest first."""
        raise NotImplementedError

    def decide(self, view: View) -> Decision:
        holds = dict(view.running)
        leaders = {number: holds[number] for number in holds if self.leads(view.requests[number])}
        available = set(np.flatnonzero(view.up).tolist())
        for number in view.waiting():
            request = view.requests[number]
            if not self.leads(request):
                continue
            without_leader = available.difference(*(leader.gpus for leader in leaders.values()))
            unused = without_leader.difference(*(allocation.gpus for allocation in holds.values()))
            ground = unused if len(unused) >= request.gpus else without_leader
            if len(ground) >= request.gpus:
                leaders[number] = holds[number] = _best(view, request, ground, self.granted)
        self._fill(view, holds, leaders, available)
        changes: dict[int, Allocation | None] = {n: a for n, a in holds.items() if view.running.get(n) != a}
        changes |= {number: None for number in view.running if number not in holds}
        return Decision(changes)

    def _fill(
        self, view: View, holds: dict[int, Allocation], leaders: dict[int, Allocation], available: set[int]
    ) -> None:
        """Let guests have free GPUs, else idle time; those that get nothing are taken out of `holds`."""
        leader_of = {gpu: number for number, allocation in leaders.items() for gpu in allocation.gpus}
        rates, idle = view.beliefs.rates, dict[int, float]()
        for number, allocation in leaders.items():
            busy = rates.busy(Tenant(view.requests[number], None, allocation))
            idle |= {gpu: 1.0 - share for gpu, share in zip(allocation.gpus, busy, strict=True)}
        least = max(LEAST, 1.0 - rates.foreground + 1e-9)  # also more than the leader loses by it
        guests = [number for number in view.requests if number not in leaders and not self.leads(view.requests[number])]
        settled = [n for n in guests if n in holds and not leader_of.keys() & set(holds[n].gpus)]
        guest_gpus = {gpu for number in settled for gpu in holds[number].gpus}
        for number in guests:
            if number in settled:
                continue
            request, present = view.requests[number], holds.pop(number, None)
            unused = available - leader_of.keys() - guest_gpus
            spare = {
                gpu: idle[gpu] * share
                for gpu, leader in leader_of.items()
                if gpu not in guest_gpus and (share := _share(view, request, view.requests[leader])) is not None
            }
            spare = {gpu: share for gpu, share in spare.items() if share >= least}
            if len(unused) >= request.gpus:
                holds[number] = _best(view, request, unused, _shared)
            elif present is not None and spare.keys() >= set(present.gpus):
                holds[number] = present
            elif len(spare) >= request.gpus:
                order = sorted(spare, key=lambda gpu: (-spare[gpu], gpu))
                holds[number] = _shared(tuple(order[: request.gpus]))
            else:
                continue
            guest_gpus |= set(holds[number].gpus)


def _best(view: View, request: Request, available: Iterable[int], granted: Granted) -> Allocation:
    """The GPUs on which a job is believed to be faster: on as few nodes as can be, or wherever; the fastest first."""
    rates, gpus = view.beliefs.rates, np.array(sorted(available), dtype=np.intp)
    scores = rates.score(request.workload)[gpus]
    packed = sets.best_packed(scores, sets.NodeLayout(view.fleet.node[gpus].astype(np.intp)), request.gpus)
    assert packed is not None, "there are enough"
    choices = [
        granted(tuple(gpus[chosen[np.argsort(scores[chosen], kind="stable")]].tolist()))
        for chosen in (packed, sets.best_spread(scores, request.gpus))
    ]
    return max(choices, key=lambda choice: rates.speed(request, request.batch, choice))


def _share(view: View, guest: Request, leader: Request) -> float | None:
    """The share of its solo speed that a guest keeps beside a leader; None if the two cannot share a GPU."""
    pairs = view.beliefs.rates.pairs
    if pairs is None:
        return 1.0
    kinds: Sequence[JobType] = [JobType(job.model, job.batch, job.gpus) for job in (guest, leader)]
    return pairs.find(*kinds) if pairs.find(*reversed(kinds)) else None


def _shared(gpus: tuple[int, ...]) -> Allocation:
    return Allocation(gpus, shared=True)


class Burst(Filling):
    name = "burst"
    summary = (
        "DeepPool: burst-parallel jobs on the fastest GPUs in roles; other jobs have the time that they leave idle"
    )

    def leads(self, request: Request) -> bool:
        return bool(request.stages)

    def granted(self, gpus: tuple[int, ...]) -> Allocation:
        return _shared(gpus)


class PartialBackpropagation(Filling):
    """Structured partial backpropagation: jobs of several GPUs go back less deep on slower GPUs.

    The mechanism is inferred from the abstract of JigSaw's paper. What it does to the quality of training is not
    simulated.
    """

    name = "spb"
    summary = "JigSaw: jobs of several GPUs go back deepest on the fastest; other jobs have the slack"
    note: ClassVar[str] = (
        f"{Filling.note}; what partial backpropagation does to the quality of training is not simulated"
    )

    def leads(self, request: Request) -> bool:
        return request.gpus > 1

    def granted(self, gpus: tuple[int, ...]) -> Allocation:
        return Allocation(gpus, shared=True, depths=tuple(depths_of(len(gpus)).tolist()))
