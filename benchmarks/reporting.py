"""How benchmarks report: a line of progress on standard error, times and shares in short, and the result as JSON."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from typing import Any

WIDTH = 118
THREADS = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
"""What leaves a process two threads."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def alone(program: str, *arguments: str, **environment: str) -> Any:
    """What a program prints as JSON, in a process of its own."""
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    return json.loads(done.stdout)


def spread(values: list[float], digits: int) -> dict[str, float]:
    """Median, minimum and maximum."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def wall_times(seconds: list[float], counted: str) -> dict[str, Any]:
    """Median, minimum and maximum (s), and their number under the key `counted`."""
    return {f"{name}_s": value for name, value in spread(seconds, 4).items()} | {counted: len(seconds)}


def ends(count: float, of: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score."""
    z, p = 1.96, count / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return max(0.0, (middle - half) / (1 + z * z / of)), min(1.0, (middle + half) / (1 + z * z / of))


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its n and its 95 % Wilson interval."""
    if not n:
        return {"n": 0, "share": None, "interval": None}
    return {"n": n, "hits": hits, "share": round(hits / n, 4), "interval": [round(end, 4) for end in ends(hits, n)]}


def as_json(value: Any, indent: str = "") -> str:
    """JSON with a line for each object that holds no other, so that records stand below each other."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or not value or len(indent) + len(line) <= WIDTH:
        return line
    children = value.values() if isinstance(value, dict) else value
    if indent and isinstance(value, dict) and not any(isinstance(child, dict | list) for child in children):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {as_json(child, deeper)}" for key, child in value.items()]
    else:
        parts = [as_json(child, deeper) for child in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}{last}"


def wilson(count: int, of: int) -> dict[str, float]:
    """A share in %, with its 95 % interval by Wilson's score."""
    low, high = ends(count, of)
    return {"pct": round(100 * count / of, 1), "low": round(100 * low, 1), "high": round(100 * high, 1)}
