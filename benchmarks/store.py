"""What the store costs: commits, bytes, questions, windows of telemetry, and how much of it grows with the past.

    python -m benchmarks.store [--only SECTION] [--quick | --long]

commits    one durable commit of a row of every GPU, as a collector does every second: milliseconds, by whorl's journal,
           DuckDB, SQLite, and one write and fdatasync of as many bytes (`file`)
questions  five questions about an hour at 1 Hz of 400 GPUs (--long: 4,000), by `Store.sql` and Polars, beside DuckDB on
           the same files without the store (`parquet`), and on its own table. `bytes_per_sample` (14 a row): sealed
           every ten minutes, compacted, in DuckDB's file; `noise`: order-0 entropy of the metrics' differences
windows    statistics of 400,000 short and of some 20,000 long runs (--long; else a tenth) by the view `run_windows` and
           in parts, beside DuckDB's bare scan of the columns, its figures of each GPU and a person's join
past       `whorl sql` of one GPU's day where the store has 4, 100 and 400 days, process included, beside DuckDB with
           hive partitions on the same files

Engines take turns in one process over connections that are open, or are processes with two threads.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from whorl.benchmarks.harness import BenchOptions, child, in_turns, run, say, scratch, spread, timed
from whorl.benchmarks.readings import BEGAN_NS, METRICS, NODE, Workload, entropy_bytes, make_windows, workload
from whorl.store import Store
from whorl.store.metrics import power_is_trusted

# -- commits ---------------------------------------------------------------------------------------------------------


def commits(options: BenchOptions) -> dict[str, Any]:
    """Ways take turns tick by tick; the first five ticks create files and warm caches."""
    ticks = options.pick(30, 300, 400)
    work = workload(NODE, ticks + 5)
    rows = work.writers[0].sort_by([("gpu", "ascending"), ("ts", "ascending")])
    places = np.arange(len(rows)).reshape(-1, work.seconds)
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
            "sqlite": (lambda sweep: [tuple(row.values()) for row in stamped(sweep)], by_sqlite),
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
    return {"rows_of_a_commit": NODE, "durability": durability, "ms": figures}


def stamped(sweep: pa.Table) -> list[dict[str, Any]]:
    """Rows whose times are whole numbers."""
    at = sweep.column_names.index("ts")
    rows: list[dict[str, Any]] = sweep.set_column(at, "ts", sweep["ts"].cast(pa.int64())).to_pylist()
    return rows


# -- sizes and questions ---------------------------------------------------------------------------------------------


QUESTIONS = {
    "q1": "mean and 95th percentile of power of every GPU over ten minutes in the middle of the hour",
    "q2": "Tukey's fences of 14 metrics of every GPU, quartiles interpolated",
    "q3": "the last row of every GPU",
    "q4": "one-minute means of power, temperature and SM clock of one GPU",
    "q5": "energy of every job: the counter's last value up to its end less that up to its beginning",
}
WINDOW = tuple(str(np.datetime64(BEGAN_NS + 60_000_000_000 * minute, "ns")) for minute in (30, 40))
_EDGES = (
    "edges AS (SELECT job_id, gpu, began AS edge, -1 AS sign FROM jobs j "
    "UNION ALL SELECT job_id, gpu, ended, 1 FROM jobs j)"
)


def duckdb_sql(question: str, gpu: str) -> str:
    """A question in DuckDB's SQL, over tables `telemetry` and `jobs`.

    `q5` and `q5_near` need an energy counter that was not reset; `q5_near` also a row in the ten seconds before
    each edge, and is quick because it joins on equal slots of time.
    """
    return {
        "q1": "SELECT gpu, avg(power_mw) AS mean, quantile_cont(power_mw, 0.95) AS p95 FROM telemetry "
        f"WHERE ts >= '{WINDOW[0]}' AND ts < '{WINDOW[1]}' GROUP BY gpu",
        "q2": "SELECT gpu, " + ", ".join(f"quantile_cont({m}, [0.25, 0.75]) AS {m}" for m in METRICS) + " "
        "FROM telemetry GROUP BY gpu",
        "q3": f"SELECT gpu, max(ts) AS ts, {', '.join(f'arg_max({m}, ts) AS {m}' for m in METRICS)} "
        "FROM telemetry GROUP BY gpu",
        "q3_struct": "SELECT gpu, unnest(max(struct_pack(ts, " + ", ".join(METRICS) + "))) FROM telemetry GROUP BY gpu",
        "q4": "SELECT epoch_ns(ts) // 60000000000 AS minute, avg(power_mw) AS power, "
        "avg(temperature_c) AS temperature, avg(sm_clock_mhz) AS clock FROM telemetry "
        f"WHERE gpu = '{gpu}' GROUP BY minute",
        "q5": "SELECT j.job_id, max(energy_mj) FILTER (ts <= ended) - max(energy_mj) FILTER (ts <= began) AS energy "
        "FROM telemetry t JOIN jobs j USING (gpu) GROUP BY j.job_id",
        "q5_asof": f"WITH {_EDGES} SELECT job_id, sum(sign * energy_mj) AS energy FROM edges e "
        "ASOF JOIN telemetry t ON t.gpu = e.gpu AND t.ts <= e.edge GROUP BY job_id",
        "q5_near": f"WITH {_EDGES}, near AS (SELECT job_id, sign, max(energy_mj) AS energy FROM "
        "(SELECT *, epoch_ns(edge) // 10000000000 - back AS slot FROM edges, range(2) r(back)) e JOIN telemetry t "
        "ON t.gpu = e.gpu AND epoch_ns(t.ts) // 10000000000 = e.slot AND t.ts <= e.edge GROUP BY job_id, sign) "
        "SELECT job_id, sum(sign * energy) AS energy FROM near GROUP BY job_id",
    }[question]


class Answer:
    """Rows in the order of their keys: `keys` are strings, `values` is (rows, columns) of float64."""

    def __init__(self, keys: list[NDArray[Any]], values: list[NDArray[Any]]) -> None:
        order = np.lexsort(keys[::-1])
        self.keys = np.stack([key[order].astype(str) for key in keys])
        self.values = np.stack([np.asarray(value)[order].astype(np.float64) for value in values], axis=1)

    def difference(self, answer_of: Answer) -> float:
        """The largest relative difference; infinite where the keys or the number of rows differ."""
        if self.keys.shape != answer_of.keys.shape or self.values.shape != answer_of.values.shape:
            return float("inf")
        if not (self.keys == answer_of.keys).all():
            return float("inf")
        scale = np.maximum(np.abs(self.values), 1.0)
        return float((np.abs(self.values - answer_of.values) / scale).max())


def tidy(question: str, table: pa.Table) -> Answer:
    """An Arrow answer with the columns of `duckdb_sql`, as comparable numbers."""
    key = {"q4": "minute", "q5": "job_id"}.get(question, "gpu")
    keys = [table[key].to_numpy()]
    values: list[NDArray[Any]] = []
    for name in {"q1": ("mean", "p95"), "q4": ("power", "temperature", "clock"), "q5": ("energy",)}.get(
        question, METRICS
    ):
        if question == "q2":
            pair = np.stack(table[name].to_pylist())
            values += [2.5 * pair[:, 0] - 1.5 * pair[:, 1], 2.5 * pair[:, 1] - 1.5 * pair[:, 0]]
        else:
            values.append(table[name].to_numpy())
    if question == "q3":
        values.append(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy())
    return Answer(keys, values)


class Whorl:
    """A store. Every question by `Store.sql` and by Polars over `Store.scan`."""

    name = "whorl"
    ways = (
        *(f"{question}_sql" for question in (*QUESTIONS, "q5_near")),
        *(f"{question}_polars" for question in QUESTIONS),
    )

    def __init__(self, folder: Path, work: Workload) -> None:
        """Through a journal a writer, sealed every ten minutes; `bytes` has the size then, and after compaction."""
        self.store = Store.create(folder / "store")
        for number, rows in enumerate(work.writers):
            slot = (rows["ts"].to_numpy().astype("datetime64[ns]").view(np.int64) - BEGAN_NS) // 600_000_000_000
            edges = np.searchsorted(slot, np.arange(slot[-1] + 2))
            with self.store.journal(f"w{number}", durable_s=0.0, background=False, offline=True) as journal:
                for start, right in itertools.pairwise(edges):
                    journal.append_batch(rows.slice(start, right - start).combine_chunks().to_batches()[0])
                    journal.seal()
        self.bytes = {"whorl, 10 minutes": self._bytes()}
        self.store.compact(offline=True)
        self.bytes["whorl, compacted"] = self._bytes()
        runs = work.jobs.append_column("run_id", work.jobs["job_id"])
        self.store.append({"runs": runs.append_column("cluster", pa.array(["bench"] * len(runs)))}, "jobs")

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self.store.files("telemetry"))

    def ask(self, form: str, gpu: str) -> pa.Table:
        """The answer to a question."""
        if form.endswith("_polars"):
            return self.store.collect(self._lazy(form.removesuffix("_polars"), gpu)).to_arrow()
        return self.store.sql(duckdb_sql(form.removesuffix("_sql"), gpu).replace("jobs j", "runs j")).table

    def _lazy(self, question: str, gpu: str) -> pl.LazyFrame:
        frame = self.store.scan("telemetry")
        minute = pl.col("ts").dt.epoch("ns") // 60_000_000_000
        if question == "q1":
            first, last = (pl.lit(edge).str.to_datetime(time_unit="us") for edge in WINDOW)
            window = pl.col("ts").is_between(first, last, closed="left")
            power = pl.col("power_mw")
            p95 = power.quantile(0.95, "linear").alias("p95")
            return frame.filter(window).group_by("gpu").agg(power.mean().alias("mean"), p95)
        if question == "q2":
            pairs = [pl.concat_list(pl.col(m).quantile(q, "linear") for q in (0.25, 0.75)).alias(m) for m in METRICS]
            return frame.group_by("gpu").agg(pairs)
        if question == "q3":
            return frame.group_by("gpu").agg(pl.col("ts", *METRICS).get(pl.col("ts").arg_max()))
        if question == "q4":
            metrics = (("power", "power_mw"), ("temperature", "temperature_c"), ("clock", "sm_clock_mhz"))
            means = [pl.col(column).mean().alias(name) for name, column in metrics]
            return frame.filter(pl.col("gpu") == gpu).group_by(minute.alias("minute")).agg(means)
        jobs = self.store.scan("runs").select("job_id", "gpu", "began", "ended")
        counter = frame.select("gpu", "ts", "energy_mj").sort("ts")
        for edge in ("began", "ended"):
            latest = counter.rename({"energy_mj": f"at_{edge}", "ts": edge})
            jobs = jobs.sort(edge).join_asof(latest, on=edge, by="gpu", check_sortedness=False)
        return jobs.select("job_id", energy=pl.col("at_ended") - pl.col("at_began"))


class DuckDB:
    """DuckDB on a table of its own, in the order (gpu, ts), or on the files of a store without the store."""

    ways = ("q1", "q2", "q3", "q3_struct", "q4", "q5", "q5_near")

    def __init__(self, work: Workload, path: Path | None, files: Iterable[Path] = ()) -> None:
        self.name = "duckdb" if path else "parquet"
        self.connection = duckdb.connect(str(path) if path else ":memory:")
        for number, rows in enumerate(work.writers if path else ()):
            self.connection.register("incoming", rows)
            statement = "CREATE TABLE telemetry AS" if number == 0 else "INSERT INTO telemetry"
            self.connection.execute(f"{statement} SELECT * FROM incoming ORDER BY gpu, ts")
        if path is None:
            listed = ", ".join(f"'{file}'" for file in files)
            read = f"SELECT * FROM read_parquet([{listed}], hive_partitioning = false)"
            self.connection.execute(f"CREATE VIEW telemetry AS {read}")
        self.connection.register("incoming", work.jobs)
        self.connection.execute("CREATE TABLE jobs AS SELECT * FROM incoming")
        self.connection.execute("CHECKPOINT")

    def ask(self, form: str, gpu: str) -> pa.Table:
        """The answer to a question."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return self.connection.execute(duckdb_sql(form, gpu)).to_arrow_table()


