"""The probe `gemm-bf16`: tensor cores, bf16."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-bf16",
    version="1",
    stresses="tensor cores, bf16",
    says="Matrix product, bf16 in, fp32 sums.",
    figure="rate",
    kernel="gemm-bf16",
    suite="standard",
)
