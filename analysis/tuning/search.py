"""Ask and tell: the setting to measure next, and the best one so far, for least energy within a bound on time.

    search = Search([Knob("power_limit_w", limits, 700.0)], TimeBound(max_slowdown=0.05))
    for _ in range(14):
        setting = search.suggest()
        if setting is None:  # all settings are tried
            break
        search.tell(setting, *measured(setting))
    search.answer()

The default is the first trial, because the bound and every saving refer to it; two random settings follow, then the
setting of largest constrained expected improvement (Gardner and others, Bayesian Optimization with Inequality
Constraints, ICML 2014): the improvement in energy to expect, times the probability that the bound holds.
`suggest` depends on the trials and the seed alone: a search that is told the trials of another one goes on like it.

What the trials say of other settings is a Gaussian process over knobs that are scaled to [0, 1]: kernel Matérn 5/2 with
a length for each axis (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 4.2.1). The
lengths are chosen from a short list by the marginal likelihood of the trials, with a weak preference for the middle of
the list; the amplitude has a closed form. There is no optimiser that could fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

FloatArray: TypeAlias = NDArray[np.float64]

LENGTHS = (0.3, 0.8, 2.0)  # distances, as shares of a knob's range, over which a value stays alike: short, middle, long
MOST_OWN_LENGTHS = 6  # with more axes than this all axes share one length: 3^7 combinations cost more than they tell
_PREFERENCE = 0.15
_LEAST_AMPLITUDE = 0.3
_LEAST_NOISE = 1e-5
_LEAST_SD = 1e-3


class Process:
    """A Gaussian process with a constant mean and a stated noise.

    `noise` is the standard deviation of one value, in the unit of the values: for logarithms, the relative noise.
    """

    def __init__(self, noise: float = 0.01) -> None:
        self.noise = noise

    def fit(self, points: FloatArray, values: FloatArray, noise: FloatArray | None = None) -> Process:
        """Learn from points (n, d) in [0, 1], d at least 1, and their values (n,); returns itself.

        `noise` (n,) is the standard deviation of each value, where they differ. Afterwards `misfit` is minus the
        logarithm of how probable the values are, up to a constant: of two noises, the better one has the lower misfit.
        """
        self._points = points
        self._mean = float(values.mean())
        self._sd = max(float(values.std()), _LEAST_SD)
        targets = (values - self._mean) / self._sd
        own_noise = np.full(len(values), self.noise) if noise is None else noise
        noise_variance = np.maximum((own_noise / self._sd) ** 2, _LEAST_NOISE)

        lengths = _length_combinations(points.shape[1])
        squares = (points[:, None, :] - points[None, :, :]) ** 2
        covariance = _matern(squares @ (lengths**-2).T).transpose(2, 0, 1) + np.diag(noise_variance)
        roots = np.linalg.cholesky(covariance)  # (combinations, n, n)
        whitened = np.linalg.solve(roots, np.broadcast_to(targets[:, None], (len(roots), len(values), 1)))[..., 0]
        fits = (whitened**2).sum(1)
        amplitude = np.maximum((fits + 1) / (len(values) + 1), _LEAST_AMPLITUDE)
        misfit = (
            len(values) / 2 * np.log(amplitude)
            + fits / (2 * amplitude)
            + np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
            + _PREFERENCE * np.abs(np.log(lengths / LENGTHS[1])).sum(1)
        )
        best = int(misfit.argmin())
        self.misfit = float(misfit[best])
        self.lengths = lengths[best]
        self._amplitude = float(amplitude[best])
        self._root = roots[best]
        self._weights = np.linalg.solve(self._root.T, whitened[best])
        return self

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (m,) and standard deviation (m,) of the noiseless value at points (m, d), in the unit of the values."""
        scaled = (points[:, None, :] - self._points[None, :, :]) ** 2 @ self.lengths**-2
        cross = _matern(scaled)
        explained = (np.linalg.solve(self._root, cross.T) ** 2).sum(0)
        sd = np.sqrt(self._amplitude * np.maximum(1 - explained, 1e-9))
        return self._mean + self._sd * (cross @ self._weights), self._sd * sd


def normal_cdf(values: FloatArray) -> FloatArray:
    """The probability that a standard normal value is below each of these, of the same shape."""
    return (1 + np.array([math.erf(value) for value in values / math.sqrt(2)])) / 2


