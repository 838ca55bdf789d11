"""How fast a job runs on GPUs, and at what power: by scores, roles, clocks, pairs and curves.

A synchronous job waits in each step for its slowest GPU. On a GPU alone, its part of a step takes

    score(GPU) * load(role) / clock ** gain

of a step of its own width on GPUs of score 1. The load is 1; for a job under structured partial backpropagation it is
the share of the step that the GPU's depth leaves. A burst-parallel job has stages: the first GPUs of its allocation
work in all of them, the last in the widest only, and each stage waits for the slowest of its own GPUs.

Jobs that share a GPU get the shares of their solo speed that a table of measured pairs says; without a table, equal
shares of the GPU. Beside a job that leaves a GPU idle for a part of its step (by its stages or depths), jobs get that
part, and it keeps its speed up to `foreground`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from ...errors import InputError
from .fleet import Fleet, Floats
from .jobs import Allocation
from .power import Draw, Power
from .tables import JobType, Pairs, StepCurves

_ROUNDING = 1e-9  # of a step: less idle time than that is none


class JobLike(Protocol):
    """What the speed of a job depends on: a `Job`, or a `Request` as policies see it."""

    @property
    def gpus(self) -> int: ...
    @property
    def workload(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def stages(self) -> tuple[tuple[int, float], ...]: ...


class Tenant(NamedTuple):
    """A job on a GPU."""

    job: JobLike
    batch: int | None  # the batch size that it trains with at present; None where it is not known
    allocation: Allocation


Tenants = Sequence[Sequence[Tenant]]
"""By GPU of an allocation, in its order, the other jobs on that GPU; () where no GPU has any."""


@dataclass(frozen=True)
class Rates:
    """How fast jobs run on a fleet, and at what power. One instance is what is true, another what policies believe."""

    fleet: Fleet
    scores: Mapping[str, Floats]
    """Class -> (gpus,) relative time, 1 is the median GPU; the class "" is known to all and is 1 everywhere."""
    locality: float = 1.0
    """Factor on the time of a job that spans nodes; not of one with a curve, which was measured across nodes."""
    pairs: Pairs | None = None
    curves: StepCurves | None = None
    clock_gain: Mapping[str, float] = field(default_factory=dict)
    """Class -> b: at a clock of x times the default, a GPU is x to the power of b as fast; 1 where not named."""
    backward: float = 2 / 3  # the share of a step that a full backward pass takes
    foreground: float = 1.0  # the share of its speed that a job which leaves GPUs idle keeps while others use that time
    power: Power | None = None  # None: no energy is known

    def __post_init__(self) -> None:
        if not (math.isfinite(self.locality) and self.locality >= 1):
            raise InputError(f"the locality penalty must be at least 1, not {self.locality:g}")
        for name in ("backward", "foreground"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be more than 0 and at most 1, not {getattr(self, name):g}")
        gpus = len(self.fleet)
        for name, scores in self.scores.items():
            if scores.shape != (gpus,):
                raise InputError(f"the class {name!r} has {len(scores)} scores for {gpus} GPUs")
            bad = np.flatnonzero(~(np.isfinite(scores) & (scores > 0)))
            if len(bad):
                gpu = self.fleet.gpu_names[bad[0]]
                raise InputError(f"GPU {gpu} has the score {scores[bad[0]]:g} in class {name!r}: it must be > 0")
        for name, watts in (self.power.gpu_w if self.power else {}).items():
            if watts.shape != (gpus,):
                raise InputError(f"the class {name!r} has {len(watts)} powers for {gpus} GPUs")

    def flat(self) -> Rates:
        """The same without any difference between GPUs: every score is 1, and every power the mean."""
        ones = {name: np.ones(len(scores)) for name, scores in self.scores.items()}
        return replace(self, scores=ones, power=self.power and self.power.alike())

    def score(self, workload: str) -> Floats:
        """(gpus,) the scores of a class, 1 everywhere for ""."""
        if workload in self.scores:
            return self.scores[workload]
        if workload == "":
            return np.ones(len(self.fleet))
        raise InputError(
            f"the fleet has no scores of class {workload!r}; it has {', '.join(sorted(self.scores)) or 'none'}"
        )

    def speed(self, job: JobLike, batch: int | None, allocation: Allocation, tenants: Tenants = ()) -> float:
        """Work-seconds a second: 1 is the job's own width, alone, on GPUs of score 1 in one node at the default clock.

        It is 0 where other jobs leave no time on a GPU. Raises InputError where no table says it: a width without a
        curve, a pair that was not measured, or one that does not fit into the memory of a GPU.
        """
        gpus = allocation.gpus
        times = self._times(job, allocation)
        if any(tenants):
            tenant = Tenant(job, batch, allocation)
            shares = [self._share(tenant, role, others) for role, others in enumerate(tenants)]
            if not all(shares):
                return 0.0
            times = [time / share for time, share in zip(times, shares, strict=True)]
        step = _step(times, job.stages)
        if self.curves is not None and job.model in self.curves:
            counts = Counter(map(self._node_list.__getitem__, gpus))
            by_node = tuple(counts[node] for node in sorted(counts))
            return self.curves.speed(job.model, by_node, job.gpus, batch) / step
        if len(gpus) != job.gpus:
            raise InputError(
                f"it was submitted for {job.gpus} GPUs and gets {len(gpus)}, and no curve says how fast "
                f"{job.model or 'it'} runs on them"
            )
        return 1.0 / (step * self.locality if self._spans(gpus) else step)

    def draw(self, job: JobLike, batch: int | None, allocation: Allocation, tenants: Tenants = ()) -> Draw:
        """What a job draws on its GPUs, in watts; NaN where a power is not known.

        A GPU draws for a job as long as the job works on it. Where the sum over the jobs of a GPU is above the most
        that it draws, each counts in proportion.
        """
        if self.power is None:
            return Draw(math.nan, math.nan)
        gpus, idle_w = allocation.gpus, self.power.idle_w or 0.0
        if not (job.stages or allocation.depths or allocation.clocks or any(tenants) or self.power.cap_w):
            watts = self._watt_list(job.workload)
            return Draw(sum(watts[gpu] - idle_w for gpu in gpus), len(gpus) * idle_w)
        tenant = Tenant(job, batch, allocation)
        beside = tenants or ((),) * len(gpus)
        work_w = sum(self._drawn(tenant, role, others) for role, others in enumerate(beside))
        return Draw(work_w, sum(idle_w / (1 + len(others)) for others in beside))

    def busy(self, tenant: Tenant) -> list[float]:
        """By GPU of an allocation, the share of a step in which the job works on it; what is left is for others.

        That is 1 for a job without stages and depths, although fast GPUs wait for slow ones: such waits are short, and
        other jobs cannot use them.
        """
        job, allocation = tenant.job, tenant.allocation
        if not _leaves_time(tenant):
            return [1.0] * len(allocation.gpus)
        times = self._times(job, allocation)
        step = _step(times, job.stages)
        if not job.stages:
            return [time / step for time in times]
        paces = [(width, share * max(times[:width])) for width, share in job.stages]
        return [sum(pace for width, pace in paces if width > role) / step for role in range(len(times))]

    def _times(self, job: JobLike, allocation: Allocation) -> list[float]:
        """By GPU of an allocation, the time of its part of a step, alone on the GPU."""
        times = list(map(self._score_list(job.workload).__getitem__, allocation.gpus))
        if allocation.clocks:
            gain = self.clock_gain.get(job.workload, 1.0)
            times = [time / clock**gain for time, clock in zip(times, allocation.clocks, strict=True)]
        if allocation.depths:
            forward, backward = 1 - self.backward, self.backward
            times = [time * (forward + backward * depth) for time, depth in zip(times, allocation.depths, strict=True)]
        return times

    def _share(self, tenant: Tenant, role: int, others: Sequence[Tenant]) -> float:
        """The share of its solo speed that a job keeps on one of its GPUs beside the other jobs on it."""
        gpu = tenant.allocation.gpus[role]
        peers = [guest for guest in others if not _leaves_time(guest)]
        work = sum(self._busy_on(gpu, guest) for guest in others if _leaves_time(guest))
        if _leaves_time(tenant):
            return (self.foreground if peers else 1.0) / max(1.0, work + self._busy_on(gpu, tenant))
        idle = 1.0 - work if work < 1.0 - _ROUNDING else 0.0
        if self.pairs is None:
            return idle / (1 + len(peers))
        return idle * math.prod(self.pairs.share(_kind(tenant), _kind(guest)) for guest in others)

    def _busy_on(self, gpu: int, tenant: Tenant) -> float:
        return self.busy(tenant)[tenant.allocation.gpus.index(gpu)]

    def _drawn(self, tenant: Tenant, role: int, others: Sequence[Tenant]) -> float:
        """The watts above idle that a job draws on one of its GPUs beside the other jobs on it."""
        assert self.power is not None
        power, gpu = self.power, tenant.allocation.gpus[role]
        idle_w = power.idle_w or 0.0
        guests = (tenant, *others)
        work = sum(self._busy_on(gpu, guest) for guest in guests if _leaves_time(guest))
        demands = []
        for guest in guests:
            watts, allocation = self._watt_list(guest.job.workload), guest.allocation
            clock = allocation.clocks[allocation.gpus.index(gpu)] if allocation.clocks else 1.0
            busy = self._busy_on(gpu, guest) if _leaves_time(guest) else max(0.0, 1.0 - work)
            demands.append((watts[gpu] - idle_w) * busy * clock**power.clock_exponent)
        total_w, most_w = sum(demands), math.inf
        if others or power.cap_w is not None:
            most_w = self._cap_list[gpu] - idle_w
        return float(demands[0] * most_w / total_w if total_w > most_w else demands[0])

    def _spans(self, gpus: Sequence[int]) -> bool:
        """Whether an allocation reaches over several nodes."""
        node = self._node_list
        first = node[gpus[0]]
        return any(node[gpu] != first for gpu in reversed(gpus))

    @cached_property
    def _node_list(self) -> list[int]:
        nodes: list[int] = self.fleet.node.tolist()
        return nodes

    @cached_property
    def _cap_list(self) -> list[float]:
        assert self.power is not None
        caps: list[float] = self.power.caps(len(self.fleet)).tolist()
        return caps

    # Single numbers are read many times, and faster from lists.

    @cached_property
    def _score_lists(self) -> dict[str, list[float]]:
        return {}

    @cached_property
    def _watt_lists(self) -> dict[str, list[float]]:
        return {}

    def _score_list(self, workload: str) -> list[float]:
        if workload not in self._score_lists:
            self._score_lists[workload] = self.score(workload).tolist()
        return self._score_lists[workload]

    def _watt_list(self, workload: str) -> list[float]:
        """All NaN where nothing says the powers of the class."""
        if workload not in self._watt_lists:
            watts = None if self.power is None else self.power.of(workload)
            self._watt_lists[workload] = [math.nan] * len(self.fleet) if watts is None else watts.tolist()
        return self._watt_lists[workload]


def _step(times: Sequence[float], stages: Iterable[tuple[int, float]]) -> float:
    """The time of a step from those of the GPUs: the slowest sets the pace, in each stage among its own GPUs."""
    if not stages:
        return max(times)
    return sum(share * max(times[:width]) for width, share in stages)


def _leaves_time(tenant: Tenant) -> bool:
    """Whether a job has GPUs that do not work for whole steps, which others may use."""
    return bool(tenant.job.stages or tenant.allocation.depths)


def _kind(tenant: Tenant) -> JobType:
    return JobType(tenant.job.model, tenant.batch, tenant.job.gpus)
