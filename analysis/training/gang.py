"""The GPUs that a training job may have, with what their scores may be; and what a choice among them saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...store.hostlist import compress, expand
from ...store.names import find_workload, plain_workload
from ..placement import available, scores, sets
from ..placement.scores import SEED
from ..placement.sets import DRAWS, Gain
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
