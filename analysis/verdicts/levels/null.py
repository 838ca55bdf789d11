"""What healthy GPUs look like in one figure: a population whose tails are as heavy as the data leave possible.

Nobody knows the shape of a healthy population: silicon is skewed, nodes and days add tails of their own. So each side
of the median has a scale and a shape of its own: normal, exponential or Student's t. Both are averaged over what the
inner values of that side leave possible (Bayes, on a grid); values beyond count only by how many they are, so a gross
fault says nothing about the tail. A normal fleet of 10,000 ends with a normal tail; of one figure of 64 GPUs the tail
is not known, and it stays heavy. So all figures of a fleet together say how common each shape is (`common_shapes`).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ...runs.sittings import Floats
from ...statistics.student import log_density

_FREEDOM = (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0)
_SHAPES = ("normal", "exponential", *_FREEDOM)
"""Of a side: half a normal population, an exponential one, or half of Student's t with so many degrees of freedom."""
_BEFORE = np.array([0.10, 0.15, 0.01, 0.04, 0.13, 0.20, 0.19, 0.12, 0.06])
"""How likely each was before any data: most measured populations lie between 4 and 10 degrees of freedom."""
_INNER = 0.92
"""The share of a side that tells its tail by value; the rest, by number."""
_SCALES = np.exp(np.linspace(np.log(0.4), np.log(2.5), 41))
"""Scales on the grid, over a first guess."""
_FROM = 1.5
"""Scales from which a probability is worth computing."""
_MOST = 300
"""Values of a side that are looked at. No population is one of the shapes exactly: with thousands of values the best of
them would seem certain, far out where it was never tried."""


class Null:
    """The healthy population of one figure: p-values of deviations from its centre."""

    def __init__(self, values: Floats, floor: float) -> None:
        """`values`: one a GPU, finite; `floor`: the least scale, in their unit (what a measurement cannot tell).

        How common each shape is, `before` says until `tell` knows better.
        """
        self.centre = float(np.median(values))
        self.n = len(values)
        above, below = values[values > self.centre] - self.centre, self.centre - values[values < self.centre]
        ties = (self.n - len(above) - len(below)) // 2
        self._sides = tuple(_Side.of(np.sort(side), ties, floor) for side in (above, below))

    @property
    def evidence(self) -> Floats:
        """(2, shapes) the log likelihood of each shape, on the slow and on the fast side."""
        return np.array([side.evidence for side in self._sides])

    def tell(self, common: Floats) -> None:
        """How common each shape is in this fleet: (shapes,) shares that sum to 1."""
        for side in self._sides:
            side.tell(common)

    def p(self, deviation: Floats, more: Floats | float = 0.0) -> Floats:
        """The chance that one healthy GPU lies as far out, on the side of each deviation.

        `deviation`: from `centre`; `more`: scale of what a GPU's own measurement is poorer than the usual one's, added
        in squares.
        """
        found = np.empty(len(deviation))
        more = np.broadcast_to(np.asarray(more, dtype=np.float64), deviation.shape)
        for side, on in zip(self._sides, (deviation >= 0, deviation < 0), strict=True):
            found[on] = side.tail(np.abs(deviation[on]), more[on])
        return found

    def scale(self, slow: bool) -> float:
        """The scale of a side: of a normal population its standard deviation."""
        return self._sides[0 if slow else 1].typical


