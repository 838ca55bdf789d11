"""Energy in parts: the same books for parts of each size and each engine, and what is said of a part that failed."""

from __future__ import annotations

import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pyarrow import parquet

from whorl.analysis.energy import minutes
from whorl.analysis.energy.answers import By, answered, reconcile
from whorl.analysis.energy.books import Booked, EnergyQuestion, booked
from whorl.analysis.energy.minutes import write_minutes
from whorl.analysis.engines import Engine, Here
from whorl.store import Store
from whorl.store.instants import date_of_ns
from whorl.tests.analysis.energy.stored import at, gpu, job, readings, store_of

pytestmark = pytest.mark.usefixtures("stores_are_copied", "stores_stay_open")

DAY_S = 86_400
MIDNIGHT_S = -DAY_S // 2 - 700 * DAY_S
"""Long ago: whatever the clock of this machine says, the days are over."""
FULL, THIN = range(4), range(6, 12)
"""Days with a reading each 30 s, and with some minutes of readings each."""
MANY = 10**9


def build(root: Path) -> None:
    """GPUs a, b and c (cut into MIG instances), and d that nobody reads; jobs over midnight and that do not fit."""
    rng, telemetry, jobs = np.random.default_rng(8), [], []
    for number, name in enumerate(("GPU-a", "GPU-b", "GPU-c")):
        days = [np.arange(0, DAY_S, 30.0) + 5.3 * number + day * DAY_S for day in FULL]
        days += [np.arange(3_600, 7_200, 10.0) + day * DAY_S for day in THIN]
        seconds = np.concatenate(days) + MIDNIGHT_S
        gap = (seconds > MIDNIGHT_S + DAY_S - 7_000) & (seconds < MIDNIGHT_S + DAY_S + 2_000 * number)
        seconds = seconds[~gap]
        busy = (seconds // 7_000) % 3 < 2
        watts = np.where(busy, 220 + rng.normal(0, 12, len(seconds)), 45 + rng.normal(0, 0.5, len(seconds)))
        telemetry.append(readings(name, seconds.tolist(), watts.tolist()))
        for place, began in enumerate(range(2_000, 4 * DAY_S, 31_000)):
            times = MIDNIGHT_S + began + rng.uniform(0, 90), MIDNIGHT_S + began + rng.uniform(20_000, 30_000)
            jobs.append(job(f"{number}{place}", name, *times, user=f"u{place % 3}", node=f"n{number}"))
    for place, instance in enumerate(("MIG-1", "MIG-2")):
        seconds = np.arange(MIDNIGHT_S, MIDNIGHT_S + 2 * DAY_S, 120.0)
        used = {"power_mw": [None] * len(seconds), "utilization": (30 + 40 * place + seconds // 9_000 % 9).tolist()}
        telemetry.append(readings(instance, seconds.tolist(), [0.0] * len(seconds), **used))
        times = MIDNIGHT_S + 70_000 + place, MIDNIGHT_S + DAY_S + 20_000
        jobs.append(job(f"mig{place}", instance, *times, user="mia", node="n2"))
    jobs += [
        job("both", "GPU-a", MIDNIGHT_S + 80_000, MIDNIGHT_S + 2 * DAY_S, user="eve", node="n0"),  # beside others
        job("dark", "GPU-d", MIDNIGHT_S + 80_000, MIDNIGHT_S + DAY_S + 9_000, user="eve", node="n3"),
        job("lost", None, MIDNIGHT_S + 85_000, MIDNIGHT_S + DAY_S + 3_000, user="eve", node="n1"),
        job("runs", "GPU-b", MIDNIGHT_S + 11 * DAY_S + 3_700, None, user="eve", node="n1", state="RUNNING"),
    ]
    boards = [gpu(f"GPU-{letter}", node=f"n{number}") for number, letter in enumerate("abcd")]
    boards += [gpu(f"MIG-{n}", uuid=None, parent="GPU-c", mig_profile=f"{n}g.20gb", node="n2") for n in (1, 2)]
    store_of(root, boards, telemetry, jobs)


@pytest.fixture
def stored(tmp_path: Path, built_once: Any) -> Path:
    """A store of its own: no minutes are written."""
    shutil.copytree(Path(built_once("energy-parts", lambda folder: build(folder / "S"))) / "S", tmp_path / "S")
    return tmp_path / "S"


def made(root: Path, until_day: int) -> int:
    return write_minutes(Store.open(root), offline=True, now_ns=at(MIDNIGHT_S + until_day * DAY_S + 7_200))


def books(root: Path, monkeypatch: pytest.MonkeyPatch, size: int, engine: Engine, **options: Any) -> Booked:
    """The books in parts of about so many rows."""
    monkeypatch.setattr(minutes, "ROWS_OF_PART", size)
    return booked(Store.open(root), EnergyQuestion(**options), engine=engine)


def assert_same(root: Path, first: Booked, second: Booked) -> None:
    """By job, user, GPU, node and day: joules to 1e-9, intervals to 1e-6; the same problems and metered GPUs."""
    store = Store.open(root)
    for by in By:
        first_rows, second_rows = (answered(store, by, part).rows.sort(by.keys) for part in (first, second))
        assert first_rows.select(*by.keys, "reason", "method").equals(second_rows.select(*by.keys, "reason", "method"))
        for name in ("energy_j", "known_j", "measured_s", "gpu_s", "idle_j", "low_j", "high_j"):
            near = 1e-6 if name in ("idle_j", "low_j", "high_j") else 1e-9
            np.testing.assert_allclose(
                first_rows[name], second_rows[name], rtol=near, atol=1e-6, err_msg=f"{by} {name}"
            )
    for name in ("problems", "metered"):
        first_rows, second_rows = (getattr(part, name).select(pl.exclude(pl.Float64)) for part in (first, second))
        assert first_rows.equals(second_rows, null_equal=True), name


@pytest.mark.long
def test_parts_of_each_size_on_each_engine_give_the_same_books(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_read = books(stored, monkeypatch, MANY, Here(1))
    assert (all_read.coverage.parts, all_read.coverage.done) == (1, 1)
    by_gpu = books(stored, monkeypatch, 1_500, Here(3))
    assert by_gpu.coverage.parts > 10
    assert_same(stored, all_read, by_gpu)
    problems = {(row["problem"], row["job_id"]) for row in all_read.problems.to_dicts()}
    assert {("no telemetry of the GPU", "dark"), ("GPU not known", "lost")} <= problems
    assert sum(problem.startswith("overlap") for problem, _ in problems) > 1
    assert made(stored, 3) == 3  # the fourth day is read
    assert Store.open(stored).prune("3d", offline=True, now=at(MIDNIGHT_S + 4 * DAY_S)).days == 1
    written = books(stored, monkeypatch, MANY, Here(1))
    assert_same(stored, all_read, written)
    assert_same(stored, written, books(stored, monkeypatch, 2_000, Here(2)))


class Losing(Here):
    """An engine whose workers lose the disk when they make parts of a day."""

    def __init__(self, day: date) -> None:
        super().__init__(1)
        self._day = day

    def map(self, function: Any, parts: Any, *, name: Any, progress: Any = None) -> Any:
        def on_a_lost_disk(part: Any) -> Any:
            if str(self._day) in name(part):
                raise OSError("the disk is gone")
            return function(part)

        return super().map(on_a_lost_disk, parts, name=name, progress=progress)


def damage(path: Path) -> None:
    """Spoil the readings of power in a file, so that its times still look as they did when it was verified."""
    about, content, status = parquet.read_metadata(path), bytearray(path.read_bytes()), path.stat()
    for group in range(about.num_row_groups):
        chunks = (about.row_group(group).column(number) for number in range(about.num_columns))
        (power,) = (chunk for chunk in chunks if chunk.path_in_schema == "power_mw")
        first = power.dictionary_page_offset or power.data_page_offset
        for place in range(first + power.total_compressed_size // 4, first + power.total_compressed_size):
            content[place] ^= 0x5A
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def assert_lost(all_read: Booked, partly: Booked, store: Store, day: date) -> None:
    """Intervals of jobs hold what the whole books say, days far from the lost one are as they were."""
    jobs, of_jobs = (answered(store, By.JOB, part).rows for part in (all_read, partly))
    joined = of_jobs.join(jobs, on=["cluster", "kind", "job_id"], suffix="_whole", nulls_equal=True)
    joined = joined.filter(pl.col("kind") == "job", pl.col("energy_j").is_not_null())
    assert (joined["low_j"] <= joined["energy_j_whole"] * (1 + 1e-9)).all()
    assert (joined["high_j"] >= joined["energy_j_whole"] * (1 - 1e-9)).all()
    assert of_jobs["reason"].null_count() < jobs["reason"].null_count()  # some jobs have no figure
    far = (pl.col("day") - day).dt.total_days().abs() > 1  # the hours beside the day miss some readings
    days = [answered(store, By.DAY, part).rows.filter(far) for part in (all_read, partly)]
    assert days[0].height == days[1].height > 3
    np.testing.assert_allclose(days[0]["energy_j"], days[1]["energy_j"], rtol=1e-9)
    assert partly.dark_s > all_read.dark_s + DAY_S / 4


@pytest.mark.long
def test_a_part_that_fails_is_named_and_its_gpus_count_as_not_read(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, day = Store.open(stored), date_of_ns(at(MIDNIGHT_S + DAY_S)).date()
    all_read = books(stored, monkeypatch, 5_000, Here(1))
    partly = books(stored, monkeypatch, 5_000, Losing(day))
    assert [failure.reason for failure in partly.coverage.failures] == ["the disk is gone"] * 2
    assert all(str(day) in failure.name for failure in partly.coverage.failures)
    assert partly.coverage.parts == all_read.coverage.parts == partly.coverage.done + 2
    assert_lost(all_read, partly, store, day)

    (path,) = (stored / "telemetry" / f"day={day}").glob("*.parquet")
    damage(path)
    partly = books(stored, monkeypatch, 5_000, Here(2))
    assert len(partly.coverage.failures) == 2
    assert all(str(day) in failure.name and path.name in failure.reason for failure in partly.coverage.failures)
    assert_lost(all_read, partly, store, day)

    since, until = (date_of_ns(at(MIDNIGHT_S + (1 + n) * DAY_S)) for n in range(2))
    alone = reconcile(store, EnergyQuestion("c", since, until), engine=Losing(day))
    assert alone.booked.coverage.done == 0
    of_gpu = alone.gpus.filter(pl.col("gpu") == "GPU-a").row(0, named=True)
    assert (of_gpu["metered_j"], of_gpu["reason"]) == (None, "no telemetry")
    assert alone.balances
    assert made(stored, 4) == 3  # the day with the damaged file is not written
