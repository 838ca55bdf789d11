"""A job on other models, under power caps and at another hour: against figures worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whorl.analysis.energy.levels import medians
from whorl.analysis.energy.options import (
    CAPS,
    PUBLISHED,
    Ground,
    NoQuote,
    Option,
    Quote,
    QuotedWork,
    as_it_is,
    caps,
    other_models,
    starts,
    unbeaten,
    usual_gpu,
    with_pareto,
)
from whorl.analysis.energy.settings import find_settings
from whorl.analysis.power_classes import Curve
from whorl.analysis.tuning.power_plan import Estimate
from whorl.store.power_sensors import SENSOR_ERROR

HOUR = 3600 * 10**9
WORKLOADS = {"gemm": "compute", "fma": "compute", "conv": "compute", "stream": "memory"}
JOULES = 200.0 * 3600
ENERGY = Estimate(JOULES, 190.0 * 3600, 210.0 * 3600)
RAN = QuotedWork("c", ("A100",), 1, Estimate(3600.0, 3600.0, 3600.0), 3600.0, ENERGY, 50.0 * 3600, 0.8, "compute",
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


def values(quote: Quote) -> tuple[float, float, float, float]:
    """Seconds, joules, grams and money."""
    assert quote.s is not None
    assert quote.j is not None
    assert quote.g is not None
    assert quote.cost is not None
    return quote.s.value, quote.j.value, quote.g.value, quote.cost


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_another_model_takes_its_share_of_the_busy_time_whatever_size_of_work_it_was_measured_with(size: float) -> None:
    [quote] = other_models(RAN, known(size=size), SENSOR_ERROR)
    assert (quote.reason, quote.choice, quote.source) == (None, "B200", "gemm")
    joules = BUSY_J * 1.5 / 2 + 0.2 * 3600 * 50 * 1.5
    assert values(quote) == pytest.approx((3600 * (0.8 / 2 + 0.2), joules, 100 * joules / JOULES, 2 * joules / JOULES))
    assert quote.j is not None
    # Nobody held the sensors of the two models together: the interval is at least as wide as boards differ.
    assert quote.j.low < 0.95 * joules < 1.05 * joules < quote.j.high


def test_grams_of_the_rest_of_the_node_follow_the_time() -> None:
    [quote] = other_models(replace(RAN, host_j=JOULES), known(), SENSOR_ERROR)  # half of the grams are of the host
    _, joules, grams, _ = values(quote)
    assert grams == pytest.approx(50 * joules / JOULES + 50 * (0.8 / 2 + 0.2))


def test_a_workload_that_was_not_measured_is_judged_by_three_of_its_kind_or_not_at_all() -> None:
    job = replace(RAN, workload=None)
    [quote] = other_models(job, known(), SENSOR_ERROR)
    assert values(quote)[0] == pytest.approx(3600 * (0.8 / 2 + 0.2))
    assert quote.source == "conv, fma, gemm"
    [few] = other_models(job, known(workloads=("gemm", "fma", "stream")), SENSOR_ERROR)
    assert few.j is None
    assert few.reason == "only fma, gemm was measured on A100 and on B200; to judge other work takes 3 workloads"
    [none] = other_models(replace(job, use="memory"), known(workloads=("gemm",)), SENSOR_ERROR)
    assert none.reason == "no workload like this was measured on A100 and on B200"


def test_an_idle_power_that_nobody_measured_widens_the_energy() -> None:
    [with_idle], [without] = (
        other_models(replace(RAN, busy=0.3), known(idle=idle), SENSOR_ERROR) for idle in (True, False)
    )
    assert width(without) > 1.2 * width(with_idle)


def test_gpus_that_were_never_seen_idle_drew_something_between_nothing_and_all_while_they_waited() -> None:
    known_idle, unknown = (
        other_models(replace(RAN, busy=0.3, idle_j=idle), known(faster=4.0), SENSOR_ERROR)[0]
        for idle in (JOULES / 4, None)
    )
    assert width(unknown) > width(known_idle)
    assert unknown.j is not None
    assert unknown.j.low < 1.5 / 4 * JOULES
    assert unknown.j.high > (0.3 * 1.5 / 4 + 0.7 * 1.5) * JOULES


def width(quote: Quote) -> float:
    assert quote.j is not None
    return quote.j.high - quote.j.low


def curve(family: str, load: float) -> Curve:
    """Under a cap below its load it takes load/cap times as long, and draws the cap."""
    shares = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    return Curve(family, "s", load, shares, np.maximum(1, load / shares), np.minimum(1, shares / load))


def base(*curves: Curve, models: pl.DataFrame | None = None) -> Ground:
    empty = pl.DataFrame()
    return Ground([], empty, empty, empty, empty, known() if models is None else models, curves)


def test_a_cap_acts_on_the_busy_time_and_energy_with_the_error_of_the_prediction() -> None:
    found = caps(RAN, base(*(curve(f"w{number}", RAN.load + 0.01 * (number - 3)) for number in range(7))), None)
    assert len(found) == len(CAPS)
    assert found[0].choice == "225 W (90 %)"
    half = next(quote for quote in found if quote.choice.startswith("125 W"))
    slower = 3600 * (0.8 * RAN.load / 0.5 + 0.2)
    assert half.s is not None
    assert half.s.low < slower < half.s.high
    assert half.n == 7 + PUBLISHED.workloads
    by_published = caps(RAN, base(), None, shares=(0.5,))[0]
    assert by_published.s is not None
    assert by_published.source == "published trainings"
    assert abs(half.s.value - slower) < abs(by_published.s.value - slower)
    assert by_published.s.value < half.s.value
    assert 0.5 < width(by_published) / 2 / (0.25 * JOULES) < 1  # some +-20 %, and not the spread of any work


def test_workloads_of_the_same_use_say_what_a_cap_does_where_there_are_some() -> None:
    slow, steady = curve("fma", 0.9), replace(curve("stream", 0.9), time=np.ones(7))
    of_compute, of_memory = (
        caps(replace(RAN, use=use), base(slow, steady), None, shares=(0.5,))[0] for use in ("compute", "memory")
    )
    assert (of_compute.source, of_memory.source) == ("fma, published trainings", "stream, published trainings")
    assert values(of_memory)[0] < values(of_compute)[0]


def test_a_cap_far_above_the_power_changes_nothing() -> None:
    [quote] = caps(replace(RAN, limit_w=2000.0), base(), None, shares=(0.5,))
    assert values(quote)[:2] == pytest.approx((3600, JOULES), rel=1e-3)


@pytest.mark.parametrize(
    ("job", "why"),
    [(replace(RAN, busy=None), NoQuote.NO_USE), (replace(RAN, j=None), NoQuote.NO_ENERGY)],
)
def test_what_is_not_known_of_the_job_is_said(job: QuotedWork, why: NoQuote) -> None:
    quotes = [*other_models(job, known(), SENSOR_ERROR), *caps(job, base(), None)]
    assert {quote.reason for quote in quotes} == {why.meaning}
    assert all(quote.j is None and quote.s is None and not quote.pareto for quote in with_pareto(quotes))


def test_a_job_on_several_models_or_without_a_limit_has_no_such_quotes() -> None:
    [quote] = other_models(replace(RAN, models=("A100", "V100")), known(), SENSOR_ERROR)
    assert quote.reason == NoQuote.SEVERAL_MODELS.meaning
    [unlimited] = caps(replace(RAN, limit_w=None), base(), None)
    assert unlimited.reason == NoQuote.NO_LIMIT.meaning


def test_the_usual_gpu_is_the_job_without_its_excess() -> None:
    row = {"excess_s": 360.0, "excess_low_s": 180.0, "excess_high_s": 540.0, "excess_j": 72e3, "excess_low_j": -7e3,
           "excess_high_j": 140e3, "compared": 64}  # fmt: skip
    quote = usual_gpu(RAN, row)
    assert quote.s == Estimate(3240.0, 3060.0, 3420.0)
    assert values(quote)[1] == JOULES - 72e3
    assert usual_gpu(RAN, row | {"excess_s": None}).reason == NoQuote.NO_LEVEL.meaning


def test_the_greenest_hour_changes_the_grams_alone(tmp_path: Path) -> None:
    lines = [f"2026-11-{2 + hour // 24:02}T{hour % 24:02}:00Z,{100 if hour % 24 == 3 else 400}" for hour in range(60)]
    (tmp_path / "grid.csv").write_text("time,g_per_kwh\n" + "\n".join(lines) + "\n")
    (tmp_path / "energy.toml").write_text('zone = "DE"\nintensity = { file = "grid.csv", zone = "DE" }\n')
    settings = find_settings(tmp_path, None)
    noon = 1_793_620_800 * 10**9  # 2026-11-02 12:00
    now, best = starts(RAN, settings, noon, noon + 24 * HOUR)
    assert best.start_ns == noon + 15 * HOUR
    assert (best.s, best.j) == (RAN.s, RAN.j)
    assert now.g is not None
    assert best.g is not None
    assert (now.g.value, best.g.value) == pytest.approx((0.2 * 400, 0.2 * 100))
    assert best.g.low == pytest.approx(0.95 * best.g.value)  # as the energy
    with_host, _ = starts(replace(RAN, host_j=JOULES), settings, noon, noon + 24 * HOUR)
    assert with_host.g is not None
    assert with_host.g.value == pytest.approx(2 * 0.2 * 400)  # of the node, as those of all other options
    assert with_host.j == now.j
    [late] = starts(RAN, settings, noon, noon + HOUR // 2)
    assert late.reason == NoQuote.DEADLINE.meaning


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=12))
def test_a_point_is_marked_unless_another_one_beats_it(points: list[tuple[int, int, int]]) -> None:
    of = np.array(points, dtype=float).reshape(-1, 3)
    beaten = [bool(((of <= point).all(axis=1) & (of < point).any(axis=1)).any()) for point in of]
    assert unbeaten([None, *points]) == [False, *(not known for known in beaten)]
    assert unbeaten([(1, 5), (2, 4), (3, 4), None, (1, 5)]) == [True, True, False, False, True]


def test_grams_count_only_where_every_option_has_them() -> None:
    def at(value: float) -> Estimate:
        return Estimate(value, value, value)

    first = Quote(Option.AS_IT_RAN, "", at(1.0), at(1.0), at(9.0))
    second, third = replace(first, g=at(5.0)), Quote(Option.CAP, "", at(2.0), at(2.0))
    assert [quote.pareto for quote in with_pareto([first, second])] == [False, True]
    assert [quote.pareto for quote in with_pareto([first, second, third])] == [True, True, False]
    assert as_it_is(RAN).j == RAN.j
