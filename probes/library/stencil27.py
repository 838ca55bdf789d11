"""The probe `stencil27`: DRAM and caches."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "stencil27",
    version="1",
    stresses="DRAM and caches",
    says="27-point stencil on a 3D grid.",
    figure="bandwidth",
    kernel="stencil27",
    suite="standard",
)
