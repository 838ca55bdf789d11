"""How the GPUs of a fleet vary, and which differences repeat: from tables to tables.

What most callers need stands here. `measurements`, `identities`, `imported`, `mixed_conditions`, `told_apart` and
`untrusted` read a store (`runs/`). `variability` describes each workload of each cluster, `across` compares workloads
(`spread/`): they take a frame of runs, give plain frozen rows with `as_dict()`, and read and write nothing.

`passive_fingerprints` ranks GPUs by the power of ordinary jobs.
"""

from __future__ import annotations

from .runs.conditions import mixed_conditions
from .runs.kinds import told_apart
from .runs.measurements import coupled_jobs, identities, imported, measurements, untrusted
from .spread.across_workloads import Across, across
from .spread.passive import passive_fingerprints
from .spread.summary import REPLICATES, SEED, Outlier, Variability, variability

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
