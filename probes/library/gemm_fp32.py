"""The probe `gemm-fp32`: SMs, fp32, power."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-fp32",
    version="1",
    stresses="SMs, fp32, power",
    says="Matrix product in fp32: SGEMM.",
    figure="rate",
    kernel="gemm-fp32",
    suite="quick",
)
