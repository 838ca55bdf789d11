"""Quotes of a workload before it has run, and of a job whose workload ran under caps: simulated GPUs, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import whorl
from whorl.analysis.energy.levels import medians
from whorl.analysis.energy.options import NoQuote, Quote, QuotedWork, other_models, with_pareto
from whorl.analysis.energy.quote import FutureJob, quote_workload, workload_options
from whorl.analysis.power_classes import own_runs
from whorl.analysis.tuning.power_plan import Estimate
from whorl.cli import cli
from whorl.cli.answers.measuring import measure
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.power_sensors import SENSOR_ERROR
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import ACCOUNTED, SITTING_S, job

LIMITS_W = (None, 630, 560, 490, 385)
"""Of an H100, whose default is 700 W; 60 % of it, 420 W, is what is predicted."""


def run(store: Path, *, limit_w: float | None = None, lock_mhz: float | None = None, **fleet: Any) -> None:
    measure(store, "gemm-fp32", backend="simulated", suite="quick", gpus=2, power_limit=limit_w, lock_clock=lock_mhz,
            **({"model": "H100"} | fleet))  # fmt: skip


@pytest.fixture(scope="module")
def measured(built_once: BuiltOnce) -> Path:
    """Two H100 under several limits, and locked clocks of which one draws less than 60 % of the limit. Job 7 ran the
    workload at the default limit."""

    def build(folder: Path) -> None:
        for limit_w in LIMITS_W:
            with pytest.MonkeyPatch.context() as patch:
                if limit_w is None:
                    patch.setenv("SLURM_JOB_ID", "7")
                run(folder, limit_w=limit_w)
        accounts = folder.parent / "workload-quotes-sacct.txt"
        accounts.write_text("\n".join([ACCOUNTED, job(7, "c001-1", SITTING_S, seconds=14, gpus=2), ""]))
        imported = ("--log", str(accounts), "--cluster", "simulated-H100-1", "--set", "gpus-per-node=2")
        result = CliRunner().invoke(cli, ["jobs", "import", "--store", str(folder), *imported])
        assert result.exit_code == 0, result.output
        run(folder, lock_mhz=1200)
        run(folder, lock_mhz=1600, limit_w=600)

    return built_once("workload-quotes", build)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GPUs of two models each, at the default limit alone."""
    store = tmp_path_factory.mktemp("few")
    run(store)
    run(store, model="V100")
    return store


