"""What a store holds after its machine lost power, at any moment of real commands. Prints JSON.

    python benchmarks/store_power_loss.py > benchmarks/results/store_power_loss.json    # 10,000 disks
    python benchmarks/store_power_loss.py --images 200 --seed 20261128

Commands run one after another on one store: an import, journals that append, publish and seal, groups of rows,
corrections, `compact`, `prune` and `probe run` on simulated GPUs. Every change of a file or folder is recorded, and
what was acknowledged when. A moment is drawn, and a disk as it may be after the machine died then (crashed_disk.py says
what may be). The store on it is read in every way, put in order (`compact`) and read again.

Wrong is: an acknowledged row that is missing, twice or not the last one written; a row that nobody wrote; a group that
is there in part; another `latest` than the newest reading; an error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import whorl
from whorl.benchmarks.crashed_disk import CrashedDisk, FileOperation, mark, operations, recording
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.benchmarks.store_damage import in_child, listed
from whorl.errors import StoreError

US, MINUTE, DAY = 10**6, 60, 86_400
BEGAN = 1_700_006_400 * US  # the beginning of a day
LATER = (BEGAN + 1500 * DAY * US) * 1000
OTHER_FOLDERS = {"late", "latest", "telemetry", "telemetry_minutes", "journal", "replaced", "pending", "logs"}
NAMES = ["cluster", "gpu", "ts", "power_mw"]
ASKED = (
    "select 'telemetry' as asked, cluster, gpu, epoch_us(ts) as ts, power_mw::bigint as value from telemetry union all "
    "select 'history', cluster, gpu, epoch_us(ts) // 60000000 as minute, sum(n)::bigint from history group by all"
)
CSV = "gpu,app,ms,w\n" + "".join(f"GPU-{n % 3},gemm,{10 + n / 8},{200 + n}\n" for n in range(9))
STEPS = {
    "import": "import runs.csv --cluster d --map gpu=gpu --map app=workload --map ms=time:ms --map w=power:W",
    "collect n1 0": "",
    "collect n2 10 seals": "",
    "append a 4": "",
    "collect n1 70 seals": "",
    f"collect n1 {DAY} seals": "",
    "compact 1": "store compact --offline",
    "append b 75": "",
    f"collect n2 {DAY + 5}": "",
    "compact 2": "store compact --offline",
    "probe": "probe run gemm-fp32 --backend simulated --suite quick --gpus 2 --interval 30s",
    "prune": "store prune --keep 1d --offline",
    f"append c {DAY + 40}": "",
    "compact 3": "store compact --offline",
}
"""Processes that are recorded, one after another: the command of whorl, or this file's `collect` and `append`."""
Key = tuple[Any, ...]  # cluster, GPU, time (us)
Rows = list[list[Any]]  # keys and values


class RecordedWriter:
    """A process that appends to the store, and marks in the record what it tries and what is acknowledged."""

    def __init__(self, about: str, root: Path, log: Path) -> None:
        self._about, self._log = about, log
        self._store = whorl.Store(root)
        _, self._name, first, *self._seals = about.split()
        self._first = int(first)

    def _mark(self, kind: str, step: object, rows: Rows) -> None:
        mark(self._log, kind, f"{self._about} {step}", json.dumps(rows).encode())

    def collect(self) -> None:
        """What a collector does, one tick after another, until it is killed, or ends."""
        journal = self._store.journal(self._name, durable_s=0, background=False, offline=True)
        for number in range(12):
            second = self._first + 2 * number
            gpus = [f"{self._name}-{gpu}" for gpu in range(2)]
            rows = [["c", gpu, BEGAN + second * US, 1000 * self._first + second] for gpu in gpus]
            self._mark("try", number, rows)
            powers = {"cluster": "c", "power_mw": [row[3] for row in rows]}
            journal.append((BEGAN + second * US) * 1000, gpus, powers)
            self._mark("ack", number, rows)
            if number in (3, 6):
                journal.publish()
            if number == 8 and self._seals:
                journal.seal()
        if self._seals:
            journal.close()

    def append(self) -> None:
        """Groups of rows, some with readings that are stored already, and a correction."""
        for number in range(3):
            seconds = range(self._first + number, self._first + number + 3)
            keys = [["c", f"n1-{gpu}", BEGAN + second * US] for second in seconds for gpu in range(2)]
            rows = [[*key, 7_000_000 * (number + 1) + place] for place, key in enumerate(keys)]
            names = [f"{self._about} {number} {n}" for n in range(3)]
            group = {"runs": pa.table({"run_id": names}), "events": pa.table({"detail": names})}
            self._mark("try", number, rows)
            self._store.append(group | {"telemetry": telemetry(rows)}, f"{self._about} {number}".replace(" ", "-"))
            self._mark("ack", number, rows)
        rows = [[*key, 9_000_000] for key in keys[:3]]
        self._mark("try", "correct", rows)
        self._store.correct(telemetry(rows), f"{self._about} correct".replace(" ", "-"))
        self._mark("ack", "correct", rows)


