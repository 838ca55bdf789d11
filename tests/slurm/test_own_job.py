"""Jobs of a real Slurm that measure themselves: `srun whorl collect --for-job`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from whorl.cli.answers.job import show_job
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

READ = "-m whorl collect --for-job --backend simulated:gpus=4 --interval 0.1"


def submit(slurm: Slurm, script: str, *options: str) -> tuple[str, Path]:
    """Submit a script of alice's, in which $WHORL reads; the job's number and its output."""
    program, environment = slurm.python_of_jobs("alice")
    output = slurm.folder / "out" / f"own-{len(list((slurm.folder / 'out').iterdir()))}"
    setting = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    text = f"#!/bin/sh\n{setting}WHORL={shlex.quote(f'{shlex.join(program)} {READ}')}\n{script}"
    path = output.with_suffix(".sh")
    path.write_text(text)
    path.chmod(0o755)
    done = slurm.run("sbatch", "--parsable", f"--output={output}", *options, str(path), user="alice")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), output


READING = (
    "until ls whorl-job-$SLURM_JOB_ID/journal/$SLURMD_NODENAME.*.journal >/dev/null 2>&1; do sleep 0.2; done; sleep 1"
)
"""Ends when the collector of this node has read for a second."""


def wait_for_end(slurm: Slurm, job: str) -> None:
    running = ("PENDING", "RUNNING", "COMPLETING")
    slurm.until(lambda: slurm.field(job, "JobState") not in running, f"the end of job {job}", 120)


@pytest.mark.long
def test_a_command_on_two_nodes_is_measured_with_the_gpus_that_it_has(slurm: Slurm) -> None:
    script = f"srun $WHORL -- sh -c '{READING}; echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES; exit 3'\necho status $?\n"
    job, output = submit(slurm, script, "-N2", "--gres=gpu:2", "-w", "n01,n02")
    wait_for_end(slurm, job)
    printed = output.read_text()
    assert "status 3" in printed
    assert {"n01 0,1", "n02 0,1"} <= set(printed.splitlines())
    for node in ("n01", "n02"):
        assert f"job {job}, on {node}:" in printed
    stored = show_job(slurm.folder / "out" / f"whorl-job-{job}").json()["gpus"]
    assert [gpu["name"] for gpu in stored] == ["n01/0", "n01/1", "n02/0", "n02/1"]
    assert all(gpu["readings"] > 0 and gpu["energy_j"] > 0 for gpu in stored)


@pytest.mark.long
def test_a_collector_beside_the_program_ends_with_the_job(slurm: Slurm) -> None:
    script = f"srun --overlap $WHORL &\nsrun sh -c '{READING}'\n"
    job, output = submit(slurm, script, "--gres=gpu:2", "-w", "n01")
    wait_for_end(slurm, job)
    assert slurm.field(job, "JobState") == "COMPLETED"
    slurm.until(lambda: not slurm.run("squeue", "-h", "--steps").stdout, "the steps to end")
    assert f"job {job}, on n01:" in output.read_text()
    assert "it needs srun --overlap" in output.read_text()
    stored = show_job(slurm.folder / "out" / f"whorl-job-{job}").json()["gpus"]
    assert [(gpu["name"], gpu["readings"] > 0) for gpu in stored] == [("n01/0", True), ("n01/1", True)]


def interrupt_step(slurm: Slurm, *options: str, times: int) -> tuple[str, str]:
    """Press Ctrl-C so often at `srun OPTIONS whorl collect --for-job`; the job and what the terminal showed."""
    program, environment = slurm.python_of_jobs("alice")
    master, slave = os.openpty()
    words = ["--job-name=bare", "--gres=gpu:2", "-w", "n01", *options, *program, *shlex.split(READ)]
    step = slurm.at_terminal("srun", *words, user="alice", env=environment, terminal=slave)
    os.close(slave)
    folder = slurm.folder / "out"

    def jobs() -> list[str]:
        return slurm.run("squeue", "-h", "-n", "bare", "-o", "%i").stdout.split()

    def reads() -> bool:
        return any(any((folder / f"whorl-job-{job}" / "journal").glob("*.journal")) for job in jobs())

    slurm.until(reads, "the collector to read", 60)
    time.sleep(1)
    (job,) = jobs()
    for press in range(times):
        time.sleep(0.3 * bool(press))
        if "--pty" in options:
            os.write(master, b"\x03")
        else:
            step.send_signal(signal.SIGINT)
    step.wait(60)
    screen = b""
    with contextlib.suppress(OSError):  # how a terminal ends that nobody has open
        while part := os.read(master, 1 << 16):
            screen += part
    os.close(master)
    return job, screen.decode()


@pytest.mark.long
def test_one_interrupt_ends_a_bare_step_with_a_terminal_and_two_kill_one_without_whose_readings_stay(
    slurm: Slurm,
) -> None:
    job, printed = interrupt_step(slurm, "--pty", times=1)
    assert f"job {job}, on n01:" in printed
    job, printed = interrupt_step(slurm, times=2)
    assert "forcing job termination" in printed
    assert f"job {job}, on n01:" not in printed
    gpus = show_job(slurm.folder / "out" / f"whorl-job-{job}").json()["gpus"]
    assert [(gpu["name"], gpu["readings"] > 0) for gpu in gpus] == [("n01/0", True), ("n01/1", True)]
