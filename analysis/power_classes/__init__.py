"""How workloads load the power of a GPU: profiles and classes from telemetry, and their curves under power caps.

`power_profiles` reads a store, `power_classes` groups the profiles, `nearest` finds the most similar one. `sweep` reads
runs of workloads under several power limits, and `curves` makes curves of them; `own_runs` and `curve_of_runs` do this
for the runs of one workload. What a cap does to a workload says `analysis.energy.quote`.
"""

from __future__ import annotations

from .profiles import Profile, Use, nearest, power_classes, power_profiles
from .sweeps import Curve, curve_of_runs, curves, own_runs, sweep

__all__ = [
    "Curve",
    "Profile",
    "Use",
    "curve_of_runs",
    "curves",
    "nearest",
    "own_runs",
    "power_classes",
    "power_profiles",
    "sweep",
]
