"""A job that collects its own GPUs: what it knows of itself, which GPUs it has, and the summary at its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import whorl
from whorl.cli import cli
from whorl.cli.answers.job import show_job
from whorl.collectors import job_process
from whorl.collectors.backend import Device
from whorl.collectors.job_process import JobCommand
from whorl.collectors.job_readings import GpusTakenError, JobPart
from whorl.errors import InputError
from whorl.store.schema import arrow_rows
from whorl.store.system import children
from whorl.tests.checks import not_none, until
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probed_fleet import BEGAN_NS, stored
from whorl.tests.stores import new_store

SIMULATED = ("--backend", "simulated:gpus=4", "--interval", "0.05", "--node", "n1")
WHORL = [sys.executable, "-m", "whorl", "collect", "--for-job", *SIMULATED]
PATIENCE_S = 60.0
DAY_NS = 86_400_000_000_000


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is in no job, and in a folder of its own."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "CUDA_", "PBS_", "LSB_", "FLUX_", "WHORL_"))]:
        if name != "WHORL_TESTS_BUILT":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def node(*models: str) -> list[Device]:
    """GPUs of a node, in the driver's order."""
    return [Device(f"GPU-{index}a{index}", {"nvml_index": index, "model": model}) for index, model in enumerate(models)]


FOUR = node(*["H100"] * 4)


