"""The probe `copy-d2d`: DRAM, copy engine."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "copy-d2d",
    version="1",
    stresses="DRAM, copy engine",
    says="Copy within the GPU's memory.",
    figure="bandwidth",
    kernel="copy-d2d",
    suite="standard",
)
