"""The probe `stream-add`: DRAM bandwidth."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "stream-add",
    version="1",
    stresses="DRAM bandwidth",
    says="a = b + c over large arrays.",
    figure="bandwidth",
    kernel="stream-add",
    suite="full",
)
