"""The meter of a GPU: its energy against other integrals of the same readings, and what it does with bad readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.books import booked
from whorl.analysis.energy.meter import meters_of_readings
from whorl.analysis.energy.readings import covered
from whorl.analysis.energy.sensor import Problem, Readings, Reason
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.power_sensors import NORMAL_95, SENSOR_ERROR
from whorl.tests.analysis.energy.stored import Meter, build, meters

POWER = Path(__file__).resolve().parents[4] / "shared" / "data" / "power"
S = 10**9
NOON = 1_790_000_000 * S


def readings(power: object, every_s: float = 1.0, **columns: object) -> Readings:
    """Readings of a GPU with a limit of 400 W, one after another."""
    watts = np.asarray(power, float)
    n = len(watts)
    unknown = np.full(n, np.nan)
    usual = {
        "ts_ns": NOON + (np.arange(n) * every_s * S).astype(np.int64), "power_w": watts, "instant_w": unknown,
        "counter_j": unknown, "utilization": np.ones(n), "window_s": np.full(n, 0.025), "stuck": np.zeros(n, bool),
        "limit_w": np.full(n, 400.0),
    }  # fmt: skip
    return Readings(**(usual | columns))  # type: ignore[arg-type]


def whole(meter: Meter) -> dict[str, float]:
    return figures(meter, 0, (meter.last_ns - meter.first_ns) / S)


def figures(meter: Meter, began_s: float, ended_s: float) -> dict[str, float]:
    """Of a window, in s after the first reading."""
    window = meter.first_ns + (np.array([[began_s], [ended_s]]) * S).astype(np.int64)
    energies = meter.over(*window)
    assert energies.reason.tolist() == [""]
    return {name: float(values[0]) for name, values in vars(energies).items() if name != "reason"}


def reason(meter: Meter) -> str:
    return str(meter.over(np.array([NOON]), np.array([NOON + 40 * S])).reason[0])


def problems(meter: Meter) -> list[Problem]:
    return [note.problem for note in meter.notes]


def counted(power: object, every_s: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A counter that adds up that power."""
    watts = np.asarray(power, float)
    return 1000 + np.concatenate([[0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * every_s)])


def real(name: str) -> Path:
    if not (POWER / name).exists():
        pytest.skip(f"{POWER / name} is not there: real measurements are not part of the project")
    return POWER / name


# -- a real A100 ----------------------------------------------------------------------------------------------


@pytest.mark.long(short=1)
@pytest.mark.parametrize("load", ["square", "transient"])
def test_the_energy_of_a_real_stream_is_that_of_a_trapezoid(store: Store, load: str) -> None:
    path = real(f"nvidia_smi_a100_{load}_gpudata.csv.gz")
    import_file(store, path, Options(time_zone="Europe/London", gpu="a100"))
    (meter,) = meters(store)
    stream = pl.read_csv(path)
    at = stream["timestamp"].str.strip_chars().str.to_datetime("%Y/%m/%d %H:%M:%S%.3f").dt.epoch("ms").to_numpy() / 1e3
    loads = pl.read_csv(real(f"nvidia_smi_a100_{load}_timestamps.csv.gz"))["timestamp"].to_numpy() * 1000
    since = (np.array([loads[0], loads[-1]]) - meter.first_ns) / 1e9 + at[0]
    inside = (at > since[0]) & (at < since[1])
    times = np.concatenate([since[:1], at[inside], since[1:]])
    for column in (" power.draw [W]", " power.draw.instant [W]"):
        watts = stream[column].cast(pl.String).str.strip_chars().cast(pl.Float64).to_numpy()
        assert whole(meter)["energy_j"] == pytest.approx(np.trapezoid(watts, at), rel=1e-3)
        # A load edge is near its end: where readings belong in time counts.
        job = meter.over(loads[:1], loads[-1:]).energy_j[0]
        assert job == pytest.approx(np.trapezoid(np.interp(times, at, watts), times), rel=2e-3)


