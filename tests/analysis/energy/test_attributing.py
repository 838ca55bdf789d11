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
from whorl.store import Store
from whorl.store.events import Event, event_rows
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EventKind
from whorl.tests.analysis.energy.stored import Books, at, books, gpu, job, meters, readings, store_of

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
    **options: Any,
) -> Books:  # fmt: skip
    booked = books(store_of(path / "s", gpus or [gpu("GPU-a")], telemetry, jobs), **options)
    balanced(booked)
    return booked


def balanced(booked: Books) -> None:
    """attributed + idle + unattributed = metered, of every GPU."""
    sums = booked.pieces.filter(pl.col("gpu").is_not_null()).group_by("cluster", "gpu").agg(pl.col("energy_j").sum())
    joined = booked.metered.join(sums, on=["cluster", "gpu"])
    assert joined.height == booked.metered.height
    assert joined["energy_j"].to_numpy() == pytest.approx(joined["metered_j"].to_numpy(), rel=1e-9, abs=1e-9)


def of_jobs(booked: Books) -> dict[str, float | None]:
    sums = add_up(booked.pieces.filter(pl.col("kind") == "job"), ["allocation"])
    return dict(sums.select(pl.col("allocation").str.strip_suffix(".0"), "energy_j").iter_rows())


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


def test_a_job_whose_gpu_nobody_knows_is_bounded_by_what_is_unattributed_on_its_node(several: Books) -> None:
    frame = several.pieces.filter(pl.col("gpu") == "other")
    assert frame.filter(pl.col("kind") == "unattributed")["energy_j"].sum() == pytest.approx(200 * 150, rel=0.01)
    unknown = several.pieces.filter(pl.col("allocation") == "h2.0")
    row = add_up(unknown, []).row(0, named=True)
    assert (row["energy_j"], row["reason"]) == (None, JobReason.GPU_NOT_KNOWN)
    assert unknown["above_j"].sum() == pytest.approx(200 * 150, rel=0.05)


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
    joules = of_jobs(made(tmp_path / "by share", [load((200, 400, 250))], jobs, gpus=gpus))
    assert joules["1"] == pytest.approx(200 * (50 * 3 / 7 + 200 * 3 / 5), rel=0.01)
    assert joules["2"] == pytest.approx(200 * (50 * 2 / 7 + 200 * 2 / 5), rel=0.01)

    seconds = list(range(0, 1001, 10))
    nothing = {"power_mw": [None] * 101, "power_limit_mw": [None] * 101}
    activity = [
        readings(big, seconds, [0] * 101, **nothing | {"utilization": [20] * 101}),
        readings(small, seconds, [0] * 101, **nothing | {"utilization": [90] * 101}),
    ]
    joules = of_jobs(made(tmp_path / "by activity", [load((200, 400, 250)), *activity], jobs, gpus=gpus))
    assert joules["1"] == pytest.approx(200 * (50 * 3 / 7 + 200 * 0.6 / 2.4), rel=0.01)
    assert joules["2"] == pytest.approx(200 * (50 * 2 / 7 + 200 * 1.8 / 2.4), rel=0.01)


def test_jobs_of_unknown_share_that_overlap_are_named_each_and_those_alone_are_not(
    cases: Callable[[str], Books],
) -> None:
    booked = cases("no share known")
    assert of_jobs(booked)["4"] == pytest.approx(100 * 250 / 3, rel=0.01)
    rows = booked.problems.select("problem", "job_id", "other_job_id").rows()
    assert set(rows) == {(JobProblem.OVERLAP_NO_SHARES, *pair) for pair in (("2", "3"), ("2", "4"))}
    first = booked.problems.row(0, named=True)
    assert (first["began"] - first["ended"]).total_seconds() == -100


def test_jobs_known_by_their_processes_share_by_the_busy_time_of_these(tmp_path: Path) -> None:
    """While one of them is alone it has all of the GPU; idle power is split into equal parts."""
    from_process = {"gpu_from": "process", "source": "cgroup"}
    jobs = [
        job(1, "GPU-a", 200, 400, share=0.75, **from_process),
        job(2, "GPU-a", 300, 400, share=0.25, **from_process),
    ]
    booked = made(tmp_path / "known", [load((200, 400, 250))], jobs)
    assert of_jobs(booked)["1"] == pytest.approx(100 * 250 + 100 * (25 + 0.75 * 200), rel=0.01)
    assert of_jobs(booked)["2"] == pytest.approx(100 * (25 + 0.25 * 200), rel=0.01)
    assert booked.problems.is_empty()
    jobs[1]["share"] = None
    booked = made(tmp_path / "unknown", [load((200, 400, 250))], jobs)
    assert of_jobs(booked)["2"] == pytest.approx(100 * 125, rel=0.01)
    assert booked.problems["problem"].to_list() == [JobProblem.SHARE_NOT_KNOWN]


def test_reloads_of_the_driver_and_refused_jobs_are_named(tmp_path: Path) -> None:
    events = [
        {"ts": at(300), "cluster": "c", "node": "n1", "kind": "driver_reloaded"},
        {"ts": at(100), "cluster": "c", "kind": "job_refused", "job_id": "9", "duration_ns": -5},
    ]
    jobs = [job(1, "GPU-a", 200, 400), job(2, "GPU-a", 500, 600)]
    store = store_of(tmp_path / "s", [gpu("GPU-a")], [load((200, 400, 250))], jobs, events)
    booked = dict(books(store).problems.drop_nulls("job_id").select("job_id", "problem").iter_rows())
    assert booked == {"1": JobProblem.RELOAD, "9": JobProblem.BACKWARD}


