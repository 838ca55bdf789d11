"""Runs code in a process where some modules are not installed, as on a node that only measures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection

_HIDING = """
import importlib.machinery, sys
found = importlib.machinery.PathFinder.find_spec
hidden = {names!r}
importlib.machinery.PathFinder.find_spec = lambda name, *more: (
    None if name.partition(".")[0] in hidden else found(name, *more)
)
"""
NODE = {"duckdb", "_duckdb", "polars", "plotly", "rich", "dash", "scipy", "sklearn", "msgspec"}
"""Modules that a compute node lacks: it has numpy, pyarrow, click and nvidia-ml-py."""
COMMAND = "from whorl.cli import main\nmain()"


def run_without(names: Collection[str], code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the code with these arguments; COMMAND is a command of whorl."""
    command = [sys.executable, "-c", _HIDING.format(names=set(names)) + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