def expected_improvement(gain: FloatArray, sd: FloatArray) -> FloatArray:
    """What is won on average where a normal gain (m,) with this standard deviation (m,) counts from 0 on: (m,)."""
    sd = np.maximum(sd, 1e-12)
    depth = gain / sd
    density = np.exp(-(depth**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(sd * (depth * normal_cdf(depth) + density))


def _length_combinations(axes: int) -> FloatArray:
    """Length vectors (combinations, axes) to choose from."""
    if axes > MOST_OWN_LENGTHS:
        return np.array([[length] * axes for length in LENGTHS])
    return np.array(list(product(LENGTHS, repeat=axes)))


def _matern(squared_distances: FloatArray) -> FloatArray:
    """Matérn 5/2 correlation from squared distances in units of the lengths."""
    root = np.sqrt(5 * squared_distances)
    return np.asarray((1 + root + root**2 / 3) * np.exp(-root))


# -- the search --------------------------------------------------------------------------------------------------------

Setting: TypeAlias = Mapping[str, float]  # the value of each knob by its name: {"power_limit_w": 500.0, "batch": 8.0}

Prior: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""From points (m, knobs), each knob scaled to [0, 1] by the position in its list, to the means to expect of ln energy
(m,) and ln time (m,), each up to a constant."""

MARGIN = 2.0  # how many standard deviations of the noise an answer keeps below the bound
FIRST_RANDOM = 2
NEAR = 0.2  # the random first trials of a safe search lie within this distance of the default in every scaled knob
SAFE_PROBABILITY = 0.9
LEAST_PROBABILITY = 0.5  # a safe search ends where no setting is left that holds the bound with this probability
MOST_CANDIDATES = 1500
PRIOR_TRIALS = 6
"""A prior helps in budgets of this many trials or fewer; with more, the trials themselves say more than it does."""

_OVER = 0.1  # how far over the bound, as ln, a failed trial counts at least

_Index: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Knob:
    """What can be set: its values in ascending order, and the value of the driver or the user, which is one of them.

    `name` is power_limit_w, sm_clock_mhz, memory_clock_mhz, or that of a user's own knob.
    """

    name: str
    values: tuple[float, ...]
    default: float


@dataclass(frozen=True)
class Trial:
    """A setting and what was measured there."""

    setting: Setting
    energy_j: float | None = None  # energy of a unit of work; None, as `time_s`, where the work could not run
    time_s: float | None = None  # the time that the bound is on: of a repetition, or the latency of a batch
    noise: float | None = None
    """Standard deviation of ln energy and ln time in this trial, where whoever measured knows it."""
    ended_early: bool = False
    """It was over the bound and therefore not measured to its end: the figures are of its first part."""
    failure: str | None = None  # why the work could not run, in a sentence


@dataclass(frozen=True)
class TimeBound:
    """The longest time that is allowed: one of the two is set. InputError otherwise."""

    max_slowdown: float | None = None  # as a share of the default's time: 0.05 allows 5 % more than it
    max_time_s: float | None = None

    def __post_init__(self) -> None:
        if (self.max_slowdown is None) == (self.max_time_s is None):
            raise InputError("a bound is either the most slowdown or the longest time: state one of them")
        if self.max_slowdown is not None and not 0 <= self.max_slowdown < math.inf:
            raise InputError(f"the most slowdown is a share of 0 or more, not {self.max_slowdown:g}")
        if self.max_time_s is not None and not 0 < self.max_time_s < math.inf:
            raise InputError(f"the longest time is more than 0 s, not {self.max_time_s:g}")

    def longest_s(self, default_s: float) -> float:
        """The longest time (s) where the default takes so long."""
        return self.max_time_s or default_s * (1 + (self.max_slowdown or 0.0))


@dataclass(frozen=True)
class _Measured:
    """The means of all trials of one setting, as logarithms; None where one of them failed."""

    log_energy: float | None
    log_time: float | None
    noise: float


class Search:
    """Looks for the setting of least energy within a bound on time, on the finite grid of some knobs."""

    first_random = FIRST_RANDOM  # how many random settings follow the default

    def __init__(
        self,
        knobs: Sequence[Knob],
        bound: TimeBound,
        *,
        noise: float = 0.01,
        safe: bool = False,
        seed: int = 0,
        prior: Prior | None = None,
    ) -> None:
        """A search that has no trial yet.

        `noise` is the standard deviation of ln energy and ln time of a trial that says none of its own. `safe` chooses
        settings that hold the bound with probability `SAFE_PROBABILITY` or more in the process's opinion, or else the
        most probable one. The process is too sure: docs/tune.md has the measured rate of trials over the bound.
        `prior` is what to expect, from a sweep of the same work on another model; it takes the place of the random
        first trials, and is worth giving for `PRIOR_TRIALS` or fewer. InputError for a knob without values, in no
        ascending order, or whose default is none of its values, and for two knobs of one name.
        """
        self.knobs, self.bound, self.noise = tuple(knobs), bound, noise
        self.safe, self.seed, self.prior = safe, seed, prior
        self.trials: list[Trial] = []  # what was told, in its order
        check_knobs(self.knobs)
        if not 0 < noise < 0.5:
            raise InputError(f"the noise of a trial is a share between 0 and 0.5, not {noise:g}")
        self.default = {knob.name: knob.default for knob in self.knobs}
        self._default = places_of(self.knobs, self.default)
        self._sizes = np.array([len(knob.values) for knob in self.knobs])

    @property
    def bound_s(self) -> float | None:
        """The longest time that is allowed, s; None where it is a share of the default's time and that is unknown."""
        default = self._measured().get(self._default)
        if default is None or default.log_time is None:
            return self.bound.max_time_s
        return self.bound.longest_s(math.exp(default.log_time))

    def tell(
        self, setting: Setting, energy_j: float | None, time_s: float | None, *, noise: float | None = None
    ) -> None:
        """Add a trial, whoever suggested it: `Trial` has the meaning of each value.

        A setting that is told again counts with the mean of its trials. InputError for a setting that is not of the
        grid, and for an energy or time that is not a number above 0.
        """
        places_of(self.knobs, setting)
        for subject, value in (("energy", energy_j), ("time", time_s)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"the {subject} of the trial at {_text(setting)} is {value:g}: it must be above 0")
        if noise is not None and not 0 <= noise < math.inf:
            raise InputError(f"the noise of the trial at {_text(setting)} is {noise:g}: it must be 0 or more")
        self.trials.append(Trial(dict(setting), energy_j, time_s, noise))

    def suggest(self) -> dict[str, float] | None:
        """The setting to measure next: never one that has a trial; None when all of the grid have.

        None, too, when a safe search expects all others to be over the bound. InputError where the bound is a share of
        the default's time and the default failed.
        """
        measured = self._measured()
        if self._default not in measured:
            return dict(self.default)
        random = np.random.default_rng([self.seed, len(self.trials)])
        candidates = self._candidates(random, measured)
        if not len(candidates):
            return None
        if self.prior is not None or len(measured) > self.first_random:
            return self._most_promising(candidates, measured)
        if self.safe:
            distances = np.abs(self._points(candidates) - self._points(np.array([self._default]))).max(1)
            candidates = candidates[distances <= max(NEAR, distances.min())]
        return setting_at(self.knobs, random.choice(candidates))

    def answer(self) -> dict[str, float]:
        """The setting of least measured energy whose measured time holds the bound with its margin; else the default.

        The margin is `MARGIN` times the noise of the trial. A bound that is a share of the default's time is as
        uncertain as that time: then it is the noise of the ratio of the two, and the default itself needs none.
        """
        holding = self._holding()
        best = min(holding, key=holding.__getitem__, default=self._default)
        return setting_at(self.knobs, best)

    def _holding(self) -> dict[_Index, float]:
        """ln energy of the settings that hold the bound with the margin."""
        bound_s, measured = self.bound_s, self._measured()
        if bound_s is None:
            return {}
        holding: dict[_Index, float] = {}
        for index, mean in measured.items():
            if mean.log_energy is None or mean.log_time is None:
                continue
            exempt = index == self._default and self.bound.max_slowdown is not None
            if math.exp(mean.log_time) <= bound_s * (1 if exempt else 1 - self._margin(mean.noise, measured)):
                holding[index] = mean.log_energy
        return holding

    def _margin(self, noise: float, measured: Mapping[_Index, _Measured]) -> float:
        """The share of the bound to keep below it with a time of this noise."""
        if self.bound.max_slowdown is None:
            return MARGIN * noise
        return MARGIN * math.hypot(noise, measured[self._default].noise)

    def _measured(self) -> dict[_Index, _Measured]:
        """The settings that have trials, in the order of their first."""
        by_setting: dict[_Index, list[Trial]] = {}
        for trial in self.trials:
            by_setting.setdefault(places_of(self.knobs, trial.setting), []).append(trial)
        return {
            index: _Measured(
                _mean_log([trial.energy_j for trial in trials]),
                _mean_log([trial.time_s for trial in trials]),
                math.sqrt(sum((self.noise if trial.noise is None else trial.noise) ** 2 for trial in trials))
                / len(trials),
            )
            for index, trials in by_setting.items()
        }

    def _most_promising(
        self, candidates: NDArray[np.int64], measured: Mapping[_Index, _Measured]
    ) -> dict[str, float] | None:
        """The candidate of largest constrained expected improvement."""
        bound_s = self.bound_s
        if bound_s is None:
            raise InputError(
                "the default setting failed, so that there is no time to bound the others by: "
                "repair it, or state the longest time itself"
            )
        # With the margin, because a setting between it and the bound cannot be the answer.
        log_bound = math.log(bound_s) - self._margin(self.noise, measured)
        points = self._points(candidates)
        # A failed setting counts as the slowest of all, and as over the bound.
        worst = max([log_bound + _OVER, *(mean.log_time for mean in measured.values() if mean.log_time is not None)])
        times = {index: worst if mean.log_time is None else mean.log_time for index, mean in measured.items()}
        time_mean, time_sd = self._predict(measured, times, points, output=1)
        probability = normal_cdf((log_bound - time_mean) / time_sd)
        gain = probability
        holding = self._holding()
        if holding:
            energies = {index: mean.log_energy for index, mean in measured.items() if mean.log_energy is not None}
            energy_mean, energy_sd = self._predict(measured, energies, points, output=0)
            gain = expected_improvement(min(holding.values()) - energy_mean, energy_sd) * probability
        if self.safe:
            if probability.max() < LEAST_PROBABILITY:
                return None
            gain = np.where(probability >= SAFE_PROBABILITY, gain, probability - 1)
        return setting_at(self.knobs, candidates[int(gain.argmax())])

    def _predict(
        self, measured: Mapping[_Index, _Measured], values: Mapping[_Index, float], points: FloatArray, *, output: int
    ) -> tuple[FloatArray, FloatArray]:
        """Mean (m,) and standard deviation (m,) of ln energy (`output` 0) or ln time (1) at points (m, knobs)."""
        trial_points = self._points(np.array(list(values)))
        targets = np.array(list(values.values()))
        noise = np.array([measured[index].noise for index in values])
        if self.prior is not None:
            targets = targets - self.prior(trial_points)[output]
        varied = self._sizes > 1
        mean, sd = Process(self.noise).fit(trial_points[:, varied], targets, noise).predict(points[:, varied])
        return mean if self.prior is None else mean + self.prior(points)[output], sd

    def _candidates(self, random: np.random.Generator, measured: Mapping[_Index, _Measured]) -> NDArray[np.int64]:
        """Indices (m, knobs) of settings without a trial: all of a small grid, random ones of a large grid."""
        if math.prod(self._sizes.tolist()) <= MOST_CANDIDATES:
            indices = np.array(list(product(*(range(size) for size in self._sizes.tolist()))))
        else:
            indices = np.unique(random.integers(0, self._sizes, (MOST_CANDIDATES, len(self._sizes))), axis=0)
        return np.asarray(indices[[tuple(index) not in measured for index in indices.tolist()]])

    def _points(self, indices: NDArray[np.int64]) -> FloatArray:
        """Indices (m, knobs) scaled to [0, 1]."""
        return np.asarray(indices / np.maximum(self._sizes - 1, 1))


def setting_at(knobs: Sequence[Knob], places: Iterable[int]) -> dict[str, float]:
    """The setting whose values have these places in the lists of their knobs."""
    return {knob.name: knob.values[place] for knob, place in zip(knobs, places, strict=True)}


def places_of(knobs: Sequence[Knob], setting: Setting) -> _Index:
    """The place of each value in its knob's list. Raises InputError for a setting that is not of these knobs."""
    names = [knob.name for knob in knobs]
    if set(setting) != set(names):
        raise InputError(f"the setting {_text(setting)} does not have the knobs {', '.join(names)}")
    for knob in knobs:
        if setting[knob.name] not in knob.values:
            raise InputError(
                f"{knob.name} {setting[knob.name]:g} is none of the values that are searched: "
                f"{', '.join(f'{value:g}' for value in knob.values)}"
            )
    return tuple(knob.values.index(setting[knob.name]) for knob in knobs)


def check_knobs(knobs: Sequence[Knob]) -> None:
    """Raises InputError for no knobs, two of one name, and for values or defaults that are none."""
    if not knobs:
        raise InputError("there is no knob to search over")
    if len({knob.name for knob in knobs}) < len(knobs):
        raise InputError("two knobs have one name: give each its own")
    for knob in knobs:
        ascending = all(low < high for low, high in zip(knob.values, knob.values[1:], strict=False))
        if not knob.values or not ascending or not all(map(math.isfinite, knob.values)):
            raise InputError(f"the values of {knob.name} must be one or more finite numbers, ascending, each once")
        if knob.default not in knob.values:
            raise InputError(f"the default of {knob.name}, {knob.default:g}, must be one of its values")


def _mean_log(values: Sequence[float | None]) -> float | None:
    logs = [math.log(value) for value in values if value is not None]
    return sum(logs) / len(logs) if len(logs) == len(values) else None


def _text(setting: Setting) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())
