"""What healthy GPUs look like in one figure, without a law known beforehand: p-values of GPUs far from their peers.

The deviations x from the fleet's median are a mixture. With probability 1 - f a GPU is healthy. Half of the healthy lie
on each side, and |x| has a shape: on both sides that of Student's t with the same degrees of freedom, or on the slow
side that of a lognormal or a gamma distribution above its median and on the fast side that of the normal distribution.
Each side has a scale of its own. With probability f the GPU is faulty, and x lies anywhere, most often on the slow
side, so that faults do not make the tail of the healthy look heavy. Shape, scales and f are averaged over what the
values leave possible (Bayes, on a grid). All figures of a fleet together say how common each shape is
(`common_shapes`): one figure of 64 GPUs cannot tell its tail, ten figures of 256 can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import special

from ..runs.sittings import Floats
from ..statistics.modes import quantum, spread_ties
from ..statistics.ordering import log_density, quantile, upper_tail

FREEDOM = (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, np.inf)
"""Degrees of freedom of Student's t on the grid; the last is the normal distribution."""
SIGMA = (0.5, 0.75, 1.0)
"""Standard deviations of the logarithm, of lognormal slow sides."""
GAMMA = (1.0, 2.0, 4.0)
"""Shape parameters of gamma slow sides; 1 is the exponential distribution."""
PRIOR = np.array([0.02, 0.06, 0.14, 0.20, 0.18, 0.13, 0.07, 0.12, 0.025, 0.025, 0.10, 0.05, 0.05, 0.05])
"""How likely each shape is before any figures, in parts: most measured populations lie between 4 and 10 degrees of
freedom. `benchmarks/verdicts.py` shows what comes of it."""
PRIOR /= PRIOR.sum()
SLOW_SHARE = 0.9
"""Of the chance that a healthy GPU is named, and of the faults, the share that lies on the slow side."""
_SCALES = np.exp(np.linspace(-1.0, 1.0, 17))
"""Scale of a side over a robust standard deviation of all values."""
_RATIO_SD = 0.25
"""Standard deviation, before any values, of the logarithm of the ratio of the two scales where both sides have one
shape. Where they have two, all ratios are as likely."""
_FAULTY = np.array([0.003, 0.02, 0.08, 0.2])
_FAULTY_PRIOR = np.array([0.70, 0.20, 0.07, 0.03])
"""Shares of faulty GPUs, and how likely each is before any values."""
_NEAREST_REACH, _FARTHEST_REACH = 10.0, 30.0
"""A faulty GPU lies anywhere up to so many robust standard deviations: the first number, or more where a GPU lies
farther; a GPU beyond the second counts as there."""
_MOST = 350
"""Values that are looked at, evenly over their order. No population is one of the laws exactly: with thousands of
values the best of them would seem certain, far out where it was never tried."""
_FEWEST = 8
"""Values, without which a figure says nothing about the shape of its tail."""
_TIES = 0.1
"""Share of values equal to the centre from which a figure says nothing about a tail: its readings are rounded."""
_FROM = 1.5
"""Scales from which a p-value is worth computing."""
_PRIOR_FIGURES = 3.0
"""Figures that the prior counts for, beside those of the fleet."""
_TURNS = 100
_FACTORS = 24
"""Densities that are multiplied before a logarithm is taken."""
_STEP = 0.05
_DISTANCES = np.geomspace(0.5, 5e3, 250)
"""Robust standard deviations at which tails of a fleet are tabulated."""
_LOG_TABLED = np.linspace(np.log(1e-2), np.log(1e5), 1200)
"""The logarithms of those at which the tails of a law are tabulated, evenly."""


