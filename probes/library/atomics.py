"""The probe `atomics`: L2 atomics."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "atomics",
    version="1",
    stresses="L2 atomics",
    says="Atomic additions to many counters.",
    figure="operation_rate",
    kernel="atomics",
    suite="full",
)
