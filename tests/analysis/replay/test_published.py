"""What no command reaches of the published simulation: clipped scores, and single jobs."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from whorl.analysis.replay.jobs import Job, Trace
from whorl.analysis.replay.published import BASELINE, Profiles, class_of, pal_sc24, profiles, published_trace
from whorl.analysis.replay.traces import SECONDS_PER_ITERATION
from whorl.errors import InputError
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn
from whorl.tests.analysis.replay.oracle import Oracle

TRACES = FOLDER.parent / "traces" / "sia-philly"

CLIPPED = {1: (28410, 25321), 2: (274485, 260130), 3: (114406, 106396)}
"""Trace: average JCT of packed-sticky and of PAL with the outlier's score clipped, s."""


@cache
def real_profiles() -> Profiles:
    return profiles([FOLDER])


@cache
def real_trace(number: int) -> Trace:
    return published_trace(TRACES / f"workload-{number}.csv")


@needs_longhorn
@pytest.mark.long
@pytest.mark.parametrize("number", CLIPPED)
def test_without_the_one_outlier(number: int) -> None:
    trace, perf = real_trace(number), real_profiles()
    outcomes = [pal_sc24(trace, perf, policy, clipped=True) for policy in ("packed-sticky", "pal")]
    assert tuple(round(float(outcome.jct_s.mean())) for outcome in outcomes) == CLIPPED[number]
    rows = [
        (job.gpus, job.submit_s, round(job.ideal_s / SECONDS_PER_ITERATION[job.model], 6), job.model)
        for job in trace.jobs
    ]
    times = {name: profile.tolist() for name, profile in perf.perf.items()}
    drained = Oracle(rows, times, "packed-sticky", without=frozenset({35}))
    assert pal_sc24(trace, perf, BASELINE).jct_s.tolist() == drained.run()


MODELS = ("BERT", "DCGAN", "GPT2", "PointNet", "resnet50", "vgg19")


def asking(name: str, gpus: int, submit_s: float, about_s: float, model: str) -> Job:
    """A job of whole iterations of a model."""
    iteration_s = SECONDS_PER_ITERATION[model]
    return Job(name, submit_s, gpus, (round(about_s / iteration_s) + 1.0) * iteration_s, class_of(model), model=model)


def made_up(seed: int, jobs: int) -> tuple[Trace, Profiles]:
    """Jobs of some rounds that come in bursts, and profiles with an outlier or two."""
    draw = random.Random(seed)
    rows, now = [], 0.0
    for name in range(jobs):
        rows.append(asking(str(name), draw.choice((1, 2, 4, 8, 16)), now, draw.uniform(100, 3000), draw.choice(MODELS)))
        now += draw.choice((0, 7, 360))
    perf = {
        name: np.array([draw.lognormvariate(0, spread) for _ in range(draw.randrange(3, 90))] + outliers)
        for name, spread, outliers in (("A", 0.05, [1.9]), ("B", 0.02, [1.2]), ("C", 0.02, []), ("D", 0.004, []))
    }
    return Trace(f"seed {seed}", tuple(rows)), Profiles(perf)


# What a person sees


def test_a_seed_is_its_own_draw() -> None:
    trace, perf = made_up(3, 20)
    run_42, again, run_43 = (pal_sc24(trace, perf, "random-sticky", seed=seed) for seed in (42, 42, 43))
    assert run_42.jct_s.tolist() == again.jct_s.tolist()
    assert run_42.jct_s.tolist() != run_43.jct_s.tolist()
    assert (run_42.seed, run_43.seed) == (42, 43)


def test_a_job_wider_than_the_cluster() -> None:
    trace = Trace("wide", (asking("7", 65, 0, 2, "BERT"),))
    with pytest.raises(InputError, match="wide: job 7 asks for 65 GPUs and the fleet has 64"):
        pal_sc24(trace, made_up(0, 1)[1], "pal")


@pytest.mark.long
def test_a_trace_whose_copies_never_let_it_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of the short job ask for more than the time until the next ones, and LAS serves the newest first."""
    jobs = asking("long", 64, 0, 714_000, "GPT2"), asking("short", 64, 0, 6071, "GPT2")
    trace, perf = Trace("flood", jobs), made_up(0, 1)[1]
    later = 1_000
    monkeypatch.setattr("whorl.analysis.replay.published.LATER_JOBS", later)
    with pytest.raises(
        InputError, match=rf"flood: after {later:,} later arrivals some jobs of the trace have not ended"
    ):
        pal_sc24(trace, perf, "packed-sticky", "las")
    assert len(pal_sc24(trace, perf, "packed-sticky", "fifo").jobs) == 2


def test_notes_on_profiles_and_trace_are_kept() -> None:
    trace, perf = made_up(0, 2)
    outcome = pal_sc24(replace(trace, notes=("sorted",)), replace(perf, notes=("other rows",)), "pal")
    assert "other rows" in outcome.notes
