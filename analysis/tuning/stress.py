"""The search for the hardest setting of a generated kernel: many knobs, few trials, the largest value wins.

Ask and tell: `suggest` names a setting, `tell` gives its value. The first trial is the default, the next few are drawn
at random, and then a forest of random trees says which of many drawn settings has the most expected improvement.
After "LlamaTune" (Kanellis and others, VLDB 2022):

* a knob may have a special value by which the compiler or the driver decides; it is drawn with a probability of its
  own, because one value among many would hardly ever be tried;
* the knobs may be tied to fewer axes (HeSBO: Nayebi and others, ICML 2019): knob i follows axis h(i), forwards or
  backwards, both drawn at random;
* an axis may be cut into buckets, so that fewer points are different.

What does not compile or does not fit is known beforehand where `fits` is given, and never costs a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from .process import FloatArray
from .search import Knob, Setting

IntArray: TypeAlias = npt.NDArray[np.int64]

TRIES = 20
"""So many times are settings drawn before none is left: on the axes first, then each knob by itself."""
LEADERS = 3
"""Neighbours are drawn of so many of the best settings."""


class Surrogate(Protocol):
    """A model of the value over encoded settings, to be used as `Forest`."""

    def fit(self, points: FloatArray, values: FloatArray) -> object: ...

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]: ...


@dataclass(frozen=True)
class StressKnob(Knob):
    """A knob of a generated kernel; its special value lets compiler or driver decide, or is nothing of a kind."""

    special: float | None = None

    def __post_init__(self) -> None:
        if list(self.values) != sorted(set(self.values)) or not all(map(math.isfinite, self.values)):
            raise InputError(f"knob {self.name}: its values must be finite numbers that ascend, not {self.values}")
        if not {self.default, self.default if self.special is None else self.special} <= set(self.values):
            raise InputError(f"knob {self.name}: its default and its special value must be among its values")


@dataclass(frozen=True)
class StressOptions:
    """How settings are drawn and judged.

    Axes and buckets are off: on real kernels of 7 and 10 knobs axes lost, and buckets gained only where they happened
    to keep the multiples of a warp. `benchmarks/tune.py` measures the search as it is set here.
    """

    axes: int | None = None
    """The number of axes that the knobs are tied to; None: each knob is an axis of its own."""
    special_chance: float | None = 0.2
    """The probability of a special value; None: it is one value like the others."""
    buckets: int | None = None
    """The number of different points of an axis; None: any number."""
    surrogate: Callable[[int], Surrogate] | None = None
    """Makes the model of a trial from a seed; None: a `Forest`."""
    random_first: int = 5
    """So many trials after the default are drawn at random."""
    candidates: int = 1000
    """So many settings are drawn for each trial."""
    neighbours: int = 200
    """So many more are drawn near the best settings: a few knobs are drawn anew, the others stay."""


@dataclass(frozen=True)
class StressTrial:
    """A setting and the value that it gave; None: it failed."""

    setting: Setting
    value: float | None


class StressSearch:
    """Asks for settings and is told their values; the largest is the best.

    What is suggested depends on the seed and on the trials that were told, whether this search suggested them or not:
    a search that was interrupted goes on as it would have when its trials are told again in their order.
    """

    def __init__(
        self,
        knobs: Sequence[StressKnob],
        *,
        fits: Callable[[Setting], bool] = lambda _: True,
        options: StressOptions | None = None,
        seed: int = 0,
    ) -> None:
        """Search over these knobs from their defaults.

        Raises InputError for knobs without names of their own, for a default that does not fit, and for a seed below 0.
        """
        if seed < 0:
            raise InputError(f"the seed must be 0 or more, not {seed}")
        self.knobs = tuple(knobs)
        if not knobs or len({knob.name for knob in knobs}) < len(knobs):
            raise InputError("a search needs at least one knob, and a name for each that no other has")
        self.options = options or StressOptions()
        self.fits = fits
        self.seed = seed
        self.trials: list[StressTrial] = []
        self._default = {knob.name: knob.default for knob in knobs}
        if not fits(self._default):
            raise InputError("the default setting does not fit; choose one that compiles and fits on this GPU")
        random = np.random.default_rng([seed, 0])
        axes, number = self.options.axes, len(self.knobs)
        self._axis = np.arange(number) if axes is None else random.integers(axes, size=number)
        self._backwards = np.zeros(number, bool) if axes is None else random.random(number) < 0.5
        self._choices = [_choices(knob, self.options.special_chance) for knob in self.knobs]

    @property
    def best(self) -> StressTrial | None:
        """The trial with the largest value; None before any succeeded."""
        good = [(trial.value, trial) for trial in self.trials if trial.value is not None]
        return max(good, key=lambda pair: pair[0])[1] if good else None

    def suggest(self) -> dict[str, float]:
        """The setting to try next; it fits, and none that was told is suggested again.

        Raises InputError when no new setting that fits turns up.
        """
        if not self.trials:
            return dict(self._default)
        random = np.random.default_rng([self.seed, len(self.trials)])
        best = self.best
        chosen = None
        if best is not None and best.value is not None and len(self.trials) > self.options.random_first:
            chosen = self._first_new(self._most_promising(random, best.value))
        for i in range(TRIES):
            chosen = chosen or self._first_new(self._draw(random, self.options.candidates, tied=i < TRIES / 2))
        if chosen is None:
            raise InputError("no setting is left that fits and was not tried")
        return chosen

    def tell(self, setting: Setting, value: float | None) -> None:
        """Note the value of a setting, the larger the better; None: it failed, and counts as bad as the worst.

        Raises InputError for a setting that is none of these knobs', and for a value that is no finite number.
        """
        if value is not None and not math.isfinite(value):
            raise InputError(f"the value of a trial must be a finite number, or None where it failed, not {value}")
        self.trials.append(StressTrial(self._setting(self._position(setting)), value))

    def _position(self, setting: Setting) -> tuple[int, ...]:
        """The place of each knob's value in its list."""
        if set(setting) != {knob.name for knob in self.knobs}:
            raise InputError(f"a setting needs a value for each knob: {', '.join(knob.name for knob in self.knobs)}")
        for knob in self.knobs:
            if setting[knob.name] not in knob.values:
                raise InputError(f"knob {knob.name}: {setting[knob.name]:g} is not one of its values")
        return tuple(knob.values.index(setting[knob.name]) for knob in self.knobs)

    def _setting(self, position: Sequence[int]) -> dict[str, float]:
        return {knob.name: knob.values[i] for knob, i in zip(self.knobs, position, strict=True)}

    def _most_promising(self, random: np.random.Generator, best: float) -> IntArray:
        """Positions (m, knobs) of drawn settings, most expected improvement first."""
        worst = min(trial.value for trial in self.trials if trial.value is not None)
        values = np.array([worst if trial.value is None else trial.value for trial in self.trials])
        tried = np.array([self._position(trial.setting) for trial in self.trials])
        seed = int(random.integers(2**31))
        model = self.options.surrogate(seed) if self.options.surrogate else Forest(seed=seed)
        model.fit(self._encode(tried), values)
        near = self._near(random, tried[np.argsort(-values, kind="stable")[:LEADERS]])
        drawn = np.concatenate([self._draw(random, self.options.candidates), near])
        mean, deviation = model.predict(self._encode(drawn))
        return drawn[np.argsort(-_improvement(mean, deviation, best), kind="stable")]

    def _draw(self, random: np.random.Generator, count: int, *, tied: bool = True) -> IntArray:
        """Positions (count, knobs) of settings drawn at random: on the axes, or (not `tied`) each knob by itself."""
        if tied:
            points = random.random((count, self.options.axes or len(self.knobs)))
            if self.options.buckets is not None:
                points = (np.floor(points * self.options.buckets) + 0.5) / self.options.buckets
            shares = points[:, self._axis]
            shares = np.where(self._backwards, 1 - shares, shares)
        else:
            shares = random.random((count, len(self.knobs)))
        chosen = zip(self._choices, shares.T, strict=True)
        return np.column_stack([places[np.searchsorted(ends, row, side="right")] for (ends, places, _), row in chosen])

    def _near(self, random: np.random.Generator, best: IntArray) -> IntArray:
        """Positions that differ from one of the best on one axis or a few."""
        count = self.options.neighbours
        fresh = self._draw(random, count)
        axes = self.options.axes or len(self.knobs)
        moved = random.random((count, axes)) < 1 / axes
        moved[np.arange(count), random.integers(axes, size=count)] = True
        return np.where(moved[:, self._axis], fresh, best[random.integers(len(best), size=count)])

    def _encode(self, positions: IntArray) -> FloatArray:
        """Coordinates from 0 to 1 of positions (n, knobs)."""
        return np.column_stack([points[positions[:, i]] for i, (_, _, points) in enumerate(self._choices)])

    def _first_new(self, positions: IntArray) -> dict[str, float] | None:
        """The first of these settings that was not tried and fits; None if there is none."""
        for position in positions.tolist():
            setting = self._setting(position)
            if all(setting != trial.setting for trial in self.trials) and self.fits(setting):
                return setting
        return None


