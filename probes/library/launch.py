"""The probe `launch`: launch latency."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "launch",
    version="1",
    stresses="launch latency",
    says="Empty kernels, one after another.",
    figure="latency",
    kernel="launch",
    suite="quick",
)
