"""Chains of jobs on a real Slurm: `whorl jobs chain` and `whorl jobs wait`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.jobs.chain import read_script
from whorl.jobs.slurm import Slurm as ClientSlurm
from whorl.tests.analysis.chains.logs import lonestar, needs_lonestar
from whorl.tests.slurm.accounted import Accounted
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

# The two lines of docs/jobs.md, and a diary: the time, what happened, and the link.
TRAINING = """\
note() { echo "$(date +%s.%N) $1 $WHORL_CHAIN_LINK" >>diary; }
trap 'note left; kill $training; exit 0' USR1
note works
[ "$WHORL_CHAIN_LINK" = 3 ] && { note done; exit 0; }
sleep 300 & training=$!
wait $training
"""
SOON = "lead0.1663"
"""Submits the successor of a job of ten minutes after a second."""


class Chained:
    """A script of alice's in a folder, and its chain."""

    def __init__(self, slurm: Slurm, name: str, body: str = TRAINING, *directives: str) -> None:
        self.slurm = slurm
        self.folder = slurm.folder / "out" / name
        self.folder.mkdir()
        shutil.chown(self.folder, "alice")
        self.script = self.folder / ("my train.sbatch" if " " in name else "train.sbatch")
        lines = [f"#SBATCH {line}" for line in directives or ("--time=10", "-N 1", "--output=%x.%j.out")]
        self.script.write_text("\n".join(["#!/bin/bash", *lines, f"#SBATCH --chdir='{self.folder}'", "", body]))
        self.script.chmod(0o755)

    def chain(self, *options: str, policy: str = SOON) -> subprocess.CompletedProcess[str]:
        return self.slurm.whorl(
            "jobs", "chain", "--script", str(self.script), "--policy", policy, "--json", *options, user="alice"
        )

    def answer(self, *options: str, status: int = 0, policy: str = SOON) -> dict[str, Any]:
        done = self.chain(*options, policy=policy)
        assert done.returncode == status, done.stderr + done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def diary(self) -> list[tuple[float, str, str]]:
        lines = (self.folder / "diary").read_text().splitlines() if (self.folder / "diary").exists() else []
        return [(float(line.split()[0]), line.split()[1], line.split()[2]) for line in lines]

    def with_commands(self, **scripts: str) -> dict[str, str]:
        """An environment in which these texts of sh stand for commands of Slurm."""
        commands = self.folder / "bin"
        commands.mkdir(exist_ok=True)
        commands.chmod(0o777)
        for name, text in scripts.items():
            (commands / name).write_text(f"#!/bin/sh\n{text}\n")
            (commands / name).chmod(0o755)
        return {"PATH": f"{commands}:{self.slurm.environment()['PATH']}"}

    def run(self, *options: str, policy: str = SOON, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """`chain`, with these variables."""
        program = (sys.executable, "-B", "-m", "whorl", "jobs", "chain", "--script", str(self.script))
        words = (*program, "--policy", policy, *options)
        return self.slurm.run(*words, user="alice", read_all=True, env=env, timeout=60)

    def jobs(self) -> Counter[str]:
        """Link -> how many jobs Slurm ever had for it."""
        lines = self.slurm.run("squeue", "-h", "-t", "all", "-o", "%Z %k").stdout.splitlines()
        return Counter(line.split(":")[2] for line in lines if line.startswith(f"{self.folder} whorl-chain:"))


@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=pytest.mark.long)])
def test_links_hand_over_without_a_gap_though_the_driver_is_killed_around_sbatch(slurm: Slurm, moment: str) -> None:
    training = Chained(slurm, f"killed-{moment}")
    submit = f'{shutil.which("sbatch")} "$@"\n' if moment == "after" else ""
    held = f"ls -l /proc/self/fd | grep -c '/lock$' >{training.folder}/bin/locks\n"
    variables = training.with_commands(sbatch=f"{held}{submit}kill -9 $PPID")
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)  # then the second one is due
    killed = training.run("--once", env=variables)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    locks = training.folder / "bin" / "locks"
    assert locks.read_text() == "1\n", "sbatch has the lock, for which the next driver waits"
    path = training.folder / "train.sbatch.chain" / "chain.json"
    state = json.loads(path.read_text())
    assert state["links"]["2"]["job"] is None
    state["links"]["2"]["submitted_s"] -= 25  # else half a minute is waited for a job that was never sent
    path.write_text(json.dumps(state))

    document = training.answer()
    assert document["end"] == "done"
    ends, jobs = [link["end"] for link in document["links"]], training.jobs()
    assert ends[:3] == ["checkpoint", "checkpoint", "done"]
    assert set(ends[3:]) <= {"done", "cancelled"}, "on a busy machine one more is sent before the third is done"
    assert len(jobs) == len(ends)
    assert set(jobs.values()) == {1}
    diary = training.diary()
    expected = ["works 1", "left 1", "works 2", "left 2", "works 3", "done 3"]
    assert [f"{event} {link}" for _, event, link in diary] == expected
    # Each link was there before the last one left: Slurm has no gap, and the training one of a look at a file.
    assert all(link["interruption_s"] <= 0 for link in document["links"][1:3])
    assert all(0 <= diary[place + 1][0] - diary[place][0] < 10 for place in (1, 3))
    assert training.answer() == document | {"forecast": None}
    assert training.jobs() == jobs


