"""The probe `stream-scale`: DRAM bandwidth."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "stream-scale",
    version="1",
    stresses="DRAM bandwidth",
    says="a = s b over large arrays.",
    figure="bandwidth",
    kernel="stream-scale",
    suite="full",
)
