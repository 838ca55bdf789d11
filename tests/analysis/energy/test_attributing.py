"""Whose the energy of a GPU was: every case of the books on a GPU of 50 W without work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis.energy.attribute import JobReason
from whorl.analysis.energy.books import add_up
from whorl.analysis.energy.claims import JobProblem
from whorl.analysis.energy.sensor import Problem
from whorl.tests.analysis.energy.stored import Books, at, books, gpu, job, readings, store_of

IDLE_W = 50.0


def load(*busy: tuple[float, float, float], to: float = 1000, name: str = "GPU-a", step: float = 1.0) -> pa.Table:
    """A second-by-second reading: 50 W, but `watts` from `began` to `ended` of each busy time."""
    seconds = np.arange(0, to + step, step)
    watts = np.full(len(seconds), IDLE_W)
    for began, ended, level in busy:
        watts[(seconds >= began) & (seconds <= ended)] = level
    return readings(name, seconds.tolist(), watts.tolist())


def made(
    path: Path, telemetry: Sequence[pa.Table], jobs: Sequence[dict[str, Any]], *, gpus: Sequence[dict[str, Any]] = (),
    **other: Any,
) -> Books:  # fmt: skip
    found = books(store_of(path / "s", gpus or [gpu("GPU-a")], telemetry, jobs), **other)
    balanced(found)
    return found


def balanced(found: Books) -> None:
    """attributed + idle + unattributed = metered, of every GPU."""
    sums = found.pieces.filter(pl.col("gpu").is_not_null()).group_by("cluster", "gpu").agg(pl.col("energy_j").sum())
    both = found.metered.join(sums, on=["cluster", "gpu"])
    assert both.height == found.metered.height
    assert both["energy_j"].to_numpy() == pytest.approx(both["metered_j"].to_numpy(), rel=1e-9, abs=1e-9)


def of_jobs(found: Books) -> dict[str, float | None]:
    sums = add_up(found.pieces.filter(pl.col("kind") == "job"), ["allocation"])
    return dict(sums.select(pl.col("allocation").str.strip_suffix(".0"), "energy_j").iter_rows())


def of_kinds(found: Books) -> dict[str, float]:
    return dict(found.pieces.group_by("kind").agg(pl.col("energy_j").sum()).iter_rows())


# The busy times (from, to, W) of one GPU, and its jobs (from, to or None while it runs, share).
Busy = tuple[float, float, float]
Job = tuple[float, float | None, float | None]
CASES: dict[str, tuple[list[Busy], list[Job]]] = {
    "exclusive": ([(200, 400, 250)], [(200, 400, 1.0)]),
    "work without a job": ([(200, 400, 250), (600, 720, 200)], [(200, 400, 1.0)]),
    "equal shares": ([(200, 400, 250)], [(200, 400, 0.5), (200, 400, 0.5)]),
    "a quarter": ([(200, 400, 250)], [(200, 400, 0.25)]),
    "overlap": ([(200, 500, 250)], [(200, 400, 1.0), (300, 500, 1.0)]),
    "one share unknown": ([(200, 400, 250)], [(200, 400, 0.6), (200, 400, None)]),
    "no share known": (
        [(200, 500, 250)],
        [(0, 100, None), (200, 400, None), (300, 500, None), (300, 400, None), (600, 700, None)],
    ),
    "still running": ([(200, 1000, 250)], [(200, None, 1.0)]),
    "never idle": ([(0, 1000, 250)], [(200, 400, 0.25)]),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Books]:
    """The books of a case, whose jobs are 1, 2, ...; all are of one store, with a node and a GPU each."""
    gpus, telemetry, jobs = [], [], []
    for node, (case, (busy, times)) in enumerate(CASES.items()):
        gpus.append(gpu(case, node=f"n{node}"))
        telemetry.append(load(*busy, name=case))
        for number, (began, ended, share) in enumerate(times, 1):
            jobs.append(
                job(f"{case}/{number}", case, began, ended, share=share, state="COMPLETED" if ended else "RUNNING")
            )
    of_all = made(tmp_path_factory.mktemp("books"), telemetry, jobs, gpus=gpus)

    def books_of(case: str) -> Books:
        frames = (frame.filter(pl.col("gpu") == case) for frame in (of_all.pieces, of_all.metered, of_all.problems))
        return Books(*(frame.with_columns(pl.col("^(allocation|(other_)?job_id)$").str.strip_prefix(f"{case}/"))
                       for frame in frames))  # fmt: skip

    return books_of


@pytest.mark.long(short=4)
@pytest.mark.parametrize(
    ("case", "jobs_j", "idle_j"),
    [
        ("exclusive", [200 * 250], 800 * 50),
        ("work without a job", [200 * 250], 680 * 50),
        ("equal shares", [100 * 250, 100 * 250], 800 * 50),
        ("a quarter", [200 * (0.25 * 50 + 200)], 800 * 50 + 200 * 0.75 * 50),  # who works has the rest
        ("overlap", [150 * 250, 150 * 250], 700 * 50),
        ("one share unknown", [0.6 * 200 * 250, 0.4 * 200 * 250], 800 * 50),  # it is what the other left
        ("still running", [800 * 250], 200 * 50),  # to its last reading
        ("never idle", [0.25 * 200 * 250], None),
    ],
)
def test_the_energy_of_jobs_and_of_idle_time(
    cases: Callable[[str], Books], case: str, jobs_j: list[float], idle_j: float | None
) -> None:
    found = cases(case)
    assert list(of_jobs(found).values()) == pytest.approx(jobs_j, rel=0.01)
    kinds = of_kinds(found)
    assert kinds.get("idle") == (None if idle_j is None else pytest.approx(idle_j, rel=0.02))
    unattributed = {"work without a job": 120 * 200, "never idle": 800 * 250 + 0.75 * 200 * 250}
    assert kinds.get("unattributed", 0.0) == pytest.approx(unattributed.get(case, 0.0), rel=0.05, abs=500)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """The books of a store of several nodes, for the tests below: each looks at the GPUs and jobs of its own node."""
    far_apart = [*range(306), *range(86_445, 87_001)]
    gpus = [
        gpu("coarse", node="coarse"), gpu("paused", node="paused"), gpu("slot", node="placed", slot=3),
        gpu("busy", node="half"), gpu("other", node="half"), gpu("read", node="read"), gpu("unread", node="read"),
    ]  # fmt: skip
    telemetry = [
        load((200, 400, 250), (440, 700, 250), step=30, name="coarse"),
        readings("paused", far_apart, [IDLE_W] * len(far_apart)),
        load((200, 400, 250), name="slot"), load((0, 1000, 250), name="busy"), load((200, 400, 150), name="other"),
        load(name="read"),
    ]  # fmt: skip
    jobs = [
        job("c1", "coarse", 200, 400), job("c2", "coarse", 440, 700),
        job("p", "placed/3", 200, 400, gpu_from="file"),
        job("h1", "busy", 0, 1000, node="half"), job("h2", None, 200, 400, node="half"),
        job("r1", "unread", 0, 100), job("r2", "GPU-who", 0, 100), job("r3", "read", 2000, 2100),
        job("r4", "read", 100, 50),
    ]  # fmt: skip
    return made(tmp_path_factory.mktemp("several"), telemetry, jobs, gpus=gpus)


def test_readings_that_speak_for_a_job_and_the_time_after_it_do_not_make_unknown_work(several: Books) -> None:
    assert set(several.pieces.filter(pl.col("gpu") == "coarse")["kind"]) == {"job", "idle"}


def test_a_job_whose_gpu_nobody_knows_is_bounded_by_what_is_unattributed_on_its_node(several: Books) -> None:
    other = several.pieces.filter(pl.col("gpu") == "other")
    assert other.filter(pl.col("kind") == "unattributed")["energy_j"].sum() == pytest.approx(200 * 150, rel=0.01)
    unknown = several.pieces.filter(pl.col("allocation") == "h2.0")
    row = add_up(unknown, []).row(0, named=True)
    assert (row["energy_j"], row["reason"]) == (None, JobReason.GPU_NOT_KNOWN)
    assert unknown["above_j"].sum() == pytest.approx(200 * 150, rel=0.05)


def test_jobs_without_readings_have_a_reason_and_no_zero(several: Books) -> None:
    of = several.pieces.filter(pl.col("allocation").str.starts_with("r"))
    assert [of_jobs(several)[f"r{number}"] for number in (1, 2, 3, 4)] == [None] * 4
    assert dict(of.select("allocation", "reason").iter_rows()) == {
        "r1.0": "no telemetry", "r2.0": "no telemetry", "r3.0": "no telemetry", "r4.0": JobReason.BACKWARD,
    }  # fmt: skip
    assert dict(several.problems.drop_nulls("job_id").select("job_id", "problem").iter_rows()) == {
        "r1": JobProblem.NO_TELEMETRY, "r2": JobProblem.UNKNOWN_GPU, "r4": JobProblem.BACKWARD,
        "h2": JobProblem.GPU_NOT_KNOWN,
    }  # fmt: skip
    bounds = dict(of.select("allocation", "above_j").iter_rows())
    assert bounds["r1.0"] == pytest.approx(100 * 300)


def test_a_time_without_readings_is_not_called_idle_and_what_was_read_just_before_and_after_it_is(
    several: Books,
) -> None:
    """Most of the minute in which readings end, and of that in which they begin again, has none."""
    paused = several.pieces.filter(pl.col("gpu") == "paused")
    gap = paused.filter(pl.col("kind") == "unattributed")
    assert (gap["ended"] - gap["began"]).dt.total_seconds().to_list() == [86_445 - 305]
    idle = paused.filter(pl.col("kind") == "idle")
    assert idle["measured_s"].sum() == pytest.approx(305 + 555)
    assert idle["energy_j"].sum() == pytest.approx((305 + 555) * IDLE_W)


@pytest.mark.long
def test_mig_instances_share_by_their_profiles_and_by_activity_where_it_is_read(tmp_path: Path) -> None:
    big, small = "MIG-big", "MIG-small"
    gpus = [
        gpu("GPU-a"), gpu(big, uuid=None, parent="GPU-a", mig_profile="3g.40gb"),
        gpu(small, uuid=None, parent="GPU-a", mig_profile="2g.20gb"),
    ]  # fmt: skip
    jobs = [job(1, big, 200, 400), job(2, small, 200, 400)]
    found = of_jobs(made(tmp_path / "by share", [load((200, 400, 250))], jobs, gpus=gpus))
    assert found["1"] == pytest.approx(200 * (50 * 3 / 7 + 200 * 3 / 5), rel=0.01)
    assert found["2"] == pytest.approx(200 * (50 * 2 / 7 + 200 * 2 / 5), rel=0.01)

    seconds = list(range(0, 1001, 10))
    nothing = {"power_mw": [None] * 101, "power_limit_mw": [None] * 101}
    activity = [
        readings(big, seconds, [0] * 101, **nothing | {"utilization": [20] * 101}),
        readings(small, seconds, [0] * 101, **nothing | {"utilization": [90] * 101}),
    ]
    found = of_jobs(made(tmp_path / "by activity", [load((200, 400, 250)), *activity], jobs, gpus=gpus))
    assert found["1"] == pytest.approx(200 * (50 * 3 / 7 + 200 * 0.6 / 2.4), rel=0.01)
    assert found["2"] == pytest.approx(200 * (50 * 2 / 7 + 200 * 1.8 / 2.4), rel=0.01)


def test_jobs_that_overlap_on_one_gpu_are_named(cases: Callable[[str], Books]) -> None:
    problem = cases("overlap").problems.row(0, named=True)
    assert (problem["problem"], problem["job_id"], problem["other_job_id"]) == (JobProblem.OVERLAP, "1", "2")
    assert problem["joules"] == pytest.approx(100 * 250, rel=0.01)
    assert cases("one share unknown").problems["problem"].to_list() == [JobProblem.SHARE_NOT_KNOWN]


def test_jobs_of_unknown_share_that_overlap_are_named_each_and_those_alone_are_not(
    cases: Callable[[str], Books],
) -> None:
    found = cases("no share known")
    assert of_jobs(found)["4"] == pytest.approx(100 * 250 / 3, rel=0.01)
    shown = found.problems.select("problem", "job_id", "other_job_id").rows()
    assert set(shown) == {(JobProblem.OVERLAP_NO_SHARES, *pair) for pair in (("2", "3"), ("2", "4"))}
    first = found.problems.row(0, named=True)
    assert (first["began"] - first["ended"]).total_seconds() == -100


def test_jobs_known_by_their_processes_share_by_the_busy_time_of_these(tmp_path: Path) -> None:
    """While one of them is alone it has all of the GPU; idle power is split into equal parts."""
    seen = {"gpu_from": "process", "source": "cgroup"}
    jobs = [job(1, "GPU-a", 200, 400, share=0.75, **seen), job(2, "GPU-a", 300, 400, share=0.25, **seen)]
    found = made(tmp_path / "known", [load((200, 400, 250))], jobs)
    assert of_jobs(found)["1"] == pytest.approx(100 * 250 + 100 * (25 + 0.75 * 200), rel=0.01)
    assert of_jobs(found)["2"] == pytest.approx(100 * (25 + 0.25 * 200), rel=0.01)
    assert found.problems.is_empty()
    jobs[1]["share"] = None
    found = made(tmp_path / "unknown", [load((200, 400, 250))], jobs)
    assert of_jobs(found)["2"] == pytest.approx(100 * 125, rel=0.01)
    assert found.problems["problem"].to_list() == [JobProblem.SHARE_NOT_KNOWN]


def test_reloads_of_the_driver_and_refused_jobs_are_named(tmp_path: Path) -> None:
    events = [
        {"ts": at(300), "cluster": "c", "node": "n1", "kind": "driver_reloaded"},
        {"ts": at(100), "cluster": "c", "kind": "job_refused", "job_id": "9", "duration_ns": -5},
    ]
    jobs = [job(1, "GPU-a", 200, 400), job(2, "GPU-a", 500, 600)]
    store = store_of(tmp_path / "s", [gpu("GPU-a")], [load((200, 400, 250))], jobs, events)
    found = dict(books(store).problems.drop_nulls("job_id").select("job_id", "problem").iter_rows())
    assert found == {"1": JobProblem.RELOAD, "9": JobProblem.BACKWARD}


def test_a_gpu_that_is_known_by_number_and_by_uuid_is_told_of_where_both_were_read(tmp_path: Path) -> None:
    """GPU-a is `n1:0` too, from a log without UUIDs; `n1:1` was read before GPU-b, which is no doubt."""
    known = [("GPU-a", 0, "GPU-a"), ("n1:0", 0, None), ("GPU-b", 1, "GPU-b"), ("n1:1", 1, None)]
    gpus = [gpu(name, slot=slot, uuid=uuid) for name, slot, uuid in known]
    read = [("GPU-a", 0), ("n1:0", 50), ("GPU-b", 300), ("n1:1", 0)]
    telemetry = [readings(name, range(begin, begin + 101), [100.0] * 101) for name, begin in read]
    found = made(tmp_path, telemetry, [], gpus=gpus)
    (row,) = found.problems.iter_rows(named=True)
    assert (row["gpu"], row["problem"]) == ("n1:0", Problem.TWICE)
    assert (row["ended"] - row["began"]).total_seconds() == 50
