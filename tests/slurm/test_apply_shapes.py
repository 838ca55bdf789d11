"""A job that can start before `whorl advise apply` can start after it, whatever its shape: random jobs on a real Slurm.

Slurm itself says what can start: `sbatch --test-only` with the same options, and for some of the jobs their start.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.jobs.applying import Change, change
from whorl.jobs.counting import Site
from whorl.jobs.slurm import Slurm as Client
from whorl.store.hostlist import expand
from whorl.tests.advised_fleet import write_store
from whorl.tests.sizes import count, sample
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
    every = {"mine": ("n02,n04", "alice"), "ours": ("n03,n05,n06", "alice,bob"), "closed": ("n09", "root")}
    for name, (nodes, users) in every.items():
        line = [f"ReservationName={name}", f"Nodes={nodes}", f"Users={users}", "StartTime=now", "Duration=UNLIMITED"]
        made = mixed.run("scontrol", "create", "reservation", *line)
        assert made.returncode == 0, made.stderr
    yield
    mixed.cancel_all()
    mixed.until(lambda: not mixed.run("squeue", "-h").stdout, "the jobs to end")
    for name in every:
        mixed.run("scontrol", "delete", f"ReservationName={name}")


def why_not(mixed: Mixed, options: list[str], excluded: str) -> str:
    """What Slurm says against a job of this shape; "" where it can start."""
    later = ("--exclude", "--array", "--dependency", "--begin")
    asked = [option for option in options if not option.startswith(later)]
    done = mixed.run("sbatch", "--test-only", "--wrap=true", f"--exclude={excluded}", *asked, user="alice")
    return done.stderr if done.returncode else ""


@dataclass(frozen=True)
class Tried:
    job: str
    options: list[str]
    made: Change
    could_start: bool


def tried(mixed: Mixed, seed: int, site: Site) -> Tried | None:
    """Advise a random job at random, and change it; None where Slurm refuses such a job."""
    options = shape(seed)
    line = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=sleep 300", *options]
    submitted = mixed.run(*line, user="alice")
    if submitted.returncode:
        return None
    job = submitted.stdout.strip()
    record = Client(environment=mixed.environment()).jobs(job)[0]
    rng = random.Random(-seed)
    made = change(record, rng.sample(mixed.names, rng.randint(1, 4)), site)
    could_start = not why_not(mixed, options, record.excluded)
    if made.needed:
        updated = mixed.run(*made.command, user="alice")
        assert updated.returncode == 0, updated.stderr
        if could_start:
            assert why_not(mixed, options, made.after) == "", f"seed {seed}: {options} without {made.after}"
    return Tried(job, options, made, could_start)


def share_advised(mixed: Mixed, seeds: range, short: int) -> float:
    """Try many jobs: the share of those that can start which got advice."""
    site = Site.of(Client(environment=mixed.environment()))
    advised = []
    for seed in sample(seeds, short):
        found = tried(mixed, seed, site)
        if found is not None:
            mixed.run("scancel", found.job)
            advised += [found.made.needed] if found.could_start else []
    return sum(advised) / len(advised)


@pytest.mark.long
def test_random_jobs_can_start_with_the_advice(mixed: Mixed) -> None:
    assert share_advised(mixed, range(150), short=20) > 0.2, "advice that is never given would pass, too"


@pytest.mark.long
def test_random_jobs_can_start_beside_reservations(mixed: Mixed, reservations: None) -> None:
    assert share_advised(mixed, range(1000, 1100), short=16) > 0.1


@pytest.mark.long
def test_advised_jobs_do_start(mixed: Mixed) -> None:
    """Not only by `--test-only`: they are released and run."""
    site = Site.of(Client(environment=mixed.environment()))
    later = "--dependency", "--begin", "--array", "--reservation"
    started = 0
    for seed in range(2000, 3000):
        found = tried(mixed, seed, site)
        if found is None:
            continue
        if found.could_start and found.made.needed and not any(one.startswith(later) for one in found.options):
            mixed.run("scontrol", "release", found.job)
            assert not set(mixed.nodes_of(found.job)) & set(expand(found.made.after)), f"seed {seed}"
            started += 1
        mixed.run("scancel", found.job)
        if started == count(12, short=1):
            break
    assert started == count(12, short=1)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "placement.md"
BY_NUMBER = (
    *("--nodes=2", "--ntasks=9", "--ntasks-per-node=2", "--cpus-per-task=2", "--mincpus=4", "--mem=1000"),
    *(
        "--mem-per-cpu=100",
        "--tmp=0",
        "--gpus=a100:6",
        "--gpus-per-node=a100:2",
        "--gpus-per-task=1 --ntasks=2",
        "--gres=gpu:1",
    ),
    *("--exclusive", "--exclude=n01", "--constraint=a100|v100"),
)
BY_KIND = ("--nodelist=n05", "--prefer=a100", "--cpus-per-gpu=2 --gpus=1", "--mem-per-gpu=100 --gpus=1")
ALONE = ("--contiguous", "--switches=1", "--deadline=now+1hour")


@pytest.mark.long
def test_the_forms_that_the_docs_say_are_counted(mixed: Mixed) -> None:
    """There is one n08, so that nothing can replace it by kind; there are three nodes like n04."""
    text = PAGE.read_text()
    client = Client(environment=mixed.environment())
    site = Site.of(client)
    for rule, forms in {"By number.": BY_NUMBER, "By kind.": BY_KIND, "Left alone": ALONE}.items():
        listed = re.findall(rf"\*\*{re.escape(rule)}\*\*(.*)", text)[-1]  # the filters leave other jobs alone
        options = set(re.findall(r"`(--[a-z-]+)`", listed)) - {"--segment"}  # newer than the Slurm of the tests
        assert options == {form.partition("=")[0] for form in forms}
        for form in forms:
            record = client.jobs(mixed.submit("--hold", *form.split()))[0]
            whole, one_of_three = (change(record, [name], site) for name in ("n08", "n04"))
            assert bool(whole.after) == (rule == "By number."), form
            assert bool(one_of_three.after) == (rule != "Left alone"), form


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """n02 is slow."""
    folder = Path(tempfile.mkdtemp(prefix="whorl-shapes-"))
    yield str(write_store(folder))
    shutil.rmtree(folder)


def apply(mixed: Mixed, store: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[str, Result]:
    """Submit a job that waits, and advise it."""
    for name, value in mixed.environment().items():
        monkeypatch.setenv(name, value)
    job = mixed.submit("--hold", *options, user=None)
    done = CliRunner().invoke(cli, ["advise", "apply", job, "--store", store, "--workload", "sgemm"])
    assert done.exit_code == 0, done.output
    return job, done


@pytest.mark.parametrize(
    ("options", "avoids"),
    sample(
        [
            (["--nodes=3", "--gres=gpu:v100:4"], "no nodes"),
            (["--nodes=2", "--gres=gpu:v100:4"], "n02"),
            (["--gpus=v100:8"], "n02"),
            (["--gpus=v100:13"], "no nodes"),
            (["--nodes=2", "--gres=gpu:a100:4"], "no nodes"),  # n02 has no A100
            (["--nodes=4", "--partition=old"], "no nodes"),
            (["--nodes=3", "--exclude=n07", "--gres=gpu:4"], "n[02,07]"),
            (["--ntasks=3", "--gpus-per-task=v100:4"], "no nodes"),
            (["--nodes=2", "--constraint=[v100*1&a100*1]"], "n02"),
        ],
        short=5,
    ),
)
@pytest.mark.long
def test_kinds_of_gpus_in_one_partition(
    mixed: Mixed, store: str, monkeypatch: pytest.MonkeyPatch, options: list[str], avoids: str
) -> None:
    job, done = apply(mixed, store, monkeypatch, *options)
    assert done.stdout == f"job {job} avoids {avoids}\n", done.stderr


@pytest.mark.long
def test_jobs_in_a_reservation(mixed: Mixed, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = ["ReservationName=two", "Nodes=n[02-03]", "Users=root", "StartTime=now", "Duration=60"]
    assert mixed.run("scontrol", "create", "reservation", *reserved).returncode == 0
    try:
        job, done = apply(mixed, store, monkeypatch, "--reservation=two", "--nodes=2")
        assert done.stdout == f"job {job} avoids no nodes\n"
        assert "n02 is not excluded: the job may need 2 nodes of its kind in partition batch" in done.stderr
        job, done = apply(mixed, store, monkeypatch, "--reservation=two", "--nodes=1")
        assert done.stdout == f"job {job} avoids n02\n"
        mixed.run("scontrol", "release", job)
        assert mixed.nodes_of(job) == ["n03"]
    finally:
        mixed.cancel_all()
        mixed.until(lambda: not mixed.run("squeue", "-h").stdout, "the jobs to end")
        mixed.run("scontrol", "delete", "ReservationName=two")
