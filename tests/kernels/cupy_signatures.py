"""What a CuPy says of the functions that whorl calls: `python cupy_signatures.py` prints it, without a GPU.

cupy_signatures.json holds it for CuPy 13 and 14, from the wheels for CUDA 12. `cupy.cuda.nccl` was loaded over an
empty NCCL: its signatures need no more.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

TABLE: dict[str, dict[str, int | str]] = json.loads(Path(__file__).with_name("cupy_signatures.json").read_text())
"""By CuPy's major version: what it says of each name below `cupy`. A new name stands there before it is said."""


def said(thing: Any) -> int | str:
    """A constant's value, or the parameters of a function or class as its documentation begins with them."""
    if isinstance(thing, int):
        return int(thing)
    if inspect.isfunction(thing):
        return str(inspect.signature(thing))
    documents = [thing.__doc__ or "", getattr(thing.__init__, "__doc__", "") or ""]
    lines = [line.strip() for document in documents for line in document.splitlines()]
    signatures = [line.replace("\\", "") for line in lines if f"{thing.__name__}(" in line or "__init__(" in line]
    best = next((line for line in signatures if "**kwargs" not in line), None)
    return best[best.index("(") :] if best is not None else "an attribute"


def signatures(cupy: Any) -> dict[str, int | str]:
    """Of every function, class and constant; those that this CuPy lacks, or cannot load, are left out."""
    table: dict[str, int | str] = {}
    for name in sorted({name for said_before in TABLE.values() for name in said_before}):
        thing = cupy
        for part in name.split("."):
            thing = getattr(thing, part, None)
            if part == "nccl" and not hasattr(thing, "groupStart"):
                thing = _nccl()
        if thing is not None:
            table[name] = said(thing)
    return table


def _nccl() -> Any:
    try:
        return importlib.import_module("cupy_backends.cuda.libs.nccl")
    except ImportError:
        return None


if __name__ == "__main__":
    cupy = importlib.import_module("cupy")
    sys.stdout.write(json.dumps({cupy.__version__.split(".")[0]: signatures(cupy)}, indent=1) + "\n")
