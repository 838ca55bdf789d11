"""What a store of a large fleet costs one collector that publishes, and one person who runs a query. Prints JSON.

    python benchmarks/store_fleet.py [--nodes 1000] [--gpus 2] [--repeats 5] [--only sql|publish]

The files are synthetic and hold few rows. The store looks as it does at noon where `whorl store compact` runs every
hour. Each full hour has the files that compaction makes. For the last 70 minutes each node has seven segments, its
published files of the current ten minutes and of the ten minutes before (these wait to be removed), the notes of the
replacement, its last readings, and a journal with the rows of up to 29 s that are not published yet. Files of one node
that would differ in their times only are hard links to one file.

publish  CPU (ms) of one collector for each `Journal.publish`, with the recovery that `maintain` does after it: the
         first one, and the median of the others; between two of them, 1/20 of the other nodes publish
sql      CPU and wall time (s) of the process `whorl sql`, from start to end, by query
same     the same queries by the `duckdb` package through `whorl.duckdb`, in a process of its own
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.rows import arranging, contents, journal_file, placing, replacing, writing
from whorl.store.schema import LATEST, TELEMETRY
from whorl.store.system import files as store_files
from whorl.store.writers import rivals

HOUR, MINUTE, SECOND = 3600 * 10**9, 60 * 10**9, 10**9
ROWS_A_FILE = 1_500_000  # rows of one compacted file
LIVE = {"whorl.live": json.dumps({"number": 0, "of": 1, "upto": {}})}  # all rows of the journal are published
QUERIES = {
    "runs": "select count(*) from runs",
    "limit": "select gpu, power_mw from telemetry limit 1",
    "one_gpu": "select count(*), avg(power_mw) from telemetry where gpu = '{gpu}'",
    "all": "select count(*), avg(power_mw) from telemetry",
    "latest": "select count(*), avg(power_mw) from latest",
}


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def rows_of(gpus: list[str], first: int, last: int, each: int) -> pa.Table:
    """Rows of some GPUs from `first` to `last` (ns), `each` rows of every GPU."""
    n = len(gpus) * each
    ts = np.tile(np.linspace(first, last, each).astype(np.int64), len(gpus))
    rng = np.random.default_rng(first % 2**32)
    names = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(gpus), dtype=np.int32), each), gpus)
    columns: dict[str, Any] = {
        "ts": pa.array(ts.view("datetime64[ns]")),
        "cluster": pa.array(["bench"] * n),
        "gpu": names.cast(pa.string()),
        "power_mw": pa.array(rng.integers(90_000, 400_000, n), pa.int32()),
        "temperature_c": pa.array(rng.integers(30, 80, n), pa.int32()),
        "sm_clock_mhz": pa.array(rng.integers(1000, 1900, n), pa.int32()),
    }
    columns |= {"energy_mj": pa.array(np.cumsum(rng.integers(0, 9, n)), pa.int64())}
    return arranging.conform(TELEMETRY, pa.table(columns), lean=True)


class Fleet:
    """The synthetic store."""

    def __init__(self, root: Path, nodes: int, gpus: int) -> None:
        self.store = Store.create(root)
        self.root = root
        self.noon = (time.time_ns() // (24 * HOUR)) * 24 * HOUR - 12 * HOUR
        self.names = [f"n{node:05}" for node in range(nodes)]
        self.gpus = {name: [f"GPU-{name}-{gpu}" for gpu in range(gpus)] for name in self.names}
        self.unpublished: dict[str, int] = {}  # rows of each GPU of a node that are only in its journal
        self.store.append({"runs": pa.table({"run_id": ["r"], "cluster": ["bench"]})}, "runs")

    def write(self, rows: pa.Table, name: str, writer: str = "", text: Mapping[str, str] | None = None) -> list[Path]:
        days = [day for day, _ in arranging.days(rows)]
        home = rivals.home(self.root, writer, placing.bounds_of(rows).gpus, days) if writer else ""
        moves = writing.write_temporary(writing.placed(self.root, TELEMETRY, rows, name, home), text)
        for temporary, final in moves.items():
            temporary.replace(final)
        return list(moves.values())

    def fill(self) -> None:
        every = [gpu for name in self.names for gpu in self.gpus[name]]
        a_file = max(1, ROWS_A_FILE // 3600)  # GPUs of one file
        for hour in range(11):
            first = self.noon - (12 - hour) * HOUR
            for number in range(0, len(every), a_file):
                rows = rows_of(every[number : number + a_file], first, first + HOUR - SECOND, 2)
                self.write(rows, f"compacted-{first:x}-{number}")
        say("compacted hours")
        for number, name in enumerate(self.names):
            self.node(name, number)
        say("nodes")

    def node(self, name: str, number: int) -> None:
        """The files of one node for the last 70 minutes; it sealed its journal up to ten minutes ago."""
        began = f"{name}-4711-{self.noon - 2 * HOUR:x}"
        tail = number % 30  # seconds since it published
        since = ((number % 20) * 30 + tail) * SECOND  # since it sealed
        first = self.noon - since - 10 * MINUTE
        sealed = self.write(rows_of(self.gpus[name], first, first + 599 * SECOND, 20), f"{began}-6", name)
        for back in range(6):
            sealed[0].with_stem(f"{began}-{back}").hardlink_to(sealed[0])
        gone = self.publish(name, f"{began}-6", first, 20)
        old = [*gone, self.root / "journal" / f"{began}-6.telemetry.0.arrow"]
        one = f"h{number}-0123abcd-4711-{number:08x}"
        sides = [("old", path) for path in old] + [("new", path) for path in sealed]
        for step in (1, 2):
            replacing._write(self.root, one, step, sides)
        self.publish(name, f"{began}-7", self.noon - since, number % 20)
        gpus = placing.as_text(placing.hashes(("bench", gpu) for gpu in self.gpus[name]))
        writer = journal_file.Writer(name, f"h{number}", "0123abcd", 4711, self.noon)
        ticks = [rows_of(self.gpus[name], at, at, 1) for at in range(self.noon - tail * SECOND, self.noon, SECOND)]
        columns = rows_of(self.gpus[name], 0, 0, 1).column_names
        header = journal_file.schema_of("telemetry", columns, writer, gpus)
        content = bytearray(header.serialize().to_pybytes())
        for rows in ticks:
            content += journal_file.encode([rows[n].combine_chunks() for n in header.names[:-2]], header, self.noon)
        (self.root / "journal").mkdir(exist_ok=True)
        (self.root / "journal" / f"{began}-7.telemetry.0.arrow").write_bytes(content)
        self.unpublished[name] = tail
        contents.note(sealed[0].parent)
        last = rows_of(self.gpus[name], first + 599 * SECOND, first + 599 * SECOND, 1)
        noted = arranging.conform(LATEST, last.append_column("written", pa.array([self.noon] * len(last))))
        for temporary, final in writing.write_temporary(writing.placed(self.root, LATEST, noted, f"{began}-6")).items():
            temporary.replace(final)

    def publish(self, name: str, generation: str, first: int, times: int) -> list[Path]:
        if not times:
            return []
        rows = rows_of(self.gpus[name], first, first + 29 * SECOND, 30)
        made = self.write(rows, f"{generation}.live0", name, LIVE)
        for number in range(1, times - 1):
            made.append(made[0].with_stem(f"{generation}.live{number}"))
            made[-1].hardlink_to(made[0])
        if times > 1:  # the times of the last one are its own: rows of journals are compared with it
            last = first + (times - 1) * 30 * SECOND
            rows = rows_of(self.gpus[name], last, last + 29 * SECOND, 30)
            made += self.write(rows, f"{generation}.live{times - 1}", name, LIVE)
        return made

    def only_in_journals(self, gpu: str | None) -> int:
        """How many rows (None: of all GPUs) only whorl's own readers see."""
        return sum(self.unpublished[name] * sum(gpu in (None, one) for one in self.gpus[name]) for name in self.names)

    def state(self) -> dict[str, int]:
        every = [path for path in self.root.rglob("*") if path.is_file()]
        return {"files": len(every), "bytes": sum(path.stat().st_size for path in every)}