def test_a_link_that_fails_ends_the_chain_with_its_last_words(slurm: Slurm) -> None:
    training = Chained(slurm, "failing", "echo the last words >&2; exit 3")
    document = training.answer(status=6, policy="reactive")
    assert document["end"] == "failed"
    assert "status 3" in document["reason"]
    assert "the last words" in document["reason"]
    assert len(document["links"]) == 1


def test_links_that_end_at_once_end_the_chain(slurm: Slurm) -> None:
    training = Chained(slurm, "at once", "exit 75")
    document = training.answer(status=6, policy="reactive")
    assert [link["end"] for link in document["links"]] == ["checkpoint", "checkpoint"]
    assert "within 60 s" in document["reason"]
    assert training.jobs() == {"1": 1, "2": 1}
    training.script.write_text(training.script.read_text().replace("exit 75", "exit 0"))
    resumed = training.answer("--set", "resume=yes", policy="reactive")
    assert (resumed["end"], len(resumed["links"])) == ("done", 3)


def test_a_cancelled_link_ends_the_chain_and_its_successor_goes_only_if_whorl_sent_it(slurm: Slurm) -> None:
    """The successor waits for a node that is not free; a job of the same name beside it stays."""
    training = Chained(slurm, "cancelled", TRAINING, "--time=10", "-N 6", "--exclusive", "--output=%x.%j.out")
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)
    second = training.answer("--once")["links"][1]["job"]
    beside = slurm.submit("--job-name=train.sbatch", "-N6", "--comment=whorl-chain:another:2")
    first = second and str(int(second) - 1)
    slurm.run("scancel", second, user="alice")
    assert training.answer("--once", status=1)["end"] == "cancelled"
    third = training.answer("--once", "--set", "resume=yes")["links"][2][
        "job"
    ]  # to take over from the first, which runs
    slurm.run("scancel", first, user="alice")
    slurm.until(lambda: slurm.field(first, "JobState") == "CANCELLED", "the first link to be cancelled")
    document = training.answer("--once", status=1)
    assert document["end"] == "cancelled"
    assert document["reason"].startswith("link 1 ")
    assert slurm.field(third, "JobState") == "CANCELLED"
    assert slurm.field(beside, "JobState") in ("PENDING", "RUNNING")


def test_a_link_that_is_requeued_stays_the_same_link(slurm: Slurm) -> None:
    training = Chained(slurm, "requeued", "echo $(date +%s.%N) works $WHORL_CHAIN_LINK >>diary; sleep 300")
    job = training.answer("--once", policy="reactive")["links"][0]["job"]
    slurm.until(lambda: len(training.diary()) == 1, "the link to work")
    slurm.run("scontrol", "requeue", job)
    slurm.until(lambda: slurm.field(job, "JobState") == "PENDING", "the job to be requeued")
    assert [link["end"] for link in training.answer("--once", policy="reactive")["links"]] == [None]

    def works_again() -> bool:  # Slurm lets a requeued job wait for two minutes, from the end of its epilog on
        slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now")
        return len(training.diary()) == 2

    time.sleep(2)  # within the second of the requeue slurmd would refuse the job: its credential was revoked
    slurm.until(works_again, "the link to work again")
    document = training.answer("--once", policy="reactive")
    assert [link["job"] for link in document["links"]] == [job]
    assert training.jobs() == {"1": 1}


