"""What a fleet draws, and the energy ledger of a replay: by job, of idle GPUs, of nodes, and of nobody.

The power of a node that is awake is that of the node itself, plus the idle power of its GPUs, plus what each job draws
above that. A node without jobs is idle for a while and then sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from .fleet import Floats

ANY = "*"  # in `Power.gpu_w`: every workload without a row of its own

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Power:
    """The power of GPUs and nodes, in watts. None is not known."""

    gpu_w: Mapping[str, Floats]
    """Workload, or `ANY` -> (gpus,) power of a GPU on which one job of it runs at the default clock; NaN: not known."""
    idle_w: float | None = None
    """Of an idle GPU. None: what a GPU draws counts wholly to its jobs, and that of idle GPUs is not known."""
    node_w: float | None = None  # of a node that is awake, without its GPUs
    asleep_w: float = 0.0  # of a node that sleeps, with its GPUs
    sleep_after_s: float = math.inf  # a node without jobs falls asleep after this many seconds; infinite: never
    wake_s: float = 0.0  # from the allocation of a job until a sleeping node can work
    cap_w: float | None = None
    """The most that a GPU draws. None: what its most demanding workload draws on it, for GPUs that jobs share."""
    clock_exponent: float = 2.0
    """At a clock of x times the default, a job draws x to this power of what it draws above idle."""

    def __post_init__(self) -> None:
        for name in ("idle_w", "node_w", "asleep_w", "wake_s", "cap_w", "clock_exponent"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise InputError(f"{name} must be at least 0 and finite, not {number:g}")
        if not self.sleep_after_s >= 0:
            raise InputError(f"sleep_after_s must be at least 0, not {self.sleep_after_s:g}")
        for workload, watts in self.gpu_w.items():
            below = np.flatnonzero(watts < (self.idle_w or 0.0))
            if len(below):
                raise InputError(
                    f"GPU number {below[0]} draws {watts[below[0]]:g} W in class {workload!r}: "
                    f"it must be at least the {self.idle_w or 0:g} W of an idle GPU"
                )

    def of(self, workload: str) -> Floats | None:
        """(gpus,) power of the GPUs while one job of a workload runs on them; None: nothing says it."""
        return self.gpu_w.get(workload, self.gpu_w.get(ANY))

    def caps(self, gpus: int) -> Floats:
        """(gpus,) the most that each GPU draws when jobs share it; NaN: not known."""
        watts = [np.asarray(watts, dtype=np.float64) for watts in self.gpu_w.values()]
        most: Floats = np.fmax.reduce([np.full(gpus, np.nan), *watts])
        return most if self.cap_w is None else np.full(gpus, self.cap_w)

    def alike(self) -> Power:
        """The same with every GPU at the mean power of its workload: for beliefs without differences."""
        means = {}
        for name, watts in self.gpu_w.items():
            known = watts[~np.isnan(watts)]
            means[name] = np.full(len(watts), np.mean(known) if len(known) else math.nan)
        return replace(self, gpu_w=means)


@dataclass(frozen=True)
class Energy:
    """The energy of a replay from 0 to its end. Joules; None is not known.

    `total_j` is the sum by what draws it (`dynamic_j`, `idle_j`, `base_j`), and also by whom it is for (the sum over
    `jobs_j`, and `unattributed_j`).
    """

    jobs_j: Mapping[int, float]
    """Number of a job -> what it drew above idle, plus its share of idle and node power; NaN: not known.

    The idle power of a GPU is shared equally by the jobs on it, that of a node by the jobs on the node, by time.
    """
    dynamic_j: float | None  # what jobs drew above the idle power of their GPUs
    idle_j: float | None  # idle power of all GPUs of nodes that were awake, whether or not jobs held them
    base_j: float | None  # of the nodes themselves, awake and asleep
    unattributed_j: float  # of GPUs that no job held, and of nodes without jobs; of what is known
    awake_node_s: float  # node-seconds awake: up, and not asleep

    @property
    def total_j(self) -> float | None:
        """All that is known to have been drawn; None where the power of a GPU that a job held is not known."""
        if self.dynamic_j is None:
            return None
        return self.dynamic_j + (self.idle_j or 0.0) + (self.base_j or 0.0)


class Draw(NamedTuple):
    """What a job draws on its GPUs, in watts; NaN: not known."""

    work_w: float  # above their idle power
    idle_w: float  # its equal shares of their idle power


@dataclass(slots=True)
class _Account:
    """What a job holds, and its energy so far."""

    draw: Draw
    since_s: float
    gpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    work_j: float = 0.0
    idle_j: float = 0.0
    node_j: float = 0.0  # its share of node power, with the sums of its nodes at its start taken off

    def settle(self, now_s: float) -> None:
        """Bring what the job drew on its GPUs up to a moment."""
        elapsed_s, self.since_s = now_s - self.since_s, now_s
        self.work_j += self.draw.work_w * elapsed_s
        self.idle_j += self.draw.idle_w * elapsed_s


@dataclass(slots=True)
class _NodeBooks:
    """The power of a node, settled up to a moment."""

    gpus: int = 0
    jobs: int = 0
    down: bool = False
    settled_s: float = 0.0
    empty_since_s: float = 0.0
    ready_s: float = 0.0  # when it has woken up
    awake_s: float = 0.0
    asleep_s: float = 0.0
    job_j: float = 0.0  # the share of its own energy that a job would have which had been there from the start


class EnergyLedger:
    """The books of a replay's energy. The engine says at each change which job draws how much on which GPUs.

    A change costs time in proportion to the GPUs of the job that changes; nothing is done for other nodes. Times given
    to it must not decrease.
    """

    def __init__(self, power: Power, node_of: Sequence[int]) -> None:
        """`node_of`: (gpus,) the number of each GPU's node."""
        self._power = power
        self._node_of = list(node_of)
        self._nodes = [_NodeBooks() for _ in range(max(node_of) + 1)]
        for node in node_of:
            self._nodes[node].gpus += 1
        self._accounts: dict[int, _Account] = {}
        self._jobs_j: dict[int, float] = {}
        self._work_j = self._shared_j = 0.0

    def hold(self, number: int, gpus: tuple[int, ...], draw: Draw, *, now_s: float) -> float:
        """A job holds these GPUs from now on, whatever it held, and draws this on them.

        To be said again of each job on a GPU that another one comes to or leaves. Returns the seconds until all its
        nodes are awake: it cannot work earlier.
        """
        account = self._accounts.setdefault(number, _Account(draw, now_s))
        account.settle(now_s)
        account.draw = draw
        if gpus != account.gpus:
            self._leave(account, now_s)
            self._enter(account, gpus, now_s)
        return max(0.0, max(self._nodes[node].ready_s for node in account.nodes) - now_s)

    def release(self, number: int, now_s: float) -> None:
        """A job holds nothing from now on."""
        account = self._accounts.pop(number)
        account.settle(now_s)
        self._leave(account, now_s)
        self._work_j += account.work_j
        self._shared_j += account.idle_j + account.node_j
        self._jobs_j[number] = self._jobs_j.get(number, 0.0) + account.work_j + account.idle_j + account.node_j

    def down(self, node: int, now_s: float) -> None:
        """A node without jobs has failed: it draws nothing."""
        self._settle(self._nodes[node], now_s)
        self._nodes[node].down = True

    def up(self, node: int, now_s: float) -> None:
        """A node that had failed is back, awake and without jobs."""
        account = self._nodes[node]
        self._settle(account, now_s)
        account.down, account.empty_since_s, account.ready_s = False, now_s, now_s

    def sleeps(self, node: int, now_s: float) -> bool:
        """Whether a node is asleep."""
        account = self._nodes[node]
        return not (account.jobs or account.down) and now_s > account.empty_since_s + self._power.sleep_after_s

    def close(self, end_s: float) -> Energy:
        """The energy until the end; jobs that still hold GPUs let go of them."""
        for number in list(self._accounts):
            self.release(number, end_s)
        power, nodes = self._power, self._nodes
        for node in nodes:
            self._settle(node, end_s)
        awake_s = math.fsum(node.awake_s for node in nodes)
        idle_j = (power.idle_w or 0.0) * math.fsum(node.gpus * node.awake_s for node in nodes)
        base_j = (power.node_w or 0.0) * awake_s + power.asleep_w * math.fsum(node.asleep_s for node in nodes)
        return Energy(
            jobs_j=self._jobs_j,
            dynamic_j=None if math.isnan(self._work_j) else self._work_j,
            idle_j=None if power.idle_w is None else idle_j,
            base_j=None if power.node_w is None else base_j,
            unattributed_j=idle_j + base_j - self._shared_j,
            awake_node_s=awake_s,
        )

    def _enter(self, account: _Account, gpus: tuple[int, ...], now_s: float) -> None:
        account.gpus = gpus
        account.nodes = tuple(dict.fromkeys(map(self._node_of.__getitem__, gpus)))
        for number in account.nodes:
            node = self._nodes[number]
            if self.sleeps(number, now_s):
                node.ready_s = now_s + self._power.wake_s
            self._settle(node, now_s)
            node.jobs += 1
            account.node_j -= node.job_j

    def _leave(self, account: _Account, now_s: float) -> None:
        for number in account.nodes:
            node = self._nodes[number]
            self._settle(node, now_s)
            node.jobs -= 1
            node.empty_since_s = now_s
            account.node_j += node.job_j
        account.gpus, account.nodes = (), ()

    def _settle(self, node: _NodeBooks, now_s: float) -> None:
        """Bring the sums of a node up to a moment."""
        since_s, node.settled_s = node.settled_s, now_s
        if node.jobs:
            node.job_j += (self._power.node_w or 0.0) / node.jobs * (now_s - since_s)
            node.awake_s += now_s - since_s
        elif not node.down:
            asleep_s = max(0.0, now_s - max(since_s, node.empty_since_s + self._power.sleep_after_s))
            node.asleep_s += asleep_s
            node.awake_s += now_s - since_s - asleep_s
