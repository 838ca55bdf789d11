"""The probe `gemm-tf32`: tensor cores, tf32."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-tf32",
    version="1",
    stresses="tensor cores, tf32",
    says="Matrix product, tf32, fp32 sums.",
    figure="rate",
    kernel="gemm-tf32",
    suite="full",
)