@pytest.mark.long
def test_a_successor_takes_over_from_a_link_that_was_requeued(slurm: Slurm) -> None:
    """It never starts again, although the user's other driver may be dead."""
    training = Chained(slurm, "taken-over")
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)
    first, second = (link["job"] for link in training.answer("--once")["links"])
    slurm.until(lambda: slurm.field(second, "JobState") == "RUNNING", "the second link to run")
    slurm.until(lambda: ("works", "2") in [entry[1:] for entry in training.diary()], "the second link to work")
    slurm.run("scontrol", "requeue", first)
    slurm.run("scontrol", "update", f"jobid={first}", "StartTime=now")
    slurm.until(lambda: slurm.field(first, "JobState") not in ("RUNNING", "COMPLETING"), "the first link to end")
    assert [entry[2] for entry in training.diary() if entry[1] == "works"] == ["1", "2"]


@pytest.mark.long
def test_a_second_driver_of_a_script_is_refused(slurm: Slurm) -> None:
    training = Chained(slurm, "twice", "sleep 300")
    words = ("jobs", "chain", "--script", str(training.script), "--policy", "reactive")
    program = [sys.executable, "-B", "-m", "whorl", *words]
    first = subprocess.Popen(
        slurm._line(program, "alice", read_all=True), env=slurm.environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        slurm.until(lambda: bool(training.jobs()), "the first driver to submit")
        refused = training.chain("--once", policy="reactive")
        assert refused.returncode == 3
        assert f"process {first.pid}" in refused.stderr
        beside = training.answer("--once", "--set", f"folder={training.folder}/second", policy="reactive")
        assert len(beside["links"]) == 1
        assert training.jobs() == {"1": 2}
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
    closed = training.chain("--once", "--set", "folder=/proc/whorl", policy="reactive")
    assert (closed.returncode, closed.stderr.count("\n")) == (3, 1)
    second_chain = Chained(slurm, "other", "sleep 300")
    assert "is the chain of" in second_chain.chain("--once", "--set", f"folder={training.folder}/second").stderr


@pytest.mark.long
def test_a_time_limit_and_a_lost_node_are_followed_by_the_next_link(slurm: Slurm) -> None:
    body = 'echo "$(date +%s.%N) works $WHORL_CHAIN_LINK" >>diary; [ "$WHORL_CHAIN_LINK" = 2 ] || sleep 300\n'
    directives = ("--time=10", "-N1", "--no-requeue", "--output=%x.%j.out")
    lost, late = (Chained(slurm, name, body, *directives, f"-w n0{node}") for node, name in ((1, "lost"), (2, "late")))
    job_lost, job_late = (chain.answer("--once", policy="reactive")["links"][0]["job"] for chain in (lost, late))
    slurm.until(lambda: len(lost.diary()) == len(late.diary()) == 1, "the first links to work")
    slurm.run("scontrol", "update", f"jobid={job_late}", "EndTime=now")  # Slurm looks at limits twice a minute
    slurm.run("scontrol", "update", "nodename=n01", "state=down", "reason=a test")
    slurm.until(lambda: slurm.field(job_lost, "JobState") == "NODE_FAIL", "the job to lose its node")
    slurm.run("scontrol", "update", "nodename=n01", "state=resume")
    slurm.until(lambda: slurm.field(job_late, "JobState") == "TIMEOUT", "the limit", within=90)
    for chain, end in ((lost, "node failure"), (late, "time limit")):
        links = chain.answer(policy="reactive")["links"]
        assert [link["end"] for link in links] == [end, "done"]
        assert links[1]["interruption_s"] >= 0


@pytest.mark.long
def test_a_finished_predecessor_and_a_number_of_links(slurm: Slurm) -> None:
    """A successor that waits is cancelled when the work is done; with a number of links status 0 is no end."""
    body = 'echo "$(date +%s.%N) works $WHORL_CHAIN_LINK" >>diary; sleep 6\n'
    longer = body.replace("sleep 6", "sleep 20")  # it runs until its successor waits, on a busy machine too
    training = Chained(slurm, "finished", longer, "--time=10", "-N6", "--exclusive", "--output=%x.%j.out")
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)
    first, second = (link["job"] for link in training.answer("--once")["links"])
    slurm.run("scontrol", "hold", second)
    slurm.until(lambda: slurm.field(first, "JobState") == "COMPLETED", "the first link to end")
    variables = training.with_commands(scancel=f'{shutil.which("scancel")} "$@"\nkill -9 $PPID')
    assert training.run("--once", env=variables).returncode == -signal.SIGKILL
    document = training.answer("--once")
    assert document["end"] == "done"
    assert [link["end"] for link in document["links"]] == ["done", "cancelled"]
    assert slurm.field(second, "JobState") == "CANCELLED"
    counted = Chained(slurm, "counted", body)
    document = counted.answer("--until", "2", "--set", "signal=none")
    assert [link["end"] for link in document["links"]] == ["done", "done"]
    assert document["links"][1]["interruption_s"] < 0
    (began, _, _), (taken_over, _, _) = counted.diary()
    assert taken_over - began >= 6  # without a signal the successor waited for the end


