"""What a scrape of `whorl export prometheus` costs in the store of a large fleet. Prints JSON.

    python benchmarks/exporting.py [--nodes 512] [--gpus 8] [--repeats 7]

The store is that of store_fleet.py at noon, with a value of every metric: eleven compacted hours, and for each node its
segments and an open journal. Before each scrape every node writes 15 more rows for each GPU, one a
second.

first     CPU and wall time (s) of what happens before the first page
scrape    CPU and wall time (ms) of one page: what it takes to read what is new (`look`) and to write the page (`page`)
gzip      the same of packing the page
by_hand   the same series, each point by an f-string: what the package prometheus-client costs beside that
latest    the newest rows by `select * from latest` in place of `look`
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.benchmarks.store_fleet import SECOND, Fleet
from whorl.dashboards.exported.exporter import Exporter, Settings, page
from whorl.dashboards.exported.series import Labels, Series
from whorl.store.metrics import METRICS
from whorl.store.system import files as store_files

SCRAPED_EVERY_S = 15


def names(labels: Labels) -> str:
    return ",".join(f'{name}="{text}"' for name, text in labels.items())


def by_hand(series: list[Series]) -> bytes:
    lines = [f"{part.prometheus}{{{names(labels)}}} {value!r}\n" for part in series for labels, value, _ in part.points]
    return "".join(lines).encode()


class Spent:
    """CPU and wall times by name."""

    def __init__(self) -> None:
        self._times: dict[str, list[tuple[float, float]]] = {}

    def on(self, name: str, work: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        answer = work()
        self._times.setdefault(name, []).append((time.process_time() - cpu, time.perf_counter() - wall))
        return answer

    def ms(self) -> dict[str, dict[str, float]]:
        def median(times: list[float]) -> float:
            return round(1e3 * statistics.median(times), 1)

        return {
            name: {
                "cpu_ms": median([cpu for cpu, _ in times]),
                "wall_ms": median([wall for _, wall in times]),
                "most_wall_ms": round(1e3 * max(wall for _, wall in times), 1),
                "n": len(times),
            }
            for name, times in self._times.items()
        }


def scraped(fleet: Fleet, repeats: int) -> dict[str, Any]:
    """One exporter, scraped again and again while the fleet writes."""
    now = fleet.noon
    exporter = Exporter(fleet.store, Settings(), clock=lambda: now)
    spent = Spent()
    spent.on("first", exporter.refresh)
    spent.on("first_page", lambda: page(exporter.series()))
    for turn in range(repeats):
        for _ in range(SCRAPED_EVERY_S):
            now += SECOND
            for name in fleet.names:
                fleet.append(name, now)
        series = spent.on("look", exporter.series)
        text = spent.on("page", partial(page, series))
        spent.on("gzip", partial(gzip.compress, text, 1, mtime=0))
        spent.on("by_hand", partial(by_hand, series))
        spent.on("latest", partial(fleet.store.sql, "select * from latest"))
        say(f"scrape {turn + 1}")
    lines = text.count(b"\n") - text.count(b"\n#") - 1
    return {"series": lines, "page_mb": round(len(text) / 1e6, 1), "times": spent.ms()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to work (default: the folder for temporary files)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="whorl-export-", dir=given.folder))
    try:
        with mock.patch.object(store_files, "sync"):
            fleet = Fleet(folder / "store", given.nodes, given.gpus, tuple(metric.name for metric in METRICS))
            fleet.fill()
            state = fleet.state()
        result = {
            "schema": "whorl.benchmark.exporting/1",
            "benchmark": "exporting",
            "machine": machine("numpy", "pyarrow", "duckdb", "prometheus-client"),
            "gpus": given.nodes * given.gpus,
            "store": state,
        }
        print(as_json(result | scraped(fleet, given.repeats)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
