"""What readers of a store say after bits of its files changed, or files were cut, as on a bad disk. Prints JSON.

    python tests/store/flipped_bits.py    # 10,000 flips
    python tests/store/flipped_bits.py --flips 300 --seed 20261128

A small store is made with rows in every table, telemetry of several days, late rows, minutes of pruned days, and the
journal of a collector that was killed. A trial turns one bit in each of some files that are read together: those of a
table, or of telemetry with all that belongs to it; each tenth file is cut instead. Every reader then reads all rows and
columns: `sql`, `scan` with `collect`, `arrow`, and `latest`, in an order that is drawn. Right is only the answer of the
store without exactly the files that the reader names: one silent file among damaged ones shows. Where an answer is
wrong or an error, each bit is tried alone.

before    the bit is turned before this process first reads the file
after     it is turned after the same `Store` has read the file, which gets another time of change, as by any writer
unseen    the same, but the time of change is put back: nobody can know of it without reading all bytes again (each
          tenth trial, which turns one bit)

Outcomes: `named` (the file is named and left out), `same` (it is not named, and the answer is as with the whole file),
`error` (an error of whorl that names the file), `silent` (not named, and another answer: wrong), `too much` (named, and
rows of other files are missing or wrong: wrong), `unnamed` (another error, or the end of the process: wrong). Of a
journal that is named, or was cut, each row may be there or not: its blocks stand alone, and a kill may cut the last.
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
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import whorl
from whorl.benchmarks.harness import as_json, machine, say
from whorl.errors import WhorlError
from whorl.store.schema import arrow_schema

S, DAY = 10**9, 86_400 * 10**9
BEGAN = 1_700_006_400 * S  # the beginning of a day
ROWS = 8
GPUS = tuple(f"gpu{number}" for number in range(17))  # more than the names of files tell: manifests are read
SHARED = (
    "telemetry", "late", "latest", "telemetry_minutes", "energy_minutes", "energy_days", "journal", "replaced",
    "pending",
)  # fmt: skip
"""The folders of telemetry: what a reader says of it depends on all of them."""
PARTS = 6  # files of the other tables
MOST_FILES = 16  # of which bits are turned at the same time
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
    columns = {kind: pa.array([value(kind, n) for n in numbers], kind) for kind in {field.type for field in schema}}
    return pa.table([columns[field.type] for field in schema], names=schema.names)


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
        if folder.is_dir() and folder.name not in SHARED:
            schema = store.arrow(folder.name).schema
            for part in range(PARTS):
                store.append({folder.name: rows(schema, range(part * 10, part * 10 + 10))}, f"part{part}")
    schema = store.arrow("telemetry").schema
    for part in range(2):
        numbers = range(part * ROWS, (part + 1) * ROWS)
        days = [telemetry(schema, day, numbers, every_s=60 if day else 6) for day in range(3)]
        store.append({"telemetry": pa.concat_tables(days)}, f"days-{part}")
    store.prune("1d", offline=True, now=BEGAN + 2 * DAY)
    store.compact(offline=True, now=BEGAN + 9 * DAY)
    store.append({"telemetry": telemetry(schema, 2, range(2 * ROWS, 3 * ROWS))}, "evening")
    store.correct(telemetry(schema, 1, range(2, 10), change=7), "correction")
    store.correct(telemetry(schema, 2, range(2 * ROWS, 2 * ROWS + 3), change=9), "another")
    for writer, gpu in (("sealed", "d"), ("open", "e")):
        journal = store.journal(writer, background=False, offline=True)
        for second in range(40):
            columns = {"cluster": "c", "power_mw": [1000 * second, second], "energy_mj": [second**3, 5]}
            journal.append(BEGAN + 2 * DAY + second * S, [gpu, f"{gpu}2"], columns)
        if writer == "sealed":
            journal.seal()


class StoredFiles:
    """The files of a store as they were made, put back after each trial; in groups that are tried together."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        self._as_made = {(str(path), path.stat().st_ino, path.stat().st_mtime_ns) for path in self.content}
        self.groups: dict[str, list[Path]] = {}
        for path, content in self.content.items():
            if content and path.name != "whorl.duckdb" and path.suffix != ".lock":
                folder = path.relative_to(root).parts[0]
                group = "telemetry" if folder in SHARED or folder == "verified.log" else folder
                self.groups.setdefault("no rows" if path.name == "_schema.parquet" else group, []).append(path)

    def kind(self, path: Path) -> str:
        """What a file is counted as: its table, or what else it is."""
        folder = path.relative_to(self.root).parts[0]
        return "no rows" if path.name == "_schema.parquet" else f"{folder} json" if path.suffix == ".json" else folder

    def put(self, path: Path, content: bytes) -> None:
        """Another file in its place, with a time of change of its own."""
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        now = time.time_ns()
        os.utime(path, ns=(now, now))

    def forget(self, path: Path) -> None:
        """This file is about to be changed, whatever its time of change will be."""
        self._as_made.discard((str(path), path.stat().st_ino, path.stat().st_mtime_ns))

    def restore_all(self) -> None:
        """Put everything back, whoever may have changed it."""
        self._as_made.clear()
        self.restore()

    def restore(self) -> None:
        """Put everything back that was changed, also what readers did, as repairs."""
        present: dict[str, os.stat_result] = {}
        for folder, _, names in os.walk(self.root):
            present |= {path: os.lstat(path) for path in (f"{folder}/{name}" for name in names)}
        for stray in present.keys() - set(map(str, self.content)):
            Path(stray).unlink()
        for path, content in self.content.items():
            status = present.get(str(path))
            if status is None or (str(path), status.st_ino, status.st_mtime_ns) not in self._as_made:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.put(path, content)
                self._as_made.add((str(path), path.stat().st_ino, path.stat().st_mtime_ns))

    @contextlib.contextmanager
    def without(self, paths: Iterable[Path]) -> Iterator[None]:
        """Meanwhile these files are elsewhere."""
        places = {path: self.root.with_name(f"aside-{number}") for number, path in enumerate(paths)}
        for path, place in places.items():
            path.rename(place)
        try:
            yield
        finally:
            for path, place in places.items():
                place.rename(path)


