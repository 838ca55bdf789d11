"""`whorl advise apply` on jobs that wait in a real Slurm: what it excludes, and how it takes that back."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import SchedulerError
from whorl.jobs.apply import ApplyOptions, ExclusionTrial, NodeChoice, change_of, owner_of
from whorl.jobs.slurm import Slurm as Client
from whorl.store.hostlist import expand
from whorl.tests.advised_fleet import write_store
from whorl.tests.sizes import sample
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """n02 is slow."""
    folder = Path(tempfile.mkdtemp(prefix="whorl-apply-"))
    folder.chmod(0o755)
    yield str(write_store(folder))
    shutil.rmtree(folder)


def apply(
    slurm: Slurm, store: str, job: str, *options: str, user: str | None = "alice", workload: str | None = "sgemm"
) -> subprocess.CompletedProcess[str]:
    workload_option = ["--workload", workload] if workload else []
    done = slurm.whorl("advise", "apply", job, "--store", store, *workload_option, *options, user=user)
    assert "Traceback" not in done.stderr
    return done


def comment(slurm: Slurm, job: str) -> str:
    return Client(environment=slurm.environment()).jobs(job)[0].comment


def occupy(slurm: Slurm, nodes: Sequence[str], minutes: int) -> str:
    """Another user's job on these nodes, which runs for so long by its limit."""
    options = ["--exclusive", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--time={minutes}"]
    job = slurm.submit(*options, user="bob")
    slurm.nodes_of(job)
    return job


@pytest.fixture
def busy(slurm: Slurm) -> Slurm:
    """Every node runs a job: n01 and n02 for ten minutes, n03 for twelve, the others for fifty."""
    occupy(slurm, ["n01", "n02"], 10)
    occupy(slurm, ["n03"], 12)
    occupy(slurm, ["n04", "n05", "n06"], 50)
    return slurm


@pytest.mark.long
def test_a_held_job_is_released_with_the_advice(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--gres=gpu:4", "--exclude=n04", '--comment=fig "3" UserId=bob(1) k=v')
    dry = apply(slurm, store, job, "--dry-run", "--set", "release=yes")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith(f"scontrol update JobId={job} 'ExcNodeList=n[02,04]' 'Comment=fig")
    unreleased = apply(slurm, store, job)
    assert (unreleased.returncode, unreleased.stdout) == (0, f"job {job} already avoids n04\n")
    assert "it is held, and Slurm plans no start for held jobs: --set release=yes" in unreleased.stderr
    assert slurm.field(job, "ExcNodeList") == "n04", "neither changes anything"
    done = apply(slurm, store, job, "--set", "release=yes")
    assert (done.returncode, done.stdout) == (0, f"job {job} avoids n[02,04]\n")
    assert slurm.nodes_of(job) == ["n01"]
    assert slurm.field(job, "ExcNodeList") == "n[02,04]"
    assert comment(slurm, job) == 'fig "3" UserId=bob(1) k=v whorl:excluded=n02'


@pytest.mark.long
def test_a_waiting_job_keeps_what_costs_it_nothing(busy: Slurm, store: str) -> None:
    """Without n02 it is planned on n01 at the same time; what Slurm planned before does not count as an answer."""
    job = busy.submit("--gres=gpu:4", "--exclude=n05")
    done = apply(busy, store, job)
    assert (done.returncode, done.stdout) == (0, f"job {job} avoids n[02,05]\n"), done.stderr
    assert apply(busy, store, job).stdout == f"job {job} already avoids n[02,05]\n"
    undone = busy.whorl("advise", "apply", job, "--undo", user="alice")
    assert (undone.returncode, undone.stdout) == (0, f"job {job} avoids n05, as you wrote it\n")
    assert (busy.field(job, "ExcNodeList"), comment(busy, job)) == ("n05", "")


@pytest.mark.parametrize(
    ("options", "delay", "excluded", "reason"),
    [
        (["--nodes=2"], "30s", "n05", "without these nodes it waits 2 min longer, and may 30 s (max-delay)"),
        (["--nodes=2"], "1h", "n[02,05]", ""),
        (["--nodes=3"], "10min", "n05", "without these nodes it waits 38 min longer, and may 10 min"),
        (["--nodes=5"], "1h", "n05", "without these nodes"),  # it can never start
    ],
)
@pytest.mark.long(short=1)
def test_what_would_start_later_is_taken_back(
    busy: Slurm, store: str, options: list[str], delay: str, excluded: str, reason: str
) -> None:
    job = busy.submit(*options, "--exclude=n05", "--comment=mine")
    done = apply(busy, store, job, "--set", f"max-delay={delay}", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["before"], row["after"], row["changed"]) == ("n05", excluded, excluded != "n05")
    assert row["outcome"] == ("excluded" if excluded != "n05" else "undone")
    assert reason in " ".join(row["notes"])
    assert (row["start_before"] is not None, busy.field(job, "ExcNodeList")) == (True, excluded)
    assert comment(busy, job) == ("mine" if excluded == "n05" else "mine whorl:excluded=n02")
    assert busy.field(job, "Reason") in ("Resources", "Priority", "None"), "Slurm holds nothing back for it"


@pytest.mark.long
def test_interrupted_between_the_change_and_the_look(busy: Slurm, store: str) -> None:
    job = busy.submit("--nodes=2", "--exclude=n06,n05", "--comment=mine")
    before = busy.field(job, "ExcNodeList")
    process = looking(busy, store, job)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert (busy.field(job, "ExcNodeList"), comment(busy, job)) == (before, "mine")


def looking(slurm: Slurm, store: str, job: str) -> subprocess.Popen[str]:
    """`apply`, which has changed the job and looks at what Slurm makes of it."""
    words = ["advise", "apply", job, "--workload", "sgemm", "--store", store, "--set", "max-delay=0"]
    line = slurm._line([sys.executable, "-B", "-m", "whorl", *words, "--set", "wait=60"], "alice", read_all=True)
    environment = slurm.environment() | {"USER": "alice"}
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    slurm.until(lambda: "n02" in comment(slurm, job), "the change")
    return process


@pytest.mark.long
def test_a_scheduler_that_stops_answering(busy: Slurm, store: str) -> None:
    job = busy.submit("--nodes=2", "--exclude=n05")
    process = looking(busy, store, job)
    busy.stop_controller()
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        busy.start_controller()
    assert process.returncode == 5
    assert f"`whorl advise apply --undo {job}` takes that back once Slurm answers" in stderr
    assert busy.whorl("advise", "apply", "--undo", job, user="alice").returncode == 0
    assert busy.field(job, "ExcNodeList") == "n05"


def test_a_job_that_starts_between_the_look_and_the_change(slurm: Slurm) -> None:
    """It runs as its owner wrote it, and that is no error."""
    client, job = Client(environment=slurm.environment()), slurm.submit("--hold", "--exclude=n05")
    (change,) = [change_of(record, ["n02"]) for record in client.jobs(job)]
    slurm.run("scontrol", "release", job)
    slurm.nodes_of(job)
    trial = ExclusionTrial(client, job, ApplyOptions(release=True), 0.0, lambda _: None)
    (outcome,) = trial.run([change])
    assert (outcome.outcome, outcome.notes) == ("unchanged", ("it is RUNNING meanwhile: whorl leaves it as it is",))
    (outcome,) = trial._tried([change])  # started between the last look and the change
    assert (outcome.outcome, outcome.after.excluded) == ("unchanged", "n05")
    assert (slurm.field(job, "ExcNodeList"), comment(slurm, job)) == ("n05", "")


def test_an_array_of_which_tasks_start_meanwhile(slurm: Slurm) -> None:
    """Those that wait still get the advice."""
    client, array = Client(environment=slurm.environment()), slurm.submit("--array=1-8", "--hold", "--nodes=3")
    (change,) = [change_of(record, ["n02"]) for record in client.jobs(array)]
    slurm.run("scontrol", "release", f"{array}_1")
    slurm.nodes_of(f"{array}_1")
    (outcome,) = ExclusionTrial(client, array, ApplyOptions(release=True, wait_s=1.0), 0.0, lambda _: None).run(
        [change]
    )
    excluded = {record.excluded for record in client.jobs(array) if record.id != f"{array}_1"}
    assert (outcome.outcome, excluded) == ("excluded", {"n02"})
    assert slurm.field(f"{array}_1", "ExcNodeList") == "(null)"


class DyingClient(Client):
    """Its commands end after so many, as those of a process that was killed."""

    def __init__(self, commands: int, environment: Mapping[str, str]) -> None:
        super().__init__(environment=environment)
        self.commands_left = commands

    def ask(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands_left -= 1
        if self.commands_left < 0:
            raise SchedulerError("killed")
        return super().ask(*command, **options)


@pytest.mark.parametrize("commands", sample(range(1, 13), 3))
def test_killed_after_any_command(slurm: Slurm, commands: int) -> None:
    """What the job has then tells what its owner wrote, to the letter."""
    environment = slurm.environment()
    job = slurm.submit("--hold", "--comment=mine")
    slurm.run("scontrol", "update", f"JobId={job}", "ExcNodeList=n05, n04", user="alice")
    client = Client(environment=environment)
    (change,) = [change_of(record, ["n02"]) for record in client.jobs(job)]
    options = ApplyOptions(release=True, wait_s=0.4)
    with contextlib.suppress(SchedulerError):
        ExclusionTrial(DyingClient(commands, environment), job, options, 0.0, lambda _: None).run([change])
    (record,) = client.jobs(job)
    assert owner_of(record) == NodeChoice("n05, n04", "mine")
    assert (set(expand(record.excluded)) == {"n02", "n04", "n05"}) is ("whorl:excluded=n02" in record.comment)


def test_two_at_once_on_one_job(slurm: Slurm, store: str) -> None:
    """The later one decides; the other one says so, and what it answers is what the job has."""
    client, job = Client(environment=slurm.environment()), slurm.submit("--hold", "--exclude=n05,n04", "--comment=mine")
    (change,) = [change_of(record, ["n03"]) for record in client.jobs(job)]
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+1hour")

    def later(_: str) -> None:
        slurm.run("scontrol", "hold", job, user="alice")
        assert "what an interrupted whorl excluded was taken back" in apply(slurm, store, job).stderr

    (outcome,) = ExclusionTrial(client, job, ApplyOptions(release=True), 0.0, later).run([change])
    assert (outcome.outcome, outcome.after.excluded) == ("unchanged", slurm.field(job, "ExcNodeList"))
    assert outcome.notes == ("it was changed meanwhile: whorl leaves it as it is",)
    assert (slurm.field(job, "ExcNodeList"), comment(slurm, job)) == ("n[04-05]", "mine")


def test_the_comment_names_the_workload_and_older_advice_is_taken_back(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--comment=whorl=sgemm")
    done = apply(slurm, store, job, "--json", "--set", "release=yes", workload=None)
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["schema"], document["workload"]) == ("whorl.advise.apply/1", "sgemm")
    assert document["rows"][0]["after"] == "n02"
    older = slurm.submit("--hold", "--exclude=n[04-05]", "--comment=mine whorl:excluded=n05")
    assert apply(slurm, store, older, workload="pagerank").stdout == f"job {older} avoids n04\n"
    assert (slurm.field(older, "ExcNodeList"), comment(slurm, older)) == ("n04", "mine")
    unsaid = apply(slurm, store, older, workload=None)
    assert unsaid.returncode == 2
    assert "the store has pagerank, sgemm" in unsaid.stderr


@pytest.mark.long
def test_the_waiting_tasks_of_an_array(busy: Slurm, store: str) -> None:
    array = busy.submit("--array=1,3-5,9", "--gres=gpu:4")
    one_task = apply(busy, store, f"{array}_4")
    assert one_task.stdout == f"job {array}_4 avoids n02\n", one_task.stderr
    assert [busy.field(f"{array}_{task}", "ExcNodeList") for task in (3, 4)] == ["(null)", "n02"]
    done = apply(busy, store, array, "--set", "max-delay=2h")
    assert done.returncode == 0, done.stderr
    assert [busy.field(f"{array}_{task}", "ExcNodeList") for task in (1, 3, 4, 5, 9)] == ["n02"] * 5
    assert busy.whorl("advise", "apply", array, "--undo", user="alice").returncode == 0
    assert [busy.field(f"{array}_{task}", "ExcNodeList") for task in (1, 3, 4, 5, 9)] == ["(null)"] * 5


def test_jobs_that_cannot_be_changed(slurm: Slurm, store: str) -> None:
    job = slurm.submit("--hold", "--exclude=n05", "--comment=whorl:excluded=n05 whorl:trying", user="bob")
    for user in ("alice", None):  # root could change it
        done = apply(slurm, store, job, user=user)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"whorl: job {job} is bob's: you can change only your own jobs\n"
    assert slurm.field(job, "ExcNodeList") == "n05", "though it looks as if whorl was trying it"
    running = slurm.submit()
    slurm.nodes_of(running)
    assert apply(slurm, store, running).stderr.startswith(f"whorl: job {running} is RUNNING: only a waiting")
    assert apply(slurm, store, "999999").stderr == "whorl: Slurm knows no job 999999: it may have ended long ago\n"
    task = f"{slurm.submit('--hold', '--array=1-2')}_9"
    assert apply(slurm, store, task).stderr == f"whorl: Slurm knows no job {task}: it may have ended long ago\n"
    assert "'12;id' is not a job id" in apply(slurm, store, "12;id").stderr


@pytest.mark.long
def test_jobs_that_are_left_alone(slurm: Slurm, store: str) -> None:
    for options, sentence in (
        (["--nodelist=n02"], "n02 is not excluded, because the job asks for it"),
        (["--deadline=now+1hour", "--time=5"], "because it has a deadline, after which Slurm cancels it"),
        (["--begin=now+1hour"], "Slurm plans no start for it yet"),
    ):
        job = slurm.submit("--hold", *options)
        if "--begin=now+1hour" in options:
            slurm.run("scontrol", "release", job)
        done = apply(slurm, store, job, "--set", "release=yes")
        assert (done.returncode, done.stdout) == (0, f"job {job} avoids no nodes\n")
        assert sentence in done.stderr
        assert slurm.field(job, "Reason") != "JobHeldUser", "released all the same"


@pytest.mark.long
@pytest.mark.parametrize(
    ("job_options", "avoids"),
    sample([("--nodes=6", ""), ("--nodes=5", "n02"), ("--gpus=v100:8 --exclude=n06", "n[02,06]")], 1),
)
def test_the_line_of_the_docs_gets_no_job_refused(slurm: Slurm, store: str, job_options: str, avoids: str) -> None:
    """As it stands in docs/slurm/README.md, with a store, a workload and a job that are there."""
    (line,) = re.findall(r"^    (job=\$\(sbatch .*)$", (DOCS / "slurm" / "README.md").read_text(), re.MULTILINE)
    for page in (page for page in DOCS.glob("*.md") if "--parsable --hold job.sh" in page.read_text()):
        assert line.replace("/shared/fleet", "fleet") in page.read_text(), "the same line everywhere"
    line = line.replace("/shared/fleet", store).replace("gemm-fp32", "sgemm")
    line = line.replace("job.sh", f"{job_options} --output=/dev/null --wrap='sleep 300'")
    whorl = f'whorl() {{ {sys.executable} -B -m whorl "$@"; }}'
    done = slurm.run("bash", "-c", f"{whorl}\n{line}", user="alice", read_all=True, timeout=120)
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(r"job (\d+) avoids (\S+|no nodes)\n", done.stdout)
    assert match is not None
    assert match[2] == (avoids or "no nodes")
    assert ("n02" in slurm.nodes_of(match[1])) is (avoids == "")
