"""What a fleet like Summit costs a store, and what answers cost that are made in parts by workers.

    python -m benchmarks.scale [--only SECTION] [--quick | --long]

day      4,608 nodes of six V100 at 1 Hz for a part of a day (--long: 144 minutes; else 120 of a tenth of the nodes):
         each node has the journal of a collector, which takes a sweep each second and is sealed every ten minutes. Two
         processes take the nodes one after another. Times are simulated, nothing is made durable (fsync). CPU of
         appends, of sealing and of the part of it that holds the lock of the store; then compaction, and questions in
         processes of their own with two threads, beside plain DuckDB and Polars over the same files. `exact`: whether
         every reading is counted once.
parts    energy, window statistics, and hourly sums with a daily percentile of 57.6 million rows (--long; else a tenth),
         by threads of one process (`here`), by two workers of Dask, and by one query that knows no parts (`plain`)

`tests/store/many_writers.py` has a thousand nodes in 64 processes beside readers, a compactor and a pruner.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa

from whorl.analysis.engines import Engine, Here
from whorl.benchmarks.fleets import CLUSTER, gpu_rows, node_name
from whorl.benchmarks.harness import BenchOptions, child, in_turns, peak_mb, run, say, scratch
from whorl.benchmarks.readings import FAST, SLOW, FleetReadings, FleetShape
from whorl.benchmarks.store import make_windows
from whorl.jobs.workers import LEAN
from whorl.store import Store, file_names, telemetry_files
from whorl.store.journal import Journal
from whorl.store.journal_file import Ticks, pack_readings
from whorl.store.snapshot import TablePart
from whorl.store.system import files as store_files

if TYPE_CHECKING:
    from distributed import Client

PER_NODE, BLOCK, SEAL_MINUTES, HOUR_NS = 6, 32, 10, 3600 * 10**9
SUMMIT = FleetShape(range(4608), 144 * 60, PER_NODE, whole_nodes=True, work_s=2000.0)
WATTS = "power_mw / 1000.0"

# -- writing ---------------------------------------------------------------------------------------------------------


@dataclass
class WriterCost:
    """CPU seconds of writers, and what was done in them."""

    rows: int = 0
    seals: int = 0
    append: float = 0.0
    seal: float = 0.0
    lock: float = 0.0

    def add(self, cost: WriterCost) -> None:
        for name, figure in vars(cost).items():
            setattr(self, name, getattr(self, name) + figure)


@dataclass
class SweepClock:
    """The time of the last sweep, ns since 1970."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


def sweeps_of(readings: FleetReadings) -> Iterator[tuple[int, list[Ticks]]]:
    """Each node of some readings, and its sweeps, as a collector hands them to its journal."""
    shape, values = readings.shape, readings.values()
    table = np.stack([values[name] for name in SLOW], axis=-1)
    for place, node in enumerate(shape.nodes):
        gpus = slice(place * PER_NODE, (place + 1) * PER_NODE)
        by_tick, times = table[gpus].transpose(1, 0, 2), values["us"][gpus].T.tolist()
        names = [(CLUSTER, gpu) for gpu in shape.gpus[gpus]]
        sweeps = []
        for tick, us in enumerate(times):
            metrics = FAST if tick % 10 else SLOW
            columns, packed = pack_readings(metrics, by_tick[tick, :, : len(metrics)].tolist())
            sweeps.append(Ticks(ts=us, gpus=names, columns=columns, packed=packed))
        yield node, sweeps