class Null:
    """The healthy population of one figure: p-values of deviations from its centre."""

    def __init__(self, values: Floats, floor: float, slow_share: float = SLOW_SHARE) -> None:
        """`values`: (n,) finite, one a GPU; above the centre is slow.

        `floor`: the least scale, in the unit of the values (what a measurement cannot tell). `slow_share`: 0.5 where
        one side is as good as the other. How common each shape is, `PRIOR` says until `tell` knows better.
        """
        self.centre = float(np.median(values))
        self.n = len(values)
        self._slow_share = slow_share
        deviations = np.sort(values - self.centre)
        # Rounded readings lie anywhere in their step; as they stand, they would look like one sharp peak.
        deviations = spread_ties(deviations, min(quantum(deviations), np.sqrt(12) * floor))
        ties = float((np.abs(values - self.centre) < floor / 100).mean()) if self.n else 1.0
        if self.n > _MOST:
            deviations = deviations[((np.arange(_MOST) + 0.5) * self.n / _MOST).astype(np.intp)]
        robust = 1.4826 * float(np.median(np.abs(deviations))) if self.n else 0.0
        self._unit = max(robust, floor)
        self._scales = np.maximum(self._unit * _SCALES, floor)
        log_likelihood = self._likelihood(deviations / self._unit, self._scales / self._unit)
        self._evidence: Floats = special.logsumexp(log_likelihood, axis=(1, 2))
        joint = np.exp(log_likelihood - self._evidence[:, None, None])
        self._weights = {True: joint.sum(axis=2), False: joint.sum(axis=1)}  # (shapes, scales) by side, slow or not
        tells = self.n >= _FEWEST and ties <= _TIES and robust > 2 * floor
        self.evidence: Floats = self._evidence if tells else np.zeros(len(PRIOR))
        """(shapes,) the log likelihood of each shape; 0 where the figure does not tell."""
        self.tell(PRIOR)

    def _likelihood(self, distances: Floats, scales: Floats) -> Floats:
        """(shapes, slow scales, fast scales) the log likelihood, over the shares of faulty GPUs.

        `distances` and `scales`: in robust standard deviations.
        """
        reach = np.clip(np.abs(distances).max(initial=0.0), _NEAREST_REACH, _FARTHEST_REACH)
        slow, fast = (
            _side(tables, np.minimum(part, reach), scales, share / reach)
            for tables, part, share in (
                (_shapes().slow, distances[distances >= 0], self._slow_share),
                (_shapes().fast, -distances[distances < 0], 1 - self._slow_share),
            )
        )
        with np.errstate(divide="ignore"):
            of_both = slow[:, :, None, :] + fast[:, None, :, :] + np.log(_FAULTY_PRIOR)
        log_likelihood: Floats = special.logsumexp(of_both, axis=3)
        ratio = np.log(_SCALES)[:, None] - np.log(_SCALES)[None, :]
        log_prior = -((ratio / _RATIO_SD) ** 2) / 2
        log_prior -= special.logsumexp(log_prior)
        log_likelihood[: len(FREEDOM)] += log_prior
        log_likelihood[len(FREEDOM) :] -= np.log(ratio.size)
        return log_likelihood

    def tell(self, common: Floats) -> None:
        """How common each shape is in this fleet: (shapes,) shares that sum to 1."""
        self._shape_weights: Floats = special.softmax(self._evidence + np.log(common))
        self._log_tails: dict[bool, Floats] = {}  # by side, once they are needed: whether it is the slow one

    def _log_tail(self, *, slow: bool) -> Floats:
        """(distances,) the logarithm of the p-value at each distance on a side."""
        if slow not in self._log_tails:
            weights = self._shape_weights[:, None] * self._weights[slow]
            tail = np.zeros(len(_DISTANCES))
            for place, scale in enumerate(self._scales):
                tail += weights[:, place] @ _tails(_DISTANCES * (self._unit / scale), slow=slow)
            tail /= 2 * (self._slow_share if slow else 1 - self._slow_share)
            self._log_tails[slow] = np.log(np.clip(tail, 1e-300, 1.0))
        return self._log_tails[slow]

    def p(self, deviation: Floats, extra: Floats | float = 0.0) -> Floats:
        """The p-value of each deviation from `centre`: the chance that a healthy GPU lies so far out on its side, over
        the share of all chances that this side has.

        `extra`: the scale of what a GPU's own measurement is poorer than the usual one's, added in squares. Deviations
        of less than one and a half scales have the p-value 1.
        """
        p_values = np.ones(len(deviation))
        poorer = np.broadcast_to(np.asarray(extra, dtype=np.float64), deviation.shape)
        for slow, side in ((True, deviation >= 0), (False, deviation < 0)):
            scale = self.scale(slow=slow)
            distance = np.abs(deviation[side]) / np.sqrt(1 + (poorer[side] / scale) ** 2)
            log_p = np.interp(
                np.log(np.maximum(distance / self._unit, 1e-9)), np.log(_DISTANCES), self._log_tail(slow=slow)
            )
            p_values[side] = np.where(distance < _FROM * scale, 1.0, np.exp(log_p))
        return p_values

    def scale(self, *, slow: bool) -> float:
        """The scale of a side: of a normal population its standard deviation."""
        return float(self._shape_weights @ self._weights[slow] @ self._scales)


def common_shapes(evidence: Floats) -> Floats:
    """(shapes,) how common each shape is in a fleet, from the `evidence` of all its figures: (figures, shapes).

    Shares that make the evidence likely (expectation maximisation), beside the prior as some figures of its own.
    """
    likelihood = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    common: Floats = PRIOR
    for _ in range(_TURNS):
        belongs = likelihood * common
        belongs /= belongs.sum(axis=1, keepdims=True)
        common = (_PRIOR_FIGURES * PRIOR + belongs.sum(axis=0)) / (_PRIOR_FIGURES + len(belongs))
    return common


