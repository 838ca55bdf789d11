"""How long it takes to give the energy of a fleet to its jobs, beside DuckDB's ASOF join. Prints JSON.

    python benchmarks/energy.py > benchmarks/results/energy.json

The stores are made up: 4,000 GPUs for a day, a reading every 24 s (14.4 million rows), and jobs one after another on
each GPU: a million (`many`), or 20,000 (`few`).

From the store to the answer:

whorl        `Attribution` and `add_up`: of each allocation the energy with its interval, idle energy, method, reason;
             beside them idle and unattributed energy, and what is wrong
meters       of it, only reading and integrating, without jobs
asof         DuckDB alone: cumulated energy of each GPU by the trapezoidal rule, two ASOF joins, one for each end of a
             job, and the part of a step in which it lies. The energy of each job, and nothing else
asof_rows    DuckDB alone, as most people write it: each reading ASOF joined to the job that had the GPU, the trapezoids
             added up. A step that a job does not fill is wrong by up to a step

The join alone, with what comes before it made ready and not timed:

over         `Meters.over` of the jobs of all GPUs: energy, bounds, variance and reason of each job
asof_join    the two ASOF joins of `asof`, on a table in memory with the cumulated energy

All read the same files. Each is a process of its own with two threads: wall and CPU seconds (all threads), without
imports, and the largest resident memory of the whole process. `differ` says by how much the energies of `whorl` and
`asof` differ at most, as a part of them, over jobs of 5 minutes or more. On a machine with other work CPU seconds say
more than wall seconds. Nothing is asserted.
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

BEGAN_NS, S, DAY_S = 1_793_577_600_000_000_000, 10**9, 86_400
PART = 400  # GPUs made at a time
LONG_S = 300


def make(root: Path, gpus: int, step_s: int, jobs: int) -> None:
    store = Store.create(root)
    rng = np.random.default_rng(15)
    each = max(1, jobs // gpus)
    seconds = np.arange(0, DAY_S, step_s)
    for number, first in enumerate(range(0, gpus, PART)):
        n = min(PART, gpus - first)
        names = [f"GPU-{first + i:08x}-0000-0000-0000-000000000000" for i in range(n)]
        cuts = np.sort(rng.uniform(0, DAY_S - 1, (n, each - 1)), axis=1) if each > 1 else np.zeros((n, 0))
        edges = np.concatenate([np.zeros((n, 1)), cuts, np.full((n, 1), DAY_S - 1.0)], axis=1)
        starts = edges[:, :-1] + 0.1 * np.diff(edges, axis=1)
        ends = edges[:, 1:]
        level = rng.uniform(120, 300, (n, each))
        watts = np.empty((n, len(seconds)))
        for gpu in range(n):
            at = np.searchsorted(starts[gpu], seconds, "right") - 1
            busy = (at >= 0) & (seconds < ends[gpu][np.maximum(at, 0)])
            watts[gpu] = np.where(busy, level[gpu][np.maximum(at, 0)], 50)
        watts += rng.normal(0, 1, watts.shape)
        columns = {
            "ts": pa.array(np.tile(BEGAN_NS + seconds * S, n), pa.timestamp("ns")),
            "cluster": pa.DictionaryArray.from_arrays(np.zeros(watts.size, np.int32), ["bench"]).cast(pa.string()),
            "gpu": pa.DictionaryArray.from_arrays(np.repeat(np.arange(n, dtype=np.int32), len(seconds)), names).cast(
                pa.string()
            ),
            "power_mw": pa.array(np.rint(1000 * watts).ravel().astype(np.int32)),
            "utilization": pa.array(np.where(watts > 80, 100, 0).ravel().astype(np.int32)),
        }
        ids = [f"{first + gpu}-{job}" for gpu in range(n) for job in range(each)]
        stamps = {name: pa.array(BEGAN_NS + (1e3 * values.ravel()).astype(np.int64) * 10**6, pa.timestamp("ns"))
                  for name, values in (("began", starts), ("ended", ends))}  # fmt: skip
        allocations = {
            "cluster": ["bench"] * len(ids), "allocation": ids, "job_id": ids, "gpu": np.repeat(names, each), **stamps,
            "share": np.ones(len(ids)), "recorded": stamps["ended"],
        }  # fmt: skip
        identities = {"cluster": ["bench"] * n, "gpu": names, "power_limit_mw": pa.array([350_000] * n, pa.int32())}
        store.append(
            {"telemetry": pa.table(columns), "jobs": pa.table(allocations), "gpus": pa.table(identities)},
            f"part-{number}",
        )


Work = Callable[[], Any]
"""What is timed."""


def whorl(store: Store) -> Work:
    import polars as pl

    from whorl.analysis.energy.attribute import Attribution
    from whorl.analysis.energy.books import add_up
    from whorl.analysis.energy.claims import read_claims
    from whorl.analysis.energy.readings import meters_of_many as read

    def added() -> pl.DataFrame:
        books = Attribution(read_claims(store))
        pieces = pl.concat(books.pieces([books.split(read(store))]), rechunk=False)
        return add_up(pieces, ["allocation"]).select("allocation", "energy_j", "duration_s")

    return added


def meters(store: Store) -> Work:
    from whorl.analysis.energy.readings import meters_of_many as read

    return lambda: [float(joules) for some in read(store) for joules in some.energy_j[some.ends - 1]]


def over(store: Store) -> Work:
    from whorl.analysis.energy.claims import read_claims
    from whorl.analysis.energy.readings import meters_of_many as read

    ready, claims = list(read(store)), read_claims(store)

    def joined() -> list[Any]:
        found = []
        for some in ready:
            rows = [claims.of_gpu.get(gpu, range(0)) for gpu in some.gpus]
            of = np.repeat(np.arange(len(some)), [len(own) for own in rows])
            own = np.concatenate([np.arange(one.start, one.stop) for one in rows])
            found.append(some.over(of, claims.began[own], claims.ended[own]))
        return found

    return joined


SUMMED = """
    with read as (
        select gpu, ts, power_mw / 1e3 as w, lead(power_mw) over one / 1e3 as next_w,
            epoch_ns(lead(ts) over one) / 1e9 - epoch_ns(ts) / 1e9 as s from {telemetry}
        window one as (partition by gpu order by ts)
    ) select *, sum((w + next_w) / 2 * s) over (partition by gpu order by ts rows between unbounded preceding and
        current row) - (w + next_w) / 2 * s as e from read where s is not null
