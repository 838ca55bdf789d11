"""Campaigns on a real Slurm: every GPU is measured once, whatever happens to nodes, jobs and drivers."""

from __future__ import annotations

import json
import os
import shutil
import signal
from datetime import UTC, datetime
from typing import Any

import pytest

from whorl.store import Store
from whorl.tests.slurm.campaigns import Site, every_gpu
from whorl.tests.slurm.daemons import GROUP, Slurm

pytestmark = pytest.mark.slurm

PROBES = ("gemm-fp32", "launch", "stream-triad")


@pytest.mark.long
def test_every_gpu_is_measured_once_whatever_happens(slurm: Slurm) -> None:
    """One node is drained and comes back, one is busy, one job is preempted, and the driver is killed twice."""
    site = Site(slurm, "seconds_per_job = 4\n")
    slurm.run("scontrol", "update", "nodename=n06", "state=drain", "reason=fan")
    busy = slurm.submit("--exclusive", "--nodelist=n05", user="bob")
    slurm.nodes_of(busy)
    options = ("launch", "--suite", "quick", "--campaign", "autumn", "--set", "max-pending=4")

    with site.driver(*options):
        slurm.until(lambda: site.job("n01", "RUNNING") is not None, "the job on n01")
    urgent = slurm.submit("--partition=urgent", "--exclusive", "--nodelist=n01", "--time=1", user="bob")
    assert slurm.nodes_of(urgent) == ["n01"]
    slurm.until(lambda: site.job("n01", "PENDING") is not None, "the preempted job to wait again")
    preempted = site.job("n01", "PENDING") or ""
    slurm.run("scancel", urgent)

    with site.driver(*options):
        slurm.until(lambda: len(site.submitted()) == 5, "a job for each node but the drained one", 40)
    document = site.status()
    why = {row["node"]: (row["state"], row["why"]) for row in document["by_node"]}
    assert why["n06"] == ("unavailable", "idle+drain: fan")
    assert why["n05"][0] == "waiting"
    (free_by,) = [row["free_by"] for row in document["by_node"] if row["node"] == "n05"]
    remaining = datetime.fromisoformat(free_by).replace(tzinfo=UTC) - datetime.now(UTC)
    assert 0 < remaining.total_seconds() <= 600, "by the limit of bob's job, ten minutes from its start"

    slurm.until(lambda: "BeginTime" in slurm.field(preempted, "Reason") or not site.job("n01", "PENDING"), "requeue")
    slurm.run("scontrol", "update", f"jobid={preempted}", "StartTime=now")
    slurm.run("scancel", busy)
    slurm.run("scontrol", "update", "nodename=n06", "state=resume")
    done = site.campaign("run", *options, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["complete"]
    assert document["gpus"] == {"expected": 24, "covered": 24, "partial": 0, "failed": 0}
    assert site.runs("autumn") == every_gpu(slurm, "launch")
    assert site.submitted() == {f"whorl:autumn:{node}": 1 for node in slurm.names}


def test_a_plan_sends_nothing(slurm: Slurm) -> None:
    site = Site(slurm)
    slurm.run("scontrol", "update", "nodename=n06", "state=drain", "reason=fan")
    done = site.campaign("plan", "--suite", "quick", "--budget", "1h", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "whorl.campaign.plan/1"
    assert (document["jobs"], document["gpus"], document["gpus_to_do"]) == (5, 24, 20)
    assert document["unavailable"] == [{"node": "n06", "why": "idle+drain: fan"}]
    assert (document["neighbours"], document["began"], document["new"]) == ("busy", None, True)
    each_s = document["seconds_per_gpu"]
    assert document["gpu_hours_measured"] == pytest.approx(20 * each_s / 3600)
    # A node of four GPUs is allocated for as long as its job: all at once, or one after another; and two minutes more.
    assert document["gpu_hours_allocated"] == pytest.approx(20 * (each_s + 120) / 3600)
    assert document["gpu_hours_allocated_by_neighbours"]["idle"] == pytest.approx(20 * (4 * each_s + 120) / 3600)
    assert document["jobs_within_budget"] == int(1 / (4 * (each_s + 120) / 3600))
    assert not site.store.exists()
    assert not site.submitted()
    plan = site.campaign("plan", "--suite", "quick").stdout
    assert "6 nodes with 24 GPUs: 5 to do, 1 unavailable" in plan
    assert "not available: n06 (idle+drain: fan)" in plan


@pytest.mark.long
def test_a_gpu_that_fails_is_not_tried_again_and_a_missing_one_is_said(slurm: Slurm) -> None:
    """n01 has a GPU that is lost at once, n02 one fewer than Slurm says."""
    site = Site(slurm, 'planted = { "n01/1" = "lost" }\ngpus = { n02 = 3 }\n')
    done = site.campaign("run", *PROBES, "--suite", "quick", "--nodes", "n[01-02]", "--json")
    assert done.returncode == 6, done.stdout + done.stderr
    document = json.loads(done.stdout)
    first, second = document["by_node"]
    assert (first["state"], first["covered"], first["failed"], first["tries"]) == ("covered", 3, 1, 1)
    assert [row["state"] for row in first["by_gpu"]].count("failed") == 1
    assert (second["state"], second["covered"], second["tries"]) == ("failed", 3, 3)
    assert second["why"].startswith("its jobs found 3 GPUs, but Slurm says 4")
    assert site.submitted()["whorl:" + document["campaign"] + ":n02:3"] == 1
    assert all(n == 1 for n in site.runs(document["campaign"]).values()), "a further try measures what is missing only"


@pytest.mark.long
@pytest.mark.parametrize(("sent", "status"), [("INT", 130), ("KILL", -signal.SIGKILL)])
def test_a_job_is_known_although_its_driver_ended_before_it_heard_of_it(slurm: Slurm, sent: str, status: int) -> None:
    """Slurm has taken the job when the driver gets its signal, and the driver has not heard its number yet."""
    site = Site(slurm, "seconds_per_job = 30\n")
    path = site.folder / "bin"
    path.mkdir()
    real = shutil.which("sbatch", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    (path / "sbatch").write_text(f'#!/bin/sh\n{real} "$@" > /dev/null\nkill -{sent} $PPID\nsleep 1\n')
    (path / "sbatch").chmod(0o755)
    options = (*PROBES, "--suite", "quick", "--campaign", "autumn", "--nodes", "n01")
    with site.driver(*options, path=path) as first:
        _, error = first.communicate(timeout=30)
    assert first.returncode == status, error
    assert "jobs that were submitted stay in the queue; to go on" in error or sent == "KILL"
    slurm.until(lambda: site.job("n01", "RUNNING") is not None, "the job on n01")
    assert site.states() == {"n01": "running"}
    again = site.campaign("run", *options, "--once", "--json")
    assert json.loads(again.stdout)["by_node"][0]["state"] == "running"
    assert site.submitted() == {"whorl:autumn:n01": 1}
    other_user = site.campaign("run", "--campaign", "autumn", "--suite", "full")
    assert other_user.returncode == 2
    assert "jobs of campaign autumn are in the queue, which was begun with other options" in other_user.stderr


@pytest.mark.long
def test_what_cannot_be_planned_is_said(slurm: Slurm) -> None:
    site = Site(slurm)

    def refused(*options: str, status: int = 2) -> str:
        done = site.campaign("run", "launch", "--suite", "quick", *options)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "Slurm has no partition gpu; it has batch, debug, urgent" in refused("--partition", "gpu")
    assert "Slurm has no node n[07-09]" in refused("--nodes", "n[05-09]")
    assert "cannot name a campaign of jobs" in refused("--campaign", "a:b")
    assert "Slurm refused the job for node n01: " in refused("--option=--constraint=nothing", status=5)
    assert not site.submitted()
    none = site.campaign("status", "--campaign", "spring")
    assert none.returncode == 2
    assert "has no campaign spring of jobs" in none.stderr
    slurm.run("chmod", "a-w", *map(str, (site.store / "runs", site.store / "events")))
    assert "cannot be written by this user" in refused("--campaign", "other", status=3)


# -- two users, and the doctor ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_users_fill_one_store_at_once(slurm: Slurm) -> None:
    shared = slurm.folder / "out" / "shared"
    shared.mkdir()
    shutil.chown(shared, "alice", GROUP)
    shared.chmod(0o2770)
    sites = {user: Site(slurm, user=user) for user in ("alice", "bob")}
    nodes = {"alice": "n01", "bob": "n02"}
    measured_once = {row: runs for row, runs in every_gpu(slurm, "launch").items() if row[0][:3] in nodes.values()}
    for site in sites.values():
        site.store = shared / "store"

    def options(user: str) -> tuple[str, ...]:
        # What a job makes is closed to others, if the store does not open it.
        return ("launch", "--suite", "quick", "--campaign", user, "--nodes", nodes[user], "--setup", "umask 077")

    with sites["alice"].driver(*options("alice")) as first, sites["bob"].driver(*options("bob")) as second:
        for driver in (first, second):
            out, error = driver.communicate(timeout=60)
            assert driver.returncode == 0, out + error
    measured = sites["alice"].runs("alice") + sites["alice"].runs("bob")
    assert measured == measured_once
    owners = {path.owner() for path in Store.open(shared / "store").files("runs")}
    assert owners == {"alice", "bob"}
    for user, other_user in (("alice", "bob"), ("bob", "alice")):
        document = sites[user].campaign("status", "--campaign", other_user)
        assert document.returncode == 0, document.stderr
        assert "4 of 4" in document.stdout, document.stdout
        compacted = slurm.whorl("store", "compact", "--store", str(shared / "store"), user=user)
        assert compacted.returncode == 0, compacted.stderr
    assert sites["bob"].runs("alice") + sites["bob"].runs("bob") == measured_once


def doctored(site: Site, *options: str, status: int = 0) -> dict[str, Any]:
    done = site.campaign("doctor", "--json", *options)
    assert done.returncode == status, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "whorl.campaign.doctor/1"
    return document


@pytest.mark.long
def test_a_node_says_what_it_sees(slurm: Slurm) -> None:
    site = Site(slurm, "gpus = {n03 = 3}\n")
    document = doctored(site, "--nodes", "n02")
    by_topic = {finding["what"]: finding for finding in document["findings"]}
    assert document["works"]
    assert by_topic["node"]["detail"].startswith("n02")
    assert by_topic["GPUs"]["detail"] == "4 x V100-SXM2, simulated"
    assert by_topic["store"]["detail"] == f"{site.store.resolve()}: rows can be stored"
    assert {"whorl", "python", "numpy", "pyarrow", "clock"} <= set(by_topic)
    assert f"--set fleet={site.fleet}" in site.campaign("doctor", "--nodes", "n02").stdout, "the next command"
    done = site.campaign("doctor", "--nodes", "n03")
    assert done.returncode == 6
    assert "Slurm says 4, the node has 3" in done.stdout
    assert "a campaign cannot measure there: Slurm's GPUs" in done.stdout
    assert list((site.store / "logs" / "doctor").iterdir()) == []


@pytest.mark.long
def test_a_job_that_gives_no_answer_is_one_sentence(slurm: Slurm) -> None:
    site = Site(slurm)
    slurm.run("scontrol", "update", "nodename=n06", "state=drain", "reason=fan")
    drained = site.campaign("doctor", "--nodes", "n06")
    assert drained.returncode == 5
    assert drained.stderr == "whorl: no node takes a job now (n06: idle+drain: fan)\n"
    busy = slurm.submit("--exclusive", "--nodelist=n05", user="bob")
    slurm.nodes_of(busy)
    waiting = site.campaign("doctor", "--nodes", "n05", "--set", "wait=2")
    assert waiting.returncode == 5
    assert "is pending" in waiting.stderr
    assert "it is cancelled" in waiting.stderr
    slurm.until(lambda: "whorl-doctor" not in slurm.run("squeue", "-h", "-a", "-o", "%j").stdout, "the job to go")
    unknown = site.campaign("doctor", "--nodes", "n77")
    assert (unknown.returncode, "n77" in unknown.stderr) == (2, True)
