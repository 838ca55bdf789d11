"""The probe `fma-fp64`: SMs, fp64."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "fma-fp64",
    version="1",
    stresses="SMs, fp64",
    says="Chains of multiply-adds.",
    figure="rate",
    kernel="fma-fp64",
    suite="quick",
)
