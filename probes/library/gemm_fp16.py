"""The probe `gemm-fp16`: tensor cores, fp16."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-fp16",
    version="1",
    stresses="tensor cores, fp16",
    says="Matrix product, fp16 in, fp32 sums.",
    figure="rate",
    kernel="gemm-fp16",
    suite="quick",
)
