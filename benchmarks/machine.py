"""What a benchmark says of the machine it ran on: enough to judge its figures, and no name of a host or a folder."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    """Processor, cores, load before the run, date, and the versions of Python and of these packages."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "system": platform.system(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def peak_mb() -> int | None:
    """The largest resident memory of this process, MiB; None where Linux does not say it.

    `getrusage` would count what the process that started this one had then.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), None)
