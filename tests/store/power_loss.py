"""What a store holds after its machine lost power, at any moment of real commands. Prints JSON.

    python tests/store/power_loss.py    # 10,000 disks
    python tests/store/power_loss.py --images 200 --seed 20261128

Commands run one after another on one store: an import, journals that append, publish and seal, groups of rows,
corrections, `compact`, `collect` and `campaign run` on simulated GPUs, and `prune`. Every change of a file or folder is
recorded, and what was acknowledged when. A moment is drawn, and a disk as it may be after the machine died then
(crashed_disk.py says what may be). The store on it is opened, read in every way, put in order (`compact`) and read
again. Of disks whose files are equal when the store was opened only one is read, and what was read of it is compared
with what was acknowledged before each of them died.

Wrong is: an acknowledged row that is missing, twice or not the last one written; a row that nobody wrote; a group that
is there in part; another `latest` than the newest reading; an error.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import whorl
from whorl.benchmarks.harness import as_json, machine, say
from whorl.cli import cli
from whorl.store import folder, journal
from whorl.store.journal import Journal
from whorl.store.journal_file import Ticks
from whorl.store.schema import TABLES
from whorl.tests.store.crashed_disk import CrashedDisk, FileOperation, mark, operations, recording
from whorl.tests.store.flipped_bits import cpu_s, in_children, listed

US, MINUTE, DAY = 10**6, 60, 86_400
BEGAN = 1_700_006_400 * US  # the beginning of a day
LATER = (BEGAN + 1500 * DAY * US) * 1000
OTHER_FOLDERS = {"late", "latest", "telemetry", "telemetry_minutes", "journal", "replaced", "pending", "logs"}
SEGMENT_S = 0.5
NAMES = ["cluster", "gpu", "ts", "power_mw"]
ASKED = (
    "select 'telemetry' as asked, cluster, gpu, epoch_us(ts) as ts, power_mw::bigint as value from telemetry union all "
    "select 'minutes', cluster, gpu, epoch_us(ts), n::bigint from telemetry_minutes"
)
CSV = "gpu,app,ms,w\n" + "".join(f"GPU-{n % 3},gemm,{10 + n / 8},{200 + n}\n" for n in range(9))
STEPS = {
    "import": "import runs.csv --cluster d --map gpu=gpu --map app=workload --map ms=time:ms --map w=power:W",
    "ticks n1 0": "",
    "ticks n2 10 seals": "",
    "append a 4": "",
    "ticks n1 70 seals": "",
    f"ticks n1 {DAY} seals": "",
    "compact 1": "store compact --offline",
    "append b 75": "",
    "collect": "collect --backend simulated:gpus=2 --interval 100ms --duration 2s --set durable=tick",
    f"ticks n2 {DAY + 5}": "",
    "compact 2": "store compact --offline",
    "campaign": "campaign run gemm-fp32 --suite quick --set fleet=fleet.toml --set settle=0 --program '{program}'",
    "prune": "store prune --keep 1d --offline",
    f"append c {DAY + 40}": "",
    "compact 3": "store compact --offline",
}
"""Processes that are recorded, one after another: the command of whorl, or this file's `ticks` and `append`."""
Key = tuple[Any, ...]  # cluster, GPU, time (us)
Rows = list[list[Any]]  # keys and values


