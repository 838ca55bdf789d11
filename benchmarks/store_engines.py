"""The engines that `store.py` compares, each driven the way a user of it would: whorl, DuckDB, SQLite.

Every engine loads the same Arrow tables. `ask` is what is timed: the engine's own answer, complete in this process.
`tidy` makes it comparable and is not timed. PostgreSQL is in `store_postgres`.
"""

from __future__ import annotations

import itertools
import sqlite3
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from whorl.benchmarks.store_questions import QUESTIONS, WINDOW, Answer, duckdb_sql, tidy
from whorl.benchmarks.store_workload import BEGAN_NS, METRICS, Workload
from whorl.store import Store
from whorl.store.journal import Journal


class DuckDB:
    """One plain table in a database file, in the order (gpu, ts), which suits its queries best."""

    name = "duckdb"
    ways = ("q1", "q2", "q3", "q3_struct", "q4", "q5", "q5_asof", "q5_near")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plain.duckdb"
        self.connection = duckdb.connect(str(self.path))
        self.connection.execute("SET temp_directory = ''")

    def load(self, work: Workload, *, order: bool = True) -> None:
        """Every writer's rows in one statement, sorted by (gpu, ts) or as they came, then a checkpoint."""
        by = " ORDER BY gpu, ts" if order else ""
        for number, rows in enumerate(work.writers):
            self.connection.register("incoming", rows)
            how = "CREATE TABLE telemetry AS" if number == 0 else "INSERT INTO telemetry"
            self.connection.execute(f"{how} SELECT * FROM incoming{by}")
            self.connection.unregister("incoming")
        self.connection.execute("CHECKPOINT")

    def prepare(self, work: Workload) -> None:
        self.connection.register("incoming", work.jobs)
        self.connection.execute("CREATE TABLE jobs AS SELECT * FROM incoming")
        self.connection.unregister("incoming")

    def start_commits(self, rows: pa.Table) -> None:
        self.connection.register("incoming", rows)
        self.connection.execute("CREATE TABLE ticks AS SELECT * FROM incoming LIMIT 0")
        self.connection.unregister("incoming")

    def encode(self, rows: pa.Table) -> Any:
        return rows

    def commit(self, rows: Any) -> None:
        self.connection.register("tick", rows)
        self.connection.execute("INSERT INTO ticks SELECT * FROM tick")

    def committed(self) -> int:
        ((count,),) = self.connection.execute("SELECT count(*) FROM ticks").fetchall()
        return int(count)

    def bytes(self) -> dict[str, int]:
        order = "SELECT block_size, used_blocks FROM pragma_database_size()"
        ((block, used),) = self.connection.execute(order).fetchall()
        return {"file": self.path.stat().st_size, "used_blocks": block * used}

    def ask(self, way: str, gpu: str) -> pa.Table:
        # Not by `sql`, which prepares every query twice; that `execute` copies the answer counts less, as it is short.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return self.connection.execute(duckdb_sql(way, gpu)).to_arrow_table()

    def tidy(self, way: str, raw: Any) -> Answer:
        return tidy(way[:2], raw)

    def close(self) -> None:
        self.connection.close()


