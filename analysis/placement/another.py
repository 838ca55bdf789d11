"""How far a GPU's level may lie in another sitting, at another time: what the interval of a score must hold.

Runs of one sitting repeat far better than sittings do, and sittings of one week better than those of another month. So
how well a GPU's runs agree does not say how well its score will hold. The judge of whorl has measured how much the
levels of sittings differ (`verdicts/levels.py`); the intervals of scores come from the same levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints
from ..verdicts.levels import UNKNOWN, levels

_DAY_US = 86400e6
WEEKS = 1.5e-3
"""Standard deviation of what weeks do to a GPU's level, as a logarithm: of SGEMM on a public cluster
(docs/placement.md)."""
_LONG_ENOUGH = 14.0
"""Days from a GPU's first sitting to its last that show themselves what weeks do."""
_QUANTILE = 2.015
"""Of Student's t with 5 degrees of freedom, 95 %: sittings have heavier tails than the normal distribution."""


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


def another_sitting(x: Floats, owner: Ints, began: Ints, known: npt.NDArray[np.bool_]) -> Another:
    """From the log times of runs: whose they are, when they began (us), and whether that is known."""
    at = np.where(known, began / _DAY_US, UNKNOWN)
    of = levels(owner, at, x, int(owner.max(initial=-1)) + 1)
    sat = of.sat
    ends = [np.full(sat.count, start) for start in (np.inf, -np.inf)]
    timed = sat.at > UNKNOWN
    np.minimum.at(ends[0], sat.series[timed], sat.at[timed])
    np.maximum.at(ends[1], sat.series[timed], sat.at[timed])
    span = (ends[1] - ends[0])[of.sittings > 1]
    long_enough = of.between_known and float(np.median(span)) >= _LONG_ENOUGH
    # Sittings of one week share what that week does: the level seen has its share of it, and the other sitting too.
    weeks = 0.0 if long_enough else np.sqrt(2.0) * WEEKS
    return Another(_QUANTILE * float(np.hypot(of.again, weeks)), of.between_known)
