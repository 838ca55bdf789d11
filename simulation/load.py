"""Loads of a simulated fleet: which workload runs on each GPU, and when.

    load = find_load("gemm")
    load.starts_s(392)          # when each GPU begins, s; shape (392,)

Every GPU repeats one turn for ever: `busy_s` of work, then `idle_s` of nothing. A constant load is a turn without
gap, a square wave one of equal halves, and a campaign turns long enough to warm up and to measure in.

The workloads that a simulated GPU can run: one row each.

Source: docs/how-we-know/simulation.md. SGEMM, PageRank, BERT and ResNet were set against public
V100 data; LAMMPS and STREAM are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..errors import InputError
from .draws import Floats


@dataclass(frozen=True)
class Workload:
    """What a program asks of a GPU; dimensionless unless the name has a unit."""

    name: str
    activity: float
    """Switching activity of the SMs; 1 is SGEMM."""
    compute_share: float
    """Share of the run time, at the highest clock, that scales with 1/clock (kappa)."""
    bandwidth_share: float
    """Fraction of the peak DRAM bandwidth in use."""
    noise: float
    """Standard deviation of ln time from run to run."""
    memory_mib: int = 7884
    """Device memory in use: three square float matrices of n = 25,536 and the context."""
    link_share: float = field(default=0.0, repr=False)
    """Share of the run time that is copies from and to the host ..."""
    peer_share: float = field(default=0.0, repr=False)
    """... that is copies to another GPU ..."""
    launch_share: float = field(default=0.0, repr=False)
    """... and that is launches. Neither the SM clock nor the memory changes them."""
    slowdown: float = field(default=0.0, repr=False)
    """Share of the time in which the hardware slowdown is on during this work, beside what the board has of it."""

    @property
    def fixed_share(self) -> float:
        """Share of the run time that neither the SM clock nor the memory changes."""
        return self.link_share + self.peer_share + self.launch_share


SGEMM = Workload("sgemm", activity=1.0, compute_share=0.953, bandwidth_share=0.12, noise=0.0011)
LAMMPS = Workload("lammps", activity=0.45, compute_share=0.10, bandwidth_share=0.60, noise=0.0015)
PAGERANK = Workload("pagerank", activity=0.052, compute_share=0.02, bandwidth_share=0.35, noise=0.0009)
STREAM = Workload("stream", activity=0.20, compute_share=0.04, bandwidth_share=0.92, noise=0.0009)
BERT = Workload("bert", activity=0.29, compute_share=0.45, bandwidth_share=0.25, noise=0.004)
RESNET = Workload("resnet", activity=0.42, compute_share=0.45, bandwidth_share=0.35, noise=0.012)

WORKLOADS = {row.name: row for row in (SGEMM, LAMMPS, PAGERANK, STREAM, BERT, RESNET)}

IDLE = Workload("idle", activity=0.0, compute_share=0.0, bandwidth_share=0.0, noise=0.0, memory_mib=4)
"""No work at all: not in the table, because it has no run time."""


@dataclass(frozen=True)
class Load:
    """A schedule of work in time, the same turn for every GPU; times in seconds."""

    name: str
    says: str
    workloads: tuple[Workload, ...]
    """Dealt to the GPUs in order, over and over: with one they all run the same; none leaves them idle."""
    busy_s: float = 290.0
    """How long a turn's work lasts; infinity for work without end."""
    idle_s: float = 10.0
    """The gap after it."""
    begins_s: float = 10.0
    """When the first turn begins."""
    warm_up_s: float = 120.0
    """How much of a turn's work is not measured."""
    repeats: int = 5
    """In how many equal parts the rest is measured; 0 where turns are too short to measure in, or endless."""
    stagger_s: float = 0.0
    """By how much later the last GPU begins than the first; the others lie evenly between."""
    phase_s: float = 0.0
    """By how much later each GPU begins than the one before it, up to a whole turn."""

    def __post_init__(self) -> None:
        if not (self.busy_s > 0 and self.idle_s >= 0 and self.begins_s >= 0 and self.stagger_s >= 0):
            raise InputError(f"the load {self.name!r} needs work of more than 0 s, and gaps and starts of at least 0 s")

    @property
    def repeat_s(self) -> float:
        """How long one measured part lasts."""
        return (self.busy_s - self.warm_up_s) / self.repeats

    @property
    def period_s(self) -> float:
        """From the start of one turn to that of the next."""
        return self.busy_s + self.idle_s

    @property
    def first_run_ends_s(self) -> float:
        """When the first measured turn ends, s after the start; infinity where turns cannot be measured."""
        return self.begins_s + self.busy_s if self.workloads and self.repeats else inf

    def turns(self, starts_s: float, span_s: float) -> int:
        """How many turns that can be measured end within a span, on a GPU whose first one begins at a time."""
        if self.first_run_ends_s == inf:
            return 0
        return max(0, int((span_s - starts_s - self.busy_s + 1e-6) // self.period_s) + 1)

    def starts_s(self, gpus: int) -> Floats:
        """When the first turn of each GPU begins, s; infinity where none does. Shape (gpus,)."""
        if not self.workloads:
            return np.full(gpus, inf)
        number = np.arange(gpus)
        starts_s = self.begins_s + self.stagger_s * number / max(gpus - 1, 1)
        return starts_s + (self.phase_s * number) % self.period_s if self.phase_s else starts_s

    def workload_of(self, gpu: int) -> Workload | None:
        """What the GPU at a position runs; None where it stays idle."""
        return self.workloads[gpu % len(self.workloads)] if self.workloads else None


LOADS = {
    load.name: load
    for load in (
        *(Load(w.name, f"{w.name} in turns of 290 s with gaps of 10 s", (w,)) for w in WORKLOADS.values()),
        Load("constant", "sgemm all the time", (SGEMM,), busy_s=inf, idle_s=0.0, repeats=0),
        Load("square", "sgemm for 10 s, then idle for 10 s", (SGEMM,), busy_s=10.0, idle_s=10.0, repeats=0),
        Load("staggered", "sgemm in turns, the GPUs one after the other", (SGEMM,), stagger_s=240.0),
        Load(
            "turns",
            "sgemm for two minutes, then idle for three, each GPU 75 s after the one before",
            (SGEMM,),
            busy_s=120.0,
            idle_s=180.0,
            repeats=0,
            phase_s=75.0,
        ),
        Load("mixed", "a node's four GPUs run sgemm, pagerank, stream and bert", (SGEMM, PAGERANK, STREAM, BERT)),
        Load("idle", "nothing", (), repeats=0),
    )
}
_ALIASES = {"gemm-fp32": "sgemm", "gemm": "sgemm"}


def find_load(name: str) -> Load:
    """The load of a name, in any case (SGEMM has three); InputError when there is none."""
    key = name.strip().lower()
    try:
        return LOADS[_ALIASES.get(key, key)]
    except KeyError:
        raise InputError(f"no simulated load {name!r}; there are {', '.join((*_ALIASES, *LOADS))}") from None
