"""The probe `power-staircase`: power by load."""

from __future__ import annotations

from ..probe import Kind, Probe

PROBE = Probe(
    "power-staircase",
    version="1",
    stresses="power by load",
    says="Load on 0, 25, 50, 75, 100 % of SMs.",
    figure="power_at_100",
    kernel="power-share",
    suite="standard",
    kind=Kind.STAIRCASE,
)