def test_a_mig_instance_comes_with_its_gpu_and_a_gpu_with_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = [Device(f"MIG-{number}", {}, parent="GPU-1a1") for number in range(2)]
    devices = [*FOUR, *instances]
    for name, expected in (("MIG-1", ["GPU-1a1", "MIG-1"]), ("1", ["GPU-1a1", "MIG-0", "MIG-1"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
        part = JobPart("n1")
        for _ in range(2):  # the loop asks again and again
            assert [device.gpu for device in part.among(devices)] == expected


# -- the collector ------------------------------------------------------------------------------------------


def test_each_gpu_is_read_by_one_task(tmp_path: Path) -> None:
    with JobPart("n1") as first:
        assert first.claim(tmp_path, FOUR[1:3]) == FOUR[1:3]
        with JobPart("n1") as second, pytest.raises(GpusTakenError):
            second.claim(tmp_path, FOUR[1:3])
        with JobPart("n1") as third:
            assert third.claim(tmp_path, FOUR[2:]) == FOUR[3:]
            assert third.journal != first.journal
    with JobPart("n1") as later:
        assert later.claim(tmp_path, FOUR) == FOUR


@pytest.mark.long
def test_a_job_that_is_requeued_adds_to_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run is of the same job; the store has both, and each GPU's figures are those of the summaries."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    monkeypatch.setenv("WHORL_STORE", "/a/fleet/of/the/site")
    documents = []
    for restarts in (0, 1):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        result = CliRunner().invoke(cli, [*WHORL[3:], "--duration", "0.5", "--json"])
        assert result.exit_code == 0, result.output
        documents.append(json.loads(result.stdout))
        assert "whorl jobs show --store whorl-job-7 --fleet FLEET" in result.stderr
    assert [(d["schema"], d["job_id"], d["restarts"]) for d in documents] == [("whorl.job/1", "7", n) for n in (0, 1)]
    pair = show_job("whorl-job-7").json()
    assert [gpu["name"] for gpu in pair["gpus"]] == ["n1/1", "n1/3"]
    for gpu, *runs in zip(pair["gpus"], *(document["gpus"] for document in documents), strict=True):
        assert gpu["readings"] == sum(run["readings"] for run in runs)
        assert gpu["energy_j"] == pytest.approx(sum(run["energy_j"] for run in runs))
        assert gpu["power_max_w"] == max(run["power_max_w"] for run in runs)
        assert gpu["energy_low_j"] < gpu["energy_j"] < gpu["energy_high_j"]
    assert [document["total"]["gpus"] for document in (*documents, pair)] == [2, 2, 2]


def test_what_seals_is_not_ended_by_the_signal_that_ends_a_job() -> None:
    """A scheduler may send it to all processes of a step, systemd to all of a service."""
    signals = "kill -TERM $PPID; kill -HUP $PPID; kill -INT $PPID"
    assert children.run("subprocess:call", {"args": ["sh", "-c", signals]}, ended=lambda: False) == 0


# -- a command beside it ------------------------------------------------------------------------------------


def test_a_command_is_run_as_if_nobody_collected() -> None:
    """Its output, its environment, its signals and its exit status are its own."""
    script = (
        "trap 'echo warned' USR1; trap 'echo asked to end; exit 9' TERM; "
        "echo $OPENBLAS_NUM_THREADS $(nice) $0 $1; while true; do sleep 0.1; done"
    )
    new_store("whorl-job-7")  # to make one takes longer than all else here
    words = [*WHORL, "sh", "-c", script, "--seed", "3"]
    environment = os.environ | {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "1"}
    environment.pop("OPENBLAS_NUM_THREADS", None)  # that of a collector in this process
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    ) as process:
        assert not_none(process.stdout).readline() == f"{os.nice(0)} --seed 3\n"
        assert "1 GPU" in not_none(process.stderr).readline()
        process.send_signal(signal.SIGUSR1)
        assert not_none(process.stdout).readline() == "warned\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == ("asked to end\n", 9)
    assert "job 7, on n1" in errors
    assert "n1/1" in errors


@pytest.mark.parametrize(
    ("words", "status"),
    [(["no-such-command"], 127), (["/"], 126), (["sh", "-c", "exit 5"], 5), (["sh", "-c", "kill -9 $$"], 137)],
)  # fmt: skip
def test_the_exit_status_is_that_of_the_command_also_where_nothing_can_be_collected(
    words: list[str], status: int
) -> None:
    Path("file").write_text("")
    result = CliRunner().invoke(cli, ["collect", "--for-job", *SIMULATED, "--store", "file", "--", *words])
    assert result.exit_code == status
    assert result.stderr.startswith("whorl: ")


def test_the_summary_does_not_wait_for_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_process, "_GRACE_S", 0.05)
    with JobCommand(["sh", "-c", "trap '' TERM; echo; while true; do sleep 0.05; done"]) as command:
        assert not command.ended()
        time.sleep(0.2)  # until it has its trap
        os.kill(os.getpid(), signal.SIGTERM)
        until(command.ended)
        assert command.status is None
        not_none(command._process).kill()
        assert command.wait() == 128 + signal.SIGKILL


# -- in Python ----------------------------------------------------------------------------------------------


def test_a_block_of_python_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with whorl.collect("job", for_job=True, backend="simulated", gpus=4, interval=0.05) as job:
        with pytest.raises(InputError, match="end of the with block"):
            job.summary()
        with whorl.collect("job", for_job=True, backend="simulated", gpus=4) as same:  # as each rank of a job may
            pass
    summary = job.summary()
    assert job.problem is None
    assert [gpu["name"].endswith("/2") for gpu in summary.json()["gpus"]] == [True]
    assert summary.frame["readings"][0] >= 1
    assert same.summary().json()["gpus"] == []


# -- over the driver, and beside a fleet --------------------------------------------------------------------


def test_the_gpus_of_a_job_over_the_driver(nvml_library: NvmlLibrary) -> None:
    """Energy is that of the driver's counter, throttling is told by its reason, and other jobs' GPUs are not there."""
    nvml_library.write("gpus 4", "model H100", "load 10 1", "gpu 3 slowdown thermal")
    new_store("whorl-job-7")
    environment = nvml_library.environment(CUDA_VISIBLE_DEVICES="1,3", SLURM_JOB_ID="7")
    words = [*WHORL[:5], "--interval", "0.1", "--duration", "1.5", "--node", "n1", "--json"]
    began = time.time()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    gpus = json.loads(done.stdout)["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["n1/1", "n1/3"]
    assert [gpu["energy_from"] for gpu in gpus] == ["counter", "counter"]
    assert "thermal_hardware" in gpus[1]["throttled"] or "hw_slowdown" in gpus[1]["throttled"]
    assert not {"thermal_hardware", "hw_slowdown"} & gpus[0]["throttled"].keys()
    limit_w = 700.0
    for gpu in gpus:
        assert 0 < gpu["energy_j"] < limit_w * (time.time() - began)
    assert not nvml_library.setters()


@pytest.mark.long
def test_where_the_gpus_of_a_job_stand_in_the_fleet(tmp_path: Path) -> None:
    """Each GPU that was probed on two days has a place; of one that the fleet does not know nothing is told."""
    for day in range(2):
        fleet, _ = stored(
            tmp_path / "fleet", 8, campaign=f"day-{day}", began_ns=BEGAN_NS + day * DAY_NS, telemetry=False
        )
    names = fleet.sql("select gpu, name from gpus_now order by name limit 2").table.to_pylist()
    job = new_store("job")
    gpus = [*(row["gpu"] for row in names), "GPU-unknown"]
    rows = {"cluster": ["c"] * 3, "gpu": gpus, "node": ["n1"] * 3, "slot": [0, 1, 2], "first_seen": [0] * 3}
    job.append({"gpus": arrow_rows("gpus", rows)}, "gpus")
    reply = show_job(job, fleet=fleet)
    places = [row["fleet"] for row in reply.json()["gpus"]]
    assert places[2] is None
    for place in places[:2]:
        assert place["slower_low_pct"] < place["slower_pct"] < place["slower_high_pct"]
        assert 1 <= place["rank"] <= place["compared"]
    assert "not known there" in repr(reply)


def test_a_driver_that_hangs_keeps_no_command(nvml_library: NvmlLibrary) -> None:
    """The command begins and ends as it would, before the driver has answered and also where it never does."""
    nvml_library.write("gpus 2", "hang")
    words = [*WHORL[:5], "--", "sh", "-c", "echo done; exit 4"]
    done = subprocess.run(words, env=nvml_library.environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (4, "done\n")
    assert not list(Path().glob("whorl-job-*"))
