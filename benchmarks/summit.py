"""What a day of a fleet like Summit costs a store: 4,608 nodes of six GPUs at 1 Hz. Prints JSON, progress on stderr.

    python benchmarks/summit.py --folder WORK > benchmarks/results/summit.json

The whole fleet is simulated for a part of a day, and not a part of it for a day: what may break first at this size is
the number of writers, of files in a folder and of names in a listing, and these are then real. `--minutes 144` is a
tenth of a day. The readings (`summit_fleet`) end at midnight. Times are simulated, so a minute need not take one.

write     each node has the journal of a collector (`Journal`), which takes a sweep of its GPUs each second and is
          sealed every ten minutes, a tenth of the nodes in each minute. Some processes share the nodes. CPU seconds of
          appends, of sealing, of the part of it that holds the lock of the store (`lock`), and of making readings up
          (`generate`, no part of whorl). Nothing is made durable (fsync): that depends on the disk. What a sealing
          knows of names is forgotten before each, as a collector seals in a new process.
crowded   a sealing among 32,260 names of files of the day and 4,608 open journals: as many as Summit has before an hour
          is joined; `note`: what readers and sealings read for a minute after that
child     ten minutes of one more node, sealed as `whorl collect` does: by a child process, start included
compact   twenty minutes after each full hour, and when the day is over; `energy minutes`: the energy of each GPU and
          minute, which `whorl store compact` writes, too; `cold`: the day once more, a week later, in the smallest form
open      questions before a compaction, while all journals are open and no file of the last hours is joined
day       questions when the day is compacted

A question is a process of its own with two threads and 12 GiB of address space: wall and CPU seconds from opening the
store on, imports included, and its largest resident memory. Beside whorl the same by plain DuckDB and by Polars over
the same files (in `open` these do not see what is in journals). `exact`: whether whorl counts every reading once, those
of `child` too.

It may be interrupted: run with the same `--folder` it goes on (`resumed`), with what the journals have. The folder is
left as it is at the end. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from whorl.benchmarks.machine import machine, peak_mb
from whorl.benchmarks.reporting import THREADS, as_json, say
from whorl.benchmarks.summit_fleet import (
    END_NS,
    GPUS,
    MINUTE_S,
    FleetReadings,
    FleetShape,
    gpu_names,
    identities,
    job_rows,
    jobs_of,
    node_name,
)  # fmt: skip
from whorl.store import Store, file_names, notes, snapshot, telemetry_files
from whorl.store.journal import Journal
from whorl.store.system import files as store_files

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SUMMIT_NODES = 4608
SEAL_MINUTES, BLOCK, MINUTE_NS = 10, 32, MINUTE_S * 10**9
SEAL_US = SEAL_MINUTES * MINUTE_S * 10**6
COMPACT_AFTER = 20  # minutes after a full hour
HOUR_MINUTES, WEEK_NS = 60, 8 * 86_400 * 10**9
WATTS = "power_mw / 1000.0"
MOST_BYTES, MOST_S = 12 << 30, 600.0  # address space and wall time of a question


# -- writing ----------------------------------------------------------------------------------------------


@dataclass
class WriterCost:
    """CPU seconds of a writer's process, and what was done in them."""

    rows: int = 0
    seals: int = 0
    append: float = 0.0
    seal: float = 0.0
    lock: float = 0.0
    generate: float = 0.0
    open: float = 0.0

    def add(self, cost: WriterCost) -> None:
        for name, figure in vars(cost).items():
            setattr(self, name, getattr(self, name) + figure)


