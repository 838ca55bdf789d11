"""On machines that forbid what the daemons need, the tests are skipped and say why; they neither fail nor hang."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whorl.tests.sizes import sample
from whorl.tests.slurm.daemons import why_not

pytestmark = pytest.mark.slurm


@pytest.mark.long
@pytest.mark.parametrize(
    ("forbidden", "reason"),
    sample(
        [
            ("mknod", "device nodes cannot be made here"),
            ("setuid", "commands cannot be run as the user"),
            (None, "needs the packages slurm-wlm, slurm-wlm-basic-plugins and munge"),
        ],
        short=2,
    ),
)
def test_what_is_forbidden_skips(forbidden: str | None, reason: str, tmp_path: Path) -> None:
    if why_not():
        pytest.skip(f"no Slurm here: {why_not()}")
    line = [sys.executable, "-B", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    line += [str(Path(__file__).with_name("test_daemons.py")), f"--basetemp={tmp_path / 'base'}"]
    if forbidden is not None:
        line = [shutil.which("setpriv") or "", f"--bounding-set=-{forbidden}", *line]
    env = {**os.environ, "PATH": str(tmp_path)} if forbidden is None else None  # a machine without the packages
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert reason in done.stdout
    assert re.search(r"^\d+ skipped(, \d+ deselected)? in ", done.stdout, re.MULTILINE)
    assert "passed" not in done.stdout
