"""`whorl energy excess` and `quote`: figures again by plain SQL, and what people and programs see."""

from __future__ import annotations

import csv
import io
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from whorl import energy_quote
from whorl.cli import cli
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.cli.energy_answers import document, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.stores import new_store

pytestmark = pytest.mark.usefixtures("stores_stay_open")

BEGAN = 1_793_620_800 * 10**9  # 2026-11-02 12:00
SECOND = 10**9
GPUS = 8
SLOW = {3: 1.25}
"""By GPU, how many times as long it takes."""
LASTED_S = 90_000  # more than a day, so that a year can be told
STEP_S = 30

EXCESS = f"""
with energy as (
    select gpu, sum((watts + before) / 2 * {STEP_S}) as joules, count(*) * {STEP_S} as seconds
    from (
        select t.gpu, power_mw / 1e3 as watts, lag(power_mw) over (partition by t.gpu order by t.ts) / 1e3 as before
        from telemetry t join jobs_now j on j.gpu = t.gpu and t.ts >= j.began and t.ts <= j.ended
    )
    where before is not null group by gpu
), levels as (
    select gpu, figure, avg(ln(value) - middle) as x
    from (select *, median(ln(value)) over (partition by workload, figure) as middle from fingerprints_now)
    where class = 'compute' and workload is not null group by gpu, figure
)
select e.gpu, joules, joules * (1 - exp(w.x)) as excess_j, seconds * (1 - exp(-t.x)) as excess_s
from energy e join levels t on t.gpu = e.gpu and t.figure = 'time'
join levels w on w.gpu = e.gpu and w.figure = 'work_per_joule' order by gpu
"""
"""The work per joule has the other sign than energy."""


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:02}"


