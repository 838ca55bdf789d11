"""What readers of a store say after one bit of one file changed, as on a bad disk. Prints JSON.

    python benchmarks/store_damage.py > benchmarks/results/store_damage.json    # 10,000 flips
    python benchmarks/store_damage.py --flips 300 --seed 20261128

A small store is made with rows in every table, telemetry of several days, late rows, minutes of pruned days, and the
journal of a collector that was killed. Of a kind of file, a file and a bit are drawn; the bit is turned, and every
reader reads what the file may hold: `sql`, `scan` with `collect`, `arrow`, and `latest`, in an order that is drawn.

before    the bit is turned before this process first reads the file
after     it is turned after the same `Store` has read the file, which gets another time of change, as by any writer
unseen    the same, but the time of change is put back: nobody can know of it without reading all bytes again

Outcomes: `same` (the answer of the whole store), `named` (the file is named, and the answer is that of the store
without it), `error` (an error of whorl that names the file), `silent` (another answer, and no file is named: wrong),
`too much` (the file is named, and rows of other files are missing or wrong: wrong), `unnamed` (another error, or the
end of the process: wrong). Of a journal, each row may be there or not where it is named: its blocks stand alone.
`whorl.duckdb` is left out: it holds views for other clients, and whorl's readers do not read it. So are empty files.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import whorl
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, spread
from whorl.errors import WhorlError

S, DAY = 10**9, 86_400 * 10**9
BEGAN = 1_700_006_400 * S  # the beginning of a day
ROWS, GPUS = 40, ("a", "b", "c")
MADE = ("late", "latest", "telemetry_minutes")
TELEMETRY = ("telemetry", *MADE, "journal")
CASES = ("before", "after", "unseen")
WRONG = ("silent", "too much", "unnamed")


def value(kind: pa.DataType, number: int) -> Any:
    """Some value of an Arrow type."""
    if pa.types.is_map(kind):
        return [(f"key{n}", value(kind.item_type, number + n)) for n in range(2)]
    if pa.types.is_struct(kind):
        return {field.name: value(field.type, number) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value(kind.value_type, number + n) for n in range(2)]
    if pa.types.is_timestamp(kind):
        return datetime.fromtimestamp(BEGAN // S, UTC).replace(tzinfo=None) + timedelta(seconds=number)
    if pa.types.is_boolean(kind):
        return number % 2 == 0
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return number * 7919 % 100_003 if pa.types.is_integer(kind) else number / 7
    return f"word {number % 50}"


def rows(schema: pa.Schema, numbers: range) -> pa.Table:
    return pa.table([pa.array([value(f.type, n) for n in numbers], f.type) for f in schema], names=schema.names)


def telemetry(schema: pa.Schema, day: int, numbers: range, *, every_s: int = 60, change: int = 0) -> pa.Table:
    """A row of each GPU every minute, or more often; all columns have values."""
    count = len(GPUS) * len(numbers)
    table = rows(schema, range(change, count + change))
    times = [BEGAN + day * DAY + every_s * S * number for number in numbers for _ in GPUS]
    columns: dict[str, list[Any]] = {
        "ts": times,
        "cluster": ["c"] * count,
        "gpu": list(GPUS) * len(numbers),
        "quality": [None] * count,
    }
    for name, values in columns.items():
        at = schema.get_field_index(name)
        kind = schema.field(at).type
        values = [time // 1000 for time in values] if kind == pa.timestamp("us") else values
        table = table.set_column(at, name, pa.array(values, kind))
    return table


def make(root: Path) -> None:
    """A store with a file of every kind; the process that makes it must then die, as a collector that is killed."""
    store = whorl.Store.create(root)
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and folder.name not in (*TELEMETRY, "replaced", "pending"):
            schema = store.arrow(folder.name).schema
            for part in range(2):
                store.append({folder.name: rows(schema, range(part * ROWS, (part + 1) * ROWS))}, f"part{part}")
    schema = store.arrow("telemetry").schema
    for day in range(3):
        for part in range(2):
            readings = telemetry(schema, day, range(part * ROWS, (part + 1) * ROWS), every_s=60 if day else 6)
            store.append({"telemetry": readings}, f"day{day}-{part}")
    store.prune("1d", offline=True, now=BEGAN + 2 * DAY)
    store.compact(offline=True, now=BEGAN + 9 * DAY)
    store.append({"telemetry": telemetry(schema, 2, range(2 * ROWS, 3 * ROWS))}, "evening")
    store.correct(telemetry(schema, 1, range(5, 25), change=7), "correction")
    store.correct(telemetry(schema, 2, range(2 * ROWS, 2 * ROWS + 9), change=9), "another")
    for writer, gpu in (("sealed", "d"), ("open", "e")):
        journal = store.journal(writer, background=False, offline=True)
        for second in range(40):
            columns = {"cluster": "c", "power_mw": [1000 * second, second], "energy_mj": [second**3, 5]}
            journal.append(BEGAN + 2 * DAY + second * S, [gpu, f"{gpu}2"], columns)
        if writer == "sealed":
            journal.seal()


class StoredFiles:
    """The files of a store as they were made, put back after each flip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        self._as_made = {(path, path.stat().st_ino, path.stat().st_mtime_ns) for path in self.content}
        self.kinds: dict[str, list[Path]] = {}
        for path, content in self.content.items():
            if content and path.name != "whorl.duckdb" and path.suffix != ".lock":
                kind = "journal" if path.suffix in (".arrow", ".journal") else path.suffix.removeprefix(".")
                folder = path.relative_to(root).parts[0]
                label = folder if path.suffix == ".parquet" else f"{folder} {kind}" if path.parent != root else folder
                self.kinds.setdefault("no rows" if path.name == "_schema.parquet" else label, []).append(path)

    def put(self, path: Path, content: bytes) -> None:
        """Another file in its place, with a time of change of its own."""
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        now = time.time_ns()
        os.utime(path, ns=(now, now))

    def forget(self, path: Path) -> None:
        """This file is about to be changed, whatever its time of change will be."""
        self._as_made.discard((path, path.stat().st_ino, path.stat().st_mtime_ns))

    def restore_all(self) -> None:
        """Put everything back, whoever may have changed it."""
        self._as_made.clear()
        self.restore()

    def restore(self) -> None:
        """Put everything back that was changed, also what readers did, as repairs."""
        present = {path: path.lstat() for path in self.root.rglob("*") if path.is_file()}
        for path in present.keys() - self.content.keys():
            path.unlink()
        for path, content in self.content.items():
            if path not in present or (path, present[path].st_ino, present[path].st_mtime_ns) not in self._as_made:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.put(path, content)
                self._as_made.add((path, path.stat().st_ino, path.stat().st_mtime_ns))