def listed(table: pa.Table) -> list[str]:
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def read(store: whorl.Store, reader: str, table: str) -> pa.Table:
    """All rows and columns of a table as a reader gives them, in the types of the table."""
    if reader == "sql":
        answer = store.sql(f"select * from {table}").table
    elif reader == "one gpu":  # which looks into manifests
        answer = store.sql(f"select * from {table} where gpu = '{GPUS[0]}'").table
    elif reader == "scan":
        answer = store.collect(store.scan(table)).to_arrow()
    elif reader == "arrow":
        answer = store.arrow(table)
    else:
        answer = store.latest().table
    names = [name for name in arrow_schema(table).names if name != "written"]
    return answer.select(names).cast(pa.schema([arrow_schema(table).field(name) for name in names]))


class StoreWithout:
    """What a whole store holds, and what it holds without some of its files."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._tables: dict[tuple[frozenset[Path], str], pa.Table] = {}

    def rows(self, paths: frozenset[Path], table: str) -> pa.Table:
        """A table of the store without these files. Everything must be as it was made."""
        if (paths, table) not in self._tables:
            with self._files.without(paths):
                reader = "latest" if table == "latest" else "arrow"
                self._tables[paths, table] = read(whorl.Store(self._files.root), reader, table)
        return self._tables[paths, table]

    def is_answer(self, answer: pa.Table, named: frozenset[Path], reader: str, table: str) -> bool:
        """Whether it is the answer of the store without the files that were named; of a journal, without some rows."""

        def expected(paths: frozenset[Path], name: str = table) -> pa.Table:
            all_rows = self.rows(paths, name)
            return all_rows if reader != "one gpu" else all_rows.filter(pc.equal(all_rows["gpu"], GPUS[0]))

        less = expected(named)
        if answer.equals(less):
            return True
        listing, least = collections.Counter(listed(answer)), collections.Counter(listed(less))
        journals = {path for path in named if path.suffix == ".journal"}
        if listing == least or not journals:
            return listing == least
        more = collections.Counter(listed(expected(named - journals)))
        least, most = more & least, more | least
        if reader == "latest":
            most |= collections.Counter(listed(expected(named - journals, "telemetry").select(answer.column_names)))
            least.clear()
        return least <= listing <= most


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


Bits = dict[Path, int]
"""Which bit is turned in each file; `~n`: it is cut after n bytes."""
Question = tuple[str, str]
"""A reader, and the table that it reads."""


@dataclass(frozen=True)
class BitTrial:
    """Bits that are turned at the same time, and what is read after it."""

    bits: Bits
    questions: list[Question]
    cases: tuple[str, ...]
    opens: bool
    """Whether another `Store` reads than the one that has read all the time."""


def draw(files: StoredFiles, flips: int, seed: int) -> Iterator[BitTrial]:
    """Trials of so many flips. Each tenth turns only one bit."""
    number = 0
    while flips > 0:
        drawn = random.Random(f"{seed} {number}")
        group = drawn.choice([*files.groups, "telemetry", "telemetry"])
        is_single = number % 10 == 0
        paths = files.groups[group]
        paths = drawn.sample(paths, 1 if is_single else drawn.randint(1, min(len(paths), MOST_FILES, flips)))
        sizes = {path: len(files.content[path]) for path in paths}
        bits = {
            path: drawn.randrange(8 * n) if drawn.random() < 0.9 else ~drawn.randrange(n) for path, n in sizes.items()
        }
        tables = {"store.toml": ["runs"], "no rows": ["telemetry", "runs"]}.get(group, [group])
        if {"telemetry_minutes", "replaced"} & set(map(files.kind, paths)):
            tables.append("telemetry_minutes")
        questions = [(reader, table) for table in tables for reader in ("sql", "scan", "arrow")]
        if "telemetry" in tables:
            questions.append(("latest", "latest"))
            if any(path.suffix == ".json" for path in paths):
                questions.append(("one gpu", "telemetry"))
        drawn.shuffle(questions)
        cases = CASES if is_single else CASES[:2]
        yield BitTrial(bits, questions, cases, opens=is_single or group == "store.toml")
        number, flips = number + 1, flips - len(bits)


class TurnedBits:
    """Turns bits and says what came of it. One `Store` reads all the time, but where a trial `opens` another."""

    def __init__(self, files: StoredFiles) -> None:
        self._files, self._whole = files, StoreWithout(files)
        files.restore_all()
        self._store: whorl.Store | None = whorl.Store(files.root)

    def outcomes(self, trial: BitTrial) -> list[dict[str, Any]]:
        """What each reader says in each case."""
        return [outcome for case in trial.cases for outcome in self._try(case, trial)]

    def _try(self, case: str, trial: BitTrial) -> list[dict[str, Any]]:
        """What came of some bits in one case; where it is wrong or an error, of each of them alone."""
        bits, questions = trial.bits, trial.questions
        if case != "before":
            self._ask(*questions[-1], bits)
        for path, bit in bits.items():
            self._turn(case, path, bit)
        if case == "before" and trial.opens:
            self._store = None
        answers = [self._ask(reader, table, bits) for reader, table in questions]
        self._files.restore()
        self._store = self._store or whorl.Store(self._files.root)
        outcomes = []
        cut_journals = {path for path, bit in bits.items() if bit < 0 and path.suffix == ".journal"}
        for (reader, table), (answer, told, text) in zip(questions, answers, strict=True):
            named = told | cut_journals
            is_right, wrong = False, answer
            if not isinstance(answer, str):
                is_right = self._whole.is_answer(answer, named, reader, table)
                wrong = "too much" if len(named) == len(bits) else "silent"
            if len(bits) > 1 and not is_right:
                return [
                    outcome
                    for path, bit in bits.items()
                    for outcome in self._try(case, replace(trial, bits={path: bit}))
                ]
            for path, bit in bits.items():
                outcome = wrong if not is_right else "named" if path in named else "same"
                counted = {"case": case, "kind": self._files.kind(path), "reader": reader, "outcome": outcome}
                detail = {"table": table, "file": str(path.relative_to(self._files.root)), "bit": bit, "text": text}
                is_wrong = outcome in WRONG and (case != "unseen" or outcome == "unnamed")
                outcomes.append(counted | detail if is_wrong else counted)
        return outcomes

    def _turn(self, case: str, path: Path, bit: int) -> None:
        changed = bytearray(self._files.content[path])
        if bit < 0:
            del changed[~bit:]
        else:
            changed[bit // 8] ^= 1 << bit % 8
        content = bytes(changed)
        if case == "before":
            self._files.put(path, content)
            return
        times = path.stat()
        self._files.forget(path)
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
        changed_ns = times.st_mtime_ns if case == "unseen" else max(time.time_ns(), times.st_mtime_ns + 1)
        os.utime(path, ns=(times.st_atime_ns, changed_ns))

    def _ask(self, reader: str, table: str, bits: Bits) -> tuple[pa.Table | str, frozenset[Path], str]:
        """The answer, or what kind of error it was; which of these files are named; the text of the error."""
        with warnings() as logged:
            try:
                self._store = self._store or whorl.Store(self._files.root)
                self._store.skipped.clear()
                answer = read(self._store, reader, table)
            except WhorlError as error:
                is_named = any(path.name == "store.toml" or str(path) in str(error) for path in bits)
                return "error" if is_named else "unnamed", frozenset(), str(error)[:300]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also a panic of Polars
                return "unnamed", frozenset(), f"{type(error).__name__}: {error}"[:300]
            lines = [*logged, *map(str, self._store.skipped)]
            return answer, frozenset(path for path in bits if any(str(path) in line for line in lines)), ""


def in_children(begin: Callable[[], Callable[[int], Any]], count: int) -> Iterator[Any]:
    """What the function that `begin` makes says of each number below `count`, as JSON, from a child.

    The child ends without closing anything. Where it dies of a number, a text says so, and another child goes on.
    """
    number = 0
    while number < count:
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = begin()
                with os.fdopen(there, "w") as out:
                    for later in range(number, count):
                        out.write(json.dumps(answer(later)) + "\n")
                        out.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(there)
        with os.fdopen(here) as lines:
            for line in lines:
                number += 1
                yield json.loads(line)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            number += 1
            yield f"the process died: {status}"


def cpu_s() -> float:
    """CPU time of this process and of its children that ended, s."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(usage.ru_utime + usage.ru_stime for usage in used), 1)


