"""Joules per GPU and minute: what they give is what the readings give, whatever came later."""

from __future__ import annotations

import json
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.analysis.energy.answers import By, answered
from whorl.analysis.energy.books import booked
from whorl.analysis.energy.claims import read_claims
from whorl.analysis.energy.meter import Energies
from whorl.analysis.energy.minutes import meter_parts, write_minutes
from whorl.cli import cli
from whorl.store import Store
from whorl.store.merging import merge
from whorl.tests.analysis.energy.stored import S, at, gpu, job, readings, rows, store_of

DAY_S, MINUTE_NS = 86_400, 60 * S
BEGAN_S, ENDED_S = -DAY_S // 2 - 700 * DAY_S, 2 * DAY_S + 3_600 * 3 - DAY_S // 2 - 700 * DAY_S
"""Two days and three hours from a midnight on, long ago: whatever the clock of this machine says, they are over."""
NOW_NS = at(BEGAN_S + 2 * DAY_S + 2 * 3600)


def work(gpus: int, seed: int = 4) -> tuple[list[pa.Table], list[dict[str, Any]]]:
    """Readings of GPUs every 30 s, with work, pauses, a gap and (of the second one) a counter; and jobs."""
    rng, tables, jobs = np.random.default_rng(seed), [], []
    for number in range(gpus):
        seconds = np.arange(BEGAN_S + 7.3 * number, ENDED_S, 30.0)
        seconds = seconds[~((seconds > BEGAN_S + 30_000) & (seconds < BEGAN_S + 33_000 + 400 * number))]
        if number == 0:  # and a gap of less than a minute, where readings come more often
            often = np.arange(BEGAN_S + 40_000, BEGAN_S + 42_000, 10.0)
            seconds = np.union1d(
                seconds[(seconds < often[0]) | (seconds > often[-1])], np.delete(often, slice(100, 104))
            )
        busy = (seconds // 4_000) % 3 < 2
        watts = np.where(busy, 220 + rng.normal(0, 12, len(seconds)), 45 + rng.normal(0, 0.5, len(seconds)))
        counter = np.cumsum(np.append(0, np.diff(seconds) * watts[1:])) * 1000
        counters = {"energy_mj": counter.astype(int).tolist()} if number == 1 else {}
        tables.append(readings(f"GPU-{number}", seconds.tolist(), watts.tolist(), **counters))
        for place, began in enumerate(np.arange(BEGAN_S + 500, ENDED_S - 9_000, 8_000.0)):
            first, last = began + rng.uniform(0, 90), began + rng.uniform(6_000, 7_900)
            jobs.append(job(f"{number}{place}", f"GPU-{number}", first, last, user=f"u{place % 3}", node=f"n{number}"))
    return tables, jobs


@pytest.fixture
def worked(tmp_path: Path, built_once: Any) -> Path:
    """A store of two days that are over and an open one, without minutes; each test has a copy of its own."""
    import shutil

    def build(folder: Path) -> None:
        tables, jobs = work(2)
        store_of(folder / "store", [gpu(f"GPU-{n}", node=f"n{n}") for n in range(2)], tables, jobs)

    shutil.copytree(Path(built_once("energy-minutes", build)) / "store", tmp_path / "S")
    return tmp_path / "S"


def made(path: Path) -> int:
    return write_minutes(Store.open(path), offline=True, now_ns=NOW_NS)


def total(path: Path) -> list[dict[str, Any]]:
    query = "select count(*) n, round(sum(energy_j), 3) j from energy_minutes"
    return list(Store.open(path).sql(query).to_pylist())


def windows(path: Path) -> dict[tuple[str, int], tuple[Energies, int]]:
    """Of each GPU and day, the energy between full minutes and the edges of jobs, and how many knots the meter has."""
    store = Store.open(path)
    edges: dict[str, list[int]] = {}
    for row in store.sql(
        "select gpu, epoch_ns(began) b, epoch_ns(ended) e from jobs where gpu is not null"
    ).to_pylist():
        edges.setdefault(row["gpu"], []).extend([row["b"], row["e"]])
    by_gpu = {}
    claims, until = read_claims(store), at(ENDED_S) // MINUTE_NS * MINUTE_NS
    parts = meter_parts(store, since_ns=at(BEGAN_S), until_ns=until)
    for meters_of_part in chain.from_iterable(part.meters(claims) for part in parts):
        for number, (_, name) in enumerate(meters_of_part.gpus):
            first, last = int(meters_of_part["first_ns"][number]), int(meters_of_part["last_ns"][number])
            minutes = np.arange(first // MINUTE_NS + 1, last // MINUTE_NS + 1) * MINUTE_NS
            ends = np.unique([first, last, *minutes, *(end for end in edges[name] if first < end < last)])
            numbers = np.full(len(ends) - 1, number)
            knots = int(meters_of_part["ends"][number] - meters_of_part["begins"][number])
            by_gpu[name, first // (DAY_S * S)] = meters_of_part.over(numbers, ends[:-1], ends[1:]), knots
    return by_gpu


def assert_same(by_minutes: dict[Any, Any], by_readings: dict[Any, Any]) -> None:
    assert by_minutes.keys() == by_readings.keys()
    for key, (stored, _) in by_minutes.items():
        read = by_readings[key][0]
        np.testing.assert_allclose(stored.energy_j, read.energy_j, rtol=1e-9, atol=1e-9)
        for name in ("below_j", "above_j", "variance_j2", "measured_j", "measured_s", "counter_s"):
            np.testing.assert_allclose(getattr(stored, name), getattr(read, name), rtol=1e-5, atol=1e-3, err_msg=name)
        assert (stored.reason == read.reason).all()


def answers(path: Path) -> dict[str, Any]:
    """The energy by each grouping: rows with joules and their interval."""
    store = Store.open(path)
    books = booked(store)
    return {by: answered(store, by, books).rows for by in By if by != By.ACCOUNT}


def assert_same_answers(path: Path, before: dict[str, Any]) -> None:
    for name, table in answers(path).items():
        for column in ("energy_j", "idle_j", "low_j", "high_j"):
            np.testing.assert_allclose(
                table[column].to_numpy(), before[name][column].to_numpy(), rtol=1e-9 if column == "energy_j" else 1e-6,
                atol=1e-6, err_msg=f"{name} {column}",
            )  # fmt: skip


def test_minutes_give_the_energy_of_the_readings_by_everything(worked: Path) -> None:
    by_readings, before = windows(worked), answers(worked)
    assert made(worked) == 2  # the third day is open
    by_minutes = windows(worked)
    assert_same(by_minutes, by_readings)
    assert_same_answers(worked, before)
    days = sorted({day for _, day in by_minutes})
    assert [by_minutes["GPU-0", day][1] < 1_500 for day in days[:2]] == [True, True]  # not the 2,880 readings
    assert made(worked) == 0
    energy_j = Store.open(worked).sql("select sum(energy_j) e from energy_minutes").to_pylist()[0]["e"]
    assert energy_j == pytest.approx(sum(by_minutes[key][0].energy_j.sum() for key in by_minutes if key[1] < days[2]))


@pytest.mark.long
def test_a_job_that_becomes_known_later_has_the_energy_of_the_readings(worked: Path) -> None:
    made(worked)
    late = job("late", "GPU-0", BEGAN_S + 40_001.5, BEGAN_S + 41_010.25, user="eve", recorded=time.time_ns())
    Store.open(worked).append({"jobs": rows("jobs", [late])}, "late")
    by_minutes = windows(worked)
    assert made(worked) == 1
    assert_same(windows(worked), by_minutes)
    for path in worked.glob("energy_*/day=*/*.parquet"):
        path.unlink()
    assert_same(by_minutes, windows(worked))


@pytest.mark.long
def test_readings_that_come_later_count(worked: Path) -> None:
    made(worked)
    before = windows(worked)
    gap = np.arange(BEGAN_S + 30_020, BEGAN_S + 32_980, 20.0)
    Store.open(worked).append({"telemetry": readings("GPU-0", gap.tolist(), [100.0] * len(gap))}, "late")
    by_readings = windows(worked)
    day = min(day for _, day in before)
    assert by_readings["GPU-0", day][0].energy_j.sum() != pytest.approx(before["GPU-0", day][0].energy_j.sum())
    assert made(worked) == 1
    assert_same(windows(worked), by_readings)
    Store.open(worked).compact(offline=True)
    assert made(worked) == 0
    assert_same(windows(worked), by_readings)


@pytest.mark.long
def test_readings_beside_midnight_make_the_day_before_again(worked: Path) -> None:
    """The reading after midnight says how the last minute before it ends."""
    made(worked)
    after = BEGAN_S + DAY_S + 1.0
    Store.open(worked).append({"telemetry": readings("GPU-0", [after], [290.0])}, "late")
    by_readings = windows(worked)
    assert made(worked) == 2
    assert_same(windows(worked), by_readings)


@pytest.mark.long
def test_pruned_days_keep_their_minutes(worked: Path) -> None:
    made(worked)
    before = windows(worked)
    pruned = Store.open(worked).prune("2d", offline=True, now=at(ENDED_S) + 2 * DAY_S * S)
    assert pruned.days == 2
    assert made(worked) == 0
    by_minutes = windows(worked)  # of the open day, the hour before it is pruned
    over = {key for key in before if key[1] < max(day for _, day in before)}
    assert_same({key: by_minutes[key] for key in over}, {key: before[key] for key in over})
    late = at(BEGAN_S + 40_001.5), at(BEGAN_S + 40_091.5)  # ends within minutes: what is even in these is not known
    store = Store.open(worked)
    [part] = meter_parts(store, since_ns=at(BEGAN_S), until_ns=at(BEGAN_S + DAY_S))
    [read] = part.meters(read_claims(store))
    energies = read.over(np.zeros(1, int), *(np.array([end]) for end in late))
    assert energies.below_j[0] + energies.above_j[0] > 0
    Store.open(worked).append({"telemetry": readings("GPU-1", [BEGAN_S + 31_000.0], [60.0])}, "late")
    assert made(worked) == 1  # of the GPU that has another reading, not of the others
    after = windows(worked)
    others = {key for key in over if key[0] != "GPU-1"}
    assert_same({key: after[key] for key in others}, {key: before[key] for key in others})


@pytest.mark.long
def test_the_command_writes_them_and_a_merge_leaves_them_out(worked: Path, tmp_path: Path) -> None:
    words = ["store", "compact", "--store", str(worked), "--offline"]
    result = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["energy_days"] == 2  # the third day has hardly any readings
    assert "energy" not in CliRunner().invoke(cli, words, catch_exceptions=False).output
    second_store = Store.create(tmp_path / "other")
    merge(second_store, worked)
    assert total(second_store.root) == [{"n": 0, "j": None}]
    assert write_minutes(second_store, offline=True, now_ns=NOW_NS + DAY_S * S) == 2
    assert_same(windows(second_store.root), windows(worked))
