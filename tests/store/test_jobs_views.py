"""The views of the table `jobs`: the newest record of each allocation, and the readings in a job's time on its GPUs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.stores import answers, new_store

# ruff: noqa: DTZ001 - the store's times are UTC without a zone


def at(hour: int, day: int = 2) -> dt.datetime:
    return dt.datetime(2026, 11, day, hour)


def job(recorded: int, **columns: Any) -> dict[str, Any]:
    return {"cluster": "c", "source": "sacct", "recorded": at(recorded, 9), **columns}


def add(store: Store, name: str, *rows: dict[str, Any]) -> None:
    names = dict.fromkeys(key for row in rows for key in row)
    store.append({"jobs": arrow_rows("jobs", {n: [row.get(n) for row in rows] for n in names})}, name)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Three days of two GPUs, a row an hour; job 1 was running and has ended; job 2 has a tag; job 3 only a tag."""
    made = new_store(tmp_path_factory.mktemp("jobs") / "store")
    for day in (1, 2, 3):
        times = [at(hour, day) for hour in range(24) for _ in range(2)]
        watts = [1000 * (100 * day + hour) for hour in range(24) for _ in range(2)]
        rows = {"ts": times, "cluster": ["c"] * 48, "gpu": ["GPU-1", "GPU-2"] * 24, "power_mw": watts}
        made.append({"telemetry": arrow_rows("telemetry", rows)}, f"day{day}")
    gpus = {"cluster": ["c"], "gpu": ["GPU-1"], "uuid": ["GPU-1"], "node": ["n1"], "slot": [0], "model": ["V100"]}
    made.append({"gpus": arrow_rows("gpus", gpus)}, "gpus")
    one = {"allocation": "1@1", "job_id": "1", "began": at(4)}
    add(made, "first", job(1, **one, node="n1"))  # its GPU was not known then
    add(made, "second", job(2, **one, gpu="GPU-1", ended=at(6)), job(2, **one, gpu="GPU-2", ended=at(6)))
    tag = {"source": "tag", "job_id": "2", "gpu": "GPU-2", "began": at(8)}
    add(made, "tags", job(1, **tag, allocation="tag-2", ended=at(9)))
    add(made, "third", job(3, allocation="2@1", job_id="2", gpu="GPU-2", began=at(8), ended=at(10), tag="tag-2"))
    add(made, "fourth", job(3, **{**tag, "job_id": "3"}, allocation="tag-3"))
    return made


@pytest.mark.long
def test_an_allocation_has_the_rows_of_its_newest_record_and_no_tag_beside_them(store: Store) -> None:
    for found in answers(store, "select job_id, gpu, ended, source from jobs_now order by all"):
        assert found == [
            {"job_id": "1", "gpu": "GPU-1", "ended": at(6), "source": "sacct"},
            {"job_id": "1", "gpu": "GPU-2", "ended": at(6), "source": "sacct"},
            {"job_id": "2", "gpu": "GPU-2", "ended": at(10), "source": "sacct"},
            {"job_id": "3", "gpu": "GPU-2", "ended": None, "source": "tag"},
        ]


def test_what_a_collector_saw_of_a_job_counts_where_nobody_else_names_its_gpus(store: Store) -> None:
    seen = {"source": "cgroup", "node": "n1", "gpu": "GPU-1", "state": "RUNNING"}
    other = {"node": "n1", "ended": at(20)}

    def add_job(name: str, *rows: dict[str, Any]) -> None:
        add(own, name, *({"raw_id": name, "job_id": name, "began": at(10)} | row for row in rows))

    own = new_store(store.root.parent / "seen")
    add_job("1", job(1, **seen, allocation="1@n1@1"), job(3, **other, allocation="1@1", gpu="GPU-1"))
    add_job("2", job(1, **seen, allocation="2@n1@1"), job(3, **other, allocation="2@1"))
    add_job("3", job(1, **seen, allocation="3@n1@1"), job(3, **other | {"node": "n2"}, allocation="3@1", gpu="GPU-2"))
    add_job("4", job(1, **seen, allocation="4@n1@1"), job(3, **other, allocation="4@1", gpu="GPU-2", began=at(1, 1)))
    add_job("4b", job(1, **seen, allocation="4@n1@2", began=at(1, 4), raw_id="4"))  # it was requeued
    for rows in answers(own, "select allocation from jobs_now where source = 'cgroup' order by all"):
        assert [row["allocation"] for row in rows] == ["2@n1@1", "3@n1@1", "4@n1@2"]


@pytest.mark.long
def test_a_job_has_the_readings_of_its_time_on_its_gpus(store: Store) -> None:
    query = "select gpu, count(*) n, min(ts) first, max(ts) last from telemetry_of_job where job_id = '1' group by gpu"
    for found in answers(store, f"{query} order by gpu"):
        assert found == [{"gpu": gpu, "n": 2, "first": at(4), "last": at(5)} for gpu in ("GPU-1", "GPU-2")]
    for found in answers(store, "select count(*) n, max(ts) last from telemetry_of_job where job_id = '3'"):
        assert found == [{"n": 16 + 24, "last": at(23, 3)}]  # it still runs


def test_a_gpus_jobs_come_with_its_name(store: Store) -> None:
    for found in answers(store, "select gpu, name, slot, model, job_id from jobs_on_gpu order by gpu, job_id"):
        assert [tuple(row.values()) for row in found] == [
            ("GPU-1", "n1/0", 0, "V100", "1"), *(("GPU-2", "GPU-2", None, None, job_id) for job_id in "123"),
        ]  # fmt: skip
