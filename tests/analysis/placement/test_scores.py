"""Scores from a store: which GPUs, by which name, on which node, from which runs."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.placement import advise, available, scores
from whorl.analysis.placement.posterior import (
    LogTimes,
    Posterior,
    RunNoise,
    core_scale,
    permutation_test,
    posterior,
    run_noises,
)
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


# -- what runs tell of a score -----------------------------------------------------------------------------------------


def _log_times(values: Floats) -> LogTimes:
    """Log times (gpus, runs) about the median GPU."""
    gpus, runs = values.shape
    level = np.median(np.median(values, axis=1))
    starts = np.arange(gpus + 1) * runs
    return LogTimes((values - level).ravel(), starts, np.full(gpus * runs, -1))


def _scored(seed: int, log_score: Floats, runs: int, sd: float, glitches: float = 0.0) -> Posterior:
    rng = np.random.default_rng(seed)
    values = log_score[:, None] + rng.normal(0.0, sd, (len(log_score), runs))
    values += np.where(rng.random(values.shape) < glitches, np.log(1.5), 0.0)
    return posterior(_log_times(values), rng)


def test_the_density_of_the_noise_is_one_density_with_far_runs_too() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.0, 0.02, (300, 5)) + np.where(rng.random((300, 5)) < 0.1, np.log(1.5), 0.0)
    log_times = _log_times(values)
    scale = core_scale(log_times)
    assert scale is not None
    result = run_noises(log_times, scale, 1.0)[0]
    at = np.arange(-1.0, 1.0, result.step)
    density = np.exp(result.log_density(at))
    assert density.sum() * result.step == pytest.approx(1.0, abs=0.02)
    # A run half as long again is no wonder here, one a third as short is.
    far, never = (float(result.log_density(np.array([at]))[0]) for at in (np.log(1.5), -np.log(1.5)))
    assert far > never + 5.0
    plain = RunNoise.of(scale, np.empty(0), 0.0, 1.0)
    assert far > float(plain.log_density(np.array([np.log(1.5)]))[0]) + 5.0


@pytest.mark.long
def test_shrinks_as_far_as_it_should() -> None:
    """Against the best that anybody could do who knew both standard deviations (normal-normal)."""
    errors = []
    for seed in range(10):
        rng = np.random.default_rng([seed, 1])
        log_score = rng.normal(0.0, 0.02, 300)
        values = log_score[:, None] + rng.normal(0.0, 0.03, (300, 4))
        result = posterior(_log_times(values), rng)
        actual = log_score - np.median(log_score)
        mean = values.mean(axis=1) - np.median(values.mean(axis=1))
        weight = 0.02**2 / (0.02**2 + 0.03**2 / 4)
        errors.append([np.std(np.log(result.belief) - actual), np.std(weight * mean - actual), np.std(mean - actual)])
    error, best, raw = np.mean(errors, axis=0)
    assert error < best * 1.06
    assert best < raw * 0.85  # so there was something to shrink


def test_with_nothing_that_comes_back_every_belief_is_exactly_one() -> None:
    repeatable = 0
    for seed in range(12):
        result = _scored(seed, np.zeros(100), runs=4, sd=0.03, glitches=0.1 if seed % 2 else 0.0)
        repeatable += result.repeatable
        if not result.repeatable:
            assert (result.belief == 1.0).all()
            assert result.reason is not None
            assert not result.standing_out.any()
    # One in twenty is the level: 4 or more of 12 has a chance of 0.2 %.
    assert repeatable <= 3


@pytest.mark.parametrize(
    ("times", "low", "high"), [([1.8, 3.1, 2.2, 4.0, 2.6, 3.3], 2.3, 3.3), ([1.1, 1.45, 1.35, 1.2], 1.15, 1.35)]
)
def test_a_gpu_whose_runs_disagree_has_a_wide_interval(times: list[float], low: float, high: float) -> None:
    """However narrow those of its fleet are: a prior knows no GPU like it."""
    rng = np.random.default_rng(4)
    values = rng.normal(0.0, 0.02, (100, len(times)))
    values[17] = np.log(times)
    result = posterior(_log_times(values), rng)
    assert result.lower[17] < low
    assert result.upper[17] > high
    assert (result.lower <= result.belief).all()
    assert (result.belief <= result.upper).all()


def test_three_glitches_in_a_row_are_not_a_slow_gpu() -> None:
    """A tenth of the runs takes half as long again: of 300 GPUs with 3 runs, some have nothing else."""
    met = wrong = 0
    for seed in (0, 5, 12, 15, 18, 26):  # in the last four there is such a GPU
        rng = np.random.default_rng([seed, 3])
        log_score = np.zeros(300)
        log_score[0] = np.log(2.8)  # so that something does come back
        far = rng.random((300, 3)) < 0.1
        values = log_score[:, None] + rng.normal(0.0, 0.02, (300, 3)) + np.where(far, np.log(1.5), 0.0)
        result = posterior(_log_times(values), rng)
        met += int(far[1:].all(axis=1).sum())
        wrong += int(((result.lower > 1.2) & result.standing_out)[1:].sum())
        assert result.lower[0] > 1.2
        assert result.standing_out[0]
    assert met >= 3
    assert wrong == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpus", "runs", "between", "sd"),
    [(200, 5, 0.03, 0.02), (200, 4, 0.01, 0.02), (60, 12, 0.03, 0.02), (200, 2, 0.03, 0.02)],
)
def test_intervals_hold_what_they_say(gpus: int, runs: int, between: float, sd: float) -> None:
    covered = []
    for seed in range(6):
        rng = np.random.default_rng([seed, 5])
        log_score = rng.normal(0.0, between, gpus)
        result = _scored(seed, log_score, runs, sd)
        actual = np.exp(log_score - np.median(log_score))
        assert result.repeatable
        covered.append(np.mean((result.lower <= actual) & (actual <= result.upper)))
    assert 0.84 <= np.mean(covered) <= 0.96


def test_gpus_that_cannot_be_told_apart_are_drawn_alike_whatever_was_measured_of_them() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(0.0, 0.03, (60, 3))
    log_times = _log_times(values)
    result = posterior(log_times, rng)
    assert not result.repeatable
    draws = np.array([result.draw(rng) for _ in range(3000)])
    lucky, unlucky = int(values.mean(axis=1).argmin()), int(values.mean(axis=1).argmax())
    error = np.hypot(draws[:, lucky].std(), draws[:, unlucky].std()) / np.sqrt(len(draws))
    assert abs(draws[:, lucky].mean() - draws[:, unlucky].mean()) <= 4.0 * error + 1e-9


def test_what_a_job_met_is_not_what_its_gpus_are() -> None:
    """Four GPUs of a node share each job's luck, and no GPU differs; then one does."""
    repeatable = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 6])
        luck = np.repeat(rng.normal(0.0, 0.05, (25, 3)), 4, axis=0)
        values = luck + rng.normal(0.0, 0.01, (100, 3))
        log_times = _log_times(values)
        job = (np.repeat(np.arange(25), 4)[:, None] * 3 + np.arange(3)).ravel()
        result = permutation_test(LogTimes(log_times.x, log_times.starts, job), rng)
        assert result is not None
        repeatable += result.repeatable
        if seed < 2:
            values[42] += np.log(2.0)
            slow = _log_times(values)
            result = permutation_test(LogTimes(slow.x, slow.starts, job), rng)
            assert result is not None
            assert result.repeatable
            assert result.standing_out.nonzero()[0].tolist() == [42]
    # At the level of one in twenty, 4 or more of 10 has a chance of 0.1 %.
    assert repeatable <= 3


def test_a_gpu_that_changes_its_mind_is_known_less_well_than_its_many_runs_suggest() -> None:
    rng = np.random.default_rng(9)
    values = rng.normal(0.0, 0.03, (100, 1)) + rng.normal(0.0, 0.002, (100, 10))
    values[0] = np.where(np.arange(10) % 2, 0.0, 0.3) + rng.normal(0.0, 0.002, 10)
    result = posterior(_log_times(values), rng)
    width = result.upper - result.lower
    assert width[0] > 10.0 * np.median(width[1:])
    assert result.lower[0] < 1.1


def test_of_very_many_runs_a_few_deals_tell_the_same() -> None:
    """More runs than 50,000 are dealt less often; one slow GPU of 20,000 stands out, and where none is, none does."""
    rng = np.random.default_rng(5)
    values = rng.normal(0.0, 0.01, (20_000, 3))
    equal = permutation_test(_log_times(values), rng)
    assert equal is not None
    assert not equal.repeatable
    values[7] += 0.2
    slow = permutation_test(_log_times(values), rng)
    assert slow is not None
    assert slow.repeatable
    assert slow.standing_out.nonzero()[0].tolist() == [7]
