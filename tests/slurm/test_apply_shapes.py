"""A job that can start before `whorl advise apply` can start after it, whatever its shape: random jobs on a real Slurm.

Slurm itself says what can start: `sbatch --test-only` with the same options, and the start of the jobs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from whorl.jobs.apply import ApplyOptions, ExclusionTrial, JobChange, change_of
from whorl.jobs.slurm import Slurm as Client
from whorl.tests.sizes import sample
from whorl.tests.slurm.mixed import Mixed
from whorl.tests.slurm.shapes import shape

pytestmark = pytest.mark.slurm


@pytest.fixture
def mixed(mixed_slurm: Mixed) -> Iterator[Mixed]:
    """Nodes of several kinds, and no jobs."""
    mixed_slurm.cancel_all()
    yield mixed_slurm
    mixed_slurm.cancel_all()


@pytest.fixture
def reservations(mixed: Mixed) -> Iterator[None]:
    """Some nodes for alice, others for alice and bob, one for nobody here."""
    reserved = {"mine": ("n02,n04", "alice"), "ours": ("n03,n05,n06", "alice,bob"), "closed": ("n09", "root")}
    for name, (nodes, users) in reserved.items():
        line = [f"ReservationName={name}", f"Nodes={nodes}", f"Users={users}", "StartTime=now", "Duration=UNLIMITED"]
        created = mixed.run("scontrol", "create", "reservation", *line)
        assert created.returncode == 0, created.stderr
    yield
    mixed.cancel_all()
    mixed.until(lambda: not mixed.run("squeue", "-h").stdout, "the jobs to end")
    for name in reserved:
        mixed.run("scontrol", "delete", f"ReservationName={name}")


def why_not(mixed: Mixed, options: list[str], excluded: str) -> str:
    """What Slurm says against a job of this shape; "" where it can start."""
    later = ("--exclude", "--array", "--dependency", "--begin")
    test_options = [option for option in options if not option.startswith(later)]
    done = mixed.run("sbatch", "--test-only", "--wrap=true", f"--exclude={excluded}", *test_options, user="alice")
    return done.stderr if done.returncode else ""


@dataclass(frozen=True)
class Tried:
    change: JobChange
    could_start: bool


def tried(mixed: Mixed, seed: int) -> Tried | None:
    """Release a random job with random advice; None where Slurm refuses such a job.

    A job that could start without advice starts, or can still start, and has its own nodes back where the advice
    hindered it.
    """
    options = shape(seed)
    line = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=sleep 300", *options]
    submitted = mixed.run(*line, user="alice")
    if submitted.returncode:
        return None
    job, client = submitted.stdout.strip(), Client(environment=mixed.environment())
    (record,) = client.jobs(job)
    rng = random.Random(-seed)
    change = change_of(record, rng.sample(mixed.names, rng.randint(1, 4)))
    could_start = not why_not(mixed, options, record.excluded)
    options_of_apply = ApplyOptions(release=True, max_delay_s=60.0)
    (change,) = ExclusionTrial(client, job, options_of_apply, 0.0, lambda _: None).run([change])
    records = client.jobs(job)
    context = f"seed {seed}: {options} without {change.after.excluded}: {change.notes}"
    assert {record.excluded for record in records} == {change.after.excluded}, context
    if change.outcome != "excluded":
        assert change.after.excluded == change.before.excluded == record.excluded, context
        assert {record.comment for record in records} == {""}, context
    if could_start:
        assert not any(record.blocked_by("BadConstraints", "JobHeldUser") for record in records), context
        assert why_not(mixed, options, change.after.excluded) == "", context
        if not any(option.startswith(("--dependency", "--begin", "--array", "--reservation")) for option in options):
            mixed.nodes_of(job)
    mixed.run("scancel", job)
    mixed.until(lambda: not mixed.run("squeue", "-h").stdout, "the job to end")
    return Tried(change, could_start)


def share_advised(mixed: Mixed, seeds: range, short: int) -> float:
    """Try many jobs: the share of those that can start which got advice."""
    tries = [outcome for outcome in (tried(mixed, seed) for seed in sample(seeds, short)) if outcome is not None]
    able = [outcome for outcome in tries if outcome.could_start]
    advised = sum(outcome.change.outcome == "excluded" for outcome in able)
    print(f"{len(tries)} jobs, {len(able)} could start, {advised} advised")  # noqa: T201  for docs/how-we-know/advice.md
    return advised / len(able)


@pytest.mark.long
def test_random_jobs_can_start_with_the_advice(mixed: Mixed) -> None:
    assert share_advised(mixed, range(150), short=6) > 0.2, "advice that is never given would pass, too"


@pytest.mark.long
def test_random_jobs_can_start_beside_reservations(mixed: Mixed, reservations: None) -> None:
    assert share_advised(mixed, range(1000, 1100), short=8) > 0.1
