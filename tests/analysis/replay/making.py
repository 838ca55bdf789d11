"""Traces, fleets and checks that the tests of the replay share."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.replay import (
    Allocation,
    Decision,
    Job,
    Options,
    Outcome,
    Policy,
    Queued,
    Request,
    Trace,
    View,
    World,
)
from whorl.analysis.replay.policies import made
from whorl.analysis.replay.world import Advised

SCHEDULERS = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedulers"
needs_schedulers = pytest.mark.skipif(not SCHEDULERS.is_dir(), reason=f"the published files are not at {SCHEDULERS}")


def job(name: str, submit_s: float, gpus: int, ideal_s: float, workload: str = "", limit_s: float | None = None) -> Job:
    return Job(name, submit_s, gpus, ideal_s, workload, limit_s)


def trace(*jobs: Job) -> Trace:
    return Trace("made", jobs)


def flat(nodes: int, gpus_per_node: int, locality: float = 1.0) -> World:
    """All GPUs alike."""
    return World.regular(nodes, gpus_per_node, locality=locality)


def scored(nodes: int, gpus_per_node: int, scores: Sequence[float], locality: float = 1.0) -> World:
    """Scores of class A, known as they are."""
    return World.regular(nodes, gpus_per_node, {"A": scores}, locality=locality)


class Excluded(Advised):
    """Nodes that a test excludes, by class of jobs."""

    def __init__(self, nodes: int, excluded: Mapping[str, Collection[int]]) -> None:
        self._numbers, self._excluded = np.arange(nodes), excluded

    def barred(self, workload: str, gpus: int) -> NDArray[np.bool_]:
        return np.isin(self._numbers, list(self._excluded.get(workload, ())))


class Restless(Policy):
    """Stops, moves and shares at random, and wakes up at random."""

    name = "restless"

    def decide(self, view: View) -> Decision:
        draw, changes = view.random, dict[int, Allocation | None]()
        up = np.flatnonzero(view.up).tolist()
        alone: set[int] = set()
        for number, request in view.requests.items():
            held = view.running.get(number)
            if held is not None and not held.shared:
                alone |= set(held.gpus)
            if held is not None and draw.random() < 0.3 and held.shared:
                changes[number] = None
                held = None
            if held is None and draw.random() < 0.7:
                usable = [gpu for gpu in up if gpu not in alone]
                if len(usable) >= request.gpus:
                    changes[number] = Allocation(tuple(draw.sample(usable, request.gpus)), shared=True)
        return Decision(changes, view.now_s + draw.choice((3, 17, 50)))


def advised_by(world: World, advised: Advised) -> World:
    """The same world with this advice on its nodes."""
    return replace(world, beliefs=replace(world.beliefs, advised=advised))


def choice(policy: str, world: World, held: Sequence[int], gpus: int, workload: str = "A") -> list[int] | None:
    """What a placement gives a job where these GPUs are held, ascending; it is asked only where as many are free."""
    chooser = made(policy)
    assert isinstance(chooser, Queued)
    classes = frozenset(world.beliefs.rates.scores)
    chooser.begin(
        View(
            world.fleet, world.beliefs, Options(), random.Random(0), up=np.ones(len(world.fleet), bool), classes=classes
        )
    )
    if held:
        chooser.cluster.take(-1, tuple(held))
    if gpus > chooser.cluster.free_count:
        return None
    gpus_of_job = chooser.place(Request(0, "j", 0.0, gpus, workload))
    return None if gpus_of_job is None else sorted(gpus_of_job)


def finishes(outcome: Outcome) -> dict[str, float]:
    return {job_of_row.name: at for job_of_row, at in zip(outcome.jobs, outcome.finish_s.tolist(), strict=True)}


def first_gpus(outcome: Outcome) -> dict[str, tuple[int, ...]]:
    """What each job held first; of a recorded replay."""
    assert outcome.spans is not None
    gpus_by_name: dict[str, tuple[int, ...]] = {}
    for span in sorted(outcome.spans, key=lambda span: span.began_s):
        gpus_by_name.setdefault(outcome.jobs[span.job].name, span.gpus)
    return gpus_by_name


def sound(outcome: Outcome, world: World, *, shared: bool = False) -> None:
    """Of any recorded replay: GPUs are held once at a time, sums add up, and jobs begin after they came."""
    assert outcome.spans is not None
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    held = [0.0] * len(outcome.jobs)
    total = 0.0
    for span in outcome.spans:
        assert span.ended_s > span.began_s
        assert len(set(span.gpus)) == len(span.gpus) > 0
        total += len(span.gpus) * (span.ended_s - span.began_s)
        if span.job < len(outcome.jobs):
            held[span.job] += len(span.gpus) * (span.ended_s - span.began_s)
        for gpu in span.gpus:
            by_gpu.setdefault(gpu, []).append((span.began_s, span.ended_s))
    if not shared:
        for times in by_gpu.values():
            assert all(a[1] <= b[0] for a, b in pairwise(times))
    assert held == pytest.approx(outcome.gpu_seconds.tolist())
    by_gpu = {gpu: _joined(times) if shared else sorted(times) for gpu, times in by_gpu.items()}
    if shared:
        total = sum(end - begin for times in by_gpu.values() for begin, end in times)
    assert outcome.held_gpu_seconds == pytest.approx(total)
    assert max(by_gpu) < len(world.fleet)
    assert (outcome.start_s >= outcome.submit_s).all()
    assert (outcome.finish_s > outcome.start_s).all()
    assert 0 < outcome.utilisation <= 1 + 1e-9
    assert outcome.series is None or outcome.series.busy.max() <= len(world.fleet)


def _joined(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, those that overlap as one."""
    intervals: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if intervals and begin <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], end))
        else:
            intervals.append((begin, end))
    return intervals


def work_done(outcome: Outcome, world: World) -> list[float]:
    """The work that each job's spans amount to, in ideal seconds, where nothing cost time; of a recorded replay."""
    assert outcome.spans is not None
    done = [0.0] * len(outcome.jobs)
    for span in outcome.spans:
        if span.job >= len(outcome.jobs):
            continue
        job_of_span = outcome.jobs[span.job]
        slowest = max(world.rates.scores[job_of_span.workload][list(span.gpus)]) if job_of_span.workload else 1.0
        spans = len({int(world.fleet.node[gpu]) for gpu in span.gpus}) > 1
        done[span.job] += (span.ended_s - span.began_s) / (slowest * (world.rates.locality if spans else 1.0))
    return done
