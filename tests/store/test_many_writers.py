"""Many nodes, one store: a short run of many_writers.py, in which processes write, compact, prune and read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("many_writers.py")


def run(*options: object) -> Any:
    command = [sys.executable, str(PROGRAM), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["wrong"] == [], answer["examples"]
    assert answer["warnings"] == {}
    return answer


def test_every_acknowledged_row_is_there_once_while_processes_write_and_are_killed(tmp_path: Path) -> None:
    answer = run(
        "--nodes", 4, "--processes", 2, "--readings", 4, "--seconds", 4, "--each-s", 0.05, "--kill-s", 1,
        "--short-waits", "--folder", tmp_path,
    )  # fmt: skip
    assert sum(answer["kills"].values()) > 0
    assert min(answer["steps"].values()) >= 4


@pytest.mark.long
def test_a_store_is_exact_for_hours_of_many_nodes(tmp_path: Path) -> None:
    """Compactions wait as they do beside others, days end, get their energy and are pruned."""
    answer = run(
        "--nodes", 24, "--processes", 6, "--readings", 30, "--seconds", 40, "--days", 2, "--each-s", 0.5,
        "--kill-s", 1.5, "--folder", tmp_path,
    )  # fmt: skip
    assert answer["answers"] > 30
    assert answer["care"]["compact"]["before"] > answer["care"]["compact"]["after"] > 0