def test_the_interval_of_a_real_square_wave_holds_its_nominal_energy(store: Store) -> None:
    """The load says when its kernels ran; what they draw is known from a stream in which they ran for 6 s."""
    for load in ("square", "transient"):
        path = real(f"nvidia_smi_a100_{load}_gpudata.csv.gz")
        import_file(store, path, Options(time_zone="Europe/London", gpu=load))
    square, transient = meters(store)
    ran = pl.read_csv(real("nvidia_smi_a100_transient_timestamps.csv.gz"))["timestamp"].to_numpy() * 1000
    steady = transient.over(ran[1:2] + S, ran[2:3] - S)
    level = float(steady.energy_j[0]) / ((ran[2] - ran[1]) / 1e9 - 2)
    assert 185 < level < 195
    marks = pl.read_csv(real("nvidia_smi_a100_square_timestamps.csv.gz"))["timestamp"].to_numpy()[1:] * 1000
    edges = marks[::2]
    lasted = np.diff(edges) / 1e9
    work, pause = lasted[::2].sum(), lasted[1::2].sum()
    assert square.idle_w is not None
    nominal = work * level + pause * square.idle_w
    energy = square.over(edges[:1], edges[-1:])
    half = NORMAL_95 * float(energy.variance_j2[0]) ** 0.5
    low, high = (energy.energy_j[0] - energy.below_j[0] - half, energy.energy_j[0] + energy.above_j[0] + half)
    assert low < nominal < high, (low, nominal, high)
    assert (high - low) / 2 < 0.18 * nominal  # without the error of the board, which is the same in both streams
    read = energy.measured_j, energy.measured_s
    lower, upper = SENSOR_ERROR.ends(*read, SENSOR_ERROR.variance(*read))
    assert (upper - lower)[0] / 2 < 0.18 * nominal


# -- windows --------------------------------------------------------------------------------------------------


def steps(late_s: float, mean_s: float, every_s: float = 0.05, pause_s: float = 10) -> tuple[np.ndarray, np.ndarray]:
    """Readings of a GPU that pauses for so long in each 20 s, and then works: means of so long, told so late;
    utilisation is told 0.2 s late."""
    at, fine = np.arange(0, 50, every_s), np.arange(-5, 50, 0.01)
    works = ((fine % 20) >= pause_s) & (fine >= 0)
    upto = np.cumsum(np.where(works, 300.0, 50.0)) * 0.01
    ends = at - late_s
    watts = (np.interp(ends, fine, upto) - np.interp(ends - mean_s, fine, upto)) / mean_s
    return watts, np.interp(at - 0.2, fine, works.astype(float)).round()


@pytest.mark.parametrize(("late_s", "mean_s"), [(0.05, 0.1), (0.5, 0.1), (0.05, 1.0), (0.3, 1.0)])
def test_the_lag_of_readings_is_learnt_from_load_edges(late_s: float, mean_s: float) -> None:
    watts, used = steps(late_s, mean_s)
    unknown = np.full(len(watts), np.nan)
    meter = build("c", "g", readings(watts, 0.05, window_s=unknown, utilization=used))
    energy = figures(meter, 5, 15)  # a window with one load edge: a lag of 0.5 s would move 125 J
    assert abs(energy["energy_j"] - (5 * 50 + 5 * 300)) < min(40, 2 * energy["variance_j2"] ** 0.5 + energy["below_j"])


@pytest.mark.parametrize(("pause_s", "late_s"), [(18.4, 0.3), (18.2, 0.5)])
def test_pulses_shorter_than_an_edge_needs_tell_no_lag(pause_s: float, late_s: float) -> None:
    """The power after them is about that before: the area over their height would be any time."""
    watts, used = steps(late_s, 1.0, pause_s=pause_s)
    meter = build("c", "g", readings(watts, 0.05, window_s=np.full(len(watts), np.nan), utilization=used))
    assert figures(meter, 5, 38)["energy_j"] == pytest.approx(33 * 50 + 250 * (20 - pause_s), rel=0.01)


