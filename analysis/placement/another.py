"""How far a GPU's level may lie in another sitting, at another time: what the interval of a score must hold.

Runs of one sitting repeat far better than sittings do, and sittings of one week better than those of another month. So
how well a GPU's runs agree does not say how well its score will hold. How much the levels of sittings differ comes from
the judge's levels (`verdicts/levels.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..statistics.ordering import Floats, Ints
from ..verdicts.levels import REACH_90, WEEKS, levels


@dataclass(frozen=True)
class Another:
    """How far another sitting's level may lie from a GPU's level."""

    reach: float
    """Half of the 90 % interval of another sitting about the GPU's level, as a logarithm; NaN if nothing is known."""
    days_known: bool
    """Whether sittings of the same GPUs show how much they differ; if not, it is taken from the runs within one."""

    def interval(self, belief: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
        """The intervals of the scores in another sitting, from those of the scores in the long run."""
        down, up = (np.exp(np.hypot(np.log(end / belief), self.reach)) for end in (lower, upper))
        return belief / down, belief * up


def another_sitting(x: Floats, owner: Ints, at: Floats) -> Another:
    """From the log times of runs: whose they are, and when they began (days, or `UNKNOWN`)."""
    of = levels(owner, at, x, int(owner.max(initial=-1)) + 1)
    return Another(REACH_90 * of.later(WEEKS), of.between_known)
