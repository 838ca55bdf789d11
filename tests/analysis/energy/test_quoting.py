"""A job on other models, under power caps and at another hour: against figures worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from whorl.analysis.energy.levels import medians
from whorl.analysis.energy.options import (
    NoQuote,
    Quote,
    QuotedWork,
    other_models,
    with_pareto,
)
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


@pytest.mark.parametrize(
    ("job", "why"),
    [(replace(RAN, busy=None), NoQuote.NO_USE), (replace(RAN, j=None), NoQuote.NO_ENERGY)],
)
def test_what_is_not_known_of_the_job_is_said(job: QuotedWork, why: NoQuote) -> None:
    quotes = other_models(job, known(), SENSOR_ERROR)
    assert {quote.reason for quote in quotes} == {why.meaning}
    assert all(quote.j is None and quote.s is None and not quote.pareto for quote in with_pareto(quotes))
