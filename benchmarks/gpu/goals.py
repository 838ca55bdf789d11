"""What a kernel's rate is compared with, and which share of it and which steadiness are the goal."""

from __future__ import annotations

from dataclasses import dataclass

from whorl.kernels.work import Kernel, Work

COMPUTE_CV, BANDWIDTH_CV = 0.5, 0.3
TELEMETRY_COST = 0.2


@dataclass(frozen=True)
class Goal:
    """Goals in %; None where none is set."""

    limit: str
    """'plain product', 'best copy', 'peak of the units', or 'none' where no limit is known."""
    share: float | None = None
    """At least this much of the limit."""
    cv: float | None = None
    """Coefficient of variation over runs, at most."""


def goal_of(kernel: Kernel, work: Work) -> Goal:
    """By the kernel's name: products, chains of multiply-adds, memory copies; else no goal."""
    family = kernel.name.partition("-")[0]
    if family == "gemm":
        # cuBLASLt is the only library with 8-bit products: there is no plainer call, only the units' peak.
        return (
            Goal("peak of the units", None, COMPUTE_CV)
            if work.precision == "fp8"
            else Goal("plain product", 98, COMPUTE_CV)
        )
    if family == "fma":
        return Goal("peak of the units", 95, COMPUTE_CV)
    if family == "stream" or kernel.name == "copy-d2d":
        return Goal("best copy", 92, BANDWIDTH_CV)
    return Goal("none")
