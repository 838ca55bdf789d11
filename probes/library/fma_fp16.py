"""The probe `fma-fp16`: SMs, fp16."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "fma-fp16",
    version="1",
    stresses="SMs, fp16",
    says="Chains of packed multiply-adds.",
    figure="rate",
    kernel="fma-fp16",
    suite="full",
)
