"""Many nodes write to one store, and others compact, prune and read it meanwhile. Prints JSON.

    python tests/store/many_writers.py --nodes 1000 --processes 64 --seconds 600

Each process is some nodes, and each node does the steps of `PROGRAM` again and again: bursts of readings, a burst once
more with other values, a job's rows in three tables, `Journal.publish`. Three days of the readings' time pass in a run.
Processes are killed by SIGKILL, whatever they do, and start again; so are the compactor and the pruner. A file
that all of them map into their memory says how many steps each node has begun, how many were acknowledged, and how many
of these another client of DuckDB must see. A step that a kill interrupted is done once more.

Readers ask in every way of `Store`, and DuckDB alone through whorl.duckdb. What they may see follows from what was
acknowledged before they began and begun when they ended: each reading once, with its value; each job whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.errors import StoreError
from whorl.store import Store, replacing
from whorl.store.journal import Journal
from whorl.store.replacing import Pace, TakenError
from whorl.tests.store.journaler import BEGAN, DAY_S, LATER, S

for module in ("polars", "pyarrow.dataset", "whorl.store.compaction", "whorl.store.retention", "whorl.store.sql"):
    import_module(module)  # once, before processes are forked: each would take a second for it

BURST, CORRECTION, JOB, PUBLISH = "bcjp"
PROGRAM = BURST * 2 + PUBLISH + BURST + CORRECTION + BURST * 2 + JOB + BURST * 3
GPUS, READINGS, RESULTS = 2, 4, 3  # of a node, of a GPU in a burst, of a run
BASE_MW, CHANGE_MW = 100_000, 1_000_000
SHORT_WAITS = Pace(0.05, 0.05, 60.0)
END_S = 300.0  # to end all steps, once the time is over
DAYS = 3
_WHOLE = 4  # nodes of a process that do all of their program, however slow the machine is
ROWS = ("begun", "acknowledged", "published", "time of the last burst")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """A run: what is where, how much, and how fast."""

    home: Path
    nodes: int
    processes: int
    seconds: float
    each_s: float
    """Mean seconds from one step of a node to the next."""
    kill_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def root(self) -> Path:
        return self.home / "store"

    def remaining_s(self) -> float:
        return self.began_s + self.seconds - time.monotonic()

    def counts(self) -> Any:
        """By `ROWS` the steps of each node: what one process writes is there for all, also after it was killed."""
        path = self.home / "counts"
        mode = "r+" if path.exists() else "w+"
        return np.memmap(path, np.int64, mode=mode, shape=(len(ROWS), self.nodes))  # type: ignore[call-overload]

    def clock(self) -> int:
        """The clock of all writers, ns."""
        return BEGAN + int((self.seconds - self.remaining_s()) * DAYS * DAY_S * S / self.seconds)

    def say(self, name: str, **fields: Any) -> None:
        """A line of JSON in the log of a process, which a kill does not lose."""
        with (self.home / f"{name}.log").open("a") as out:
            out.write(json.dumps(fields) + "\n")


def count_of(kind: str, steps: Any) -> Any:
    """How many steps of a kind are among the first `steps` of the program."""
    before = np.cumsum([0, *(letter == kind for letter in PROGRAM)])
    return steps // len(PROGRAM) * before[-1] + before[steps % len(PROGRAM)]


# -- writers -----------------------------------------------------------------------------------------------------


class Node:
    """A node: it does the next step of its program, and one that was interrupted once more."""

    def __init__(self, load: Load, store: Store, number: int) -> None:
        self._load, self._store, self._counts, self._number = load, store, load.counts(), number
        self._gpus = [f"GPU-{number * GPUS + gpu:06}" for gpu in range(GPUS)]
        self._again = bool(self._counts[0, number] > self._counts[1, number])
        self.done = int(self._counts[1, number])
        self.journal = Journal(store.root, f"n{number:05}", background=False, clock=load.clock)

    def step(self) -> None:
        """Do the next step. Raises StoreError."""
        kind, again = PROGRAM[self.done % len(PROGRAM)], self._again
        if kind == BURST and not again:  # else the same readings have the same times
            # Before it counts as begun: else a kill in between would give it the times of the burst before.
            before_ns = int(self._counts[3, self._number])
            self._counts[3, self._number] = max(self._load.clock(), before_ns + 60 * S)
        self._counts[0, self._number], self._again = self.done + 1, True
        bursts = int(count_of(BURST, self.done))
        if kind == BURST:
            self._append(bursts, 0)
        elif kind == CORRECTION:
            self._append(bursts - 1, CHANGE_MW)
        elif kind == JOB:
            self._append_job(f"n{self._number}-{count_of(JOB, self.done)}", again=again)
        else:
            began_s = time.monotonic()
            self.journal.publish()
            if self._load.remaining_s() > 0:  # at the end all publish what they have at once
                self._load.say(f"node {self._number}", publish_s=time.monotonic() - began_s)
        self.done += 1
        self._counts[1, self._number], self._again = self.done, False
        if kind == PUBLISH:
            self._counts[2, self._number] = self.done

    def end(self) -> None:
        """Do an interrupted step, and close the journal. Raises StoreError."""
        if self._again:
            self.step()
        self.journal.close()

    def _append(self, burst: int, change_mw: int) -> None:
        times = int(self._counts[3, self._number]) + np.arange(READINGS) * (60 // READINGS) * S
        numbers = burst * READINGS + np.arange(READINGS)
        columns = {"cluster": "c", "energy_mj": np.tile(numbers, GPUS), "power_mw": BASE_MW + change_mw}
        gpus = [gpu for gpu in self._gpus for _ in range(READINGS)]
        self.journal.append(np.tile(times, GPUS).astype("datetime64[ns]"), gpus, columns)

    def _append_job(self, job: str, *, again: bool) -> None:
        rows = {"runs": pa.table({"run_id": [job]}), "events": pa.table({"kind": ["returned"], "job_id": [job]})}
        rows["results"] = pa.table({"run_id": [job] * RESULTS, "value": np.arange(RESULTS) * 1.0})
        with self._store.exclusive() if again else contextlib.nullcontext():  # who looks first appends alone
            if not (again and self._store.sql(f"select 1 from runs where run_id = '{job}'").num_rows):
                self._store.append(rows, job)


def write(load: Load, name: str) -> None:
    """Be a process of nodes, until the time is over and some of them have done all of their program once."""
    store, nodes = Store(load.root), list[Node]()
    for number in range(int(name.split()[1]), load.nodes, load.processes):
        while len(nodes) * load.processes + int(name.split()[1]) <= number:
            try:
                nodes.append(Node(load, store, number))
            except StoreError:  # a compaction may seal what it left
                if load.remaining_s() < -END_S:
                    raise
                time.sleep(0.2)
    while load.remaining_s() > 0 or min(node.done for node in nodes[:_WHOLE]) < len(PROGRAM):
        time.sleep(load.each_s / len(nodes) * random.uniform(0.5, 1.5))
        node = random.choice(nodes) if load.remaining_s() > 0 else min(nodes[:_WHOLE], key=lambda node: node.done)
        try:
            node.step()
        except StoreError as error:
            load.say(name, error=str(error)[:300])
    for node in nodes:
        node.end()


# -- care, and readers --------------------------------------------------------------------------------------------


def care(load: Load, name: str) -> None:
    """Compact or prune again and again, on a store that is opened anew."""
    while load.remaining_s() > 0:
        try:
            store = Store(load.root)
            if name == "compactor":
                done = store.compact(now=LATER)
                load.say(name, care=name, before=done.before, after=done.after, late_rows=done.late_rows)
            else:
                load.say(name, care=name, rows=store.prune("24h", now=load.clock()).rows)
        except TakenError:
            pass
        except StoreError as error:
            load.say(name, error=str(error)[:300])
        time.sleep(max(0.05, min(load.seconds / 48, load.remaining_s())))


HISTORY = """
    with parts as (select gpu, n, energy_mj_first as first, energy_mj_last as last, power_mw_mean as mw
        from history where {readings})
    select split_part(gpu, '-', 2)::bigint as number, sum(n)::bigint as n, sum(n - 1 <> last - first)::bigint as ragged,
        max(last) as last, sum((first + last) * n / 2)::bigint as sum, sum((mw - {base}) * n) as change
    from parts group by gpu"""
"""Of each GPU: its readings, and those in minutes. The energy counter is the number of a reading."""
JOBS = f"""
    with figures as (select run_id, count(*) as n from results group by run_id),
        ends as (select job_id, count(*) as n from events group by job_id)
    select split_part(run_id, '-', 1)[2:]::bigint as number, count(*) as n, count(distinct run_id) as runs,
        count(*) filter (figures.n is distinct from {RESULTS} or ends.n is distinct from 1) as partial
    from runs left join figures using (run_id) left join ends on ends.job_id = run_id group by 1"""
LATEST = (
    "select split_part(gpu, '-', 2)::bigint as number, count(*) as n, max(energy_mj) as last from latest group by 1"
)
COLUMNS = ["gpu", "energy_mj"]
TABLES: dict[str, Callable[[Store], pa.Table]] = {
    "arrow": lambda store: store.arrow("telemetry", COLUMNS),
    "scan": lambda store: store.collect(store.scan("telemetry").select(COLUMNS)).to_arrow(),
    "parts": lambda store: pa.concat_tables(
        [part.arrow(COLUMNS) for part in store.parts("telemetry")] or [store.arrow("telemetry", COLUMNS).slice(0, 0)]
    ),
}
"""Ways to read the whole of a table, of which no row may be there twice."""


class Reader:
    """Asks a store in every way, and judges the answers; `plain`: DuckDB alone, of what was published."""

    def __init__(self, load: Load, *, plain: bool = False) -> None:
        self._load, self._plain, self._counts = load, plain, load.counts()
        self._store = Store(load.root)
        self.names = ("history", "jobs", "latest", *(() if plain else TABLES))

    def wrong(self, name: str) -> list[str]:
        """What is wrong with one answer."""
        least = self._counts[2 if self._plain else 1].copy()
        if name in TABLES:
            counts = Counter(map(tuple, zip(*TABLES[name](self._store).to_pydict().values(), strict=True)))
            return [f"{name}: {row} is there {n} times" for row, n in counts.items() if n > 1]
        upto = np.repeat(count_of(BURST, least) * READINGS, GPUS)
        published = f"energy_mj_last < {upto.tolist()}[split_part(gpu, '-', 2)::bigint + 1]" if self._plain else "true"
        query = {"history": HISTORY.format(readings=published, base=BASE_MW), "jobs": JOBS, "latest": LATEST}[name]
        rows = self._ask(query)
        most = self._counts[0].copy()
        size = self._load.nodes * (1 if name == "jobs" else GPUS)
        columns = {key: np.zeros(size) for key in rows.column_names}
        for key, values in columns.items():
            values[rows["number"].to_numpy()] = rows[key].to_numpy()
        return [f"{name}: {text}" for text in self._judged(name, columns, least, most)]

    def _ask(self, query: str) -> pa.Table:
        if not self._plain:
            return self._store.sql(query).table
        with duckdb.connect(self._load.root / "whorl.duckdb", read_only=True) as connection:
            return connection.sql(query).to_arrow_table()

    def _judged(self, name: str, columns: dict[str, Any], least: Ints, most: Ints) -> list[str]:
        n, wrong = columns["n"], list[str]()

        def outside(kind: str, seen: Any) -> None:
            low, high = count_of(kind, least), count_of(kind, most)
            by_node = seen.reshape(len(low), -1)
            bad = (by_node < low[:, None]) | (by_node > high[:, None])
            wrong.extend(f"node {node}: {by_node[node]} of {kind!r}, not {low[node]} to {high[node]}"
                         for node in np.flatnonzero(bad.any(axis=1)))  # fmt: skip

        if name == "jobs":
            outside(JOB, n)
            partial = (columns["runs"] != n) | (columns["partial"] > 0)
            return wrong + [f"node {node}: a job twice or in part" for node in np.flatnonzero(partial)]
        if name == "latest":
            outside(BURST, np.where(n > 0, columns["last"] + 1, 0) / READINGS)
            return wrong + [f"GPU {gpu} is there {n[gpu]} times" for gpu in np.flatnonzero(n > 1)]
        outside(BURST, n / READINGS)
        outside(CORRECTION, columns["change"] / CHANGE_MW / READINGS)
        once = (columns["ragged"] == 0) & (columns["last"] == np.maximum(n - 1, 0))
        once &= columns["sum"] == n * (n - 1) / 2
        return wrong + [f"GPU {gpu}: {n[gpu]} readings, not each once" for gpu in np.flatnonzero(~once)]


def read(load: Load, name: str) -> None:
    """Be a reader, until the time is over."""
    reader = Reader(load, plain=name.endswith("plain"))
    while load.remaining_s() > 0:
        for asked in reader.names:
            try:
                load.say(name, answer=asked, wrong=reader.wrong(asked)[:5])
            except duckdb.IOException as error:  # a file went after its list was made: documented
                load.say(name, error=str(error)[:300])
        time.sleep(max(0.1, min(load.seconds / 60, load.remaining_s())))


def end(load: Load) -> None:
    """Let every reader read when all is over, before and after a last compaction and pruning; look at all files."""

    def prune(store: Store) -> None:
        load.say("end", care="pruner", rows=store.prune("24h", offline=True, now=BEGAN + 2 * DAY_S * S).rows)

    works: list[Callable[[Store], object]] = [
        lambda store: store.compact(offline=True, now=LATER),
        prune,
        lambda _: None,
    ]
    for work in works:
        for plain in (False, True):
            reader = Reader(load, plain=plain)
            for asked in reader.names:
                load.say("end", answer=asked, wrong=reader.wrong(asked)[:5])
        work(Store(load.root))
    counts = load.counts()
    undone = [f"node {node} has a step undone" for node in np.flatnonzero(counts[0] != counts[1])]
    damaged = [f"{path}: {reason}" for path, reason in Store(load.root).check().items()]
    load.say("end", answer="check", wrong=damaged + undone)


# -- the whole ---------------------------------------------------------------------------------------------------


class WarningLog(logging.Handler):
    """Warnings of whorl, by the text before their values are filled in."""

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(logging.WARNING)
        self._load, self._name = load, name

    def emit(self, record: logging.LogRecord) -> None:
        self._load.say(self._name, warning=str(record.msg), example=record.getMessage()[:300])


def fork(work: Callable[[], object]) -> int:
    """A child that does something and ends with status 0, or 1 where it fails."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def start(load: Load, name: str) -> int:
    role = {"writer": write, "reader": read}.get(name.split()[0], care)

    def work() -> None:
        logging.getLogger().handlers = [WarningLog(load, name)]
        role(load, name)

    return fork(work)


