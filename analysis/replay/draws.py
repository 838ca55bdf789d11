"""What PAL's simulation draws at random, in the order it does: the scores of the GPUs, and jobs that keep arriving.

Both come from Python's own generator, never NumPy's, since the published numbers rest on its very bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from random import Random

import numpy as np
from numpy.typing import NDArray

from .published_trace import CLASSES

ARRIVALS_SEED = 1
ARRIVALS_PER_HOUR = 2


def drawn_scores(
    relative: Mapping[str, NDArray[np.float64]], gpus: int, seed: int
) -> tuple[dict[str, NDArray[np.float64]], Random]:
    """(gpus,) scores by class, drawn from the rows of `relative`, and the generator where the draws leave it.

    GPU by GPU and class by class one row is drawn, each for itself: the artifact looks a GPU up under a number where
    the profile has UUIDs, finds nothing, and falls back to any row. So one GPU's scores are independent between
    classes, and the noise of single runs is in them. The random placements go on with the same generator.
    """
    generator = Random(seed)  # noqa: S311  (a simulation, not a secret)
    rows = {name: relative[name].tolist() for name in CLASSES}
    scores = [[generator.choice(rows[name]) for name in CLASSES] for _ in range(gpus)]
    return {name: np.array(column) for name, column in zip(CLASSES, zip(*scores, strict=True), strict=True)}, generator


def later_gaps() -> Iterator[float]:
    """Seconds between arrivals after the trace's last job, whole, exponential at two jobs an hour, without end.

    The trace starts again with them, and its copies load the cluster until the last of its own jobs is done. The
    generator is a new one for every run of a policy.
    """
    generator = Random(ARRIVALS_SEED)  # noqa: S311  (a simulation, not a secret)
    while True:
        yield float(math.ceil(-math.log(1 - generator.random()) / ARRIVALS_PER_HOUR * 3600))
