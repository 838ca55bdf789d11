"""A fleet as it is and as it is believed to be, and what a policy sees of a replay.

Nothing that a policy sees leads to what is true: the engine writes plain records into the view, and hands over no
object of its own and no bound method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..placement.advice import LEAST_LEFT, Advice, advise
from .fleet import Fleet, Floats, Ints
from .jobs import Allocation
from .options import Options
from .power import Power
from .rates import Rates

if TYPE_CHECKING:
    from ..placement import Scores


WEIGHTS = {"soft": 1, "hard": 2}
"""What `whorl advise --format weights` adds to the weight of a node of each tier; of all others nothing."""


class Advised:
    """The advice of `whorl advise` on the nodes of one fleet: what Slurm would be told of each.

    It is asked for as a user asks, for the workload and the number of GPUs of a job, and is about nodes, since Slurm's
    exclusions and weights are. Nodes that `advise` does not know are usual.
    """

    def __init__(
        self, scores: Scores, nodes: Sequence[str], advice: dict[tuple[str, int], Advice | None] | None = None
    ) -> None:
        """`nodes`: the fleet's nodes, in its order. `advice`: what was advised for a workload and a number of GPUs,
        shared by fleets of the same scores."""
        self._scores, self._nodes = scores, nodes
        self._cache = {} if advice is None else advice
        self._barred: dict[tuple[str, int], NDArray[np.bool_]] = {}

    def barred(self, workload: str, gpus: int) -> NDArray[np.bool_]:
        """(nodes,) whether each is excluded for a job of `gpus` GPUs."""
        if (workload, gpus) not in self._barred:
            advice = self._advice(workload, 1)
            if advice is not None and advice.cost.gpus_left < LEAST_LEFT * gpus:
                advice = self._advice(workload, gpus)  # a smaller job can do without more nodes than this one
            excluded = set(advice.exclude) if advice is not None else ()
            self._barred[workload, gpus] = np.array([node in excluded for node in self._nodes], dtype=np.bool_)
        return self._barred[workload, gpus]

    @cached_property
    def weights(self) -> Ints:
        """(nodes,) what is added to the weight of each: by its worst tier in any workload, as it has one weight."""
        worst = dict.fromkeys(self._nodes, 0)
        for workload in self._scores.workloads:
            advice = self._advice(workload, 1)
            for node in advice.nodes if advice is not None else ():
                worst[node.node] = max(worst[node.node], WEIGHTS[node.tier])
        return np.array([worst[node] for node in self._nodes], dtype=np.int32)

    def _advice(self, workload: str, gpus: int) -> Advice | None:
        """None where there is none to be had: such a job is left as it is, with or without Slurm."""
        if (workload, gpus) not in self._cache:
            try:
                # What a choice gains is not asked for here, so one draw of it will do.
                advice = advise(self._scores, workload, gpus=gpus, replicates=1) if workload else None
            except InputError:
                advice = None  # more GPUs than are on known nodes
            self._cache[workload, gpus] = advice
        return self._cache[workload, gpus]


KNOWLEDGE = ("exact", "estimate", "none")


@dataclass(frozen=True, slots=True)
class Request:
    """What a user submitted, as a policy sees it. It can stand for the job in `beliefs.rates.speed`."""

    number: int  # by which decisions name the job: its place in the trace; other jobs are numbered on
    name: str
    submit_s: float
    gpus: int  # its own width
    workload: str = ""
    model: str = ""
    limit_s: float | None = None
    widths: tuple[int, int] | None = None
    deadline_s: float | None = None
    batch: int | None = None  # the batch size that it begins with
    modes: tuple[tuple[int | None, float], ...] = ()
    """(batch, seconds an epoch alone) of each of its regimes: which there are, not their order or length.

    () for a job whose pieces are not known.
    """
    epochs: float | None = None  # in all; None for a job whose pieces are not known
    stages: tuple[tuple[int, float], ...] = ()
    work_s: float | None = None
    """Seconds alone on GPUs of score 1: exact, or an estimate; None where `Beliefs.knowledge` is "none"."""


@dataclass(slots=True)
class Progress:
    """What is seen of a job that was submitted. `attained` and `gpu_s` are sums up to `since_s`."""

    attained_s: float = 0.0
    """Wall time for which it held GPUs, until `since_s`; from 0 again where it lost its work with a node."""
    gpu_s: float = 0.0  # GPU-seconds that it held, until `since_s`; likewise
    since_s: float = 0.0
    """When its allocation last changed: it was given GPUs, or lost them. Of a job that never ran its submission."""
    gpus: int = 0  # GPUs that it holds; 0: it waits
    started: bool = False  # it has held GPUs before, or does
    keeps_until_s: float = 0.0  # until here it has not yet worked for as long as its last start or move cost
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

    rates: Rates  # the questions that the world answers, answered by believed scores and tables
    knowledge: str = "exact"
    """What is known of the work of jobs: "exact", "estimate" (times exp(N(0, error)), drawn once a job), or "none"."""
    error: float = 0.3
    advised: Advised | None = None  # what `whorl advise` says of the nodes; None where nothing was measured
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
    options: Options  # without failures and other jobs, which are to come
    random: Random  # the replay's stream of random numbers
    up: NDArray[np.bool_]  # (gpus,) whether each is on a node that is up
    rounds: bool = False  # decisions are made at the edges of rounds
    classes: frozenset[str] = frozenset()  # the classes that jobs of the trace have
    widest: int = 1  # GPUs of the trace's widest job
    now_s: float = 0.0
    edge_s: float = float("inf")
    """The edge of the round after this one, which `Decision.again_s` may name; infinite without rounds."""
    tenants: list[tuple[int, ...]] = field(default_factory=list)  # of each GPU, the numbers of the jobs that hold it
    requests: Mapping[int, Request] = field(default_factory=dict)
    """Of all jobs in the system, waiting or running, by number, in the order in which they came."""
    running: Mapping[int, Allocation] = field(default_factory=dict)  # what each running job holds
    progress: Mapping[int, Progress] = field(default_factory=dict)  # of all jobs in the system
    arrived: list[int] = field(default_factory=list)  # jobs that came since the last decision
    ended: list[int] = field(default_factory=list)
    """Jobs that ended since then: their work is done or their limit was reached."""
    lost: list[int] = field(default_factory=list)  # jobs that lost a node since then, and wait
    nodes_down: list[int] = field(default_factory=list)  # nodes that went since then; some may be back (`up`)
    nodes_up: list[int] = field(default_factory=list)

    def waiting(self) -> list[int]:
        """The jobs that hold nothing, in the order in which they came."""
        return [number for number in self.requests if number not in self.running]

    def free(self) -> list[int]:
        """The GPUs that are up and that nobody holds, ascending: by node, then by slot."""
        return [gpu for gpu, up in enumerate(self.up.tolist()) if up and not self.tenants[gpu]]


@dataclass(frozen=True)
class World:
    """What jobs run at (`rates`), and what policies are shown (`beliefs`): the latter does not lead to the former."""

    rates: Rates
    beliefs: Beliefs

    @property
    def fleet(self) -> Fleet:
        """The GPUs and their nodes."""
        return self.rates.fleet

    def flat(self) -> World:
        """The same, of which policies are shown no difference between GPUs."""
        return replace(self, beliefs=self.beliefs.flat())

    @classmethod
    def regular(
        cls,
        nodes: int,
        gpus_per_node: int,
        scores: Mapping[str, Sequence[float] | Floats] | None = None,
        *,
        believed: Mapping[str, Sequence[float] | Floats] | None = None,
        locality: float = 1.0,
        power: Power | None = None,
    ) -> World:
        """Nodes of equal size. Without `believed`, policies see what jobs run at; without both, all scores are 1."""
        rates = Rates(Fleet.regular(nodes, gpus_per_node), _arrays(scores or {}), locality, power=power)
        return cls(rates, Beliefs(rates if believed is None else replace(rates, scores=_arrays(believed))))


def _arrays(scores: Mapping[str, Sequence[float] | Floats]) -> dict[str, Floats]:
    return {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
