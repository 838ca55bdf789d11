"""`whorl energy excess` and `quote`: figures again by plain SQL, and what people and programs see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.store import Store
from whorl.tests.analysis.energy.stored import NOON, gpu, job, readings, rows, store_of
from whorl.tests.cli.energy_answers import document
from whorl.tests.conftest import BuiltOnce

pytestmark = pytest.mark.usefixtures("stores_stay_open")

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
    figures_of_gpu = []
    for workload, watts in (("fma", 150.0), ("gemm", 220.0), ("conv", 200.0)):
        seconds = SLOW.get(gpu, 1.0) * (1 + 0.0005 * (gpu - 3.5))
        drawn = watts * (1 + 0.002 * (gpu % 3 - 1))
        figures = {"time": 1e3 * seconds, "power": drawn, "work_per_joule": 1 / (seconds * drawn)}
        figures_of_gpu += [
            {"cluster": "c", "gpu": uuid(gpu), "model": "A100", "class": "compute", "workload": workload,
             "figure": figure, "unit": "", "value": value, "low": value / 1.006, "high": value * 1.006, "n": 4,
             "sittings": 2, "made_at": NOON}
            for figure, value in figures.items()
        ]  # fmt: skip
    return figures_of_gpu


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> Path:
    """A store of eight GPUs that worked for a day, each for one job; one is slow."""

    def build(folder: Path) -> None:
        random, seconds = np.random.default_rng(1), np.arange(-3600, LASTED_S + 3600, STEP_S)
        works, n = (seconds >= 0) & (seconds <= LASTED_S), len(seconds)
        telemetry, gpus, jobs = [], [], []
        for number in range(GPUS):
            name, node = uuid(number), f"n{number // 4}"
            watts = np.where(works, 200.0 + random.normal(0, 4, n), 50.0 + random.normal(0, 0.5, n))
            traffic = np.where(works, 10, 0).tolist()
            telemetry.append(readings(name, seconds.tolist(), watts.tolist(), memory_utilization=traffic))
            gpus.append(gpu(name, node=node, slot=number % 4, model="A100"))
            jobs.append(job(4240 + number // 2, name, 0, LASTED_S, allocation=f"{number}@1", node=node))
        store = store_of(folder / "store", gpus, telemetry, jobs)
        fingerprints = [row for number in range(GPUS) for row in fingerprint(number)]
        store.append({"fingerprints": rows("fingerprints", fingerprints)}, "fingerprints")
        (store.root / "energy.toml").write_text('currency = "EUR"\n[[price]]\nvalue = 0.25\n')

    return built_once("energy-choices", build) / "store"


@pytest.fixture(scope="module")
def excess(fleet: Path) -> dict[str, dict[str, Any]]:
    return {by: document("excess", "--store", str(fleet), "--by", by) for by in ("gpu", "node", "job")}


@pytest.mark.long
def test_the_excess_of_each_gpu_is_that_of_plain_sql(fleet: Path, excess: dict[str, dict[str, Any]]) -> None:
    reply = excess["gpu"]
    assert reply["schema"] == "whorl.energy/1"
    rows = {row["gpu"]: row for row in reply["rows"]}
    for true in Store.open(fleet).sql(EXCESS).to_pylist():
        row = rows[true["gpu"]]
        # Before and after the job the GPU did nothing, which is in its energy and no excess of a job.
        assert row["excess_s"] == pytest.approx(true["excess_s"], rel=1e-6, abs=1e-3)
        assert row["excess_j"] == pytest.approx(true["excess_j"], rel=2e-3, abs=2e-3 * true["joules"])
        assert row["excess_low_j"] <= row["excess_j"] <= row["excess_high_j"]
        assert row["year_kwh"] == pytest.approx(row["excess_j"] / 3.6e6 * 365.25 * 86_400 / (LASTED_S + 7200 - STEP_S))
        assert row["excess_cost"] == pytest.approx(0.25 * row["excess_j"] / 3.6e6)
    printed = [row["name"] for row in reply["rows"] if row["excess_s_shown"]]
    assert printed == ["n0/3"]
    assert reply["rows"][0]["name"] == "n0/3"
    slow = reply["rows"][0]
    assert slow["held_s"] == pytest.approx(LASTED_S * (1 - 1 / 1.25), rel=1e-2)  # GPU 2 of the same job


@pytest.mark.long
@pytest.mark.parametrize(
    "line", ["quote --job 4241", "--by user", "--by gpu", "--job 4241", "reconcile", "excess --by gpu"]
)
def test_each_key_of_json_stands_in_the_documentation(fleet: Path, line: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    documented = set(re.findall(r"[a-z_0-9]+", page.partition("\n## Energy\n")[2].partition("\n## ")[0]))
    verb, *options = line.split() if line[0] != "-" else ["", *line.split()]
    answer = document(*filter(None, [verb]), "--store", str(fleet), *options)  # in the order of the other tests
    keys = {*answer} - {"schema"}
    for value in answer.values():
        keys |= {key for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict) for key in row}
    assert sorted(keys - documented) == []


# -- energy jobs -------------------------------------------------------------------------------------------------------
# `whorl energy` of jobs that were requeued, of arrays, over midnight, and beside the scheduler's own figure.


HOUR = 3600
ELEVEN = 11 * HOUR
"""23:00, in seconds after noon."""


@pytest.fixture(scope="module")
def night(built_once: BuiltOnce) -> Path:
    """A GPU at 200 W from 23:00 to 01:00. Job 5 ran twice, 6 is an array whose two tasks share the GPU."""

    def build(folder: Path) -> None:
        seconds = range(ELEVEN, ELEVEN + 2 * HOUR + 1, 10)
        store_of(
            folder / "store",
            [gpu("GPU-a")],
            [readings("GPU-a", seconds, [200.0] * len(seconds))],
            [
                job(5, "GPU-a", ELEVEN, ELEVEN + 600, allocation="5.0", job_energy_j=900_000),
                job(5, "GPU-a", ELEVEN + 1200, ELEVEN + 1800, allocation="5.1", job_energy_j=900_000),
                job("6_1", "GPU-a", ELEVEN + 1800, ELEVEN + 5400, share=0.5, raw_id="61"),
                job("6_2", "GPU-a", ELEVEN + 1800, ELEVEN + 5400, share=0.5, raw_id="62"),
            ],
        )

    return built_once("night-energy", build) / "store"


@pytest.mark.long
def test_an_array_is_asked_for_by_its_number_and_a_task_by_either(night: Path) -> None:
    tasks = document("--store", str(night), "--job", "6")["rows"]
    assert {row["job_id"] for row in tasks} == {"6_1", "6_2"}
    assert [row["energy_j"] for row in tasks] == pytest.approx([200 * 3600 / 2] * 2)  # equal shares
    assert [row["job_id"] for row in document("--store", str(night), "--job", "62")["rows"]] == ["6_2"]


def test_each_day_has_its_part_and_since_and_until_choose_a_part_of_a_job(night: Path) -> None:
    rows = document("--store", str(night), "--by", "day")["rows"]
    days = {"2026-11-02": 200 * HOUR, "2026-11-03": 200 * HOUR}
    assert {row["day"]: row["energy_j"] for row in rows} == pytest.approx(days)
    part = document("--store", str(night), "--since", "2026-11-02T23:45", "--until", "2026-11-03T00:15")
    assert part["total"]["energy_j"] == pytest.approx(200 * 1800)
    assert {row["job_id"]: row["energy_j"] for row in part["rows"]} == pytest.approx({"6_1": 180_000, "6_2": 180_000})


@pytest.mark.long
def test_a_job_of_the_same_number_on_another_cluster_is_not_beside_it(tmp_path: Path) -> None:
    jobs = [job(5, "GPU-a", 0, 90), job(5, None, 0, 90, cluster="d"), job(6, None, 0, 90, cluster="d")]
    store_of(tmp_path / "S", [gpu("GPU-a")], [readings("GPU-a", range(99), [200.0] * 99)], jobs)
    answer = document("--store", str(tmp_path / "S"), "--job", "5", "--cluster", "c")
    assert (answer["beside"], answer["rows"][0]["energy_j"]) == (0, pytest.approx(200 * 90))
