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


def peak_bytes(process: int | str = "self") -> int | None:
    """The largest resident memory of a process; None where Linux does not say it.

    `getrusage` would count what the process that started this one had then.
    """
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def peak_mb() -> int | None:
    """The largest resident memory of this process, MiB; None where Linux does not say it."""
    found = peak_bytes()
    return None if found is None else found // 2**20


def cpu_s(process: int) -> float:
    """CPU time of a process so far, ended threads included: its own clock, by the kernel's numbering of clocks."""
    return time.clock_gettime((~process << 3) | 2)


def file_system(path: Path) -> str:
    """The type of the file system that holds a path."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    found = [(line.split()[1], line.split()[2]) for line in mounts.read_text().splitlines()]
    holding = [(len(place), kind) for place, kind in found if path.resolve().is_relative_to(place)]
    return max(holding)[1] if holding else "unknown"
