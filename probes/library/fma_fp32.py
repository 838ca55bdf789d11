"""The probe `fma-fp32`: SMs, fp32."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "fma-fp32",
    version="1",
    stresses="SMs, fp32",
    says="Chains of multiply-adds.",
    figure="rate",
    kernel="fma-fp32",
    suite="standard",
)