def publishing(fleet: Fleet, repeats: int) -> dict[str, Any]:
    """One more collector publishes; each time, some of the others have published before."""
    gpus = [f"GPU-mine-{number}" for number in range(8)]
    spent = []
    with Journal(fleet.store.root, "mine", thread=False, settle_s=0.0) as journal:
        for turn in range(repeats + 1):
            for name in fleet.names[turn::20]:
                fleet.publish(name, f"{name}-4711-{turn:x}-9", fleet.noon, 1)
            for second in range(30):
                at = fleet.noon + (30 * turn + second) * SECOND
                journal.append_batch(rows_of(gpus, at, at, 1).combine_chunks().to_batches()[0])
            began = cpu()
            journal.publish()
            replacing.recover(fleet.root)
            spent.append(1e3 * (cpu() - began))
    return {"first_ms": round(spent[0], 1), "median_ms": round(statistics.median(spent[1:]), 1), "n": len(spent) - 1}


PLAIN = """
import duckdb, sys
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    connection.execute("SET enable_progress_bar = false")
    print(connection.execute(sys.argv[2]).fetchall())
"""


def querying(fleet: Fleet, repeats: int) -> dict[str, Any]:
    """Every query by a new process, in turn."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"sql": {}, "same": {}}
    gpu = fleet.gpus[fleet.names[len(fleet.names) // 3]][0]
    answers: dict[str, set[str]] = {}
    for _ in range(repeats):
        for name, template in QUERIES.items():
            query = template.format(gpu=gpu)
            commands = {
                "sql": [sys.executable, "-m", "whorl", "sql", "--store", str(fleet.root), "--json", query],
                "same": [sys.executable, "-c", PLAIN, str(fleet.root / "whorl.duckdb"), query],
            }
            for how, command in commands.items():
                before, start = cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                took = cpu(resource.RUSAGE_CHILDREN) - before, time.perf_counter() - start
                found[how].setdefault(name, []).append(took)
                if name in ("all", "one_gpu"):
                    count = json.loads(out)["rows"][0]["count_star()"] if how == "sql" else int(out[2:].split(",")[0])
                    others = 0 if how == "same" else fleet.only_in_journals(None if name == "all" else gpu)
                    answers.setdefault(name, set()).add(str(count - others))
    medians = {
        how: {
            name: {
                "cpu_s": round(statistics.median(c for c, _ in times), 2),
                "wall_s": round(statistics.median(w for _, w in times), 2),
                "n": len(times),
            }
            for name, times in by_name.items()
        }
        for how, by_name in found.items()
    }
    return medians | {"same_counts": all(len(counts) == 1 for counts in answers.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of each node")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    parser.add_argument("--only", choices=("sql", "publish"))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="whorl-fleet-", dir=given.folder))
    try:
        fleet = Fleet(folder / "store", given.nodes, given.gpus)
        with mock.patch.object(store_files, "sync"), mock.patch.object(writing, "sync"):  # nothing is measured yet
            fleet.fill()
        result = {
            "schema": "whorl.benchmark.store_fleet/1",
            "benchmark": "store_fleet",
            "machine": machine("numpy", "pyarrow", "duckdb"),
            "nodes": given.nodes,
            "store": fleet.state(),
        }
        parts = {"sql": querying, "publish": publishing}
        result |= {name: part(fleet, given.repeats) for name, part in parts.items() if given.only in (None, name)}
        print(as_json(result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
