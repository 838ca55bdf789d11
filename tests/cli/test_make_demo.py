"""`make demo` where a driver lists a GPU: CuPy for its CUDA goes into .venv, or a sentence says why not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0     |"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout whose tools say what they are asked to do; no GPU, no CuPy and no toolkit yet."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("")
    executable(tmp_path / ".venv/bin/whorl", 'echo "whorl $*"')
    executable(tmp_path / ".venv/bin/python", "exit 1")  # asked whether CuPy is there
    executable(tmp_path / "bin/uv", 'echo "uv $*"')
    (tmp_path / ".venv/.ready").write_text("")
    return tmp_path


def driver(folder: Path, header: str = HEADER, *capabilities: str) -> None:
    lines = "\n".join(f'echo "GPU {number}: NVIDIA (UUID: GPU-0)"' for number in range(len(capabilities)))
    answer = "\n".join(f"echo {line}" for line in capabilities) or "exit 1"
    executable(
        folder / "bin/nvidia-smi",
        f'case "$1" in\n-L)\n{lines or "exit 9"}\n;;\n--query*)\n{answer}\n;;\n*)\necho "{header}"\n;;\nesac',
    )


def demo(folder: Path, **variables: str) -> tuple[list[str], str]:
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **variables}
    done = subprocess.run(
        ["make", "demo"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "whorl demo --out demo"
    return lines[:-1], done.stderr


def test_without_a_gpu_nothing_is_installed(folder: Path) -> None:
    executable(folder / "bin/nvidia-smi", 'echo "NVIDIA-SMI has failed" >&2; exit 9')
    assert demo(folder) == ([], "")


@pytest.mark.parametrize(
    ("header", "capabilities", "extra"),
    [
        (HEADER, ["9.0", "9.0"], "cuda13"),
        (HEADER, ["9.0", "7.0"], "cuda12"),  # CUDA 13 compiles no more for a V100
        (HEADER.replace("CUDA Version: 13.0", "CUDA UMD Version: 13.2"), ["9.0"], "cuda13"),
        (HEADER.replace("13.0", "12.4"), ["9.0"], "cuda12"),
    ],
)
def test_cupy_is_that_of_the_drivers_cuda(folder: Path, header: str, capabilities: list[str], extra: str) -> None:
    driver(folder, header, *capabilities)
    installed, message = demo(folder)
    libraries = f"cupy-{extra}x[ctk]"
    assert installed == [
        f"uv pip install --quiet --python .venv --constraint requirements.lock --editable .[{extra}] {libraries}"
    ]
    assert message == f"a GPU is here: installing CuPy for it into .venv (whorl[{extra}] and the CUDA libraries)\n"
    [command], _ = demo(folder, CUDA_PATH="/opt/cuda")  # the site's toolkit has the libraries
    assert command.endswith(f"--editable .[{extra}]")


def test_cupy_that_is_there_is_left_alone(folder: Path) -> None:
    driver(folder, HEADER, "9.0")
    executable(folder / ".venv/bin/python", "exit 0")
    assert demo(folder) == ([], "")


def test_an_old_driver_or_a_failed_installation_is_a_sentence_and_the_demo_goes_on(folder: Path) -> None:
    driver(folder, HEADER.replace("13.0", "11.4"), "7.0")
    installed, message = demo(folder)
    assert installed == []
    assert message == "a GPU is here, but its driver supports no CUDA 12 (11 is its newest): update the driver\n"
    driver(folder, HEADER, "9.0")
    executable(folder / "bin/uv", "exit 1")
    installed, message = demo(folder)
    assert message.endswith("CuPy could not be installed, so that the GPU is not measured: see docs/campaigns.md\n")