def write_nodes(root: Path, shape: FleetShape) -> WriterCost:
    """Append and seal all readings of some nodes, each by a journal of its own."""
    cost, clock = WriterCost(), SweepClock()

    def sealed(seal: Callable[[], None]) -> None:
        file_names.parse.cache_clear()  # a collector knows the files of its own node only
        began = time.thread_time()
        seal()
        cost.seal, cost.seals = cost.seal + time.thread_time() - began, cost.seals + 1

    with without_disk(cost):
        for node, sweeps in sweeps_of(FleetReadings(shape)):
            journal = Journal(root, node_name(node), durable_s=86_400.0, background=False, clock=clock)
            for minute in range(shape.seconds // 60):
                began = time.thread_time()
                for sweep in sweeps[60 * minute : 60 * minute + 60]:
                    clock.now_ns = 1000 * sweep.ts[-1] + 2_000_000
                    journal.append_ticks(sweep)
                    cost.rows += len(sweep.ts)
                cost.append += time.thread_time() - began
                if (minute + 1 - node) % SEAL_MINUTES == 0:
                    sealed(journal.seal)
            sealed(journal.close)
    return cost


@contextlib.contextmanager
def without_disk(cost: WriterCost) -> Iterator[None]:
    """Nothing is made durable, and the time under the lock of the store is counted."""
    placing = telemetry_files.placing

    @contextlib.contextmanager
    def timed(place: Path) -> Iterator[None]:
        with placing(place):
            began = time.thread_time()
            try:
                yield
            finally:
                cost.lock += time.thread_time() - began

    with (
        mock.patch.object(store_files, "sync"),
        mock.patch.object(store_files, "sync_folder"),
        mock.patch.object(telemetry_files, "placing", timed),
    ):
        yield


def written(root: Path, shape: FleetShape) -> WriterCost:
    """Let two processes share the nodes of a fleet, block by block, with the identities and jobs of its GPUs."""
    store, total = Store.open(root), WriterCost()
    nodes = shape.nodes
    blocks = [replace(shape, nodes=nodes[at : at + BLOCK]) for at in range(0, len(nodes), BLOCK)]
    jobs = pa.concat_tables([FleetReadings(block).jobs() for block in blocks])
    store.append({"gpus": gpu_rows(len(shape.gpus), PER_NODE), "jobs": jobs}, "facts")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        for cost in processes.map(write_nodes, repeat(root), blocks):
            total.add(cost)
    return total


# -- questions -------------------------------------------------------------------------------------------------------

SQL = {
    "hourly": f"select epoch_us(ts) // 3600000000 as hour, sum({WATTS}) as w, count(*) as n from telemetry group by 1",
    "p95": f"select gpu, epoch_us(ts) // 86400000000 as day, quantile_cont({WATTS}, 0.95) as w from telemetry "
    "group by 1, 2",
    "latest": "select gpu, max(ts) as ts, arg_max(power_mw, ts) as w, arg_max(temperature_c, ts) as t, "
    "arg_max(energy_mj, ts) as e from telemetry group by gpu",
    "energy": "with of_gpus as (select j.user, j.job_id, j.gpu, max(energy_mj) - min(energy_mj) as mj from telemetry t "
    "join jobs j on t.cluster = j.cluster and t.gpu = j.gpu and t.ts >= j.began and t.ts <= j.ended "
    "group by all) select user, sum(mj) / 1000.0 as w from of_gpus group by user",
}  # fmt: skip


def summed(answer: Any) -> dict[str, Any]:
    """How many rows an answer has, and the sum of its figures."""
    return {"rows": answer.num_rows, "sum": float(sum(value or 0 for value in answer["w"].to_pylist()))}


def by_whorl(root: str, question: str) -> Callable[[], dict[str, Any]]:
    """A question to the store."""
    store = Store.open(root)
    if question == "latest":
        return lambda: {"rows": len(store.latest())}
    if question == "energy":
        from whorl.analysis.energy.answers import energy

        def joules() -> dict[str, Any]:
            rows = [row for row in energy(store, "user").rows.to_dicts() if row["user"]]
            return {"rows": len(rows), "sum": sum(row["energy_j"] for row in rows)}

        return joules
    return lambda: summed(store.sql(SQL[question]))


def by_duckdb(root: str, question: str) -> Callable[[], dict[str, Any]]:
    """The same by DuckDB over the files; it does not see what is in journals."""
    connection = duckdb.connect()
    connection.execute("set threads = 2")
    for name, pattern in (("telemetry", "telemetry/*/*.parquet"), ("jobs", "jobs/*.parquet")):
        connection.execute(f"create view {name} as from read_parquet('{root}/{pattern}', hive_partitioning = false)")
    return lambda: summed(connection.sql(SQL[question]).to_arrow_table())


def by_polars(root: str, question: str) -> Callable[[], dict[str, Any]]:
    """The same by Polars' streaming engine over the files."""
    import polars as pl

    scan = pl.scan_parquet(f"{root}/telemetry/*/*.parquet", hive_partitioning=False, extra_columns="ignore")
    us, watts = pl.col("ts").dt.epoch("us"), pl.col("power_mw") / 1000.0
    frame = {
        "hourly": scan.group_by(us // 3_600_000_000).agg(w=watts.sum(), n=pl.len()),
        "p95": scan.group_by("gpu", us // 86_400_000_000).agg(w=watts.quantile(0.95, "linear")),
    }[question]
    return lambda: summed(frame.collect(engine="streaming").to_arrow())


def compact(root: str, now_ns: int) -> Callable[[], dict[str, Any]]:
    """A compaction, as if it were so late."""
    store = Store.open(root)

    def work() -> dict[str, Any]:
        done = store.compact(offline=True, now=now_ns)
        return {"files_before": done.before, "files_after": done.after}

    return work


def day(options: BenchOptions) -> dict[str, Any]:
    """Writing, compaction, and questions beside other engines."""
    nodes, minutes = options.pick(48, len(SUMMIT.nodes) // 10, len(SUMMIT.nodes)), options.pick(12, 120, 144)
    shape = replace(SUMMIT, nodes=range(nodes), seconds=60 * minutes)
    rows = len(shape.gpus) * shape.ticks
    with scratch() as folder:
        root = folder / "store"
        Store.create(root).close()
        cost = written(root, shape)
        say(f"{cost}")
        size = sum(path.stat().st_size for path in (root / "telemetry").rglob("*.parquet"))
        compaction = child("scale", "compact", root, shape.began_ns + 10**9 * shape.seconds + HOUR_NS)
        counted = Store.open(root).sql("select count(*) as n from telemetry").to_pylist()[0]["n"]
        questions: dict[str, Any] = {}
        for question in ("hourly", "p95", "energy", "latest"):
            engines = ["by_whorl", "by_duckdb", *(["by_polars"] if question in ("hourly", "p95") else [])]
            contenders = {name: partial(child, "scale", name, root, question) for name in engines}
            questions[question] = in_turns(contenders, options.pick(1, 3, 3), against="by_duckdb")
    return {
        "nodes": nodes, "gpus": len(shape.gpus), "minutes": minutes, "rows": rows, "exact": counted == rows,
        "bytes_per_row_sealed": round(size / rows, 2), "append_us_a_row": round(1e6 * cost.append / cost.rows, 3),
        "seal_us_a_row": round(1e6 * cost.seal / cost.rows, 3),
        "seal_ms": round(1e3 * cost.seal / cost.seals, 1), "lock_ms": round(1e3 * cost.lock / cost.seals, 1),
        "seals": cost.seals, "compaction": compaction, "questions": questions,
    }  # fmt: skip


# -- parts -----------------------------------------------------------------------------------------------------------

WORKER = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
WORKER |= dict(setting.split("=") for setting in LEAN.split())
"""The environment of workers: what `--on slurm` gives its jobs."""


def energy(store: Store, engine: Engine | None) -> list[float]:
    from whorl.analysis.energy.answers import energy as answer

    rows = answer(store, "user", engine=engine or Here(1)).rows
    return [value for row in rows.iter_rows(named=True) for value in (row["energy_j"], row["low_j"], row["high_j"])]


def windows(store: Store, engine: Engine | None) -> list[float]:
    from whorl.analysis.runs.windows import windows_of_runs

    rows = store.sql("from run_windows").polars() if engine is None else windows_of_runs(store, engine=engine).rows
    return [float(rows[name].sum()) for name in ("n", "power_mean_w", "power_p95_w", "energy_j")]


def hourly_sums(part: TablePart) -> tuple[pa.Table, pa.Table]:
    """The function of docs/python.md."""
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
        results = engine.map(hourly_sums, store.parts("telemetry"), name=lambda part: str(part.files[0].name))
        frames = [result for result in results if isinstance(result, tuple)]
        hourly, daily = (pa.concat_tables(pieces) for pieces in zip(*frames, strict=True))
    in_order = hourly.sort_by([("gpu", "ascending"), ("hour", "ascending")])["power_mw"].to_numpy().astype(float)
    return [*in_order[:100].tolist(), float(in_order.sum()), float(daily["p95_mw"].to_numpy().sum())]


QUESTIONS: dict[str, Callable[[Store, Engine | None], list[float]]] = {
    "energy": energy,
    "windows": windows,
    "sums": sums,
}


DASK = """
import sys
from distributed import LocalCluster
options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "1GiB", "dashboard_address": ":0"}
with LocalCluster(**options) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""
"""A scheduler and two workers, in processes that have not imported what this program has, until its input ends."""


IDLE_S = 3.0
"""Scheduler and workers do nothing for so long first, as they take CPU for each second that they run."""


def cpu_of(client: Client) -> float:
    """CPU seconds so far of this process, the scheduler and the workers."""
    others: list[float] = [client.run_on_scheduler(time.process_time), *client.run(time.process_time).values()]
    return time.process_time() + sum(others)


def answered(root: str, name: str, place: str) -> Callable[[], dict[str, Any]]:
    """A question, where it is answered; with Dask its workers' CPU and memory are in the answer."""
    question, store = QUESTIONS[name], Store.open(root)
    if place != "dask":
        engine = None if place == "plain" else Here(2)
        return lambda: {"values": question(store, engine)}
    from distributed import Client

    from whorl.analysis.engines import DaskEngine

    def by_workers() -> dict[str, Any]:
        with (
            subprocess.Popen([sys.executable, "-c", DASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            as cluster,
            Client(str(next(iter(cluster.stdout or ()))).strip()) as client,
            DaskEngine(client) as dask,
        ):  # fmt: skip
            client.run(_loaded, name)
            idle = cpu_of(client)
            time.sleep(IDLE_S)
            begun, asked_at = cpu_of(client), time.monotonic()
            values = question(store, dask)
            took, ended, peaks = time.monotonic() - asked_at, cpu_of(client), client.run(peak_mb)
            cluster.communicate("", timeout=60)
        figures = {"cpu_s": ended - begun, "idle_cpu_s": took * (begun - idle) / IDLE_S,
                   "worker_mb": max(peaks.values())}  # fmt: skip
        return {"values": values, "workers": figures}

    return by_workers


def _loaded(question: str) -> None:
    """Import what its parts need: processes without workers do so before they are timed, too."""
    modules = {"energy": "analysis.energy.books", "windows": "analysis.runs.windows", "sums": "store.snapshot"}
    for module in (f"whorl.{modules[question]}", "duckdb", "polars"):
        importlib.import_module(module)


def parts(options: BenchOptions) -> dict[str, Any]:
    """Three questions in three places."""
    gpus, tables = options.pick(40, 400, 4000), {}
    with scratch() as folder:
        root = folder / "store"
        store = make_windows(root, gpus, options.pick(1800, 14_400, 14_400), "jobs")
        store.compact(offline=True)
        rows = store.sql("select count(*) as n from telemetry").to_pylist()[0]["n"]
        for name in QUESTIONS:
            values: dict[str, list[float]] = {}

            def asked(place: str, name: str = name, values: dict[str, list[float]] = values) -> dict[str, Any]:
                settings = WORKER if place == "dask" else {}
                figures = child("scale", "answered", root, name, place, **settings)
                answer: dict[str, Any] = figures.pop("answer")
                values[place] = answer["values"]
                figures |= answer.get("workers", {})
                return figures

            places = {place: partial(asked, place) for place in ("plain", "here", "dask")}
            table = in_turns(places, options.pick(1, 1, 3), against="plain")
            first = np.array(values["here"], float)
            differ = {
                place: float(np.nanmax(np.abs(np.array(answer_of, float) - first) / np.maximum(np.abs(first), 1e-300)))
                for place, answer_of in values.items()
            }
            tables[name] = table | {"differ_from_here": differ}
    return {"rows": rows, "gpus": gpus, "questions": tables}


CHILDREN: dict[str, Callable[..., Any]] = {
    "by_whorl": by_whorl, "by_duckdb": by_duckdb, "by_polars": by_polars, "compact": compact, "answered": answered,
}  # fmt: skip
SECTIONS = {"day": day, "parts": parts}

if __name__ == "__main__":
    run("scale", SECTIONS, CHILDREN)
