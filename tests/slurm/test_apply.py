"""`whorl advise apply` on jobs that wait in a real Slurm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.jobs.slurm import Slurm as Client
from whorl.tests.advised_fleet import write_store
from whorl.tests.sizes import sample
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="whorl-apply-"))
    folder.chmod(0o755)
    yield str(write_store(folder))
    shutil.rmtree(folder)


def apply(
    slurm: Slurm, store: str, job: str, *options: str, user: str | None = "alice", workload: str | None = "sgemm"
) -> subprocess.CompletedProcess[str]:
    named = ["--workload", workload] if workload else []
    done = slurm.whorl("advise", "apply", job, "--store", store, *named, *options, user=user)
    assert "Traceback" not in done.stderr
    return done


def comment(slurm: Slurm, job: str) -> str:
    return Client(environment=slurm.environment()).jobs(job)[0].comment


@pytest.mark.long
def test_a_waiting_job_of_ones_own(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--gres=gpu:4", "--exclude=n04", '--comment=fig "3" UserId=bob(1) k=v')
    dry = apply(slurm, store, job, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith(f"scontrol update JobId={job} 'ExcNodeList=n[02,04]' 'Comment=fig")
    assert slurm.field(job, "ExcNodeList") == "n04", "a dry run changes nothing"
    done = apply(slurm, store, job)
    assert (done.returncode, done.stdout) == (0, f"job {job} avoids n[02,04]\n")
    assert slurm.field(job, "ExcNodeList") == "n[02,04]"
    assert comment(slurm, job) == 'fig "3" UserId=bob(1) k=v whorl:excluded=n02'
    again = apply(slurm, store, job)
    assert again.stdout == f"job {job} already avoids n[02,04]\n"
    slurm.run("scontrol", "release", job, user="alice")
    assert slurm.nodes_of(job) == ["n01"]


def test_older_advice_is_taken_back(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--exclude=n[04-05]", "--comment=mine whorl:excluded=n05")
    done = apply(slurm, store, job, workload="pagerank")
    assert done.stdout == f"job {job} avoids n04\n"
    assert slurm.field(job, "ExcNodeList") == "n04"
    assert comment(slurm, job) == "mine"


def test_the_comment_names_the_workload(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--comment=whorl=sgemm")
    done = apply(slurm, store, job, "--json", workload=None)
    document = json.loads(done.stdout)
    assert (document["schema"], document["workload"]) == ("whorl.advise.apply/1", "sgemm")
    assert document["rows"][0]["after"] == "n02"
    other = slurm.submit("--hold")
    unsaid = apply(slurm, store, other, workload=None)
    assert unsaid.returncode == 2
    assert "the store has pagerank, sgemm" in unsaid.stderr


def test_the_waiting_tasks_of_an_array(slurm: Slurm, store: str) -> None:
    array = slurm.submit("--array=1,3-5,9%1", "--gres=gpu:4")
    slurm.until(lambda: "RUNNING" in slurm.run("scontrol", "-o", "show", "job", array).stdout, "a task to run")
    one = apply(slurm, store, f"{array}_4")
    assert one.stdout == f"job {array}_4 avoids n02\n"
    assert [slurm.field(f"{array}_{task}", "ExcNodeList") for task in (3, 4)] == ["(null)", "n02"]
    done = apply(slurm, store, array)
    assert done.returncode == 0, done.stderr
    assert "1 tasks of" in done.stderr
    assert [slurm.field(f"{array}_{task}", "ExcNodeList") for task in (1, 3, 4, 5, 9)] == ["(null)", *["n02"] * 4]
    running = apply(slurm, store, f"{array}_1")
    assert (running.returncode, running.stdout) == (2, "")
    assert running.stderr.startswith(f"whorl: job {array}_1 is RUNNING: only a waiting")


def test_jobs_that_are_not_ones_own(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", user="bob")
    for user in ("alice", None):
        done = apply(slurm, store, job, user=user)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"whorl: job {job} is bob's: you can change only your own jobs\n"
    assert slurm.field(job, "ExcNodeList") == "(null)"


def test_jobs_that_are_not_there(slurm: Slurm, store: str) -> None:
    assert apply(slurm, store, "999999").stderr == "whorl: Slurm knows no job 999999: it may have ended long ago\n"
    task = f"{slurm.submit('--hold', '--array=1-2')}_9"
    assert apply(slurm, store, task).stderr == f"whorl: Slurm knows no job {task}: it may have ended long ago\n"
    assert "'12;id' is not a job id" in apply(slurm, store, "12;id").stderr


@pytest.mark.parametrize("asked", [["--nodes=6", "--gres=gpu:4"], ["--gpus=24"], ["--ntasks=48"]])
def test_the_job_stays_schedulable(slurm: Slurm, store: str, asked: list[str]) -> None:
    job = slurm.submit("--hold", *asked)
    done = apply(slurm, store, job)
    assert done.stdout == f"job {job} avoids no nodes\n"
    assert "n02 is not excluded: the job may need 6 nodes of its kind in partition batch" in done.stderr
    slurm.run("scontrol", "release", job, user="alice")
    assert len(slurm.nodes_of(job)) == 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "avoids"), sample([("--nodes=6", ""), ("--nodes=5", "n02"), ("--gpus=v100:20 --exclude=n06", "n06")], 1)
)
def test_the_line_of_the_docs_gets_no_job_refused(slurm: Slurm, store: str, asked: str, avoids: str) -> None:
    """As it stands in docs/slurm/README.md, with a store, a workload and a job that are there."""
    (line,) = re.findall(r"^    (job=\$\(sbatch .*)$", (DOCS / "slurm" / "README.md").read_text(), re.MULTILINE)
    for page in (DOCS / "cli.md", DOCS.parent / "README.md"):
        assert line.replace("/shared/fleet", "fleet") in page.read_text(), "the same line everywhere"
    line = line.replace("/shared/fleet", store).replace("gemm-fp32", "sgemm")
    line = line.replace("job.sh", f"{asked} --output=/dev/null --wrap='sleep 300'")
    whorl = f'whorl() {{ {sys.executable} -B -m whorl "$@"; }}'
    done = slurm.run("bash", "-c", f"{whorl}\n{line}", user="alice", read_all=True, timeout=120)
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(r"job (\d+) (?:already )?avoids (\S+|no nodes)\n", done.stdout)
    assert match is not None
    assert match[2] == (avoids or "no nodes")
    assert slurm.field(match[1], "JobState") in ("PENDING", "RUNNING")
    assert "n02" not in slurm.nodes_of(match[1]) or avoids != "n02"


def test_advice_for_a_job_that_waits_behind_another(slurm: Slurm, store: str) -> None:
    """Late binding: the job is queued before the advice, and starts elsewhere for it."""
    first = slurm.submit("--exclusive", "--nodes=2", "--nodelist=n[01-02]", user="bob")
    slurm.nodes_of(first)
    rest = slurm.submit("--exclusive", "--nodes=4", user="bob")
    slurm.nodes_of(rest)
    job = slurm.submit("--gres=gpu:4")
    assert apply(slurm, store, job).returncode == 0
    slurm.run("scancel", first)
    assert slurm.nodes_of(job) == ["n01"]


@pytest.mark.long
def test_a_job_that_cannot_be_counted_is_left_alone(slurm: Slurm, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in this process, on root's own jobs."""
    for name, value in slurm.environment().items():
        monkeypatch.setenv(name, value)
    for options, avoids in ((["--contiguous", "--nodes=2"], "no nodes"), (["--nodelist=n02"], "no nodes"), ([], "n02")):
        job = slurm.submit("--hold", *options, user=None)
        done = CliRunner().invoke(cli, ["advise", "apply", job, "--store", store, "--workload", "sgemm"])
        assert (done.exit_code, done.stdout) == (0, f"job {job} avoids {avoids}\n"), done.stderr
        if "--contiguous" in options:
            assert f"job {job}: whorl excludes nothing for it, because it asks for neighbouring nodes" in done.stderr
