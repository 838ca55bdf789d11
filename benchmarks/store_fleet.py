"""What a store of a large fleet costs one collector that seals, and one person who runs a query. Prints JSON.

    python benchmarks/store_fleet.py [--nodes 1000] [--gpus 2] [--repeats 5] [--only sql|seal]

The files are synthetic and hold few rows. The store looks as it does at noon where `whorl store compact` runs every
hour. Each full hour has the files that compaction makes. For the last 70 minutes each node has seven segments, and a
journal with the rows of up to ten minutes.

seal  CPU (ms) of one collector for each `Journal.seal` of ten minutes: the first one, and the median of the others
sql   CPU and wall time (s) of the process `whorl sql`, from start to end, by query
same  the same queries by the `duckdb` package through `whorl.duckdb`, in a process of its own
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
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.store import Store, journal_file, keys, telemetry_files
from whorl.store.journal_file import Encoder, Ticks, Writer
from whorl.store.schema import LATEST, TELEMETRY, Table
from whorl.store.system import files as store_files

HOUR, MINUTE, SECOND = 3600 * 10**9, 60 * 10**9, 10**9
ROWS_A_FILE = 1_500_000  # rows of one compacted file
METRICS = ("power_mw", "temperature_c", "sm_clock_mhz", "energy_mj")
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


class Fleet:
    """The synthetic store, with readings of some `metrics`."""

    def __init__(self, root: Path, nodes: int, gpus: int, metrics: tuple[str, ...] = METRICS) -> None:
        self.store, self.root, self._metrics = Store.create(root), root, metrics
        self.noon = (time.time_ns() // (24 * HOUR)) * 24 * HOUR - 12 * HOUR
        self.names = [f"n{node:05}" for node in range(nodes)]
        self.gpus = {name: [f"GPU-{name}-{gpu}" for gpu in range(gpus)] for name in self.names}
        self.unsealed: dict[str, int] = {}
        """Rows of each GPU of a node that are in its journal."""
        self._journals: dict[str, tuple[Path, Encoder]] = {}
        self.store.append({"runs": pa.table({"run_id": ["r"], "cluster": ["bench"]})}, "runs")

    def ticks(self, gpus: list[str], first: int, last: int, each: int) -> Ticks:
        """Readings of some GPUs from `first` to `last` (ns), `each` of every GPU."""
        ts = np.tile(np.linspace(first, last, each).astype(np.int64), len(gpus)) // 1000
        values = np.random.default_rng(first % 2**32).integers(30, 400_000, (len(self._metrics), len(ts)))
        return Ticks(
            ts.tolist(), [("bench", gpu) for gpu in gpus for _ in range(each)], self._metrics, values.T.tolist()
        )

    def write(self, ticks: Ticks, stem: str, codec: str = "fresh") -> pa.Table:
        """A file of telemetry with these readings."""
        rows = pa.Table.from_batches([ticks.rows()])
        self._put(TELEMETRY, rows, stem, 1000 * max(ticks.ts), codec)
        return rows

    def _put(self, spec: Table, rows: pa.Table, stem: str, written_ns: int, codec: str = "fresh") -> None:
        for path, content in telemetry_files.files_of(self.root, spec, rows, stem, written_ns=written_ns, codec=codec):
            store_files.write(path, content).replace(path)

    def fill(self) -> None:
        every = [gpu for name in self.names for gpu in self.gpus[name]]
        a_file = max(1, ROWS_A_FILE // 3600)  # GPUs of one file
        for hour in range(11):
            first = self.noon - (12 - hour) * HOUR
            for number in range(0, len(every), a_file):
                ticks = self.ticks(every[number : number + a_file], first, first + HOUR - SECOND, 2)
                self.write(ticks, f"compacted-{first:x}-{number}", "warm")
        say("compacted hours")
        for number, name in enumerate(self.names):
            self.node(name, number)
        say("nodes")

    def node(self, name: str, number: int) -> None:
        """The files of one node for the last 70 minutes; it sealed its journal up to ten minutes ago."""
        since_s = number % 600
        for back in range(7, 0, -1):
            first = self.noon - since_s * SECOND - 10 * back * MINUTE
            stem = f"{name}-4711-{first // 1000:x}-{7 - back}"
            rows = self.write(self.ticks(self.gpus[name], first, first + 599 * SECOND, 20), stem)
        written = int(rows["ts"].cast(pa.int64()).to_numpy().max())
        last = keys.with_written(keys.last_rows([rows]), 1000 * written)
        self._put(LATEST, last, stem, 1000 * written)
        began = self.noon - since_s * SECOND
        gpus = [("bench", gpu) for gpu in self.gpus[name]]
        stem = f"{name}-4711-{began // 1000:x}-7"
        journal = self.root / journal_file.FOLDER / journal_file.compose(stem, "now", gpus)
        store_files.make_folder(journal.parent)
        encoder = Encoder(Writer(name, f"h{number}", "0123abcd", 4711), gpus)
        journal.write_bytes(encoder.header(began))
        self._journals[name] = journal, encoder
        self.append(name, *range(began, self.noon, SECOND))
        self.unsealed[name] = since_s

    def append(self, name: str, *times: int) -> None:
        """A reading of each GPU of a node at these times (ns), in its journal."""
        path, encoder = self._journals[name]
        with path.open("ab") as file:
            for at in times:
                file.write(encoder.tick(self.ticks(self.gpus[name], at, at, 1), at))

    def only_in_journals(self, gpu: str | None) -> int:
        """How many rows (None: of all GPUs) only whorl's own readers see."""
        return sum(self.unsealed[name] * sum(gpu in (None, one) for one in self.gpus[name]) for name in self.names)

    def state(self) -> dict[str, int]:
        every = [path for path in self.root.rglob("*") if path.is_file()]
        return {"files": len(every), "bytes": sum(path.stat().st_size for path in every)}


def sealing(fleet: Fleet, repeats: int) -> dict[str, Any]:
    """One more collector seals ten minutes of eight GPUs, again and again."""
    gpus = [f"GPU-mine-{number}" for number in range(8)]
    spent = []
    with fleet.store.journal("mine", background=False) as journal:
        for turn in range(repeats + 1):
            for second in range(600):
                at = fleet.noon + (600 * turn + second) * SECOND
                journal.append_ticks(fleet.ticks(gpus, at, at, 1))
            began = cpu()
            journal.seal()
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
    parser.add_argument("--only", choices=("sql", "seal"))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="whorl-fleet-", dir=given.folder))
    try:
        fleet = Fleet(folder / "store", given.nodes, given.gpus)
        with mock.patch.object(store_files, "sync"):  # nothing is measured yet
            fleet.fill()
        result = {
            "schema": "whorl.benchmark.store_fleet/1",
            "benchmark": "store_fleet",
            "machine": machine("numpy", "pyarrow", "duckdb"),
            "nodes": given.nodes,
            "store": fleet.state(),
        }
        parts = {"sql": querying, "seal": sealing}
        result |= {name: part(fleet, given.repeats) for name, part in parts.items() if given.only in (None, name)}
        print(as_json(result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
