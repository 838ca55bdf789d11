"""What healthy GPUs look like in one figure, without a law known beforehand: p-values of GPUs far from their peers.

The model of the deviations x from the fleet's centre is a mixture. With probability 1 - e a GPU is healthy, and x has
a shape: Student's t with so many degrees of freedom, or lognormal on the slow side, with one scale on the slow side and
another on the fast side. With probability e the GPU is faulty, and x lies anywhere, so that faults do not make the tail
of the healthy look heavy. Shape, scales and e are averaged over what the values leave possible (Bayes, on a grid). All
figures of a fleet together say how common each shape is (`common_shapes`): one figure of 64 GPUs cannot tell its tail,
ten figures of 256 can.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import stats

from ..runs.sittings import Floats

FREEDOM = (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 1e6)
"""Degrees of freedom of Student's t on the grid; the last is the normal distribution."""
SKEW = (0.5, 1.0)
"""Skews g of shapes whose fast side is normal and slow side lognormal: (exp(g z) - 1) / g of a standard normal z."""
PRIOR = np.array([0.02, 0.06, 0.14, 0.20, 0.18, 0.13, 0.07, 0.12, 0.05, 0.03])
"""How likely each shape is before any figures: most measured populations lie between 4 and 10 degrees of freedom."""
_HEAVY = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 1])
_SCALES = np.exp(np.linspace(-0.7, 0.7, 13))
"""Mean of the two scales, over a robust standard deviation."""
_RATIOS = np.exp(np.linspace(-1.0, 1.0, 5))
"""The slow side's scale over the fast side's."""
_FAULTY = np.array([0.003, 0.02, 0.08, 0.2])
_FAULTY_PRIOR = np.array([0.70, 0.20, 0.07, 0.03])
"""Shares of faulty GPUs, and how likely each is before any figures."""
_REACH = 20.0
"""Robust standard deviations up to which a faulty GPU may lie anywhere; farther where one does."""
_MOST = 250
"""Values that are looked at, evenly over their order. No population is one of the laws exactly: with thousands of
values the best of them would seem certain, far out where it was never tried."""
_FEWEST = 8
"""Values, without which a figure says nothing about the shape of its tail."""
_TIES = 0.1
"""Share of values equal to the centre from which a figure says nothing about a tail: its readings are rounded."""
_FROM = 1.5
"""Scales from which a p-value is worth computing."""
_FLEET_SAYS_NOTHING = 3.0
"""Figures that the prior counts for, beside those of the fleet."""
_TURNS = 100
_FACTORS = 32
"""Densities that are multiplied before a logarithm is taken."""
_NOTHING = 1e-10
"""A weight that no p-value shows."""
_STEP, _TABLE_END = 0.05, 80.0
_DISTANCES = np.geomspace(0.5, 5e3, 400)
"""Robust standard deviations at which tails are tabulated."""


class Null:
    """The healthy population of one figure: p-values of deviations from its centre."""

    def __init__(self, values: Floats, floor: float) -> None:
        """`values`: (n,) finite, one a GPU; `floor`: the least scale, in their unit (what a measurement cannot tell).

        How common each shape is, `PRIOR` says until `tell` knows better.
        """
        self.centre = float(np.median(values))
        self.n = len(values)
        deviations = np.sort(values - self.centre)
        ties = float((np.abs(deviations) < floor / 100).mean()) if self.n else 1.0
        if self.n > _MOST:
            deviations = deviations[np.linspace(0, self.n - 1, _MOST).astype(np.intp)]
        robust = 1.4826 * float(np.median(np.abs(deviations))) if self.n else 0.0
        self._unit = max(robust, floor)
        self._scales = np.maximum(self._unit * _SCALES, floor)
        self._log_likelihood = _log_likelihood(deviations, self._scales, self._unit)
        whole = np.logaddexp.reduce(self._log_likelihood.reshape(len(PRIOR), -1), axis=1)
        tells = self.n >= _FEWEST and ties <= _TIES and robust > 2 * floor
        self.evidence: Floats = whole if tells else np.zeros(len(PRIOR))
        """(shapes,) the log likelihood of each shape; 0 where the figure does not tell."""
        self.tell(PRIOR)

    def tell(self, common: Floats) -> None:
        """How common each shape is in this fleet: (shapes,) shares that sum to 1."""
        log_weights = self._log_likelihood + np.log(common)[:, None, None, None]
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        healthy = weights.sum(axis=3)  # (shapes, scales, ratios)
        self.heavy = float(healthy.sum(axis=(1, 2)) @ _HEAVY)
        """The probability that the tail is as heavy as that of t with 4 degrees of freedom, or lognormal."""
        self._healthy = healthy
        self._mean_scales = tuple(
            float(np.einsum("fsr,s,r->", healthy, self._scales, _widths(slow=slow))) for slow in (True, False)
        )
        self._log_tails: dict[bool, Floats] = {}  # by side, once they are needed: whether it is the slow one

    def _log_tail(self, *, slow: bool) -> Floats:
        """(distances,) the logarithm of the p-value at each distance on a side."""
        if slow in self._log_tails:
            return self._log_tails[slow]
        weights = self._healthy
        width = _widths(slow=slow)
        share = width / (_widths(slow=True) + _widths(slow=False))  # of the healthy that lie on this side
        tail = np.zeros(len(_DISTANCES))
        for scale, ratio in np.argwhere(weights.sum(axis=0) > _NOTHING):
            stretch = np.log(self._unit / (self._scales[scale] * width[ratio]))
            two_sided = _tails(np.log(_DISTANCES) + stretch, slow=slow)
            tail += 2 * share[ratio] * weights[:, scale, ratio] @ two_sided
        self._log_tails[slow] = np.log(np.maximum(np.minimum(tail, 1.0), 1e-300))
        return self._log_tails[slow]

    def p(self, deviation: Floats, more: Floats | float = 0.0) -> Floats:
        """The p-value of each deviation from `centre`: the chance that a healthy GPU lies so far out, of both sides.

        `more`: the scale of what a GPU's own measurement is poorer than the usual one's, added in squares. Deviations
        of less than one and a half scales have the p-value 1.
        """
        found = np.ones(len(deviation))
        poorer = np.broadcast_to(np.asarray(more, dtype=np.float64), deviation.shape)
        for slow, side in ((True, deviation >= 0), (False, deviation < 0)):
            scale = self.scale(slow=slow)
            distance = np.abs(deviation[side]) / np.sqrt(1 + (poorer[side] / scale) ** 2)
            log_p = np.interp(
                np.log(np.maximum(distance / self._unit, 1e-9)), np.log(_DISTANCES), self._log_tail(slow=slow)
            )
            found[side] = np.where(distance < _FROM * scale, 1.0, np.exp(log_p))
        return found

    def scale(self, *, slow: bool) -> float:
        """The scale of a side: of a normal population its standard deviation."""
        return self._mean_scales[0 if slow else 1]