def run(flips: int, seed: int) -> dict[str, Any]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    wrong: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="whorl-damage-", dir=memory) as home:
        root = Path(home).resolve() / "store"
        assert list(in_children(lambda: lambda _: make(root), 1)) == [None]
        files = StoredFiles(root)
        trials = list(draw(files, flips, seed))

        def begin() -> Callable[[int], Any]:
            turned = TurnedBits(files)
            return lambda number: turned.outcomes(trials[number])

        for done, outcomes in enumerate(in_children(begin, len(trials)), 1):
            died = {"case": "?", "reader": "?", "outcome": "unnamed", "text": outcomes}
            for outcome in (
                outcomes
                if isinstance(outcomes, list)
                else [died | {"kind": files.kind(path)} for path in trials[done - 1].bits]
            ):
                key = f"{outcome['case']} {outcome['kind']} {outcome['reader']}"
                counts[key][outcome["outcome"]] += 1
                totals[outcome["case"]][outcome["outcome"]] += 1
                if "text" in outcome:
                    wrong.setdefault(f"{key} {outcome['outcome']}", outcome)
            if done % 500 == 0:
                say(f"{done} of {len(trials)} trials, {len(wrong)} ways of being wrong")
    kinds = collections.Counter(files.kind(path) for trial in trials for path in trial.bits)
    sizes = {"flips": kinds.total(), "trials": len(trials), "seed": seed, "cpu_s": cpu_s(), "flips_of": kinds}
    return {**sizes, "totals": totals, "counts": counts, "first_wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    arguments = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    logging.getLogger("whorl").propagate = False
    results = run(arguments.flips, arguments.seed)
    sys.stdout.write(
        as_json({"schema": "whorl/store-damage/1", "machine": machine("pyarrow", "polars", "duckdb"), **results}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