def test_a_mean_beside_another_reading_tells_what_the_sensor_sees() -> None:
    """Of boards since Ampere, A100 and A30 apart, the driver's power draw is a mean of 1 s, which misses nothing."""
    mean, now = steps(0.05, 1.0)[0], steps(0.05, 0.1)[0] + np.random.default_rng(1).normal(0, 1, 1000)
    unknown, half = np.full(len(mean), np.nan), np.full(len(mean), 0.5)
    alone, with_second = (
        whole(build("c", "g", readings(mean, 0.05, window_s=unknown, instant_w=instant, utilization=half)))
        for instant in (None, now)
    )
    assert with_second["variance_j2"] < 0.05 * alone["variance_j2"]
    old_driver = readings(now, 0.05, window_s=np.ones(len(now)), utilization=steps(0.05, 0.1)[1])  # it does not average
    energy = figures(build("c", "g", old_driver, model="NVIDIA GeForce RTX 3090"), 5, 15)
    assert abs(energy["energy_j"] - (5 * 50 + 5 * 300)) < 20


# -- gaps -----------------------------------------------------------------------------------------------------


def test_a_gap_is_bounded_and_told() -> None:
    at = NOON + np.concatenate([np.arange(100), np.arange(160, 300)]) * S
    power = np.concatenate([[60.0] * 50, [300.0] * 190])
    busy = (power > 100).astype(float)
    meter = build("c", "g", readings(power, ts_ns=at, utilization=busy))
    energy = whole(meter)
    assert energy["measured_s"] == pytest.approx(238)
    least, most = (energy["energy_j"] - energy["below_j"], energy["energy_j"] + energy["above_j"])
    measured = energy["measured_j"]
    assert least == pytest.approx(measured + 61 * 60, rel=0.01)
    assert most == pytest.approx(measured + 61 * 400, rel=0.01)
    (gap,) = meter.notes
    assert (gap.problem, gap.ended_ns - gap.began_ns) == (Problem.GAP, 61 * S)
    assert meter.idle_w == 60
    inside = meter.over(np.array([NOON + 100 * S]), np.array([NOON + 150 * S]))
    assert inside.reason.tolist() == [Reason.NO_TELEMETRY]
    mostly = meter.over(np.array([NOON + 80 * S]), np.array([NOON + 150 * S]))
    assert mostly.reason.tolist() == [Reason.GAPS]


def test_a_counter_covers_a_gap_of_the_power() -> None:
    power = np.full(300, 250.0)
    power[100:110] = 80.0
    places = np.r_[0:95, 160:300]
    meter = build("c", "g", readings(power[places], ts_ns=NOON + places * S, counter_j=counted(power)[places]))
    energy = whole(meter)
    assert energy["energy_j"] == pytest.approx(counted(power)[-1] - 1000)
    assert energy["measured_s"] == energy["counter_s"] == pytest.approx(299)
    assert energy["below_j"] < 1
    half = figures(meter, 0, 120)  # a window that ends within the gap is less certain
    assert half["below_j"] > 20 * 100
    true = counted(power)[120] - 1000
    assert half["energy_j"] - half["below_j"] < true < half["energy_j"] + half["above_j"]


# -- the counter ----------------------------------------------------------------------------------------------

STEADY = np.full(300, 200.0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: np.concatenate([c[:150], c[150:] - c[149]]), Problem.COUNTER_RESET),
        (lambda c: np.concatenate([c[:150], c[150:] - 3000]), Problem.COUNTER_BACK),
        (lambda c: np.concatenate([c[:150], c[150:] + 5e6]), Problem.COUNTER_JUMP),
        (lambda c: np.concatenate([c[:150], np.full(50, c[150]), c[200:] - c[200] + c[150]]), Problem.COUNTER_STALE),
        (lambda c: (c + 2**32 / 1000 - c[150]) % (2**32 / 1000), Problem.COUNTER_WRAP),
        (lambda c: np.where(np.arange(300) < 150, c, c[150]), Problem.COUNTER_STALE),
    ],
)
def test_a_counter_that_did_something_else_is_told_and_not_believed(change: object, problem: Problem) -> None:
    meter = build("c", "g", readings(STEADY, counter_j=change(counted(STEADY))))  # type: ignore[operator]
    energy = whole(meter)
    assert problems(meter) == [problem]
    assert energy["energy_j"] == pytest.approx(200 * 299, rel=1e-3)
    assert energy["counter_s"] > 140
    assert energy["below_j"] < 0.01 * energy["energy_j"]


