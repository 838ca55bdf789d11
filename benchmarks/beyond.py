"""What answers cost that are made in parts: in threads of one process, by workers of Dask, and not in parts. JSON.

    python benchmarks/beyond.py > benchmarks/results/beyond.json

The store is made up (`telemetry_windows.make`): 4,000 GPUs at 1 Hz for four hours are 57.6 million rows of some twenty
columns, compacted; each GPU runs some twenty jobs, which are runs, too. The questions:

energy       `energy(store, "user")`
windows      `windows_of_runs`: power, energy, clock and temperature of each run
sums         hourly sums of the power, and its 95th percentile of each GPU and day, as docs/store.md has them

Each is answered in processes of their own with two threads: by `here` (threads of the process), by `dask` (two workers
with one thread each), and as one query that knows no parts, the named alternative:

plain        sums: DuckDB's query on the files. windows: whorl's view `run_windows`. energy: the same parts one after
             another by one thread (`Here(1)`), as whorl has no other way

CPU seconds of all threads from an opened store to the answer, without imports; with Dask those of the process that asks
and of both workers. `peak_mb` is the largest resident memory of that process, and of `dask` that of the larger worker
(`asking_mb`: of the process that asks). `differ` says by how much an answer differs at most from that of `here`, as a
part. On a machine with other work CPU seconds say more than wall seconds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from whorl.analysis.engines import Engine, Here
from whorl.benchmarks.machine import machine, peak_mb
from whorl.benchmarks.reporting import THREADS, alone, as_json, say
from whorl.benchmarks.telemetry_windows import make
from whorl.jobs.workers import LEAN
from whorl.store import Store
from whorl.store.parts import TablePart

PLACES = ("plain", "here", "dask")
WORKER = {**dict.fromkeys(THREADS, "1"), **dict(setting.split("=") for setting in LEAN.split())}
"""The environment of workers: what `--on slurm` gives its jobs."""


def energy(store: Store, engine: Engine | None) -> list[float]:
    from whorl.analysis.energy.answers import energy as answer

    rows = answer(store, "user", engine=engine or Here(1)).rows
    return [value for row in rows.iter_rows(named=True) for value in (row["energy_j"], row["low_j"], row["high_j"])]


def windows(store: Store, engine: Engine | None) -> list[float]:
    from whorl.analysis.runs.windows import windows_of_runs

    rows = store.sql("from run_windows").polars() if engine is None else windows_of_runs(store, engine=engine).rows
    return [float(rows[name].sum()) for name in ("n", "power_mean_w", "power_p95_w", "energy_j")]


def summed(part: TablePart) -> tuple[pa.Table, pa.Table]:
    """The function of docs/store.md."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set enable_progress_bar = false")  # it would stand in what this program prints
        rows = part.relation(connection)  # noqa: F841  the queries name it
        hourly = connection.sql(
            "select gpu, date_trunc('hour', ts) as hour, sum(power_mw)::bigint as power_mw, count(*) as readings "
            "from rows group by all"
        ).to_arrow_table()
        daily = connection.sql(
            "select gpu, ts::date as day, quantile_cont(power_mw, 0.95) as p95_mw from rows group by all"
        ).to_arrow_table()
    return hourly, daily


def sums(store: Store, engine: Engine | None) -> list[float]:
    if engine is None:
        hourly = store.sql(
            "select gpu, date_trunc('hour', ts) as hour, sum(power_mw)::bigint as power_mw, count(*) as readings "
            "from telemetry group by all"
        ).table
        daily = store.sql(
            "select gpu, ts::date as day, quantile_cont(power_mw, 0.95) as p95_mw from telemetry group by all"
        ).table
    else:
        results = engine.map(summed, store.parts("telemetry"), name=lambda part: str(part.files[0].name))
        frames = [result for result in results if isinstance(result, tuple)]
        hourly, daily = (pa.concat_tables(pieces) for pieces in zip(*frames, strict=True))
    in_order = hourly.sort_by([("gpu", "ascending"), ("hour", "ascending")])["power_mw"].to_numpy().astype(float)
    return [*in_order[:100].tolist(), float(in_order.sum()), float(daily["p95_mw"].to_numpy().sum())]


