"""The probe `power-mix`: the whole board."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "power-mix",
    version="1",
    stresses="the whole board",
    says="Multiply-adds, product, triad in turn.",
    figure="rate",
    kernel="power-mix",
    suite="quick",
)
