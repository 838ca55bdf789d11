"""Workers of an answer as jobs of a real Slurm: what they make, what is refused, and that no job stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whorl.tests.beyond.fleet import fleet
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

WAITS = """
import sys
from whorl.errors import EngineError
from whorl.jobs import workers
workers._TELL_S = 1
try:
    workers.engine("slurm", workers=2, wait_s=3, tell=print)
except EngineError as error:
    print(error)
"""

STRANGER = """
import asyncio
from distributed import Client, get_worker
from distributed.security import Security
from whorl.jobs.workers import engine

def scheduler(_):
    return get_worker().scheduler.address

async def come(place, security):
    async with Client(place, security=security, timeout=3, asynchronous=True):
        pass

if __name__ == "__main__":
    with engine("slurm", workers=1) as opened:
        [address] = opened.map(scheduler, [0], name=str)
        print(address.partition(":")[0])
        for place, security in (
            (address.replace("tls", "tcp"), None), (address, None), (address, Security.temporary())
        ):
            try:
                asyncio.run(come(place, security))
                print("let in")
            except (OSError, TypeError) as error:
                print("refused")
        print(list(opened.map(abs, [-7], name=str)))
"""


@pytest.fixture(scope="module")
def root(slurm_session: Slurm) -> Path:
    return fleet(slurm_session.folder / "fleet").root


def left(slurm: Slurm) -> str:
    """The jobs that wait or run."""
    return slurm.run("squeue", "-h", "-o", "%j %T").stdout


def certificates() -> set[Path]:
    """The files and folders with keys of workers that lie in the home folder."""
    return {path for names in (".whorl-workers*", ".dask-jobqueue*") for path in Path.home().glob(names)}


@pytest.mark.long
def test_two_jobs_make_the_answer_and_end(slurm: Slurm, root: Path) -> None:
    command = ["energy", "--store", str(root), "--by", "user", "--json"]
    done = slurm.program(*command, "--on", "slurm", "--workers", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(slurm.program(*command).stdout)
    slurm.until(lambda: not left(slurm), "the jobs to end")


@pytest.mark.long
def test_who_has_no_certificate_gives_the_workers_no_work(slurm: Slurm, tmp_path: Path) -> None:
    before = certificates()
    program = tmp_path / "stranger.py"
    program.write_text(STRANGER)
    done = slurm.run(sys.executable, str(program), timeout=120)
    assert done.stdout.splitlines() == ["tls", *["refused"] * 3, "[7]"], done.stderr
    assert certificates() == before


REFUSED = ("energy", "--by", "user", "--on", "slurm:nosuch", "--store")


def test_what_slurm_refuses_is_a_sentence(slurm: Slurm, root: Path) -> None:
    before = certificates()
    done = slurm.program(*REFUSED, str(root))
    assert (done.returncode, done.stdout) == (5, "")
    assert "Slurm would refuse this job: invalid partition specified: nosuch" in done.stderr
    assert done.stderr.count("\n") == 1
    assert certificates() == before


@pytest.mark.long
def test_jobs_that_wait_too_long_are_cancelled_and_slurms_reason_is_told(slurm: Slurm, root: Path) -> None:
    slurm.run("scontrol", "update", "nodename=" + ",".join(slurm.names), "state=drain", "reason=test")
    done = slurm.run(sys.executable, "-c", WAITS, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("waiting for Slurm to start the first worker (PENDING ")
    assert lines[-1].startswith("Slurm started no worker within 3 s (PENDING ")
    assert "DRAINED" in lines[-1]
    assert not left(slurm)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_answer_leaves_no_job(slurm: Slurm, root: Path, number: signal.Signals) -> None:
    slurm.run("scontrol", "update", "nodename=" + ",".join(slurm.names), "state=drain", "reason=test")
    command = [sys.executable, "-m", "whorl", "energy", "--store", str(root), "--on", "slurm"]
    process = subprocess.Popen(command, env=slurm.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    slurm.until(lambda: left(slurm).count("PENDING") == 4, "the jobs to wait", within=60)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    slurm.until(lambda: not left(slurm), "the jobs to be cancelled")
