"""A thousand nodes write to one store, and others compact, prune and read it meanwhile. Prints JSON.

    python tests/store/many_writers.py
    python tests/store/many_writers.py --nodes 40 --processes 8 --seconds 60 --each-s 1

Two days pass in ten minutes: in every process `time.time_ns` runs so much faster, and its clock is seconds off.
Each of 64 processes is some 16 nodes, and each node goes through a program (`acknowledged_rows.PROGRAM`): bursts of
readings in its journal, corrections, events, rows of jobs, `Journal.publish`. Every few seconds one process is killed
by SIGKILL, whatever it does, and starts again; so is the compactor, and the pruner.

writers    `Journal.append`, `append_columns`, `publish`, `Store.append`; each waits for the disk as always
compactor  each hour: `Store.compact`
pruner     each hour: `Store.prune("24h")`
readers    `Store.sql`, `arrow`, `scan`, `parts` and `latest` half of the time; and DuckDB alone through whorl.duckdb

Every answer is compared, GPU by GPU, with what was acknowledged before it began and tried when it ended: each reading
once, with its value; each job whole.
"""

from __future__ import annotations

import argparse
import heapq
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
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa

from whorl.benchmarks.harness import as_json, machine, say
from whorl.errors import StoreError
from whorl.store import Store, replacing
from whorl.store.journal import Journal
from whorl.store.replacing import Pace, TakenError
from whorl.tests.store.acknowledged_rows import (
    BURST,
    CHANGE_MW,
    CHECKS,
    CORRECTION,
    EVENT,
    GROUP,
    MINUTES,
    PROGRAM,
    PUBLISH,
    RESULTS,
    TABLES,
    StepBounds,
    StepCounts,
    WriterFleet,
    base_mw,
    count_of,
    wrong_rows,
)  # fmt: skip

for module in (
    "polars", "pyarrow.dataset", "whorl.store.compaction", "whorl.store.retention", "whorl.store.sql",
    "whorl.store.upgrade", "whorl.store.checking", "whorl.store.answer",
):  # fmt: skip
    import_module(module)  # once, before processes are forked: each would take a second for it

S, HOUR, DAY = 10**9, 3600 * 10**9, 86_400 * 10**9
STEPS = {BURST: "append", CORRECTION: "correct", EVENT: "event", GROUP: "group", PUBLISH: "publish"}
READERS = ("whorl 0", "whorl 1", "plain")
SHORT_WAITS = Pace(0.05, 0.05, 60.0)
_RETRIES = 20
END_S = 300.0  # to end all steps, once the time is over
SKEW_S = 5.0


@dataclass(frozen=True)
class WriterLoad:
    """A run: what is where, how much, and how fast."""

    home: Path
    fleet: WriterFleet
    processes: int
    seconds: float
    days: float
    each_s: float
    """Seconds from one step of a node to the next."""
    kill_s: float
    short_waits: bool
    seed: int
    began_s: float = field(default_factory=time.monotonic)
    began_ns: int = field(default_factory=time.time_ns)

    @property
    def root(self) -> Path:
        return self.home / "store"

    @property
    def hour_s(self) -> float:
        """Real seconds of an hour."""
        return self.seconds / self.days / 24

    def clock(self, who: int) -> Callable[[], int]:
        """The clock of a process: it ends a day before now, so that nothing lies ahead; -1 is right."""
        speed = self.days * DAY / self.seconds
        skew_ns = 0 if who < 0 else int(random.Random(f"{self.seed} {who}").uniform(-1, 1) * SKEW_S * S)
        first_ns = self.began_ns - int(self.days * DAY) - DAY + skew_ns

        def now_ns() -> int:
            elapsed_s = time.monotonic() - self.began_s
            beyond_s = max(0.0, elapsed_s - self.seconds)  # what is still to be done has its own time
            return first_ns + int((elapsed_s - beyond_s) * speed + beyond_s * S)

        return now_ns

    def counts(self) -> StepCounts:
        return StepCounts(self.home / "counts", self.fleet.nodes)

    def remaining_s(self) -> float:
        return self.began_s + self.seconds - time.monotonic()


