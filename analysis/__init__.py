"""How the GPUs of a fleet vary, and which differences repeat: from tables to tables.

`measurements`, `identities`, `imported`, `mixed_conditions`, `told_apart` and `untrusted` read a store; `variability`
describes each workload of each cluster and `across` compares workloads. The latter two take a frame of runs, give plain
frozen rows with `as_dict()`, and read and write nothing.

`passive_fingerprints` ranks GPUs by the power of ordinary jobs. `placement` gives advice on where a job should run.
"""

from __future__ import annotations

from .across_workloads import Across, across
from .conditions import mixed_conditions
from .kinds import told_apart
from .measurements import coupled_jobs, identities, imported, measurements, untrusted
from .passive import passive_fingerprints
from .summary import REPLICATES, SEED, Outlier, Variability, variability

__all__ = [
    "REPLICATES",
    "SEED",
    "Across",
    "Outlier",
    "Variability",
    "across",
    "coupled_jobs",
    "identities",
    "imported",
    "measurements",
    "mixed_conditions",
    "passive_fingerprints",
    "told_apart",
    "untrusted",
    "variability",
]
