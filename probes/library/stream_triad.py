"""The probe `stream-triad`: DRAM bandwidth."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "stream-triad",
    version="1",
    stresses="DRAM bandwidth",
    says="a = b + s c over large arrays.",
    figure="bandwidth",
    kernel="stream-triad",
    suite="quick",
)
