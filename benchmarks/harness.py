"""The harness of all benchmarks: machine facts, processes that are measured, repeats, one JSON file for each program.

A program has sections. Each compares whorl with a named alternative in the same run, or a realised rate with what was
promised. Every program has the same command line:

    python -m benchmarks.NAME [--only SECTION] [--quick | --long] [--out FILE]

It prints the figures of the sections that ran as one JSON object, and writes them to benchmarks/results/NAME.json,
section by section: there a section that did not run keeps its figures, with the date and the machine on which they were
taken. A section whose public files are not beside the clone says so. With --quick nothing is written unless --out says
where. Figures of time are CPU seconds of all threads, because other programs may keep a machine busy. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT.parent / "shared" / "data"
"""Public measurements, where they lie beside the clone."""
THREADS = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
"""What leaves a process two threads."""
SIZES = ("quick", "usual", "long")
WIDTH = 118


class NotThereError(Exception):
    """A public file does not lie beside the clone."""


def public_file(path: str) -> Path:
    """A file or folder of DATA. Raises NotThereError, with which a section ends."""
    if not (DATA / path).exists():
        raise NotThereError(path)
    return DATA / path


# -- facts of the machine and of processes -----------------------------------------------------------------------


def machine(*packages: str) -> dict[str, Any]:
    """Processor, cores, load, date, versions of Python and of these packages; no name of a host or a folder."""
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


def peak_mb(process: int | str = "self") -> int | None:
    """The largest resident memory of a process, MiB; None where Linux does not say it.

    `getrusage` would count what the process that started this one had then.
    """
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), None)


def cpu_s(process: int) -> float:
    """CPU time of a process so far, ended threads included: its own clock, by the kernel's numbering of clocks."""
    return time.clock_gettime((~process << 3) | 2)


