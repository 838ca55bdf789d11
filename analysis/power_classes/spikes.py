"""The spike vector of a power trace: how often the power was how far up, as a share of the GPU's limit.

Minos (arXiv 2604.03591) describes the power of a workload so: readings from the first busy one on, smoothed, as ratios
to the limit; the ratios from 0.5 to 2 in 30 bins; the bins add up to 1. Two vectors are compared by cosine distance.
"""

from __future__ import annotations

import numpy as np

from ..statistics.ordering import Floats

LOW, HIGH, BINS = 0.5, 2.0, 30
SMOOTHING = 0.5
"""The weight of a new reading: y = 0.5 y' + 0.5 x."""


def spike_vector(ratios: Floats) -> Floats | None:
    """The shares of the smoothed `ratios` (power over limit) in the bins; None if none reaches half of the limit."""
    counts, _ = np.histogram(ratios, bins=BINS, range=(LOW, HIGH))
    total = counts.sum()
    return counts / total if total else None


def distances(vectors: Floats) -> Floats:
    """The cosine distance between each two rows: 0 for the same shape, 1 for shapes with no bin in common."""
    lengths = np.linalg.norm(vectors, axis=1)
    found: Floats = 1.0 - (vectors @ vectors.T) / np.outer(lengths, lengths)
    np.fill_diagonal(found, 0.0)
    return np.clip(found, 0.0, 1.0)