def common_shapes(evidence: Floats) -> Floats:
    """(shapes,) how common each shape is in a fleet, from the `evidence` of all its figures: (figures, shapes).

    Shares that make the evidence likely (expectation maximisation), beside the prior as some figures of its own.
    """
    likelihood = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    prior = PRIOR / PRIOR.sum()
    common: Floats = prior
    for _ in range(_TURNS):
        belongs = likelihood * common
        belongs /= belongs.sum(axis=1, keepdims=True)
        common = (_FLEET_SAYS_NOTHING * prior + belongs.sum(axis=0)) / (_FLEET_SAYS_NOTHING + len(belongs))
    return common


def _widths(*, slow: bool) -> Floats:
    """(ratios,) the scale of a side over the mean of the two."""
    return np.asarray(_RATIOS**0.5 if slow else _RATIOS**-0.5)


def _log_likelihood(deviations: Floats, scales: Floats, unit: float) -> Floats:
    """(shapes, scales, ratios, shares of faulty) the log likelihood of the deviations, with the prior of the shares."""
    distances = np.abs(deviations)
    reach = max(float(distances.max(initial=0.0)) * 1.0001, _REACH * unit)
    anywhere = unit / (2 * reach)
    sides = [
        (distances[on_side], densities)
        for on_side, densities in zip((deviations >= 0, deviations < 0), _densities(), strict=True)
    ]
    found = np.empty((len(PRIOR), len(scales), len(_RATIOS), len(_FAULTY)))
    widths = _widths(slow=True), _widths(slow=False)
    for place, scale in enumerate(scales):
        for ratio in range(len(_RATIOS)):
            both = [scale * width[ratio] for width in widths]
            healthy = np.concatenate(
                [_lookup(densities, at / width) for (at, densities), width in zip(sides, both, strict=True)], axis=1
            )
            healthy *= 2 * unit / sum(both)
            for share, faulty in enumerate(_FAULTY):
                found[:, place, ratio, share] = _sum_of_logs((1 - faulty) * healthy + faulty * anywhere)
    found -= len(deviations) * np.log(unit)
    found += np.log(_FAULTY_PRIOR / _FAULTY_PRIOR.sum())
    return found


def _sum_of_logs(values: Floats) -> Floats:
    """(rows,) the sum of the logarithms of each row, which lie between 1e-6 and 1e6: a product has one logarithm."""
    edges = np.arange(0, values.shape[1], _FACTORS)
    found: Floats = np.log(np.multiply.reduceat(values, edges, axis=1)).sum(axis=1)
    return found


def _lookup(tables: Floats, at: Floats) -> Floats:
    """(rows, values) of tables over multiples of the step: the value at each place, straight between two points."""
    place = np.minimum(at / _STEP, tables.shape[1] - 2)
    low = place.astype(np.intp)
    begin = tables[:, low]
    found: Floats = begin + (place - low) * (tables[:, low + 1] - begin)
    return found


@cache
def _densities() -> tuple[Floats, Floats]:
    """(shapes, steps) densities at multiples of the step on the slow and on the fast side, beyond the table as at its
    end."""
    at = np.arange(0.0, _TABLE_END + _STEP / 2, _STEP)
    of_t = [stats.t.pdf(at, freedom) for freedom in FREEDOM]
    slow = np.array([*of_t, *(stats.norm.pdf(np.log1p(skew * at) / skew) / (1 + skew * at) for skew in SKEW)])
    fast = np.array([*of_t, *(stats.norm.pdf(at) for _ in SKEW)])
    return slow, fast


def _tails(log_distances: Floats, *, slow: bool) -> Floats:
    """(shapes, distances) the probability beyond each distance, given as a logarithm, of what lies on this side."""
    logs, *tables = _log_tails()
    found: Floats = np.exp(np.array([np.interp(log_distances, logs, table) for table in tables[not slow]]))
    return found


@cache
def _log_tails() -> tuple[Floats, Floats, Floats]:
    """Logarithms of distances, and (shapes, distances) those of the probability beyond, of what lies on the slow and on
    the fast side."""
    logs = np.linspace(np.log(1e-2), np.log(1e5), 1200)
    at = np.exp(logs)
    of_t = [stats.t.logsf(at, freedom) for freedom in FREEDOM]
    slow = np.array([*of_t, *(stats.norm.logsf(np.log1p(skew * at) / skew) for skew in SKEW)]) + np.log(2)
    fast = np.array([*of_t, *(stats.norm.logsf(at) for _ in SKEW)]) + np.log(2)
    return logs, slow, fast
