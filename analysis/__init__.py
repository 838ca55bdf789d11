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
    from .runs.measurements import (
        coupled_jobs,
        identities,
        imported,
        measurements,
        mixed_conditions,
        told_apart,
        untrusted,
    )
    from .runs.windows import RunWindows, windows_of_runs
    from .spread.passive import passive_fingerprints
    from .spread.variability import REPLICATES, SEED, Across, Outlier, Variability, across, variability

_LAZY = {
    ".runs.measurements": (
        "coupled_jobs",
        "identities",
        "imported",
        "measurements",
        "mixed_conditions",
        "told_apart",
        "untrusted",
    ),
    ".runs.windows": ("RunWindows", "windows_of_runs"),
    ".spread.passive": ("passive_fingerprints",),
    ".spread.variability": ("REPLICATES", "SEED", "Across", "Outlier", "Variability", "across", "variability"),
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
