"""The probe `copy-h2d`: PCIe, to the GPU."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "copy-h2d",
    version="1",
    stresses="PCIe, to the GPU",
    says="Copy from pinned host memory.",
    figure="bandwidth",
    kernel="copy-h2d",
    suite="quick",
)
