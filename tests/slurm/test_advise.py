"""`whorl advise` beside a real Slurm, as ordinary users and as its administrator."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from whorl.tests.advised_fleet import write_store
from whorl.tests.analysis.placement.fleets import Fleet, noise
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

ASKING = ("advise", "--workload", "sgemm")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """A store that every user may read; n09 was measured and is not in the scheduler."""
    folder = Path(tempfile.mkdtemp(prefix="whorl-advise-"))
    folder.chmod(0o755)
    yield str(write_store(folder, nodes=9))
    shutil.rmtree(folder)


def advised(slurm: Slurm, store: str, *options: str, workload: str = "sgemm", user: str | None = "alice") -> str:
    """What `whorl advise` prints."""
    done = slurm.whorl("advise", "--store", store, "--workload", workload, *options, user=user)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def occupy(slurm: Slurm, *names: str) -> str:
    return slurm.submit("--exclusive", f"--nodelist={','.join(names)}", f"--nodes={len(names)}", user="bob")


def test_names_that_slurm_does_not_know_are_dropped(slurm: Slurm, store: str) -> None:
    refused = slurm.run("sbatch", "--exclude=n09", "--wrap=true", user="alice")
    assert "Invalid node name" in refused.stderr, "this is why"
    done = slurm.whorl(*ASKING, "--store", store, "--format", "exclude", user="alice")
    assert done.stdout == "n02\n"
    assert "left out: the scheduler does not know n[07-09], which were measured" in done.stderr


def test_the_users_own_exclusion_is_kept(slurm: Slurm, store: str) -> None:
    listed = advised(slurm, store, "--format", "exclude", "--set", "and=n05")
    job = slurm.submit("--hold", "--exclude=n05", f"--exclude={listed.strip()}")
    assert slurm.field(job, "ExcNodeList") == "n[02,05]"
    done = slurm.whorl(*ASKING, "--store", store, "--format", "exclude", "--set", "and=n05,n77", user="alice")
    assert done.stdout == "n[02,05,77]\n", "what the user wrote stays"
    assert "Slurm knows no node n77 (and=), and refuses such a job" in done.stderr


@pytest.mark.long
def test_nodes_that_slurm_does_not_know_at_all(slurm: Slurm, tmp_path: Path) -> None:
    """The store of another cluster: it can be studied here, and no job is told its names."""
    elsewhere = str(write_store(tmp_path, domain="x"))
    sentence = "none of the measured nodes is known to the scheduler: the store has n01x,n02x,n03x, ..., the scheduler"
    for form in ("exclude", "prefer"):
        done = slurm.whorl(*ASKING, "--store", elsewhere, "--format", form)
        assert (done.returncode, done.stdout) == (0, "\n")
        assert sentence in done.stderr
        assert "the scheduler knows none of these nodes" in done.stderr.lower()
    for options in (["nodelist"], ["weights"], ["exclude", "--set", f"output={tmp_path / 'file'}"]):
        done = slurm.whorl(*ASKING, "--store", elsewhere, "--format", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"whorl: {sentence}")
    assert not (tmp_path / "file").exists()
    document = json.loads(advised(slurm, elsewhere, "--json", user=None))
    assert document["exclude"] == ["n02x"]
    assert document["scheduler"]["asked"] is True
    assert document["scheduler"]["exclude"] == ""
    assert document["scheduler"]["unknown_nodes"] == [f"n{i:02d}x" for i in range(1, 7)]
    assert document["scheduler"]["extra_wait_reason"] == "the scheduler knows none of these nodes"
    report = advised(slurm, elsewhere, user=None)
    assert "\nExclude n02x: " in report
    assert "sbatch" not in report, "a job here that excludes such a node is refused"
    assert sentence in " ".join(report.split())
    job = slurm.submit("--hold", user=None)
    assert slurm.whorl("advise", "apply", job, "--store", elsewhere, "--workload", "sgemm").returncode == 2


@pytest.mark.long
def test_nodelist_names_nodes_that_run_jobs(slurm: Slurm, store: str) -> None:
    best = advised(slurm, store, "--gpus", "8", "--format", "nodelist").strip()
    job = slurm.submit("--nodes=2", "--gres=gpu:4", f"--nodelist={best}")
    nodes = slurm.nodes_of(job)
    assert len(nodes) == 2
    assert "n02" not in nodes
    slurm.run("scontrol", "update", f"nodename={nodes[0]}", "state=drain", "reason=test")
    assert nodes[0] not in advised(slurm, store, "--gpus", "8", "--format", "nodelist", user=None)
    document = json.loads(advised(slurm, store, "--gpus", "8", "--json"))
    assert document["scheduler"]["nodes_out_of_use"] == [nodes[0]]
    assert nodes[0] not in document["packed"]["nodes"]


@pytest.mark.long
def test_an_administrators_lines_move_the_next_job(slurm: Slurm, store: str) -> None:
    occupied = occupy(slurm, "n01")
    slurm.nodes_of(occupied)
    before = slurm.submit("--gres=gpu:4")
    assert slurm.nodes_of(before) == ["n02"]
    slurm.run("scancel", before)
    lines = advised(slurm, store, "--format", "weights", user=None).splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    assert commands
    for line in commands:
        assert slurm.run("sh", "-c", line, user="alice").returncode != 0, "an ordinary user may not"
    for line in commands:
        assert slurm.run("sh", "-c", line).returncode == 0
    jobs = [slurm.submit("--exclusive") for _ in range(4)]
    assert sorted(node for job in jobs for node in slurm.nodes_of(job)) == ["n03", "n04", "n05", "n06"]
    assert slurm.nodes_of(slurm.submit("--exclusive")) == ["n02"], "the last by weight, and not out of use"
    assert advised(slurm, store, "--format", "weights", user=None) == "", "now there is no difference"
    node_line = slurm.run("scontrol", "-o", "show", "node", "n02").stdout
    assert "ActiveFeatures=v100,cab1,whorl_sgemm_avoid,whorl_weight_10" in node_line
    assert "Weight=12" in node_line


@pytest.mark.long
def test_prefer_once_enough_nodes_have_the_feature(slurm: Slurm, store: str) -> None:
    assert advised(slurm, store, "--format", "prefer") == "\n"
    slurm.submit("--prefer=")
    for line in advised(slurm, store, "--format", "weights", user=None).splitlines():
        if not line.startswith("#"):
            assert slurm.run("sh", "-c", line).returncode == 0
    listed = advised(slurm, store, "--format", "prefer").strip()
    assert listed == "whorl_sgemm_prefer"
    job = slurm.submit("--gres=gpu:4", f"--prefer={listed}")
    node_line = slurm.run("scontrol", "-o", "show", "node", slurm.nodes_of(job)[0]).stdout
    assert listed in node_line
    having = slurm.run("scontrol", "-o", "show", "nodes").stdout.count(f"ActiveFeatures=v100,cab1,{listed}")
    assert advised(slurm, store, "--gpus", str(4 * having + 4), "--format", "prefer") == "\n"


@pytest.mark.long
def test_the_report_has_the_cost(slurm: Slurm, store: str) -> None:
    text = advised(slurm, store, "--gpus", "4")
    assert "\nExclude n02: " in text
    assert "sbatch --exclude=n02" in text
    assert text.index("a random packed set, off all slow nodes") < text.index("a random packed set   ")
    assert "Cost: 1 of" in text
    assert "by Slurm's own estimate" in text
    assert "Note: left out: the scheduler does not know n[07-09]" in text
    busy = [slurm.submit("--exclusive", f"--nodelist={n}", "--time=30", user="bob") for n in slurm.names if n != "n02"]
    for job in busy:
        slurm.nodes_of(job)
    wait = json.loads(advised(slurm, store, "--gpus", "4", "--json"))["scheduler"]
    assert 1500 < wait["extra_wait_s"] < 2000, "only the slow node is free; the others in half an hour"


@pytest.mark.long
def test_a_silent_controller_is_one_sentence(slurm: Slurm, store: str) -> None:
    asking = [*ASKING, "--store", store]
    lines = {
        "exclude": [*asking, "--format", "exclude"],
        "apply": ["advise", "apply", "1", *asking[1:]],
        "free": [*asking, "--no-scheduler"],
        "report": asking,
        "doctor": ["doctor", "--json"],
    }
    slurm.stop_controller()
    try:
        with ThreadPoolExecutor() as pool:
            waiting = {name: pool.submit(slurm.program, *line, user="alice") for name, line in lines.items()}
            done = {name: answer.result() for name, answer in waiting.items()}
    finally:
        slurm.start_controller()
    for name in lines.keys() & {"exclude", "apply"}:
        assert (done[name].returncode, done[name].stdout) == (5, "")
        assert done[name].stderr.startswith("whorl: Slurm")
        assert done[name].stderr.count("\n") == 1
    for name in lines.keys() & {"report", "free"}:
        assert done[name].returncode == 0
        unchecked = "the names of the nodes were not checked" in " ".join(done[name].stdout.split())
        assert unchecked is (name == "report")
    (finding,) = [row for row in json.loads(done["doctor"].stdout)["findings"] if row["what"] == "Slurm"]
    assert not finding["works"]
    assert "`scontrol ping`" in finding["detail"]


def test_a_partition_without_measured_gpus_is_an_error(slurm: Slurm, tmp_path: Path) -> None:
    fleet = Fleet(12).run("sgemm", np.ones(12), noise(np.random.default_rng(3), 12, 4, 0.003))
    for gpu, name in enumerate(fleet.names):
        fleet.identity(name, node=f"n{4 + gpu // 4:02d}", slot=gpu % 4)
    store = fleet.store(tmp_path / "S", places=False).root
    done = slurm.whorl(*ASKING, "--store", str(store), "--partition", "debug")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "whorl: none of the measured nodes is in partition debug: the store has n[04-06], the partition n01\n"
    )