def run(load: Load, *, short_waits: bool) -> dict[str, Any]:
    if short_waits:
        replacing.pace_of = lambda root, *, offline=False: replacing.OFFLINE if offline else SHORT_WAITS
    os.waitpid(fork(lambda: Store.create(load.root)), 0)  # this process must not begin threads, as it forks
    load.counts()
    names = [f"writer {number}" for number in range(load.processes)] + ["compactor", "pruner", "reader"]
    names += [] if short_waits else ["reader plain"]  # a query of DuckDB alone counts on the waits
    running = {start(load, name): name for name in names}
    kills, failures, next_kill_s = Counter[str](), list[str](), load.kill_s
    while running and load.remaining_s() > -END_S:
        time.sleep(0.05)
        if 0 < load.remaining_s() < load.seconds - next_kill_s:
            next_kill_s += load.kill_s
            victim = random.choice([process for process, name in running.items() if not name.startswith("reader")])
            kills[running[victim].split()[0]] += 1
            os.kill(victim, signal.SIGKILL)
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            name = running.pop(process)
            if os.WIFSIGNALED(status):
                running[start(load, name)] = name
            elif status:
                failures.append(f"{name} failed")
    failures += [f"{name} did not end" for name in running.values()]
    for process in running:
        os.kill(process, signal.SIGKILL)
    if os.waitpid(fork(lambda: end(load)), 0)[1]:
        failures.append("the end failed")
    logs = sorted(load.home.glob("*.log"))
    lines = [{"by": path.stem, **json.loads(line)} for path in logs for line in path.read_text().splitlines()]
    steps = load.counts()[1]
    published_s = [line["publish_s"] for line in lines if "publish_s" in line]
    quantiles = dict(zip(("median", "p99", "most"), np.quantile(published_s, [0.5, 0.99, 1.0]).round(3), strict=True))
    return {
        "nodes": load.nodes, "processes": load.processes, "seconds": load.seconds, "kills": dict(kills),
        "steps": {kind: int(count_of(kind, steps).sum()) for kind in (BURST, CORRECTION, JOB, PUBLISH)},
        "publish_s": {"n": len(published_s)} | quantiles,
        "wrong": failures + [f"{line['by']}: {text}" for line in lines for text in line.get("wrong", [])],
        "answers": sum("answer" in line for line in lines),
        "care": [line for line in lines if "care" in line],
        "errors": [line["error"] for line in lines if "error" in line],
        "warnings": {line["warning"]: line["example"] for line in lines if "warning" in line},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--each-s", type=float, default=30, help="mean seconds from one step of a node to the next")
    parser.add_argument("--kill-s", type=float, default=10, help="seconds from one SIGKILL to the next")
    parser.add_argument("--short-waits", action="store_true", help="compaction does not wait for DuckDB alone")
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    options = vars(parser.parse_args())
    home = Path(tempfile.mkdtemp(prefix="whorl-writers-", dir=options.pop("folder")))
    try:
        short_waits = options.pop("short_waits")
        sys.stdout.write(json.dumps(run(Load(home, **options), short_waits=short_waits)) + "\n")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
