"""What `whorl dashboard` costs over a store of a large fleet, driven by a real browser. Prints JSON.

    python benchmarks/dashboard.py [--store STORE] [--repeats 3] > benchmarks/results/dashboard.json

The store is that of `dashboard_store.py`: 27,648 GPUs, 100 million rows of telemetry, made first where no --store is
given (some minutes). Each repeat starts the dashboard anew, in a process of its own, and a browser that does the same
steps: it opens every page and uses it.

at_once, later  the steps follow the first page at once, or --warm seconds later: by then the server has read ahead
first        `listening_s` from the start of the process until it answers; `page_s` from there until the first page is
             in the browser with its findings
steps        by step, over the repeats (median, least, most): `server_ms`, while the server worked on at least one of
             its requests; `summed_ms`, of all its requests together, which counts twice what waits for each other;
             `bytes` of what they answered (the most), `requests`, `shown_ms` in the browser (median). Energy and
             placement work on beside the page and say so; the requests that show that are counted, that work is not.
interactions the 95th percentile of `server_ms` over all steps but those that open a page anew and `sql: run`, which
             takes what its query takes; and the most bytes of one
opened       the same of the steps that open a page anew
memory       the largest resident memory of the server at the end of a repeat, MiB
plain        the same data by the usual way: DuckDB reads the Parquet files, all points and rows go to the browser as
             one Plotly figure or table: ms of CPU and wall, bytes

Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whorl.benchmarks.dashboard_steps import STEPS, Browsing
from whorl.benchmarks.machine import machine, peak_mb
from whorl.benchmarks.reporting import as_json, say, spread


def serve(store: Path) -> None:
    """The dashboard of a store; a line of JSON on standard output for each request, and at the end its memory."""
    from whorl.dashboards.app.first import begin
    from whorl.store import Store

    reading = begin(Store.open(store))  # as the verb does
    from whorl.cli.advising import Advisor
    from whorl.dashboards.app.access import LIMITS
    from whorl.dashboards.app.shell import make_app
    from whorl.dashboards.serving import Server

    reading.advise = Advisor()
    app = make_app(reading, ahead=True).server
    lock = threading.Lock()

    def watched(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        began = time.perf_counter()
        answer = app(environ, start)
        body = b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        line = {
            "path": environ["PATH_INFO"],
            "began_ms": 1000 * began,
            "ended_ms": 1000 * time.perf_counter(),
            "bytes": len(body),
            "peak_mb": peak_mb(),
        }
        with lock:
            print(json.dumps(line), flush=True)
        return [body]

    server = Server(watched, "127.0.0.1", 0, LIMITS)
    server.start()
    print(json.dumps({"url": server.url}), flush=True)
    sys.stdin.read()
    server.close()
    os._exit(0)  # as the verb does: what is read ahead is not waited for


class Serving:
    """The process of a dashboard, and its requests so far."""

    def __init__(self, store: Path) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, __file__, "--serve", str(store)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["url"])
        self.listening_s = time.perf_counter() - self.began
        self._requests: list[dict[str, Any]] = []
        threading.Thread(target=self._note, daemon=True).start()

    def _note(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._requests.append(json.loads(line))

    def taken(self) -> list[dict[str, Any]]:
        """The requests since the last call that callbacks answered."""
        found, self._requests = self._requests, []
        self.peak_mb = max([one["peak_mb"] or 0 for one in found], default=getattr(self, "peak_mb", 0))
        return [one for one in found if one["path"].endswith("_dash-update-component")]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def serving(store: Path) -> Iterator[Serving]:
    """A dashboard that is ended."""
    one = Serving(store)
    try:
        yield one
    finally:
        one.close()


def busy_ms(asked: list[dict[str, Any]]) -> float:
    """How long the server worked on at least one of these requests: those of a step run at once."""
    spent = until = 0.0
    for one in sorted(asked, key=lambda request: request["began_ms"]):
        spent += max(one["ended_ms"] - max(one["began_ms"], until), 0.0)
        until = max(until, one["ended_ms"])
    return spent


def run(store: Path, browser: Any, warm_s: float) -> dict[str, Any]:
    """All steps once, `warm_s` after the first page."""
    with serving(store) as one:
        browsing = Browsing(browser, one.url)
        opened = time.perf_counter()
        browsing.open("", there="#overview-found td")
        first = {"listening_s": one.listening_s, "page_s": browsing.came_s - opened}
        time.sleep(warm_s)
        one.taken()
        steps = {}
        for name, step in STEPS.items():
            began = time.perf_counter()
            step(browsing)
            browsing.settle()
            shown = 1000 * (time.perf_counter() - began)
            asked = one.taken()
            steps[name] = {
                "server_ms": busy_ms(asked),
                "summed_ms": sum(request["ended_ms"] - request["began_ms"] for request in asked),
                "bytes": sum(request["bytes"] for request in asked),
                "requests": len(asked),
                "shown_ms": shown,
            }
        browsing.close()
        return {"first": first, "steps": steps, "memory_mb": one.peak_mb, "errors": browsing.errors}


def plain(store: Path) -> dict[str, Any]:
    """The same data without reduction: a figure with all readings of 16 GPUs, and a table with a row of each GPU."""
    import duckdb
    import polars as pl
    from plotly.graph_objects import Figure, Scatter

    def timed(work: Callable[[], int]) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        size = work()
        spent = {"wall_ms": 1000 * (time.perf_counter() - wall), "cpu_ms": 1000 * (time.process_time() - cpu)}
        return {name: round(value, 1) for name, value in spent.items()} | {"bytes": size}

    def lines() -> int:
        names = [f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in range(0, 1600, 100)]
        listed = ", ".join(f"'{name}'" for name in names)
        found = duckdb.execute(
            f"SELECT gpu, ts, power_mw, temperature_c, sm_clock_mhz FROM read_parquet('{store}/telemetry/*/*.parquet', "
            f"union_by_name => true) WHERE gpu IN ({listed}) ORDER BY gpu, ts"
        ).to_arrow_table()
        rows = pl.DataFrame(found)
        traces = [
            Scatter(x=one["ts"].to_list(), y=one[metric].to_list(), name=gpu)
            for (gpu,), one in rows.group_by("gpu", maintain_order=True)
            for metric in ("power_mw", "temperature_c", "sm_clock_mhz")
        ]
        return len(Figure(traces).to_json())

    def table() -> int:
        found = duckdb.execute(
            f"SELECT gpu, workload, median(value) AS ms, count(*) AS n FROM read_parquet('{store}/results/*.parquet', "
            "union_by_name => true) WHERE figure = 'time' GROUP BY ALL"
        ).to_arrow_table()
        wide = pl.DataFrame(found).pivot("workload", index="gpu", values=["ms", "n"])
        return len(json.dumps(wide.to_dicts()))

    return {"telemetry of 16 GPUs, an hour, 3 metrics": timed(lines), "table of all GPUs": timed(table)}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all repeats together."""
    steps = {}
    for name in runs[0]["steps"]:
        of = [one["steps"][name] for one in runs]
        steps[name] = {
            "server_ms": spread([one["server_ms"] for one in of], 1),
            "summed_ms": spread([one["summed_ms"] for one in of], 1),
            "bytes": max(one["bytes"] for one in of),
            "requests": max(one["requests"] for one in of),
            "shown_ms": round(statistics.median(one["shown_ms"] for one in of)),
        }
    opened = [name for name in steps if name.startswith("open")]
    used = [name for name in steps if name not in opened and name != "sql: run"]

    def p95(names: list[str]) -> dict[str, Any]:
        every = sorted(one["steps"][name]["server_ms"] for one in runs for name in names)
        most = max(steps[name]["bytes"] for name in names)
        return {
            "n": len(every),
            "server_ms_p95": round(every[math.ceil(0.95 * len(every)) - 1], 1),
            "bytes_most": most,
        }

    return {
        "repeats": len(runs),
        "first": {key: spread([one["first"][key] for one in runs], 2) for key in runs[0]["first"]},
        "interactions": p95(used),
        "opened": p95(opened),
        "memory_mb": max(one["memory_mb"] for one in runs),
        "errors": sorted({error for one in runs for error in one["errors"]}),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store of dashboard_store.py; made where none is given")
    parser.add_argument("--gpus", type=int, default=27_648)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm", type=float, default=20.0, help="seconds after the first page, for what is read ahead")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    from playwright.sync_api import sync_playwright

    from whorl.tests.dashboards.browser import CHROMIUM

    if CHROMIUM is None:
        parser.error("there is no chromium or chrome on this machine")
    before = machine("dash", "plotly", "duckdb", "polars")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        root = given.store or Path(place) / "store"
        if given.store is None:
            from whorl.benchmarks.dashboard_store import made

            made(root, given.gpus, given.rows)
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        found: dict[str, Any] = {}
        for name, warm_s in {"at_once": 0.0, "later": given.warm}.items():
            runs = []
            for number in range(given.repeats):
                say(f"{name}: repeat {number + 1} of {given.repeats}")
                runs.append(run(root, browser, warm_s))
            found[name] = summary(runs)
        browser.close()
        print(as_json({"benchmark": "dashboard", **found, "plain": plain(root), "machine": before}))


if __name__ == "__main__":
    main()
