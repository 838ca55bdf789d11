"""The probe `chase`: latency by footprint."""

from __future__ import annotations

from ..probe import Kind, Probe

PROBE = Probe(
    "chase",
    version="1",
    stresses="latency by footprint",
    says="Pointers through 16 KiB to 1 GiB.",
    figure="latency_at_1073741824",
    kernel="chase",
    suite="full",
    kind=Kind.SCAN,
    scan=("footprint", tuple(1 << power for power in (14, 16, 18, 20, 22, 24, 26, 28, 30))),
)