class RecordedWriter:
    """A process that writes to the store, and marks in the record what it tries and what is acknowledged."""

    def __init__(self, about: str, root: str, log: str) -> None:
        self._about, self._root, self._log = about, root, Path(log)
        self._marks = 0

        class MarkedJournal(Journal):
            """Marks all readings that it takes, and begins another file soon."""

            def __init__(self, *words: Any, **options: Any) -> None:
                super().__init__(*words, segment_s=SEGMENT_S, **options)

            def append_ticks(self, ticks: Ticks) -> None:
                with writer.marked(_rows(ticks)):
                    super().append_ticks(ticks)

        def append(store: whorl.Store, rows: Mapping[str, pa.Table], name: str) -> list[Path]:
            readings = rows.get("telemetry")
            with contextlib.nullcontext() if readings is None else writer.marked(listing(readings.select(NAMES))):
                return store_append(store, rows, name)

        writer, store_append = self, whorl.Store.append
        journal.Journal = MarkedJournal  # type: ignore[misc]
        whorl.Store.append = append  # type: ignore[method-assign, assignment]

    @contextlib.contextmanager
    def marked(self, rows: Rows) -> Iterator[None]:
        """These rows are tried, and acknowledged at the end."""
        about, content = f"{self._about} {self._marks}", json.dumps(rows).encode()
        self._marks += 1
        mark(self._log, "try", about, content)
        yield
        mark(self._log, "ack", about, content)

    def run(self, words: list[str]) -> None:
        """Run a command of whorl, or without any words what this process is called."""
        if words:
            cli(words if "--store" in words else [*words, "--store", self._root])
        verb, *options = self._about.split()
        self._tick(*options) if verb == "ticks" else self._append(int(options[1]))
        os._exit(0)  # without closing anything, as if it were killed

    def _tick(self, name: str, first: str, *seals: str) -> None:
        """What a collector does, one tick after another, until it is killed, or ends."""
        writer = whorl.Store(self._root).journal(name, durable_s=0, background=False, offline=True)
        for number in range(12):
            second = int(first) + 2 * number
            powers = {"cluster": "c", "power_mw": [1000 * int(first) + second] * 2}
            writer.append((BEGAN + second * US) * 1000, [f"{name}-{gpu}" for gpu in range(2)], powers)
            if number in (3, 6):
                writer.publish()
            if number == 8 and seals:
                writer.seal()
        if seals:
            writer.close()

    def _append(self, first: int) -> None:
        """Groups of rows, some with readings that are stored already, and a correction."""
        store = whorl.Store(self._root)
        for number in range(3):
            seconds = range(first + number, first + number + 3)
            keys = [["c", f"n1-{gpu}", BEGAN + second * US] for second in seconds for gpu in range(2)]
            rows = [[*key, 7_000_000 * (number + 1) + place] for place, key in enumerate(keys)]
            names = [f"{self._about} {number} {n}" for n in range(3)]
            group = {"runs": pa.table({"run_id": names}), "events": pa.table({"detail": names})}
            store.append(group | {"telemetry": telemetry(rows)}, f"{self._about} {number}".replace(" ", "-"))
        rows = [[*key, 9_000_000] for key in keys[:3]]
        store.correct(telemetry(rows), f"{self._about} correct".replace(" ", "-"))


def _rows(ticks: Ticks) -> Rows:
    """The keys and the power of readings."""
    powers = ticks.by_name()["power_mw"]
    return [[*gpu, ts, power] for gpu, ts, power in zip(ticks.gpus, ticks.ts, powers, strict=True)]


