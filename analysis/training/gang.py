"""The GPUs that a training job may have, what a choice among them saves, and structured partial backpropagation (SPB).

By SPB, of n workers the k-th goes back through the last k/n of the layers only, and the gradient of a layer is averaged
over those that have it. So the deepest takes longest, and the others have time left. JigSaw has it for GPUs that are
alike; here the deepest share is on the fastest GPU. The mechanism is inferred from the abstract of its paper. What it
does to the quality of training is not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...store.hostlist import compress, expand
from ...store.names import find_workload, plain_workload
from ..placement import available, scores, sets
from ..placement.scores import SEED
from ..placement.sets import DRAWS, Gain, ends
from ..statistics.ordering import Floats, Ints

if TYPE_CHECKING:
    from ...store import Store


_RANDOM = 200
"""Random sets and orders that stand for all of them."""


@dataclass(frozen=True)
class Scope:
    """Which GPUs and runs of a store are meant; the options of the verbs that choose GPUs for one job."""

    workload: str | None = None
    """None: the store's only one."""
    cluster: str | None = None
    hosts: str | None = None
    """A host list; None: all nodes."""
    replicates: int = DRAWS
    seed: int = SEED


@dataclass(frozen=True)
class Gang:
    """Measured GPUs among which a job chooses. Scores are times over that of the fleet's median GPU."""

    cluster: str
    workload: str
    names: tuple[str, ...]
    nodes: tuple[str | None, ...]
    belief: Floats
    """(gpus,) the scores to decide by."""
    draws: Floats
    """(replicates, gpus) what the scores may be in another sitting."""
    reason: str | None
    """Why the GPUs cannot be told apart; None where they can."""
    notes: tuple[str, ...]
    seed: int

    def best(self, gpus: int) -> Ints:
        """The numbers of the best `gpus` GPUs, fastest first: on as few nodes as can be, and of those the fastest.

        Raises `InputError` where there are fewer.
        """
        if gpus > len(self.names):
            raise InputError(
                f"the job needs {gpus} GPUs, but only {len(self.names)} were measured in {self.workload} there"
            )
        chosen = sets.best_packed(self.belief, self._layout, gpus)
        if chosen is None:
            chosen = sets.best_spread(self.belief, gpus)
        in_order: Ints = chosen[np.argsort(self.belief[chosen], kind="stable")]
        return in_order

    def random(self, gpus: int) -> Ints:
        """(sets, gpus) random sets that fill random nodes one after another, in random roles."""
        rng = np.random.default_rng([self.seed, gpus])
        members = [*self._layout.members(), *([gpu] for gpu in np.flatnonzero(self._layout.node < 0))]
        gangs = np.empty((_RANDOM, gpus), dtype=np.intp)
        for row in gangs:
            filled = 0
            for node in rng.permutation(len(members)):
                added = rng.permutation(members[node])[: gpus - filled]
                row[filled : filled + len(added)] = added
                filled += len(added)
                if filled == gpus:
                    break
        return rng.permuted(gangs, axis=1)

    def shuffled(self, chosen: Ints) -> Ints:
        """(orders, gpus) the same GPUs in random roles."""
        rng = np.random.default_rng([self.seed, len(chosen)])
        return rng.permuted(np.tile(chosen, (_RANDOM, 1)), axis=1)

    def gains(self, chosen: Ints, time_of: Callable[[Floats], Floats]) -> tuple[Gain, ...]:
        """What GPUs in their roles save, against the same GPUs in random roles ("roles") and a random set ("random").

        `time_of`: scores (..., gpus) in the order of roles to times (...).
        """
        baselines = {"roles": self.shuffled(chosen), "random": self.random(len(chosen))}
        if self.reason is not None:
            return tuple(Gain("best", against) for against in baselines)
        took = time_of(self.draws[:, chosen])
        return tuple(
            Gain.of("best", against, took, np.mean([time_of(self.draws[:, order]) for order in orders], axis=0))
            for against, orders in baselines.items()
        )

    @property
    def _layout(self) -> sets.NodeLayout:
        return sets.NodeLayout.of(self.nodes)


def gang_of(store: Store, scope: Scope) -> Gang:
    """The GPUs of `scope` that were measured in its workload. Raises `InputError` where there are none."""
    pairs = [(cluster, name) for cluster, name in available(store, scope.cluster)]
    works = sorted({plain_workload(name) for _, name in pairs})
    if scope.workload is None and len(works) > 1:
        raise InputError(f"which workload's scores are meant? Give --workload; the store has {', '.join(works)}")
    if not works:
        raise InputError("the store has no timed runs, so no GPU has a score")
    workload = find_workload(scope.workload or works[0], {name for _, name in pairs})
    clusters = sorted({cluster for cluster, name in pairs if name == workload})
    if len(clusters) > 1:
        raise InputError(f"{workload} was measured on {', '.join(clusters)}: choose one with --cluster")
    fleet = scores(store, (workload,), cluster=clusters[0] if clusters else scope.cluster, seed=scope.seed)
    measured = fleet.one(workload)
    usable = np.isfinite(measured.belief)
    if scope.hosts is not None:
        hosts = set(expand(scope.hosts))
        usable &= np.array([node in hosts for node in fleet.nodes])
        unknown = sorted(hosts - {node for gpu, node in enumerate(fleet.nodes) if usable[gpu] and node is not None})
        if unknown:
            raise InputError(f"no GPU of {compress(unknown)} was measured in {workload}")
    numbers = np.flatnonzero(usable)
    rng = np.random.default_rng(scope.seed)
    return Gang(
        cluster=fleet.cluster,
        workload=workload,
        names=tuple(fleet.name(int(gpu)) for gpu in numbers),
        nodes=tuple(fleet.nodes[gpu] for gpu in numbers),
        belief=measured.belief[numbers],
        draws=np.array([measured.draw_sitting(rng)[numbers] for _ in range(scope.replicates)]),
        reason=None if measured.repeatable else measured.reason or "differences between GPUs do not repeat",
        notes=tuple(fleet.notes_on(workload)),
        seed=scope.seed,
    )


