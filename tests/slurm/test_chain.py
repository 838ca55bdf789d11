"""Chains of jobs on a real Slurm: `whorl jobs chain` and `whorl jobs wait`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest

from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

# The two lines of docs/chains.md, and a diary: the time, what happened, and the link.
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
        self.script = self.folder / "train.sbatch"
        lines = [f"#SBATCH {line}" for line in directives or ("--time=10", "-N 1", "--output=%x.%j.out")]
        self.script.write_text("\n".join(["#!/bin/bash", *lines, "#SBATCH --chdir=" + str(self.folder), "", body]))
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

    def jobs(self) -> Counter[str]:
        """Link -> how many jobs Slurm ever had for it."""
        lines = self.slurm.run("squeue", "-h", "-t", "all", "-o", "%Z %k").stdout.splitlines()
        return Counter(line.split(":")[2] for line in lines if line.startswith(f"{self.folder} whorl-chain:"))


@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=pytest.mark.long)])
def test_links_hand_over_without_a_gap_though_the_driver_is_killed_around_sbatch(slurm: Slurm, moment: str) -> None:
    training = Chained(slurm, f"killed-{moment}")
    commands = training.folder / "bin"
    commands.mkdir()
    submit = f'{shutil.which("sbatch")} "$@"' if moment == "after" else ""
    (commands / "sbatch").write_text(f"#!/bin/sh\n{submit}\nkill -9 $PPID\n")
    (commands / "sbatch").chmod(0o755)
    training.answer("--once")
    slurm.until(lambda: bool(training.diary()), "the first link to work")
    time.sleep(2)  # then the second one is due
    program = (sys.executable, "-B", "-m", "whorl", "jobs", "chain", "--script", str(training.script), "--once")
    path = {"PATH": f"{commands}:{slurm.environment()['PATH']}"}
    killed = slurm.run(*program, "--policy", SOON, user="alice", read_all=True, env=path, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert json.loads((training.folder / "train.sbatch.chain" / "chain.json").read_text())["links"]["2"]["job"] is None

    document = training.answer()
    assert document["end"] == "done"
    assert [link["end"] for link in document["links"]] == ["checkpoint", "checkpoint", "done"]
    assert training.jobs() == {"1": 1, "2": 1, "3": 1}
    diary = training.diary()
    expected = ["works 1", "left 1", "works 2", "left 2", "works 3", "done 3"]
    assert [f"{event} {link}" for _, event, link in diary] == expected
    # Each link was there before the last one left: Slurm has no gap, and the training one of a look at a file.
    assert all(link["interruption_s"] <= 0 for link in document["links"][1:])
    assert all(0 <= diary[place + 1][0] - diary[place][0] < 10 for place in (1, 3))
    assert training.answer() == document | {"forecast": None}
    assert training.jobs() == {"1": 1, "2": 1, "3": 1}


def test_a_link_that_fails_ends_the_chain_with_its_last_words(slurm: Slurm) -> None:
    training = Chained(slurm, "failing", "echo the last words >&2; exit 3")
    document = training.answer(status=6, policy="reactive")
    assert document["end"] == "failed"
    assert "status 3" in document["reason"]
    assert "the last words" in document["reason"]
    assert len(document["links"]) == 1


def test_links_that_end_at_once_end_the_chain(slurm: Slurm) -> None:
    training = Chained(slurm, "at-once", "exit 75")
    document = training.answer(status=6, policy="reactive")
    assert [link["end"] for link in document["links"]] == ["checkpoint", "checkpoint"]
    assert "within 60 s" in document["reason"]
    assert training.jobs() == {"1": 1, "2": 1}
    training.script.write_text(training.script.read_text().replace("exit 75", "exit 0"))
    resumed = training.answer("--resume", policy="reactive")
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
    assert training.chain("--once").returncode == 0
    slurm.run("scancel", first, user="alice")
    slurm.until(lambda: slurm.field(first, "JobState") == "CANCELLED", "the first link to be cancelled")
    document = training.answer("--once", status=1)
    assert document["end"] == "cancelled"
    assert slurm.field(second, "JobState") == "CANCELLED"
    assert slurm.field(beside, "JobState") in ("PENDING", "RUNNING")


def test_a_link_that_is_requeued_stays_the_same_link(slurm: Slurm) -> None:
    training = Chained(slurm, "requeued", "echo $(date +%s.%N) works $WHORL_CHAIN_LINK >>diary; sleep 300")
    job = training.answer("--once", policy="reactive")["links"][0]["job"]
    slurm.until(lambda: len(training.diary()) == 1, "the link to work")
    slurm.run("scontrol", "requeue", job)
    slurm.until(lambda: slurm.field(job, "JobState") == "PENDING", "the job to be requeued")
    assert [link["end"] for link in training.answer("--once", policy="reactive")["links"]] == [None]
    slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now")
    slurm.until(lambda: len(training.diary()) == 2, "the link to work again")
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
        beside = training.answer("--once", "--folder", str(training.folder / "second"), policy="reactive")
        assert len(beside["links"]) == 1
        assert training.jobs() == {"1": 2}
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
    other = Chained(slurm, "other", "sleep 300")
    assert "is the chain of" in other.chain("--once", "--folder", str(training.folder / "second")).stderr
