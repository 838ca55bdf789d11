"""The probe `chase-l2`: L2 latency."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "chase-l2",
    version="1",
    stresses="L2 latency",
    says="Pointers through 2 MiB.",
    figure="latency",
    kernel="chase",
    suite="standard",
    parameters={"footprint": 2 << 20},
)
