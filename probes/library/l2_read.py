"""The probe `l2-read`: L2 bandwidth."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "l2-read",
    version="1",
    stresses="L2 bandwidth",
    says="Reads of a third of the L2 cache.",
    figure="bandwidth",
    kernel="l2-read",
    suite="quick",
)
