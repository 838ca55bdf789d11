"""The advice of `whorl advise` on the nodes of a fleet that is replayed on: what Slurm would be told of each.

It is asked for as a user asks, for the workload and the number of GPUs of a job, and is about nodes, since Slurm's
exclusions and weights are. Nodes that `advise` does not know are usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..placement.advice import LEAST_LEFT, Advice, advise
from .fleet import Ints

if TYPE_CHECKING:
    from ..placement import Scores

WEIGHTS = {"soft": 1, "hard": 2}
"""What `whorl advise --format weights` adds to the weight of a node of each tier; of all others nothing."""


class Advised:
    """The advice on the nodes of one fleet."""

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
                worst[node.node] = max(worst.get(node.node, 0), WEIGHTS[node.tier])
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


def seated(scores: Scores, rows: Mapping[str, Ints], gpus: Sequence[str], nodes: Sequence[str]) -> Scores:
    """The scores of a fleet that is drawn from a measured one.

    `rows`: by workload, (gpus,) the number of the measured GPU that stands in each place. `gpus`, `nodes`: (gpus,) the
    names of these places and of their nodes.
    """
    by_workload = {name: scores.of[name].seated(row) for name, row in rows.items()}
    numbers = next(iter(rows.values()), ())
    places = tuple(
        replace(scores.places[number], node=node, slot=None) for number, node in zip(numbers, nodes, strict=True)
    )
    return replace(scores, workloads=tuple(by_workload), gpus=tuple(gpus), places=places, of=by_workload)