def test_a_gpu_that_is_known_by_number_and_by_uuid_is_told_of_where_both_were_read(tmp_path: Path) -> None:
    """GPU-a is `n1:0` too, from a log without UUIDs; `n1:1` was read before GPU-b, which is no doubt."""
    inventory = [("GPU-a", 0, "GPU-a"), ("n1:0", 0, None), ("GPU-b", 1, "GPU-b"), ("n1:1", 1, None)]
    gpus = [gpu(name, slot=slot, uuid=uuid) for name, slot, uuid in inventory]
    read = [("GPU-a", 0), ("n1:0", 50), ("GPU-b", 300), ("n1:1", 0)]
    telemetry = [readings(name, range(begin, begin + 101), [100.0] * 101) for name, begin in read]
    booked = made(tmp_path, telemetry, [], gpus=gpus)
    (row,) = booked.problems.iter_rows(named=True)
    assert (row["gpu"], row["problem"]) == ("n1:0", Problem.TWICE)
    assert (row["ended"] - row["began"]).total_seconds() == 50


# -- moves -------------------------------------------------------------------------------------------------------------
# GPUs that were on several nodes, one after another: energy and jobs are of the node where a GPU was then.


def test_boards_that_were_exchanged_have_their_energy_on_both_nodes(tmp_path: Path) -> None:
    """GPU-a with 100 W and GPU-b with 300 W change places after 400 of 1000 s, and job 1 had a GPU of n1 before."""
    steady = [readings(name, range(1001), [watts] * 1001) for name, watts in (("GPU-a", 100), ("GPU-b", 300))]
    places = [("GPU-a", "n1", 0), ("GPU-b", "n2", 0), ("GPU-a", "n2", 400), ("GPU-b", "n1.example.org", 400)]
    gpus = [gpu(name, node=node, first_seen=at(seconds)) for name, node, seconds in places]
    # Neither another spelling of the node nor a row that was found by the node's name is a move.
    gpus += [gpu("GPU-b", node="n1", first_seen=at(600)), gpu("GPU-a", node="n1", uuid=None, first_seen=at(700))]
    booked = books(store_of(tmp_path / "s", gpus, steady, [job(1, None, 100, 300)]))
    on = booked.pieces.filter(pl.col("gpu").is_not_null()).group_by("gpu", "node").agg(pl.col("energy_j").sum())
    assert {(name, node): joules for name, node, joules in on.iter_rows()} == pytest.approx(
        {("GPU-a", "n1"): 4e4, ("GPU-a", "n2"): 6e4, ("GPU-b", "n2"): 12e4, ("GPU-b", "n1.example.org"): 18e4}
    )
    of_job: dict[str, Any] = booked.pieces.filter(pl.col("kind") == "job").row(0, named=True)
    assert (of_job["node"], of_job["gpu"]) == ("n1", None)
    assert of_job["above_j"] == pytest.approx(2e4)  # at most what GPU-a had meanwhile


# -- happened ----------------------------------------------------------------------------------------------------------
# What a meter tells of events: reloads of the driver, and clocks that were set.


T0, S = 1_793_530_000 * 10**9, 10**9


def stored(store: Store, *events: Event) -> None:
    """Two GPUs of node n1 and one of n2, a reading a second for a minute; and events."""
    gpus, nodes = ["A", "B", "C"], ["n1", "n1", "n2"]
    rows = [(gpu, T0 + k * S, 100_000 + k) for gpu in gpus for k in range(60)]
    columns = {"gpu": [r[0] for r in rows], "ts": [r[1] for r in rows], "power_mw": [r[2] for r in rows]}
    tables = {
        "gpus": arrow_rows("gpus", {"cluster": ["c"] * 3, "gpu": gpus, "node": nodes, "slot": [0, 1, 0]}),
        "telemetry": arrow_rows("telemetry", {"cluster": ["c"] * len(rows), **columns}),
    }
    store.append(tables, "rows")
    store.append({"events": pa.Table.from_batches([event_rows(events, cluster="c")])}, "events")


def notes(
    store: Store, since_ns: int | None = None, until_ns: int | None = None
) -> dict[str, list[tuple[str, int, int]]]:
    kinds = ("driver reload", "clock step")
    return {
        meter.gpu: [(n.problem, n.began_ns, n.ended_ns) for n in meter.notes if n.problem in kinds]
        for meter in meters(store, since_ns=since_ns, until_ns=until_ns)
    }


def test_events_of_gpus_and_of_nodes_are_notes_of_their_meters(store: Store) -> None:
    stored(
        store,
        Event(EventKind.DRIVER_RELOADED, None, "it is back", T0 + 20 * S, "n1", version="550"),
        Event(EventKind.CLOCK_STEP, "C", "back", T0 + 30 * S, duration_ns=-5 * S),
        Event(EventKind.CLOCK_STEP, None, "ahead", T0 + 40 * S, "n2", duration_ns=7 * S),
        Event(EventKind.XID, "C", "XID 63", T0 + 31 * S, code=63),
    )
    reload = ("driver reload", T0 + 20 * S, T0 + 20 * S)
    back, ahead = ("clock step", T0 + 30 * S, T0 + 35 * S), ("clock step", T0 + 33 * S, T0 + 40 * S)
    assert notes(store) == {"A": [reload], "B": [reload], "C": [back, ahead]}
    assert notes(store, since_ns=T0 + 25 * S, until_ns=T0 + 35 * S) == {"A": [], "B": [], "C": [back]}