"""
_PART = "r{0}.e + s{0} * (r{0}.w + s{0} / r{0}.s * (r{0}.next_w - r{0}.w) / 2)"
JOINED = f"""
    with placed as (
        select j.allocation, (epoch_ns(j.began) - epoch_ns(r1.ts)) / 1e9 as s1,
            least((epoch_ns(j.ended) - epoch_ns(r2.ts)) / 1e9, r2.s) as s2, r1, r2,
            (epoch_ns(j.ended) - epoch_ns(j.began)) / 1e9 as duration_s
        from {{jobs}} j asof join {{summed}} r1 on r1.gpu = j.gpu and r1.ts <= j.began
        asof join {{summed}} r2 on r2.gpu = j.gpu and r2.ts <= j.ended
    ) select allocation, {_PART.format(2)} - ({_PART.format(1)}) as energy_j, duration_s from placed
"""
ROWS = """
    with steps as (
        select gpu, ts, (power_mw + lag(power_mw) over one) / 2e3 * (epoch_ns(ts) - epoch_ns(lag(ts) over one)) / 1e9
                as j
        from {telemetry} window one as (partition by gpu order by ts)
    ) select a.allocation, sum(s.j) as energy_j from steps s asof join {jobs} a on a.gpu = s.gpu and s.ts >= a.began
    where s.ts < a.ended group by a.allocation
