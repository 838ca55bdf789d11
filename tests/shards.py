"""Runs the tests in several processes of pytest at once, each over one folder or some small ones.

    python tests/shards.py [--jobs N] [OPTIONS OF PYTEST]

A process collects only what it runs: to collect all tests takes as long as to run a third of them. The tests of a
folder stay in one process, so those that share a browser or a Slurm do. A new folder needs no entry here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent
TOGETHER = {
    "exported": "dashboards", "gpu": "kernels", "simulation": "probes", "tests": "importing",
}  # fmt: skip
"""Folders whose tests are in the process of another: to start one and load what all need takes seconds."""
LONGEST_FIRST = (
    "slurm", "collectors", "analysis", "jobs", "contract", "kernels", "store", "cli", "importing", "probes",
    "dashboards",
)  # fmt: skip
"""What would be waited for alone if it began last; first those that wait more than they compute."""
WAITING = 4
"""How many more processes there are than cores: those of slurm and collectors use a core for a fifth of their time,
and that of jobs for less than half.
"""
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Free memory, with less of which the tests keep their files on the disk."""
COUNTED = ("passed", "failed", "error", "skipped")


@dataclass
class Shard:
    """The tests of one folder, and what came of them."""

    folder: str
    files: list[Path]
    exit_status: int = 0
    output: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the process and all that it started and waited for."""
    outcomes: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.exit_status not in (0, 5)  # 5: all tests of the folder were left out

    def line(self) -> str:
        counts = ", ".join(f"{self.outcomes[name]} {name}" for name in COUNTED if self.outcomes[name]) or "no tests"
        return f"{self.folder:<13} {self.wall_s:6.1f} s, CPU {self.cpu_s:6.1f} s   {counts}"


def shards() -> list[Shard]:
    """One shard for each folder in tests/, or for some small ones, those that take longest first."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        folders.setdefault(_shard_of(path.relative_to(TESTS).parts), []).append(path)
    rank = {folder: place for place, folder in enumerate(LONGEST_FIRST)}
    ordered = sorted(folders, key=lambda folder: (rank.get(folder, len(rank)), -len(folders[folder])))
    return [Shard(folder, folders[folder]) for folder in ordered]


def _shard_of(parts: tuple[str, ...]) -> str:
    folder = parts[0] if len(parts) > 1 else "tests"
    return TOGETHER.get(folder, folder)


class Runner:
    """Runs shards, each in a process of pytest, with one folder for what they build once and share."""

    def __init__(self, options: list[str], scratch: Path) -> None:
        self._options, self._scratch = options, scratch
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, shard: Shard) -> Shard:
        name = shard.folder.replace(" ", "-")
        summary, log = self._scratch / f"{name}.json", self._scratch / f"{name}.log"
        command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider"]
        command += ["--basetemp", str(self._scratch / name), "--summary-to", str(summary)]
        command += [*self._options, *map(str, shard.files)]
        environment = os.environ | {
            "WHORL_TESTS_BUILT": str(self._scratch / "built"), "TMPDIR": str(self._scratch / "tmp")
        }  # fmt: skip
        began = time.monotonic()
        with log.open("wb") as output:
            with self._lock:
                if self._stopped:
                    return shard
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=TESTS.parent, env=environment
                )
                self._running.add(process)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = shard.exit_status = os.waitstatus_to_exitcode(status)
        with self._lock:
            self._running.discard(process)
        shard.wall_s, shard.cpu_s = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        shard.output = log.read_text(errors="replace")
        if summary.exists():
            results = json.loads(summary.read_text())
            shard.outcomes, shard.skip_reasons = Counter(results["outcomes"]), Counter(results["skip_reasons"])
            shard.slowest = [(seconds, test) for seconds, test in results["slowest"]]
        return shard

    def stop(self) -> None:
        """Begin no further shard, and end those that run."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 2) + WAITING, help="processes of pytest at once")
    arguments, options = parser.parse_known_args()
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="whorl-tests-", dir=in_memory(), ignore_cleanup_errors=True) as scratch:
        Path(scratch).chmod(0o755)  # tests run programs as other users, with files in TMPDIR
        Path(scratch, "tmp").mkdir()
        Path(scratch, "tmp").chmod(0o1777)
        runner = Runner(options, Path(scratch))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            futures = [pool.submit(runner.run, shard) for shard in shards()]
            try:
                for future in as_completed(futures):
                    shard = future.result()
                    results.append(shard)
                    print(shard.line(), flush=True)
                    if shard.failed:
                        print(shard.output, flush=True)
            except KeyboardInterrupt:
                runner.stop()
                raise
    return report(results, time.monotonic() - began)


def in_memory() -> Path | None:
    """A folder in memory with room for the files of all tests: they make thousands durable, each a wait for a disk.

    None where there is none from which programs may be run, or where the user chose a folder.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return None
    about = os.statvfs(MEMORY)
    usable = about.f_bavail * about.f_frsize >= ROOM_BYTES and not about.f_flag & os.ST_NOEXEC
    return MEMORY if usable else None


def report(results: list[Shard], wall_s: float) -> int:
    """Print what was slow, skipped and failed in all; returns the exit status."""
    print("\nslowest:")
    for seconds, test in sorted((entry for shard in results for entry in shard.slowest), reverse=True)[:10]:
        print(f"  {seconds:6.2f} s  {test}")
    outcomes = sum((shard.outcomes for shard in results), Counter[str]())
    skip_reasons = sum((shard.skip_reasons for shard in results), Counter[str]())
    print("\nskipped:")
    for reason, count in skip_reasons.most_common():
        print(f"  {count:5}  {reason}")
    failed = [shard.folder for shard in results if shard.failed]
    if failed:
        print(f"\nfailed in {', '.join(failed)}")
    print(f"\nin {wall_s:.0f} s; CPU {sum(shard.cpu_s for shard in results):.0f} s")
    unsuccessful = outcomes["failed"] + outcomes["error"]
    print(f"{outcomes['passed']} passed, {unsuccessful} failed, {outcomes['skipped']} skipped")
    return 1 if failed or not outcomes["passed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