class Whorl:
    """A store. Every question by `Store.sql` and by Polars over `Store.scan`; the store stays open between them."""

    name = "whorl"
    ways = (
        *(f"{question}_sql" for question in (*QUESTIONS, "q3_struct", "q3_latest", "q5_asof", "q5_near")),
        *(f"{question}_polars" for question in QUESTIONS),
    )

    def __init__(self, folder: Path) -> None:
        self.store = Store.create(folder / "store")

    def append(self, work: Workload) -> None:
        """Every writer's rows in one call each."""
        for number, rows in enumerate(work.writers):
            self.store.append({"telemetry": rows}, f"writer-{number}")

    def load(self, work: Workload) -> dict[str, int]:
        """Through a journal a writer, sealed every ten minutes, then compacted: bytes of telemetry after each."""
        for number, rows in enumerate(work.writers):
            slot = (rows["ts"].to_numpy().astype("datetime64[ns]").view(np.int64) - BEGAN_NS) // 600_000_000_000
            edges = np.searchsorted(slot, np.arange(slot[-1] + 2))
            with self._journal(f"writer-{number}") as journal:
                for left, right in itertools.pairwise(edges):
                    journal.append_batch(rows.slice(left, right - left).combine_chunks().to_batches()[0])
                    journal.seal()
        found = {"10_minutes": self._telemetry_bytes()}
        self.compact()
        return found | {"1_hour": self._telemetry_bytes()}

    def _journal(self, name: str) -> Journal:
        return self.store.journal(name, durable_s=0.0, background=False, offline=True)

    def compact(self) -> None:
        self.store.compact(offline=True)

    def _telemetry_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.store.files("telemetry"))

    def state(self) -> str:
        """How many files of telemetry hold how many bytes."""
        return f"{len(self.store.files('telemetry'))} files, {self._telemetry_bytes()} bytes"

    def start_commits(self, rows: pa.Table) -> None:
        assert rows.num_columns
        self.journal = self.store.journal("bench", durable_s=0.0)
        self.durability = str(self.journal.durability)

    def encode(self, rows: pa.Table) -> pa.RecordBatch:
        return rows.to_batches()[0]

    def commit(self, rows: pa.RecordBatch) -> None:
        self.journal.append_batch(rows)

    def committed(self) -> int:
        return int(self.store.sql("SELECT count(*) AS n FROM telemetry")["n"][0].as_py())

    def close(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()

    def prepare(self, work: Workload) -> None:
        """Jobs are runs with a job_id."""
        runs = work.jobs.append_column("run_id", work.jobs["job_id"])
        runs = runs.append_column("cluster", pa.array(["bench"] * len(runs)))
        self.store.append({"runs": runs}, "jobs")

    def ask(self, way: str, gpu: str) -> pa.Table:
        if way.endswith("_polars"):
            return self.store.collect(self._lazy(way.removesuffix("_polars"), gpu)).to_arrow()
        if way == "q3_latest_sql":
            return self.store.sql(f"SELECT gpu, ts, {', '.join(METRICS)} FROM latest")
        query = duckdb_sql(way.removesuffix("_sql"), gpu)
        return self.store.sql(query.replace("jobs j", "runs j"))

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
            wanted = (("power", "power_mw"), ("temperature", "temperature_c"), ("clock", "sm_clock_mhz"))
            means = [pl.col(column).mean().alias(name) for name, column in wanted]
            return frame.filter(pl.col("gpu") == gpu).group_by(minute.alias("minute")).agg(means)
        jobs = self.store.scan("runs").select("job_id", "gpu", "began", "ended")
        counter = frame.select("gpu", "ts", "energy_mj").sort("ts")
        for edge in ("began", "ended"):
            latest = counter.rename({"energy_mj": f"at_{edge}", "ts": edge})
            jobs = jobs.sort(edge).join_asof(latest, on=edge, by="gpu", check_sortedness=False)
        return jobs.select("job_id", energy=pl.col("at_ended") - pl.col("at_began"))

    def tidy(self, way: str, raw: Any) -> Answer:
        return tidy(way[:2], raw)


class Files(DuckDB):
    """DuckDB on the Parquet files of a store, without the store: what the format itself costs."""

    name = "parquet"

    def __init__(self, paths: Iterable[Path]) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET parquet_metadata_cache = true")
        listed = ", ".join(f"'{path}'" for path in paths)
        read = f"SELECT * FROM read_parquet([{listed}], hive_partitioning = false)"
        self.connection.execute(f"CREATE VIEW telemetry AS {read}")


class SQLite:
    """Commits only: write-ahead log, synchronous=FULL, a table without row ids whose key is (gpu, ts)."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "plain.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")

    def start_commits(self, rows: pa.Table) -> None:
        self.connection.execute(
            f"CREATE TABLE ticks ({', '.join(rows.column_names)}, PRIMARY KEY (gpu, ts)) WITHOUT ROWID"
        )
        self.order = f"INSERT INTO ticks VALUES ({', '.join('?' * rows.num_columns)})"

    def encode(self, rows: pa.Table) -> Any:
        stamps = rows["ts"].cast(pa.int64()).to_pylist()
        columns = [rows[name].to_pylist() for name in rows.column_names if name != "ts"]
        return list(zip(stamps, *columns, strict=True))

    def commit(self, rows: Any) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany(self.order, rows)
        self.connection.execute("COMMIT")

    def committed(self) -> int:
        ((count,),) = self.connection.execute("SELECT count(*) FROM ticks").fetchall()
        return int(count)

    def close(self) -> None:
        self.connection.close()
