"""A small store to be advised from: six nodes of four GPUs, one node slow beyond doubt, one a little slow.

The nodes are named as those of tests/slurm/daemons.py. In `sgemm`, GPU 1 of n02 takes twice as long and GPU 0 of n05
8 % longer; in `pagerank` no GPU differs.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.stores import copied_stores

SLOW = {(2, 1): 2.0, (5, 0): 1.08}
TIME_MS = {"sgemm": 2500.0, "pagerank": 800.0}
RUNS = 6
COLUMNS = {"run": "run", "board": "gpu", "host": "node", "slot": "slot", "app": "workload", "elapsed": "time:ms"}


def gpu(node: int, slot: int) -> str:
    return f"GPU-{node:08x}-0000-0000-0000-{slot:012x}"


def write_store(folder: Path, *, nodes: int = 6, domain: str = "") -> Path:
    """Import the runs of such a fleet into a new store in `folder`; returns the store."""
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    path, store = folder / "runs.csv", folder / "store"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "when"])
        number = 0
        for workload, usual in TIME_MS.items():
            for node in range(1, nodes + 1):
                for slot in range(4):
                    effect = usual
                    if workload == "sgemm":
                        effect *= SLOW.get((node, slot), 1.0) * (1 + 0.01 * rng.standard_normal())
                    for run in range(RUNS):
                        number += 1
                        took = effect * (1 + 0.003 * rng.standard_normal())
                        began = f"2026-11-{10 + run:02d}T00:{node:02d}:00"
                        host = f"n{node:02d}{domain}"
                        rows.writerow([number, gpu(node, slot), host, slot, workload, f"{took:.4f}", began])
    mapped = [part for column, meaning in COLUMNS.items() for part in ("--map", f"{column}={meaning}")]
    with copied_stores():
        done = CliRunner().invoke(
            cli, ["import", "--store", str(store), "--cluster", "small", *mapped, "--map", "when=began", str(path)]
        )
    assert done.exit_code == 0, done.output
    return store
