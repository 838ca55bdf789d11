"""The tuning of whorl against random search, scikit-learn's process and full sweeps. Prints or writes JSON.

    python -m whorl.benchmarks.tune --out benchmarks/results/tune.json
    python -m whorl.benchmarks.tune --only stress          # one section; with --out it replaces that section alone

A section is a module with a function `section(options: TuneOptions) -> dict[str, Any]`, a row of `SECTIONS`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say

SECTIONS = {
    "search": "whorl.benchmarks.tune_search",
    "warm_start": "whorl.benchmarks.tune_warm_start",
    "stress": "whorl.benchmarks.tune_stress",
    "power_plans": "whorl.benchmarks.power_plans",
}


@dataclass(frozen=True)
class TuneOptions:
    """What every section is told."""

    long: bool
    """More seeds than a run of a few minutes allows."""
    data: Path
    """The folder of the public measurements, with `power/` and `tune/` in it."""
    sweeps: tuple[Path, ...] = ()
    """Further sweeps of power limits in the form of Zeus's tables."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the JSON here, keeping the sections that do not run")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run these sections alone")
    parser.add_argument("--long", action="store_true", help="more seeds")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--sweep", type=Path, nargs="+", default=[], help="further sweeps in the form of Zeus's tables")
    arguments = parser.parse_args()
    options = TuneOptions(arguments.long, arguments.data, tuple(arguments.sweep))
    results: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    for name in arguments.only or SECTIONS:
        started = time.process_time()
        before = machine("numpy", "scikit-learn")
        results[name] = import_module(SECTIONS[name]).section(options)
        results[name] |= {"cpu_s": round(time.process_time() - started, 1), "machine": before}
        say(f"{name}: {results[name]['cpu_s']} s of CPU")
    text = as_json({name: results[name] for name in SECTIONS if name in results}) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
