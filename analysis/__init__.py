"""How the GPUs of a fleet vary, and which differences repeat: from tables to tables.

What most callers need stands here. `measurements`, `identities`, `imported`, `mixed_conditions`, `told_apart` and
`untrusted` read a store (`runs/`). `variability` describes each workload of each cluster, `across` compares workloads
(`spread/`): they take a frame of runs, give plain frozen rows with `as_dict()`, and read and write nothing.

`passive_fingerprints` ranks GPUs by the power of ordinary jobs, `windows_of_runs` tells of each run what telemetry has.

These are loaded on first use: `tuning/` runs on nodes that have numpy alone, without Polars and scipy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runs.conditions import mixed_conditions
    from .runs.kinds import told_apart
    from .runs.measurements import coupled_jobs, identities, imported, measurements, untrusted
    from .runs.windows import RunWindows, windows_of_runs
    from .spread.across_workloads import Across, across
    from .spread.passive import passive_fingerprints
    from .spread.summary import REPLICATES, SEED, Outlier, Variability, variability

_LAZY = {
    ".runs.conditions": ("mixed_conditions",),
    ".runs.kinds": ("told_apart",),
    ".runs.measurements": ("coupled_jobs", "identities", "imported", "measurements", "untrusted"),
    ".runs.windows": ("RunWindows", "windows_of_runs"),
    ".spread.across_workloads": ("Across", "across"),
    ".spread.passive": ("passive_fingerprints",),
    ".spread.summary": ("REPLICATES", "SEED", "Outlier", "Variability", "variability"),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "REPLICATES",
    "SEED",
    "Across",
    "Outlier",
    "RunWindows",
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
    "windows_of_runs",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        public = getattr(import_module(_MODULES[name], __name__), name)
        globals()[name] = public
        return public
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
