"""The probe `gather`: random DRAM reads."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "gather",
    version="1",
    stresses="random DRAM reads",
    says="Words from random places.",
    figure="operation_rate",
    kernel="gather",
    suite="standard",
)
