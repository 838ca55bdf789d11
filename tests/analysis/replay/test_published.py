"""The published simulation: its numbers, and an independent simulation of the same dynamics, job by job."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from whorl.analysis.replay.engine import replay
from whorl.analysis.replay.job import Job, Trace
from whorl.analysis.replay.outcome import Outcome
from whorl.analysis.replay.profiles import Profiles, profiles
from whorl.analysis.replay.published import (
    BASELINE,
    POLICIES,
    SCHEDULERS,
    pal_sc24,
    published_fleet,
    published_options,
)
from whorl.analysis.replay.published_trace import class_of, published_trace
from whorl.analysis.replay.traces.philly import SECONDS_PER_ITERATION
from whorl.errors import InputError
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn
from whorl.tests.analysis.replay.oracle import Oracle
from whorl.tests.sizes import count, sample

TRACES = FOLDER.parent / "traces" / "sia-philly"

# (trace, policy): average and p99 JCT, makespan, end, utilisation, as the artifact gives them (FIFO).
WORKED = {
    (1, "pal"): (25320.99, 120944, 225982, 226080, 0.8594),
    (1, "pm-first"): (25467.24, 120944, 226342, 226440, 0.8591),
    (1, "packed-sticky"): (30243.99, 129584, 545302, 545400, 0.8688),
    (1, "packed-nonsticky"): (30034.74, 140384, 267022, 267120, 0.8577),
    (1, "random-sticky"): (30630.99, 123824, 550702, 550800, 0.872),
    (1, "random-nonsticky"): (32815.74, 144344, 312382, 312480, 0.8559),
    (2, "pal"): (263712.11, 569011, 678213, 678240, 0.8567),
    (2, "pm-first"): (274210.61, 610771, 686133, 686160, 0.8567),
    (2, "packed-sticky"): (583340.36, 1281091, 1700613, 1700640, 0.6465),
    (2, "packed-nonsticky"): (365774.36, 803731, 1223613, 1223640, 0.7594),
    (2, "random-sticky"): (568683.86, 1281811, 1666773, 1666800, 0.6499),
    (2, "random-nonsticky"): (367239.11, 791851, 1045773, 1045800, 0.8515),
    (3, "pal"): (106396.16, 196662, 257642, 257760, 0.8586),
    (3, "pm-first"): (111521.66, 202782, 257642, 257760, 0.853),
    (3, "packed-sticky"): (214576.16, 326262, 381122, 381240, 0.829),
    (3, "packed-nonsticky"): (234043.16, 377135, 414602, 414720, 0.8191),
    (3, "random-sticky"): (247228.16, 399288, 483002, 483120, 0.7665),
    (3, "random-nonsticky"): (195048.41, 327095, 372842, 372960, 0.8146),
}

# trace: average JCT of packed-sticky, with GPU 35 drained, with the outlier clipped; of PAL, and clipped.
WITHOUT_THE_OUTLIER = {
    1: (30244, 28624, 28410, 25321, 25321),
    2: (583340, 308046, 274485, 263712, 260130),
    3: (214576, 126342, 114406, 106396, 106396),
}


@cache
def real_profiles() -> Profiles:
    return profiles([FOLDER])


@cache
def real_trace(number: int) -> Trace:
    return published_trace(TRACES / f"workload-{number}.csv")


def oracle(
    trace: Trace,
    perf: Mapping[str, npt.NDArray[np.float64]],
    policy: str,
    scheduler: str,
    without: frozenset[int] = frozenset(),
) -> Oracle:
    iterations = [round(job.ideal_s / SECONDS_PER_ITERATION[job.model], 6) for job in trace.jobs]
    rows = [(job.gpus, job.submit_s, n, job.model) for n, job in zip(iterations, trace.jobs, strict=True)]
    return Oracle(rows, {name: times.tolist() for name, times in perf.items()}, policy, scheduler, without=without)


def agree(outcome: Outcome, plain: Oracle) -> None:
    """The same times of every job, the same end, the same GPU-seconds."""
    assert outcome.jct_s.tolist() == plain.run()
    assert outcome.end_s == plain.end
    assert outcome.held_gpu_seconds == pytest.approx(plain.held, rel=1e-12)


@needs_longhorn
@pytest.mark.parametrize(("trace", "policy"), sample(WORKED, short=4))
def test_worked_examples(trace: int, policy: str) -> None:
    outcome = pal_sc24(real_trace(trace), real_profiles(), policy)
    figures = outcome.metrics(published=True)
    average, p99, makespan, end, utilisation = WORKED[trace, policy]
    assert figures.jobs == 160
    assert round(figures.avg_jct_s, 2) == average
    assert figures.p99_jct_s == p99
    assert figures.makespan_s == makespan
    assert figures.end_s == end
    assert round(figures.util_held, 4) == utilisation
    assert (outcome.trace, outcome.policy, outcome.scheduler) == (f"workload-{trace}", policy, "fifo")
    assert outcome.seed == 42


@pytest.mark.long(short=1)
@needs_longhorn
@pytest.mark.parametrize(("trace", "policy"), list(WORKED)[::2])
def test_the_plain_simulation_gives_the_worked_examples_too(trace: int, policy: str) -> None:
    plain = oracle(real_trace(trace), real_profiles().perf, policy, "fifo")
    jct = plain.run()
    average, p99, _, end, utilisation = WORKED[trace, policy]
    assert round(sum(jct) / 160, 2) == average
    assert sorted(jct)[int(0.99 * 160)] == p99
    assert plain.end == end
    assert round(plain.utilisation, 4) == utilisation
    assert pal_sc24(real_trace(trace), real_profiles(), policy).jct_s.tolist() == jct


@pytest.mark.long(short=1)
@needs_longhorn
@pytest.mark.parametrize(("policy", "scheduler"), list(product(POLICIES, ("las", "srtf")))[::3])
def test_other_schedulers_against_the_plain_simulation(policy: str, scheduler: str) -> None:
    plain = oracle(real_trace(1), real_profiles().perf, policy, scheduler)
    agree(pal_sc24(real_trace(1), real_profiles(), policy, scheduler), plain)


@needs_longhorn
@pytest.mark.parametrize("number", sample([1, 2, 3], short=1))
def test_without_the_one_outlier(number: int) -> None:
    cases = (("packed-sticky", False), (BASELINE, False), ("packed-sticky", True), ("pal", False), ("pal", True))
    found = [pal_sc24(real_trace(number), real_profiles(), policy, clipped=clipped) for policy, clipped in cases]
    assert tuple(round(float(one.jct_s.mean())) for one in found) == WITHOUT_THE_OUTLIER[number]
    drained = oracle(real_trace(number), real_profiles().perf, "packed-sticky", "fifo", frozenset({35}))
    agree(pal_sc24(real_trace(number), real_profiles(), BASELINE), drained)


# Random small traces, dense enough that jobs wait, move and are stopped.

MODELS = ("BERT", "DCGAN", "GPT2", "PointNet", "resnet50", "vgg19")
WIDTHS = (1, 1, 2, 3, 4, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
SUSTAINED = 64 * 1800 / (2 * 1.7 * 2)
"""GPU-seconds that jobs may ask for on average so that the cluster keeps up with two an hour, badly placed."""


def asking(name: str, gpus: int, submit_s: float, about_s: float, model: str) -> Job:
    """A job of whole iterations of a model."""
    each = SECONDS_PER_ITERATION[model]
    return Job(name, submit_s, gpus, (round(about_s / each) + 1.0) * each, class_of(model), model=model)


def made_up(seed: int, jobs: int) -> tuple[Trace, Profiles]:
    """A trace whose jobs run for some rounds and come in bursts, and profiles with an outlier or two."""
    draw = random.Random(seed)
    gpus = [draw.choice(WIDTHS) for _ in range(jobs)]
    ideal = [draw.choice((100, 500, 1500, 6000)) * draw.uniform(0.5, 1.5) for _ in range(jobs)]
    scale = min(1, SUSTAINED * jobs / sum(n * s for n, s in zip(gpus, ideal, strict=True)))
    rows = []
    now = 0.0
    for name in range(jobs):
        rows.append(asking(str(name), gpus[name], now, ideal[name] * scale, draw.choice(MODELS)))
        now += draw.choice((0, 0, 7, 360, draw.randrange(1500)))
    perf = {
        name: np.array([draw.lognormvariate(0, spread) for _ in range(draw.randrange(3, 90))] + outliers)
        for name, spread, outliers in (("A", 0.05, [1.9]), ("B", 0.02, [1.2]), ("C", 0.02, []), ("D", 0.004, []))
    }
    return Trace(f"seed {seed}", tuple(rows)), Profiles(perf)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_small_traces_against_the_plain_simulation(policy: str, scheduler: str) -> None:
    for seed in sample((0, 2, 5, 8), short=2):
        trace, perf = made_up(seed, 1 + 4 * seed)
        agree(pal_sc24(trace, perf, policy, scheduler), oracle(trace, perf.perf, policy, scheduler))


@pytest.mark.parametrize(("policy", "scheduler"), sample(product(POLICIES, SCHEDULERS), short=5))
def test_jobs_that_lose_patience_against_the_plain_simulation(policy: str, scheduler: str) -> None:
    """With a patience of hours instead of weeks, which jobs of these traces do lose."""
    went_first = 0
    for seed in range(count(4, short=2)):
        trace, perf = made_up(seed, 30)
        patience_s = (1800, 7200)[seed % 2]
        plain = oracle(trace, perf.perf, policy, scheduler)
        plain.patience_s = patience_s
        fleet, generator = published_fleet(perf)
        options = replace(published_options(trace), patience_s=patience_s)
        agree(replay(trace, fleet, policy, scheduler, options=options, seed=generator), plain)
        went_first += sum(job.first for job in plain.jobs)
    assert went_first > count(6, short=2)


def test_small_traces_stop_and_move_jobs() -> None:
    """So the comparisons above are ones of preemptions and migrations too."""
    stopped = dict.fromkeys(SCHEDULERS, 0)
    moved = 0
    for seed in range(10):
        trace, perf = made_up(seed, 30)
        for scheduler in SCHEDULERS:
            stopped[scheduler] += int(pal_sc24(trace, perf, "packed-sticky", scheduler).preemptions.sum())
        moved += int(pal_sc24(trace, perf, "pal").migrations.sum())
    assert stopped["fifo"] == 0  # those that run are always the head of the queue
    assert stopped["las"] > 10
    assert stopped["srtf"] > 10
    assert moved > 10


# What a person sees


def test_a_seed_is_its_own_draw() -> None:
    trace, perf = made_up(3, 20)
    one, again, other = (pal_sc24(trace, perf, "random-sticky", seed=seed) for seed in (42, 42, 43))
    assert one.jct_s.tolist() == again.jct_s.tolist()
    assert one.jct_s.tolist() != other.jct_s.tolist()
    assert (one.seed, other.seed) == (42, 43)


def test_a_job_wider_than_the_cluster() -> None:
    trace = Trace("wide", (asking("7", 65, 0, 2, "BERT"),))
    with pytest.raises(InputError, match="wide: job 7 asks for 65 GPUs; the published cluster has 64"):
        pal_sc24(trace, made_up(0, 1)[1], "pal")


def test_another_policy_or_scheduler() -> None:
    trace, perf = made_up(0, 2)
    with pytest.raises(InputError, match=r"no policy of the published simulation is named 'gandiva'; it has packed-s"):
        pal_sc24(trace, perf, "gandiva")
    with pytest.raises(InputError, match=r"no scheduler of the published simulation is named 'sjf'; it has fifo, las"):
        pal_sc24(trace, perf, "pal", "sjf")


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


@needs_longhorn
@pytest.mark.long
def test_las_never_ends_where_the_documents_say_so() -> None:
    """What docs/replay-as-published.md has as refused, for trace 3."""
    refused = []
    for policy in POLICIES:
        try:
            pal_sc24(real_trace(3), real_profiles(), policy, "las")
        except InputError:
            refused.append(policy)
    assert refused == ["packed-sticky", "packed-nonsticky"]


def test_notes_on_profiles_and_trace_are_kept() -> None:
    trace, perf = made_up(0, 2)
    outcome = pal_sc24(replace(trace, notes=("sorted",)), replace(perf, notes=("other rows",)), "pal")
    assert "other rows" in outcome.notes
