"""The probe `transformer`: tensor cores, memory."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "transformer",
    version="1",
    stresses="tensor cores, memory",
    says="A block of a transformer, forward.",
    figure="rate",
    kernel="transformer",
    suite="standard",
)
