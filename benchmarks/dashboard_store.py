"""A made-up store of a large fleet, to try the dashboard on: runs, verdicts, jobs, an hour of telemetry at 1 Hz.

    python benchmarks/dashboard_store.py STORE [--gpus 27648] [--rows 100000000]

The runs are those of `judge_speed.py`: 1 % of the GPUs have a fault. In the hour each node runs job after job of 200
users, with pauses. Power, clock and temperature of a GPU follow its jobs. Now and then a single reading is a spike.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.analysis.verdicts.fingerprint import fingerprints
from whorl.analysis.verdicts.judgements import conclude
from whorl.benchmarks.judge_speed import PER_NODE, make
from whorl.benchmarks.reporting import say
from whorl.store import Store
from whorl.store.schema import arrow_rows

CLUSTER = "large"
BEGAN_NS = 1_792_800_000_000_000_000
"""When the hour of telemetry begins: after the last run."""
PER_CABINET = 108  # GPUs
_NODES = 70  # whose telemetry is made at a time
_SECOND = 1_000_000_000
_USERS = 200


def made(root: Path, gpus: int, rows: int) -> Store:
    """The store, with about this many rows of telemetry."""
    say("runs")
    store = make(root, gpus, 20, 4, cabinets=max(1, gpus // PER_CABINET))
    say("verdicts and fingerprints")
    conclude(store)
    fingerprints(store)
    random = np.random.default_rng(2026)
    seconds = max(60, rows // gpus)
    names = np.array([f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in range(gpus)])
    work = []
    nodes = -(-gpus // PER_NODE)
    for first in range(0, nodes, _NODES):
        last = min(first + _NODES, nodes)
        busy, jobs = _jobs(random, first, last, seconds, names)
        work.append(jobs)
        own = names[first * PER_NODE : last * PER_NODE]
        store.append({"telemetry": _telemetry(random, own, np.repeat(busy, PER_NODE, axis=0)[: len(own)])}, f"t{first}")
        say(f"telemetry of {last:,} of {nodes:,} nodes")
    store.append({"jobs": pa.concat_tables(work)}, "jobs")
    return store


def _jobs(
    random: np.random.Generator, first: int, last: int, seconds: int, names: NDArray[np.str_]
) -> tuple[NDArray[np.bool_], pa.Table]:
    """When each node (nodes, seconds) is busy, and the jobs that make it so."""
    busy = np.zeros((last - first, seconds), dtype=bool)
    rows: dict[str, list[object]] = {
        name: []
        for name in ("cluster", "allocation", "job_id", "user", "account", "state", "began", "ended", "node", "gpu",
        "gpu_from", "share", "node_gpus", "job_gpus", "job_nodes", "source", "recorded")
    }  # fmt: skip
    for node in range(first, last):
        at, number = int(random.integers(0, 300)), 0
        while at < seconds - 30:
            end = min(seconds, at + int(random.integers(300, 1800)))
            busy[node - first, at:end] = True
            user = int(random.integers(0, _USERS))
            job = f"{1000 * node + number}"
            for gpu in names[node * PER_NODE : (node + 1) * PER_NODE]:
                values = (
                    CLUSTER, job, job, f"user{user:03d}", f"group{user % 20:02d}", "COMPLETED", BEGAN_NS + at * _SECOND,
                    BEGAN_NS + end * _SECOND, f"h{node:04d}", str(gpu), "file", 1.0, 1, PER_NODE, 1, "csv",
                    BEGAN_NS + end * _SECOND,
                )  # fmt: skip
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
            at, number = end + int(random.integers(10, 200)), number + 1
    return busy, arrow_rows("jobs", rows)


def _telemetry(random: np.random.Generator, names: NDArray[np.str_], busy: NDArray[np.bool_]) -> pa.Table:
    """A reading of each GPU every second."""
    n, seconds = busy.shape
    shape = busy.shape
    level = random.normal(285.0, 8.0, (n, 1))
    watts = np.where(busy, level, random.normal(42.0, 1.5, (n, 1))) + random.normal(0.0, 1.5, shape)
    watts[random.random(shape) < 2e-5] += 90.0
    warm = np.empty(shape)
    now = np.full(n, 34.0)
    target = 26.0 + 0.13 * watts + random.normal(0.0, 2.0, (n, 1))
    for second in range(seconds):
        now += 0.02 * (target[:, second] - now)
        warm[:, second] = now
    clock = 15 * np.rint((1380.0 - 0.8 * (warm - 60.0) + random.normal(0.0, 6.0, shape)) / 15.0)
    held = busy & (random.random(shape) < 0.7)
    who = np.repeat(np.arange(n, dtype=np.int32), seconds)
    ts = BEGAN_NS + _SECOND * np.arange(seconds, dtype=np.int64) + 1_000_000 * random.integers(0, 40, (n, 1))
    columns = {
        "ts": pa.array(ts.ravel().view("datetime64[ns]")),
        "cluster": pa.DictionaryArray.from_arrays(np.zeros(n * seconds, np.int32), [CLUSTER]).cast(pa.string()),
        "gpu": pa.DictionaryArray.from_arrays(who, names).cast(pa.string()),
        "power_mw": np.rint(1000.0 * watts).astype(np.int32).ravel(),
        "energy_mj": np.cumsum(np.rint(1000.0 * watts).astype(np.int64), axis=1).ravel(),
        "sm_clock_mhz": np.where(busy, clock, 135).astype(np.int32).ravel(),
        "temperature_c": np.rint(warm).astype(np.int32).ravel(),
        "utilization": np.where(busy, 99, 0).astype(np.int32).ravel(),
        "memory_used": np.where(busy, 14_000_000_000, 500_000_000).astype(np.int64).ravel(),
        "clock_event_reasons": np.where(held, 4, np.where(busy, 0, 1)).astype(np.int64).ravel(),
        "power_violation_ns": np.cumsum(np.where(held, 700_000_000, 0), axis=1).ravel(),
    }  # fmt: skip
    return pa.table(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--gpus", type=int, default=27_648)
    parser.add_argument("--rows", type=int, default=100_000_000, help="of telemetry")
    given = parser.parse_args()
    made(given.store, given.gpus, given.rows)


if __name__ == "__main__":
    main()