@pytest.mark.long
def test_a_controller_that_does_not_answer_for_a_moment_is_waited_for(slurm: Slurm) -> None:
    training = Chained(slurm, "patient", "exit 0")
    commands = training.folder / "bin"
    silent = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    count = f"echo x >>{commands}/calls; [ $(wc -l <{commands}/calls) -gt 2 ] || {{ {silent}; }}"
    variables = training.with_commands(squeue=f'{count}\nexec {shutil.which("squeue")} "$@"')
    done = training.run("--set", "patience=1s", policy="reactive", env=variables)
    assert done.returncode == 5
    assert "run the command again" in done.stderr
    (commands / "calls").unlink()
    done = training.run("--set", "patience=1min", policy="reactive", env=variables)
    assert done.returncode == 0
    assert "Slurm's controller does not answer" in done.stderr
    assert training.jobs() == {"1": 1}


BAD_SCRIPTS = {
    "no script": ("#SBATCH --time=10\n", 2, "first line must be"),
    "an array": ("#!/bin/sh\n#SBATCH -t 10 -a 0-3\n", 2, "array"),
    "two parts": ("#!/bin/sh\n#SBATCH -t 10\n#SBATCH hetjob\n", 2, "parts"),
    "no limit": ("#!/bin/sh\n#SBATCH -t UNLIMITED\n", 2, "#SBATCH --time=24:00:00"),
    "a strange limit": ("#!/bin/sh\n#SBATCH -t soon\n", 2, "'soon' is no time limit"),
    "no such partition": ("#!/bin/sh\n#SBATCH -t 10 -p gone\n", 2, "partition gone"),
    "more than there is": ("#!/bin/sh\n#SBATCH -t 10 --gres=gpu:99\n", 5, "Slurm refused the job of link 1"),
    "a limit of 0": ("#!/bin/sh\n#SBATCH -t 0\n", 2, "no time limit"),
    "an sbatch that waits": ("#!/bin/sh\n#SBATCH -t 10 --wait\n", 2, "with --wait: leave it out"),
    "half a quote": ("#!/bin/sh\n#SBATCH -t 10 --comment='a\n", 2, "quote"),
}


def test_a_script_that_cannot_be_chained_is_one_sentence(slurm: Slurm) -> None:
    training = Chained(slurm, "bad", "true")
    for name, (text, status, sentence) in BAD_SCRIPTS.items():
        training.script.write_text(text + "true\n")
        done = training.chain("--once", "--set", f"folder={training.folder}/{name.replace(' ', '-')}")
        assert done.returncode == status, f"{name}: {done.stdout}{done.stderr}"
        assert done.stderr.count("\n") == 1, done.stderr
        assert sentence in done.stderr, name
    training.script.write_text("#!/bin/sh\n#SBATCH -t 10\ntrue\n")
    late = training.chain("--once", "--until", "2020-01-01")
    assert (late.returncode, late.stderr.count("\n")) == (2, 1)
    assert "has passed" in late.stderr
    assert not slurm.run("squeue", "-h", "-t", "PD,R", "-u", "alice").stdout


SCRIPTS = {
    "tasks": ("#!/bin/bash -l \n#SBATCH -n 6 --ntasks-per-node=2 --time=30\n", 3, 1800),
    "days": ("#!/bin/bash\n# a comment\n\n#SBATCH -t 1-0 -N2-4\nset -e\n#SBATCH -N 6\n", 2, 86_400),
    "line ends": ("#!/bin/bash\r\n#SBATCH -t 1:30\r\n", 1, 90),
}