QUESTIONS: dict[str, Callable[[Store, Engine | None], list[float]]] = {
    "energy": energy,
    "windows": windows,
    "sums": sums,
}


def used() -> tuple[float, int | None]:
    """CPU seconds and largest memory of a worker so far."""
    return time.process_time(), peak_mb()


def answered(name: str, place: str, root: Path) -> dict[str, Any]:
    """What an answer costs in this process, and in the workers that it starts."""
    question, store = QUESTIONS[name], Store.open(root)
    if place != "dask":
        engine = None if place == "plain" else Here(2)
        cpu, wall = time.process_time(), time.perf_counter()
        answer = question(store, engine)
        figures = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "peak_mb": peak_mb()}
        return {"question": name, "place": place, **figures, "answer": answer}
    from distributed import Client, LocalCluster

    from whorl.analysis.engines import DaskEngine

    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "1GiB", "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client, DaskEngine(client) as dask:
        client.run(_loaded)
        before = client.run(used)
        cpu, wall = time.process_time(), time.perf_counter()
        answer = question(store, dask)
        asking_s, wall_s, after = time.process_time() - cpu, time.perf_counter() - wall, client.run(used)
    return {
        "question": name, "place": place, "cpu_s": asking_s + sum(after[at][0] - before[at][0] for at in after),
        "asking_s": asking_s, "wall_s": wall_s, "peak_mb": max(peak or 0 for _, peak in after.values()),
        "asking_mb": peak_mb(), "answer": answer,
    }  # fmt: skip


def _loaded() -> None:
    """Import what parts need: other processes do so before they are timed, too."""
    import whorl.analysis.energy.answers
    import whorl.analysis.runs.windows  # noqa: F401


def apart(answer: list[float], other: list[float]) -> float:
    """The largest difference, as a part."""
    first, second = np.array(answer, float), np.array(other, float)
    return float(np.nanmax(np.abs(first - second) / np.maximum(np.abs(second), 1e-300)))


def compared(root: Path, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name in QUESTIONS:
        runs: dict[str, list[dict[str, Any]]] = {place: [] for place in PLACES}
        for repeat in range(repeats):
            for place in PLACES:
                say(f"{name}, {place}, {repeat + 1} of {repeats}")
                settings = WORKER if place == "dask" else THREADS
                runs[place].append(alone(__file__, "--only", name, "--place", place, "--store", str(root), **settings))
        cpu_s = {place: statistics.median(run["cpu_s"] for run in runs[place]) for place in PLACES}
        for place in PLACES:
            first = runs[place][0]
            numbers = {key: round(float(first[key]), 2) for key in first if key not in ("question", "place", "answer")}
            rows.append({
                "question": name, "place": place, **numbers, "cpu_s": round(cpu_s[place], 2), "n": repeats,
                "times_plain": round(cpu_s[place] / cpu_s["plain"], 2),
                "differ": apart(first["answer"], runs["here"][0]["answer"]),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4_000)
    parser.add_argument("--seconds", type=int, default=14_400)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--store", type=Path, help="one that is there, in place of a made one")
    parser.add_argument("--only", choices=QUESTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--place", choices=PLACES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        print(as_json(answered(chosen.only, chosen.place, chosen.store)))
        return
    about = machine("duckdb", "polars", "pyarrow", "distributed")
    with tempfile.TemporaryDirectory() as folder:
        root = chosen.store or Path(folder) / "store"
        if chosen.store is None or not root.exists():
            say("making the store")
            make(root, chosen.gpus, chosen.seconds, "jobs")
            store = Store.open(root)
            store.append({"jobs": store.sql(JOBS).table}, "jobs")
            store.compact(offline=True)
        rows = Store.open(root).sql("select count(*) as n from telemetry").polars()["n"][0]
        results = compared(root, chosen.repeats)
    print(as_json({"benchmark": "beyond", "machine": about, "rows": rows, "gpus": chosen.gpus, "results": results}))


JOBS = """
    select cluster, run_id as allocation, run_id as job_id, gpu, began, ended, 1.0 as share, ended as recorded,
        'u' || (hash(run_id) % 20) as user from runs
"""
"""Each run is a job, too, of one of twenty users."""

if __name__ == "__main__":
    main()
