"""Scores from a store: which GPUs, by which name, on which node, from which runs."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.placement import advise, available, scores
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.analysis.placement.fleets import BEGAN, Fleet, Floats, noise
from whorl.tests.stores import new_store


def _log_normal(seed: int, gpus: int, sd: float) -> Floats:
    return np.exp(np.random.default_rng(seed).normal(0.0, sd, gpus))


def _fleet(gpus: int = 64, seed: int = 0, runs: int = 4) -> Fleet:
    return Fleet(gpus).run("w", _log_normal(seed, gpus, 0.04), noise(np.random.default_rng([seed, 1]), gpus, runs))


def test_gpus_whose_name_or_place_is_not_clear_have_no_node_and_are_told(tmp_path: Path) -> None:
    fleet = _fleet(16)
    for uuid in ("GPU-00000001-0000-0000-0000-000000000000", "GPU-00000002-0000-0000-0000-000000000000"):
        fleet.identity("g00003", uuid=uuid)
    for name, node, slot, days in (
        ("new", "n0000", 2, 9),
        ("twin", "n0001", 1, 0),
    ):  # in the slots of g00002 and g00005
        fleet.identity(name, node=node, slot=slot)
        for run in range(4):
            fleet.add("w", name, 100.0 + run, BEGAN + timedelta(days=days, hours=run))
    fleet.identity("g00009", node="n0003", slot=1)
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    nodes = dict(zip(fleet_scores.gpus, fleet_scores.nodes, strict=True))
    assert "g00003" not in nodes
    assert nodes["new"] == "n0000", "it was measured last"
    assert {name for name, node in nodes.items() if node is None} == {"g00002", "twin", "g00005", "g00009"}
    for sentence in (
        "g00003 left out: each of these names fits several GPUs",
        "slot 2 of n0000 had 2 GPUs: new was measured last",
        "slot 1 of n0001 is given for g00005 and twin",
        "g00009: seen on more than one node",
    ):
        assert any(sentence in note for note in fleet_scores.notes), sentence


def test_gpus_of_synchronous_jobs_are_scored_as_one(tmp_path: Path) -> None:
    """The rows of a job are copies of one time; one node is slower, and which GPU of it nobody can say."""
    rng = np.random.default_rng(0)
    nodes, runs = 40, 4
    level = np.ones(nodes)
    level[7] = 1.5
    luck = np.exp(rng.normal(0.0, 0.05, (nodes, runs))) * level[:, None]
    factors = np.repeat(luck, 4, axis=0) * np.exp(rng.normal(0.0, 0.001, (nodes * 4, runs)))
    jobs = {(gpu, run): f"job-{gpu // 4}-{run}" for gpu in range(nodes * 4) for run in range(runs)}
    fleet_scores = scores(Fleet(nodes * 4).run("w", np.ones(nodes * 4), factors, jobs=jobs).store(tmp_path / "S"))
    scored = fleet_scores.of["w"]
    assert scored.repeatable
    assert (scored.runs == runs).all()
    belief = scored.belief.reshape(nodes, 4)
    assert (belief == belief[:, :1]).all()
    assert belief[7, 0] == pytest.approx(1.5, rel=0.1)
    assert (np.delete(belief, 7, axis=0) == 1.0).all()
    drawn = fleet_scores.one("w").draw(rng).reshape(nodes, 4)
    assert (drawn == drawn[:, :1]).all()
    assert any("only 40 sets of GPUs can be compared, from 160 jobs" in note for note in fleet_scores.notes)


@pytest.mark.long
def test_probes_that_share_a_job_but_no_time_are_scored_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    true_scores = np.ones(80)
    true_scores[9] = 1.5
    jobs = {(gpu, run): f"job-{gpu // 4}-{run}" for gpu in range(80) for run in range(4)}
    fleet_scores = scores(Fleet(80).run("w", true_scores, noise(rng, 80, 4), jobs=jobs).store(tmp_path / "S"))
    assert fleet_scores.one("w").belief[9] == pytest.approx(1.5, rel=0.05)
    assert (np.delete(fleet_scores.one("w").belief, 9) == 1.0).all()


def test_jobs_over_several_nodes_say_too_little_about_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(40)
    for run in range(4):
        for node in range(0, 10, 2 if run == 3 else 1):
            span = 8 if run == 3 else 4  # the last jobs hold two nodes each
            value = 100.0 * float(np.exp(rng.normal(0.0, 0.05)))
            for gpu in range(4 * node, 4 * node + span):
                fleet.add("w", fleet.names[gpu], value, BEGAN + timedelta(hours=run), f"job-{run}-{node}")
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    assert (fleet_scores.of["w"].runs == 3).all()
    assert any("40 runs of w were left out: their jobs used several nodes" in note for note in fleet_scores.notes)


def test_a_workload_of_jobs_over_several_nodes_alone_has_no_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = _fleet(16)
    for run in range(3):
        luck = float(np.exp(rng.normal(0.0, 0.05)))
        for name in fleet.names:
            fleet.add("v", name, 100.0 * luck, BEGAN + timedelta(hours=run), f"job-{run}")
    store = fleet.store(tmp_path / "S")
    why = "all runs of v on c are of jobs on several nodes"
    fleet_scores = scores(store)
    assert fleet_scores.workloads == ("w",)
    assert any(why in note for note in fleet_scores.notes)
    with pytest.raises(InputError, match=why):
        scores(store, ["v"])


def test_runs_without_a_positive_time_are_left_out_and_counted(tmp_path: Path) -> None:
    fleet = _fleet(16)
    fleet.add("w", "g00000", 0.0)
    fleet.add("w", "g00000", float("nan"))
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    assert fleet_scores.of["w"].runs[0] == 4
    assert any("2 runs were left out of w: no positive time" in note for note in fleet_scores.notes)


def test_a_workload_without_usable_times_does_not_stop_the_others(tmp_path: Path) -> None:
    fleet = _fleet(16)
    fleet.add("bandwidth", "g00000", 900.0)
    fleet.tables["results"]["figure"][-1] = "bandwidth"
    fleet.tables["results"]["unit"][-1] = "GB/s"
    fleet.add("a mix", "g00000", 1.0)
    fleet.add("a mix", "g00001", 1.0)
    fleet.tables["results"]["unit"][-1] = "s"
    fleet.add("nought", "g00000", 0.0)
    store = fleet.store(tmp_path / "S")
    fleet_scores = scores(store)
    assert fleet_scores.workloads == ("w",)
    assert advise(fleet_scores, "w", now=BEGAN).workload == "w"
    for workload, why in (
        ("bandwidth", "the runs of bandwidth on c measure no time"),
        ("a mix", "the values of a mix on c are in several units"),
        ("nought", "no run of nought on c has a positive time"),
    ):
        # What has no times by its nature is nothing to note in the advice on another workload.
        assert any(f"{workload} was left out: {why}" in note for note in fleet_scores.notes) is (
            workload != "bandwidth"
        )
        with pytest.raises(InputError, match=why):
            scores(store, [workload])
        with pytest.raises(InputError, match=why):
            advise(fleet_scores, workload)


def test_what_a_store_lacks_is_said_with_what_it_has(tmp_path: Path) -> None:
    empty = new_store(tmp_path / "empty")
    with pytest.raises(InputError, match="has no runs: add some with `whorl import"):
        scores(empty, ["w"])
    store = _fleet(8).store(tmp_path / "S")
    assert available(store) == [("c", "w")]
    fleet = _fleet(8)
    fleet.add("idle", "g00000", 40.0)
    fleet.tables["results"]["figure"][-1] = "power"
    fleet.add("gone", "g00000", 40.0)
    fleet.tables["results"]["figure"][-1] = "power"
    fleet.tables["runs"]["status"][-1] = "the GPU was lost"
    with_idle = fleet.store(tmp_path / "some")
    assert available(with_idle) == [("c", "w")]
    with pytest.raises(InputError, match="the runs of idle on c measure no time, so no GPU can be slow in it"):
        scores(with_idle, ["idle"])
    with pytest.raises(InputError, match="all runs of gone on c failed: measure it again"):
        scores(with_idle, ["gone"])
    assert available(store, "d") == []
    with pytest.raises(InputError, match="no runs of workload v; it has w on c"):
        scores(store, ["v"])
    with pytest.raises(InputError, match="no cluster d; it has w on c"):
        scores(store, ["w"], cluster="d")


def test_of_several_clusters_one_must_be_named(tmp_path: Path) -> None:
    fleet = _fleet(8)
    for table in ("runs", "results", "gpus"):
        if table in fleet.tables:
            fleet.tables[table]["cluster"][-1] = "d"
    store = fleet.store(tmp_path / "S")
    with pytest.raises(InputError, match="w on c and d: name the cluster"):
        scores(store, ["w"])
    assert scores(store, ["w"], cluster="c").cluster == "c"


def test_a_driver_that_the_collector_saw_change_is_known(tmp_path: Path) -> None:
    """As `whorl collect` writes it: a row of `gpus` for a new version, an event where the driver was reloaded."""
    from whorl.collectors.backend import Device
    from whorl.collectors.recording import StoreRecorder
    from whorl.store.events import Event, event_columns
    from whorl.store.vocabulary import EventKind

    store = _fleet(8).store(tmp_path / "S")

    def ns(day: int) -> int:
        return int((BEGAN + timedelta(days=day)).replace(tzinfo=UTC).timestamp()) * 10**9

    with store.journal("n0000") as journal:
        recorder = StoreRecorder(store.root, journal, cluster="c", node="n0000")
        for driver, day in (("550.1", -9), ("560.1", 5)):
            recorder.identify([Device("g00000", {"driver": driver, "slot": 0})], ns(day))
        events = [
            Event(EventKind.DRIVER_RELOADED, None, "the driver is back", ns(day), version=version)
            for day, version in ((5, "560.1"), (7, "550.1"), (8, None))
        ]
        recorder.append_rows(event_columns(events, cluster="c", node="n0000"), "events")
    advice = advise(scores(Store.open(tmp_path / "S")), "w", now=BEGAN + timedelta(days=9))
    assert advice.staleness.stale_gpus == 4  # all of the node
    assert advice.staleness.says is not None
    assert "the driver changed from 550.1 to 560.1 after it was measured (seen 2026-09-06)" in advice.staleness.says
    fleet_scores = scores(Store.open(tmp_path / "S"))
    assert [driver for _, driver in fleet_scores.places[0].drivers] == ["550.1", "560.1", "550.1"]