class Forest:
    """Extremely randomised trees (Geurts, Ernst and Wehenkel 2006): a split halves at random, the best knob is taken.

    All trees grow together, a level at a time.
    """

    def __init__(self, trees: int = 24, *, seed: int = 0) -> None:
        self.trees = trees
        self.seed = seed

    def fit(self, points: FloatArray, values: FloatArray) -> Forest:
        """Grow the trees on points (n, d) and their values (n,); each tree ends in leaves of one value."""
        random = np.random.default_rng(self.seed)
        count = len(values)
        sample = np.tile(np.arange(count), self.trees)
        node = np.repeat(np.arange(self.trees), count)
        knobs: list[npt.NDArray[np.int64]] = []
        thresholds, means, children = [], [], []
        nodes = self.trees
        while len(sample):
            start = np.flatnonzero(np.diff(node, prepend=-1))
            size = np.diff(start, append=len(node))
            here, target = points[sample], values[sample]
            total = np.add.reduceat(target, start)
            low, high = np.minimum.reduceat(here, start), np.maximum.reduceat(here, start)
            threshold = low + random.random(low.shape) * (high - low)
            left = here <= np.repeat(threshold, size, axis=0)
            left_size = np.add.reduceat(left.astype(np.float64), start)
            left_total = np.add.reduceat(left * target[:, None], start)
            right_size = size[:, None] - left_size
            with np.errstate(invalid="ignore", divide="ignore"):
                gain = left_total**2 / left_size + (total[:, None] - left_total) ** 2 / right_size
            gain[(high == low) | (right_size == 0)] = -np.inf
            alike = np.minimum.reduceat(target, start) == np.maximum.reduceat(target, start)
            best = gain.argmax(axis=1)
            row = np.arange(len(start))
            splits = np.isfinite(gain[row, best]) & ~alike
            child = np.where(splits, nodes + 2 * (np.cumsum(splits) - 1), -1)
            nodes += 2 * int(splits.sum())
            knobs.append(best)
            thresholds.append(threshold[row, best])
            means.append(total / size)
            children.append(child)
            on = np.repeat(splits, size)
            down = np.repeat(child, size) + ~left[np.arange(len(sample)), np.repeat(best, size)]
            sample, node = sample[on], down[on]
            order = np.argsort(node, kind="stable")
            sample, node = sample[order], node[order]
        self._knob, self._threshold = np.concatenate(knobs), np.concatenate(thresholds)
        self._mean, self._child = np.concatenate(means), np.concatenate(children)
        return self

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation over the trees, each (m,), at points (m, d)."""
        node = np.tile(np.arange(self.trees)[:, None], len(points))
        column = np.arange(len(points))
        while True:
            child = self._child[node]
            inner = child >= 0
            if not inner.any():
                break
            down = child + (points[column, self._knob[node]] > self._threshold[node])
            node = np.where(inner, down, node)
        values = self._mean[node]
        return values.mean(axis=0), values.std(axis=0)


def _choices(knob: StressKnob, special_chance: float | None) -> tuple[FloatArray, IntArray, FloatArray]:
    """How a share from 0 to 1 becomes a value: upper ends of the pieces (but the last), places there; and coordinates.

    The special value has the lowest piece, as long as its probability; the other values share what is left.
    """
    count = len(knob.values)
    places = np.arange(count)
    if knob.special is None or special_chance is None or count == 1:
        return np.arange(1, count) / count, places, places / max(count - 1, 1)
    special = knob.values.index(knob.special)
    places = np.concatenate([[special], np.delete(places, special)])
    coordinates = np.zeros(count)
    coordinates[places[1:]] = np.linspace(special_chance, 1, count - 1)
    return special_chance + (1 - special_chance) * np.arange(count - 1) / (count - 1), places, coordinates


def _improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """The expected improvement over the best value, (m,)."""
    deviation = np.maximum(deviation, 1e-12)
    above = (mean - best) / deviation
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in above])
    density = np.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    improvement: FloatArray = deviation * (above * below + density)
    return improvement
