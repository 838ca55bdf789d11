"""A workload's own curve over power caps: made runs whose truth is known, and Zeus's sweeps with a limit left out."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from whorl.analysis.tuning.curve import CappedRuns, OwnCurve, own_curve
from whorl.analysis.tuning.search import FloatArray
from whorl.tests.sizes import sample

ZEUS = Path(__file__).parents[4] / "shared" / "data" / "power"
LEVELS = np.array([1.0, 0.95, 0.85, 0.75, 0.66, 0.55, 0.45, 0.37])


def truth(level: FloatArray, knee: float) -> tuple[FloatArray, FloatArray]:
    """ln time and ln energy: as without a cap above the knee, below it time rises and power falls."""
    below = np.maximum(0.0, np.log(knee / level))
    log_time = 0.3 * below + 0.25 * below**2
    return log_time, log_time - below


def made(*, knee: float = 1.0, gpus: int = 1, noise: float = 0.003, apart: float = 0.0, seed: int = 0) -> CappedRuns:
    """Runs at all levels on the first GPU, and at two of them on the others; GPUs have levels of their own."""
    random = np.random.default_rng(seed)
    rows = []
    for gpu in range(gpus):
        levels = LEVELS if gpu == 0 else LEVELS[[0, 2]]
        energy_level, time_level = random.normal(0, 0.05, 2)
        for level in [*levels, 1.0]:
            offset = 0.0 if level == 1 else random.normal(0, apart) if apart else 0.0
            log_time, log_energy = truth(np.array(level), knee)
            errors = random.normal(0, noise, 2)
            energy = np.exp(log_energy + offset + energy_level + errors[0])
            time = np.exp(log_time + offset + time_level + errors[1])
            rows.append((f"g{gpu}", level, energy, time))
    units, levels, energies, times = map(np.array, zip(*rows, strict=True))
    return CappedRuns(units, levels, energies, times, np.full(len(rows), knee))


def chosen(runs: CappedRuns, rows: NDArray[np.bool_]) -> CappedRuns:
    return CappedRuns(runs.unit[rows], runs.cap_w[rows], runs.energy_j[rows], runs.time_s[rows], runs.uncapped_w[rows])


def half_width(curve: OwnCurve, sd: float) -> float:
    return float(stats.t.ppf(0.975, curve.freedom)) * sd


def test_a_cap_between_those_that_were_measured_is_predicted_with_an_interval_that_holds_the_truth() -> None:
    held, widths = [], []
    for seed in range(60):
        curve = own_curve(made(gpus=3, apart=0.005, seed=seed))
        assert curve is not None
        effect = curve.effect(0.6)
        assert effect is not None
        random = np.random.default_rng(1000 + seed)
        (log_time, log_energy), offset = truth(np.array(0.6), 1.0), random.normal(0, 0.005)
        errors = random.normal(0, 0.003 * np.sqrt(2), 2)
        for value, expected, sd in (
            (log_energy + offset + errors[0], effect.log_energy, effect.energy_sd),
            (log_time + offset + errors[1], effect.log_time, effect.time_sd),
        ):
            widths.append(half_width(curve, sd))
            held.append(abs(value - expected) <= widths[-1])
    assert 0.93 <= np.mean(held) <= 1.0
    assert np.median(widths) < 0.05


def test_work_that_does_not_reach_its_limit_is_the_same_under_every_cap_above_what_it_draws() -> None:
    curve = own_curve(made(knee=0.6))
    assert curve is not None
    above, below = curve.effect(0.7), curve.effect(0.5)
    assert above is not None
    assert below is not None
    assert (above.log_time, above.log_energy) == (0.0, 0.0)
    assert half_width(curve, above.time_sd) < 0.03
    assert below.log_time == pytest.approx(float(truth(np.array(0.5), 0.6)[0]), abs=0.02)


def test_nothing_is_said_below_the_lowest_level_and_less_is_known_far_from_all_levels() -> None:
    runs = made()
    curve = own_curve(runs)
    assert curve is not None
    assert curve.effect(0.3) is None
    assert curve.effect(0.9, since_w=0.3) is None
    few = np.isin(runs.cap_w, [1.0, 0.95, 0.45, 0.37])
    sparse = own_curve(chosen(runs, few))
    assert sparse is not None
    near, far = curve.effect(0.65), sparse.effect(0.65)
    assert near is not None
    assert far is not None
    assert far.time_sd > 2 * near.time_sd


def test_a_gpu_without_a_run_at_the_default_limit_and_two_levels_are_not_enough() -> None:
    runs = made(gpus=3)
    assert own_curve(runs) is not None
    for chosen_runs in (runs.cap_w < 1, np.isin(runs.cap_w, [1.0, 0.85])):
        assert own_curve(chosen(runs, chosen_runs)) is None
    others = (runs.unit == "g0") | (runs.cap_w < 1)
    curve = own_curve(chosen(runs, others))
    assert curve is not None
    assert curve.runs == len(LEVELS) + 1


def test_a_change_between_two_caps_is_the_difference_of_their_changes() -> None:
    curve = own_curve(made(gpus=2))
    assert curve is not None
    high, low, step = curve.effect(0.85), curve.effect(0.55), curve.effect(0.55, since_w=0.85)
    assert high is not None
    assert low is not None
    assert step is not None
    assert step.log_time == pytest.approx(low.log_time - high.log_time)
    assert step.log_energy == pytest.approx(low.log_energy - high.log_energy)


def zeus_sweeps() -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Level, energy and time of each sweep of power limits, rising."""
    errors = []
    for model in ("v100", "rtx6000"):
        rows = defaultdict(list)
        with gzip.open(ZEUS / f"zeus_power_limits_{model}.csv.gz", "rt") as file:
            for row in csv.DictReader(file):
                key = tuple(row[name] for name in ("dataset", "network", "optimizer", "batch_size"))
                time_s = float(row["time_per_epoch"])
                rows[key].append((float(row["power_limit"]), time_s * float(row["average_power"]), time_s))
        for points in rows.values():
            limit, energy, time = np.array(sorted(points)).T
            errors.append((limit / limit[-1], energy, time))
    return errors


@pytest.mark.skipif(not ZEUS.is_dir(), reason="Zeus's sweeps are not beside the clone")
def test_a_limit_left_out_of_a_real_sweep_is_predicted_from_the_others() -> None:
    held, widths = [], []
    for level, energy, time in sample(zeus_sweeps(), short=12):
        for place in range(1, len(level) - 1):
            others = np.arange(len(level)) != place
            unit = np.full(len(level) - 1, "gpu")
            curve = own_curve(CappedRuns(unit, level[others], energy[others], time[others], np.ones(len(unit))))
            assert curve is not None
            effect = curve.effect(level[place])
            assert effect is not None
            for values, expected, sd in (
                (energy, effect.log_energy, effect.energy_sd), (time, effect.log_time, effect.time_sd)
            ):  # fmt: skip
                widths.append(half_width(curve, sd))
                held.append(abs(np.log(values[place] / values[-1]) - expected) <= widths[-1])
    assert np.mean(held) >= 0.9
    assert np.median(widths) < 0.1
