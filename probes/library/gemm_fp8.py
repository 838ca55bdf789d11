"""The probe `gemm-fp8`: tensor cores, fp8."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-fp8",
    version="1",
    stresses="tensor cores, fp8",
    says="Matrix product, fp8 in, fp32 sums.",
    figure="rate",
    kernel="gemm-fp8",
    suite="full",
)
