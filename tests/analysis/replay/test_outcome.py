"""The figures of a replay."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay import Arrivals, Failure, Job, Options, Power, World, replay
from whorl.analysis.replay.outcome import FIGURES
from whorl.analysis.replay.power import Energy
from whorl.tests.analysis.replay.making import flat, job, trace


def test_figures_of_a_replay_by_hand() -> None:
    jobs = trace(job("a", 10, 2, 100), job("b", 20, 2, 50), job("c", 30, 1, 10))
    outcome = replay(jobs, flat(1, 2))
    # a 10 to 110, b 110 to 160, c 160 to 170
    figures = outcome.metrics()
    assert outcome.jct_s.tolist() == [100, 140, 140]
    assert figures.avg_jct_s == pytest.approx(380 / 3)
    assert figures.median_jct_s == 140
    assert figures.p99_jct_s == 140
    assert figures.makespan_s == 160
    assert figures.end_s == 170
    assert figures.util_held == pytest.approx((200 + 100 + 10) / (2 * 170))
    assert figures.jobs == 3
    assert figures.energy_j is None
    assert (figures.late, figures.limits_hit, figures.energy_kwh, figures.node_hours) == (None,) * 4
    assert [figure.name for figure in FIGURES] == list(asdict(figures))
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-we-know" / "replay.md").read_text()
    for name, unit, definition in FIGURES:
        assert f"| `{name}` | {unit} | {definition} |" in page


def test_p99_is_interpolated_or_as_published() -> None:
    outcome = replay(trace(*(job(str(i), 0, 1, 1.0 + i) for i in range(160))), flat(40, 4))
    assert outcome.metrics().p99_jct_s == pytest.approx(np.quantile(np.arange(1.0, 161), 0.99))
    assert outcome.metrics(published=True).p99_jct_s == 159


def test_fairness_by_hand() -> None:
    jobs = trace(job("a", 0, 2, 100), job("b", 50, 2, 100))
    outcome = replay(jobs, flat(1, 2))
    # GPUs wanted / GPUs: 1 to 50 s, 2 to 100 s, 1 to 200 s.
    assert outcome.fairness().tolist() == pytest.approx([100 / (100 * 1.5), 150 / (100 * (50 * 2 + 100) / 150)])
    alone = replay(trace(job("a", 5, 1, 100)), World.regular(1, 2, {}, locality=1.0))
    assert alone.fairness().tolist() == [1]
    assert alone.metrics().unfair_pct_themis == 0
    slow = replay(trace(job("a", 5, 2, 100)), flat(2, 1, locality=1.5))
    assert slow.fairness().tolist() == [1.5]
    assert (slow.metrics().worst_ftf_themis, slow.metrics().unfair_pct_themis) == (1.5, 100)


def test_shockwave_counts_the_jobs_of_the_whole_trace() -> None:
    jobs = trace(*(job(str(number), 100 * number, 2, 100) for number in range(5)))
    outcome = replay(jobs, flat(1, 2))
    assert outcome.fairness().tolist() == [1] * 5  # one after the other: nobody is in another's way
    assert outcome.shockwave_fairness().tolist() == pytest.approx([1 / (5 / 2)] * 5)
    few = replay(trace(job("a", 0, 2, 100), job("b", 50, 2, 100)), flat(1, 4))
    assert few.shockwave_fairness().tolist() == [1, 1]
    slow = replay(trace(job("a", 0, 2, 100), job("b", 1000, 1, 100)), flat(2, 1, locality=1.5)).metrics()
    assert (slow.worst_ftf, slow.unfair_pct) == (1.5, 50)


def test_queueing_is_the_time_without_gpus_also_after_a_stop() -> None:
    jobs = trace(job("long", 0, 1, 1000), job("short", 100, 1, 50), job("last", 500, 1, 2000))
    outcome = replay(jobs, flat(1, 1), scheduler="srtf")
    # long 0 to 100 and 150 to 1050, short 100 to 150, last 1050 to 3050
    assert outcome.queueing_s.tolist() == [50, 0, 550]
    figures = outcome.metrics()
    assert figures.p50_queue_s == 50
    assert figures.p95_queue_s == pytest.approx(50 + 0.9 * 500)
    assert figures.p99_queue_s == pytest.approx(50 + 0.98 * 500)
    lost = replay(trace(job("a", 0, 1, 100)), flat(1, 1), options=Options(failures=(Failure(0, 40, 60),)))
    assert lost.held_s.tolist() == [40 + 100]
    assert lost.queueing_s.tolist() == [20]


def test_a_slowdown_is_bounded_on_both_sides() -> None:
    jobs = trace(job("long", 0, 2, 100), job("brief", 50, 2, 1), job("wide", 60, 2, 40, "A"))
    world = World.regular(1, 2, {"A": [0.5, 0.5]})
    outcome = replay(jobs, world)
    # brief 100 to 101 after 50 s, and counts as 10 s; wide 101 to 121, and its ideal time is 40 s.
    assert outcome.bounded_slowdown().tolist() == pytest.approx([1, 51 / 10, 61 / 40])
    alone = replay(trace(job("fast", 0, 2, 40, "A"), job("brief", 900, 1, 1)), world)
    assert alone.bounded_slowdown().tolist() == [1, 1]
    assert outcome.metrics().bounded_slowdown == pytest.approx((1 + 5.1 + 61 / 40) / 3)


def test_others_load_the_contention() -> None:
    jobs = trace(job("a", 0, 2, 100))
    alone = replay(jobs, flat(1, 2))
    beside = replay(jobs, flat(1, 2), options=Options(users=(lambda: Arrivals(iter([Job("x", 50.0, 2, 10.0)])),)))
    assert alone.fairness()[0] == 1
    assert beside.fairness()[0] == pytest.approx(1 / 1.5)


def watts(*gpus: float) -> Power:
    """Of the GPUs, under class A."""
    return Power({"A": np.array(gpus)})


def test_energy_is_the_power_of_what_is_held() -> None:
    world = World.regular(2, 1, {"A": [1.0, 1.5]}, power=watts(300.0, 200.0))
    outcome = replay(trace(job("a", 0, 2, 100, "A"), job("b", 0, 1, 100, "A")), world)
    assert outcome.energy_j.tolist() == [150 * 500, 100 * 300]
    assert outcome.metrics().energy_j == 105_000
    unknown = World.regular(2, 1, {"A": [1.0, 1.5]}, power=watts(300.0, math.nan))
    part = replay(trace(job("a", 0, 1, 100, "A"), job("b", 0, 2, 100, "A")), unknown)
    assert part.energy_j[0] == 30_000
    assert np.isnan(part.energy_j[1])
    assert part.metrics().energy_j is None
    other_class = replay(trace(job("a", 0, 1, 100)), world)
    assert np.isnan(other_class.energy_j).all()


def test_energy_follows_a_job_that_moves() -> None:
    world = World.regular(2, 1, {"A": [1.0, 1.2]}, power=watts(300.0, 200.0))
    jobs = trace(job("a", 0, 1, 50, "A"), job("b", 0, 1, 400, "A"))
    outcome = replay(jobs, world, "pm-first", options=Options(round_s=100))
    assert outcome.energy_j.tolist() == pytest.approx([50 * 300, 100 * 200 + (400 - 100 / 1.2) * 300])


def test_the_queue_and_the_busy_gpus_over_time() -> None:
    jobs = trace(job("a", 10, 2, 100), job("b", 20, 1, 50), job("c", 30, 2, 10))
    outcome = replay(jobs, flat(1, 2), options=Options(record=True))
    series = outcome.series
    assert series is not None
    rows = list(zip(series.time_s.tolist(), series.queue.tolist(), series.busy.tolist(), strict=True))
    assert rows == [(10, 0, 2), (20, 1, 2), (30, 2, 2), (110, 1, 1), (160, 0, 2), (170, 0, 0)]
    held = float((series.busy[:-1] * np.diff(series.time_s)).sum())
    assert held == outcome.held_gpu_seconds
    assert replay(jobs, flat(1, 2)).series is None
    assert replay(jobs, flat(1, 2)).spans is None


def test_deadlines_limits_waste_and_energy_by_hand() -> None:
    jobs = trace(
        Job("in time", 0, 2, 100, deadline_s=100, limit_s=500),
        Job("late", 0, 2, 100, deadline_s=150),
        Job("ended", 0, 2, 100, limit_s=50, deadline_s=1e6),
        Job("free", 0, 2, 100),
    )
    bare = replay(jobs, flat(1, 2))
    outcome = replace(
        bare,
        limit_hit=np.array([False, False, True, False]),
        wasted_gpu_s=np.array([0.0, 600.0, 1200.0, 0.0]),
        energy=Energy({}, 3.6e6, 1.8e6, None, 0.0, awake_node_s=7200),
    )
    figures = outcome.metrics()
    assert (figures.late, figures.limits_hit, figures.wasted_gpu_h, figures.node_hours) == (2, 1, 0.5, 2)
    assert (figures.energy_kwh, figures.jobs_kwh, figures.idle_kwh, figures.base_kwh) == (1.5, 1, 0.5, None)
