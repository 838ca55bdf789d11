"""The nodes around simulated GPUs: what their hosts draw, and the meters that read it.

    power at the wall = (host + true power of the GPUs) / efficiency of the power supplies
    host = base + CPUs, CPUs = idle + (busy - idle) * load

The load of the CPUs is a constant, a part for each GPU that works, as something must feed it, and other work that comes
and goes within minutes. The base drifts within hours, as fans do. Both are sums of sines, so that the energy up to any
time has a closed form, and a reading needs no reading before it. All numbers are assumed:
docs/how-we-know/simulation.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from .draws import Floats, stream

EFFICIENCY = 0.94
"""Power behind the power supplies over power at the wall."""
BASE_W, BASE_SHARE = 200.0, 0.1
"""Board, fans, network and disks of a node: mean, and sd from node to node as a share."""
CPU_IDLE_W, CPU_BUSY_W = 70.0, 350.0
"""Power of a node's CPUs and their memory at no load, and at full load."""
LOAD, LOAD_OF_GPUS = 0.2, 0.15
"""Load of the CPUs without work on the GPUs, and what work on all of them adds."""
WAVE, WAVE_S = 0.04, (120.0, 2400.0)
"""Amplitude of each of four waves of the load, and the periods between which theirs lie."""
DRIFT_SHARE, DRIFT_S = 0.015, (3600.0, 21_600.0)
"""The same of the two waves of the base, as a share of it."""
METER_GAIN, METER_STEP_W = 0.005, 1.0
"""Sd of the gain of a node's meter, and its resolution."""
WINDOW_MS = 1000
"""What time a reading of the meter averages."""


@dataclass(frozen=True)
class NodeReadings:
    """What the meters of the nodes show at one instant; arrays of shape (nodes,)."""

    ts_ns: int
    wall_mw: NDArray[np.int64]
    """Power at the wall, the mean of the last `WINDOW_MS`."""
    cpu_mj: NDArray[np.int64]
    """The CPUs' own counter of energy since the start, without an error."""


class _Waves:
    """A sum of sines for each node, with phases and periods of its own."""

    def __init__(self, seed: int, subject: str, nodes: int, count: int, periods_s: tuple[float, float]) -> None:
        random = stream(seed, subject)
        self._rate = 2 * np.pi / np.exp(random.uniform(log(periods_s[0]), log(periods_s[1]), (count, nodes)))
        self._phase = random.uniform(0, 2 * np.pi, (count, nodes))

    def at(self, seconds: float) -> Floats:
        return np.asarray(np.sin(self._rate * seconds + self._phase).sum(axis=0))

    def integral(self, seconds: float) -> Floats:
        """Their integral from 0 to a time, s. Shape (nodes,)."""
        waves = (np.cos(self._phase) - np.cos(self._rate * seconds + self._phase)) / self._rate
        return np.asarray(waves.sum(axis=0))


class Nodes:
    """The nodes of a fleet. `node` is the number of each GPU's node, from 0."""

    def __init__(self, seed: int, node: NDArray[np.intp]) -> None:
        self._node, self._gpus = node, np.bincount(node)
        count = len(self._gpus)
        self._base_w = BASE_W * (1 + BASE_SHARE * stream(seed, "node: base").standard_normal(count))
        self._gain = 1 + METER_GAIN * stream(seed, "node: meter").standard_normal(count)
        self._load = _Waves(seed, "node: load", count, 4, WAVE_S)
        self._drift = _Waves(seed, "node: drift", count, 2, DRIFT_S)

    def of_node(self, of_gpus: Floats) -> Floats:
        """The sum over the GPUs of each node. Shape (nodes,)."""
        return np.asarray(np.bincount(self._node, of_gpus, len(self._gpus)), dtype=np.float64)

    def host_w(self, seconds: float, working: NDArray[np.bool_]) -> Floats:
        """True power of the hosts behind the power supplies, so long after the start. Shape (nodes,)."""
        load = LOAD + LOAD_OF_GPUS * self.of_node(working.astype(np.float64)) / self._gpus
        load = load + WAVE * self._load.at(seconds)
        base_w = self._base_w * (1 + DRIFT_SHARE * self._drift.at(seconds))
        return np.asarray(base_w + CPU_IDLE_W + (CPU_BUSY_W - CPU_IDLE_W) * load)

    def read(
        self, ts_ns: int, seconds: float, gpu_w: Floats, *, working: NDArray[np.bool_], worked_s: Floats
    ) -> NodeReadings:
        """What the meters show so long after the start.

        Of each GPU: `gpu_w` is its true power over `WINDOW_MS`, `working` whether it works, `worked_s` for how long it
        has worked since the start. Shape (gpus,).
        """
        wall_w = self._gain * (self.host_w(seconds, working) + self.of_node(gpu_w)) / EFFICIENCY
        loads = LOAD * seconds + LOAD_OF_GPUS * self.of_node(worked_s) / self._gpus
        loads = loads + WAVE * self._load.integral(seconds)
        cpu_j = CPU_IDLE_W * seconds + (CPU_BUSY_W - CPU_IDLE_W) * loads
        steps = np.rint(wall_w / METER_STEP_W) * METER_STEP_W
        return NodeReadings(ts_ns, (1000 * steps).astype(np.int64), (1000 * cpu_j).astype(np.int64))
