"""The probe `gemm-fp64`: SMs, fp64, power."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gemm-fp64",
    version="1",
    stresses="SMs, fp64, power",
    says="Matrix product in fp64: DGEMM.",
    figure="rate",
    kernel="gemm-fp64",
    suite="standard",
)
