"""docs/campaigns.md on a real Slurm, as an ordinary user types it."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.tests.slurm.daemons import Slurm
from whorl.tests.test_docs import ROOT, shell_commands

pytestmark = pytest.mark.slurm

PAGE = ROOT / "docs" / "campaigns.md"
INSTALLED = 3  # commands that install: the tests run in their result


def installed(slurm: Slurm, folder: Path) -> str:
    """A folder for PATH with the command `whorl`, as an environment on a shared file system has it."""
    words, environment = slurm.python_of_jobs("alice")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    program = folder / "whorl-env" / "bin" / "whorl"
    program.parent.mkdir(parents=True)
    program.write_text("\n".join(["#!/bin/sh", *lines, f'exec {shlex.join(words)} -m whorl "$@"', ""]))
    program.chmod(0o755)
    return str(program.parent)


def shortened(command: str) -> str:
    """On fewer nodes, and with one probe of the suite."""
    return command.replace("n[01-06]", "n[01-04]").replace("--suite quick", "gemm-fp32 --suite quick")


@pytest.mark.long
def test_every_command_of_the_page_runs(slurm: Slurm) -> None:
    """In its order, in one empty folder, typed by alice."""
    commands = shell_commands(PAGE.read_text())
    assert commands[INSTALLED - 1] == ". ~/whorl-env/bin/activate"
    folder = slurm.folder / "out" / "first"
    folder.mkdir()
    shutil.chown(folder, "alice")
    path = f"{installed(slurm, folder)}:{slurm.environment()['PATH']}"
    printed: dict[str, str] = {}
    for command in commands[INSTALLED:]:
        line = f"cd {folder} && {shortened(command)}"
        done = slurm.run("bash", "-c", line, user="alice", env={"PATH": path}, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command] = done.stdout
    assert (folder / "first.html").stat().st_size > 100_000

    def answer(words: str) -> str:
        (text_printed,) = [text for command, text in printed.items() if command.startswith(words)]
        return text_printed

    assert "4 nodes" in answer("whorl campaign plan")
    assert "n02/1" in answer("whorl verdicts")
    assert "together in jobs" not in answer("whorl verdicts"), "a job measures each GPU of its node for itself"
    assert "\nExclude n02" in answer("whorl advise --store fleet --workload gemm-fp32 --gpus 4")
    assert answer("whorl advise --store fleet --workload gemm-fp32 --format exclude") == "n02\n"
    clusters = Store.open(folder / "fleet").sql("select distinct cluster from gpus").to_pylist()
    assert clusters == [{"cluster": "whorl"}], "as Slurm calls it: jobs that are imported meet their GPUs"
    assert (submitted := re.match(r"job (\d+) avoids n02", answer("job=$(sbatch"))), answer("job=$(sbatch")
    assert slurm.field(submitted[1], "ExcNodeList") == "n02"
