"""The probe `stream-copy`: DRAM bandwidth."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "stream-copy",
    version="1",
    stresses="DRAM bandwidth",
    says="a = b over large arrays.",
    figure="bandwidth",
    kernel="stream-copy",
    suite="standard",
)