def _side(tables: Floats, distances: Floats, scales: Floats, anywhere: float) -> Floats:
    """(shapes, scales, shares of faulty) the log likelihood of the distances on one side.

    `anywhere`: the density of faulty GPUs there.
    """
    log_likelihood = np.empty((len(PRIOR), len(scales), len(_FAULTY)))
    healthy_shares, faulty = (1 - _FAULTY)[:, None], (_FAULTY * anywhere)[:, None]
    for place, scale in enumerate(scales):
        healthy = _lookup(tables, distances / (scale * _STEP)) / (2 * scale)
        log_likelihood[:, place] = _sum_of_logs(healthy_shares * healthy[:, None] + faulty)
    return log_likelihood


def _sum_of_logs(values: Floats) -> Floats:
    """The sum of the logarithms along the last axis, of values between 1e-6 and 1e6: a product has one logarithm."""
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1])
    edges = np.arange(0, values.shape[-1], _FACTORS)
    return np.asarray(np.log(np.multiply.reduceat(values, edges, axis=-1)).sum(axis=-1))


def _lookup(tables: Floats, at: Floats) -> Floats:
    """(rows, values) of tables: the value at each place, counted in columns, straight between two of them."""
    place = np.minimum(at, tables.shape[1] - 2)
    low = place.astype(np.intp)
    begin = tables[:, low]
    values: Floats = begin + (place - low) * (tables[:, low + 1] - begin)
    return values


@dataclass(frozen=True)
class _Shapes:
    """Laws of |x| on each side, of which half lies within 1 / 1.4826, as of a standard normal x."""

    slow: Floats
    """(shapes, steps) densities at multiples of the step."""
    fast: Floats
    log_slow: Floats
    """(shapes, distances) logarithms of the probability beyond each of `_LOG_TABLED`."""
    log_fast: Floats


class _Law(NamedTuple):
    """A law of healthy values. `scipy.stats` has all of them, and takes a second to import."""

    median: float
    upper_quartile: float
    density: Callable[[Floats], Floats]
    log_tail: Callable[[Floats], Floats]
    """The logarithm of the probability beyond."""


_UPPER_QUARTILE = float(special.ndtri(0.75))


def _normal_density(x: Floats) -> Floats:
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def _normal() -> _Law:
    return _Law(0.0, _UPPER_QUARTILE, _normal_density, lambda x: special.log_ndtr(-x))


def _student(freedom: float) -> _Law:
    quartile = float(quantile(0.25, freedom))
    return _Law(0.0, quartile, lambda x: np.exp(log_density(x, freedom)), lambda x: np.log(upper_tail(x, freedom)))


def _lognormal(sigma: float) -> _Law:
    return _Law(
        1.0,
        float(np.exp(sigma * _UPPER_QUARTILE)),
        lambda x: _normal_density(np.log(x) / sigma) / (sigma * x),
        lambda x: special.log_ndtr(-np.log(x) / sigma),
    )


def _gamma(shape: float) -> _Law:
    return _Law(
        float(special.gammaincinv(shape, 0.5)),
        float(special.gammaincinv(shape, 0.75)),
        lambda x: np.exp((shape - 1) * np.log(x) - x - special.gammaln(shape)),
        lambda x: np.log(special.gammaincc(shape, x)),
    )


@cache
def _shapes() -> _Shapes:
    centred = [_normal() if np.isinf(freedom) else _student(freedom) for freedom in FREEDOM]
    skewed = [*map(_lognormal, SIGMA), *map(_gamma, GAMMA)]
    at = np.arange(0.0, _FARTHEST_REACH / _SCALES[0] + 2 * _STEP, _STEP)
    densities, log_tails = [], []
    for law in (*centred, *skewed):
        unit = 1.4826 * (law.upper_quartile - law.median)  # of the slow half, half lies below
        densities.append(2 * unit * law.density(law.median + unit * at))
        with np.errstate(divide="ignore"):
            log_tails.append(np.log(2) + law.log_tail(law.median + unit * np.exp(_LOG_TABLED)))
    normal = [len(centred) - 1] * len(skewed)
    fast = [*range(len(centred)), *normal]
    slow, log_slow = np.array(densities), np.maximum(np.array(log_tails), -700.0)
    return _Shapes(slow, slow[fast], log_slow, log_slow[fast])


def _tails(distances: Floats, *, slow: bool) -> Floats:
    """(shapes, distances) the probability beyond each distance, of what lies on this side."""
    shapes = _shapes()
    columns = (np.log(distances) - _LOG_TABLED[0]) / (_LOG_TABLED[1] - _LOG_TABLED[0])
    return np.asarray(np.exp(_lookup(shapes.log_slow if slow else shapes.log_fast, np.maximum(columns, 0.0))))
