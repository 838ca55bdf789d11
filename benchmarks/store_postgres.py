"""PostgreSQL for `store.py`: a server of its own, started in a temporary folder on a Unix socket.

It is spoken to through its C library: no Python driver is needed, and none slows it down.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.benchmarks.store_questions import WINDOW, Answer
from whorl.benchmarks.store_workload import METRICS, WIDE, Workload

_POSTGRES_SETTINGS = {
    "shared_buffers": "2GB",
    "work_mem": "256MB",
    "maintenance_work_mem": "1GB",
    "effective_cache_size": "8GB",
    "max_wal_size": "8GB",
    "listen_addresses": "",
}


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest version's; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def postgres_version() -> str:
    """PostgreSQL's version, or that it is not installed."""
    programs = postgres_programs()
    if programs is None:
        return "not installed"
    done = subprocess.run([str(programs / "postgres"), "--version"], check=True, capture_output=True, text=True)
    return done.stdout.split()[2]


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A PostgreSQL server of its own in `folder`; gives the connection string."""
    programs = postgres_programs()
    assert programs is not None
    data = folder / "postgres"
    data.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        names = [entry.pw_name for entry in pwd.getpwall()]
        owner = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(data, owner.pw_uid, owner.pw_gid)
        folder.chmod(0o755)
        user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    common: dict[str, Any] = {"cwd": data, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **user}
    order = [
        str(programs / "initdb"),
        "-D",
        str(data / "base"),
        "-U",
        "bench",
        "-A",
        "trust",
        "--locale=C",
        "-E",
        "UTF8",
    ]
    subprocess.run(order, check=True, **common)
    order = [str(programs / "postgres"), "-D", str(data / "base"), "-k", str(data)]
    order += [word for name, value in _POSTGRES_SETTINGS.items() for word in ("-c", f"{name}={value}")]
    with (data / "log").open("wb") as log, subprocess.Popen(order, stderr=log, **common) as server:
        try:
            yield f"host={data} user=bench dbname=postgres"
        finally:
            server.terminate()


class _Result:
    """An answer of PostgreSQL, complete in this process; freed with the object."""

    def __init__(self, library: Any, handle: int) -> None:
        self.library, self.handle = library, handle

    def rows(self) -> list[list[str]]:
        value = self.library.PQgetvalue
        columns = self.library.PQnfields(self.handle)
        return [
            [value(self.handle, row, column).decode() for column in range(columns)]
            for row in range(self.library.PQntuples(self.handle))
        ]

    def __del__(self) -> None:
        self.library.PQclear(self.handle)


class Postgres:
    """One plain table with the indexes that suit it: unique (gpu, ts), and BRIN (ts). GPUs are of type `uuid`."""

    name = "postgresql"
    ways = ("q1", "q2", "q3", "q4", "q5")

    def __init__(self, where: str) -> None:
        library = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
        for name in ("PQconnectdb", "PQexec", "PQgetResult"):
            getattr(library, name).restype = ctypes.c_void_p
        for name in ("PQerrorMessage", "PQgetvalue"):
            getattr(library, name).restype = ctypes.c_char_p
        for name in ("PQstatus", "PQfinish", "PQerrorMessage", "PQresultStatus", "PQclear", "PQntuples", "PQnfields"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.PQgetResult.argtypes = [ctypes.c_void_p]
        library.PQexec.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.PQgetvalue.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        library.PQputCopyData.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        library.PQputCopyEnd.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.library = library
        for _ in range(200):
            self.handle = library.PQconnectdb(where.encode())
            if library.PQstatus(self.handle) == 0:
                break
            message = library.PQerrorMessage(self.handle).decode()
            library.PQfinish(self.handle)
            time.sleep(0.1)
        else:
            raise SystemExit(f"PostgreSQL does not answer: {message}")

    def _execute(self, order: str) -> _Result:
        handle = self.library.PQexec(self.handle, order.encode())
        if self.library.PQresultStatus(handle) not in (1, 2, 4):  # command, rows, COPY IN
            raise SystemExit(f"PostgreSQL: {self.library.PQerrorMessage(self.handle).decode()}")
        return _Result(self.library, handle)

    def _copy(self, table: str, payload: bytes) -> None:
        self._execute(f"COPY {table} FROM STDIN (FORMAT binary)")
        step = 1 << 20
        for at in range(0, len(payload), step):
            piece = payload[at : at + step]
            self.library.PQputCopyData(self.handle, piece, len(piece))
        self.library.PQputCopyEnd(self.handle, None)
        while handle := self.library.PQgetResult(self.handle):
            status = self.library.PQresultStatus(handle)
            self.library.PQclear(handle)
            if status != 1:
                raise SystemExit(f"PostgreSQL: {self.library.PQerrorMessage(self.handle).decode()}")

    def _create(self, table: str) -> None:
        columns = [f"{name} {'bigint' if name in WIDE else 'integer'}" for name in METRICS]
        self._execute(f"CREATE TABLE {table} (ts timestamp, gpu uuid, {', '.join(columns)})")

    def encode(self, rows: pa.Table) -> bytes:
        """The rows in the format of COPY BINARY; not part of what is timed."""
        kinds: list[tuple[str, str]] = [
            ("fields", ">i2"),
            ("ts#", ">i4"),
            ("ts", ">i8"),
            ("gpu#", ">i4"),
            ("gpu", "V16"),
        ]
        for name in METRICS:
            kinds += [(name + "#", ">i4"), (name, ">i8" if name in WIDE else ">i4")]
        out = np.zeros(len(rows), np.dtype(kinds))
        out["fields"] = 2 + len(METRICS)
        out["ts"] = rows["ts"].to_numpy().astype("datetime64[us]").view(np.int64) - 946_684_800_000_000
        codes = rows["gpu"].combine_chunks().dictionary_encode()
        raw = [bytes.fromhex(name.removeprefix("GPU-").replace("-", "")) for name in codes.dictionary.to_pylist()]
        out["gpu"] = np.array(raw, "V16")[codes.indices.to_numpy()]
        for name, kind in kinds:
            if name.endswith("#"):
                out[name] = out.dtype[name[:-1]].itemsize
            elif name in METRICS:
                out[name] = rows[name].to_numpy()
            assert kind
        return b"PGCOPY\n\xff\r\n\x00" + bytes(8) + out.tobytes() + b"\xff\xff"

    def load(self, payloads: Iterable[bytes]) -> None:
        """Every writer's rows, each with its own durable COPY; no index yet."""
        self._create("telemetry")
        for payload in payloads:
            self._copy("telemetry", payload)

    def index(self) -> None:
        self._execute("CREATE UNIQUE INDEX by_gpu ON telemetry (gpu, ts)")
        self._execute("CREATE INDEX by_time ON telemetry USING brin (ts)")

    def drop(self) -> None:
        self._execute("DROP TABLE telemetry")
        self._execute("CHECKPOINT")

    def prepare(self, work: Workload) -> None:
        self._execute("CREATE TABLE jobs (job_id text, gpu uuid, began timestamp, ended timestamp)")
        us = [work.jobs[name].cast(pa.timestamp("us")).to_pylist() for name in ("began", "ended")]
        rows = zip(work.jobs["job_id"].to_pylist(), work.jobs["gpu"].to_pylist(), *us, strict=True)
        values = ", ".join(f"('{job}', '{gpu[4:]}', '{began}', '{ended}')" for job, gpu, began, ended in rows)
        self._execute(f"INSERT INTO jobs VALUES {values}")
        self._execute("CREATE TABLE gpus AS SELECT DISTINCT gpu FROM jobs")
        for name in ("telemetry", "jobs", "gpus"):
            self._execute(f"VACUUM ANALYZE {name}")

    def start_commits(self, rows: pa.Table) -> None:
        assert rows.num_columns
        self._create("ticks")
        self._execute("CREATE UNIQUE INDEX ticks_by_gpu ON ticks (gpu, ts)")

    def commit(self, payload: bytes) -> None:
        self._copy("ticks", payload)

    def committed(self) -> int:
        return int(self._execute("SELECT count(*) FROM ticks").rows()[0][0])

    def bytes(self) -> dict[str, int]:
        heap, every = self._execute("SELECT pg_table_size('telemetry'), pg_total_relation_size('telemetry')").rows()[0]
        return {"heap": int(heap), "heap_and_indexes": int(every)}

    def ask(self, way: str, gpu: str) -> _Result:
        return self._execute(self.sql(way, gpu))

    def sql(self, way: str, gpu: str) -> str:
        """The five questions in PostgreSQL's SQL."""
        last = "SELECT {} FROM telemetry t WHERE t.gpu = {}.gpu{} ORDER BY ts DESC LIMIT 1"
        return {
            "q1": "SELECT gpu, avg(power_mw)::float8, percentile_cont(0.95) WITHIN GROUP (ORDER BY power_mw) "
            f"FROM telemetry WHERE ts >= '{WINDOW[0]}' AND ts < '{WINDOW[1]}' GROUP BY gpu",
            "q2": "SELECT gpu, "
            + ", ".join(f"percentile_cont(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY {m})" for m in METRICS)
            + " FROM telemetry GROUP BY gpu",
            "q3": f"SELECT g.gpu, l.* FROM gpus g, LATERAL ({last.format('ts, ' + ', '.join(METRICS), 'g', '')}) l",
            "q4": "SELECT date_trunc('minute', ts) AS minute, avg(power_mw)::float8, avg(temperature_c)::float8, "
            f"avg(sm_clock_mhz)::float8 FROM telemetry WHERE gpu = '{gpu[4:]}' GROUP BY minute",
            "q5": "SELECT j.job_id, e.energy_mj - b.energy_mj FROM jobs j, "
            f"LATERAL ({last.format('energy_mj', 'j', ' AND t.ts <= j.began')}) b, "
            f"LATERAL ({last.format('energy_mj', 'j', ' AND t.ts <= j.ended')}) e",
        }[way]

    def tidy(self, way: str, raw: _Result) -> Answer:
        columns: list[NDArray[Any]] = [np.array(column) for column in zip(*raw.rows(), strict=True)]
        keys: list[NDArray[Any]]
        if way == "q4":
            keys, rest = [_ns(columns[0]) // 60_000_000_000], columns[1:]
        elif way == "q5":
            keys, rest = [columns[0]], columns[1:]
        else:
            keys, rest = [np.char.add("GPU-", columns[0])], columns[1:]
        if way == "q2":
            pairs = [np.array([row.strip("{}").split(",") for row in column], np.float64) for column in rest]
            rest = [f for p in pairs for f in (2.5 * p[:, 0] - 1.5 * p[:, 1], 2.5 * p[:, 1] - 1.5 * p[:, 0])]
        elif way == "q3":
            rest = [*rest[1:], _ns(rest[0]) // 1000]
        return Answer(keys, rest)

    def close(self) -> None:
        self.library.PQfinish(self.handle)


def _ns(stamps: NDArray[Any]) -> NDArray[np.int64]:
    return stamps.astype("datetime64[ns]").view(np.int64)
