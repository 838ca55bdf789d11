"""The energy ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from whorl.analysis.replay import Failure, Job, Options, Outcome, Trace, World, replay
from whorl.analysis.replay.power import Draw, EnergyLedger, Power
from whorl.tests.analysis.replay.making import Restless
from whorl.tests.sizes import count

GPU_W = {"": np.full(8, 300.0)}
NODE_OF = (0, 0, 0, 0, 1, 1, 1, 1)


def test_what_is_not_known_is_none() -> None:
    ledger = EnergyLedger(Power(GPU_W), NODE_OF)
    ledger.hold(0, (0,), Draw(300.0, 0.0), now_s=0.0)
    energy = ledger.close(10.0)
    assert (energy.jobs_j, energy.idle_j, energy.base_j, energy.total_j) == ({0: 3000.0}, None, None, 3000.0)
    ledger = EnergyLedger(Power(GPU_W, idle_w=50.0), NODE_OF)
    ledger.hold(0, (0,), Draw(math.nan, 0.0), now_s=0.0)
    energy = ledger.close(10.0)
    assert math.isnan(energy.jobs_j[0])
    assert (energy.dynamic_j, energy.idle_j, energy.total_j) == (None, 8 * 50 * 10, None)


def test_empty_nodes_sleep_and_take_time_to_wake_up() -> None:
    ledger = EnergyLedger(
        Power(GPU_W, idle_w=50.0, node_w=700.0, asleep_w=20.0, sleep_after_s=60.0, wake_s=30.0), NODE_OF
    )
    assert not ledger.sleeps(0, 60.0)
    assert ledger.sleeps(0, 61.0)
    assert ledger.hold(0, (0, 4), Draw(0.0, 0.0), now_s=100.0) == 30
    assert ledger.hold(1, (1,), Draw(0.0, 0.0), now_s=110.0) == 20  # it is waking up already
    assert ledger.hold(1, (1,), Draw(7.0, 0.0), now_s=125.0) == 5
    ledger.release(0, 200.0)
    ledger.release(1, 210.0)
    assert ledger.hold(0, (4,), Draw(0.0, 0.0), now_s=230.0) == 0  # empty for less than a minute


def test_a_job_begins_to_work_when_its_nodes_are_awake() -> None:
    power = Power({"A": np.full(2, 300.0)}, sleep_after_s=60.0, wake_s=30.0)
    world = World.regular(1, 2, {"A": [1.0, 1.0]}, power=power)
    outcome = replay(Trace("t", (Job("early", 0, 1, 10, "A"), Job("late", 100, 1, 10, "A"))), world)
    assert outcome.finish_s.tolist() == [10, 140]


# -- energy ------------------------------------------------------------------------------------------------------------
# The energy of whole replays, against an integral over the spans that were recorded.


NODES, NODE_GPUS = 3, 4
NODE_OF_GPU = np.repeat(np.arange(NODES), NODE_GPUS).tolist()


def integral(
    outcome: Outcome, power: Power, failures: tuple[Failure, ...]
) -> tuple[Fraction, Fraction, dict[int, Fraction]]:
    """Energy of all nodes, node-seconds awake, and energy by job: the power of each interval between changes."""
    assert outcome.spans is not None
    edges = {0.0, outcome.end_s}
    edges |= {edge for span in outcome.spans for edge in (span.began_s, span.ended_s)}
    edges |= {edge for failure in failures for edge in (failure.down_s, failure.up_s) if edge < outcome.end_s}
    moments = sorted(edges)
    idle_w, node_w = Fraction(power.idle_w or 0), Fraction(power.node_w or 0)
    caps = [Fraction(watts) for watts in power.caps(len(NODE_OF_GPU)).tolist()]
    total, awake_s = Fraction(0), Fraction(0)
    by_job: dict[int, Fraction] = {}
    empty_since = [Fraction(0)] * NODES
    for begin, end in pairwise(moments):
        span_s = Fraction(end) - Fraction(begin)
        running = [span for span in outcome.spans if span.began_s <= begin and span.ended_s >= end]
        for node in range(NODES):
            if any(failure.node == node and failure.down_s <= begin < failure.up_s for failure in failures):
                empty_since[node] = Fraction(end)
                continue
            jobs = [span for span in running if node in {NODE_OF_GPU[gpu] for gpu in span.gpus}]
            node_s = span_s
            if jobs:
                empty_since[node] = Fraction(end)
            elif power.sleep_after_s < math.inf:
                node_s = max(
                    Fraction(0), min(span_s, empty_since[node] + Fraction(power.sleep_after_s) - Fraction(begin))
                )
            awake_s += node_s
            total += node_s * (node_w + NODE_GPUS * idle_w) + (span_s - node_s) * Fraction(power.asleep_w)
            for span in jobs:
                by_job[span.job] = by_job.get(span.job, Fraction(0)) + span_s * node_w / len(jobs)
            for gpu in range(node * NODE_GPUS, (node + 1) * NODE_GPUS):
                tenants = [span.job for span in jobs if gpu in span.gpus]
                drawn = {job: Fraction(float(power.gpu_w[outcome.jobs[job].workload][gpu])) - idle_w for job in tenants}
                most = caps[gpu] - idle_w
                scale = most / sum(drawn.values()) if len(tenants) > 1 and sum(drawn.values()) > most else Fraction(1)
                for job in tenants:
                    by_job[job] += span_s * (drawn[job] * scale + idle_w / len(tenants))
                    total += span_s * drawn[job] * scale
    return total, awake_s, by_job


@pytest.mark.parametrize("seed", range(count(100, short=8)))
def test_the_books_of_a_replay_balance(seed: int) -> None:
    draw = Random(seed)
    jobs = tuple(
        Job(
            str(number),
            20.0 * number,
            draw.randint(1, 6),
            draw.uniform(50, 900),
            draw.choice("AB"),
            limit_s=draw.choice([None, 400.0]),
        )
        for number in range(20)
    )
    power = Power(
        {name: np.array([draw.uniform(150, 400) for _ in NODE_OF_GPU]) for name in "AB"},
        idle_w=draw.uniform(0, 60),
        node_w=draw.uniform(300, 800),
        asleep_w=draw.choice([0.0, 30.0]),
        sleep_after_s=draw.choice([math.inf, 0.0, 45.0]),
        wake_s=draw.choice([0.0, 15.0]),
    )
    world = World.regular(NODES, NODE_GPUS, {name: [draw.uniform(0.9, 1.2) for _ in NODE_OF_GPU] for name in "AB"})
    world = replace(world, rates=replace(world.rates, power=power))
    failures = (Failure(draw.randrange(NODES), draw.uniform(100, 300), draw.uniform(310, 500)),)
    outcome = replay(Trace("t", jobs), world, Restless, options=Options(failures=failures, record=True), seed=seed)
    total, awake_s, by_job = integral(outcome, power, failures)
    energy = outcome.energy
    assert energy is not None
    assert energy.total_j == pytest.approx(float(total), rel=1e-9)
    assert sum(energy.jobs_j.values()) + energy.unattributed_j == pytest.approx(float(total), rel=1e-9)
    assert energy.awake_node_s == pytest.approx(float(awake_s), rel=1e-9)
    assert energy.jobs_j == pytest.approx({job: float(joules) for job, joules in by_job.items()}, rel=1e-9)
    assert outcome.energy_j.sum() == pytest.approx(sum(energy.jobs_j.values()))