def fingerprint(gpu: int) -> list[dict[str, Any]]:
    rows = []
    for workload, watts in (("fma", 150.0), ("gemm", 220.0), ("conv", 200.0)):
        seconds = SLOW.get(gpu, 1.0) * (1 + 0.0005 * (gpu - 3.5))
        drawn = watts * (1 + 0.002 * (gpu % 3 - 1))
        figures = {"time": 1e3 * seconds, "power": drawn, "work_per_joule": 1 / (seconds * drawn)}
        rows += [
            {"cluster": "c", "gpu": uuid(gpu), "model": "A100", "class": "compute", "workload": workload,
             "figure": figure, "unit": "", "value": value, "low": value / 1.006, "high": value * 1.006, "n": 4,
             "sittings": 2, "made_at": BEGAN}
            for figure, value in figures.items()
        ]  # fmt: skip
    return rows


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> Path:
    """A store of eight GPUs that worked for a day, each for one job; one is slow."""

    def build(folder: Path) -> None:
        random, rows = np.random.default_rng(1), []
        at = np.arange(-3600, LASTED_S + 3600, STEP_S)
        for gpu in range(GPUS):
            works = (at >= 0) & (at <= LASTED_S)
            watts = np.where(works, 200.0 + random.normal(0, 4, len(at)), 50.0 + random.normal(0, 0.5, len(at)))
            rows.append(
                {"ts": BEGAN + at * SECOND, "cluster": np.full(len(at), "c"), "gpu": np.full(len(at), uuid(gpu)),
                 "power_mw": np.round(1e3 * watts).astype(int), "utilization": np.where(works, 100, 0),
                 "memory_utilization": np.where(works, 10, 0)}
            )  # fmt: skip
        telemetry = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        own = [
            {"cluster": "c", "gpu": uuid(gpu), "uuid": uuid(gpu), "node": f"n{gpu // 4}", "slot": gpu % 4,
             "model": "A100", "power_limit_mw": 250_000, "first_seen": BEGAN} for gpu in range(GPUS)
        ]  # fmt: skip
        jobs = [
            {"cluster": "c", "allocation": f"{gpu}@1", "job_id": str(4240 + gpu // 2), "gpu": uuid(gpu), "user": "ann",
             "node": f"n{gpu // 4}", "share": 1.0, "began": BEGAN, "ended": BEGAN + LASTED_S * SECOND,
             "recorded": BEGAN} for gpu in range(GPUS)
        ]  # fmt: skip
        told = [row for gpu in range(GPUS) for row in fingerprint(gpu)]
        tables: dict[str, dict[str, Any]] = {
            "telemetry": telemetry,
            "gpus": columns(own),
            "jobs": columns(jobs),
            "fingerprints": columns(told),
        }
        store = new_store(folder / "store")
        store.append({name: arrow_rows(name, of) for name, of in tables.items()}, "made")
        (folder / "store" / "energy.toml").write_text('currency = "EUR"\n[[price]]\nvalue = 0.25\n')

    return built_once("energy-choices", build) / "store"


@pytest.fixture(scope="module")
def excess(fleet: Path) -> dict[str, dict[str, Any]]:
    return {by: document("excess", "--store", str(fleet), "--by", by) for by in ("gpu", "node", "job")}


@pytest.mark.long
def test_the_excess_of_each_gpu_is_that_of_plain_sql(fleet: Path, excess: dict[str, dict[str, Any]]) -> None:
    found = excess["gpu"]
    assert found["schema"] == "whorl.energy/1"
    rows = {row["gpu"]: row for row in found["rows"]}
    for true in Store.open(fleet).sql(EXCESS).to_pylist():
        row = rows[true["gpu"]]
        # Before and after the job the GPU did nothing, which is in its energy and no excess of a job.
        assert row["excess_s"] == pytest.approx(true["excess_s"], rel=1e-6, abs=1e-3)
        assert row["excess_j"] == pytest.approx(true["excess_j"], rel=2e-3, abs=2e-3 * true["joules"])
        assert row["excess_low_j"] <= row["excess_j"] <= row["excess_high_j"]
        assert row["year_kwh"] == pytest.approx(row["excess_j"] / 3.6e6 * 365.25 * 86_400 / (LASTED_S + 7200 - STEP_S))
        assert row["excess_cost"] == pytest.approx(0.25 * row["excess_j"] / 3.6e6)
    shown = [row["name"] for row in found["rows"] if row["excess_s_shown"]]
    assert shown == ["n0/3"]
    assert found["rows"][0]["name"] == "n0/3"
    slow = found["rows"][0]
    assert slow["held_s"] == pytest.approx(LASTED_S * (1 - 1 / 1.25), rel=1e-2)  # GPU 2 of the same job


@pytest.mark.long
def test_gpus_nodes_and_jobs_have_the_same_excess_in_all(excess: dict[str, dict[str, Any]]) -> None:
    sums = {}
    for by, found in excess.items():
        sums[by] = [sum(row[name] for row in found["rows"]) for name in ("excess_j", "excess_s")]
        assert [found["totals"][0][name] for name in ("excess_j", "excess_s")] == pytest.approx(sums[by])
    assert sums["node"] == pytest.approx(sums["gpu"])
    assert sums["job"] == pytest.approx(sums["gpu"])
    assert excess["job"]["rows"][0]["job_id"] == "4241"


@pytest.mark.long
def test_people_read_which_gpus_cost_and_what_to_do_next(fleet: Path) -> None:
    result = whorl("excess", "--store", str(fleet))
    assert result.exit_code == 0
    assert "1 of 8 GPUs surely took longer than the median GPU of their model: 4.9" in result.stdout
    assert f"next: whorl explain n0/3 --store {fleet}" in result.stdout
    table = list(csv.DictReader(io.StringIO(whorl("excess", "--store", str(fleet), "--csv").stdout)))
    assert table[0]["name"] == "n0/3"
    assert float(table[0]["excess_s"]) == pytest.approx(18_000, rel=0.02)


@pytest.mark.long
def test_a_quote_has_the_job_and_the_median_gpu_and_says_what_is_missing(
    fleet: Path, excess: dict[str, dict[str, Any]]
) -> None:
    found = document("quote", "--store", str(fleet), "--job", "4241")
    rows = {row["option"]: row for row in found["rows"]}
    ran, usual = rows["as it ran"], rows["usual GPU"]
    [job] = document("--store", str(fleet), "--job", "4241")["rows"]
    for key in ("energy_j", "low_j", "high_j", "idle_j", "duration_s", "method", "cost"):
        assert ran[key] == job[key], key
    [more] = [row for row in excess["job"]["rows"] if row["job_id"] == "4241"]
    assert usual["energy_j"] == pytest.approx(ran["energy_j"] - more["excess_j"])
    assert usual["duration_s"] == pytest.approx(ran["duration_s"] - more["excess_s"] / 2)
    assert usual["low_j"] < usual["energy_j"] < usual["high_j"]
    assert usual["best"]
    assert rows["cap"]["energy_j"] is None
    assert "several power limits" in rows["cap"]["reason"]
    assert "deadline" in rows["start"]["reason"]
    said = whorl("quote", "--store", str(fleet), "--job", "4241", "--deadline", "3d").stdout
    assert "n/a: start: the settings name no zone" in said
    assert "n/a: cap: no workload was run under several power limits" in said
    assert "job 4241 on 2 GPUs of A100: busy 100 % of it, mostly compute" in said


def test_a_quote_of_the_same_store_is_the_same_to_the_last_digit(tmp_path: Path) -> None:
    at = BEGAN + np.arange(20) * SECOND
    gpus = [uuid(gpu) for gpu in range(GPUS)]
    telemetry = {"ts": np.tile(at, GPUS), "cluster": np.full(20 * GPUS, "c"), "gpu": np.repeat(gpus, 20),
                 "power_mw": np.full(20 * GPUS, 200_000), "utilization": np.repeat(np.arange(GPUS) * 13, 20),
                 "memory_utilization": np.repeat(np.arange(GPUS) * 7, 20)}  # fmt: skip
    jobs = [
        {"cluster": "c", "allocation": f"{gpu}@1", "job_id": "1", "gpu": gpu, "share": 0.3, "began": BEGAN,
         "ended": BEGAN + (10 + place) * SECOND, "recorded": BEGAN} for place, gpu in enumerate(gpus)
    ]  # fmt: skip
    store = new_store(tmp_path / "store")
    store.append({name: arrow_rows(name, of) for name, of in (("telemetry", telemetry), ("jobs", columns(jobs)))}, "x")
    answers = [energy_quote(store, "1").json() for _ in range(6)]
    assert answers[0]["job"]["busy"] is not None
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.long
def test_one_job_says_what_its_gpus_cost_and_where_they_stand(fleet: Path, excess: dict[str, dict[str, Any]]) -> None:
    found = document("--store", str(fleet), "--job", "4241")
    [more] = [row for row in excess["job"]["rows"] if row["job_id"] == "4241"]
    for key in ("excess_s", "excess_low_s", "excess_high_s", "excess_j", "excess_low_j", "excess_high_j", "compared"):
        assert found["excess"][key] == pytest.approx(more[key]), key
    other, slow = found["gpus"]
    assert (other["name"], slow["name"]) == ("n0/2", "n0/3")
    assert (slow["rank"], slow["compared"], slow["basis"]) == (8, 8, "compute")
    assert slow["slower_low_pct"] < slow["slower_pct"] == pytest.approx(25, abs=0.3)
    assert slow["slower_pct"] < slow["slower_high_pct"]
    assert slow["excess_s"] == pytest.approx(18_000, rel=0.02)
    assert other["excess_s"] + slow["excess_s"] == pytest.approx(found["excess"]["excess_s"])
    assert "lost to hardware: 4.9" in whorl("--store", str(fleet), "--job", "4241").stdout


@pytest.mark.long
def test_the_greenest_hour_of_a_job_is_quoted(fleet: Path, tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp()) // 3600
    hours = "\n".join(f"{(now + hour) * 3600},{90 if hour == 40 else 400}" for hour in range(100))
    (tmp_path / "de.csv").write_text(f"time,g_per_kwh\n{hours}\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = { file = "de.csv", zone = "DE" }\n')
    found = document(
        "quote", "--store", str(fleet), "--job", "4241", "--settings", str(settings), "--deadline", "3d"
    )  # fmt: skip
    first, best = (row for row in found["rows"] if row["option"] == "start")
    assert best["co2e_g"] < first["co2e_g"]
    assert best["energy_j"] == first["energy_j"]
    assert best["start"] is not None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["excess", "--cluster", "nowhere"], "has no telemetry of cluster nowhere"),
        (["quote", "--job", "1"], "knows no job 1"),
        (["quote", "--job", "4241", "--since", "2030-01-01"], "has no telemetry of cluster c in this time"),
    ],
)
def test_bad_input_is_one_sentence(fleet: Path, arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["energy", *arguments, "--store", str(fleet)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.long
def test_without_fingerprints_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    rows = {"ts": [BEGAN + second * SECOND for second in range(60)], "cluster": ["c"] * 60, "gpu": [uuid(1)] * 60,
            "power_mw": [200_000 + 100 * (second % 7) for second in range(60)]}  # fmt: skip
    store.append({"telemetry": arrow_rows("telemetry", rows)}, "made")
    result = CliRunner().invoke(cli, ["energy", "excess", "--store", str(store.root)])
    assert result.exit_code == 2
    assert "run `whorl campaign`" in result.stderr


@pytest.mark.long
def test_a_job_on_gpus_that_nobody_knows_is_a_row_without_an_excess(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "S")
    lost = {"cluster": "c", "allocation": "lost@1", "job_id": "lost", "gpu": None, "user": "ann", "node": "n0",
            "node_gpus": 2, "began": BEGAN, "ended": BEGAN + SECOND, "recorded": BEGAN}  # fmt: skip
    Store.open(tmp_path / "S").append({"jobs": arrow_rows("jobs", columns([lost]))}, "made")
    for by, name in (("gpu", "(GPU not known)"), ("job", "lost")):
        assert name in whorl("excess", "--store", str(tmp_path / "S"), "--by", by).stdout
        found = document("excess", "--store", str(tmp_path / "S"), "--by", by)["rows"]
        [row] = [row for row in found if row["excess_j_reason"] == "GPU not known"]
        assert (row["energy_j"], row["excess_j"], row["gpus"]) == (None, None, None)


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--by", "user"),
        ("--by", "gpu"),
        ("--job", "4241"),
        ("reconcile",),
        ("quote", "--job", "4241"),
        ("excess", "--by", "gpu"),
    ],
)
def test_each_key_of_json_stands_in_the_documentation(fleet: Path, arguments: tuple[str, ...]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    documented = set(re.findall(r"[a-z_0-9]+", page.partition("\n## whorl energy\n")[2].partition("\n## ")[0]))
    verb = [word for word in arguments[:1] if not word.startswith("--")]
    found = document(*verb, "--store", str(fleet), *arguments[len(verb) :])  # in the order of the other tests
    keys = {*found} - {"schema"}
    for value in found.values():
        keys |= {key for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict) for key in row}
    assert sorted(keys - documented) == []


@pytest.mark.long
def test_a_year_is_at_the_pace_of_the_time_that_was_read(fleet: Path, excess: dict[str, dict[str, Any]]) -> None:
    longer = document("excess", "--store", str(fleet), "--since", "2000-01-01", "--until", "2100-01-01")
    for row, same in zip(longer["rows"], excess["gpu"]["rows"], strict=True):
        assert row["year_kwh"] == pytest.approx(same["year_kwh"], rel=1e-9)
