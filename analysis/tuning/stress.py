"""The search for the hardest setting of a generated kernel: many knobs, few trials, the largest value wins.

Ask and tell: `suggest` names a setting, `tell` gives its value. The first trial is the default, the next few are drawn
at random, and then a Gaussian process says which of many drawn settings has the most expected improvement. A knob may
have a special value by which the compiler or the driver decides; it is drawn with a probability of its own, because one
value among many would hardly ever be tried (LlamaTune: Kanellis and others, VLDB 2022). What does not compile or does
not fit is known beforehand where `fits` is given, and never costs a trial.

The last part says what runs of several GPUs tell: their mean, and the variance between GPUs over that between runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from .search import FloatArray, Knob, Process, Setting, check_knobs, expected_improvement, places_of, setting_at

IntArray: TypeAlias = npt.NDArray[np.int64]

SPECIAL_CHANCE = 0.2
RANDOM_FIRST = 5  # so many trials after the default are drawn at random
CANDIDATES, NEIGHBOURS = 1000, 200
"""So many settings are drawn for each trial, and so many more near the best: a few knobs anew, the others stay."""
LEADERS = 3  # neighbours are drawn of so many of the best settings
TRIES = 10  # so many times are settings drawn before none is left
_NOISES = (0.01, 0.1, 0.4)
"""Of a value, as shares of the standard deviation of all values: the one that makes these most probable is taken."""


@dataclass(frozen=True)
class StressKnob(Knob):
    """A knob of a generated kernel; its special value lets compiler or driver decide, or is nothing of a kind."""

    special: float | None = None


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
        special_chance: float | None = SPECIAL_CHANCE,
        random_first: int = RANDOM_FIRST,
        seed: int = 0,
    ) -> None:
        """Search over these knobs from their defaults; `special_chance` None: a special value is one like the others.

        Raises InputError for knobs that are none, for a default that does not fit, and for a seed below 0.
        """
        if seed < 0:
            raise InputError(f"the seed must be 0 or more, not {seed}")
        check_knobs(knobs)
        self.knobs = tuple(knobs)
        self.fits = fits
        self.seed = seed
        self.trials: list[StressTrial] = []
        self._random_first = random_first
        self._default = {knob.name: knob.default for knob in knobs}
        if not fits(self._default):
            raise InputError("the default setting does not fit; choose one that compiles and fits on this GPU")
        self._choices = [_choices(knob, special_chance) for knob in self.knobs]

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
        if best is not None and best.value is not None and len(self.trials) > self._random_first:
            chosen = self._first_new(self._most_promising(random, best.value))
        for _ in range(TRIES):
            chosen = chosen or self._first_new(self._draw(random, CANDIDATES))
        if chosen is None:
            raise InputError("no setting is left that fits and was not tried")
        return chosen

    def tell(self, setting: Setting, value: float | None) -> None:
        """Note the value of a setting, the larger the better; None: it failed, and counts as bad as the worst.

        Raises InputError for a setting that is none of these knobs', and for a value that is no finite number.
        """
        if value is not None and not math.isfinite(value):
            raise InputError(f"the value of a trial must be a finite number, or None where it failed, not {value}")
        self.trials.append(StressTrial(setting_at(self.knobs, places_of(self.knobs, setting)), value))

    def _most_promising(self, random: np.random.Generator, best: float) -> IntArray:
        """Places (m, knobs) of drawn settings, most expected improvement first."""
        worst = min(trial.value for trial in self.trials if trial.value is not None)
        values = np.array([worst if trial.value is None else trial.value for trial in self.trials])
        tried = np.array([places_of(self.knobs, trial.setting) for trial in self.trials])
        spread, points = max(float(values.std()), 1e-9), self._encode(tried)
        processes = (Process(noise * spread).fit(points, values) for noise in _NOISES)
        process = min(processes, key=lambda fitted: fitted.misfit)
        near = self._near(random, tried[np.argsort(-values, kind="stable")[:LEADERS]])
        drawn = np.concatenate([self._draw(random, CANDIDATES), near])
        mean, deviation = process.predict(self._encode(drawn))
        return drawn[np.argsort(-expected_improvement(mean - best, deviation), kind="stable")]

    def _draw(self, random: np.random.Generator, count: int) -> IntArray:
        """Places (count, knobs) of settings drawn at random."""
        shares = random.random((count, len(self.knobs)))
        chosen = zip(self._choices, shares.T, strict=True)
        return np.column_stack([places[np.searchsorted(ends, row, side="right")] for (ends, places, _), row in chosen])

    def _near(self, random: np.random.Generator, best: IntArray) -> IntArray:
        """Places that differ from one of the best in one knob or a few."""
        number = len(self.knobs)
        moved = random.random((NEIGHBOURS, number)) < 1 / number
        moved[np.arange(NEIGHBOURS), random.integers(number, size=NEIGHBOURS)] = True
        return np.where(moved, self._draw(random, NEIGHBOURS), best[random.integers(len(best), size=NEIGHBOURS)])

    def _encode(self, places: IntArray) -> FloatArray:
        """Coordinates from 0 to 1 of places (n, knobs)."""
        return np.column_stack([points[places[:, i]] for i, (_, _, points) in enumerate(self._choices)])

    def _first_new(self, places: IntArray) -> dict[str, float] | None:
        """The first of these settings that was not tried and fits; None if there is none."""
        for place in places.tolist():
            setting = setting_at(self.knobs, place)
            if all(setting != trial.setting for trial in self.trials) and self.fits(setting):
                return setting
        return None


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


# -- what runs say ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFigure:
    """A figure of runs, with its 95 % interval."""

    value: float
    low: float | None  # None, as `high`, where each GPU has one run
    high: float | None
    gpus: int
    runs: int  # of each GPU


def mean_of_runs(values: npt.ArrayLike) -> RunFigure:
    """The mean over GPUs and runs, shape (gpus, runs), in their unit. Its interval is that of these GPUs: it has the
    variance between runs alone (Student's t, whose square with m degrees has the F distribution with 1 and m)."""
    runs = np.asarray(values, np.float64)
    gpus, repeats = runs.shape
    mean = float(runs.mean())
    if repeats < 2:
        return RunFigure(mean, None, None, gpus, repeats)
    half = float(np.sqrt(_fisher(0.95, 1, gpus * (repeats - 1)) * runs.var(axis=1, ddof=1).mean() / runs.size))
    return RunFigure(mean, mean - half, mean + half, gpus, repeats)


def spread_over_runs(values: npt.ArrayLike) -> RunFigure | None:
    """The variance of ln value between GPUs over that between runs, of positive values of shape (gpus, runs).

    A result is mean + GPU + run, both normal. With n GPUs of k runs each and F the mean square between GPUs over that
    within, it is (F - 1) / k; its interval is that of F over the quantiles of the F distribution with n - 1 and
    n (k - 1) degrees of freedom (Searle, Casella and McCulloch, Variance Components, 1992, section 3.6). None where it
    is not known: with one GPU, one run each, or runs that are equal to the last digit.
    """
    logs = np.log(np.asarray(values, np.float64))
    gpus, repeats = logs.shape
    if gpus < 2 or repeats < 2 or not (within := float(logs.var(axis=1, ddof=1).mean())) > 0:
        return None
    ratio = repeats * float(np.var(logs.mean(axis=1), ddof=1)) / within
    least, most = (_fisher(share, gpus - 1, gpus * (repeats - 1)) for share in (0.025, 0.975))
    value, low, high = (max(0.0, (f - 1) / repeats) for f in (ratio, ratio / most, ratio / least))
    return RunFigure(value, low, high, gpus, repeats)


@lru_cache(maxsize=32)
def _fisher(share: float, between: int, within: int) -> float:
    """A quantile of 200,000 random numbers of a fixed seed, off by 1 % or so: nodes have no scipy."""
    return float(np.quantile(np.random.default_rng(1).f(between, within, 200_000), share))
