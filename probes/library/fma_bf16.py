"""The probe `fma-bf16`: SMs, bf16."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "fma-bf16",
    version="1",
    stresses="SMs, bf16",
    says="Chains of packed multiply-adds.",
    figure="rate",
    kernel="fma-bf16",
    suite="full",
)
