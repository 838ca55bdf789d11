"""What the store costs: commits, bytes, windows of telemetry, and how much of it grows with the past.

    python -m benchmarks.store [--only SECTION] [--quick | --long]

commits    one durable commit of a row of every GPU, as a collector does every second: milliseconds, by whorl's journal,
           DuckDB, SQLite, and one write and fdatasync of as many bytes (`file`)
bytes      bytes of a sample (14 a row) of 400 GPUs that are read for an hour at 1 Hz: sealed every ten minutes,
           compacted, in DuckDB's file; `noise`: order-0 entropy of the metrics' differences
windows    statistics of 400,000 short and of some 20,000 long runs (--long; else a tenth) by the view `run_windows` and
           in parts, beside DuckDB's bare scan of the columns and a person's join
past       `whorl sql` of one GPU's day where the store has 4, 100 and 400 days, process included, beside DuckDB with
           hive partitions on the same files

Engines take turns over connections that are open, or are processes with two threads. `scale` has questions.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from whorl.benchmarks.fleets import CLUSTER, gpu_name, same
from whorl.benchmarks.harness import BenchOptions, child, in_turns, run, say, scratch, spread
from whorl.benchmarks.readings import BEGAN_NS, METRICS, FleetReadings, FleetShape, entropy_bytes
from whorl.store import Store
from whorl.store.metrics import power_is_trusted

GPUS, NODES = 400, range(100)
SEAL_S = 600

# -- commits and bytes -----------------------------------------------------------------------------------------------


def commits(options: BenchOptions) -> dict[str, Any]:
    """Ways take turns tick by tick; the first five ticks create files and warm caches."""
    ticks = options.pick(30, 300, 400)
    rows = FleetReadings(FleetShape(NODES, ticks + 5)).table()
    places = np.arange(len(rows)).reshape(GPUS, -1)
    with scratch() as folder:
        journal = Store.create(folder / "store").journal("bench", durable_s=0.0)
        plain = duckdb.connect(str(folder / "plain.duckdb"))
        lite = sqlite3.connect(folder / "plain.sqlite", isolation_level=None)
        lite.execute("PRAGMA journal_mode = WAL")
        lite.execute("PRAGMA synchronous = FULL")
        lite.execute(f"CREATE TABLE ticks ({', '.join(rows.column_names)}, PRIMARY KEY (gpu, ts)) WITHOUT ROWID")
        order = f"INSERT INTO ticks VALUES ({', '.join('?' * rows.num_columns)})"
        floor = (folder / "floor").open("wb", buffering=0)

        def by_duckdb(sweep: pa.Table) -> None:
            plain.register("tick", sweep)
            plain.execute("CREATE TABLE IF NOT EXISTS ticks AS SELECT * FROM tick LIMIT 0")
            plain.execute("INSERT INTO ticks SELECT * FROM tick")

        def by_sqlite(values: list[Any]) -> None:
            lite.execute("BEGIN")
            lite.executemany(order, values)
            lite.execute("COMMIT")

        def by_file(content: bytes) -> None:
            floor.write(content)
            os.fdatasync(floor.fileno())

        ways: dict[str, tuple[Callable[[pa.Table], Any], Callable[[Any], None]]] = {
            "whorl": (lambda sweep: sweep.to_batches()[0], journal.append_batch),
            "duckdb": (lambda sweep: sweep, by_duckdb),
            "sqlite": (lambda sweep: [tuple(row.values()) for row in with_numbers(sweep).to_pylist()], by_sqlite),
            "file": (lambda sweep: bytes(sum(column.nbytes for column in sweep.columns)), by_file),
        }  # fmt: skip
        ms: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        for turn in range(ticks + 5):
            sweep = rows.take(pa.array(places[:, turn])).combine_chunks()
            for name in names[turn % 4 :] + names[: turn % 4]:
                encode, commit = ways[name]
                encoded = encode(sweep)
                began = time.perf_counter()
                commit(encoded)
                ms[name].append(1e3 * (time.perf_counter() - began))
        durability = str(journal.durability)
        journal.close()
        floor.close()
    p99 = {name: round(float(np.percentile(values[5:], 99)), 3) for name, values in ms.items()}
    figures = {name: spread(values[5:]) | {"p99": p99[name]} for name, values in ms.items()}
    return {"rows_of_a_commit": GPUS, "durability": durability, "ms": figures}


def with_numbers(rows: pa.Table) -> pa.Table:
    """Rows whose times are whole numbers."""
    return rows.set_column(0, "ts", rows["ts"].cast(pa.int64()))


def bytes_of_samples(options: BenchOptions) -> dict[str, Any]:
    """The section `bytes`."""
    seconds = options.pick(1200, 3600, 3600)
    rows = FleetReadings(FleetShape(NODES, seconds)).table()
    places = np.arange(len(rows)).reshape(GPUS, -1)
    with scratch() as folder:
        store = Store.create(folder / "store")

        def stored() -> int:
            return sum(path.stat().st_size for path in store.files("telemetry"))

        with store.journal("bench", durable_s=0.0, background=False, offline=True) as journal:
            for first in range(0, seconds, SEAL_S):
                part = rows.take(pa.array(places[:, first : first + SEAL_S].ravel()))
                journal.append_batch(part.combine_chunks().to_batches()[0])
                journal.seal()
        sizes = {"whorl, 10 minutes": stored()}
        store.compact(offline=True)
        sizes["whorl, compacted"] = stored()
        with duckdb.connect(str(folder / "plain.duckdb")) as connection:
            connection.register("incoming", rows)
            connection.execute("CREATE TABLE telemetry AS SELECT * FROM incoming")
        sizes["duckdb"] = (folder / "plain.duckdb").stat().st_size
    per_sample = {name: round(size / len(rows) / len(METRICS), 3) for name, size in sizes.items()}
    per_sample["noise"] = round(entropy_bytes(rows), 3)
    return {"gpus": GPUS, "rows": len(rows), "bytes_per_sample": per_sample}


# -- windows ---------------------------------------------------------------------------------------------------------

WATTS = "coalesce(power_instant_mw, power_mw)"


def by_scan(root: str) -> Callable[[], dict[str, Any]]:
    """DuckDB reads the columns of `run_windows` and adds them up."""
    columns = f"count(*), max(cluster), max(gpu), max(ts), sum({WATTS}), sum(sm_clock_mhz), max(temperature_c)"
    query = f"select {columns}, max(energy_mj), count(quality) from read_parquet('{root}/telemetry/**/*.parquet')"
    return lambda: {"rows": (_duckdb().execute(query).fetchone() or (None,))[0]}


def by_join(root: str) -> Callable[[], dict[str, Any]]:
    """The mean and the 95th percentile of the power of each run, by the plain SQL of a person."""
    query = f"""
        with read as (
            select r.run_id, quantile_cont({WATTS}, 0.95) / 1e3 as w, median(t.sm_clock_mhz) as mhz
            from read_parquet('{root}/runs/*.parquet') r join read_parquet('{root}/telemetry/**/*.parquet') t
            on t.cluster = r.cluster and t.gpu = r.gpu and t.ts between began and ended
            where {WATTS} is not null and {power_is_trusted("t.quality")} group by r.run_id
        ) select count(*), avg(w) from read"""
    return lambda: dict(zip(("runs", "mean_w"), _duckdb().execute(query).fetchone() or (), strict=True))


def by_view(root: str) -> Callable[[], dict[str, Any]]:
    """`Store.sql` of the view, all its columns."""
    store = Store.open(root)
    store.sql("from run_windows where run_id = ''").polars()  # the libraries are there, as those of the others are

    def work() -> dict[str, Any]:
        rows = store.sql("from run_windows").polars()
        return {"runs": rows.height, "mean_w": rows["power_p95_w"].mean()}

    return work


def by_parts(root: str) -> Callable[[], dict[str, Any]]:
    """`windows_of_runs`: the same columns, in parts."""
    from whorl.analysis import windows_of_runs

    store = Store.open(root)

    def work() -> dict[str, Any]:
        rows = windows_of_runs(store).rows
        return {"runs": rows.height, "mean_w": rows["power_p95_w"].mean()}

    return work


def _duckdb() -> Any:
    connection = duckdb.connect()
    connection.execute("set threads = 2")
    return connection


def make_windows(root: Path, gpus: int, seconds: int, shape: str) -> Store:
    """A store whose GPUs run some five jobs an hour (`jobs`), or 100 runs of 30 s (`short`); each job is a run."""
    store = Store.create(root)
    for first in range(0, gpus // 4, len(NODES)):
        readings = FleetReadings(FleetShape(range(first, min(first + len(NODES), gpus // 4)), seconds))
        jobs = readings.jobs()
        gpu, began, ended = (jobs[name] for name in ("gpu", "began", "ended"))
        if shape == "short":
            starts = np.tile(BEGAN_NS // 1000 + np.arange(100) * (seconds * 10**6 // 100), len(readings.shape.gpus))
            gpu = pa.array(np.repeat(readings.shape.gpus, 100))
            began, ended = (pa.array(starts + after * 10**6, pa.timestamp("us")) for after in (0, 30))
        n = len(gpu)
        runs = {
            "run_id": [f"{first}-{turn}" for turn in range(n)], "cluster": same(CLUSTER, n), "gpu": gpu,
            "workload": same("job", n), "began": began, "ended": ended, "status": same("ok", n),
        }  # fmt: skip
        gpus_of = pa.table({"cluster": [CLUSTER] * len(readings.shape.gpus), "gpu": readings.shape.gpus})
        tables = {"telemetry": readings.table(), "gpus": gpus_of, "runs": pa.table(runs), "jobs": jobs}
        store.append(tables, f"part-{first}")
    return store


def windows(options: BenchOptions) -> dict[str, Any]:
    """Long runs and short ones."""
    gpus, tables = options.pick(40, 400, 4000), {}
    for shape in ("jobs", "short"):
        with scratch() as folder:
            say(f"making the store: {shape}")
            make_windows(folder / "store", gpus, 3600, shape)
            contenders = {name: partial(child, "store", name, folder / "store") for name in WINDOWS}
            tables[shape] = in_turns(contenders, options.pick(1, 3, 5), against="by_scan")
    return {"gpus": gpus, "rows": gpus * 3600, **tables}


# -- the past --------------------------------------------------------------------------------------------------------


def past(options: BenchOptions) -> dict[str, Any]:
    """One GPU's day in stores of more and more days of four files each."""
    tables: dict[str, Any] = {}
    for days in (4, 20) if options.size == "quick" else (4, 100, 400):
        with scratch() as folder:
            store, rows = Store.create(folder / "store"), FleetReadings(FleetShape(range(2), 600)).table()
            for day in range(days):
                stamps = rows["ts"].cast(pa.int64()).to_numpy() + day * 86_400 * 10**6
                of_day = rows.set_column(0, "ts", pa.array(stamps, pa.timestamp("us")))
                for part in range(4):
                    store.append({"telemetry": of_day.slice(part * len(rows) // 4, len(rows) // 4)}, f"d{day}-{part}")
            condition = f"gpu = '{gpu_name(0)}' and ts >= '2026-01-02' and ts < '2026-01-03'"
            query = f"select count(*) as n, max(power_mw) as w from telemetry where {condition}"
            files = f"read_parquet('{folder}/store/telemetry/*/*.parquet', hive_partitioning => true)"
            plain = query.replace("telemetry", files, 1) + " and day = '2026-01-02'"
            code = f"import duckdb; duckdb.sql({plain!r}).fetchall()"
            command = [sys.executable, "-m", "whorl", "sql", "--store", str(folder / "store"), query]
            contenders = {
                "whorl": partial(process, command), "duckdb": partial(process, [sys.executable, "-c", code]),
            }  # fmt: skip
            table = in_turns(contenders, options.pick(1, 5, 9), against="duckdb")
            tables[f"{days} days"] = {"files": 4 * days, **table}
    return tables


def process(command: list[str]) -> dict[str, Any]:
    """CPU and wall seconds of a process from start to end."""
    wall = time.perf_counter()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise RuntimeError(running.stderr.read().decode()[-500:] if running.stderr else command)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.perf_counter() - wall}


WINDOWS = {"by_scan": by_scan, "by_view": by_view, "by_parts": by_parts, "by_join": by_join}
SECTIONS = {"commits": commits, "bytes": bytes_of_samples, "windows": windows, "past": past}

if __name__ == "__main__":
    run("store", SECTIONS, WINDOWS)
