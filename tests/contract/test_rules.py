"""The contract suite stays outside: an import of whorl's insides here is a fault of style that `make lint` finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whorl.tests.contract.harness import differences

ROOT = Path(__file__).parents[2]


def _complaints(code: str, folder: str) -> str:
    command = (sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "--select", "TID251")
    return subprocess.run(
        [*command, "--stdin-filename", f"tests/{folder}/probe.py", "-"],
        input=code,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    ).stdout


def test_inner_imports_are_refused_here_and_only_here() -> None:
    rooms = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file() and path.name != "tests")
    inner = [f"import whorl.{room}.inside\n" for room in rooms if room not in ("cli", "benchmarks", "docs")]
    inner += ["from whorl import store\n", "from whorl.store import Store\n", "from whorl.analysis.runs import runs\n"]
    assert len(inner) > 8
    assert _complaints("".join(inner), "contract").count("TID251") == len(inner)
    assert "TID251" not in _complaints("".join(inner), "cli")
    public = "import whorl\nfrom whorl import Store\nfrom whorl.cli import cli\nfrom whorl.errors import InputError\n"
    assert "TID251" not in _complaints(public, "contract")


@pytest.mark.parametrize(
    ("golden", "answer", "is_same"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-10}, True),
        ({"a": 1.0}, {"a": 1.0 + 1e-8}, False),
        ({"a": 1}, {"a": None}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": 0.0}, {"a": 5e-15}, True),
        ({"a": "x"}, {"a": "y"}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([1, 2], [2, 1], False),
        ({"n": 2, "min": -1.0, "max": 1.0, "sum": 0.0}, {"n": 2, "min": -1.0, "max": 1.0, "sum": 1e-9}, True),
        ({"n": 2, "min": -1.0, "max": 1.0, "sum": 0.0}, {"n": 2, "min": -1.0, "max": 1.0, "sum": 1e-8}, False),
    ],
)
def test_what_counts_as_the_same(golden: object, answer: object, is_same: bool) -> None:
    assert (differences(golden, answer) == []) is is_same
