"""What a policy sees: the free GPUs, their believed scores, the queue and the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .cluster import Cluster
from .fleet import Fleet, Floats
from .job import Allocation, Job
from .options import Options

if TYPE_CHECKING:
    from .state import State


class View:
    """The replay as a policy may see it. A policy reads it and changes nothing; of jobs it has numbers and `job`.

    For `place`: `free_count`, `free`, `cluster`, `sf`, `believed`, `random`. For `decide` as well: `order`,
    `running`, `available`, `job`, `left_s`, `attained_s`.
    """

    def __init__(self, fleet: Fleet, cluster: Cluster, options: Options, random: Random) -> None:
        self.cluster = cluster
        self.options = options
        self.random = random
        """The replay's stream of random numbers."""
        self.node = fleet.node
        """(gpus,) number of the node."""
        self.first = np.array(cluster.first[:-1])
        """(nodes,) number of the first GPU of each."""
        self.locality = fleet.locality
        """What spanning nodes costs, as a factor on time."""
        self.advised = fleet.advised
        """What `whorl advise` says of the nodes; None where nothing was measured."""
        self.now_s = 0.0
        self.order: Sequence[int] = ()
        """All jobs in the system by number, in the order of the scheduler."""
        self.states: dict[int, State] = {}
        self._belief = fleet.belief
        self._sf: dict[str, Floats] = {}
        self._class_order: dict[str, int] | None = None

    @property
    def free_count(self) -> int:
        return self.cluster.free_count

    @property
    def free(self) -> NDArray[np.bool_]:
        """(gpus,) whether each is free."""
        return self.cluster.free

    def free_gpus(self) -> list[int]:
        """The free GPUs in ascending order: by node, then by slot."""
        found: list[int] = np.flatnonzero(self.cluster.free).tolist()
        return found

    def available(self) -> NDArray[np.bool_]:
        """(gpus,) whether each may be given to a job at all: its node is up and it is not avoided."""
        return self.cluster.available()

    def believed(self, workload: str) -> Floats:
        """(gpus,) the believed scores of a class; 1 everywhere for a class that is not sensitive."""
        return believed(self._belief, workload, len(self.node))

    def sf(self, workload: str) -> Floats:
        """(gpus,) the believed scores of a class in levels (`Options.bins`), so that alike GPUs have one score."""
        if workload not in self._sf:
            scores = self.believed(workload)
            self._sf[workload] = self.options.bins(scores) if workload else scores
        return self._sf[workload]

    def class_rank(self, workload: str) -> int:
        """The place of a class in the order in which classes choose; last those whose GPUs do not differ, together."""
        if self._class_order is None:
            order = self.options.class_order
            if order is None:
                spread = {name: float(np.std(scores) / np.mean(scores)) for name, scores in self._belief.items()}
                order = tuple(sorted((name for name in spread if spread[name] > 0), key=lambda n: (-spread[n], n)))
            self._class_order = {name: rank for rank, name in enumerate(order)}
        return self._class_order.get(workload, len(self._class_order))

    def job(self, number: int) -> Job:
        """What the trace says of a job."""
        return self.states[number].job

    def left_s(self, number: int) -> float:
        """The work that a job has left, in seconds on GPUs of score 1 within one node."""
        return self.states[number].left_at(self.now_s)

    def attained_s(self, number: int) -> float:
        """The wall time for which a job has held GPUs."""
        return self.states[number].attained_at(self.now_s)

    def running(self) -> Mapping[int, Allocation]:
        """What each running job holds."""
        return {n: Allocation(s.gpus, s.rate, s.shared) for n in self.order if (s := self.states[n]).gpus}


def believed(belief: Mapping[str, Floats], workload: str, gpus: int) -> Floats:
    """(gpus,) the scores of a class, 1 everywhere for ""."""
    if workload in belief:
        return belief[workload]
    if workload == "":
        return np.ones(gpus)
    raise InputError(f"the fleet has no scores of class {workload!r}; it has {', '.join(sorted(belief)) or 'none'}")