def telemetry(rows: Rows) -> pa.Table:
    clusters, gpus, times, powers = zip(*rows, strict=True)
    return pa.table([clusters, gpus, pa.array(times, pa.timestamp("us")), powers], names=NAMES)


@dataclass
class RecordedStore:
    """What was done to a store, and what it held after each step."""

    operations: list[FileOperation]
    contents: dict[str, dict[str, Any]]


def record(home: Path) -> RecordedStore:
    root, log, copy = home / "store", home / "log", home / "copy" / "store"
    (home / "runs.csv").write_text(CSV)
    contents = {}
    for about, command in STEPS.items():
        say(about)
        mark(log, "try", about, b"[]")
        line = ["-m", "whorl", *command.split(), "--store", str(root)]
        line = line if command else [str(Path(__file__).resolve()), "--work", about, str(root), str(log)]
        environment = recording(log, root)
        subprocess.run([sys.executable, *line], check=True, env=environment, stdout=subprocess.DEVNULL, cwd=home)
        mark(log, "ack", about, b"[]")
        shutil.copytree(root, copy)
        answer, status = in_child(lambda out: put(out, read(copy)))
        assert status == "0", about
        contents[about] = json.loads(answer)
        shutil.rmtree(copy)
    return RecordedStore(list(operations(log.read_bytes())), contents)


def put(out: int, answer: Any) -> None:
    """Write a line of JSON, also where a pipe takes it in pieces."""
    line = (json.dumps(answer) + "\n").encode()
    while line:
        line = line[os.write(out, line) :]