"""


def asof(store: Store) -> Work:
    connection, files = _duckdb(store)
    return lambda: _rows(connection, JOINED.format(jobs=files["jobs"], summed=f"({SUMMED.format(**files)})"))


def asof_rows(store: Store) -> Work:
    connection, files = _duckdb(store)
    return lambda: _rows(connection, ROWS.format(**files))


def asof_join(store: Store) -> Work:
    connection, files = _duckdb(store)
    connection.execute(f"create table summed as {SUMMED.format(**files)} order by gpu, ts")
    connection.execute(f"create table jobs as select * from {files['jobs']}")
    return lambda: _rows(connection, JOINED.format(jobs="jobs", summed="summed"))


def _duckdb(store: Store) -> tuple[Any, dict[str, str]]:
    import duckdb

    connection = duckdb.connect()
    connection.execute("set threads = 2")
    names = {"jobs": "jobs/*.parquet", "telemetry": "telemetry/**/*.parquet"}
    files = {name: f"read_parquet('{store.root}/{pattern}', union_by_name => true)" for name, pattern in names.items()}
    return connection, files


def _rows(connection: Any, query: str) -> Any:
    import polars as pl

    return pl.from_arrow(connection.sql(query).to_arrow_table())


CONTENDERS: dict[str, Callable[[Store], Work]] = {
    "whorl": whorl, "meters": meters, "asof": asof, "asof_rows": asof_rows, "over": over, "asof_join": asof_join,
}  # fmt: skip


def one(name: str, root: Path) -> dict[str, Any]:
    import duckdb  # noqa: F401 - not timed
    import polars as pl

    import whorl.analysis.energy.attribute  # noqa: F401

    store = Store.open(root)
    work = CONTENDERS[name](store)
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    took = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    peak = peak_mb()
    if name in ("whorl", "asof"):
        found.filter(pl.col("allocation").is_not_null()).write_parquet(root.parent / f"{root.name}-{name}.parquet")
    return {"what": name, **took, "peak_mb": peak, "rows": len(found)}


def differ(root: Path) -> dict[str, Any]:
    """How far the energies of a job are apart in the two answers."""
    import polars as pl

    two = [pl.read_parquet(root.parent / f"{root.name}-{name}.parquet") for name in ("whorl", "asof")]
    both = two[0].join(two[1], on="allocation").filter(pl.col("duration_s_right") >= LONG_S)
    apart = both.select((pl.col("energy_j") / pl.col("energy_j_right") - 1).abs().alias("part"))["part"]
    return {"jobs": both.height, "median": apart.median(), "most": apart.max()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4000)
    parser.add_argument("--step", type=int, default=24, help="seconds between two readings")
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(one(given.only, given.store)))
        return
    rows: list[dict[str, Any]] = []
    apart: dict[str, Any] = {}
    before = machine("polars", "duckdb", "numpy", "pyarrow")
    for shape, number in {"few": given.few, "many": given.many}.items():
        with tempfile.TemporaryDirectory() as place:
            say(f"making the store: {shape}")
            root = Path(place) / "store"
            make(root, given.gpus, given.step, number)
            for repeat in range(given.repeats):
                for name in CONTENDERS:
                    say(f"{shape}, {name}, {repeat + 1} of {given.repeats}")
                    found = alone(__file__, "--only", name, "--store", str(root), **THREADS)
                    rows.append({"shape": shape, **found})
            apart[shape] = differ(root)
    size = {"gpus": given.gpus, "step_s": given.step, "telemetry_rows": given.gpus * len(range(0, DAY_S, given.step))}
    found = {"benchmark": "energy", "threads": 2, **size, "jobs": {"few": given.few, "many": given.many}}
    print(as_json(found | {"times": times(rows), "differ": apart, "rows": rows, "machine": before}))


def times(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The medians of each, and how many times as long DuckDB's join took as whorl."""
    found: dict[str, dict[str, Any]] = {}
    for shape in dict.fromkeys(row["shape"] for row in rows):
        mine = {
            f"{name}_{what}": statistics.median(
                row[what] for row in rows if (row["shape"], row["what"]) == (shape, name)
            )
            for name in CONTENDERS
            for what in ("wall_s", "cpu_s", "peak_mb")
        }
        pairs = (("asof", "whorl"), ("asof_rows", "whorl"), ("asof_join", "over"))
        faster = {
            f"{slow}_times_{fast}_{what}": round(mine[f"{slow}_{what}"] / mine[f"{fast}_{what}"], 2)
            for slow, fast in pairs
            for what in ("wall_s", "cpu_s")
        }
        found[shape] = mine | faster
    return found


if __name__ == "__main__":
    main()
