"""The probe `copy-p2p`: GPU to GPU."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "copy-p2p",
    version="1",
    stresses="GPU to GPU",
    says="Copy to another GPU, past the host.",
    figure="bandwidth",
    kernel="copy-p2p",
    suite="full",
)
