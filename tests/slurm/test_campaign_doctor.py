"""`whorl campaign doctor`: what a node of a real Slurm sees, by one job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whorl.tests.slurm.campaigns import Site
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm


def found(site: Site, *options: str, status: int = 0) -> dict[str, Any]:
    done = site.campaign("doctor", "--json", *options)
    assert done.returncode == status, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "whorl.campaign.doctor/1"
    return document


@pytest.mark.long
def test_a_node_says_what_it_sees(slurm: Slurm) -> None:
    site = Site(slurm, "gpus = {n03 = 3}\n")
    document = found(site, "--nodes", "n02")
    what = {one["what"]: one for one in document["findings"]}
    assert document["works"]
    assert what["node"]["detail"].startswith("n02")
    assert what["GPUs"]["detail"] == "4 x V100-SXM2, simulated"
    assert what["store"]["detail"] == f"{site.store.resolve()}: rows can be stored"
    assert {"whorl", "python", "numpy", "pyarrow", "clock"} <= set(what)
    assert f"--set fleet={site.fleet}" in site.campaign("doctor", "--nodes", "n02").stdout, "the next command"
    shown = site.campaign("doctor", "--nodes", "n03")
    assert shown.returncode == 6
    assert "Slurm says 4, the node has 3" in shown.stdout
    assert "a campaign cannot measure there: Slurm's GPUs" in shown.stdout
    assert list((site.store / "logs" / "doctor").iterdir()) == []


@pytest.mark.long
def test_without_a_gpu_the_node_says_so(slurm: Slurm) -> None:
    site = Site(slurm)
    words = site.words("doctor", "--json", "--nodes", "n01")
    at = words.index("--set")
    done = slurm.whorl(*words[:at], *words[at + 2 :], user=site.user)
    assert done.returncode == 6, done.stderr
    what = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert not what["NVML"]["works"]
    assert what["store"]["works"]


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
