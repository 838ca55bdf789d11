"""The probe `fma-int32`: SMs, int32."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "fma-int32",
    version="1",
    stresses="SMs, int32",
    says="Chains of integer multiply-adds.",
    figure="operation_rate",
    kernel="fma-int32",
    suite="standard",
)
