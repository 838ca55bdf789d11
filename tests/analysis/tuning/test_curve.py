"""A workload's own curve over power caps: made runs whose truth is known, and Zeus's sweeps with a limit left out."""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from whorl.analysis.tuning.curve import CappedRuns, OwnCurve, own_curve
from whorl.analysis.tuning.search import FloatArray, TimeBound
from whorl.analysis.tuning.sweep import SweepFile, choose, gpu_spread_pct, lowest_within, read_sweeps
from whorl.errors import InputError
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


# -- sweep -------------------------------------------------------------------------------------------------------------
# Sweeps that were measured already: the choices in the tables of Zeus, and what a file can be.


DATA = Path(__file__).parents[4] / "shared" / "data"
needs_zeus = pytest.mark.skipif(not DATA.is_dir(), reason=f"the files of Zeus are not at {DATA}")
HEAD = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"
Table = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    def written(*rows: str, head: str = HEAD) -> Path:
        path = tmp_path / "sweep.csv"
        path.write_text("\n".join([head, *rows]) + "\n")
        return path

    return written


def zeus(gpu: str) -> SweepFile:
    return read_sweeps(DATA / "power" / f"zeus_power_limits_{gpu}.csv.gz")


@needs_zeus
def test_zeus_rule_takes_what_zeus_takes_in_all_120_sweeps() -> None:
    with gzip.open(DATA / "tune" / "zeus_choices.csv.gz", "rt") as file:
        published = list(csv.DictReader(file))
    sweeps = {
        (gpu, *vars(sweep.workload).values(), sweep.batch_sizes[0]): sweep
        for gpu in ("v100", "rtx6000")
        for sweep in zeus(gpu).sweeps
    }
    assert len(published) == len(sweeps) == 120
    for row in published:
        key = (row["gpu"], None, row["dataset"], row["network"], row["optimizer"], float(row["batch_size"]))
        sweep = sweeps[key]
        top_s, top_j = sweep.times_s[sweep.default], sweep.energies_j[sweep.default]
        for factor in (1.0, 1.02, 1.05, 1.1, 1.2, 1.5):
            place = lowest_within(sweep, factor * top_s)
            assert place is not None
            assert sweep.settings[place] == float(row[f"slow_{factor}"]), f"{key}: {factor}"
        for column, factor in (("saved_pct_slow_1p05", 1.05), ("saved_pct_slow_1p1", 1.1)):
            place = lowest_within(sweep, factor * top_s)
            assert place is not None
            assert 100 * (1 - sweep.energies_j[place] / top_j) == pytest.approx(float(row[column]), abs=6e-4)
        assert sweep.energies_j.min() == pytest.approx(float(row["energy_j_best"]), abs=6e-4)
        assert top_j == pytest.approx(float(row["energy_j_top"]), abs=6e-4)
        assert bool(np.any(np.diff(sweep.times_s) > 0)) == (row["nonmonotone"] == "1")


@needs_zeus
def test_the_least_energy_within_a_bound_beats_zeus_rule() -> None:
    choices = [choice for gpu in ("v100", "rtx6000") for choice in choose(zeus(gpu).sweeps, TimeBound(0.05))]
    savings_pct = [choice.saved_pct(choice.chosen) or 0.0 for choice in choices]
    rule = [choice.saved_pct(choice.zeus) or 0.0 for choice in choices]
    assert median(savings_pct) == pytest.approx(8.96, abs=0.005)
    assert median(rule) == pytest.approx(8.70, abs=0.005)
    assert sum(saved < 0 for saved in rule) == 10
    assert all(a >= max(b, 0.0) for a, b in zip(savings_pct, rule, strict=True))
    assert all((choice.slower_pct(choice.chosen) or 0.0) <= 5.0 + 1e-9 for choice in choices)


@needs_zeus
def test_the_gpus_of_a_job_differ_as_published() -> None:
    ranges = {"A40_resnet18_gpu0123": (2.2, 7.1), "V100_resnet50_gpu01": (0.4, 2.3)}
    for name, (low, high) in ranges.items():
        file = read_sweeps(DATA / "tune" / f"zeus_profile_{name}.csv.gz")
        (sweep,) = file.sweeps
        spread = gpu_spread_pct(sweep)
        assert spread is not None
        assert (spread.min(), spread.max()) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))
        assert file.knob == "power_limit_w"
        assert sweep.gpu_energies_j is not None
        assert sweep.energies_j == pytest.approx(sweep.gpu_energies_j.sum(axis=1))


