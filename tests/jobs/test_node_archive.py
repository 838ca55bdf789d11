"""The archive for nodes without whorl: it runs with a bare Python, and holds what the extra `node` names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError
from whorl.jobs import node_archive
from whorl.jobs.node_archive import pack
from whorl.store import Store

ROOT = Path(__file__).resolve().parents[2]
BARE = getattr(sys, "_base_executable", sys.executable)  # a Python without the packages of the tests


def unpacked(path: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", path, "-C", folder], check=True)  # `filter` of tarfile is of Python 3.11.4
    return folder / "whorl-node"


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the archive's command with nothing of this process's environment."""
    return subprocess.run(
        [program / "bin" / "whorl", *arguments],
        env={"PATH": "/usr/bin:/bin", "WHORL_PYTHON": BARE} | environment,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive without the large packages, unpacked somewhere else."""
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_archive, "_node_packages", lambda: ["click", "nvidia-ml-py"])
        archive = pack(folder / "small.tar.gz")
    assert archive.bytes == (folder / "small.tar.gz").stat().st_size
    return unpacked(folder / "small.tar.gz", folder / "elsewhere")


@pytest.mark.long
def test_it_runs_without_an_installation(small: Path) -> None:
    done = run(small, "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("whorl, version ")
    code = "import pynvml, whorl; print(whorl.__file__)"
    folder_of_whorl = subprocess.run(
        [BARE, "-s", "-c", code], env={"PYTHONPATH": str(small / "lib")}, capture_output=True, text=True, check=True
    )
    assert Path(folder_of_whorl.stdout.strip()).is_relative_to(small)
    linked = small.parent / "whorl"
    linked.symlink_to(small / "bin" / "whorl")
    assert subprocess.run([linked, "--version"], env={"PATH": os.environ["PATH"], "WHORL_PYTHON": BARE}).returncode == 0


@pytest.mark.long
def test_another_python_is_refused_in_one_sentence(small: Path) -> None:
    done = run(small, "--version", WHORL_PYTHON="/bin/false")
    assert done.returncode == 2
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.stderr.startswith(f"whorl: this archive needs Python {version} on this node: set WHORL_PYTHON")


@pytest.mark.long
def test_it_holds_whorl_and_nothing_else_of_a_clone(small: Path) -> None:
    rooms = {path.name for path in (small / "lib" / "whorl").iterdir()}
    assert {"cli", "jobs", "kernels", "probes", "store", "__init__.py"} <= rooms
    assert not rooms & {"tests", "benchmarks", ".git", ".venv", "build"}
    assert list((small / "lib" / "whorl" / "kernels").glob("*.cu"))
    assert (small / "lib" / "whorl" / "jobs" / "templates" / "slurm.sh").exists()


def test_what_cannot_be_packed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_archive, "_node_packages", lambda: ["click"])
    refused = CliRunner().invoke(cli, ["campaign", "pack", str(tmp_path / "a.zip")])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, InputError) or "must end in .tar.gz" in refused.output
    with pytest.raises(InputError, match="cannot write"):
        pack(tmp_path / "absent" / "a.tar.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_whole_archive_measures(tmp_path: Path) -> None:
    pack(tmp_path / "whole.tar.gz")
    done = run(
        unpacked(tmp_path / "whole.tar.gz", tmp_path), "probe", "run", "launch", "--suite", "quick", "--backend",
        "simulated:gpus=1", "--store", str(tmp_path / "S"), HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Store.open(tmp_path / "S").sql("select count(*) n from runs").to_pylist() == [{"n": 1}]