def questions(options: BenchOptions) -> dict[str, Any]:
    """Each question by every way of every engine, in turns; of each engine the way that takes least CPU."""
    gpus, repeats = options.pick(40, 400, 4000), options.pick(2, 7, 15)
    work = workload(gpus, 3600)
    with scratch() as folder:
        store = Whorl(folder, work)
        engines: list[Any] = [
            store,
            DuckDB(work, None, store.store.files("telemetry")),
            DuckDB(work, folder / "plain.duckdb"),
        ]
        say("loaded")
        table = {question: _question(question, engines, work.gpus, repeats) for question in QUESTIONS}
        samples = work.rows * len(METRICS)
        sizes = store.bytes | {"duckdb": (folder / "plain.duckdb").stat().st_size}
    per_sample = {name: round(size / samples, 3) for name, size in sizes.items()}
    per_sample["noise"] = round(entropy_bytes(work.writers[0]), 3)
    return {"gpus": gpus, "rows": work.rows, "bytes_per_sample": per_sample, "questions": table}


def _question(question: str, engines: list[Any], gpus: list[str], repeats: int) -> dict[str, Any]:
    """Of each engine its best way, the CPU seconds of that, and their ratio to DuckDB's on the same files."""
    turn = itertools.cycle(gpus[:: max(1, len(gpus) // 7)])

    def asking(ask: Callable[[str, str], pa.Table], form: str) -> Callable[[], dict[str, Any]]:
        return lambda: {"cpu_s": timed(partial(ask, form, next(turn)))["cpu_s"]}

    forms = [(engine, form) for engine in engines for form in engine.ways if form[:2] == question]
    answers = {f"{engine.name} {form}": tidy(question, engine.ask(form, gpus[0])) for engine, form in forms}
    contenders = {f"{engine.name} {form}": asking(engine.ask, form) for engine, form in forms}
    table = in_turns(contenders, repeats, against=f"parquet {question}")
    best = {}
    for engine in engines:
        names = [name for name in table if name.startswith(f"{engine.name} ")]
        name = min(names, key=lambda name: table[name]["cpu_s"]["median"])
        best[engine.name] = {"way": name.split()[1], **table[name]}
    reference = answers[f"parquet {question}"]
    difference = max(answer.difference(reference) for answer in answers.values())
    return {"meaning": QUESTIONS[question], **best, "difference": float(f"{difference:.1e}")}


# -- windows ---------------------------------------------------------------------------------------------------------

WATTS = "coalesce(power_instant_mw, power_mw)"


def by_scan(root: str) -> Callable[[], dict[str, Any]]:
    """DuckDB reads the columns of `run_windows` and adds them up."""
    columns = f"count(*), max(cluster), max(gpu), max(ts), sum({WATTS}), sum(sm_clock_mhz), max(temperature_c)"
    query = f"select {columns}, max(energy_mj), count(quality) from read_parquet('{root}/telemetry/**/*.parquet')"
    return lambda: {"rows": (_duckdb().execute(query).fetchone() or (None,))[0]}


def by_gpu(root: str) -> Callable[[], dict[str, Any]]:
    """DuckDB reads these columns and makes the figures of `run_windows` for each GPU, without windows."""
    figures = f"count(*), min(ts), max(ts), sum({WATTS}), quantile_disc({WATTS}, [0.5, 0.95]), sum(sm_clock_mhz)"
    figures += ", max(temperature_c), arg_min(ts, energy_mj), arg_max(ts, energy_mj), count(quality)"
    files = f"read_parquet('{root}/telemetry/**/*.parquet')"
    query = f"select cluster, gpu, {figures} from {files} group by cluster, gpu"
    return lambda: {"gpus": len(_duckdb().execute(query).fetchall())}


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
            store, work = Store.create(folder / "store"), workload(8, 600)
            shift = 86_400 * 10**6
            for day in range(days):
                stamps = work.writers[0]["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() + day * shift
                rows = work.writers[0].set_column(0, "ts", pa.array(stamps, pa.timestamp("us")))
                for part in range(4):
                    store.append({"telemetry": rows.slice(part * len(rows) // 4, len(rows) // 4)}, f"d{day}-{part}")
            condition = f"gpu = '{work.gpus[0]}' and ts >= '2026-01-02' and ts < '2026-01-03'"
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


WINDOWS = {"by_scan": by_scan, "by_gpu": by_gpu, "by_view": by_view, "by_parts": by_parts, "by_join": by_join}
SECTIONS = {"commits": commits, "questions": questions, "windows": windows, "past": past}

if __name__ == "__main__":
    run("store", SECTIONS, WINDOWS)