def test_columns_are_known_by_several_names_in_any_order(table: Table, tmp_path: Path) -> None:
    plain = read_sweeps(table("d,n,8,sgd,200,10,100", "d,n,8,sgd,100,20,40"))
    other_table = tmp_path / "other.csv"
    other_table.write_text("Energy (J);latency_ms;SM clock MHz\n800;20000;900\n1000;10000;1400\n")
    clocks = read_sweeps(other_table)
    assert clocks.knob == "sm_clock_mhz"
    assert clocks.sweeps[0].energies_j == pytest.approx(plain.sweeps[0].energies_j)
    assert clocks.sweeps[0].times_s == pytest.approx(plain.sweeps[0].times_s)
    assert math.isnan(clocks.sweeps[0].batch_sizes[0])
    other_table.write_text(",model,batch,power_limit_w,limit,time_s,energy_j\n0,a,8,100,3,20,800\n1,b,8,100,3,30,900\n")
    assert [(sweep.workload.network, sweep.settings.tolist()) for sweep in read_sweeps(other_table).sweeps] == [
        ("a", [100]), ("b", [100])
    ]  # fmt: skip


def test_rows_of_one_setting_count_with_their_median_and_blank_ones_do_not(table: Table) -> None:
    rows = [f"d,n,8,sgd,{limit},{time},100" for limit, times in ((200, (9, 10, 50)), (100, (20,))) for time in times]
    file = read_sweeps(table(*rows, "d,n,8,sgd,150,,90", "", "d,n,8,sgd,50,NaN,90", "d,n,16,sgd,100,9,50"))
    assert file.sweeps[0].times_s.tolist() == [20, 10]
    assert file.sweeps[0].runs.tolist() == [1, 3]
    assert (file.blank_rows, file.gaps) == (2, 1)


@pytest.mark.parametrize(("rows", "sentence"), [
    (["d,n,8,sgd,200,ten,100"], "line 2: time_per_epoch is 'ten'"),
    (["d,n,8,sgd,200,10,100", "d,n,8,sgd,100,-1,100"], "line 3: time_per_epoch is '-1'"),
    ([f"d,n,8,sgd,{limit},{time},9" for limit in (1, 2) for time in (9, 70)], "several times for a setting, from 9 to"),
    (["d,n,8,sgd,200,10,inf"], "line 2: average_power is 'inf'"),
    (["d,n,8,sgd,200,1e200,1e200"], "line 2: an energy of inf J is out of range"),
    (["d,n,8,sgd,0,10,100"], "line 2: power_limit is '0'"),
    (["d,n,,sgd,200,10,100"], "line 2: batch_size is ''"),
    (["d,n,8,sgd,200,10"], "line 2: 6 columns"),
    (["d,n,8,sgd,200,,"], "no row with a time and an energy"),
    ([], "no row with a time and an energy"),
])  # fmt: skip
def test_a_wrong_row_is_named(table: Table, rows: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_sweeps(table(*rows))


@pytest.mark.parametrize(("head", "sentence"), [
    ("power_limit,time_s", "a sweep needs a column of settings"),
    ("time_s,energy_j", "a sweep needs a column of settings"),
    ("power_limit,limit_w,time_s,energy_j", "power_limit and limit_w are both power_limit_w"),
    ("limit_w,time_s,time_s,energy_j", "time_s and time_s are both time_s"),
    ("limit_w,sm_clock,time_s,energy_j", "limit_w and sm_clock are both settings, and a sweep is of one"),
    ("power_limit,duration_minutes,energy_j", "a sweep needs a column of settings"),
    ("window_name,time_s,energy_j", "window_name is 'sgd', which is no number above 0"),
])  # fmt: skip
def test_a_wrong_head_is_named(table: Table, head: str, sentence: str) -> None:
    row = ",".join("sgd" if name == "window_name" else "1" for name in head.split(","))
    with pytest.raises(InputError, match=sentence):
        read_sweeps(table(row, head=head))


def test_a_wrong_file_is_named(table: Table, tmp_path: Path) -> None:
    path = table("d,n,8,sgd,200,10,100")
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(path.read_bytes())[:-9])
    for content, sentence in ((b"", "has the columns none"), (b"\x28\xb5\x2f\xfd\x00\xff", "is no CSV file")):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            read_sweeps(tmp_path / "file")
    for name, sentence in (
        ("torn.csv.gz", "cut off or damaged"),
        ("absent", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_sweeps(tmp_path / name)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_sweeps(packed).sweeps) == 1, "told by its content, not by its name"
