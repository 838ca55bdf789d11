"""What a model sees of a queue, and how often the quantiles of a wait are right."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.chains.jobs_log import FloatArray, JobsLog
from whorl.analysis.chains.queue import Queue
from whorl.analysis.chains.waits import (
    FEATURES,
    LEAST_WAITS,
    QueueState,
    WaitModel,
    features,
    features_of,
    first_fit_s,
    free_at,
    site_model,
    states_of,
)
from whorl.errors import InputError
from whorl.tests.analysis.chains.logs import drawn_log, lonestar, needs_lonestar

HOUR_S = 3600.0
DAY_S = 86400.0


def state(pending: list[tuple[int, float]], running: list[tuple[int, float]], free_nodes: int) -> QueueState:
    """A queue at time 0: (nodes, limit in hours) of jobs that wait for an hour, (nodes, hours left) of others."""
    return QueueState(
        now_s=0.0,
        free_nodes=free_nodes,
        cluster_nodes=free_nodes + sum(nodes for nodes, _ in running),
        pending_nodes=np.array([nodes for nodes, _ in pending], dtype=np.int64),
        pending_limit_s=np.array([HOUR_S * limit for _, limit in pending], dtype=np.float64),
        pending_since_s=np.full(len(pending), -HOUR_S),
        running_nodes=np.array([nodes for nodes, _ in running], dtype=np.int64),
        running_until_s=np.array([HOUR_S * hours for _, hours in running], dtype=np.float64),
        recent_waits_s=HOUR_S * np.array([1.0, 3.0]),
    )


def test_features_of_a_small_queue() -> None:
    queue = state(pending=[(3, 10), (1, 4)], running=[(2, 1.5), (4, 8), (1, 30)], free_nodes=1)
    # Three nodes are free after 1.5 h. The job of one node fits before that at once, for four hours.
    feature_rows = dict(zip(FEATURES, features(queue, 2, 48 * HOUR_S).tolist(), strict=True))
    assert (feature_rows["pending_jobs"], feature_rows["pending_nodes"], feature_rows["pending_node_h"]) == (2, 4, 34)
    assert (feature_rows["running_jobs"], feature_rows["running_node_h"], feature_rows["free_nodes"]) == (
        3,
        3 + 32 + 30,
        1,
    )
    assert [feature_rows[f"ending_nodes_{hours}h"] for hours in (2, 6, 12, 24)] == [2, 2, 6, 6]
    assert (feature_rows["recent_wait_mean_h"], feature_rows["recent_wait_max_h"]) == (2, 3)
    assert (feature_rows["first_pending_nodes"], feature_rows["first_pending_age_h"]) == (3, 1)
    assert (feature_rows["hour"], feature_rows["weekday"]) == (0, 3)
    assert feature_rows["first_fit_h"] == 8


@pytest.mark.parametrize(
    ("nodes", "limit_h", "expected_h"),
    [(1, 1.5, 0), (1, 2, 5.5), (2, 3, 5.5), (5, 1, 8), (7, 1, 8), (8, 1, 30), (9, 1, np.inf)],
)
def test_first_fit_plans_the_pending_jobs_first(nodes: int, limit_h: float, expected_h: float) -> None:
    """1 of 8 nodes is free, 2 more from 1.5 h, 4 more from 8 h, all from 30 h; 3 are planned from 1.5 h to 5.5 h."""
    queue = state(pending=[(3, 4)], running=[(2, 1.5), (4, 8), (1, 30)], free_nodes=1)
    assert first_fit_s(queue, nodes, limit_h * HOUR_S) == expected_h * HOUR_S


def test_a_real_history_shows_the_queue_that_was() -> None:
    """A replayed log as history: at any moment its state is that of the queue which made it."""
    log = drawn_log(4, 400, load=1.2)
    queue = Queue(log, 16)
    queue.run_out()
    start_s = np.array([queue.starts_s[row] for row in range(len(log))])
    history = JobsLog(log.submit_s, start_s, start_s + log.run_times_s, log.limit_s, log.nodes, "replayed")
    times_s = log.submit_s[[50, 200, 350]] - 0.5
    queue = Queue(log, 16)
    for past in states_of(history, 16, times_s):
        queue.advance(past.now_s)
        expected = queue.state()
        assert past.free_nodes == expected.free_nodes
        for name in ("pending_nodes", "pending_limit_s", "pending_since_s"):
            assert np.array_equal(getattr(past, name), getattr(expected, name))
        for name in ("running_nodes", "running_until_s", "recent_waits_s"):
            assert np.array_equal(np.sort(getattr(past, name)), np.sort(getattr(expected, name)))


def drawn_waits(seed: int, count: int, *, spread: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Features, of which first fit alone matters, and waits around a third of it; `spread` widens their law."""
    rng = np.random.default_rng(seed)
    feature_rows = rng.uniform(0, 10, size=(count, len(FEATURES)))
    first_fit_h = feature_rows[:, FEATURES.index("first_fit_h")] = rng.uniform(0, 60, size=count)
    return feature_rows, HOUR_S * first_fit_h * 0.3 * rng.gamma(4 / spread, spread / 4, size=count)