def child(program: str, work: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """Do a piece of work of a program in a process of its own with two threads.

    Returns `cpu_s`, `wall_s` (without imports and preparation), `peak_mb` of the process, and its `answer`.
    """
    command = [sys.executable, "-m", f"whorl.benchmarks.{program}", "--child", work, json.dumps(arguments, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | THREADS | environment)
    if done.returncode:
        raise RuntimeError(f"{program} {work}: {done.stderr.strip()[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def timed(work: Callable[[], Any]) -> dict[str, Any]:
    """CPU seconds of all threads and wall seconds of some work, the peak of this process, and the answer."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = work()
    took = {"cpu_s": round(time.process_time() - cpu, 4), "wall_s": round(time.perf_counter() - wall, 4)}
    return {**took, "peak_mb": peak_mb(), "answer": answer}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="whorl-benchmark-") as folder:
        yield Path(folder).resolve()


# -- repeats, shares and intervals ---------------------------------------------------------------------------------


def ends(count: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score."""
    z, p = 1.96, count / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its n and its 95 % interval by Wilson's score."""
    if not n:
        return {"n": 0, "share": None, "interval": None}
    return {"n": n, "hits": hits, "share": round(hits / n, 4), "interval": [round(end, 4) for end in ends(hits, n)]}


def share_of(hits: Iterable[bool]) -> dict[str, Any]:
    """The share of what is true, as `share` gives it."""
    flags = [bool(hit) for hit in hits]
    return share(sum(flags), len(flags))


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median of repeats with its 95 % interval by order statistics (their range for fewer than six), and n."""
    ordered, n = sorted(values), len(values)
    rank = int((n - 1.96 * math.sqrt(n)) / 2) if n >= 6 else 0
    figures = {
        "median": statistics.median(ordered),
        "low": ordered[max(rank, 0)],
        "high": ordered[n - 1 - max(rank, 0)],
    }
    return {name: round(value, digits) for name, value in figures.items()} | {"n": n}


def in_turns(
    contenders: Mapping[str, Callable[[], dict[str, Any]]], repeats: int, *, against: str, figure: str = "cpu_s"
) -> dict[str, Any]:
    """Contenders one after another, in another order each turn, so that a busy machine is busy for all of them.

    Returns by contender the spread of each figure that is a number, its last answer, and `times_ALTERNATIVE`: the
    spread of the ratio of a figure to that of `against` in the same turn.
    """
    names, runs = list(contenders), {name: list[dict[str, Any]]() for name in contenders}
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name].append(contenders[name]())
            say(f"{name}, {turn + 1} of {repeats}: {as_json(runs[name][-1])[:200]}")
    table: dict[str, Any] = {}
    for name, figures in runs.items():
        numbers = [key for key, value in figures[0].items() if isinstance(value, int | float)]
        table[name] = {key: spread([row[key] for row in figures]) for key in numbers}
        if figures[-1].get("answer") is not None:
            table[name]["answer"] = figures[-1]["answer"]
        if name != against:
            pairs = zip(figures, runs[against], strict=True)
            ratios = [row[figure] / other[figure] for row, other in pairs if other.get(figure)]
            table[name][f"times_{against}"] = spread(ratios) if ratios else None
    return table


# -- one command line, one file --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchOptions:
    """What a section is told."""

    size: str
    """One of SIZES."""
    peers: Path | None = None
    """A Python that has the packages of other tools (nvitop), which are no part of the project."""

    def pick(self, quick: int, usual: int, long: int) -> int:
        """A number by the size of the run."""
        return (quick, usual, long)[SIZES.index(self.size)]


Section = Callable[[BenchOptions], dict[str, Any]]


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run(
    program: str, sections: Mapping[str, Section], children: Mapping[str, Callable[..., Any]] | None = None,
    packages: Sequence[str] = ("numpy", "polars", "duckdb", "pyarrow"),
) -> None:  # fmt: skip
    """Run a program by its command line. Raises SystemExit as argparse does."""
    about = sys.modules["__main__"].__doc__ or program
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="a try of seconds, whose figures are not kept")
    sizes.add_argument("--long", action="store_true", help="the sizes at which bars are stated: hours")
    parser.add_argument("--only", action="append", choices=list(sections), help="this section (repeatable)")
    parser.add_argument("--out", type=Path, help=f"the file of the result (benchmarks/results/{program}.json)")
    parser.add_argument("--peers", type=Path, help="a Python with nvitop in it")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        work, arguments = chosen.child
        prepared = (children or {})[work](*json.loads(arguments))
        print(json.dumps(timed(prepared) if callable(prepared) else timed(lambda: prepared)))
        return
    options = BenchOptions("quick" if chosen.quick else "long" if chosen.long else "usual", chosen.peers)
    out = chosen.out or (None if chosen.quick else RESULTS / f"{program}.json")
    printed: dict[str, Any] = {"benchmark": program}
    document = json.loads(out.read_text()) if out and out.exists() else dict(printed)
    for name in chosen.only or sections:
        say(f"{program}: {name}")
        about_machine, used, before = machine(*packages), os.times(), time.monotonic()
        try:
            figures = sections[name](options)
        except NotThereError:
            figures = {"did_not_run": "the public files are not beside the clone"}
        after = os.times()
        spent = {"cpu_s": round(sum(after[:4]) - sum(used[:4]), 1), "wall_s": round(time.monotonic() - before, 1)}
        printed[name] = document[name] = {**figures, "size": options.size, "spent": spent, "machine": about_machine}
        if out:
            text = as_json({key: document[key] for key in ("benchmark", *sections) if key in document}) + "\n"
            part = out.with_suffix(".part")
            part.write_text(text)
            part.replace(out)
    print(as_json(printed))


def as_json(value: Any, indent: str = "") -> str:
    """JSON with a line for each object that holds no other, so that records stand below each other."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or not value or len(indent) + len(line) <= WIDTH:
        return line
    children = value.values() if isinstance(value, dict) else value
    if indent and isinstance(value, dict) and not any(isinstance(part, dict | list) for part in children):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {as_json(part, deeper)}" for key, part in value.items()]
    else:
        parts = [as_json(part, deeper) for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}{last}"