def quoted(store: Path, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["energy", "quote", "--store", str(store), *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def failure(store: Path, *words: str) -> str:
    result = CliRunner().invoke(cli, ["energy", "quote", "--store", str(store), *words])
    assert result.exit_code != 0
    return str(result.exception if isinstance(result.exception, InputError) else result.output)


def test_a_cap_of_a_workload_is_quoted_within_ten_per_cent_and_the_truth_lies_in_it(
    measured: Path, tmp_path: Path
) -> None:
    document = quoted(measured, "--workload", "gemm-fp32", "--gpus", "1", "--set", "time=2h", "--cap", "60%")
    default, capped, _ = document["rows"]
    assert (default["option"], default["n"]) == ("default", 2)
    assert default["duration_s"] == pytest.approx(7200.0)
    assert (capped["what"], capped["basis"], capped["n"]) == ("420 W (60 %)", "gemm-fp32 itself", 14)
    for quote in (default, capped):
        assert (quote["high_j"] - quote["low_j"]) / 2 < 0.1 * quote["energy_j"]
    for limit_w in (None, 420):
        run(tmp_path / "truth", limit_w=limit_w)
    runs = own_runs(Store.open(tmp_path / "truth"), workload="gemm-fp32").sort("gpu", "cap_w")
    energy, time = (runs[name].to_numpy().reshape(2, 2) for name in ("energy_j", "time_s"))
    ratio = capped["energy_j"] / default["energy_j"]
    assert ratio == pytest.approx(float((energy[:, 0] / energy[:, 1]).mean()), rel=0.03)
    for slower in time[:, 0] / time[:, 1]:
        assert capped["duration_low_s"] <= 7200 * slower <= capped["duration_high_s"]


def test_energy_follows_the_gpus_and_grams_and_money_follow_the_energy(measured: Path, tmp_path: Path) -> None:
    settings = tmp_path / "energy.toml"
    settings.write_text(
        'zone = "XX"\npue = 1.5\ncurrency = "EUR"\nprice = 0.2\nhost_w = 100\n'
        '[[factor]]\nzone = "XX"\ng_per_kwh = 400\nsource = "test"\nyear = 2026\n'
    )
    words = ("--workload", "gemm-fp32", "--settings", str(settings), "--gpus")
    of_one, of_eight = (quoted(measured, *words, gpus)["rows"] for gpus in ("1", "8"))
    for single, eight in zip(of_one, of_eight, strict=True):
        if single["energy_j"] is None or single["option"] == "start":
            continue
        assert 8 * single["energy_j"] <= eight["energy_j"] < 8.3 * single["energy_j"]  # seven wait for the slowest
        kwh = 1.5 * (single["energy_j"] + 100 * single["duration_s"]) / 3.6e6
        assert single["co2e_g"] == pytest.approx(400 * kwh)
        assert single["cost"] == pytest.approx(0.2 * kwh)
        assert eight["duration_s"] > single["duration_s"]
    whats = [row["what"] for row in of_one if row["option"] == "cap"]
    assert whats == ["630 W (90 %)", "560 W (80 %)", "490 W (70 %)", "420 W (60 %)", "350 W (50 %)"]


def test_what_cannot_be_quoted_is_said_with_what_to_do(measured: Path, few: Path) -> None:
    assert "whorl tune gemm-fp16 --store" in failure(measured, "--workload", "gemm-fp16")
    assert "name one of --job and --workload" in failure(measured)
    assert "name one of --job and --workload" in failure(measured, "--job", "1", "--workload", "gemm-fp32")
    assert "--gpus works only with --workload" in failure(measured, "--job", "1", "--gpus", "2")
    assert "--since works only with --job" in failure(measured, "--workload", "gemm-fp32", "--since", "1d")
    assert "no run of gemm-fp32 at the default power limit on B200" in failure(
        measured, "--workload", "gemm-fp32", "--set", "model=B200"
    )
    with pytest.raises(InputError, match="share of the limit"):
        whorl.energy_quote(measured, workload="gemm-fp32", cap=60)
    assert "choose one with --set model=NAME and --cluster" in failure(few, "--workload", "gemm-fp32")
    reply = whorl.energy_quote(few, workload="gemm-fp32", cluster="simulated-V100-1")
    assert any("from other workloads" in note for note in reply.notes)
    assert set(reply.frame.filter(pl.col("option") == "cap")["basis"]) == {"published trainings"}


@pytest.mark.long
def test_a_job_that_ran_is_quoted_from_the_curve_of_its_workload(measured: Path) -> None:
    rows = [row for row in quoted(measured, "--job", "7", "--cap", "60%")["rows"] if row["option"] == "cap"]
    assert [(row["what"], row["basis"], row["n"]) for row in rows] == [("420 W (60 %)", "gemm-fp32 itself", 14)]
    assert rows[0]["low_j"] < rows[0]["energy_j"] < rows[0]["high_j"]


def half(quote: Any, figure: str) -> float:
    """Half of an interval, as a share of the figure."""
    estimate = getattr(quote, figure)
    return float((estimate.high - estimate.low) / 2 / estimate.value)


def test_a_quote_is_narrow_for_a_curve_wider_for_runs_alone_and_widest_for_a_class(measured: Path, few: Path) -> None:
    curve, runs, of_class = (
        quote_workload(Store.open(store), FutureJob(work, cap="60%", model="H100"))
        for store, work in ((measured, "gemm-fp32"), (few, "gemm-fp32"), (few, "compute"))
    )
    assert [quote.source for quote in (curve, runs, of_class)] == [
        "gemm-fp32 itself", "published trainings", "published trainings"
    ]  # fmt: skip
    assert half(curve, "j") < 0.1 < half(runs, "j") < 0.3 < half(of_class, "j") < 0.9
    assert half(curve, "s") < 0.08 < half(runs, "s") < 0.25
    assert runs.j is not None
    assert curve.j is not None
    assert runs.j.low < curve.j.value < runs.j.high


def test_the_hour_decides_the_grams(measured: Path, tmp_path: Path) -> None:
    lines = [f"2030-01-{1 + hour // 24:02}T{hour % 24:02}:00Z,{100 if hour % 24 == 3 else 400}" for hour in range(60)]
    (tmp_path / "grid.csv").write_text("time,g_per_kwh\n" + "\n".join(lines) + "\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = { file = "grid.csv", zone = "DE" }\n')
    noon = datetime(2030, 1, 1, 12)  # noqa: DTZ001 - UTC without zone, as times of a store
    hours: tuple[Any, ...] = ("now", "greenest", datetime(2030, 1, 2, 4, tzinfo=timezone(timedelta(hours=1))))
    jobs = (FutureJob("gemm-fp32", hour=hour) for hour in hours)
    now, best, third = (quote_workload(Store.open(measured), job, settings=settings, now=noon) for job in jobs)
    for quote, g_per_kwh in ((now, 400), (best, 100), (third, 100)):
        assert quote.j is not None
        assert quote.g is not None
        assert quote.g.value == pytest.approx(g_per_kwh * quote.j.value / 3.6e6, rel=1e-3)
        assert quote.g.low < quote.g.value < quote.g.high
    assert best.start_ns == third.start_ns


@pytest.mark.long(short=3)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workload": "nothing"}, "no run of nothing at the default power limit"),
        ({"gpus": 0}, "at least one GPU, not 0"),
        ({"gpus": 200_000}, "at most 100,000 GPUs, not 200,000"),
        ({"gpus": []}, "at least one GPU"),
        ({"gpus": ["nowhere"]}, "nowhere"),
        ({"cap": 900}, "at most the default limit, 700 W, not 900"),
        ({"cap": "120%"}, "at most the default limit"),
        ({"cap": 10}, "the lowest power limit of these GPUs is 200 W"),
        ({"cap": "low"}, "a power cap is in W"),
        ({"hour": "noon"}, '"now" or "greenest", not'),
        ({"hour": datetime(2020, 1, 1, tzinfo=UTC)}, "is past"),
        ({"hour": datetime(2099, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"time_s": 0}, "not 0 s"),
        ({"workload": "memory"}, "no power of memory work"),
    ],
)
def test_what_cannot_be_is_one_sentence(measured: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        quote_workload(Store.open(measured), FutureJob(**{"workload": "gemm-fp32"} | options))


def test_caps_below_the_lowest_limit_are_no_options(measured: Path) -> None:
    store, job = Store.open(measured), FutureJob("gemm-fp32")
    shares = [quote.choice for quote in workload_options(store, job, shares=(0.9, 0.1)).quotes]
    assert not any("10 %" in choice for choice in shares)
    assert any("90 %" in choice for choice in shares)
    with pytest.raises(InputError, match="the lowest power limit of these GPUs is 200 W"):
        workload_options(store, job, shares=(0.1,))


# -- quoting -----------------------------------------------------------------------------------------------------------
# A job on other models, under power caps and at another hour: against figures worked by hand.


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
    ("job", "why"), [(replace(RAN, busy=None), NoQuote.NO_USE), (replace(RAN, j=None), NoQuote.NO_ENERGY)]
)
def test_what_is_not_known_of_the_job_is_said(job: QuotedWork, why: NoQuote) -> None:
    quotes = other_models(job, known(), SENSOR_ERROR)
    assert {quote.reason for quote in quotes} == {why.meaning}
    assert all(quote.j is None and quote.s is None and not quote.pareto for quote in with_pareto(quotes))
