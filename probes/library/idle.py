"""The probe `idle`: nothing."""

from __future__ import annotations

from ..probe import Kind, Probe

PROBE = Probe(
    "idle",
    version="1",
    stresses="nothing",
    says="Nothing runs; a context is held.",
    figure="power",
    kernel="launch",
    suite="quick",
    kind=Kind.IDLE,
)