def test_nodes_and_limits_are_those_that_slurm_would_give(slurm: Slurm) -> None:
    client = ClientSlurm(environment=slurm.environment())
    for name, (text, nodes, limit_s) in SCRIPTS.items():
        path = slurm.folder / "out" / f"a {name}.sbatch"
        path.write_bytes(text.encode())
        script = read_script(path, client)
        assert (script.shape.nodes, script.shape.limit_s) == (nodes, limit_s), name
        assert script.interpreter in ("/bin/bash", "/bin/bash -l"), name


def test_a_link_of_which_nobody_knows_how_it_ended(slurm: Slurm) -> None:
    """Its script got SIGTERM, the queue has forgotten it, and the accounts do not answer."""
    training = Chained(slurm, "unknown", "sleep 300")
    job = training.answer("--once", policy="reactive")["links"][0]["job"]
    folder = training.folder / "train.sbatch.chain"
    slurm.until((folder / "link-0001.begun").exists, "the link to begin")
    slurm.run("scancel", job)
    slurm.until((folder / "link-0001.ended").exists, "the link to end")
    closed = "echo 'Connection refused' >&2; exit 1"
    variables = training.with_commands(squeue="", sacct=closed)

    def answer(**changes: object) -> dict[str, Any]:
        state = json.loads((folder / "chain.json").read_text())
        state["links"]["1"]["end_s"] = changes.pop("end_s", state["links"]["1"]["end_s"])
        (folder / "chain.json").write_text(json.dumps(state | changes))
        document: dict[str, Any] = json.loads(training.run("--once", "--json", policy="reactive", env=variables).stdout)
        return document

    assert (answer()["end"], answer()["links"][0]["end"]) == (None, None)  # the accounts may be late
    before = (folder / "chain.json").read_text()
    assert answer(missing_s=1.0)["end"] == "unknown"
    (folder / "chain.json").write_text(before)
    document = answer(missing_s=1.0, end_s=time.time())  # at its limit, by the last look
    assert [link["end"] for link in document["links"]] == ["time limit", None]


@pytest.mark.parametrize("refused", [False, True])
def test_a_predecessor_that_runs_on_after_its_limit_is_cancelled(slurm: Slurm, tmp_path: Path, refused: bool) -> None:
    """The job of the second link, run by hand in a folder with a blank, where squeue says that the first still runs."""
    training = Chained(slurm, f"late-{refused}", TRAINING, "--time=10", "-N 6", "--exclusive", "--output=%x.%j.out")
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)
    first, second = (link["job"] for link in training.answer("--once")["links"])
    text = slurm.run("scontrol", "write", "batch_script", second, "-").stdout
    folder = tmp_path / "a chain"
    folder.mkdir()
    assert f"folder={training.folder}/train.sbatch.chain\n" in text
    text = text.replace(f"folder={training.folder}/train.sbatch.chain", f"folder='{folder}'")
    variables = training.with_commands(
        squeue=f'[ -z "$SQUEUE_STATES" ] && [ -e {tmp_path}/called ] && echo CANCELLED 9 || echo RUNNING 9',
        scancel="exit 1" if refused else f"echo $* >{tmp_path}/called",
    )
    job = {"SLURM_JOB_ID": second, "SQUEUE_STATES": "PENDING", "TMPDIR": str(tmp_path)}
    path = tmp_path / "link"
    path.write_text(text.replace("sleep 300", "true"))
    done = subprocess.run(
        ["/bin/bash", path], env=variables | job, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == int(refused), done.stderr
    assert f"job {first}, runs on after its time limit: it is cancelled" in done.stderr
    assert (folder / "link-0002.ended").read_text().split()[2] == str(int(refused))
    assert (tmp_path / "diary").exists() is not refused
    assert refused or (tmp_path / "called").read_text().split() == [first]


@pytest.mark.long
def test_links_that_the_queue_has_forgotten_are_found_in_the_accounts(accounted_slurm: Accounted) -> None:
    """The driver was killed before it could note the number of the job, which ended without a word in the folder."""
    slurm = accounted_slurm

    def is_accounted(job: str) -> bool:  # in full: for some seconds the accounts have no more than its number
        words = ("sacct", "-a", "-X", "-n", "-P", "-S", "now-1hours", "-o", "JobIDRaw,ExitCode,SubmitLine")
        return f"{job}|75:0|sbatch" in slurm.run(*words).stdout

    training = Chained(slurm, "forgotten", "exit 75")
    folder = training.folder / "train.sbatch.chain"
    job = training.answer("--once", policy="reactive")["links"][0]["job"]
    slurm.until(lambda: is_accounted(job), "the accounts to have the end of the job")
    state = json.loads((folder / "chain.json").read_text())
    state["links"]["1"]["job"] = None
    (folder / "chain.json").write_text(json.dumps(state))
    for path in folder.glob("link-*"):
        path.unlink()
    done = training.run("--once", "--json", policy="reactive", env=training.with_commands(squeue=""))
    links = json.loads(done.stdout)["links"]
    assert [(link["job"], link["end"]) for link in links] == [(job, "checkpoint"), (str(int(job) + 1), None)]
    slurm.until(lambda: is_accounted(links[1]["job"]), "the accounts to have the end of the next job")
    plan = training.answer("--dry-run", policy="average")
    assert plan["forecast"]["basis"] == "average", plan["forecast"]["notes"]
    assert plan["forecast"]["mean_wait_s"] >= 0
    assert plan["forecast"]["expected"]["n"] >= 2
    assert "waited" in slurm.whorl("jobs", "wait", "--time", "10", user="alice").stdout
    nowhere = slurm.whorl("jobs", "wait", "--time", "10", "--set", "partition=nowhere", user="alice")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)
    assert "Slurm has no partition nowhere; it has batch" in nowhere.stderr


