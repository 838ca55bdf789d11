"""The probe `chase-dram`: DRAM latency."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "chase-dram",
    version="1",
    stresses="DRAM latency",
    says="Pointers through four L2 caches.",
    figure="latency",
    kernel="chase",
    suite="quick",
)
