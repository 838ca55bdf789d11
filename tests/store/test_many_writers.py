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
    assert answer["wrong"] == [], answer
    assert answer["warnings"] == {}
    assert sum(answer["kills"].values()) > 0
    return answer


def test_every_acknowledged_row_is_there_once_while_processes_write_and_are_killed(tmp_path: Path) -> None:
    answer = run(
        "--nodes", 4, "--processes", 2, "--seconds", 4, "--each-s", 0.05, "--kill-s", 1, "--short-waits",
        "--folder", tmp_path,
    )  # fmt: skip
    assert min(answer["steps"].values()) >= 4
    assert 0 < answer["publish_s"]["median"] <= answer["publish_s"]["p99"] <= answer["publish_s"]["most"] < 60


@pytest.mark.long
def test_a_store_is_exact_for_hours_of_many_nodes(tmp_path: Path) -> None:
    """Compactions wait as they do beside others, days end and are pruned."""
    answer = run(
        "--nodes", 24, "--processes", 6, "--seconds", 40, "--each-s", 0.5, "--kill-s", 1.5, "--folder", tmp_path
    )
    assert answer["answers"] > 30
    assert any(done["before"] > done["after"] > 0 for done in answer["care"] if "before" in done)
    assert any(done["rows"] for done in answer["care"] if "rows" in done)
