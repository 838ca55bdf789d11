"""The probe `chase-dram`: DRAM latency."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "chase-dram",
    version="1",
    stresses="DRAM latency",
    says="Pointers through more than the L2 cache holds.",
    figure="latency",
    kernel="chase",
    suite="quick",
)
