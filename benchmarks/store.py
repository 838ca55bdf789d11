"""How the store compares with DuckDB on one plain table, PostgreSQL and SQLite, on the same telemetry. Prints JSON.

    python benchmarks/store.py [--gpus 400] [--large] [--repeats 7] [--only commits ingest size queries]
        [--questions q1 q2 q3 q4 q5]

commits  one durable commit of one row of every GPU, as a collector does every second: p50 and p99, in ms
ingest   all rows at once, in the order in which they arrived: rows a second, durable at the end
size     bytes per sample (14 samples a row) of sealed ten-minute segments, after compaction, and of the others' files
queries  the five questions of `store_questions.QUESTIONS`, at --gpus and with --large at 4,000 GPUs, one hour at 1 Hz

The engines take turns within one process, so that a busy machine is busy for all. Every engine is asked over a
connection, or a `Store`, that is open already. Each time it is asked for another GPU, where a question is about one.
Answers are compared in every run: `difference` is the largest
relative difference from DuckDB's. `cpu_ms` is the CPU time of this process, all threads: what to compare where other
programs keep the machine busy. PostgreSQL is started from Debian's package where that is installed; SQLite takes
part in the commits only. `parquet` is DuckDB on the store's files without the store. It states what it measured and
asserts nothing about time.

Tried with it and not kept: row groups of 30,720 rows (q1: 41.8 against 37.2 ms of CPU with 61,440, n 41), prepared
statements, a schema given to `read_parquet`, `union_by_name` over an empty file, no prefetching, fewer threads that
read, bloom filters of the GPUs, the names of the files in the view instead of in a variable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from whorl.benchmarks.machine import file_system, machine
from whorl.benchmarks.reporting import as_json, say, spread
from whorl.benchmarks.store_engines import DuckDB, Files, SQLite, Whorl
from whorl.benchmarks.store_postgres import Postgres, postgres_programs, postgres_server, postgres_version
from whorl.benchmarks.store_questions import QUESTIONS
from whorl.benchmarks.store_workload import METRICS, NODE, Workload, entropy_bytes, workload

GOALS = {
    "commit_p50_ms": 5.0,
    "ingest_rows_per_s": 1_000_000,
    "bytes_per_sample_10_minutes": 0.85,
    "bytes_per_sample_1_hour": 1.50,
}
PARTS = ("commits", "ingest", "size", "queries")
TOLERANCE = 1e-9


def summary(seconds: list[float], scale: float = 1e3, digits: int = 2) -> dict[str, Any]:
    """Median, least and most, in ms unless `scale` says otherwise, and how many."""
    return spread([scale * one for one in seconds], digits) | {"n": len(seconds)}


@contextlib.contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A folder for one part; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="whorl-benchmark-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Postgres | None]:
    """A connection to a server of its own; None where PostgreSQL is not installed."""
    if postgres_programs() is None:
        yield None
        return
    with postgres_server(folder) as where:
        engine = Postgres(where)
        try:
            yield engine
        finally:
            engine.close()


def by_tick(work: Workload, ticks: int) -> list[pa.Table]:
    """The first `ticks` sweeps of the first writer: one row of each of its GPUs, in one order."""
    rows = work.writers[0].sort_by([("gpu", "ascending"), ("ts", "ascending")])
    index = np.arange(len(rows)).reshape(-1, work.seconds)
    return [rows.take(pa.array(index[:, tick])).combine_chunks() for tick in range(ticks)]


def commits(work: Workload, ticks: int, parent: Path | None) -> dict[str, Any]:
    """Part `commits`: engines take turns tick by tick."""
    sweeps = by_tick(work, ticks + 5)
    with scratch(parent) as folder, postgres(folder) as server:
        engines: list[Any] = [Whorl(folder), DuckDB(folder), SQLite(folder), *([server] if server else [])]
        seconds: dict[str, list[float]] = {name: [] for name in ("file", *(engine.name for engine in engines))}
        for engine in engines:
            engine.start_commits(sweeps[0])
        with (folder / "floor").open("wb", buffering=0) as floor:
            for turn, sweep in enumerate(sweeps):
                for engine in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                    rows = engine.encode(sweep)
                    start = time.perf_counter()
                    engine.commit(rows)
                    seconds[engine.name].append(time.perf_counter() - start)
                content = bytes(sum(column.nbytes for column in sweep.columns))
                start = time.perf_counter()
                floor.write(content)
                os.fdatasync(floor.fileno())
                seconds["file"].append(time.perf_counter() - start)
        stored = {engine.name: engine.committed() for engine in engines}
        durability = engines[0].durability
        for engine in engines[:3]:
            engine.close()
    result: dict[str, Any] = {}
    for name, times in seconds.items():
        measured = [1e3 * second for second in times[5:]]  # the first ticks create files and warm caches
        p50, p99 = np.percentile(measured, [50, 99])
        result[name] = {
            "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
            "min_ms": round(min(measured), 3),
            "max_ms": round(max(measured), 3),
            "n": len(measured),
        }
    if server is None:
        result["postgresql"] = "not installed"
    return {
        "what": f"one durable commit of {len(sweeps[0])} rows; `file` is one write and fdatasync of as many bytes",
        "durability": durability,
        "ms": result,
        "every_row_found": all(count == len(sweeps) * len(sweeps[0]) for count in stored.values()),
    }


def ingest(work: Workload, repeats: int, parent: Path | None) -> dict[str, Any]:
    """Part `ingest`: new stores and files each turn, the same Arrow table or its encoding for COPY."""
    seconds: dict[str, list[float]] = {}

    def note(name: str, function: Callable[..., object], *arguments: object, **named: object) -> None:
        start = time.perf_counter()
        function(*arguments, **named)
        seconds.setdefault(name, []).append(time.perf_counter() - start)

    def whorl(folder: Path) -> None:
        store = Whorl(folder)
        note("whorl", store.append, work)
        store.close()

    def duckdb_in(folder: Path, name: str, *, order: bool) -> None:
        plain = DuckDB(folder)
        note(name, plain.load, work, order=order)
        plain.close()

    def postgresql(server: Postgres, payloads: list[bytes]) -> None:
        note("postgresql_without_index", server.load, payloads)
        note("postgresql_with_indexes", server.index)
        seconds["postgresql_with_indexes"][-1] += seconds["postgresql_without_index"][-1]
        server.drop()  # with a checkpoint, so that nothing of it is written while the next engine is timed

    with scratch(parent) as base, postgres(base) as server:
        payloads = [server.encode(rows) for rows in work.writers] if server else []
        loads: list[Callable[[Path], None]] = [
            whorl,
            lambda folder: duckdb_in(folder, "duckdb_sorted", order=True),
            lambda folder: duckdb_in(folder, "duckdb_as_it_came", order=False),
        ]
        if server:
            loads.append(lambda _: postgresql(server, payloads))
        for turn in range(repeats):
            for number, load in enumerate(loads[turn % len(loads) :] + loads[: turn % len(loads)]):
                folder = base / f"{turn}-{number}"
                folder.mkdir()
                load(folder)
                shutil.rmtree(folder)
    rows = work.rows
    rates = {name: [rows / second for second in times] for name, times in seconds.items()}
    return {
        "what": f"{rows} rows of {len(METRICS)} metrics; rows sorted by (gpu, ts) but where a name says otherwise",
        "rows_per_s": {name: summary(values, 1.0, 0) for name, values in rates.items()}
        | ({} if server else {"postgresql": "not installed"}),
    }


def sizes(work: Workload, engines: list[Any], whorl_bytes: dict[str, int]) -> dict[str, Any]:
    """Part `size`, from what the queries run on."""
    samples = work.rows * len(METRICS)
    found = {f"whorl_{name}": total / samples for name, total in whorl_bytes.items()}
    for engine in engines:
        found |= {f"{engine.name}_{name}": total / samples for name, total in engine.bytes().items()}
    return {
        "what": "bytes per sample; `noise`: order-0 entropy of the metrics' differences, a bound for simple coders",
        "noise": round(entropy_bytes(work.writers[0]), 4),
        "bytes_per_sample": {name: round(value, 4) for name, value in found.items()},
    }


def queries(work: Workload, repeats: int, parent: Path | None, questions: Collection[str]) -> dict[str, Any]:
    """Parts `queries` and `size`: everything loaded, then each question by every engine in turn."""
    with scratch(parent) as folder, postgres(folder) as server:
        plain, store = DuckDB(folder), Whorl(folder)
        plain.load(work)
        say("loaded DuckDB")
        whorl_bytes = store.load(work)
        say(f"loaded whorl: {store.state()}")
        if server:
            server.load(server.encode(rows) for rows in work.writers)
            server.index()
            say("loaded PostgreSQL")
        parquet = Files(store.store.files("telemetry"))
        engines: list[Any] = [plain, store, parquet, *([server] if server else [])]
        for engine in engines:
            engine.prepare(work)
        answers: dict[str, Any] = {}
        for question in questions:
            answers[question] = {"meaning": QUESTIONS[question]} | _question(question, engines, work.gpus, repeats)
            say(f"{question}: {json.dumps(answers[question]['ms'])}")
        result = {"size": sizes(work, [plain, *([server] if server else [])], whorl_bytes)}
        if questions:
            result["queries"] = {
                "gpus": len(work.gpus),
                "rows": work.rows,
                "whorl_files": store.state(),
                **answers,
            }
        for engine in (store, plain, parquet):
            engine.close()
    return result


def _question(question: str, engines: list[Any], gpus: list[str], repeats: int) -> dict[str, Any]:
    """Every way of every engine to answer a question, turn by turn; the best way of whorl and of the others."""
    ways = [(engine, way) for engine in engines for way in engine.ways if way[:2] == question]
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    found: dict[str, Any] = {}
    for turn in range(repeats + 2):
        gpu = gpus[(len(gpus) // 3 + 101 * turn) % len(gpus)]
        for engine, way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            name = f"{engine.name}_{way[3:]}".rstrip("_")
            start, began = time.perf_counter(), time.process_time()
            raw = engine.ask(way, gpu)
            if turn > 1:  # the first turns warm caches up
                seconds.setdefault(name, []).append(time.perf_counter() - start)
                cpu.setdefault(name, []).append(time.process_time() - began)
            elif turn == 1:
                found[name] = engine.tidy(way, raw)
            del raw
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    mine = min((name for name in medians if name.startswith("whorl")), key=medians.__getitem__)
    difference = max(answer.difference(found["duckdb"]) for answer in found.values())
    return {
        "ms": {name: summary(seconds[name]) for name in sorted(medians, key=medians.__getitem__)},
        "cpu_ms": {name: summary(cpu[name]) for name in cpu if not name.startswith("postgresql")},
        "best_of_whorl": mine,
        "times_faster_than": {
            other: round(min(v for n, v in medians.items() if n.startswith(other)) / medians[mine], 2)
            for other in ("duckdb", "postgresql")
            if any(name.startswith(other) for name in medians)
        },
        "rows": len(found["duckdb"].values),
        "difference": float(f"{difference:.1e}"),
        "same_answer": difference <= TOLERANCE,
    }


def goals(result: dict[str, Any]) -> dict[str, Any]:
    """What was aimed at beside what was measured; of the queries, how many times faster than each other engine."""
    found: dict[str, Any] = {}
    if "commits" in result:
        found["commit_p50_ms"] = result["commits"]["ms"]["whorl"]["p50_ms"]
    if "ingest" in result:
        found["ingest_rows_per_s"] = result["ingest"]["rows_per_s"]["whorl"]["median"]
    if "size" in result:
        for name in ("10_minutes", "1_hour"):
            found[f"bytes_per_sample_{name}"] = result["size"]["bytes_per_sample"][f"whorl_{name}"]
    reached: dict[str, Any] = {name: {"goal": GOALS[name], "measured": value} for name, value in found.items()}
    for where in (result, result.get("large", {})):
        if "queries" in where:
            asked = [name for name in QUESTIONS if name in where["queries"]]
            per_question = {name: where["queries"][name]["times_faster_than"] for name in asked}
            reached[f"queries_{where['queries']['gpus']}_gpus"] = {"goal": "above 1 each", "measured": per_question}
    return reached


def here(parent: Path | None) -> dict[str, Any]:
    """Where this was measured, and with which versions."""
    return machine("numpy", "polars", "pyarrow", "duckdb") | {
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "file_system": file_system(parent or Path(tempfile.gettempdir())),
        "sqlite": sqlite3.sqlite_version,
        "postgresql": postgres_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=NODE)
    parser.add_argument("--seconds", type=int, default=3600, help="of telemetry at 1 Hz")
    parser.add_argument("--large", action="store_true", help="the queries at 4,000 GPUs too: minutes of loading")
    parser.add_argument("--ticks", type=int, default=400, help="commits of each engine")
    parser.add_argument("--repeats", type=int, default=7, help="of ingest and of each query; with --large half as many")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    given = parser.parse_args()
    if given.seconds < 2400 and ("queries" in given.only or given.large):
        parser.error("the queries look at minutes 30 to 40: give --seconds 2400 or more")
    result: dict[str, Any] = {
        "schema": "whorl.benchmark.store/1",
        "benchmark": "store",
        "machine": here(given.folder),
    }
    work = workload(given.gpus, given.seconds)
    say(f"{work.rows} rows, {len(work.jobs)} jobs")
    if "commits" in given.only:
        result["commits"] = commits(work, min(given.ticks, given.seconds - 5), given.folder)
        say(json.dumps(result["commits"]))
    if "ingest" in given.only:
        result["ingest"] = ingest(work, given.repeats, given.folder)
        say(json.dumps(result["ingest"]))
    if {"size", "queries"} & set(given.only):
        asked = given.questions if "queries" in given.only else ()
        result |= queries(work, given.repeats, given.folder, asked)
    if given.large:
        work = workload(10 * NODE, given.seconds)
        say(f"large: {work.rows} rows, {len(work.jobs)} jobs")
        result["large"] = queries(work, max(3, given.repeats // 2), given.folder, given.questions)
    result["goals"] = goals(result)
    print(as_json(result))


if __name__ == "__main__":
    main()