class _Side:
    def __init__(self, scales: Floats, likelihood: Floats, told: bool) -> None:
        self._scales = scales  # (scales,)
        self._likelihood = likelihood  # (shapes, scales), logarithms
        self.evidence: Floats = np.logaddexp.reduce(likelihood, axis=1) if told else np.zeros(len(likelihood))
        self.tell(_BEFORE)

    def tell(self, common: Floats) -> None:
        total = self._likelihood + np.log(common)[:, None]
        weights = np.exp(total - total.max())
        self._weights = weights / weights.sum()
        self.typical = float((self._weights.sum(axis=0) * self._scales).sum())

    @classmethod
    def of(cls, values: Floats, ties: int, floor: float) -> _Side:
        """A side from its distances, ascending and positive; `ties`: as many at distance 0."""
        n = len(values) + ties
        if len(values) < 2:
            return cls(np.array([floor]), np.zeros((len(_SHAPES), 1)), told=False)
        # The farthest value never tells the scale: of a dozen it may be the one fault.
        kept = max(1, min(int(np.ceil(_INNER * n)), n - 1, n - _apart(values, n, floor)) - ties)
        inner, beyond = values[:kept], len(values) - kept
        edge = inner[-1]
        if kept > _MOST:
            inner = inner[np.linspace(0, kept - 1, _MOST).astype(np.intp)]
        guess = max(float(inner[len(inner) // 2]) / 0.6745, float(edge) / 2.5, floor)
        scales = np.maximum(guess * _SCALES, floor)
        log_density, log_tail = _logs()
        at = inner[None, :] / scales[:, None]
        likelihood = np.empty((len(_SHAPES), len(scales)))
        for row in range(len(_SHAPES)):
            # Ties are values below what can be told: they speak for any scale alike.
            likelihood[row] = _lookup(log_density[row], at).sum(axis=1) - len(inner) * np.log(scales)
            likelihood[row] += beyond * len(inner) / kept * _lookup(log_tail[row], edge / scales)
        # Values that are mostly the same, or not told from it, say nothing about a shape.
        told = ties <= _TIES * n and len(values) >= _FEWEST and guess > 2 * floor
        return cls(scales, likelihood, told)

    def tail(self, distance: Floats, more: Floats) -> Floats:
        """Averaged over the grid: the probability of a distance at least this large, on this side; 1 if it is small."""
        found = np.ones(len(distance))
        far = np.hypot(self.typical, more) * _FROM < distance
        if far.any():
            found[far] = self._tail(distance[far], more[far])
        return found

    def _tail(self, distance: Floats, more: Floats) -> Floats:
        found = np.zeros(len(distance))
        _, log_tail = _logs()
        on = np.flatnonzero(self._weights.sum(axis=0) > 1e-9)
        for place in on:
            at = distance / np.sqrt(self._scales[place] ** 2 + more**2)
            rows = np.flatnonzero(self._weights[:, place] > 1e-12)
            for weight, tail in zip(self._weights[rows, place], np.exp(_lookup(log_tail[rows], at)), strict=True):
                found += weight * tail
        return np.minimum(found, 1.0)


def _apart(values: Floats, n: int, floor: float) -> int:
    """How many of the ascending values of a side of `n` lie beyond a gap that no tail makes: a few faults are a group
    of their own, and where they lie says nothing about the tail.

    With 2 degrees of freedom the k farthest values begin at r times the value before them with probability r ** (-2 k).
    """
    k = np.arange(2, min(int(_GROUP * n), len(values) - 1) + 1)
    ratio = values[len(values) - k] / np.maximum(values[len(values) - k - 1], floor)
    return int(k[ratio >= np.maximum(_GAP ** (1 / k), _LEAST_GAP)].max(initial=0))


_GROUP = 0.25  # of a side: more GPUs are no few faults
_GAP, _LEAST_GAP = 26.0, 1.7  # such a gap is made once in 700 times at most
_TIES, _FEWEST = 0.1, 8
_OWN, _TURNS = 3.0, 200
_STEP, _REACH = 0.05, 60.0


def _lookup(table: Floats, at: Floats | float) -> Floats:
    """A table's value at |t|, straight between its points; beyond its end as a power of t, as the tails of t fall.

    `table`: (steps,), or (rows, steps) for the values of each row.
    """
    at = np.asarray(at, dtype=np.float64)
    place = np.minimum(at / _STEP, table.shape[-1] - 2)
    low = place.astype(np.intp)
    begin = table[..., low]
    found: Floats = begin + (place - low) * (table[..., low + 1] - begin)
    far = at > _REACH
    if far.any():
        end = table[..., -1:]
        slope = (end - table[..., -201:-200]) / (np.log(_REACH) - np.log(_REACH - 200 * _STEP))
        found = np.where(far, end + slope * (np.log(np.where(far, at, _REACH)) - np.log(_REACH)), found)
    return found


@cache
def _logs() -> tuple[Floats, Floats]:
    """(shapes, steps) the logarithms of the density of a side and of its tail, at multiples of the step."""
    at = np.arange(0.0, _REACH + _STEP / 2, _STEP)
    density = np.array([_log_density(shape, at) for shape in _SHAPES])
    between = np.logaddexp(density[:, 1:], density[:, :-1]) + np.log(_STEP / 2)
    # Beyond the table a power law has density * at / freedom; what lighter tails have there is nothing.
    rest = [[density[row, -1] + np.log(_REACH / _FREEDOM[row - 2]) if row > 1 else -1e4] for row in range(len(_SHAPES))]
    tail = np.logaddexp.accumulate(np.concatenate((between, rest), axis=1)[:, ::-1], axis=1)[:, ::-1]
    return density, tail - tail[:, :1]


def _log_density(shape: str | float, at: Floats) -> Floats:
    """Of a distance at a multiple of the scale."""
    if shape == "normal":
        return np.asarray(0.5 * np.log(2 / np.pi) - at**2 / 2)
    if isinstance(shape, str):
        return -at
    return np.asarray(np.log(2) + log_density(at, shape))


def common_shapes(evidence: Floats) -> Floats:
    """(shapes,) how common each shape is in a fleet, from the `evidence` of all its figures: (sides, shapes).

    Shares that make the evidence likely (expectation maximisation), beside `_OWN` sides of what was likely before.
    """
    likelihood = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    common: Floats = _BEFORE / _BEFORE.sum()
    for _ in range(_TURNS):
        told = likelihood * common
        told /= told.sum(axis=1, keepdims=True)
        common = np.asarray((_OWN * _BEFORE / _BEFORE.sum() + told.sum(axis=0)) / (_OWN + len(told)))
    return common
