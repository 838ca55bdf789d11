"""Random streams: one per seed and subject, so that a new draw never moves the ones that were there.

NumPy's generators run on one thread and in one order, so a fleet is the same whatever the number of threads.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Floats = NDArray[np.float64]


def stream(seed: int, subject: str, *numbers: int) -> np.random.Generator:
    """The random numbers of one subject ("leakage") under one seed; `numbers` tell repetitions apart."""
    if not 0 <= seed < 1 << 63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1, not {seed}")
    return np.random.default_rng([seed, crc32(subject.encode()), *numbers])
