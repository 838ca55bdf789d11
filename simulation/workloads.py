"""The workloads that a simulated GPU can run: one row each.

Source: docs/how-we-know/simulation.md. SGEMM, PageRank, BERT and ResNet were set against public
V100 data; LAMMPS and STREAM are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