def test_quantiles_are_ordered_and_right_as_often_as_they_say() -> None:
    feature_rows, waits_s = drawn_waits(0, 1000)
    model = WaitModel.fit(feature_rows, waits_s, np.arange(1000.0), used_share=0.3, quantiles=(0.9, 0.5, 0.75))
    later, later_waits_s = drawn_waits(1, 3000)
    predicted_s = model.predict(later)
    assert model.quantiles == (0.5, 0.75, 0.9)
    assert predicted_s.min() >= 0
    assert (np.diff(predicted_s, axis=1) >= 0).all()
    covered = (later_waits_s[:, None] <= predicted_s).mean(axis=0)
    assert covered == pytest.approx([0.5, 0.75, 0.9], abs=0.05)
    assert [share for share, _ in model.coverage.values()] == pytest.approx([0.5, 0.75, 0.9], abs=0.1)
    assert {n for _, n in model.coverage.values()} == {100}


def test_too_little_history_is_a_sentence() -> None:
    feature_rows, waits_s = drawn_waits(0, LEAST_WAITS - 1)
    with pytest.raises(InputError, match=f"499 waits are too little to learn from; a model needs {LEAST_WAITS}"):
        WaitModel.fit(feature_rows, waits_s, np.arange(LEAST_WAITS - 1.0), used_share=0.3)
    log = drawn_log(0, LEAST_WAITS - 1)
    for jobs in (log, log.until(0.0)):
        with pytest.raises(InputError, match=f"has {len(jobs)} jobs, and a model of the wait needs {LEAST_WAITS}"):
            site_model(jobs, 16)


@pytest.mark.long
@needs_lonestar
def test_real_waits_of_a_site_are_covered() -> None:
    """The model of the last waits before 15 January, on the next four days."""
    log = lonestar()
    first_s = 1_673_740_800.0
    past = log.where(log.start_s < first_s)
    model = site_model(past.since(first_s - 30 * DAY_S), 76)
    coming = log.since(first_s).until(first_s + 4 * DAY_S)
    covered = float((coming.waits_s <= model.predict(features_of(log, 76, coming))[:, -1]).mean())
    assert 0.85 <= covered <= 0.98, f"{covered:.3f} of {len(coming)} waits"


@needs_lonestar
def test_when_a_busy_node_is_free_is_an_upper_bound_that_most_jobs_reach() -> None:
    """The figures of `free_at`: of jobs that run at a moment of February 2023, every four hours."""
    log = lonestar()
    february_s = 1_675_209_600.0
    early_s = []
    for now_s in np.arange(february_s, february_s + 27 * DAY_S, 4 * HOUR_S):
        running = np.flatnonzero((log.start_s <= now_s) & (log.end_s > now_s))
        limits_s = log.start_s[running] + log.limit_s[running]
        free_s = free_at(([f"n{job}"], limit_s) for job, limit_s in zip(running.tolist(), limits_s, strict=True))
        early_s += [free_s[f"n{job}"] - end_s for job, end_s in zip(running.tolist(), log.end_s[running], strict=True)]
    early_h = np.array(early_s) / HOUR_S
    assert len(early_h) == 6936
    assert early_h.min() > -1 / 60
    assert np.mean(early_h < 1 / 6) == pytest.approx(0.63, abs=0.005)
    assert early_h.mean() == pytest.approx(5.3, abs=0.05)
    assert free_at([(["a", "b"], 10.0), (["b"], 30.0), (["c"], np.inf)]) == {"a": 10.0, "b": 30.0, "c": np.inf}


@pytest.mark.long
def test_margins_follow_waits_that_the_trees_did_not_know() -> None:
    """The law of the waits becomes wider: the quantiles are wrong until margins come from the new waits."""
    feature_rows, waits_s = drawn_waits(0, 800, spread=0.5)
    model = WaitModel.fit(feature_rows, waits_s, np.arange(800.0), used_share=0.3)
    wider, wider_waits_s = drawn_waits(1, 2000, spread=3.0)
    later, later_waits_s = drawn_waits(2, 2000, spread=3.0)
    before, after = (
        float((later_waits_s <= fitted.predict(later)[:, -1]).mean())
        for fitted in (model, model.calibrated(wider, wider_waits_s))
    )
    assert before < 0.85
    assert after == pytest.approx(0.9, abs=0.03)
