"""A job on other models, under power caps and at another hour: against figures worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whorl.analysis.energy.choices.models import medians
from whorl.analysis.energy.choices.quoting import (
    CAPS,
    NoQuote,
    Option,
    Quote,
    Ran,
    as_it_ran,
    caps,
    other_models,
    starts,
    usual_gpu,
    with_pareto,
)
from whorl.analysis.energy.settings import find_settings
from whorl.analysis.power_classes import Curve
from whorl.store.power_sensors import SENSOR_ERROR
from whorl.store.unbeaten import unbeaten

HOUR = 3600 * 10**9
WORKLOADS = {"gemm": "compute", "fma": "compute", "conv": "compute", "stream": "memory"}
JOULES = 200.0 * 3600
RAN = Ran("c", ("A100",), 1, 3600.0, 3600.0, JOULES, 190.0 * 3600, 210.0 * 3600, 50.0 * 3600, 0.8, "compute",
          "gemm", 250.0, 100.0, 2.0)  # fmt: skip
BUSY_J = 3600 * (200 - 0.2 * 50)


def known(faster: float = 2.0, hungrier: float = 1.5, *, size: float = 1.0, idle: bool = True,
          workloads: tuple[str, ...] = tuple(WORKLOADS)) -> pl.DataFrame:  # fmt: skip
    """Medians of A100 and of B200, which is so much faster, draws so much more, and ran works of another size."""
    rows, work = [], []
    for model, speed, power, works in (("A100", 1.0, 1.0, 1.0), ("B200", faster, hungrier, size)):
        for number in range(4):
            gpu = f"{model}-{number}"

            def row(figure: str, workload: str, value: float, model: str = model, gpu: str = gpu) -> dict[str, Any]:
                return {"cluster": "c", "gpu": gpu, "model": model, "class": WORKLOADS.get(workload, "power"),
                        "workload": f"{workload} [{model}]", "figure": figure, "value": value, "high": value * 1.003,
                        "n": 4, "sittings": 2}  # fmt: skip

            for workload in workloads:
                seconds = works / speed
                rows += [row("time", workload, seconds * 1e3), row("power", workload, 200 * power),
                         row("work_per_joule", workload, 1 / (seconds * 200 * power))]  # fmt: skip
                work.append({"cluster": "c", "workload": workload, "gpu": gpu, "work": 1e12 * works})
            if idle:
                rows.append(row("idle_power", "idle", 50 * power))
    return medians(pl.DataFrame(rows), pl.DataFrame(work))


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_another_model_takes_its_share_of_the_busy_time_whatever_size_of_work_it_was_measured_with(size: float) -> None:
    [quote] = other_models(RAN, known(size=size), SENSOR_ERROR)
    assert quote.reason is None
    assert quote.what == "B200"
    assert quote.time_s == pytest.approx(3600 * (0.8 / 2 + 0.2))
    waiting = 0.2 * 3600 * 50 * 1.5
    assert quote.energy_j == pytest.approx(BUSY_J * 1.5 / 2 + waiting)
    assert quote.basis == "gemm"
    assert quote.energy_j is not None
    assert quote.co2e_g == pytest.approx(100 * quote.energy_j / JOULES)
    assert quote.cost == pytest.approx(2 * quote.energy_j / JOULES)
    assert quote.low_j is not None
    assert quote.high_j is not None
    # Nobody held the sensors of the two models together: the interval is at least as wide as boards differ.
    assert quote.low_j < 0.95 * quote.energy_j < 1.05 * quote.energy_j < quote.high_j


def test_grams_of_the_rest_of_the_node_follow_the_time() -> None:
    job = replace(RAN, host_j=JOULES)  # half of the grams are of the host
    [quote] = other_models(job, known(), SENSOR_ERROR)
    assert quote.energy_j is not None
    assert quote.co2e_g == pytest.approx(50 * quote.energy_j / JOULES + 50 * (0.8 / 2 + 0.2))


def test_a_workload_that_was_not_measured_is_judged_by_three_of_its_kind_or_not_at_all() -> None:
    job = replace(RAN, workload=None)
    [quote] = other_models(job, known(), SENSOR_ERROR)
    assert quote.time_s == pytest.approx(3600 * (0.8 / 2 + 0.2))
    assert quote.basis == "conv, fma, gemm"
    [few] = other_models(job, known(workloads=("gemm", "fma", "stream")), SENSOR_ERROR)
    assert few.energy_j is None
    assert few.reason == "only fma, gemm was measured on A100 and on B200; to judge other work takes 3 workloads"
    [none] = other_models(replace(job, use="memory"), known(workloads=("gemm",)), SENSOR_ERROR)
    assert none.reason == "no workload like this was measured on A100 and on B200"


def test_an_idle_power_that_nobody_measured_widens_the_energy() -> None:
    [with_idle], [without] = (
        other_models(replace(RAN, busy=0.3), known(idle=one), SENSOR_ERROR) for one in (True, False)
    )
    assert without.energy_j is not None
    assert width(without) > 1.2 * width(with_idle)


def test_gpus_that_were_never_seen_idle_drew_something_between_nothing_and_all_while_they_waited() -> None:
    known_idle, unknown = (
        other_models(replace(RAN, busy=0.3, idle_j=idle), known(faster=4.0), SENSOR_ERROR)[0]
        for idle in (JOULES / 4, None)
    )
    assert width(unknown) > width(known_idle)
    least, most = (factor * JOULES for factor in (1.5 / 4, 0.3 * 1.5 / 4 + 0.7 * 1.5))
    assert unknown.low_j is not None
    assert unknown.high_j is not None
    assert unknown.low_j < least
    assert unknown.high_j > most


def width(quote: Quote) -> float:
    assert quote.low_j is not None
    assert quote.high_j is not None
    return quote.high_j - quote.low_j


def curve(family: str, load: float) -> Curve:
    """Under a cap below its load it takes load/cap times as long, and draws the cap."""
    shares = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    return Curve(family, "s", load, shares, np.maximum(1, load / shares), np.minimum(1, shares / load))


def test_a_cap_acts_on_the_busy_time_and_energy_with_the_error_of_the_prediction() -> None:
    load = BUSY_J / (3600 * 0.8) / 250.0
    found = caps(RAN, [curve(f"w{number}", load + 0.01 * (number - 3)) for number in range(7)])
    assert found[0].what == "225 W (90 %)"
    assert len(found) == len(CAPS)
    half = next(one for one in found if one.what.startswith("125 W"))
    slower = load / 0.5
    assert half.time_s == pytest.approx(3600 * (0.8 * slower + 0.2), rel=0.02)
    assert half.energy_j == pytest.approx(RAN.energy_j, rel=0.02)  # as much longer as it draws less
    assert half.time_low_s is not None
    assert half.time_high_s is not None
    assert half.time_low_s < 3600 * (0.8 * slower + 0.2) < half.time_high_s
    assert half.n == 7


def test_a_cap_without_evidence_has_no_figures() -> None:
    [none] = caps(RAN, [])
    assert none.reason == NoQuote.NO_CURVES.meaning
    assert {one.reason for one in caps(RAN, [curve("one", 0.8)])} == {NoQuote.ONE_CURVE.meaning}
    [unlimited] = caps(replace(RAN, limit_w=None), [curve("one", 0.8)])
    assert unlimited.reason == NoQuote.NO_LIMIT.meaning


@pytest.mark.parametrize(
    ("job", "why"),
    [(replace(RAN, busy=None), NoQuote.NO_USE), (replace(RAN, energy_j=None), NoQuote.NO_ENERGY)],
)
def test_what_is_not_known_of_the_job_is_said(job: Ran, why: NoQuote) -> None:
    quotes = [*other_models(job, known(), SENSOR_ERROR), *caps(job, [curve("one", 0.8), curve("two", 0.8)])]
    assert {one.reason for one in quotes} == {why.meaning}
    assert all(one.energy_j is None and one.time_s is None and not one.pareto for one in with_pareto(quotes))


def test_a_job_on_several_models_is_not_moved_to_another() -> None:
    [quote] = other_models(replace(RAN, models=("A100", "V100")), known(), SENSOR_ERROR)
    assert quote.reason == NoQuote.SEVERAL_MODELS.meaning


def test_the_usual_gpu_is_the_job_without_its_excess() -> None:
    row = {"excess_s": 360.0, "excess_low_s": 180.0, "excess_high_s": 540.0, "excess_j": 72e3, "excess_low_j": -7e3,
           "excess_high_j": 140e3, "compared": 64}  # fmt: skip
    quote = usual_gpu(RAN, row)
    assert (quote.time_s, quote.time_low_s, quote.time_high_s) == (3240.0, 3060.0, 3420.0)
    assert quote.energy_j == JOULES - 72e3
    assert usual_gpu(RAN, row | {"excess_s": None}).reason == NoQuote.NO_LEVEL.meaning


def test_the_greenest_hour_changes_the_grams_alone(tmp_path: Path) -> None:
    lines = [f"2026-11-{2 + hour // 24:02}T{hour % 24:02}:00Z,{100 if hour % 24 == 3 else 400}" for hour in range(60)]
    (tmp_path / "grid.csv").write_text("time,g_per_kwh\n" + "\n".join(lines) + "\n")
    (tmp_path / "energy.toml").write_text('zone = "DE"\nintensity = { file = "grid.csv", zone = "DE" }\n')
    settings = find_settings(tmp_path, None)
    noon = 1_793_620_800 * 10**9  # 2026-11-02 12:00
    now, best = starts(RAN, settings, noon, noon + 24 * HOUR)
    assert best.start_ns == noon + 15 * HOUR
    assert best.time_s == RAN.time_s
    assert best.energy_j == RAN.energy_j
    assert now.co2e_g == pytest.approx(0.2 * 400)
    assert best.co2e_g == pytest.approx(0.2 * 100)
    with_host, _ = starts(replace(RAN, host_j=JOULES), settings, noon, noon + 24 * HOUR)
    assert with_host.co2e_g == pytest.approx(2 * 0.2 * 400)  # of the node, as those of all other options
    assert with_host.energy_j == now.energy_j
    [late] = starts(RAN, settings, noon, noon + HOUR // 2)
    assert late.reason is not None
    assert "deadline" in late.reason


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=12))
def test_a_point_is_marked_unless_another_one_beats_it(points: list[tuple[int, int, int]]) -> None:
    of = np.array(points, dtype=float).reshape(-1, 3)
    beaten = [bool(((of <= one).all(axis=1) & (of < one).any(axis=1)).any()) for one in of]
    assert unbeaten([None, *points]) == [False, *(not one for one in beaten)]
    assert unbeaten([(1, 5), (2, 4), (3, 4), None, (1, 5)]) == [True, True, False, False, True]


def test_grams_count_only_where_every_option_has_them() -> None:
    first = Quote(Option.AS_IT_RAN, "", time_s=1.0, energy_j=1.0, co2e_g=9.0)
    second = Quote(Option.START, "", time_s=1.0, energy_j=1.0, co2e_g=5.0)
    third = Quote(Option.CAP, "", time_s=2.0, energy_j=2.0)
    assert [one.pareto for one in with_pareto([first, second])] == [False, True]
    assert [one.pareto for one in with_pareto([first, second, third])] == [True, True, False]
    assert as_it_ran(RAN).energy_j == RAN.energy_j
    assert math.isclose(RAN.error, 0.05)
