"""The probe `transformer`: tensor cores and memory."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "transformer",
    version="1",
    stresses="tensor cores and memory",
    says="One block of a transformer, forward.",
    figure="rate",
    kernel="transformer",
    suite="standard",
)
