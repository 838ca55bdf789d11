"""What joules per GPU and minute save: `whorl energy --by user` from them and from the readings. Prints JSON.

    python benchmarks/energy_minutes.py > benchmarks/results/energy_minutes.json

The stores are made up: readings of power and utilisation of a GPU every so many seconds, jobs of two hours one after
another with pauses (their edges anywhere within a minute), 20 users. Shapes:

month        400 GPUs, 30 days, a reading every 20 s
year         64 nodes with a GPU each, 365 days, a reading every 60 s

For each, in processes of their own with two threads, CPU seconds (all threads) and the largest resident memory of the
whole process, with imports:

readings     `energy(store, "user")` from the telemetry: no minutes are stored
write        `write_minutes`, what `whorl store compact` does besides: for all days at once
minutes      `energy(store, "user")` from the stored minutes

`differ` says by how much the joules of a user differ at most between the two, as a part of them, and the ends of their
intervals. `bytes` are of the files. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from whorl.benchmarks.machine import machine, peak_mb
from whorl.benchmarks.reporting import THREADS, alone, as_json, say
from whorl.store import Store

BEGAN_NS, S, DAY_S = 1_748_736_000 * 10**9, 10**9, 86_400  # 2025-06-01
SHAPES = {"month": (400, 30, 20), "year": (64, 365, 60)}
"""GPUs, days, seconds from reading to reading."""
USERS, PAUSE_S, WORK_S = 20, 900.0, 7_200.0
CLUSTER = "bench"


def make(root: Path, gpus: int, days: int, step_s: int) -> int:
    """A compacted store; returns how many jobs it has."""
    store, rng = Store.create(root), np.random.default_rng(43)
    names = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(gpus)]
    turns = int(days * DAY_S / (WORK_S / 2 + PAUSE_S / 2))
    pauses, works = rng.uniform(60, PAUSE_S, (gpus, turns)), 60 + rng.exponential(WORK_S, (gpus, turns))
    ends = np.cumsum(pauses + works, axis=1)
    begins, level = ends - works, rng.uniform(120, 300, (gpus, turns))
    of, turn = np.nonzero(ends < days * DAY_S)
    stamps = {
        name: pa.array(BEGAN_NS // 1000 + (1e6 * times[of, turn]).astype(np.int64), pa.timestamp("us"))
        for name, times in (("began", begins), ("ended", ends))
    }
    ids = [f"{gpu}-{number}" for gpu, number in zip(of.tolist(), turn.tolist(), strict=True)]
    jobs = {
        "cluster": [CLUSTER] * len(ids), "allocation": ids, "job_id": ids, "gpu": np.array(names)[of],
        "node": [f"n{gpu // 4}" for gpu in of.tolist()], "share": np.ones(len(ids)), "recorded": stamps["ended"],
        "user": [f"u{number}" for number in rng.integers(0, USERS, len(ids)).tolist()], **stamps,
    }  # fmt: skip
    identities = {"cluster": [CLUSTER] * gpus, "gpu": names, "node": [f"n{number // 4}" for number in range(gpus)],
                  "power_limit_mw": [350_000] * gpus}  # fmt: skip
    store.append({"jobs": pa.table(jobs), "gpus": pa.table(identities)}, "facts")
    for day in range(days):
        seconds = np.arange(day * DAY_S, (day + 1) * DAY_S, step_s)
        watts = np.full((gpus, len(seconds)), 50.0)
        for gpu in range(gpus):
            at = np.searchsorted(begins[gpu], seconds, "right") - 1
            busy = (at >= 0) & (seconds < ends[gpu][np.maximum(at, 0)])
            watts[gpu, busy] = level[gpu][at[busy]]
        worked = watts > 80
        watts += rng.normal(0, 1, watts.shape) * np.where(worked, 8.0, 0.5)
        codes = np.repeat(np.arange(gpus, dtype=np.int32), len(seconds))
        telemetry = {
            "ts": pa.array(np.tile(BEGAN_NS + seconds * S, gpus), pa.timestamp("ns")),
            "cluster": pa.DictionaryArray.from_arrays(np.zeros(len(codes), np.int32), [CLUSTER]).cast(pa.string()),
            "gpu": pa.DictionaryArray.from_arrays(codes, names).cast(pa.string()),
            "power_mw": np.rint(1000 * watts).astype(np.int64).ravel(),
            "utilization": np.where(worked, 100, 0).ravel(),
        }
        store.append({"telemetry": pa.table(telemetry)}, f"day-{day}")
    store.compact(offline=True)
    return len(ids)


def by_user(store: Store) -> dict[str, list[float]]:
    from whorl.analysis.energy.answers import energy

    rows = energy(store, "user").rows
    return {str(row["user"] or row["kind"]): [row["energy_j"], row["low_j"], row["high_j"]] for row in rows.to_dicts()}


def write(store: Store) -> int:
    from whorl.analysis.energy.minutes import write_minutes

    return write_minutes(store, offline=True, now_ns=time.time_ns())


CONTENDERS: dict[str, Callable[[Store], Any]] = {"readings": by_user, "write": write, "minutes": by_user}


def one(name: str, root: Path) -> dict[str, Any]:
    """What one contender takes, from opening the store on."""
    store = Store.open(root)
    wall, cpu = time.perf_counter(), time.process_time()
    answer = CONTENDERS[name](store)
    figures = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    return {"what": name, **figures, "peak_mb": peak_mb(), "answer": answer}


def differ(first: dict[str, list[float]], second: dict[str, list[float]]) -> dict[str, float]:
    """The largest difference of joules, and of the ends of intervals, as a part."""
    pairs = np.array([[first[name], second[name]] for name in first])
    apart = np.abs(pairs[:, 1] / pairs[:, 0] - 1).max(axis=0)
    return {"energy_j": float(apart[0]), "low_j": float(apart[1]), "high_j": float(apart[2])}


def of_shape(shape: str, repeats: int) -> dict[str, Any]:
    gpus, days, step_s = SHAPES[shape]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "store"
        say(f"{shape}: making the store")
        jobs = make(root, gpus, days, step_s)
        rows = []
        for name, times in (("readings", 1), ("write", 1), ("minutes", repeats)):
            for repeat in range(times):
                say(f"{shape}: {name}, {repeat + 1} of {times}")
                rows.append(alone(__file__, "--only", name, "--store", str(root), **THREADS))
        answers = {row["what"]: row.pop("answer") for row in rows}
        sizes = {
            name: sum(path.stat().st_size for path in (root / name).rglob("*.parquet"))
            for name in ("telemetry", "energy_minutes", "energy_days")
        }
    cpu_s = {name: statistics.median(row["cpu_s"] for row in rows if row["what"] == name) for name in CONTENDERS}
    return {
        "shape": shape, "gpus": gpus, "days": days, "step_s": step_s, "jobs": jobs, "users": USERS,
        "telemetry_rows": gpus * days * DAY_S // step_s, "cpu_s": cpu_s, "days_written": answers["write"],
        "write_cpu_s_a_day": round(cpu_s["write"] / days, 2),
        "differ": differ(answers["readings"], answers["minutes"]), "bytes": sizes, "runs": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=3, help="of the answer from minutes")
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(one(given.only, given.store)))
        return
    before = machine("polars", "duckdb", "numpy", "pyarrow")
    shapes = [of_shape(shape, given.repeats) for shape in given.shapes]
    print(as_json({"benchmark": "energy_minutes", "threads": 2, "shapes": shapes, "machine": before}))


if __name__ == "__main__":
    main()
