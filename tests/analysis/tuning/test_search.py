"""Ask and tell: what is suggested, what is answered, and how good that is on tasks whose truth is known."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.tuning.search import LENGTHS, NEAR, Knob, Process, Search, TimeBound
from whorl.benchmarks.tune import TuningTask, services, sweeps
from whorl.errors import InputError
from whorl.tests.sizes import count, sample

POWER = Path(__file__).parents[3].parent / "shared" / "data" / "power"
needs_sweeps = pytest.mark.skipif(not POWER.is_dir(), reason=f"the public sweeps are not at {POWER}")

LIMIT = Knob("power_limit_w", tuple(float(watts) for watts in range(200, 725, 25)), 700.0)
BATCH = Knob("batch", (1.0, 2.0, 4.0, 8.0, 16.0), 4.0)
Setting = dict[str, float]


def service(setting: Setting) -> tuple[float, float]:
    """Energy of a request (J) and latency (s) of a made service: a lower limit is slower, a large batch is slower."""
    watts, batch = setting.get("power_limit_w", 400.0), setting.get("batch", 4.0)
    time_s = (0.004 + 0.001 * batch) * (1 + 0.4 * (700 - watts) ** 2 / 250_000)
    return (100 + watts) * time_s / batch, time_s


def told(search: Search, trials: int, measure: Callable[[Setting], tuple[float | None, float | None]]) -> list[Setting]:
    """Ask and tell so many times, or until the search ends; the settings that it asked for."""
    settings: list[Setting] = []
    while len(settings) < trials and (setting := search.suggest()) is not None:
        settings.append(setting)
        search.tell(setting, *measure(setting))
    return settings


def noisy(task: TuningTask, seed: int, noise: float = 0.01) -> Callable[[Setting], tuple[float | None, float | None]]:
    """Measures a task: energy and time with noise, nothing where the sweep has no measurement."""
    random = np.random.default_rng(seed)

    def measure(setting: Setting) -> tuple[float | None, float | None]:
        index, factors = task.index(setting), np.exp(noise * random.standard_normal(2))
        if math.isnan(task.time_s[index]):
            return None, None
        return float(task.energy_j[index] * factors[0]), float(task.time_s[index] * factors[1])

    return measure


def test_the_least_energy_within_the_bound_is_found() -> None:
    search = Search([LIMIT, BATCH], TimeBound(max_time_s=0.0100), noise=0.001)
    told(search, 14, service)
    grid = [{"power_limit_w": watts, "batch": batch} for watts in LIMIT.values for batch in BATCH.values]
    least = min(service(setting)[0] for setting in grid if service(setting)[1] <= 0.0100)
    energy, time_s = service(search.answer())
    assert time_s <= 0.0100
    assert energy <= 1.02 * least


def test_trials_that_nobody_suggested_count_and_the_default_still_comes_first() -> None:
    search = Search([LIMIT, BATCH], TimeBound(max_slowdown=0.2))
    search.tell({"power_limit_w": 450.0, "batch": 4.0}, 1.0, 0.0090)
    assert search.answer() == search.default == search.suggest()
    search.tell(search.default, 2.0, 0.0080)
    assert search.bound_s == pytest.approx(0.0096)
    assert search.answer() == {"power_limit_w": 450.0, "batch": 4.0}


@pytest.mark.parametrize(
    ("bound", "noise", "longest_s"),
    [
        (TimeBound(max_time_s=1.10), 0.01, 1.10 * (1 - 0.02)),
        (TimeBound(max_time_s=1.10), 0.03, 1.10 * (1 - 0.06)),
        (TimeBound(max_slowdown=0.10), 0.01, 1.10 * (1 - 0.02 * math.sqrt(2))),
    ],
)
def test_an_answer_keeps_the_margin(bound: TimeBound, noise: float, longest_s: float) -> None:
    for factor, accepted in ((0.999, True), (1.001, False)):
        search = Search([BATCH], bound, noise=noise)
        search.tell({"batch": 4.0}, 2.0, 1.0)
        search.tell({"batch": 8.0}, 1.0, longest_s * factor)
        assert (search.answer() == {"batch": 8.0}) is accepted


def test_a_setting_that_is_measured_again_counts_with_its_mean_and_a_smaller_margin() -> None:
    search = Search([BATCH], TimeBound(max_time_s=1.0), noise=0.01)
    search.tell({"batch": 4.0}, 2.0, 0.9)
    search.tell({"batch": 8.0}, 1.0, 0.985)
    assert search.answer() == {"batch": 4.0}
    for _ in range(3):
        search.tell({"batch": 8.0}, 1.0, 0.985)
    assert search.answer() == {"batch": 8.0}
    search.tell({"batch": 8.0}, 1.0, 1.1)
    assert search.answer() == {"batch": 4.0}


def test_one_knob_with_one_value_is_the_default() -> None:
    search = Search([Knob("batch", (4.0,), 4.0)], TimeBound(max_slowdown=0.0))
    assert told(search, 9, service) == [{"batch": 4.0}]
    assert search.answer() == {"batch": 4.0}


def test_a_grid_too_large_to_list() -> None:
    knobs = [Knob(f"knob_{number}", tuple(float(value) for value in range(30)), 15.0) for number in range(16)]
    search = Search(knobs, TimeBound(max_slowdown=0.5))
    settings = told(search, 6, lambda setting: (1 + sum(setting.values()), 1.0))
    assert len({tuple(setting.values()) for setting in settings}) == 6


def test_settings_that_fail_are_avoided() -> None:
    def broken(setting: Setting) -> tuple[float | None, float | None]:
        return (None, None) if setting["batch"] > 4 else service(setting)

    search = Search([LIMIT, BATCH], TimeBound(max_slowdown=0.2), noise=0.001)
    settings = told(search, 24, broken)
    assert search.answer()["batch"] <= 4
    assert service(search.answer())[0] < service(search.default)[0]
    late = settings[8:]
    assert sum(setting["batch"] > 4 for setting in late) < 0.4 * len(late)  # 0.4: two of five batches


def test_without_the_default_only_a_stated_time_is_a_bound() -> None:
    absolute = Search([LIMIT, BATCH], TimeBound(max_time_s=0.0100))
    settings = told(absolute, 12, lambda setting: (None, None) if setting == absolute.default else service(setting))
    assert len(settings) == 12
    assert service(absolute.answer())[1] <= 0.0100
    relative = Search([LIMIT, BATCH], TimeBound(max_slowdown=0.2))
    relative.tell(relative.default, None, None)
    relative.tell({"power_limit_w": 450.0, "batch": 4.0}, *service({"power_limit_w": 450.0, "batch": 4.0}))
    assert relative.bound_s is None
    assert relative.answer() == relative.default
    relative.tell({"power_limit_w": 475.0, "batch": 4.0}, *service({"power_limit_w": 475.0, "batch": 4.0}))
    with pytest.raises(InputError, match=r"the default setting failed.*state the longest time"):
        relative.suggest()


def test_safe_begins_near_the_default_and_ends_where_all_others_are_over() -> None:
    for seed in range(6):
        search = Search([LIMIT, BATCH], TimeBound(max_slowdown=0.1), safe=True, seed=seed)
        for setting in told(search, 3, service)[1:]:
            assert abs(setting["power_limit_w"] - 700) <= NEAR * 500
            assert setting["batch"] == 4.0  # the next batches lie farther away than that
    search = Search(
        [Knob("batch", (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), 1.0)], TimeBound(max_slowdown=0.1), safe=True
    )
    settings = told(search, 7, lambda setting: (1.0, setting["batch"]))
    assert 3 <= len(settings) < 7


def test_a_prior_takes_the_place_of_random_trials() -> None:
    def prior(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        settings = [
            {"power_limit_w": LIMIT.values[round(20 * x)], "batch": BATCH.values[round(4 * y)]} for x, y in points
        ]
        energy, time_s = np.array([service(setting) for setting in settings]).T
        return np.log(energy), np.log(time_s)

    search = Search([LIMIT, BATCH], TimeBound(max_slowdown=0.3), noise=0.001, prior=prior)
    told(search, 2, lambda setting: (3 * service(setting)[0], 2 * service(setting)[1]))
    grid = [{"power_limit_w": watts, "batch": batch} for watts in LIMIT.values for batch in BATCH.values]
    bound_s = 1.3 * service(search.default)[1]
    least = min(service(setting)[0] for setting in grid if service(setting)[1] <= bound_s)
    assert service(search.answer())[0] == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Search([], TimeBound(max_slowdown=0.1)), "no knob"),
        (lambda: Search([BATCH, BATCH], TimeBound(max_slowdown=0.1)), "two knobs have one name"),
        (lambda: Search([Knob("batch", (), 1.0)], TimeBound(max_slowdown=0.1)), "the values of batch"),
        (lambda: Search([Knob("batch", (2.0, 1.0), 1.0)], TimeBound(max_slowdown=0.1)), "ascending"),
        (lambda: Search([Knob("batch", (math.nan,), 1.0)], TimeBound(max_slowdown=0.1)), "finite numbers"),
        (lambda: Search([Knob("batch", (1.0, 2.0), 3.0)], TimeBound(max_slowdown=0.1)), "the default of batch, 3"),
        (lambda: Search([BATCH], TimeBound(max_slowdown=0.1), noise=0.0), "the noise of a trial"),
        (lambda: TimeBound(), "state one of them"),
        (lambda: TimeBound(max_slowdown=0.1, max_time_s=1.0), "state one of them"),
        (lambda: TimeBound(max_slowdown=-0.1), "share of 0 or more, not -0.1"),
        (lambda: TimeBound(max_time_s=math.nan), "more than 0 s, not nan"),
        (lambda: Search([BATCH], TimeBound(max_slowdown=0.1)).tell({"batch": 3.0}, 1.0, 1.0), "batch 3 is none"),
        (lambda: Search([BATCH], TimeBound(max_slowdown=0.1)).tell({"tile": 3.0}, 1.0, 1.0), "tile 3"),
        (lambda: Search([BATCH], TimeBound(max_slowdown=0.1)).tell({"batch": 4.0}, 0.0, 1.0), "energy .* is 0"),
        (lambda: Search([BATCH], TimeBound(max_slowdown=0.1)).tell({"batch": 4.0}, 1.0, math.inf), "time .* is inf"),
        (
            lambda: Search([BATCH], TimeBound(max_slowdown=0.1)).tell({"batch": 4.0}, 1.0, 1.0, noise=math.nan),
            "noise of the trial at batch 4 is nan",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def regrets(tasks: list[TuningTask], seeds: int, trials: int, *, by_search: bool) -> Iterator[tuple[float, bool]]:
    """For each task and seed: regret of the answer after so many trials, and whether it holds the true bound."""
    for task in tasks:
        for seed in range(seeds):
            search = Search(task.knobs, task.bound, seed=seed)
            measure = noisy(task, seed)
            if by_search:
                told(search, trials, measure)
            else:
                shape = task.energy_j.shape
                drawn = np.random.default_rng(seed).permutation(task.energy_j.size)[: trials - 1].tolist()
                for index in [task.index(search.default), *(np.unravel_index(place, shape) for place in drawn)]:
                    setting = {knob.name: knob.values[at] for knob, at in zip(task.knobs, index, strict=True)}
                    search.tell(setting, *measure(setting))
            answer = task.index(search.answer())
            yield task.energy_j[answer] / task.least_j - 1, bool(task.time_s[answer] <= task.bound_s)


@needs_sweeps
def test_real_sweeps_little_regret_within_the_bound_and_ahead_of_random() -> None:
    files = sorted(POWER.glob("zeus_power_limits_*.csv.gz"))
    tasks = sample(sweeps(files), short=9)
    searched = list(regrets(tasks, count(60, short=8), 12, by_search=True))
    by_chance = list(regrets(tasks, count(60, short=8), 12, by_search=False))
    # Twice the noise leaves one answer in some hundred over the bound: `whorl tune` measures it again.
    assert sum(not holds for _, holds in searched) <= 1 + len(searched) // 150
    assert np.median([regret for regret, _ in searched]) < 0.03
    assert np.median([regret for regret, _ in searched]) < 0.6 * np.median([regret for regret, _ in by_chance])


@pytest.mark.long
def test_simulated_services_little_regret_within_the_bound() -> None:
    searched = list(regrets(services(), count(20, short=6), 16, by_search=True))
    assert all(holds for _, holds in searched)
    assert np.median([regret for regret, _ in searched]) < 0.03
    assert np.mean([regret < 0.03 for regret, _ in searched]) >= 0.8


def test_it_runs_where_numpy_is_all_there_is() -> None:
    code = (
        "import sys; before = set(sys.modules); import whorl.analysis.tuning.search, whorl.analysis.tuning.sweep\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"numpy", "whorl"}


def surface(points: np.ndarray) -> np.ndarray:
    """Quick along the first axis, slow along the second, the same along the third."""
    return np.asarray(np.sin(9 * points[:, 0]) + 0.3 * points[:, 1])


def test_predictions_are_those_of_scikit_learn_with_the_same_kernel() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    random = np.random.default_rng(1)
    points, elsewhere = random.random((14, 3)), random.random((200, 3))
    values = surface(points) + 0.05 * random.standard_normal(14)
    process = Process(noise=0.05).fit(points, values)
    mean, sd = process.predict(elsewhere)
    assert set(process.lengths.tolist()) <= set(LENGTHS)

    kernel = Matern(process.lengths, nu=2.5)
    alternative = GaussianProcessRegressor(kernel, alpha=(0.05 / values.std()) ** 2, optimizer=None)
    alternative.fit(points, (values - values.mean()) / values.std())
    other_mean, other_sd = alternative.predict(elsewhere, return_std=True)
    np.testing.assert_allclose(mean, values.mean() + values.std() * other_mean, atol=1e-8)
    amplitudes = sd / other_sd
    np.testing.assert_allclose(amplitudes, amplitudes[0], rtol=1e-6)


def test_it_learns_which_axis_matters_and_how_sure_it_is() -> None:
    random = np.random.default_rng(2)
    points, elsewhere = random.random((40, 3)), random.random((500, 3))
    process = Process(noise=0.01).fit(points, surface(points) + 0.01 * random.standard_normal(40))
    assert process.lengths[0] < process.lengths[2]
    mean, sd = process.predict(elsewhere)
    errors = np.abs(mean - surface(elsewhere))
    assert np.median(errors) < 0.1  # of values with a standard deviation of 0.7
    assert np.mean(errors < 2 * sd) > 0.9
