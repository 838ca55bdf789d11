"""How workloads load the power of a GPU: profiles and classes from telemetry, and what a power or clock cap would do.

`power_profiles` reads a store, `power_classes` groups the profiles, `nearest` finds the most similar one. `sweep` reads
runs of workloads under several caps; `curves`, `predict` and `leave_one_out` tell what a cap does to another workload,
and how wrong that is where the answer is known; `cap_effect` does this for a workload of a store. `own_runs` and
`curve_of_runs` do it from the workload's own runs.
"""

from __future__ import annotations

from .caps import METHODS, Curve, Prediction, curves, leave_one_out, predict
from .grouping import power_classes
from .profiles import Profile, Use, nearest, power_profiles
from .sweeps import cap_effect, curve_of_runs, own_runs, sweep

__all__ = [
    "METHODS",
    "Curve",
    "Prediction",
    "Profile",
    "Use",
    "cap_effect",
    "curve_of_runs",
    "curves",
    "leave_one_out",
    "nearest",
    "own_runs",
    "power_classes",
    "power_profiles",
    "predict",
    "sweep",
]
