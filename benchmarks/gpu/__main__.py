"""What the kernels reach on a real GPU: see command.py, or --help. Runs from a checkout that is not installed, too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find_whorl() -> None:
    """Make this checkout `whorl` where none is installed, or one without its benchmarks."""
    try:
        if importlib.util.find_spec("whorl.benchmarks") is not None:
            return
    except ModuleNotFoundError:
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] == "whorl"]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location("whorl", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["whorl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["whorl"])


if __name__ == "__main__":
    find_whorl()
    from whorl.benchmarks.gpu.command import main

    sys.exit(main())