@pytest.mark.long
@needs_lonestar
def test_a_wait_is_predicted_from_the_history_of_the_site(slurm: Slurm) -> None:
    """sacct answers with the last 700 jobs of Lonestar6, moved to end at this moment; the queue is this Slurm's."""
    log = lonestar()
    log = log.where(np.arange(len(log)) >= len(log) - 700)
    shift_s = time.time() - log.start_s.max() - 60
    rows = zip(log.submit_s + shift_s, log.start_s + shift_s, log.end_s + shift_s, log.limit_s, log.nodes, strict=True)
    training = Chained(slurm, "learned", "true")
    commands = training.folder / "bin"
    commands.mkdir()
    lines = [
        "\x1f".join(
            [str(n), "batch", "COMPLETED", *(f"{s:.0f}" for s in (submit, submit, start, end, limit / 60, nodes))]
        )
        for n, (submit, start, end, limit, nodes) in enumerate(rows, start=1)
    ]
    head = "JobIDRaw Partition State Submit Eligible Start End TimelimitRaw NNodes".replace(" ", "\x1f")
    (commands / "rows").write_text("\n".join([head, *lines, ""]))
    (commands / "sacct").write_text(f"#!/bin/sh\ncat {commands}/rows\n")
    (commands / "sacct").chmod(0o755)

    def answer(*words: str) -> dict[str, Any]:
        path = {"PATH": f"{commands}:{slurm.environment()['PATH']}"}
        program = (sys.executable, "-B", "-m", "whorl", "jobs", *words, "--json")
        done = slurm.run(*program, user="alice", read_all=True, env=path, timeout=120)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    waits = answer("wait", "--nodes", "2", "--time", "24:00:00")
    assert waits["basis"] == "model"
    assert [row["quantile"] for row in waits["quantiles"]] == [0.5, 0.75, 0.9]
    seconds = [row["wait_s"] for row in waits["quantiles"]]
    assert 0 <= seconds[0] <= seconds[1] <= seconds[2]
    assert all(row["n"] >= 50 and 0 < row["right_pct"] <= 100 for row in waits["quantiles"])

    plan = answer("chain", "--script", str(training.script), "--cost", "0.5", "--dry-run")
    assert (plan["policy"], plan["forecast"]["basis"], plan["links"]) == ("p67", "model", [])
    assert plan["forecast"]["lead_s"] == plan["forecast"]["quantiles"][1]["wait_s"]
    expected = plan["forecast"]["expected"]
    assert expected["n"] > 100
    assert expected["interruption_h"]["mean"] < expected["reactive_h"]["mean"]
    assert not training.jobs()