class WrittenRows:
    """What was tried and acknowledged up to a moment: of each key all values that were tried, and the last stored."""

    def __init__(self, recorded: RecordedStore, moment: int) -> None:
        self._tried: dict[Key, list[int | None]] = {}
        self._acknowledged: dict[Key, int] = {}
        self._prunable: set[Key] = set()
        self._least, self._most = dict[str, list[str]](), dict[str, list[str]]()
        self.about = "-"
        self.tables = list([*recorded.contents.values()][-1]["tables"])
        for operation in recorded.operations[: moment + 1]:
            if operation.kind in ("try", "ack"):
                self.about = operation.paths[0]
                rows = json.loads(operation.content)
                contents = recorded.contents.get(self.about)
                if self.about == "probe":  # its readings are all of its own cluster
                    rows = [row for row in recorded.contents["probe"]["telemetry"]["arrow"] if row[0] != "c"]
                (self._try if operation.kind == "try" else self._acknowledge)(rows, contents)

    def _try(self, rows: Rows, contents: dict[str, Any] | None) -> None:
        for *key, power in rows:
            self._tried.setdefault(tuple(key), []).append(power)
        if self.about == "prune":
            self._prunable = set(self._tried)
        self._most = contents["tables"] if contents else self._most

    def _acknowledge(self, rows: Rows, contents: dict[str, Any] | None) -> None:
        self._acknowledged |= {tuple(key): len(self._tried[tuple(key)]) - 1 for *key, _ in rows}
        self._least = contents["tables"] if contents else self._least

    @property
    def is_made(self) -> bool:
        """Whether the command ended that makes the store."""
        return bool(self._least)

    def _allowed(self, key: Key) -> list[int | None]:
        return self._tried.get(key, [])[self._acknowledged.get(key, 0) :]

    def wrong(self, readings: dict[str, Any]) -> Iterator[str]:
        """What is wrong with what readers saw."""
        rows = {tuple(key): power for *key, power in readings["telemetry"]["arrow"]}
        for reader, read_rows in readings["telemetry"].items():
            if len({tuple(key) for *key, _ in read_rows}) != len(read_rows):
                yield f"{reader}: a row is there twice"
            if {tuple(key): power for *key, power in read_rows} != rows:
                yield f"{reader}: readers differ"
        if lost := self._acknowledged.keys() - self._prunable - rows.keys():
            yield f"lost {len(lost)} rows: {min(lost)}"
        for key, power in rows.items():
            if power not in self._allowed(key):
                yield f"{key} is {power} and not one of {self._allowed(key)}"
        counts = {tuple(key): n for *key, n in readings["history"]}
        least, most = (
            Counter((*key[:2], key[2] // US // MINUTE) for key in k) for k in (self._acknowledged, self._tried)
        )
        for minute in counts.keys() | most.keys():
            if not least[minute] <= counts.get(minute, 0) <= most[minute]:
                yield f"history of {minute} has {counts.get(minute)} rows, not {least[minute]} to {most[minute]}"
        newest: dict[Key, int] = {}
        for *words, at in (*rows, *self._acknowledged):
            newest[*words] = max(at, newest.get((*words,), at))
        latest = {tuple(gpu): (at, power) for *gpu, at, power in readings["latest"]}
        for gpu, at in newest.items():
            if latest.get(gpu) not in [(at, power) for power in self._allowed((*gpu, at))]:
                yield f"latest of {gpu} is {latest.get(gpu)}, the newest reading {at}"
        if len(latest) != len(readings["latest"]):
            yield "latest: a GPU is there twice"
        for table in self.tables:
            listing = Counter(readings["tables"].get(table, []))
            if not Counter(self._least.get(table, [])) <= listing <= Counter(self._most.get(table, [])):
                yield f"{table}: {listing.total()} rows, not those that were written"
        if incomplete := {name: n for name, n in Counter(readings["groups"]).items() if n != 6}:
            yield f"groups are there in part: {incomplete}"


def read(root: Path, tables: Iterable[str] | None = None) -> dict[str, Any]:
    """What readers see, of some tables or of all; telemetry as cluster, GPU, time (us) and power."""
    store = whorl.Store(root)

    def rows(table: Any) -> Rows:
        columns = [table[name] for name in table.column_names]
        columns = [c.cast(pa.timestamp("us")).cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
        return [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]

    by_sql = rows(store.sql(ASKED).table)
    if tables is None:
        tables = sorted({path.name for path in root.iterdir() if path.is_dir()} - OTHER_FOLDERS)
    contents = {name: listed(store.arrow(name)) for name in tables}
    texts = [text for name, column in (("runs", "run_id"), ("events", "detail")) for text in store.arrow(name)[column]]
    groups = [text.as_py().rpartition(" ")[0] for text in texts if (text.as_py() or "").startswith("append")]
    return {
        "telemetry": {
            "sql": [row for asked, *row in by_sql if asked == "telemetry"],
            "arrow": rows(store.arrow("telemetry", NAMES)),
            "scan": rows(store.collect(store.scan("telemetry").select(NAMES)).to_arrow()),
        },
        "latest": rows(store.latest().select(NAMES)),
        "history": [row for asked, *row in by_sql if asked == "history"],
        "tables": {name: listing for name, listing in contents.items() if listing},
        "groups": groups,
    }


def judge(root: Path, written: WrittenRows) -> Iterator[str]:
    """What is wrong with a disk, at once and after it was put in order."""
    for stage in ("at once", "in order"):
        try:
            if stage == "in order":
                whorl.Store(root).compact(offline=True, now=LATER)
            readings = read(root, written.tables)
        except Exception as error:
            claimed = re.search(r"process (\d+) .* compacts or prunes", str(error))
            if claimed and Path("/proc", claimed[1]).exists():
                return  # another process has the number of the one that died, on this machine that did not
            if written.is_made or not isinstance(error, StoreError):
                yield f"{stage}: {type(error).__name__}: {error}"
            return
        yield from (f"{stage}: {text}" for text in written.wrong(readings))


def build(home: Path, paths: dict[str, bytes | None]) -> None:
    shutil.rmtree(home / "store", ignore_errors=True)
    for path, content in paths.items():
        if content is None:
            (home / path).mkdir()
        else:
            (home / path).write_bytes(content)


def run(images: int, seed: int) -> dict[str, Any]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    counts, wrong = Counter[str](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="whorl-power-", dir=memory) as folder:
        home, began = Path(folder).resolve(), time.monotonic()
        recorded = record(home)
        disk = CrashedDisk(home / "store", recorded.operations)

        def judge_disks(out: int, numbers: range) -> None:
            for number in numbers:
                drawn = Random(f"{seed} {number}")
                moment, model = drawn.randrange(len(recorded.operations)), drawn.choice(["ordered", "weak"])
                build(home, disk.after(moment, drawn, weak=model == "weak"))
                written = WrittenRows(recorded, moment)
                reasons = list(judge(home / "store", written))
                put(out, {"disk": number, "model": model, "during": written.about, "wrong": reasons[:5]})

        for first in range(0, images, 100):
            numbers = range(first, min(first + 100, images))
            *lines, status = in_child(lambda out, numbers=numbers: judge_disks(out, numbers))  # type: ignore[misc]
            for answer in map(json.loads, lines):
                counts[f"{answer['model']}: {'wrong' if answer['wrong'] else 'right'}"] += 1
                wrong += [answer] if answer["wrong"] else []
            if status != "0":
                wrong.append({"disk": first + len(lines), "wrong": [f"the process died: {status}"]})
            say(f"{numbers.stop} disks in {time.monotonic() - began:.0f} s: {dict(counts)}")
    kinds = Counter(operation.kind for operation in recorded.operations)
    return {"images": images, "seed": seed, "operations": dict(kinds), "outcomes": dict(counts), "wrong": wrong[:20]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if arguments.work:
        about, root, log = arguments.work
        worker = RecordedWriter(about, Path(root), Path(log))
        worker.collect() if about.startswith("collect") else worker.append()
        os._exit(0)  # without closing anything, as if it were killed
    logging.disable(logging.WARNING)
    results = run(arguments.images, arguments.seed)
    print(as_json({"schema": "whorl/store-power-loss/1", "machine": machine("pyarrow", "polars", "duckdb"), **results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
