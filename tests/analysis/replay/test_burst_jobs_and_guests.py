"""Burst-parallel jobs and jobs under partial backpropagation, with other jobs in the time that they leave idle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import whorl
from whorl.analysis.replay.engine import replay
from whorl.analysis.replay.jobs import Job, Piece, Trace, read_plans, with_plan
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.policies.filling import Burst, PartialBackpropagation
from whorl.analysis.replay.policies.policy import Policy
from whorl.analysis.replay.tables import ANY_WIDTH, Pairs
from whorl.analysis.replay.world import World
from whorl.analysis.training.burst import BurstQuestion, plan_burst, read_network, read_profile
from whorl.analysis.training.gang import depths_of, slack, step
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import SCHEDULERS, needs_schedulers
from whorl.tests.burst_files import BATCH, write_files

LONG_S = 1e6
BATCH_8 = 474.0
"""Samples a second of VGG16 at batch 8 on one GPU: what fills the idle time."""


def beside(leader: Job, world: World, policy: type[Policy]) -> tuple[float, list[float]]:
    """When a job ends that comes first, and the work that jobs of one GPU, one for each GPU, have done until then."""
    guests = [Job(f"guest {gpu}", 0, 1, LONG_S) for gpu in range(len(world.fleet))]
    finish_s = replay(Trace("t", (leader, *guests)), world, policy).finish_s
    end_s = float(finish_s[0])
    return end_s, [max(0.0, end_s - (float(guest_s) - LONG_S)) for guest_s in finish_s[1:]]


@needs_schedulers
@pytest.mark.parametrize(("batch", "gpus", "low", "high"), [
    (16, 8, 1.56, 1.65), (16, 16, 2.24, 2.77), (32, 4, 1.16, 1.16), (32, 8, 1.31, 1.34), (32, 16, 1.58, 1.74),
    (64, 16, 1.32, 1.39),
])  # fmt: skip
def test_background_jobs_fill_what_bursts_leave(batch: int, gpus: int, low: float, high: float) -> None:
    """Throughput over data parallelism, by limits 5 and 2 of DeepPool's planner."""
    folder = SCHEDULERS / "deeppool"
    files = read_network(folder / "vgg16_plans.json"), read_profile(folder / "layer_times_a100.csv.gz", "vgg16")
    parallel_ms = plan_burst(*files, BurstQuestion(batch, gpus, None, "published")).time_ms
    gains = []
    for limit in (5.0, 2.0):
        plan = plan_burst(*files, BurstQuestion(batch, gpus, limit, "published"))
        end_s, work_s = beside(Job("burst", 0, plan.width, 1000, stages=plan.stages), World.regular(1, gpus), Burst)
        assert end_s == pytest.approx(1000)
        gains.append(parallel_ms / plan.time_ms + sum(work_s) / end_s * BATCH_8 / (batch / parallel_ms * 1000))
    assert gains == pytest.approx([low, high], abs=0.006)


@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_the_slack_is_filled_and_no_more(gpus: int) -> None:
    rng = np.random.default_rng(gpus)
    for spread in (0.0, 0.05):
        scores = np.sort(rng.lognormal(0, spread, gpus))
        world = World.regular(1, gpus, {"w": rng.permutation(scores)})
        end_s, work_s = beside(Job("spb", 0, gpus, 1000, "w"), world, PartialBackpropagation)
        assert end_s == pytest.approx(1000 * step(scores, depths_of(gpus), 2 / 3))
        most = float(slack(scores, depths_of(gpus), 2 / 3))
        assert most - 0.01 <= np.mean(work_s) / end_s <= most + 1e-9


def test_a_leader_takes_gpus_from_guests_and_these_go_on() -> None:
    """A guest on the GPU that works always has to wait, and jobs of two GPUs share only idle ones."""
    guests = tuple(Job(f"g{n}", 0, 2, 100) for n in range(2))
    leader = Job("a", 50, 4, 100, stages=((4, 0.5), (2, 0.5)))
    finish_s = replay(Trace("t", (*guests, leader)), World.regular(1, 4), Burst).finish_s
    assert finish_s == pytest.approx([150, 200, 150]), "one of both goes on at half the speed; the other after it"


@pytest.mark.parametrize(("share", "foreground", "ends"), [
    ((0.8, 0.8), 1.0, 100 + 100 - 0.5 * 0.8 * 100), ((0.0, 0.0), 1.0, 200), ((0.8, 0.8), 0.4, 200),
])  # fmt: skip
def test_guests_only_where_a_pair_fits_and_the_leader_loses_less(
    share: Sequence[float], foreground: float, ends: float
) -> None:
    pairs = Pairs(
        {(("guest", ANY_WIDTH), ("lead", ANY_WIDTH)): share[0], (("lead", ANY_WIDTH), ("guest", ANY_WIDTH)): share[1]}
    )
    world = World.regular(1, 2)
    world = replace(world, rates=replace(world.rates, pairs=pairs, foreground=foreground))
    world = replace(world, beliefs=replace(world.beliefs, rates=world.rates))
    jobs = Job("a", 0, 2, 100, model="lead", stages=((2, 0.5), (1, 0.5))), Job("b", 0, 1, 100, model="guest")
    finish_s = replay(Trace("t", jobs), world, Burst, options=Options()).finish_s
    assert finish_s == pytest.approx([100, ends])


# -- burst jobs --------------------------------------------------------------------------------------------------------
# Jobs of a trace with the plans of `whorl advise burst`.


def test_jobs_of_a_planned_model_get_its_stages_and_less_work(tmp_path: Path) -> None:
    reply = whorl.advise_burst(*write_files(tmp_path), batch=BATCH, gpus=[2, 4], limit="1e9,data-parallel")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(reply.json()))
    planned = [row.plan for row in reply.result.rows]
    pieces = (Piece(60.0, 1, BATCH), Piece(40.0, 1, BATCH))
    jobs = (
        Job("a", 0, 4, 100, model="small", pieces=pieces),
        Job("b", 0, 3, 100, model="small"),
        Job("c", 0, 4, 100, model="other"),
        Job("d", 0, 1, 100, model="small"),
    )
    trace = with_plan(Trace("t", jobs), {"small": read_plans(path)})
    first, *others = trace.jobs
    assert first.gpus == planned[2].width
    assert first.stages == planned[2].stages
    assert first.ideal_s == pytest.approx(100 * planned[2].time_ms / planned[3].time_ms)
    assert sum(piece.work_s for piece in first.pieces) == pytest.approx(first.ideal_s)
    assert others == list(jobs[1:])
    assert len(trace.notes) == 1, "no plan for three GPUs"
    with pytest.raises(InputError, match="vgg16"):
        with_plan(Trace("t", jobs), {"vgg16": read_plans(path)})


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": "whorl.advise.burst/1", "rows": [{"limit": 2}]}', "x"])
def test_another_file_is_no_plan(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plans(tmp_path / "plan.json")
