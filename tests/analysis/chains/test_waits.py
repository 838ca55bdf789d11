"""What a model sees of a queue, how often the quantiles of a wait are right, and what chains come to by policy."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from whorl.analysis.chains.jobs_log import FloatArray, JobsLog
from whorl.analysis.chains.policy import LeadPolicy
from whorl.analysis.chains.published import POLICIES, published_rows, published_samples, published_starts
from whorl.analysis.chains.queue import Queue
from whorl.analysis.chains.study import LINK_S, StudyOptions, chain_study
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
from whorl.tests.analysis.chains.logs import CLUSTER_NODES, LONESTAR, drawn_log, lonestar, needs_lonestar
from whorl.tests.sizes import is_long, sample

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


# -- chains on a replayed log ------------------------------------------------------------------------------------------


UNLEARNED = ("reactive", "lead6", "lead12", "average", "test-only", "known")


def studied(log: JobsLog, policies: tuple[str, ...], days: float, **options: float) -> dict[str, dict[str, Any]]:
    """The rows of chains that begin in the last so many days that have room for chains, on 16 nodes."""
    test_from_s = float(log.submit_s[-1]) - (5 + days) * DAY_S
    settings = StudyOptions(16, policies=policies, test_from_s=test_from_s, nodes=2, cost=options.get("cost"))
    return {row.policy: row.as_dict(4) for row in chain_study(log, options=settings)}


def waits_of_reactive(log: JobsLog, first_s: float) -> list[float]:
    """Hours that the second job of a chain waits when it is submitted at the end of the first, written out anew."""
    waits_h = []
    for begin_s in np.arange(first_s // (4 * HOUR_S) * 4 * HOUR_S, log.submit_s[-1] - 5 * DAY_S, 4 * HOUR_S).tolist():
        if begin_s >= first_s:
            queue = Queue(log, 16)
            queue.advance(begin_s)
            end_s = queue.run_until_started(queue.submit(2, LINK_S)) + LINK_S
            queue.advance(end_s)
            waits_h.append((queue.run_until_started(queue.submit(2, LINK_S)) - end_s) / HOUR_S)
    return waits_h


def test_reactive_is_the_wait_and_who_knows_the_wait_has_no_interruption() -> None:
    log = drawn_log(11, 900, load=1.0)
    rows = studied(log, UNLEARNED, days=3)
    waits_h = waits_of_reactive(log, float(log.submit_s[-1]) - 8 * DAY_S)
    assert rows["reactive"]["n"] == len(waits_h) == 18
    assert rows["reactive"]["interruption_h"] == pytest.approx(np.mean(waits_h))
    assert rows["reactive"]["interruption_h"] > 3
    assert rows["reactive"]["overlap_h"] == rows["known"]["interruption_h"] == 0
    assert rows["known"]["none_pct"] == 100
    assert rows["known"]["overlap_h"] < rows["test-only"]["overlap_h"]
    assert rows["lead12"]["interruption_h"] <= rows["lead6"]["interruption_h"] <= rows["reactive"]["interruption_h"]
    assert rows["lead12"]["overlap_h"] >= rows["lead6"]["overlap_h"]
    predicting = {policy for policy, row in rows.items() if row["coverage_pct"] is not None}
    assert predicting == {"average", "test-only"}


def test_where_nobody_waits_policies_that_predict_tie_with_reactive() -> None:
    log = drawn_log(12, 500, load=0.15)
    rows = studied(log, (*UNLEARNED, "p75"), days=3)
    for policy in ("reactive", "average", "test-only", "known", "p75"):
        assert (rows[policy]["interruption_h"], rows[policy]["overlap_h"]) == pytest.approx((0, 0), abs=0.05)
    assert rows["lead6"]["overlap_h"] == pytest.approx(6, abs=0.1)


def test_chains_begin_where_a_log_that_begins_in_the_middle_has_all_jobs() -> None:
    """`sacct -S` lists all jobs that ended since then, one of which may run for weeks already."""
    log = drawn_log(13, 300, load=0.3)
    end_s = log.end_s.copy()
    end_s[0] = float(log.submit_s[200])
    since = replace(log, end_s=end_s).where(end_s >= log.submit_s[150])
    (row,) = chain_study(since, options=StudyOptions(16, policies=("reactive",), test_from_s=0.0))
    first_s = np.ceil(log.end_s[log.end_s >= log.submit_s[150]].min() / DAY_S) * DAY_S
    assert row.n == np.ceil((log.submit_s[-1] - 5 * DAY_S - first_s) / (4 * HOUR_S))
    with pytest.raises(InputError, match="is too short: chains begin on the day after the first end of a job"):
        chain_study(replace(log, end_s=np.full(len(log), np.inf)), options=StudyOptions(16))


def test_an_hour_of_overlap_picks_the_quantile() -> None:
    """The lead that costs least, tried on drawn waits."""
    waits_h = np.random.default_rng(0).gamma(2, 5, size=4000)
    leads_h = np.linspace(0, 60, 601)[:, None]
    for cost in (0.25, 1.0, 3.0):
        costs = np.maximum(waits_h - leads_h, 0).mean(axis=1) + cost * np.maximum(leads_h - waits_h, 0).mean(axis=1)
        cheapest_h = float(leads_h[costs.argmin(), 0])
        assert np.quantile(waits_h, LeadPolicy.of_cost(cost).quantile or 0.0) == pytest.approx(cheapest_h, abs=0.2)
    with pytest.raises(InputError, match=r"an hour of overlap can weigh 0.01 to 99 hours of interruption, not 0"):
        LeadPolicy.of_cost(0.0)


@pytest.mark.long
@needs_lonestar
def test_a_real_log() -> None:
    """Lonestar6 in February on 76 nodes, where the second of two jobs waits 6 h; on 72 nodes it waits for a day."""
    test_from_s = datetime(2023, 2, 1, tzinfo=UTC).timestamp()
    policies = ("reactive", "lead6", "lead12", "p75", "p90", "known")
    settings = StudyOptions(76, policies=policies, test_from_s=test_from_s)
    rows = {row.policy: row.as_dict() for row in chain_study(lonestar(), options=settings)}
    reactive, quantile, short, long = (rows[policy] for policy in ("reactive", "p75", "lead6", "lead12"))
    assert reactive["n"] == 138
    assert quantile["interruption_h"] <= 0.5 * reactive["interruption_h"]
    assert quantile["overlap_h"] <= 1.7
    slope = (long["overlap_h"] - short["overlap_h"]) / (long["interruption_h"] - short["interruption_h"])
    assert quantile["overlap_h"] < short["overlap_h"] + slope * (quantile["interruption_h"] - short["interruption_h"])
    assert 85 <= rows["p90"]["coverage_pct"] <= 95
    assert rows["known"]["interruption_h"] == 0


# -- published ---------------------------------------------------------------------------------------------------------
# The published simulation of the Mirage study: its samples, and those of an independent restatement of it.


ARTIFACT = [
    ("2023-02-23", 1, "reactive", 130_440, 104),
    ("2023-01-24", 8, "reactive", 52_440, 426),
    ("2023-01-16", 1, "average", 18_480, 342),
    ("2023-02-21", 8, "average", 149_940, 0),
    ("2023-01-08", 1, "reactive", 42_000, 271),
]
"""What the study's own program printed: begin, nodes, policy, seconds from end to start, mean wait in minutes."""


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.long
@needs_lonestar
@pytest.mark.parametrize("nodes", [1, 8])
def test_samples_are_those_of_the_restated_simulator(nodes: int) -> None:
    with gzip.open(LONESTAR.with_name(f"baselines_nodes{nodes}.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    starts = published_starts(lonestar())
    assert starts.tolist() == [seconds(row["start"]) for row in rows]
    rows = rows if is_long() else sample(rows, short=6)
    starts = np.array([seconds(row["start"]) for row in rows])
    samples = published_samples(lonestar(), starts, cluster_nodes=CLUSTER_NODES, nodes=nodes)
    assert [{name: str(cell) for name, cell in chain.items()} for chain in samples] == rows
    reactive, average = published_rows(starts, samples, ["reactive", "average"])
    assert reactive.overlap_h.value == 0
    assert average.interruption_h.value <= reactive.interruption_h.value
    if is_long():
        figures = [round(mean.value, 2) for row in (reactive, average) for mean in (row.interruption_h, row.overlap_h)]
        assert figures == ([3.77, 0, 3.08, 0.36] if nodes == 1 else [6.58, 0, 5.65, 0.17])
        none_pct = [round(row.none_pct.value, 1) for row in (reactive, average)]
        assert none_pct == ([55.7, 60.2] if nodes == 1 else [45.9, 48.5])


@needs_lonestar
def test_samples_are_those_of_the_artifact() -> None:
    for day, nodes, policy, reward_s, mean_wait_min in sample(ARTIFACT, short=2):
        (chain,) = published_samples(lonestar(), np.array([seconds(day)]), cluster_nodes=CLUSTER_NODES, nodes=nodes)
        assert (60 * int(chain[POLICIES[policy]]), chain["avg_wait_min"]) == (reward_s, mean_wait_min)


def test_only_windows_that_lie_in_the_log_are_told() -> None:
    log = drawn_log(1, 3000, load=0.5)  # from 2022-11-01 on
    end_s = -(-log.submit_s[-1] // DAY_S) * DAY_S
    starts = published_starts(log)
    assert starts[0] == seconds("2022-11-01")
    assert starts[-1] + 5 * DAY_S <= end_s < starts[-1] + 5 * DAY_S + 4 * 3600 + 1
    assert published_starts(log, since_s=seconds("2022-11-05")).tolist() == starts[24:].tolist()
    with pytest.raises(InputError, match="no whole window"):
        published_starts(log, since_s=log.submit_s[-1])


def test_a_log_with_wider_jobs_than_the_cluster_is_refused() -> None:
    log = drawn_log(1, 100)
    with pytest.raises(InputError, match="asks for 8 nodes, and the cluster has 4"):
        published_samples(log, log.submit_s[:1], cluster_nodes=4, nodes=1)


@pytest.mark.long
def test_models_learn_and_their_margins_follow_a_change_of_load() -> None:
    """The load grows two days before the test part: waits are longer than nearly all that the trees learned from."""
    jobs = 1100
    load = np.where(np.arange(jobs) < 0.45 * jobs, 0.7, 1.15)
    log = drawn_log(13, jobs, load=load)
    rows = studied(log, ("reactive", "average", "p50", "p90", "forest"), days=6, cost=0.5)
    reactive, quantile = rows["reactive"], rows["p90"]
    assert reactive["interruption_h"] > 5
    assert quantile["interruption_h"] < 0.3 * reactive["interruption_h"]
    assert quantile["coverage_pct"] >= 75
    assert rows["p50"]["interruption_h"] >= rows["cost"]["interruption_h"] >= quantile["interruption_h"]
    assert rows["p50"]["overlap_h"] <= rows["cost"]["overlap_h"] <= quantile["overlap_h"]
    assert rows["forest"]["coverage_pct"] is not None
    assert quantile["overlap_gpu_h"] == pytest.approx(8 * quantile["overlap_h"])
