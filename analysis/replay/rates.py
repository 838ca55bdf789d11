"""How fast jobs go on which GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from ...errors import InputError
from .fleet import Fleet, Floats
from .job import Allocation


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


class PieceLike(Protocol):
    """The stretch of a job that is asked about: a `Piece`, or a `Request`, whose batch is that of its first piece."""

    @property
    def batch(self) -> int | None: ...


class Tenant(NamedTuple):
    """A job on a GPU."""

    job: JobLike
    piece: PieceLike
    allocation: Allocation


Tenants = Sequence[Sequence[Tenant]]
"""By GPU of an allocation, in its order, the other jobs on that GPU; () where no GPU has any."""


@dataclass(frozen=True)
class Rates:
    """Speeds by tables. One instance is the truth, another what policies believe."""

    fleet: Fleet
    scores: Mapping[str, Floats]
    """Class -> (gpus,) relative times: 1 is the fleet's median GPU, higher is slower."""
    locality: float = 1.0
    """Factor on the run time of a job that spans nodes."""

    def flat(self) -> Rates:
        """The same, in which no GPU differs from another."""
        return replace(self, scores={name: np.ones(len(self.fleet)) for name in self.scores})

    def score(self, workload: str) -> Floats:
        """(gpus,) the scores of a class; 1 everywhere for ""."""
        if workload in self.scores:
            return self.scores[workload]
        if workload == "":
            return np.ones(len(self.fleet))
        known = ", ".join(sorted(self.scores)) or "none"
        raise InputError(f"the fleet has no scores of class {workload!r}; it has {known}")

    def speed(self, job: JobLike, piece: PieceLike, allocation: Allocation, tenants: Tenants = ()) -> float:  # noqa: ARG002
        """Work-seconds a second: 1 is the job's own width, alone, on GPUs of score 1 in one node."""
        gpus = list(allocation.gpus)
        step = float(self.score(job.workload)[gpus].max())
        if len(set(self.fleet.node[gpus].tolist())) > 1:
            step *= self.locality
        return 1.0 / (step * (1 + max((len(others) for others in tenants), default=0)))
