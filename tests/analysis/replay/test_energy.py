"""The energy of whole replays, against an integral over the spans that were recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from whorl.analysis.replay import Failure, Job, Options, Outcome, Trace, World, replay
from whorl.analysis.replay.jobs import Allocation
from whorl.analysis.replay.policies.policy import Decision, Policy
from whorl.analysis.replay.power import Power
from whorl.analysis.replay.world import View
from whorl.tests.sizes import count

NODES, NODE_GPUS = 3, 4
NODE_OF = np.repeat(np.arange(NODES), NODE_GPUS).tolist()


class Sharing(Policy):
    """Puts jobs on any GPUs, two on a GPU at most; now and then it stops one, or moves it."""

    name = "sharing"

    def decide(self, view: View) -> Decision:
        draw, changes = view.random, dict[int, Allocation | None]()
        load = {gpu: len(view.tenants[gpu]) for gpu in range(len(NODE_OF)) if view.up[gpu]}
        for number, allocation in view.running.items():
            if draw.random() < 0.1:
                changes[number] = None
                load.update({gpu: load[gpu] - 1 for gpu in allocation.gpus})
        for number in view.requests:
            room = [gpu for gpu, jobs in load.items() if jobs < 2]
            wants = view.requests[number].gpus
            if (number not in view.running or changes.get(number, 0) is None) and wants <= len(room):
                gpus = tuple(draw.sample(room, wants))
                if draw.random() < 0.8:
                    changes[number] = Allocation(gpus, shared=True)
                    load.update({gpu: load[gpu] + 1 for gpu in gpus})
        return Decision(changes, view.now_s + draw.uniform(20, 200))


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
    caps = [Fraction(watts) for watts in power.caps(len(NODE_OF)).tolist()]
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
            jobs = [span for span in running if node in {NODE_OF[gpu] for gpu in span.gpus}]
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
        {name: np.array([draw.uniform(150, 400) for _ in NODE_OF]) for name in "AB"},
        idle_w=draw.uniform(0, 60),
        node_w=draw.uniform(300, 800),
        asleep_w=draw.choice([0.0, 30.0]),
        sleep_after_s=draw.choice([math.inf, 0.0, 45.0]),
        wake_s=draw.choice([0.0, 15.0]),
    )
    world = World.regular(NODES, NODE_GPUS, {name: [draw.uniform(0.9, 1.2) for _ in NODE_OF] for name in "AB"})
    world = replace(world, rates=replace(world.rates, power=power))
    failures = (Failure(draw.randrange(NODES), draw.uniform(100, 300), draw.uniform(310, 500)),)
    outcome = replay(Trace("t", jobs), world, Sharing, options=Options(failures=failures, record=True), seed=seed)
    total, awake_s, by_job = integral(outcome, power, failures)
    energy = outcome.energy
    assert energy is not None
    assert energy.total_j == pytest.approx(float(total), rel=1e-9)
    assert sum(energy.jobs_j.values()) + energy.unattributed_j == pytest.approx(float(total), rel=1e-9)
    assert energy.awake_node_s == pytest.approx(float(awake_s), rel=1e-9)
    assert energy.jobs_j == pytest.approx({job: float(joules) for job, joules in by_job.items()}, rel=1e-9)
    assert outcome.energy_j.sum() == pytest.approx(sum(energy.jobs_j.values()))