def listed(table: pa.Table) -> list[str]:
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def read(store: whorl.Store, reader: str, table: str) -> pa.Table:
    if reader == "sql":
        return store.sql(f"select * from {table}").table
    if reader == "scan":
        return store.collect(store.scan(table)).to_arrow()
    if reader == "arrow":
        return store.arrow(table)
    return store.latest().table.drop_columns(["written"])


class ReaderAnswers:
    """What each reader says of each table, of the whole store and of the store without one file."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._known: dict[Any, tuple[pa.Table, collections.Counter[str]]] = {}
        self.tables = {kind for kind in files.kinds if (files.root / kind).is_dir()} - {*MADE, "replaced"}

    def questions(self, kind: str) -> list[tuple[str, str]]:
        """Which tables each reader is asked for after a flip in a file of this kind."""
        folder = kind.split()[0]
        if folder in TELEMETRY:
            tables = ["telemetry", "telemetry_minutes"] if folder == "telemetry_minutes" else ["telemetry"]
        else:
            tables = [folder] if folder in self.tables else ["telemetry", "runs"]
        questions = [(reader, table) for table in tables for reader in ("sql", "scan", "arrow")]
        return [*questions, ("latest", "latest")] if "telemetry" in tables else questions

    def prepare(self, reader: str, table: str) -> None:
        """Read the whole store, while it is whole."""
        self._of(None, reader, table)

    def judge(self, answer: pa.Table, path: Path, reader: str, table: str) -> str:
        """Whether it is the answer of the whole store, or without the file, or of a journal without some blocks."""
        whole, rows = self._of(None, reader, table)
        if answer.equals(whole):
            return "same"
        listing = collections.Counter(listed(answer))
        if listing == rows:
            return "same"
        less = self._of(path, reader, table)[1]
        if path.parent.name != "journal":
            return "named" if listing == less else "too much"
        most, least = rows | less, rows & less
        if reader == "latest":
            columns = answer.column_names
            most |= collections.Counter(listed(self._of(None, "arrow", "telemetry")[0].select(columns)))
            least = collections.Counter()
        return "named" if least <= listing <= most else "too much"

    def _of(self, path: Path | None, reader: str, table: str) -> tuple[pa.Table, collections.Counter[str]]:
        """The answer without a file (None: of the whole store), and its rows."""
        key = (path, reader, table)
        if key not in self._known:
            if path is not None:
                path.unlink()
            answer = read(whorl.Store(self._files.root), reader, table)
            self._known[key] = answer, collections.Counter(listed(answer))
            self._files.restore()
        return self._known[key]


@contextlib.contextmanager
def warnings() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("whorl")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


class BitTrial:
    """Turns bits and says what came of it. One `Store` reads all the time, and for each tenth flip a new one."""

    def __init__(self, files: StoredFiles) -> None:
        self._files, self._answers = files, ReaderAnswers(files)
        files.restore_all()
        self._store: whorl.Store | None = whorl.Store(files.root)

    def run(self, seed: int, number: int) -> dict[str, Any]:
        drawn = random.Random(f"{seed} {number}")
        kind = drawn.choice(sorted(self._files.kinds))
        path = drawn.choice(self._files.kinds[kind])
        bit = drawn.randrange(8 * len(self._files.content[path]))
        questions = self._answers.questions(kind)
        for reader, table in questions:
            self._answers.prepare(reader, table)
        outcomes = []
        for case in CASES if number % 5 == 0 else CASES[:2]:
            drawn.shuffle(questions)
            if case != "before":
                self._ask(*questions[0], path)
            self._turn(case, path, bit)
            opens = case == "before" and (number % 10 == 0 or path.name == "store.toml")
            self._store = self._store if not opens else None
            answers = [self._ask(reader, table, path) for reader, table in questions]
            self._files.restore()
            self._store = self._store or whorl.Store(self._files.root)
            for (reader, table), (answer, text) in zip(questions, answers, strict=True):
                outcome = answer if isinstance(answer, str) else self._answers.judge(answer, path, reader, table)
                outcome = "silent" if outcome in ("named", "too much") and not text else outcome
                counted = {"case": case, "reader": reader, "table": table, "outcome": outcome}
                detail = {"file": str(path.relative_to(self._files.root)), "bit": bit, "text": text}
                outcomes.append(counted | detail if outcome in WRONG and case != "unseen" else counted)
        return {"kind": kind, "outcomes": outcomes}

    def _turn(self, case: str, path: Path, bit: int) -> None:
        changed = bytearray(self._files.content[path])
        changed[bit // 8] ^= 1 << bit % 8
        content = bytes(changed)
        if case == "before":
            self._files.put(path, content)
            return
        times = path.stat()
        self._files.forget(path)
        with path.open("r+b") as file:
            file.write(content)
        changed_ns = times.st_mtime_ns if case == "unseen" else max(time.time_ns(), times.st_mtime_ns + 1)
        os.utime(path, ns=(times.st_atime_ns, changed_ns))

    def _ask(self, reader: str, table: str, path: Path) -> tuple[pa.Table | str, str]:
        """The answer and what names the file, or what kind of error it was, and its text."""
        with warnings() as logged:
            try:
                self._store = self._store or whorl.Store(self._files.root)
                self._store.skipped.clear()
                answer = read(self._store, reader, table)
            except WhorlError as error:
                is_named = path.name in str(error) or path.name == "store.toml"
                return "error" if is_named else "unnamed", str(error)[:300]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also a panic of Polars
                return "unnamed", f"{type(error).__name__}: {error}"[:300]
            return answer, next((line for line in (*logged, *map(str, self._store.skipped)) if path.name in line), "")


def in_child(work: Callable[[int], None]) -> Iterator[str]:
    """The lines that `work` writes to a pipe, in a child that ends without closing anything; its status last."""
    here, present = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(here)
            work(present)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(present)
    with os.fdopen(here) as lines:
        yield from lines
    yield str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def trials(files: StoredFiles, flips: int, seed: int) -> Iterator[dict[str, Any]]:
    """What came of each flip. Where the process dies of one, that is its outcome, and another process goes on."""
    first, status = 0, "1"
    while first < flips:

        def work(out: int, first: int = first) -> None:
            trial = BitTrial(files)
            for number in range(first, min(first + 1000, flips)):
                os.write(out, (json.dumps(trial.run(seed, number)) + "\n").encode())

        for line in in_child(work):
            if line.endswith("\n"):
                first += 1
                yield json.loads(line)
            status = line
        if status != "0":
            first += 1
            yield {
                "kind": "?",
                "outcomes": [{"case": "?", "reader": "?", "outcome": "unnamed", "text": f"died {status}"}],
            }


def warm_query(root: Path, times: int) -> dict[str, Any]:
    """CPU time of a query that is asked again, ms: as it is, and where no file is checked, in turn."""
    query = "select gpu, avg(power_mw), max(ts) from telemetry group by gpu"
    stores = {"checked": whorl.Store(root), "unchecked": whorl.Store(root)}
    stores["unchecked"].verified.reason = lambda *_: None  # type: ignore[method-assign]
    cpu_ms: dict[str, list[float]] = {name: [] for name in stores}
    for _ in range(times):
        for name, store in stores.items():
            began = time.process_time()
            store.sql(query)
            cpu_ms[name].append(1000 * (time.process_time() - began))
    medians = {name: spread(values[5:], 3) for name, values in cpu_ms.items()}
    return {**medians, "ratio": round(medians["checked"]["median"] / medians["unchecked"]["median"], 4), "n": times - 5}


def run(flips: int, seed: int) -> dict[str, Any]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    counts: dict[str, dict[str, int]] = {}
    wrong: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="whorl-damage-", dir=memory) as home:
        root = Path(home) / "store"
        *_, status = in_child(lambda _: make(root))
        assert status == "0"
        files = StoredFiles(root)
        began, done = time.monotonic(), 0
        for done, trial in enumerate(trials(files, flips, seed), 1):
            for outcome in trial["outcomes"]:
                key = f"{outcome['case']} {trial['kind']} {outcome['reader']}"
                counted = counts.setdefault(key, {})
                counted[outcome["outcome"]] = counted.get(outcome["outcome"], 0) + 1
                if "text" in outcome:
                    wrong.setdefault(f"{key} {outcome['outcome']}", outcome)
            if done % 500 == 0:
                say(f"{done} flips in {time.monotonic() - began:.0f} s, {len(wrong)} ways of being wrong")
        files.restore_all()
        warm = warm_query(root, times=min(300, 20 + flips // 10))
    totals = {case: collections.Counter[str]() for case in (*CASES, "?")}
    for key, counted in counts.items():
        totals[key.split()[0]].update(counted)
    sizes = {"flips": done, "seed": seed, "files": sum(map(len, files.kinds.values()))}
    return {**sizes, "totals": totals, "counts": counts, "warm_query_ms": warm, "first_wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    arguments = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    logging.getLogger("whorl").propagate = False
    results = run(arguments.flips, arguments.seed)
    print(as_json({"schema": "whorl/store-damage/1", "machine": machine("pyarrow", "polars", "duckdb"), **results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