def listing(table: pa.Table) -> Rows:
    """The rows of a table of readings: cluster, GPU, time (us) and others."""
    columns = [table[name] for name in table.column_names]
    columns = [c.cast(pa.timestamp("us")).cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
    return [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def telemetry(rows: Rows) -> pa.Table:
    clusters, gpus, times, powers = zip(*rows, strict=True)
    return pa.table([clusters, gpus, pa.array(times, pa.timestamp("us")), powers], names=NAMES)


@dataclass
class RecordedStore:
    """What was done to a store, and what it held after each step."""

    operations: list[FileOperation]
    contents: dict[str, dict[str, Any]]


def record(home: Path) -> RecordedStore:
    root, log = home / "store", home / "log"
    (home / "runs.csv").write_text(CSV)
    slurm(home)
    environment = recording(log, root) | {"PATH": f"{home}:{os.environ['PATH']}"}
    for number, (about, command) in enumerate(STEPS.items()):
        say(about)
        mark(log, "try", about, b"[]")
        worker = [sys.executable, str(Path(__file__).resolve()), "--work", about, str(root), str(log)]
        words = command.format(program=shlex.join(worker)) if command else ""
        subprocess.run([*worker, *shlex.split(words)], check=True, env=environment, stdout=subprocess.DEVNULL, cwd=home)
        mark(log, "ack", about, b"[]")
        shutil.copytree(root, home / "copies" / str(number) / "store")

    def read_copy(number: int) -> dict[str, Any]:
        return DiskReader().read(whorl.Store(home / "copies" / str(number) / "store"))

    contents = dict(zip(STEPS, in_children(lambda: read_copy, len(STEPS)), strict=True))
    return RecordedStore(list(operations(log.read_bytes())), contents)


def slurm(home: Path) -> None:
    """The commands of a Slurm with one node, which runs a job while it is submitted."""
    node = "NodeName=n1 Gres=gpu:h100:2 NodeHostName=n1 State=IDLE Partitions=batch"
    partition = "PartitionName=batch Default=YES MaxTime=1:00:00 State=UP"
    controls = "*ping*) echo 'Slurmctld(primary) at n1 is UP';; *config*) echo 'ClusterName = d';; "
    controls += f"*partitions*) echo '{partition}';; *) echo '{node}';;"
    programs = {
        "scontrol": f'case "$*" in {controls} esac',
        "squeue": "exit 0",
        "sbatch": "cat > job; SLURM_JOB_ID=7 SLURMD_NODENAME=n1 sh job > job.out 2>&1; echo 7",
    }
    for name, script in programs.items():
        (home / name).write_text(f"#!/bin/sh\n{script}\n")
        (home / name).chmod(0o755)
    (home / "fleet.toml").write_text('cluster = "d"\nnodes = "n1"\nseed = 3\n')


class WrittenRows:
    """What was tried and acknowledged up to a moment: of each key all values that were tried, and the last stored."""

    def __init__(self, recorded: RecordedStore, moment: int) -> None:
        self._tried: dict[Key, list[int | None]] = {}
        self._acknowledged: dict[Key, int] = {}
        self._prunable: set[Key] = set()
        self._least, self._most = dict[str, list[str]](), dict[str, list[str]]()
        self.about = "-"
        for operation in recorded.operations[: moment + 1]:
            if operation.kind in ("try", "ack"):
                self.about = operation.paths[0]
                rows = json.loads(operation.content)
                contents = recorded.contents.get(self.about)
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
        counts = Counter[Key]()
        for cluster, gpu, ts, n in [*readings["minutes"], *((*key, 1) for key in rows)]:
            counts[cluster, gpu, ts // US // MINUTE] += n
        least, most = (
            Counter((*key[:2], key[2] // US // MINUTE) for key in k) for k in (self._acknowledged, self._tried)
        )
        for minute in counts.keys() | most.keys():
            if not least[minute] <= counts[minute] <= most[minute]:
                yield f"{minute} has {counts[minute]} rows, not {least[minute]} to {most[minute]}"
        newest: dict[Key, int] = {}
        for *words, at in (*rows, *self._acknowledged):
            newest[*words] = max(at, newest.get((*words,), at))
        latest = {tuple(gpu): (at, power) for *gpu, at, power in readings["latest"]}
        for gpu, at in newest.items():
            if latest.get(gpu) not in [(at, power) for power in self._allowed((*gpu, at))]:
                yield f"latest of {gpu} is {latest.get(gpu)}, the newest reading {at}"
        if len(latest) != len(readings["latest"]):
            yield "latest: a GPU is there twice"
        for table in readings["tables"].keys() | self._least.keys():
            lines = Counter(readings["tables"].get(table, []))
            if not Counter(self._least.get(table, [])) <= lines <= Counter(self._most.get(table, [])):
                yield f"{table}: {lines.total()} rows, not those that were written"
        if incomplete := {name: n for name, n in Counter(readings["groups"]).items() if n != 6}:
            yield f"groups are there in part: {incomplete}"


class DiskReader:
    """Reads a store in every way, also where others took its place; what it has read of equal files it knows."""

    def __init__(self) -> None:
        self._known = dict[tuple[str, ...], Any]()
        self._first: whorl.Store | None = None  # its connection to DuckDB stays

    def read(self, store: whorl.Store) -> dict[str, Any]:
        """What readers see: telemetry as cluster, GPU, time (us) and power, the other tables as texts.

        A table depends on the files of its folder, the journals of its kind and the notes about replaced files.
        """
        self._first = self._first or store
        digests = digests_of(store.root)
        shared = tuple(digests.get(name, "") for name in ("rows", "replaced"))
        of_telemetry = ("telemetry", *(digests.get(name, "") for name in sorted(OTHER_FOLDERS)))
        if of_telemetry not in self._known:
            self._known[of_telemetry] = self._telemetry(store)
        listings = {}
        for name in sorted(spec.name for spec in TABLES if spec.name not in OTHER_FOLDERS):
            key = name, digests.get(name, ""), *shared
            if key not in self._known:
                self._known[key] = self._listing(store, name)
            listings[name] = self._known[key]
        groups = [text.rpartition(" ")[0] for _, texts in listings.values() for text in texts]
        return {
            **self._known[of_telemetry],
            "tables": {name: lines for name, (lines, _) in listings.items() if lines},
            "groups": [group for group in groups if group.startswith("append")],
        }

    def _listing(self, store: whorl.Store, name: str) -> tuple[list[str], list[str]]:
        """All rows of a table, and the texts that say of which group a row is."""
        table, group = store.arrow(name), {"runs": "run_id", "events": "detail"}.get(name)
        return listed(table), [text or "" for text in table[group].to_pylist()] if group else []

    def _telemetry(self, store: whorl.Store) -> dict[str, Any]:
        assert self._first is not None
        by_sql = listing(self._first.sql(ASKED).table)
        rows = listing(store.arrow("telemetry", NAMES))
        others = {
            "sql": [row for asked, *row in by_sql if asked == "telemetry"],
            "scan": listing(store.collect(store.scan("telemetry").select(NAMES)).to_arrow()),
        }
        return {
            "telemetry": {"arrow": rows} | {name: rows if seen == rows else seen for name, seen in others.items()},
            "latest": listing(store.latest().select(NAMES)),
            "minutes": [row for asked, *row in by_sql if asked == "minutes"],
        }


def digests_of(root: Path) -> dict[str, str]:
    """A digest of the files in each folder of a store, and of each file beside them.

    Not of what only means something on the machine that died: who held a lock, and the times of verified files.
    """
    digests = dict[str, Any]()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != "verified.log" and path.suffix != ".lock":
            place = path.relative_to(root)
            kind = "rows" if ".rows." in path.name else place.parts[0]  # journals of other tables than telemetry
            digest = digests.setdefault(kind, hashlib.blake2b())
            content = path.read_bytes()
            digest.update(f"{place} {len(content)} ".encode() + content)
    return {name: digest.hexdigest() for name, digest in digests.items()}


Stages = list[tuple[str, dict[str, Any] | str]]
"""What readers see at once and after the store was put in order, or the error."""


class DiskJudge:
    """Looks at disks. Of disks that are equal when the store on them was opened, only one is read."""

    def __init__(self, home: Path, recorded: RecordedStore) -> None:
        self._home, self._recorded = home, recorded
        self._disk = CrashedDisk(home / "store", recorded.operations)
        self._known = dict[tuple[str, ...], Stages]()
        self._reader = DiskReader()

    def answer(self, seed: int, number: int) -> dict[str, Any]:
        """What is wrong with a disk."""
        drawn = Random(f"{seed} {number}")
        moment, model = drawn.randrange(len(self._recorded.operations)), drawn.choice(["ordered", "weak"])
        build(self._home, self._disk.after(moment, drawn, weak=model == "weak"))
        written = WrittenRows(self._recorded, moment)
        wrong = list[str]()
        for stage, readings in self._stages(self._home / "store"):
            if isinstance(readings, str):
                wrong += [f"{stage}: {readings}"] if written.is_made or not readings.startswith("StoreError") else []
            else:
                wrong += [f"{stage}: {text}" for text in written.wrong(readings)]
        during = written.about.split()[0]
        return {"disk": number, "model": model, "during": during, "read": len(self._known), "wrong": wrong[:5]}

    def _stages(self, root: Path) -> Stages:
        try:
            store = whorl.Store(root)
        except Exception as error:
            return [("at once", f"{type(error).__name__}: {error}")]
        key = tuple(map(str, digests_of(root).items()))
        if key not in self._known:
            self._known[key] = list(self._look(store))
        return self._known[key]

    def _look(self, store: whorl.Store) -> Iterator[tuple[str, dict[str, Any] | str]]:
        try:
            yield "at once", self._reader.read(store)
            whorl.Store(store.root).compact(offline=True, now=LATER)
            yield "in order", self._reader.read(whorl.Store(store.root))
        except Exception as error:
            claimed = re.search(r"process (\d+) .* compacts or prunes", str(error))
            if not claimed or not Path("/proc", claimed[1]).exists():  # else one of this machine has its number
                yield "then", f"{type(error).__name__}: {error}"


def build(home: Path, paths: dict[str, bytes | None]) -> None:
    shutil.rmtree(home / "store", ignore_errors=True)
    for path, content in paths.items():
        if content is None:
            (home / path).mkdir()
        else:
            (home / path).write_bytes(content)


def run(images: int, seed: int) -> dict[str, Any]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    outcomes, during, wrong = Counter[str](), Counter[str](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="whorl-power-", dir=memory) as folder:
        home, read = Path(folder).resolve(), 0
        recorded = record(home)
        recording_s = cpu_s()

        def begin() -> Callable[[int], Any]:
            judge = DiskJudge(home, recorded)
            return lambda number: judge.answer(seed, number)

        for number, answer in enumerate(in_children(begin, images)):
            if isinstance(answer, str):
                answer = {"disk": number, "model": "?", "during": "?", "read": read, "wrong": [answer]}
            outcomes[f"{answer['model']}: {'wrong' if answer['wrong'] else 'right'}"] += 1
            during[answer["during"]] += 1
            wrong += [answer] if answer["wrong"] else []
            read = answer["read"]
            if number % 500 == 499:
                say(f"{number + 1} disks, {read} of them read: {dict(outcomes)}")
    kinds = Counter(operation.kind for operation in recorded.operations)
    used = {"recording": recording_s, "disks": round(cpu_s() - recording_s, 1)}
    sizes = {"images": images, "read": read, "seed": seed, "cpu_s": used, "operations": kinds}
    return {**sizes, "during": during, "outcomes": outcomes, "wrong": wrong[:20]}


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        RecordedWriter(*sys.argv[2:5]).run(sys.argv[5:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    arguments = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    logging.disable(logging.WARNING)
    folder._MAKING_S = 0.0  # nobody makes the store of a disk meanwhile
    results = run(arguments.images, arguments.seed)
    sys.stdout.write(
        as_json({"schema": "whorl/store-power-loss/1", "machine": machine("pyarrow", "polars", "duckdb"), **results})
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
