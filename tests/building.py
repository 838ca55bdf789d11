"""Makes a folder once for several processes."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def build_once(built: Path, name: str, build: Callable[[Path], object]) -> Path:
    """The folder `name` in `built`. The first call runs `build(folder)`; others wait."""
    folder, done = built / name, built / f"{name}.done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a builder that failed left there
            folder.mkdir()
            build(folder)
            done.touch()
    return folder
