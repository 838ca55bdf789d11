"""The probe `copy-d2h`: PCIe, from the GPU."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "copy-d2h",
    version="1",
    stresses="PCIe, from the GPU",
    says="Copy to pinned host memory.",
    figure="bandwidth",
    kernel="copy-d2h",
    suite="standard",
)