class EventLog:
    """What a process says, a line of JSON each, which a kill does not lose."""

    def __init__(self, load: WriterLoad, name: str) -> None:
        self._handle = os.open(load.home / f"{name.replace(' ', '-')}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **fields: Any) -> None:
        os.write(self._handle, json.dumps(fields).encode() + b"\n")


class WarningLog(logging.Handler):
    """Warnings of whorl, by the text before their values are filled in."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.write(warning=str(record.msg), example=record.getMessage()[:300])


# -- writers -----------------------------------------------------------------------------------------------------


class NodeWriter:
    """A node: it does the next step of its program, and one that was interrupted once more."""

    def __init__(self, load: WriterLoad, store: Store, counts: StepCounts, node: int, clock: Callable[[], int]) -> None:
        self._load, self._store, self._counts, self._node, self._clock = load, store, counts, node, clock
        self._gpus = load.fleet.gpu_names(node)
        self.journal = Journal(store.root, f"n{node:05}", background=False, clock=clock)
        acknowledged, begun = (int(counts.get(name)[node]) for name in ("acknowledged", "begun"))
        self._interrupted = begun > acknowledged
        self.done = acknowledged

    def step(self) -> str:
        """Do the next step; returns its kind. Raises StoreError."""
        kind = PROGRAM[self.done % len(PROGRAM)]
        number = int(count_of(kind, np.array(self.done)))
        bursts = int(count_of(BURST, np.array(self.done)))
        again, self._interrupted = self._interrupted, True
        self._counts.set("begun", self._node, self.done + 1)
        if kind == BURST:
            if not again:  # the same readings have the same times
                self._counts.set("burst_us", self._node, self._burst_us())
            self._append(bursts, 0)
        elif kind == CORRECTION:
            self._append(bursts - 1, 1)
        elif kind == EVENT:
            if not (again and self._has("events", f"kind = 'health' and code = {number} and node")):
                fields: dict[str, list[Any]] = {
                    "ts": [self._clock()],
                    "node": [f"n{self._node}"],
                    "kind": ["health"],
                    "code": [number],
                }
                self.journal.append_columns(fields, "events")
        elif kind == GROUP:
            self._append_job(number, again=again)
        else:
            self.journal.publish()
        self.done += 1
        self._interrupted = False
        self._counts.set("acknowledged", self._node, self.done)
        if kind == PUBLISH:
            self._counts.set("published", self._node, self.done)
        return kind

    def end(self) -> None:
        """Do an interrupted step, and close the journal. Raises StoreError."""
        if self._interrupted:
            self.step()
        self.journal.close()

    def _burst_us(self) -> int:
        """The time of the first reading of a burst, a minute ago, and after the one before."""
        before = int(self._counts.get("burst_us")[self._node])
        return max(self._clock() // 1000 - 60 * 10**6, before + 60 * 10**6)

    def _append(self, burst: int, version: int) -> None:
        each = self._load.fleet.readings
        first_us = int(self._counts.get("burst_us")[self._node])
        times = (first_us + np.arange(each) * (60 * 10**6 // each)) * 1000
        numbers = burst * each + np.arange(each)
        columns = {
            "cluster": "c", "energy_mj": np.tile(numbers, len(self._gpus)),
            "power_mw": np.tile(base_mw(numbers) + CHANGE_MW * version, len(self._gpus)),
            "temperature_c": version, "sm_clock_mhz": 1410,
        }  # fmt: skip
        gpus = [gpu for gpu in self._gpus for _ in range(each)]
        self.journal.append(np.tile(times, len(self._gpus)).astype("datetime64[ns]"), gpus, columns)

    def _has(self, table: str, condition: str) -> bool:
        """Whether a row of this node is stored; `condition` ends in the column of its name."""
        rows = self._store.sql(f"select count(*) as n from {table} where {condition} = 'n{self._node}'")
        return bool(rows["n"][0].as_py())

    def _append_job(self, number: int, *, again: bool) -> None:
        job, gpu = f"n{self._node}-{number}", self._gpus[0]
        began, ended = (pa.array([self._clock() - back * HOUR], pa.timestamp("ns")) for back in (1, 0))
        of_all = {"cluster": ["c"], "gpu": [gpu]}
        rows = {
            "runs": {"run_id": [job], "workload": ["w"], "began": began, "ended": ended, "status": ["ok"], **of_all},
            "results": {"run_id": [job] * RESULTS, "figure": ["time"] * RESULTS, "value": np.arange(RESULTS) * 1.0},
            "events": {"ts": ended, "kind": ["returned"], "job_id": [job], "node": [f"n{self._node}"], **of_all},
            "jobs": {"job_id": [job], "began": began, "ended": ended, "node": [f"n{self._node}"], **of_all},
        }
        tables = {name: pa.table(columns) for name, columns in rows.items()}
        if again:  # it may be stored: who looks first must be the only one to append
            with self._store.exclusive():
                if self._has("runs", f"run_id = '{job}' and 'n{self._node}'"):
                    return
                self._store.append(tables, job)
        else:
            self._store.append(tables, job)


def write(load: WriterLoad, events: EventLog, who: int) -> None:
    """Be a process of nodes, until the time is over and each of them has done all of its program once."""
    clock, counts = load.clock(who), load.counts()
    drawn = random.Random(f"{load.seed} {who} {time.monotonic()}")
    with mock.patch.object(time, "time_ns", clock):
        store = Store(load.root)
        nodes = [
            _opened(load, events, store, counts, node, clock) for node in range(who, load.fleet.nodes, load.processes)
        ]
        queue = [(time.monotonic() + drawn.uniform(0, load.each_s), place) for place in range(len(nodes))]
        paces_s = [load.each_s * drawn.uniform(0.5, 1.5) for _ in nodes]  # else all would publish at the same time
        heapq.heapify(queue)
        while load.remaining_s() > 0 or min(node.done for node in nodes) < len(PROGRAM):
            due_s, place = heapq.heappop(queue)
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                nodes[place].step()
            except StoreError as error:
                events.write(error=type(error).__name__, example=str(error)[:300])
            heapq.heappush(queue, (max(due_s + paces_s[place], time.monotonic()), place))
        for node in nodes:
            node.end()


def _opened(
    load: WriterLoad, events: EventLog, store: Store, counts: StepCounts, node: int, clock: Callable[[], int]
) -> NodeWriter:
    """A node, as soon as nobody else has its name: a compaction may seal what it left."""
    while True:
        try:
            return NodeWriter(load, store, counts, node, clock)
        except StoreError as error:
            if load.remaining_s() < -END_S:
                raise
            events.write(error="start", example=str(error)[:300])
            time.sleep(0.2)


# -- care --------------------------------------------------------------------------------------------------------


def _hourly(load: WriterLoad, events: EventLog, name: str, work: Callable[[Store], dict[str, Any]]) -> None:
    """Do something each hour, on a store that is opened anew, until the time is over."""
    with mock.patch.object(time, "time_ns", load.clock(-1)):
        while load.remaining_s() > 0:
            began_s = time.monotonic()
            try:
                events.write(care=name, **work(Store(load.root)))
            except TakenError:
                events.write(error="TakenError")
            except StoreError as error:
                events.write(error=name, example=str(error)[:300])
            pause_s = began_s + load.hour_s - time.monotonic()
            time.sleep(max(0.05, min(pause_s, load.remaining_s())))


def compact(load: WriterLoad, events: EventLog, _who: int) -> None:
    def work(store: Store) -> dict[str, Any]:
        done = store.compact()
        return {"before": done.before, "after": done.after, "sealed": done.sealed, "late_rows": done.late_rows}

    _hourly(load, events, "compact", work)


def prune(load: WriterLoad, events: EventLog, _who: int) -> None:
    def work(store: Store) -> dict[str, Any]:
        done = store.prune("24h")
        return {"rows": done.rows, "minutes": done.minutes, "waiting": done.waiting}

    _hourly(load, events, "prune", work)


# -- readers -----------------------------------------------------------------------------------------------------


def read(load: WriterLoad, events: EventLog, who: int) -> None:
    """Be a reader: the last one is DuckDB alone."""
    with mock.patch.object(time, "time_ns", load.clock(-1)):
        reader = PlainReader(load) if READERS[who] == "plain" else WhorlReader(load)
        turn = who * 3
        while load.remaining_s() > 0:
            began_s = time.monotonic()
            reader.read(events, [*reader.names][turn % len(reader.names)])
            turn += 1
            time.sleep(max(0.1, min(time.monotonic() - began_s, load.remaining_s())))  # half of the time


class CheckedReader:
    """Asks a store again and again, and judges the answers."""

    names: tuple[str, ...] = tuple(CHECKS)
    plain = False

    def __init__(self, load: WriterLoad) -> None:
        self._load, self._counts, self._store = load, load.counts(), Store(load.root)

    def ask(self, query: str) -> pa.Table:
        raise NotImplementedError

    def bounds(self) -> StepBounds:
        """What a reader that begins now must see at least."""
        least = self._counts.get("acknowledged")
        published = self._counts.get("published") if self.plain else None
        return StepBounds(self._load.fleet, least if published is None else published, least, published)

    def read(self, events: EventLog, name: str) -> list[str]:
        """Read in one way, and return what is wrong with it."""
        bounds = self.bounds()
        retries = 0
        while True:
            try:
                rows = TABLES[name](self._store) if name in TABLES else self.ask(bounds.query(name))
                break
            except Exception as error:
                # Catch every error: which ones a reader meets is what is measured.
                events.write(error=type(error).__name__, reader=name, example=str(error)[:300])
                retries += 1
                if retries == _RETRIES:
                    return [f"{name}: {retries} errors, the last one {error}"]
        bounds = replace(bounds, most=self._counts.get("begun"))
        wrong = wrong_rows(rows, self.ask(MINUTES), bounds) if name in TABLES else bounds.wrong(name, rows)
        events.write(answer=name, wrong=wrong[:5])
        return wrong


class WhorlReader(CheckedReader):
    """Reads as Python programs do, in every way."""

    names = (*CHECKS, *TABLES)

    def ask(self, query: str) -> pa.Table:
        return self._store.sql(query)


class PlainReader(CheckedReader):
    """DuckDB alone, through the views of the store: what was published must be there."""

    plain = True

    def ask(self, query: str) -> pa.Table:
        with duckdb.connect(self._load.root / "whorl.duckdb", read_only=True) as connection:
            return connection.sql(query).to_arrow_table()


# -- the whole ---------------------------------------------------------------------------------------------------

Role = Callable[[WriterLoad, EventLog, int], None]


class Crew:
    """The processes of a run. Some are killed, and start again."""

    def __init__(self, load: WriterLoad) -> None:
        self._load, self._drawn = load, random.Random(load.seed)
        self._roles: dict[str, tuple[Role, int]] = {f"writer {who}": (write, who) for who in range(load.processes)}
        self._roles |= {"compactor": (compact, 0), "pruner": (prune, 0)}
        readers = READERS[:-1] if load.short_waits else READERS  # a query of DuckDB alone counts on the waits
        self._roles |= {f"reader {name}": (read, who) for who, name in enumerate(readers)}
        self._names: dict[int, str] = {}  # by process
        self._again: list[tuple[float, str]] = []
        self.kills: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        load = self._load
        for name in self._roles:
            self._start(name)
        next_kill_s = load.began_s + load.kill_s
        while self._names and load.remaining_s() > -END_S:
            time.sleep(0.1)
            self._reap()
            now_s = time.monotonic()
            if load.remaining_s() > 0 and now_s >= next_kill_s:
                self._kill()
                next_kill_s = now_s + load.kill_s
            for at_s, name in [*self._again]:
                if now_s >= at_s:
                    self._again.remove((at_s, name))
                    self._start(name)
        for process in self._names:
            self.failures.append(f"{self._names[process]} did not end")
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def _start(self, name: str) -> None:
        role, who = self._roles[name]
        process = os.fork()
        if process:
            self._names[process] = name
            return
        status = 1
        try:
            events = EventLog(self._load, name)
            logging.getLogger().handlers = [WarningLog(events)]
            logging.captureWarnings(True)
            role(self._load, events, who)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _kill(self) -> None:
        names = [name for name in self._names.values() if not name.startswith("reader")]
        weights = [self._load.processes / 12 if not name.startswith("writer") else 1.0 for name in names]
        victim = self._drawn.choices(names, weights)[0]
        process = next(process for process, name in self._names.items() if name == victim)
        self.kills[victim.split()[0]] += 1
        os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        while self._names:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            name = self._names.pop(process)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self._again.append((time.monotonic() + self._drawn.uniform(0.2, 3) * min(1, self._load.kill_s), name))
            elif status:
                self.failures.append(f"{name} ended with status {status}")


class LogSummary:
    """What the processes have said."""

    def __init__(self, home: Path) -> None:
        self.wrong: list[str] = []
        self.answers = 0
        self.care: dict[str, Counter[str]] = {"compact": Counter(), "prune": Counter()}
        self.errors, self.warnings, self.examples = Counter[str](), Counter[str](), dict[str, str]()
        for path in sorted(home.glob("*.log")):
            for line in path.read_text().splitlines():
                self._take(path.stem, json.loads(line.replace(str(home), "HOME")))

    def _take(self, process: str, fields: dict[str, Any]) -> None:
        if "answer" in fields:
            self.answers += 1
            self.wrong += [f"{process} {fields['answer']}: {text}" for text in fields["wrong"]]
        elif "care" in fields:
            self.care[fields.pop("care")].update(fields)
        else:
            counts, text = (self.warnings, "warning") if "warning" in fields else (self.errors, "error")
            about = (
                fields["warning"] if text == "warning" else f"{process} {fields.get('reader', '')} {fields['error']}"
            )
            counts[about] += 1
            self.examples.setdefault(about, fields.get("example", ""))


def final(load: WriterLoad) -> None:
    """Let every reader read when all is over, before and after a last compaction, and look at all files."""
    counts, events = load.counts(), EventLog(load, "reader end")
    for _ in ("as it was left", "compacted"):
        for reader in (WhorlReader(load), PlainReader(load)):
            for name in reader.names:
                reader.read(events, name)
        store = Store(load.root)
        store.compact(offline=True)
    damaged = [f"{path}: {reason}" for path, reason in Store(load.root).check().items()]
    undone = (counts.get("begun") != counts.get("acknowledged")).sum()
    damaged += [f"{undone} nodes have not done their last step again"] if undone else []
    events.write(answer="check", wrong=damaged)


def in_child(work: Callable[[], object]) -> None:
    """Do something in another process: this one must not begin threads, as it forks. Raises RuntimeError."""
    process = os.fork()
    if not process:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitpid(process, 0)[1]:
        raise RuntimeError("a process failed")


def run(load: WriterLoad) -> dict[str, Any]:
    if load.short_waits:
        mock.patch.object(
            replacing, "pace_of", lambda _root, *, offline=False: replacing.OFFLINE if offline else SHORT_WAITS
        ).start()
    in_child(lambda: Store.create(load.root))
    load = replace(load, began_s=time.monotonic(), began_ns=time.time_ns())
    load.counts()
    crew = Crew(load)
    crew.run()
    say("all processes ended")
    in_child(lambda: final(load))
    summary = LogSummary(load.home)
    summary.wrong += crew.failures
    steps = load.counts().get("acknowledged")
    return {
        "nodes": load.fleet.nodes, "processes": load.processes, "seconds": load.seconds, "days": load.days,
        "rows": int(count_of(BURST, steps).sum()) * load.fleet.gpus * load.fleet.readings,
        "steps": {STEPS[kind]: int(count_of(kind, steps).sum()) for kind in STEPS},
        "kills": dict(crew.kills), **vars(summary),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of each node")
    parser.add_argument("--readings", type=int, default=60, help="readings of a GPU in a burst of a minute")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--days", type=float, default=2)
    parser.add_argument("--each-s", type=float, default=30, help="mean seconds from one step of a node to the next")
    parser.add_argument("--kill-s", type=float, default=10, help="seconds from one SIGKILL to the next")
    parser.add_argument(
        "--short-waits",
        action="store_true",
        help="compaction does not wait for DuckDB alone, which reads only at the end",
    )
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    parser.add_argument("--keep", action="store_true", help="leave the store and the logs there")
    options = parser.parse_args()
    about = machine("numpy", "pyarrow", "duckdb", "polars")
    home = Path(tempfile.mkdtemp(prefix="whorl-writers-", dir=options.folder))
    try:
        fleet = WriterFleet(options.nodes, options.gpus, options.readings)
        names = ("processes", "seconds", "days", "each_s", "kill_s", "short_waits", "seed")
        load = WriterLoad(home, fleet, **{name: getattr(options, name) for name in names})
        result = {"schema": "whorl.benchmark.many_writers/1", "benchmark": "many_writers", "machine": about}
        sys.stdout.write(as_json(result | run(load)) + "\n")
    finally:
        if options.keep:
            say(f"left in {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
