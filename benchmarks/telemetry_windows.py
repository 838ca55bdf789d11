"""What statistics of telemetry over windows of each GPU cost, beside DuckDB's bare scan of the columns. Prints JSON.

    python benchmarks/telemetry_windows.py > benchmarks/results/telemetry_windows.json

The stores are made up (`store_workload`): 4,000 GPUs at 1 Hz for an hour are 14.4 million rows. In `jobs` each GPU runs
some five jobs; in `short` it has 100 runs of 30 s. Readings of stuck sensors are left out.

scan         DuckDB reads the columns of `run_windows` and adds them up: cluster, GPU, time, the two powers, clock,
             temperature, energy counter, quality
whorl        `analysis.passive.read_in_runs`: of each run the 95th percentile of the power, the median clock; in parts
view         `Store.sql` of the view `run_windows`, all its columns
parts        `analysis.windows_of_runs`: the same columns, in parts
minutes      `Store.sql`: of each GPU and minute mean, highest and 95th percentile of the power, median clock
duckdb       as `whorl`, by the plain SQL of a person: a join on GPU and time, by DuckDB alone

All read the same files. Each is a process of its own with two threads: wall and CPU seconds (all threads) from an
opened store to the answer, without imports, and the largest resident memory of the whole process. `times_scan` compares
the medians. On a machine with other work CPU seconds say more than wall seconds. Nothing is asserted.
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
from whorl.benchmarks.store_workload import BEGAN_NS, workload
from whorl.store import Store
from whorl.store.metrics import power_is_trusted

PART, SHORT = 400, 100  # GPUs made at a time; runs of a GPU
SHAPES = ("jobs", "short")
WATTS = "coalesce(power_instant_mw, power_mw)"


def make(root: Path, gpus: int, seconds: int, shape: str) -> None:
    store = Store.create(root)
    for number, at in enumerate(range(0, gpus, PART)):
        work = workload(min(PART, gpus - at), seconds, seed=number)
        gpu, began, ended = (work.jobs[name] for name in ("gpu", "began", "ended"))
        if shape == "short":
            starts = np.tile(BEGAN_NS + np.arange(SHORT) * (seconds * 10**9 // SHORT), len(work.gpus))
            gpu = pa.array(np.repeat(work.gpus, SHORT))
            began, ended = (pa.array((starts + more * 10**9).view("datetime64[ns]")) for more in (0, 30))
        n = len(gpu)
        runs = {
            "run_id": [f"{number}-{one}" for one in range(n)], "cluster": ["bench"] * n, "workload": ["job"] * n,
            "gpu": gpu, "began": began, "ended": ended, "status": ["ok"] * n,
        }  # fmt: skip
        identities = {"cluster": ["bench"] * len(work.gpus), "gpu": work.gpus}
        store.append(
            {"telemetry": work.writers[0], "gpus": pa.table(identities), "runs": pa.table(runs)}, f"part-{number}"
        )


def whorl(store: Store) -> dict[str, Any]:
    from whorl.analysis.spread.passive import read_in_runs

    found, _ = read_in_runs(store)
    return {"runs": found.height, "mean_w": found["read_w"].mean(), "mean_mhz": found["read_mhz"].mean()}


def view(store: Store) -> dict[str, Any]:
    found = store.sql("from run_windows").polars()
    return {"runs": found.height, "mean_w": found["power_p95_w"].mean(), "joules": found["energy_j"].sum()}


def parts(store: Store) -> dict[str, Any]:
    from whorl.analysis import windows_of_runs

    found = windows_of_runs(store).rows
    return {"runs": found.height, "mean_w": found["power_p95_w"].mean(), "joules": found["energy_j"].sum()}


def minutes(store: Store) -> dict[str, Any]:
    found = store.sql(f"""
        select cluster, gpu, epoch_ns(ts) // {60 * 10**9} as minute, avg({WATTS}) as mean_w, max({WATTS}) as max_w,
            quantile_cont({WATTS}, 0.95) as p95_w, median(sm_clock_mhz) as mhz
        from telemetry where {WATTS} is not null and {power_is_trusted()} group by all
    """).polars()
    return {"windows": found.height}


def duckdb(store: Store) -> dict[str, Any]:
    runs, telemetry = _tables(store)
    found = _connected().execute(f"""
        with read as (
            select r.run_id, count(*) as n, quantile_cont({WATTS}, 0.95) / 1e3 as w, median(t.sm_clock_mhz) as mhz
            from {runs} r join {telemetry} t on t.cluster = r.cluster and t.gpu = r.gpu and t.ts between began and ended
            where {WATTS} is not null and {power_is_trusted('t.quality')} group by r.run_id
        ) select count(*), avg(w), avg(mhz) from read where n >= 5
    """).fetchone()  # fmt: skip
    assert found is not None
    return dict(zip(("runs", "mean_w", "mean_mhz"), found, strict=True))


def scan(store: Store) -> dict[str, Any]:
    found = (
        _connected()
        .execute(f"""
        select count(*), max(cluster), max(gpu), max(ts), sum({WATTS}), sum(sm_clock_mhz), max(temperature_c),
            max(energy_mj), count(quality)
        from {_tables(store)[1]}
    """)
        .fetchone()
    )
    assert found is not None
    return {"rows": found[0]}


def _connected() -> Any:
    import duckdb as library

    connection = library.connect()
    connection.execute("set threads = 2")
    return connection


def _tables(store: Store) -> list[str]:
    return [
        f"read_parquet('{store.root}/{name}', union_by_name => true)"
        for name in ("runs/*.parquet", "telemetry/**/*.parquet")
    ]


CONTENDERS: dict[str, Callable[[Store], dict[str, Any]]] = {
    "scan": scan, "whorl": whorl, "view": view, "parts": parts, "minutes": minutes, "duckdb": duckdb,
}  # fmt: skip


def one(name: str, root: Path) -> dict[str, Any]:
    import duckdb  # noqa: F401 - not timed
    import polars as pl  # noqa: F401
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    import whorl.store.sql  # noqa: F401

    store = Store.open(root)
    wall, cpu = time.perf_counter(), time.process_time()
    found = CONTENDERS[name](store)
    took = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    peak = peak_mb()
    return {"what": name, **took, "peak_mb": peak, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(one(given.only, given.store)))
        return
    rows: list[dict[str, Any]] = []
    before = machine("polars", "duckdb", "numpy", "pyarrow")
    with tempfile.TemporaryDirectory() as place:
        for shape in SHAPES:
            say(f"making the store: {shape}")
            make(Path(place) / shape, given.gpus, given.seconds, shape)
        for number in range(given.repeats):
            for shape in SHAPES:
                for name in CONTENDERS:
                    say(f"{shape}, {name}, {number + 1} of {given.repeats}")
                    found = alone(__file__, "--only", name, "--store", str(Path(place) / shape), **THREADS)
                    rows.append({"shape": shape, **found})
    compared = {shape: times([row for row in rows if row["shape"] == shape]) for shape in SHAPES}
    size = {"gpus": given.gpus, "seconds": given.seconds, "telemetry_rows": rows[0]["rows"]}
    found = {"benchmark": "telemetry_windows", "threads": 2, **size, "times_scan": compared, "rows": rows}
    print(as_json(found | {"machine": before}))


def times(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times as long as the bare scan each took, by the medians."""

    def middle(name: str, what: str) -> float:
        return float(statistics.median(row[what] for row in rows if row["what"] == name))

    return {
        name: {what: round(middle(name, what) / middle("scan", what), 2) for what in ("wall_s", "cpu_s")}
        for name in CONTENDERS
        if name != "scan"
    }


if __name__ == "__main__":
    main()