BACKWARD = 2.0 / 3.0
"""The share of a step that is backward, where nothing was measured."""


def depths_of(gpus: int) -> Floats:
    """(gpus,) the share of the layers that each goes back through, the deepest first."""
    return np.arange(gpus, 0, -1) / gpus


def works(scores: Floats, depths: Floats, backward: float) -> Floats:
    """(..., gpus) how long each GPU works in a step: 1 is the median GPU with full backpropagation."""
    busy: Floats = scores * (1.0 - backward + backward * depths)
    return busy


def step(scores: Floats, depths: Floats, backward: float) -> Floats:
    """(...) how long a step takes: that of the GPU that works longest."""
    longest: Floats = works(scores, depths, backward).max(axis=-1)
    return longest


def slack(scores: Floats, depths: Floats, backward: float) -> Floats:
    """(...) the share of the GPUs' time in a step in which they wait."""
    busy = works(scores, depths, backward)
    waiting: Floats = 1.0 - busy.mean(axis=-1) / busy.max(axis=-1)
    return waiting


def gradient_shares(gpus: int, layers: int) -> Floats:
    """(layers,) the bytes of each layer's gradient, from the first layer on, as a share of what all GPUs would send.

    That is the share of the GPUs that have it: the k-th goes back through the last ceil(k L / n) of L layers.
    """
    reach = np.array([-(-k * layers // gpus) for k in range(1, gpus + 1)])
    back = np.arange(layers, 0, -1)  # how far from the end each layer stands, the last 1
    shares: Floats = (reach[:, None] >= back).mean(axis=0)
    return shares


@dataclass(frozen=True)
class MeanInterval:
    """A figure: its mean and 90 % interval, from what the runs leave open of the scores."""

    mean: float
    lower: float
    upper: float


@dataclass(frozen=True)
class SpbWorker:
    """A GPU of the job."""

    gpu: str
    node: str | None
    score: float
    depth: float
    """The share of the layers that it goes back through."""
    layers: int | None
    """The same in layers; None where their number is not known."""
    busy: float
    """The share of a step in which it works."""


@dataclass(frozen=True)
class SpbPlan:
    """The depths of a job's GPUs, fastest and deepest first, and what they gain."""

    cluster: str
    workload: str
    backward: float
    workers: tuple[SpbWorker, ...]
    full: MeanInterval
    """A step with full backpropagation; 1 is that of the median GPU."""
    step: MeanInterval
    """A step with the depths of `workers`."""
    gains: tuple[Gain, ...]
    """Time of a step saved against full backpropagation on the same GPUs ("full"), the same depths in random order
    ("roles"), and a random set of GPUs with random order ("random")."""
    slack: MeanInterval
    """The share of the GPUs' time in which they wait."""
    gradient_shares: tuple[float, ...] | None
    """Of each layer, from the first on: the bytes of its gradient as a share of full backpropagation."""
    reason: str | None
    """Why the GPUs cannot be told apart; None where they can."""
    notes: tuple[str, ...]


def plan_spb(
    store: Store, scope: Scope, *, gpus: int | None = None, backward: float = BACKWARD, layers: int | None = None
) -> SpbPlan:
    """The depths for a job on all GPUs of `scope`, or on the best `gpus` of them.

    `backward`: the share of a step that is backward. Raises `InputError` where neither hosts nor `gpus` say which GPUs.
    """
    if not 0 < backward < 1:
        raise InputError(f"the backward share {backward:g} must lie between 0 and 1, such as 0.67")
    if layers is not None and layers < 1:
        raise InputError("the network needs at least one layer")
    if scope.hosts is None and gpus is None:
        raise InputError("which GPUs does the job have? Give --hosts, or how many it needs with --gpus")
    gang = gang_of(store, scope)
    number = len(gang.names) if gpus is None else gpus
    chosen = gang.best(number)
    depths = depths_of(number)
    belief, draws = gang.belief[chosen], gang.draws[:, chosen]

    def over_draws(figure: Callable[[Floats], Floats]) -> MeanInterval:
        drawn = figure(draws)
        return MeanInterval(float(drawn.mean()), *ends(drawn))

    def step_of(scores: Floats) -> Floats:
        return step(scores, depths, backward)

    against_full = Gain.of("best", "full", step_of(draws), draws.max(axis=1))
    busy = works(belief, depths, backward)
    return SpbPlan(
        cluster=gang.cluster,
        workload=gang.workload,
        backward=backward,
        workers=tuple(
            SpbWorker(
                gang.names[gpu],
                gang.nodes[gpu],
                float(score),
                float(depth),
                None if layers is None else math.ceil(depth * layers - 1e-9),
                float(work / busy.max()),
            )
            for gpu, score, depth, work in zip(chosen, belief, depths, busy, strict=True)
        ),
        full=over_draws(lambda scores: scores.max(axis=-1)),
        step=over_draws(step_of),
        gains=(against_full, *gang.gains(chosen, step_of)),
        slack=over_draws(lambda scores: slack(scores, depths, backward)),
        gradient_shares=None if layers is None else tuple(gradient_shares(number, layers).tolist()),
        reason=gang.reason,
        notes=gang.notes,
    )
