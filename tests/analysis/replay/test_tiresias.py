"""Tiresias on the workloads of Pollux's simulator, with jobs that run by the measured curves."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from whorl.analysis.replay import Job, Options, Trace, World, replay
from whorl.analysis.replay.jobs import Piece
from whorl.analysis.replay.policies.shares import Tiresias
from whorl.analysis.replay.tables import read_curves

POLLUX = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedulers" / "pollux"

ALONE_S = {
    ("ncf", 1): 47.0,
    ("cifar10", 6): 910.0,
    ("cifar10", 8): 865.0,
    ("cifar10", 12): 624.0,
    ("cifar10", 16): 482.0,
    ("deepspeech2", 6): 4142.0,
    ("deepspeech2", 8): 3530.0,
    ("deepspeech2", 12): 2477.0,
    ("bert", 6): 3092.0,
    ("bert", 8): 2459.0,
    ("bert", 12): 1594.0,
    ("bert", 16): 1324.0,
    ("yolov3", 4): 14102.0,
    ("imagenet", 24): 32000.0,
    ("imagenet", 32): 27350.0,
    ("imagenet", 48): 20100.0,
}
"""(application, GPUs) -> seconds alone. The workloads do not say how long jobs run: these are the most frequent
published completion times under Tiresias, less the wait for the next round and 30 s for the start. Jobs of imagenet
never ran alone: theirs are fitted to the workloads 1 and 2."""


def workload(name: str) -> Trace:
    jobs = []
    with (POLLUX / f"{name}.csv").open() as lines:
        for row in csv.DictReader(lines):
            gpus, batch, application = int(row["num_replicas"]), int(row["batch_size"]), row["application"]
            alone_s = ALONE_S[application, gpus]
            pieces = (Piece(alone_s, batch=batch),)
            jobs.append(Job(row["name"], float(row["time"]), gpus, alone_s, model=application, pieces=pieces))
    return Trace(name, tuple(jobs))


@pytest.mark.skipif(not POLLUX.is_dir(), reason=f"the workloads are not in {POLLUX}")
@pytest.mark.long
@pytest.mark.parametrize("name", ["workload-1", "workload-2", "workload-3", "workload-6"])
def test_the_published_completion_times(name: str) -> None:
    world = World.regular(16, 4)
    world = replace(world, rates=replace(world.rates, curves=read_curves(POLLUX / "step_times.csv.gz")))
    outcome = replay(workload(name), world, Tiresias, options=Options(round_s=60, start_s=30, migration_s=30))
    published = json.loads((POLLUX / "jct_tiresias.json").read_text())[name]
    assert outcome.metrics().avg_jct_s == pytest.approx(sum(published.values()) / len(published), rel=0.02)