def test_one_odd_value_of_a_counter_is_left_out() -> None:
    for odd in (0.0, 1e12, 2.0**64 / 1000, -1e-3):
        counter = counted(STEADY)
        counter[100] = odd
        meter = build("c", "g", readings(STEADY, counter_j=counter))
        assert whole(meter)["energy_j"] == pytest.approx(200 * 299)
        assert meter.notes == ()


def test_counter_and_power_that_disagree_are_told_and_both_in_the_interval() -> None:
    meter = build("c", "g", readings(STEADY, counter_j=counted(STEADY * 0.7)))
    (note,) = meter.notes
    assert note.problem == Problem.DISAGREE
    assert note.percent == pytest.approx(-30, abs=0.5)
    energy = whole(meter)
    assert energy["energy_j"] == pytest.approx(0.7 * 200 * 299)
    assert energy["energy_j"] + energy["above_j"] > 0.97 * 200 * 299
    assert energy["below_j"] < 0.01 * energy["energy_j"]


# -- the power ------------------------------------------------------------------------------------------------


def test_no_honest_figure_without_honest_readings() -> None:
    assert reason(build("c", "g", readings([]))) == Reason.NO_TELEMETRY
    assert reason(build("c", "g", readings([np.nan] * 50))) == Reason.NO_SENSOR
    assert reason(build("c", "g", readings([0.0] * 50))) == Reason.ZERO
    assert reason(build("c", "g", readings([100.0] * 50, stuck=np.ones(50, bool)))) == Reason.STUCK


