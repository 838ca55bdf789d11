"""What a policy sees of a replay: requests, progress, and beliefs about the fleet. Nothing here leads to what is true.

The engine writes plain records into the view; it hands over no object of its own and no bound method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .fleet import Fleet
from .job import Allocation
from .options import Options
from .rates import Rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .advised import Advised
    from .fleet import Floats

KNOWLEDGE = ("exact", "estimate", "none")


@dataclass(frozen=True, slots=True)
class Request:
    """What a user submitted, as a policy sees it. It can stand for the job in `beliefs.rates.speed`."""

    number: int
    """By which decisions name the job: its place in the trace; jobs of users are numbered on."""
    name: str
    submit_s: float
    gpus: int
    """Its own width."""
    workload: str = ""
    model: str = ""
    limit_s: float | None = None
    widths: tuple[int, int] | None = None
    deadline_s: float | None = None
    memory_gib: float | None = None
    batch: int | None = None
    """The batch size that it begins with."""
    modes: tuple[tuple[int | None, float], ...] = ()
    """(batch, seconds an epoch alone) of each of its regimes: which there are, not their order or length.

    () for a job whose pieces are not known.
    """
    epochs: float | None = None
    """In all; None for a job whose pieces are not known."""
    stages: tuple[tuple[int, float], ...] = ()
    work_s: float | None = None
    """Seconds alone on GPUs of score 1: exact, or an estimate; None where `Beliefs.knowledge` is "none"."""


@dataclass(slots=True)
class Progress:
    """What is seen of a job that was submitted. `attained` and `gpu_s` are sums up to `since_s`."""

    attained_s: float = 0.0
    """Wall time for which it held GPUs, until `since_s`; from 0 again where it lost its work with a node."""
    gpu_s: float = 0.0
    """GPU-seconds that it held, until `since_s`; likewise."""
    since_s: float = 0.0
    """When its allocation last changed: it was given GPUs, or lost them. Of a job that never ran its submission."""
    gpus: int = 0
    """GPUs that it holds; 0: it waits."""
    started: bool = False
    """It has held GPUs before, or does."""
    keeps_until_s: float = 0.0
    """Until here it has not yet worked for as long as its last start or move cost."""
    epochs_done: float = 0.0
    """For policies with `needs_progress`, as of now: epochs that are done, with the part of the one it is in."""
    regimes: tuple[tuple[int | None, float, float], ...] = ()
    """Likewise: (batch, epochs done, seconds for which it worked on them) of each regime so far, in order."""
    left_s: float | None = None
    """Likewise: work left, in seconds alone on GPUs of score 1; None where knowledge is "none"."""

    def attained_at(self, now_s: float) -> float:
        """Seconds for which it has held GPUs."""
        return self.attained_s + (now_s - self.since_s) if self.gpus else self.attained_s

    def gpu_s_at(self, now_s: float) -> float:
        """GPU-seconds that it has held."""
        return self.gpu_s + (now_s - self.since_s) * self.gpus


@dataclass(frozen=True)
class Beliefs:
    """What policies believe of the fleet and are told of jobs."""

    rates: Rates
    """The questions that the world answers, answered by believed scores and tables."""
    knowledge: str = "exact"
    """What is known of the work of jobs: "exact", "estimate" (times exp(N(0, error)), drawn once a job), or "none"."""
    error: float = 0.3
    advised: Advised | None = None
    """What `whorl advise` says of the nodes; None where nothing was measured."""
    usual: Mapping[str, Floats] | None = None
    """Class -> (gpus,) the believed score of the median GPU of the same board variant; None: 1 of all."""

    def __post_init__(self) -> None:
        if self.knowledge not in KNOWLEDGE:
            raise InputError(f"knowledge must be one of {', '.join(KNOWLEDGE)}, not {self.knowledge!r}")
        if not (np.isfinite(self.error) and self.error >= 0):
            raise InputError(f"the error of estimates must be at least 0 and finite, not {self.error:g}")

    def flat(self) -> Beliefs:
        """The same, in which no GPU differs from another and nothing is advised: the control of a policy."""
        return replace(self, rates=self.rates.flat(), advised=None, usual=None)


@dataclass(slots=True)
class View:
    """The replay as a policy sees it at a decision. It reads this and changes nothing."""

    fleet: Fleet
    beliefs: Beliefs
    options: Options
    """Without failures and users, which are to come."""
    random: Random
    """The replay's stream of random numbers."""
    rounds: bool = False
    """Decisions are made at the edges of rounds."""
    classes: frozenset[str] = frozenset()
    """The classes that jobs of the trace have."""
    widest: int = 1
    """GPUs of the trace's widest job."""
    now_s: float = 0.0
    edge_s: float = float("inf")
    """The edge of the round after this one, which `Decision.again_s` may name; infinite without rounds."""
    up: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """(gpus,) whether each is on a node that is up."""
    tenants: list[tuple[int, ...]] = field(default_factory=list)
    """Of each GPU, the numbers of the jobs that hold it."""
    requests: Mapping[int, Request] = field(default_factory=dict)
    """Of all jobs in the system, waiting or running, by number, in the order in which they came."""
    running: Mapping[int, Allocation] = field(default_factory=dict)
    """What each running job holds."""
    progress: Mapping[int, Progress] = field(default_factory=dict)
    """Of all jobs in the system."""
    arrived: list[int] = field(default_factory=list)
    """Jobs that came since the last decision."""
    ended: list[int] = field(default_factory=list)
    """Jobs that ended since then: their work is done or their limit was reached."""
    lost: list[int] = field(default_factory=list)
    """Jobs that lost a node since then, and wait."""
    nodes_down: list[int] = field(default_factory=list)
    """Nodes that went since then; some may be back (`up`)."""
    nodes_up: list[int] = field(default_factory=list)

    def waiting(self) -> list[int]:
        """The jobs that hold nothing, in the order in which they came."""
        return [number for number in self.requests if number not in self.running]

    def free(self) -> list[int]:
        """The GPUs that are up and that nobody holds, ascending: by node, then by slot."""
        return [gpu for gpu, up in enumerate(self.up.tolist()) if up and not self.tenants[gpu]]