class NodeJournals:
    """The collectors of some blocks of nodes, in one process."""

    def __init__(self, root: Path, shape: FleetShape, blocks: list[range]) -> None:
        self._root, self._shape, self._now_ns, self.spent = root, shape, shape.began_ns, WriterCost()
        jobs = jobs_of(shape)
        store = Store.open(root)
        stored = {row["gpu"]: row for row in store.latest().to_pylist()}
        store.close()
        self._blocks = {block: FleetReadings(block, shape, jobs, stored) for block in blocks}
        self._upto_s = {}  # of each node, the seconds that are stored
        for node in (node for block in blocks for node in block):
            row = stored.get(gpu_names(node)[-1])
            self._upto_s[node] = 0 if row is None else 1 + self._second(int(row["ts"].timestamp() * 10**6))
        began = time.thread_time()
        self._journals = {node: self._journal(node_name(node)) for node in self._upto_s}
        self.spent.open += time.thread_time() - began

    def _second(self, us: int) -> int:
        return (us - self._shape.began_ns // 1000) // 10**6

    def _journal(self, name: str) -> Journal:
        return Journal(self._root, name, durable_s=86_400.0, background=False, clock=lambda: self._now_ns)

    def write(self, first: int, last: int) -> None:
        """The minutes from `first` up to `last`."""
        for minute in range(first, last):
            for block, readings in self._blocks.items():
                began = time.thread_time()
                for node, sweeps in zip(block, readings.minute(minute), strict=True):
                    self.spent.generate += time.thread_time() - began
                    self._append(node, minute, sweeps)
                    if (minute + 1 - node) % self._shape.seal_minutes == 0:
                        self._seal(self._journals[node].seal)
                    began = time.thread_time()

    def _append(self, node: int, minute: int, sweeps: list[Any]) -> None:
        journal, began = self._journals[node], time.thread_time()
        for sweep in sweeps[max(0, self._upto_s[node] - minute * MINUTE_S) :]:
            self._now_ns = 1000 * sweep.ts[-1] + 2_000_000
            journal.append_ticks(sweep)
            self.spent.rows += len(sweep.ts)
        self.spent.append += time.thread_time() - began

    def _seal(self, seal: Callable[[], None]) -> None:
        file_names.parse.cache_clear()
        began = time.thread_time()
        seal()
        self.spent.seal += time.thread_time() - began
        self.spent.seals += 1

    def close(self) -> None:
        for journal in self._journals.values():
            self._seal(journal.close)


@contextlib.contextmanager
def without_disk(nodes: NodeJournals) -> Iterator[None]:
    """Nothing is made durable, and the time under the lock of the store is counted."""
    placing = telemetry_files.placing

    @contextlib.contextmanager
    def timed(place: Path) -> Iterator[None]:
        with placing(place):
            began = time.thread_time()
            try:
                yield
            finally:
                nodes.spent.lock += time.thread_time() - began

    with (
        mock.patch.object(store_files, "sync"),
        mock.patch.object(store_files, "sync_folder"),
        mock.patch.object(telemetry_files, "placing", timed),
    ):
        yield


def write_nodes(orders: Connection, root: Path, shape: FleetShape, blocks: list[range]) -> None:
    """A process of writers: does what it is sent, and answers with what it spent."""
    nodes = NodeJournals(root, shape, blocks)
    with without_disk(nodes):
        orders.send(nodes.spent)
        while (order := orders.recv()) is not None:
            nodes.spent = WriterCost()
            nodes.close() if order == "close" else nodes.write(*order)
            orders.send(nodes.spent)


class WriterProcesses:
    """Processes that write, each for its share of the nodes."""

    def __init__(self, root: Path, shape: FleetShape, processes: int) -> None:
        blocks = [range(at, min(at + BLOCK, shape.nodes)) for at in range(0, shape.nodes, BLOCK)]
        spawning = multiprocessing.get_context("spawn")
        self._orders: list[Connection] = []
        self._processes = []
        for number in range(processes):
            parent_end, child_end = spawning.Pipe()
            arguments = (child_end, root, shape, blocks[number::processes])
            process = spawning.Process(target=write_nodes, args=arguments, daemon=True)
            process.start()
            child_end.close()
            self._orders.append(parent_end)
            self._processes.append(process)
        self.opened = self._gather()

    def _gather(self) -> WriterCost:
        total = WriterCost()
        for orders in self._orders:
            total.add(orders.recv())
        return total

    def do(self, order: object) -> WriterCost:
        for orders in self._orders:
            orders.send(order)
        return self._gather()

    def end(self) -> None:
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join()


# -- what runs in a process of its own ------------------------------------------------------------------------


def compact(store: Store, now_ns: int) -> dict[str, Any]:
    joined = store.compact(now=now_ns)
    return {"files_before": joined.before, "files_after": joined.after, "unreadable": len(joined.unreadable)}


def minutes(store: Store, now_ns: int) -> dict[str, Any]:
    from whorl.analysis.energy.minutes import write_minutes

    return {"days": write_minutes(store, now_ns=now_ns)}


CHILD = """
import json, resource, sys, time
from pathlib import Path
from whorl.store.journal import Journal
from whorl.store.journal_file import Ticks
sweeps = [Ticks(**sweep) for sweep in json.load(sys.stdin)]
now = [0]
def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
with Journal(Path(sys.argv[1]), "one-more", durable_s=86400.0, clock=lambda: now[0]) as journal:
    for sweep in sweeps:
        sweep.gpus, sweep.names, now[0] = [tuple(gpu) for gpu in sweep.gpus], tuple(sweep.names), 1000 * sweep.ts[-1]
        journal.append_ticks(sweep)
    began = time.perf_counter()
    journal.seal()
    print(json.dumps([children_s(), time.perf_counter() - began]))
"""
"""A collector's process, which has not loaded Arrow."""


def child(store: Store, _now_ns: int) -> dict[str, Any]:
    """Ten minutes of one more node, sealed by a child."""
    readings = FleetReadings(range(1), FleetShape(1, SEAL_MINUTES), [], {})
    sweeps = [asdict(sweep) for minute in range(SEAL_MINUTES) for node in readings.minute(minute) for sweep in node]
    for sweep in sweeps:
        sweep["gpus"] = [(cluster, f"{gpu}-more") for cluster, gpu in sweep["gpus"]]
    command = [sys.executable, "-c", CHILD, str(store.root)]
    completed = subprocess.run(command, input=json.dumps(sweeps), check=True, capture_output=True, text=True)
    cpu_s, wall_s = json.loads(completed.stdout)
    return {"child_cpu_s": round(cpu_s, 3), "child_wall_s": round(wall_s, 3)}


def crowded(store: Store, _now_ns: int) -> dict[str, Any]:
    """Ten minutes of four nodes, sealed among the names of all of Summit before an hour is joined: seven files of each
    node, which are links to one, and open journals of all others."""
    root, shape, rng = (
        store.root.with_name("crowd"),
        FleetShape(8 * SEAL_MINUTES, SEAL_MINUTES),
        np.random.default_rng(0),
    )
    blocks = [range(node, node + 1) for node in range(0, shape.nodes, SEAL_MINUTES)]  # all are sealed at the end
    Store.create(root).close()
    first, second = blocks[:4], blocks[4:]
    alone = NodeJournals(root, shape, first)
    with without_disk(alone):
        alone.write(0, SEAL_MINUTES - 1)
        (journal,) = (root / "journal").glob("n00000-*.journal")
        start_of_journal = journal.read_bytes()[:3000]
        alone.write(SEAL_MINUTES - 1, SEAL_MINUTES)
    (segment,) = (root / "telemetry").glob("day=*/n00000-*.parquet")
    (last,) = (root / "latest").glob("n00000-*.parquet")
    for node in range(100, 100 + SUMMIT_NODES):
        stem, sealed_us = f"{node_name(node)}-{4711 + node}", END_NS // 1000 - int(rng.integers(0, SEAL_US))
        hashes = file_names.hash_text(frozenset(rng.integers(0, 2**16, GPUS).tolist()))
        (root / "journal" / f"{stem}-{sealed_us:x}-8.g{hashes}.journal").write_bytes(start_of_journal)
        (root / "journal" / f"{node_name(node)}.lock").touch()
        for number in range(7):
            ended_us = sealed_us - (7 - number) * SEAL_US
            name = f"{stem}-{ended_us - SEAL_US:x}-{number}.{ended_us:x}.g{hashes}"
            crc = segment.name.rsplit(".", 2)[1]
            os.link(segment, segment.with_name(f"{name}.{ended_us - SEAL_US}_{ended_us - 10**6}.{crc}.parquet"))
        os.link(last, last.with_name(f"{name}.{last.name.rsplit('.', 2)[1]}.parquet"))
    among = NodeJournals(root, shape, second)
    with without_disk(among):
        among.write(0, SEAL_MINUTES)
    names = {folder: len(store_files.names_in(root / folder)) for folder in ("journal", "latest")}
    names |= {"day": len(store_files.names_in(segment.parent))}
    ms = {
        f"{name}_{part}_ms": round(1e3 * getattr(cost, part) / cost.seals, 1)
        for name, cost in (("alone", alone.spent), ("among", among.spent))
        for part in ("seal", "lock")
    }
    shutil.rmtree(root)
    return {"n_seals": among.spent.seals, "names": names, **ms}


def note(store: Store, _now_ns: int) -> dict[str, Any]:
    """The note of the files that a compaction replaces in an hour of Summit: to read it, and to list its paths."""
    root = store.root.with_name("note")
    Store.create(root).close()
    hidden = [
        f"telemetry/day=2026-01-01/{node_name(node)}-{4711 + node}-6475c4034836{number}-{number}.6475c63e870ee"
        f".g{node:024x}.17673114000065{number:02}_1767311999002910.{node:08x}.parquet"
        for node in range(SUMMIT_NODES)
        for number in range(HOUR_MINUTES // SEAL_MINUTES)
    ]
    number = notes.newest(root).number + 1
    notes.add(root, notes.ReplacementNote(number, None, 2, (), dict.fromkeys(hidden, float(END_NS // 10**9))))
    read_s, listed_s = [], []
    for _ in range(5):
        began = time.process_time()
        newest = notes.newest(root)
        read_s.append(time.process_time() - began)
        began = time.process_time()
        assert len(newest.hidden_in(root)) == len(hidden)
        listed_s.append(time.process_time() - began)
    size = notes.path_of(root, number).stat().st_size
    shutil.rmtree(root)
    took = {"read_s": round(statistics.median(read_s), 3), "paths_s": round(statistics.median(listed_s), 3)}
    return {"names": len(hidden), "bytes": size, "n_reads": len(read_s), **took}


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def listing(store: Store, _now_ns: int) -> dict[str, Any]:
    """The names of the largest folder, and what a query for another time pays: names, notes and journals."""
    began = time.process_time()
    names = max((store_files.names_in(folder) for folder in (store.root / "telemetry").glob("day=*")), key=len)
    listed_s, began = time.process_time() - began, time.process_time()
    visible = snapshot.take(store.root, ["telemetry"], store.skip, file_names.Bounds(last_us=END_NS // 2000))
    took = {"names_cpu_s": round(listed_s, 4), "snapshot_cpu_s": round(time.process_time() - began, 4)}
    return {"names": len(names), **took, "files_of_another_time": len(visible.files["telemetry"])}


def status(store: Store, _now_ns: int) -> dict[str, Any]:
    from whorl.store.status import status as look

    state = look(store)
    counted = {table.table: table.rows for table in state.tables}
    return {"rows": counted["telemetry"], "journals": len(state.journals)}


def start(store: Store, _now_ns: int, query: str = "select 1 as n") -> dict[str, Any]:
    """`whorl sql` from start to end."""
    before = children_s()
    command = [sys.executable, "-m", "whorl", "sql", "--store", str(store.root), "--json", query]
    subprocess.run(command, check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return {"child_cpu_s": round(children_s() - before, 3), "child_peak_mb": peak}


def start_telemetry(store: Store, now_ns: int) -> dict[str, Any]:
    return start(store, now_ns, "select gpu from telemetry limit 1")


def parts(store: Store, _now_ns: int) -> dict[str, Any]:
    """The parts that an engine would be given: how many, and the files of the largest."""
    of_table = store.parts("telemetry")
    return {"parts": len(of_table), "largest_files": max(len(part.files) for part in of_table)}


def rows(store: Store, _now_ns: int) -> dict[str, Any]:
    return {"rows": store.sql("select count(*) as n from telemetry").to_pylist()[0]["n"]}


def latest(store: Store, _now_ns: int) -> dict[str, Any]:
    return {"gpus": len(store.latest())}


def energy(store: Store, _now_ns: int) -> dict[str, Any]:
    from whorl.analysis.energy.answers import energy as answer

    of_jobs = [row for row in answer(store, "user").rows.to_dicts() if row["user"]]
    return {"users": len(of_jobs), "sum": sum(row["energy_j"] for row in of_jobs)}


ONE_GPU = gpu_names(0)[0]
SQL = {
    "one_gpu": f"select epoch_us(ts) // 60000000 as minute, avg({WATTS}) as w from telemetry where gpu = '{ONE_GPU}' "
    "group by 1",
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


def by_whorl(question: str) -> Callable[[Store, int], dict[str, Any]]:
    return lambda store, _: summed(store.sql(SQL[question]))


def by_duckdb(question: str) -> Callable[[Store, int], dict[str, Any]]:
    def ask(store: Store, _now_ns: int) -> dict[str, Any]:
        import duckdb

        connection = duckdb.connect()
        connection.execute("set threads = 2")
        for name, pattern in (("telemetry", "telemetry/*/*.parquet"), ("jobs", "jobs/*.parquet")):
            connection.execute(
                f"create view {name} as from read_parquet('{store.root}/{pattern}', hive_partitioning = false)"
            )
        return summed(connection.sql(SQL[question]).to_arrow_table())

    return ask


def by_polars(question: str) -> Callable[[Store, int], dict[str, Any]]:
    def ask(store: Store, _now_ns: int) -> dict[str, Any]:
        import polars as pl

        scan = pl.scan_parquet(f"{store.root}/telemetry/*/*.parquet", hive_partitioning=False, extra_columns="ignore")
        us, watts = pl.col("ts").dt.epoch("us"), pl.col("power_mw") / 1000.0
        frame = {
            "one_gpu": lambda: scan.filter(pl.col("gpu") == ONE_GPU).group_by(us // 60_000_000).agg(w=watts.mean()),
            "hourly": lambda: scan.group_by(us // 3_600_000_000).agg(w=watts.sum(), n=pl.len()),
            "p95": lambda: scan.group_by("gpu", us // 86_400_000_000).agg(w=watts.quantile(0.95, "linear")),
            "latest": lambda: scan.group_by("gpu").agg(
                ts=pl.max("ts"),
                w=pl.col("power_mw").sort_by("ts").last(),
                t=pl.col("temperature_c").sort_by("ts").last(),
                e=pl.col("energy_mj").sort_by("ts").last(),
            ),
        }[question]()
        return summed(frame.collect(engine="streaming").to_arrow())

    return ask


OWN: dict[str, Callable[[Store, int], dict[str, Any]]] = {
    "compact": compact, "minutes": minutes, "child": child, "crowded": crowded, "note": note, "listing": listing,
    "status": status, "start": start, "start_telemetry": start_telemetry, "parts": parts, "rows": rows,
    "latest": latest, "energy": energy,
}  # fmt: skip
CONTENDERS = {
    **OWN, **{name: by_whorl(name) for name in ("one_gpu", "hourly", "p95")},
    **{f"{name} by duckdb": by_duckdb(name) for name in SQL},
    **{f"{name} by polars": by_polars(name) for name in SQL if name != "energy"},
}  # fmt: skip
OPEN = ("listing", "child", "status", "start", "start_telemetry", "one_gpu", "latest", "rows", "hourly", "parts",
        "one_gpu by duckdb", "hourly by duckdb", "one_gpu by polars", "hourly by polars")  # fmt: skip
DAY = tuple(name for name in CONTENDERS if name not in ("compact", "minutes", "child", "crowded", "note"))


def measured_once(name: str, root: Path, now_ns: int) -> dict[str, Any]:
    """What one contender takes."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    wall, cpu = time.perf_counter(), time.process_time()
    answer = CONTENDERS[name](Store.open(root), now_ns)
    took = {"wall_s": round(time.perf_counter() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}
    return {**took, "peak_mb": peak_mb(), **answer}


# -- the day ------------------------------------------------------------------------------------------------


@dataclass
class FleetDay:
    """A run in a folder, and what is done of it, which `progress.json` keeps."""

    folder: Path
    shape: FleetShape
    processes: int
    repeats: int
    chosen: set[str] | None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "store"

    def load(self) -> None:
        path = self.folder / "progress.json"
        if path.exists():
            self.figures = json.loads(path.read_text())
            self.figures["resumed"] = self.figures.get("resumed", 0) + 1

    def keep(self, name: str, figures: Any) -> None:
        self.figures[name] = figures
        temporary = self.folder / "progress.tmp"
        temporary.write_text(json.dumps(self.figures))
        temporary.replace(self.folder / "progress.json")

    def stage(self, name: str, make: Callable[[], Any]) -> None:
        """Do a stage that is not done yet."""
        if name not in self.figures:
            say(name)
            self.keep(name, make())

    def ask(self, name: str, now_ns: int = 0) -> dict[str, Any]:
        command = [sys.executable, __file__, "--only", name, "--folder", str(self.folder), "--now", str(now_ns)]
        most_s = None if name in ("compact", "minutes") else MOST_S
        environment = os.environ | THREADS
        try:
            completed = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment, timeout=most_s
            )
            answer: dict[str, Any] = json.loads(completed.stdout)
        except subprocess.TimeoutExpired:
            answer = {"failed": f"not ready after {MOST_S:g} s"}
        except subprocess.CalledProcessError as error:
            answer = {"failed": (error.stderr.strip() or str(error)).splitlines()[-1][:300]}
        say(f"  {name}: {answer}")
        return answer

    def repeated(self, name: str, repeats: int) -> dict[str, Any]:
        return together([self.ask(name) for _ in range(repeats)])

    def compacted(self, now_ns: int) -> dict[str, Any]:
        return self.ask("compact", now_ns) | self.size()

    def questions(self, state: str, names: tuple[str, ...], repeats: int) -> None:
        """Each question so many times; medians, all times, and the answer."""
        for name in names:
            if self.chosen is None or name.partition(" ")[0] in self.chosen:
                self.stage(f"{state}: {name}", functools.partial(self.repeated, name, repeats))

    def facts(self) -> dict[str, Any]:
        store, jobs = Store.create(self.root), jobs_of(self.shape)
        rows_of_jobs = job_rows(self.shape, jobs)
        began = time.process_time()
        store.append({"gpus": identities(self.shape), "jobs": rows_of_jobs}, "facts")
        ended = len(rows_of_jobs["job_id"].unique())
        cpu_s = round(time.process_time() - began, 2)
        return {"jobs": len(jobs), "ended_jobs": ended, "job_rows": len(rows_of_jobs), "cpu_s": cpu_s}

    def write(self) -> None:
        """All minutes, with a compaction of each hour; the questions of `open` before the last one, or at the end."""
        if "closed" in self.figures:
            return
        writers = WriterProcesses(self.root, self.shape, self.processes)
        opened = self.figures.get("opened", [])
        self.keep("opened", [*opened, rounded(vars(writers.opened))])
        total = self.shape.minutes
        to_midnight = 24 * HOUR_MINUTES - total  # of the day, when readings begin
        compacted = [
            minute
            for minute in range(total)
            if (to_midnight + minute) % HOUR_MINUTES == COMPACT_AFTER and minute > COMPACT_AFTER
        ]
        steps = self.figures.setdefault("steps", [])
        written = steps[-1]["minute"] if steps else 0
        stops = sorted({*range(0, total, SEAL_MINUTES), *compacted, total} - {0})
        for stop in stops:
            if stop > written:
                began = time.perf_counter()
                spent = writers.do((written, stop))
                figures = rounded(vars(spent)) | {"wall_s": round(time.perf_counter() - began, 1)} | self.size()
                steps.append({"minute": stop, **figures})
                self.keep("steps", steps)
                say(f"  minute {stop}: {steps[-1]}")
                written = stop
            if stop == (compacted[-1] if compacted else total):
                self.questions("open", OPEN, 1)
            if stop in compacted:
                now_ns = self.shape.began_ns + stop * MINUTE_NS
                self.stage(f"compact at {stop}", functools.partial(self.compacted, now_ns))
        began = time.perf_counter()
        spent = writers.do("close")
        writers.end()
        self.keep("closed", rounded(vars(spent)) | {"wall_s": round(time.perf_counter() - began, 1)} | self.size())

    def size(self) -> dict[str, int]:
        """Files of telemetry and their bytes, and journals and theirs."""
        counts: dict[str, int] = {}
        for name, folder, ending in (
            ("telemetry", self.root / "telemetry", ".parquet"),
            ("journal", self.root / "journal", ".journal"),
        ):
            paths = [path for path in folder.rglob(f"*{ending}") if not path.name.startswith(("_", "."))]
            counts |= {f"{name}_files": len(paths), f"{name}_bytes": sum(path.stat().st_size for path in paths)}
        return counts

    def disk(self) -> dict[str, Any]:
        """Files and bytes by folder, and of manifests."""
        out: dict[str, Any] = {}
        for folder, _, names in os.walk(self.root):
            top = Path(folder).relative_to(self.root).parts[:1]
            for name in names:
                kind = name if name in ("manifest.json", "verified.log") else top[0] if top else "others"
                entry = out.setdefault(kind, {"files": 0, "bytes": 0})
                entry["files"] += 1
                entry["bytes"] += (Path(folder) / name).stat().st_size
        return out

    def go(self) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.load()
        self.stage("machine", lambda: machine("polars", "duckdb", "numpy", "pyarrow"))
        self.stage("facts", self.facts)
        self.write()
        for name in ("crowded", "note"):
            if self.chosen is None or name in self.chosen:
                self.stage(name, functools.partial(self.repeated, name, 1))
        self.stage("compact day", functools.partial(self.compacted, END_NS + COMPACT_AFTER * MINUTE_NS))
        chosen = self.chosen is None or "energy" in self.chosen
        if chosen:
            self.stage("energy without minutes", functools.partial(self.repeated, "energy", 1))
        self.stage("energy minutes", lambda: self.ask("minutes", END_NS + (HOUR_MINUTES + 5) * MINUTE_NS))
        self.questions("day", DAY, self.repeats)
        self.stage("disk", self.disk)
        self.stage("cold", functools.partial(self.compacted, END_NS + WEEK_NS))
        self.stage("ends with load", lambda: [round(load, 1) for load in os.getloadavg()])
        return self.result()

    def result(self) -> dict[str, Any]:
        """The figures so far, with those that follow from them."""
        figures = dict(self.figures)
        total = WriterCost()
        for step in [*figures.get("steps", []), *([figures["closed"]] if "closed" in figures else [])]:
            total.add(WriterCost(**{name: step[name] for name in vars(total)}))
        written = rounded(vars(total))
        if total.seals:
            written |= {
                f"{name}_us_a_row": round(1e6 * getattr(total, name) / total.rows, 3) for name in ("append", "seal")
            }
            written |= {
                f"{name}_ms_a_seal": round(1e3 * getattr(total, name) / total.seals, 1) for name in ("seal", "lock")
            }
        expected = self.shape.rows + (GPUS * SEAL_MINUTES * MINUTE_S if "open: child" in figures else 0)
        counted = figures.get("day: rows", {}).get("rows")
        return {
            "schema": "whorl.benchmark.summit/1", "benchmark": "summit", "nodes": self.shape.nodes,
            "gpus": self.shape.nodes * GPUS, "simulated_minutes": self.shape.minutes,
            "seal_minutes": self.shape.seal_minutes, "rows": self.shape.rows,
            "share_of_a_summit_day": round(self.shape.rows / (SUMMIT_NODES * GPUS * 86_400), 6),
            "processes": self.processes, "durable": "no fsync", "complete": "cold" in figures,
            "exact": None if counted is None else counted == expected, "written": written, **figures,
        }  # fmt: skip


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 2) for name, figure in figures.items()}


def together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The last answer with medians of what it took, n, and all CPU times."""
    measured = ("wall_s", "cpu_s", "peak_mb", "child_cpu_s", "child_wall_s", "child_peak_mb")
    good = [answer for answer in answers if "failed" not in answer]
    if not good:
        return {**answers[-1], "n": 0}
    middle = {name: statistics.median(answer[name] for answer in good) for name in measured if name in good[0]}
    return {**good[-1], **middle, "n": len(good), "cpu_s_all": [answer["cpu_s"] for answer in good]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where to work, and to go on")
    parser.add_argument("--nodes", type=int, default=SUMMIT_NODES)
    parser.add_argument("--minutes", type=int, default=144, help="of the day that are simulated, its last ones")
    parser.add_argument("--seal-minutes", type=int, default=SEAL_MINUTES, help="from one sealing of a node to the next")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of the questions of `day`")
    parser.add_argument("--questions", nargs="*", help="only these")
    parser.add_argument(
        "--so-far", action="store_true", help="run nothing: print what a run in this folder has measured"
    )
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--now", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured_once(options.only, options.folder / "store", options.now)))
        return
    chosen = None if options.questions is None else set(options.questions)
    run = FleetDay(
        options.folder,
        FleetShape(options.nodes, options.minutes, options.seal_minutes),
        options.processes,
        options.repeats,
        chosen,
    )
    if options.so_far:
        run.load()
    print(as_json(run.result() if options.so_far else run.go()))


if __name__ == "__main__":
    main()
