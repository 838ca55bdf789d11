"""EaCO: who shares with whom, and what comes of it in a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement
from random import Random

import numpy as np
import pytest

from whorl.analysis.replay import (
    Allocation,
    Beliefs,
    Fleet,
    Job,
    Options,
    Piece,
    Policy,
    Power,
    Progress,
    Rates,
    Request,
    Trace,
    View,
    World,
    replay,
)
from whorl.analysis.replay.policies.eaco import EaCO, Sharing
from whorl.analysis.replay.policies.placements import Packed
from whorl.analysis.replay.policies.shares import FirstCome
from whorl.analysis.replay.power import ANY
from whorl.analysis.replay.tables import ANY_WIDTH, Pairs, read_pairs
from whorl.analysis.replay.traces import TraceOptions, read_trace
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import SCHEDULERS, needs_schedulers
from whorl.tests.sizes import count

HOUR = 3600.0
SHARES = {
    ("good", "good"): (0.9, 0.9),
    ("good", "poor"): (0.6, 0.55),
    ("good", "loses"): (0.6, 0.3),
    ("good", "big"): (0.0, 0.0),
}


def table(shares: Mapping[tuple[str, str], tuple[float, float]]) -> Pairs:
    rows = {}
    for (job, beside), (share, share_beside) in shares.items():
        first, second = (job, ANY_WIDTH), (beside, ANY_WIDTH)
        rows[first, second], rows[second, first] = share, share_beside
    return Pairs(rows)


def view_of(models: str, power: Power | None = None, *, gpus: int = 1) -> View:
    """Four nodes of two GPUs; of these jobs, of an hour each, all but the last run, each on the first GPU of a node."""
    fleet = Fleet.regular(4, 2)
    view = View(
        fleet, Beliefs(Rates(fleet, {}, pairs=table(SHARES), power=power)), Options(), Random(0), up=np.ones(8, bool)
    )
    tenants: list[tuple[int, ...]] = [()] * 8
    view.tenants = tenants
    names = models.split()
    requests: dict[int, Request] = {}
    progress: dict[int, Progress] = {}
    running: dict[int, Allocation] = {}
    for number, model in enumerate(names):
        requests[number] = Request(number, f"j{number}", 0.0, gpus, model=model, modes=((None, 60.0),), work_s=HOUR)
        progress[number] = Progress(left_s=HOUR)
        if number < len(names) - 1:
            held = tuple(range(2 * number, 2 * number + gpus))
            running[number] = Allocation(held, shared=True)
            for gpu in held:
                tenants[gpu] = (number,)
    view.requests, view.progress, view.running = requests, progress, running
    return view


def gpus_for_last(view: View, sharing: Sharing | None = None) -> tuple[int, ...]:
    allocation = EaCO(sharing).decide(view).changes[len(view.requests) - 1]
    assert allocation is not None
    return allocation.gpus


@pytest.mark.parametrize(
    ("models", "sharing", "gpus"),
    [
        ("good good", Sharing(), (0,)),
        ("good good", Sharing(deadline_slack=1.1), (1,)),  # 0.9 of the speed takes 1.11 times as long
        ("good good", Sharing(alpha=0), (1,)),
        ("good good", Sharing(pair_at_least=1.9), (1,)),
        ("good poor", Sharing(deadline_slack=2), (0,)),
        ("good poor", Sharing(deadline_slack=2, pair_at_least=1.2), (1,)),
        ("good loses", Sharing(deadline_slack=9, pair_at_least=1), (1,)),
        ("good big", Sharing(deadline_slack=9, pair_at_least=1), (1,)),
        ("good nobody measured it", Sharing(deadline_slack=9), (1,)),
        ("poor good good", Sharing(deadline_slack=2), (2,)),  # the best sum first
    ],
)
def test_jobs_share_where_the_pair_gains_fits_and_ends_in_time(
    models: str, sharing: Sharing, gpus: tuple[int, ...]
) -> None:
    assert gpus_for_last(view_of(models.replace("nobody measured it", "unmeasured")), sharing) == gpus


def watts_of(*watts: float) -> Power:
    return Power({ANY: np.array(watts)}, idle_w=50.0, node_w=760.0)


@pytest.mark.parametrize(
    ("models", "power", "gpus"),
    [
        ("good good good", watts_of(250, 250, 250, 250, 250, 250, 250, 250), (0,)),  # as without any power
        ("good good good", watts_of(260, 250, 250, 250, 250, 250, 250, 250), (2,)),
        ("good", watts_of(250, 260, 250, 250, 250, 250, 250, 250), (2,)),
        ("good loses", watts_of(250, 260, 250, 250, 250, 250, 250, 250), (1,)),  # a node that is awake comes first
        ("good", watts_of(260, 240, 260, 260, 260, 260, 260, 260), (1,)),
    ],
)
def test_gpus_where_work_costs_least_are_shared_and_woken_first(
    models: str, power: Power, gpus: tuple[int, ...]
) -> None:
    assert gpus_for_last(view_of(models, power)) == gpus


@pytest.mark.parametrize(
    ("option", "number"), [("deadline_slack", 0.9), ("pair_at_least", 0.9), ("alpha", 1.1), ("most_jobs", 0)]
)
def test_bounds_that_make_no_sense_are_refused(option: str, number: float) -> None:
    with pytest.raises(InputError, match=f"not {number:g}"):
        Sharing(**{option: number})  # type: ignore[arg-type]


GPUS = 112
SLEEPING = Power({ANY: np.full(GPUS, 250.0)}, idle_w=50.0, node_w=760.0, sleep_after_s=0.0)


@cache
def published(*, regimes: bool = False, slack: float = 1.25) -> tuple[Trace, Rates]:
    """The one-GPU jobs of Shockwave's trace with deadlines, and 14 nodes of 8 GPUs with Gavel's pairs."""
    folder = SCHEDULERS / "shockwave"
    reading = TraceOptions(regimes=folder / "regimes_32gpus.json") if regimes else TraceOptions()
    trace = read_trace(folder / "jobs_32gpus.csv", reading=reading)
    jobs = [replace(job, deadline_s=job.submit_s + slack * job.ideal_s) for job in trace.jobs if job.gpus == 1]
    pairs = read_pairs(SCHEDULERS / "gavel" / "pairs.csv.gz", "v100")
    return replace(trace, jobs=tuple(jobs)), Rates(Fleet.regular(14, 8), {}, pairs=pairs, power=SLEEPING)


@needs_schedulers
@pytest.mark.parametrize(
    ("policy", "slack", "energy_kwh", "base_kwh", "node_hours", "run_time"),
    [
        (FirstCome(), 1.25, 66.0, 30.4, 40.0, 1.0),
        (Packed(), 1.25, 47.6, 18.4, 24.2, 1.0),
        (EaCO(Sharing(1.1)), 1.1, 43.9, 16.7, 22.0, 1.001),
        (EaCO(Sharing(1.25)), 1.25, 39.3, 14.8, 19.5, 1.071),
        (EaCO(Sharing(1.5)), 1.5, 37.0, 13.6, 17.9, 1.145),
    ],
)
def test_energies_of_a_real_trace_are_those_of_an_independent_program(
    policy: Policy, slack: float, energy_kwh: float, base_kwh: float, node_hours: float, run_time: float
) -> None:
    trace, rates = published(slack=slack)
    outcome = replay(trace, World(rates, Beliefs(rates)), policy)
    metrics = outcome.metrics()
    assert metrics.energy_kwh == pytest.approx(energy_kwh, rel=0.01)
    assert metrics.base_kwh == pytest.approx(base_kwh, rel=0.01)
    assert metrics.node_hours == pytest.approx(node_hours, rel=0.01)
    assert np.mean(outcome.held_s / [job.ideal_s for job in trace.jobs]) == pytest.approx(run_time, abs=0.01)
    assert metrics.late == 0
    energy = outcome.energy
    assert energy is not None
    assert sum(energy.jobs_j.values()) + energy.unattributed_j == pytest.approx(energy.total_j, rel=1e-9)


@needs_schedulers
@pytest.mark.parametrize("slack", [1.1, 1.5])
def test_no_deadline_is_missed_where_batch_sizes_change_and_less_is_used_than_packed(slack: float) -> None:
    trace, rates = published(regimes=True, slack=slack)
    packed, shared = (
        replay(trace, World(rates, Beliefs(rates)), policy, options=Options(migration_s=20)).metrics()
        for policy in (Packed(), EaCO(Sharing(slack)))
    )
    assert shared.late == 0
    assert shared.energy_kwh < packed.energy_kwh  # type: ignore[operator]


def test_jobs_that_must_part_do_so_when_a_gpu_is_free() -> None:
    blocker = Job("blocker", 0.0, 1, 2000.0, model="big")
    jobs = (blocker, *(Job(f"j{n}", 1.0 + n, 1, HOUR, model="good") for n in range(2)))
    believed = Rates(Fleet.regular(1, 2), {}, pairs=table(SHARES))
    truth = replace(believed, pairs=table({("good", "good"): (0.5, 0.5)}))
    outcome = replay(Trace("made", jobs), World(truth, Beliefs(believed)), EaCO(), options=Options(record=True))
    assert outcome.spans is not None
    assert [(span.gpus, span.began_s) for span in outcome.spans if span.job == 2] == [((1,), 2.0), ((0,), 2000.0)]


BATCHES = (16, 32, 64)


def test_no_deadline_is_missed_with_exact_beliefs_while_gpus_are_free() -> None:
    """Jobs of changing batch sizes, up to three on a GPU, with any shares beside each other."""
    seeds = range(count(40, short=6))
    assert sum(shares_and_is_in_time(seed) for seed in seeds) > len(seeds) / 2


def shares_and_is_in_time(seed: int) -> bool:
    """Whether jobs share GPUs in a replay drawn from this seed; none of them is late."""
    random = Random(seed)
    kinds = [f"{model} (batch size {batch})" for model in "ab" for batch in BATCHES]
    joined = combinations_with_replacement(kinds, 2)
    pairs = table({pair: (random.uniform(0.2, 1), random.uniform(0.2, 1)) for pair in joined})
    slack, jobs = random.choice([1.3, 1.5, 2.0]), []
    for number in range(24):
        epoch_s = {batch: random.choice([1.0, 5.0, 50.0, 300.0]) for batch in BATCHES}
        runs = [(random.randint(1, 200), random.choice(BATCHES)) for _ in range(random.randint(1, 4))]
        pieces = tuple(Piece(epochs * epoch_s[batch], epochs, batch) for epochs, batch in runs)
        work_s, submit_s = sum(piece.work_s for piece in pieces), 50.0 * number
        job = Job(f"j{number}", submit_s, 1, work_s, model=random.choice("ab"), pieces=pieces)
        jobs.append(replace(job, deadline_s=submit_s + slack * work_s))
    rates = Rates(Fleet.regular(6, 4), {}, pairs=pairs)
    policy = EaCO(Sharing(slack, 1.0, most_jobs=3))
    outcome = replay(Trace("made", tuple(jobs)), World(rates, Beliefs(rates)), policy, options=Options(migration_s=20))
    assert outcome.metrics().late == 0, seed
    return bool(np.any(outcome.held_s > 1.01 * np.array([job.ideal_s for job in jobs])))


@pytest.mark.parametrize(("knows_epochs", "epoch_s"), [(True, 300.0), (False, HOUR / 20)])
def test_a_pair_that_was_believed_too_good_is_undone_within_an_epoch(*, knows_epochs: bool, epoch_s: float) -> None:
    """Beliefs are 30 % too high: 0.9 where the truth is 0.9 / 1.3. The third job is put apart from the start."""
    pieces = (Piece(HOUR, epochs=12, batch=64),) if knows_epochs else ()
    jobs = tuple(Job(f"j{n}", 2000.0 * n, 1, HOUR, model="good", pieces=pieces) for n in range(3))
    believed = Rates(Fleet.regular(2, 2), {}, pairs=table(SHARES))
    truth = replace(believed, pairs=table({("good", "good"): (0.9 / 1.3, 0.9 / 1.3)}))
    outcome = replay(
        Trace("made", jobs), World(truth, Beliefs(believed)), EaCO(), options=Options(migration_s=20, record=True)
    )
    assert outcome.spans is not None
    first, second = [span for span in outcome.spans if span.job == 1]
    assert first.gpus == (0,)
    assert first.ended_s - first.began_s <= epoch_s / (0.9 / 1.3) + 2
    assert second.gpus == (1,)
    assert outcome.migrations.tolist() == [0, 1, 0]
    assert outcome.metrics().wasted_gpu_h == pytest.approx(20 / 3600)
