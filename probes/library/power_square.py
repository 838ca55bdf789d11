"""The probe `power-square`: power sensor."""

from __future__ import annotations

from ..probe import Kind, Probe

PROBE = Probe(
    "power-square",
    version="1",
    stresses="power sensor",
    says="Full load and rest in turns.",
    figure="swing_seen",
    kernel="power-mix",
    suite="full",
    kind=Kind.SQUARE,
)
