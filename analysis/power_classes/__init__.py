"""How workloads load the power of a GPU: profiles and classes from telemetry, and what a power or clock cap would do.

`power_profiles` reads a store, `power_classes` groups the profiles, `nearest` finds the most similar one. `sweep` reads
runs of workloads under several caps; `curves`, `predict` and `leave_one_out` tell what a cap does to another workload,
and how wrong that is where the answer is known; `cap_effect` does this for a workload of a store.
"""

from __future__ import annotations

from .caps import METHODS, Curve, Prediction, curves, leave_one_out, predict
from .grouping import power_classes
from .profiles import Profile, Use, nearest, power_profiles
from .sweeps import cap_effect, sweep

__all__ = [
    "METHODS",
    "Curve",
    "Prediction",
    "Profile",
    "Use",
    "cap_effect",
    "curves",
    "leave_one_out",
    "nearest",
    "power_classes",
    "power_profiles",
    "predict",
    "sweep",
]
