"""What the tag of a prolog costs: the shell script, beside the same through `whorl jobs tag`. Prints JSON.

    python benchmarks/tag.py > benchmarks/results/tag.json
    python benchmarks/tag.py --times 100

A node with 8 GPUs is made up below a folder that stands for /proc, so that nothing asks a driver. Each way notes the
same job, one after the other in turn:

script    `sh whorl-tag begin FOLDER`
python    `whorl jobs tag begin --folder FOLDER`, which starts Python and then the script
nothing   `sh -c true`: what it costs to start a shell at all

CPU seconds (user and system) are those of the process and all that it started; wall seconds are beside them. Shown are
medians with the lowest and highest. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.jobs.accounting import tags

GPUS = 8
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent ended become children of this one


def node(folder: Path) -> None:
    """What the driver says of the GPUs of a node below /proc."""
    for number in range(GPUS):
        about = folder / "driver" / "nvidia" / "gpus" / f"0000:{number:02x}:00.0" / "information"
        about.parent.mkdir(parents=True)
        uuid = f"GPU-{number:08x}-0000-4000-8000-{number:012x}"
        about.write_text(f"Model: \t\t GPU\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n")
    (folder / "stat").write_text("cpu 1 2 3\nbtime 1790000000\n")


def cost(line: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of a command."""
    began = time.perf_counter()
    child = os.posix_spawnp(line[0], line, environment)
    _, status, used = os.wait4(child, 0)
    wall, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    assert os.waitstatus_to_exitcode(status) == 0, line
    with contextlib.suppress(ChildProcessError):
        while True:  # those that the command left behind: the script does not wait for its writer to exit
            _, _, used = os.wait4(-1, 0)
            cpu += used.ru_utime + used.ru_stime
    return cpu, wall


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "lowest": round(min(values), 4),
        "highest": round(max(values), 4),
    }


def run(times: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="whorl-tag-") as home:
        root = Path(home)
        (root / "tags").mkdir()
        node(root / "proc")
        (root / "whorl-tag").write_text(tags.script())
        environment = os.environ | {"WHORL_PROC": str(root / "proc"), "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n01"}
        environment |= {"SLURM_JOB_GPUS": ",".join(map(str, range(GPUS))), "SLURM_JOB_USER": "u", "SLURM_JOB_UID": "1"}
        ways = {
            "script": ["sh", str(root / "whorl-tag"), "begin", str(root / "tags")],
            "python": [sys.executable, "-m", "whorl", "jobs", "tag", "begin", "--folder", str(root / "tags")],
            "nothing": ["sh", "-c", "true"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for name, line in ways.items():
            cost(line, environment)  # once before it counts: files are in the page cache then, as on a busy node
            say(f"{name} works")
        for _ in range(times):
            for name, line in ways.items():
                found[name].append(cost(line, environment))
        written = len(list((root / "tags").glob("*.tag")))
    return {
        "n": times,
        "gpus": GPUS,
        "tags_written": written,
        **{
            name: {"cpu_s": spread([cpu for cpu, _ in each]), "wall_s": spread([wall for _, wall in each])}
            for name, each in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    times = parser.parse_args().times
    print(as_json({"machine": machine(), "results": run(times)}))


if __name__ == "__main__":
    main()
