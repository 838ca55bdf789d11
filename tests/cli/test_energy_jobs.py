"""`whorl energy` of jobs that were requeued, of arrays, over midnight, and beside the scheduler's own figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.cli.energy_answers import document
from whorl.tests.conftest import BuiltOnce

pytestmark = pytest.mark.usefixtures("stores_stay_open")

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
def test_the_power_limit_of_a_quote_is_that_of_the_readings_where_nothing_else_says_it(tmp_path: Path) -> None:
    bare = gpu("GPU-a", power_limit_mw=None, power_limit_default_mw=None)
    store_of(tmp_path / "S", [bare], [readings("GPU-a", range(99), [200.0] * 99)], [job(5, "GPU-a", 0, 90)])
    options = {entry["option"]: entry for entry in document("--store", str(tmp_path / "S"), "--job", "5")["what_if"]}
    assert options["cap"]["what"] == "150 W (50 %)"


@pytest.mark.long
def test_one_job_by_gpu_has_only_its_own_energy(night: Path) -> None:
    [row] = document("--store", str(night), "--job", "5", "--by", "gpu")["rows"]
    assert (row["gpu"], row["energy_j"]) == ("GPU-a", pytest.approx(200 * 1200))
    assert row["attributed_j"] == row["energy_j"]


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