def test_a_sensor_that_stands_still_while_the_gpu_works_is_found() -> None:
    used = np.where(np.arange(200) // 20 % 2, 1.0, 0.0)
    meter = build("c", "g", readings([46.19] * 200, utilization=used))
    assert reason(meter) == Reason.STUCK
    assert problems(meter) == [Problem.STUCK]
    still = build("c", "g", readings([46.19] * 200, utilization=np.zeros(200)))
    assert whole(still)["energy_j"] == pytest.approx(46.19 * 199)


def test_energy_of_which_nothing_is_known_may_be_all_that_a_board_can_draw() -> None:
    unknown = np.full(50, np.nan)
    meter = build("c", "g", readings([46.19] * 50, stuck=np.ones(50, bool), limit_w=unknown))
    energy = meter.over(np.array([NOON]), np.array([NOON + 40 * S]))
    assert (energy.energy_j[0], energy.above_j[0]) == (0, 40 * 1500)
    limited = build("c", "g", readings([46.19] * 50, stuck=np.ones(50, bool)))
    energy = limited.over(np.array([NOON]), np.array([NOON + 40 * S]))
    assert energy.energy_j[0] + energy.above_j[0] == pytest.approx(40 * 400)
    assert energy.energy_j[0] - energy.below_j[0] == pytest.approx(40 * 40)


def test_some_zero_watts_are_a_gap_and_a_counter_helps() -> None:
    power = STEADY.copy()
    power[100:120] = 0
    meter = build("c", "g", readings(power))
    assert problems(meter) == [Problem.ZERO]
    assert whole(meter)["measured_s"] == pytest.approx(299 - 21)
    assert whole(meter)["above_j"] == pytest.approx(21 * 200)
    helped = build("c", "g", readings(power, counter_j=counted(STEADY)))
    assert whole(helped)["energy_j"] == pytest.approx(200 * 299)
    assert whole(helped)["above_j"] < 1


def test_impossible_power_is_not_used() -> None:
    power = STEADY.copy()
    power[50] = 2_147_483.0
    meter = build("c", "g", readings(power))
    assert problems(meter) == [Problem.IMPOSSIBLE]
    assert whole(meter)["energy_j"] == pytest.approx(200 * 299)


# -- stores ---------------------------------------------------------------------------------------------------


def telemetry(gpu: str, power_mw: np.ndarray[tuple[int], np.dtype[np.int64]], **columns: object) -> pl.DataFrame:
    n = len(power_mw)
    usual = {
        "ts": pl.Series(NOON + np.arange(n) * S).cast(pl.Datetime("ns")), "cluster": "c", "gpu": gpu,
        "power_mw": pl.Series(power_mw, dtype=pl.Int32), "power_window_ms": pl.Series([25] * n, dtype=pl.Int32),
        "utilization": pl.Series([100] * n, dtype=pl.Int32),
    }  # fmt: skip
    return pl.DataFrame(usual | columns)


@pytest.mark.long
def test_minutes_of_pruned_telemetry_give_about_the_same_energy(store: Store) -> None:
    random = np.random.default_rng(5)
    power = np.repeat(random.integers(50_000, 400_000, 12), 50)
    counter = np.cumsum(power)
    rows = [telemetry("power", power), telemetry("counter", power, energy_mj=counter)]
    store.append({"telemetry": pl.concat(rows, how="diagonal").to_arrow()}, "one")
    before = [whole(meter) for meter in meters(store)]
    store.prune("1m", offline=True, now=NOON + 86_400 * S)
    assert len(store.arrow("telemetry")) == 0
    after = [whole(meter) for meter in meters(store)]
    for old, new in zip(before, after, strict=True):
        assert new["energy_j"] == pytest.approx(old["energy_j"], rel=0.01)
        assert new["measured_s"] == pytest.approx(old["measured_s"], abs=1)
    assert after[0]["counter_s"] == pytest.approx(599, abs=1)
    assert covered(store).select((pl.col("last") - pl.col("first")).dt.total_seconds()).item() in range(599, 661)
    assert booked(store).pieces["energy_j"].sum() == pytest.approx(sum(piece["energy_j"] for piece in before), rel=0.01)
    assert after[1]["variance_j2"] > before[1]["variance_j2"]


def test_gpus_metered_together_are_as_alone() -> None:
    random = np.random.default_rng(7)
    groups = []
    for number in range(12):
        busy = np.arange(200) % (20 + number) < 12
        watts = np.where(busy, 250.0 + 10 * number, 60.0) + random.normal(0, 1, 200)
        watts[40:90] = np.where(number == 3, 0.0, watts[40:90])
        counter = counted(watts) if number % 2 else np.full(200, np.nan)
        counter[100:] -= np.where(number == 5, counter[100], 0.0)
        instant = watts + random.normal(0, 3, 200) if number == 6 else np.full(200, np.nan)
        if number == 9:
            watts[60:75] = counter[60:75] = np.nan
        every_s = 0.1 if number in (2, 4) else 1.0
        used = np.where(busy, 0.7 if number == 8 else 1.0, 0.0)
        groups.append(readings(watts, every_s, counter_j=counter, instant_w=instant, utilization=used))
    columns: dict[str, Any] = {
        name: None if values is None else np.stack([getattr(alone, name) for alone in groups])
        for name, values in vars(groups[0]).items()
    }
    names, models = [("c", f"G{number}") for number in range(12)], ["A100-SXM4-80GB", "GH200 480GB", None] * 4
    together = meters_of_readings(names, Readings(**columns), [None] * 12, models=models, events=[[]] * 12)
    for number, alone in enumerate(groups):
        meter = build(*names[number], alone, model=models[number])
        began, ended = NOON + np.sort(random.integers(-5 * S, 210 * S, (2, 30)), axis=0)
        assert together.gpus[number] == names[number]
        assert Meter(together, number).notes == meter.notes
        assert together["idle_source"][number] == meter.among["idle_source"][0]
        of_these = vars(together.over(np.full(30, number), began, ended))
        for name, expected in vars(meter.over(began, ended)).items():
            if name == "reason":
                assert of_these[name].tolist() == expected.tolist()
            else:
                np.testing.assert_allclose(of_these[name], expected, rtol=1e-9, atol=1e-9)
