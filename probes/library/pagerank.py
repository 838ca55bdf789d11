"""The probe `pagerank`: irregular reads."""

from __future__ import annotations

from ..probe import Probe

PROBE = Probe(
    "pagerank",
    version="1",
    stresses="irregular reads",
    says="PageRank on a power-law graph.",
    figure="operation_rate",
    kernel="pagerank",
    suite="quick",
)
