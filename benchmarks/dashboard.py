"""What `whorl dashboard` costs, driven by a real browser: first page, opening pages, and steps on them.

    python -m benchmarks.dashboard [--only SECTION] [--quick | --long]

pages   stores of 64 and of 27,648 GPUs (runs, verdicts, jobs, an hour of telemetry; 100 million readings with --long,
        else 5 million). Each repeat starts the dashboard anew and does the same steps. `listening_s`: from the start of
        the process until it answers; `first_page_s`: from there until the first page is there with nothing
        under way; of each step the milliseconds until the browser has drawn it, the CPU of the server, and that of
        the browser's page
plain   the same data by the usual way: DuckDB reads the files, all points of 16 GPUs go to the browser as one Plotly
        figure, all GPUs as one table: CPU milliseconds and bytes
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.benchmarks.harness import BenchOptions, cpu_s, peak_mb, run, say, scratch, spread, timed
from whorl.benchmarks.verdict_speed import PER_NODE, make
from whorl.store import Store
from whorl.store.schema import arrow_rows

# -- the store -------------------------------------------------------------------------------------------------------


CLUSTER = "large"
BEGAN_NS = 1_792_800_000_000_000_000
"""When the hour of telemetry begins: after the last run."""
PER_CABINET = 108  # GPUs
_NODES = 70  # whose telemetry is made at a time
_SECOND = 1_000_000_000
_USERS = 200


def simulated_store(root: Path, gpus: int, rows: int) -> Store:
    """The store, with about this many rows of telemetry."""
    from whorl.analysis.verdicts.fingerprint import fingerprints
    from whorl.analysis.verdicts.judgements import conclude

    say("runs")
    store = make(root, gpus, 20, 4, cabinets=max(1, gpus // PER_CABINET))
    say("verdicts and fingerprints")
    conclude(store)
    fingerprints(store)
    random = np.random.default_rng(2026)
    seconds = max(60, rows // gpus)
    names = np.array([f"GPU-{place:08x}-0000-4000-8000-{place:012x}" for place in range(gpus)])
    work = []
    nodes = -(-gpus // PER_NODE)
    for first in range(0, nodes, _NODES):
        last = min(first + _NODES, nodes)
        busy, jobs = _jobs(random, first, last, seconds, names)
        work.append(jobs)
        names_of = names[first * PER_NODE : last * PER_NODE]
        store.append(
            {"telemetry": _telemetry(random, names_of, np.repeat(busy, PER_NODE, axis=0)[: len(names_of)])}, f"t{first}"
        )
        say(f"telemetry of {last:,} of {nodes:,} nodes")
    store.append({"jobs": pa.concat_tables(work)}, "jobs")
    return store


def _jobs(
    random: np.random.Generator, first: int, last: int, seconds: int, names: NDArray[np.str_]
) -> tuple[NDArray[np.bool_], pa.Table]:
    """When each node (nodes, seconds) is busy, and the jobs that make it so."""
    busy = np.zeros((last - first, seconds), dtype=bool)
    rows: dict[str, list[object]] = {
        name: []
        for name in ("cluster", "allocation", "job_id", "user", "account", "state", "began", "ended", "node", "gpu",
        "gpu_from", "share", "node_gpus", "job_gpus", "job_nodes", "source", "recorded")
    }  # fmt: skip
    for node in range(first, last):
        at, number = int(random.integers(0, 300)), 0
        while at < seconds - 30:
            end = min(seconds, at + int(random.integers(300, 1800)))
            busy[node - first, at:end] = True
            user = int(random.integers(0, _USERS))
            job = f"{1000 * node + number}"
            for gpu in names[node * PER_NODE : (node + 1) * PER_NODE]:
                values = (
                    CLUSTER, job, job, f"user{user:03d}", f"group{user % 20:02d}", "COMPLETED", BEGAN_NS + at * _SECOND,
                    BEGAN_NS + end * _SECOND, f"h{node:04d}", str(gpu), "file", 1.0, 1, PER_NODE, 1, "csv",
                    BEGAN_NS + end * _SECOND,
                )  # fmt: skip
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
            at, number = end + int(random.integers(10, 200)), number + 1
    return busy, arrow_rows("jobs", rows)


def _telemetry(random: np.random.Generator, names: NDArray[np.str_], busy: NDArray[np.bool_]) -> pa.Table:
    """A reading of each GPU every second."""
    n, seconds = busy.shape
    shape = busy.shape
    level = random.normal(285.0, 8.0, (n, 1))
    watts = np.where(busy, level, random.normal(42.0, 1.5, (n, 1))) + random.normal(0.0, 1.5, shape)
    watts[random.random(shape) < 2e-5] += 90.0
    warm = np.empty(shape)
    now = np.full(n, 34.0)
    target = 26.0 + 0.13 * watts + random.normal(0.0, 2.0, (n, 1))
    for second in range(seconds):
        now += 0.02 * (target[:, second] - now)
        warm[:, second] = now
    clock = 15 * np.rint((1380.0 - 0.8 * (warm - 60.0) + random.normal(0.0, 6.0, shape)) / 15.0)
    held = busy & (random.random(shape) < 0.7)
    who = np.repeat(np.arange(n, dtype=np.int32), seconds)
    ts = BEGAN_NS + _SECOND * np.arange(seconds, dtype=np.int64) + 1_000_000 * random.integers(0, 40, (n, 1))
    columns = {
        "ts": pa.array(ts.ravel().view("datetime64[ns]")),
        "cluster": pa.DictionaryArray.from_arrays(np.zeros(n * seconds, np.int32), [CLUSTER]).cast(pa.string()),
        "gpu": pa.DictionaryArray.from_arrays(who, names).cast(pa.string()),
        "power_mw": np.rint(1000.0 * watts).astype(np.int32).ravel(),
        "energy_mj": np.cumsum(np.rint(1000.0 * watts).astype(np.int64), axis=1).ravel(),
        "sm_clock_mhz": np.where(busy, clock, 135).astype(np.int32).ravel(),
        "temperature_c": np.rint(warm).astype(np.int32).ravel(),
        "utilization": np.where(busy, 99, 0).astype(np.int32).ravel(),
        "memory_used": np.where(busy, 14_000_000_000, 500_000_000).astype(np.int64).ravel(),
        "clock_event_reasons": np.where(held, 4, np.where(busy, 0, 1)).astype(np.int64).ravel(),
        "power_violation_ns": np.cumsum(np.where(held, 700_000_000, 0), axis=1).ravel(),
    }  # fmt: skip
    return pa.table(columns)


# -- pages -----------------------------------------------------------------------------------------------------------

Step = Callable[[Any], None]


def opening(path: str) -> Step:
    """Open a page by its address."""
    return lambda page: page.goto(f"{page.base}{path}")


def going(path: str) -> Step:
    """Go on to another address as a link of the page does: no page is loaded."""
    script = "path => { history.pushState({}, '', path); dispatchEvent(new CustomEvent('_dashprivate_pushstate')); }"
    return lambda page: page.window.evaluate(script, f"/{path}")


STEPS: dict[str, Step] = {
    "open overview": opening(""), "open fleet": opening("fleet?probe=gemm"),
    "fleet: another": going("fleet?probe=spmv"),
    "open gpu": opening("gpu?gpu=h0007/2"), "gpu: another": going("gpu?gpu=h0007/3"),
    "open telemetry": opening("telemetry?gpu=h0007/2"), "telemetry: a node": going("telemetry?node=h0005"),
    "open energy": opening("energy"), "energy: by job": going("energy?by=job"),
    "open placement": opening("placement?probe=gemm"), "placement: another": going("placement?probe=spmv"),
    "open sql": opening("sql"),
}  # fmt: skip


class Browsing:
    """A window of a browser over a dashboard."""

    def __init__(self, browser: Any, base: str) -> None:
        self.base = base
        self.window = browser.new_page(viewport={"width": 1440, "height": 900})
        self.window.set_default_timeout(120_000)
        self._metrics = self.window.context.new_cdp_session(self.window)
        self._metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.errors: list[str] = []
        self.bytes = self._under_way = 0
        self.window.on("console", lambda text: self.errors.append(text.text[:200]) if text.type == "error" else None)
        self.window.on("request", lambda _: self._count(1))
        self.window.on("requestfinished", lambda _: self._count(-1))
        self.window.on("requestfailed", lambda _: self._count(-1))

    def _count(self, change: int) -> None:
        self._under_way += change

    def goto(self, address: str) -> None:
        """Open an address and wait for its heading."""
        self.window.goto(address)
        self.window.wait_for_selector("h1")

    def cpu_ms(self) -> float:
        """CPU of the page so far, milliseconds; another page begins at 0."""
        metrics = self._metrics.send("Performance.getMetrics")["metrics"]
        return next(1000 * float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")

    def settled_ms(self, step: Step) -> float:
        """Do a step; milliseconds until no request is under way and all is drawn, less the quiet moment in which no
        request began."""
        began = time.perf_counter()
        step(self)
        quiet_ms = 250.0
        while True:
            self.window.wait_for_timeout(quiet_ms)
            if self._under_way <= 0:
                self.window.evaluate("() => new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")
                return 1000 * (time.perf_counter() - began) - quiet_ms


def browsed(store: Path, browser: Any) -> dict[str, Any]:
    """A dashboard from its start through all steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base, began = f"http://127.0.0.1:{port}/", time.perf_counter()
    command = [sys.executable, "-m", "whorl", "dashboard", "--store", str(store), "--listen", f"127.0.0.1:{port}"]
    server = subprocess.Popen(
        [*command, "--token-file", "none", "--set", "browser=no"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                urllib.request.urlopen(base, timeout=60).read()
                break
            except OSError:
                if server.poll() is not None:
                    raise RuntimeError(f"whorl dashboard ended with status {server.returncode}") from None
                time.sleep(0.05)
        listening_s = time.perf_counter() - began
        browsing = Browsing(browser, base)
        first_ms = browsing.settled_ms(opening(""))
        steps = {}
        for name, step in STEPS.items():
            before, page_before = cpu_s(server.pid), browsing.cpu_ms()
            shown_ms = browsing.settled_ms(step)
            page_ms = browsing.cpu_ms()
            steps[name] = {
                "shown_ms": shown_ms,
                "server_cpu_ms": 1000 * (cpu_s(server.pid) - before),
                "browser_cpu_ms": page_ms - page_before if page_ms >= page_before else page_ms,
            }
        browsing.window.close()
        return {"listening_s": listening_s, "first_page_s": first_ms / 1000, "peak_mb": peak_mb(server.pid),
                "errors": browsing.errors, "steps": steps}  # fmt: skip
    finally:
        server.terminate()
        server.wait(60)


def pages(options: BenchOptions) -> dict[str, Any]:
    """Both stores; the 95th percentile is over the steps that do not load a page anew, of all repeats."""
    from playwright.sync_api import sync_playwright

    from whorl.tests.dashboards.browser import CHROMIUM

    if CHROMIUM is None:
        return {"did_not_run": "there is no chromium or chrome on this machine"}
    large, tables = options.pick(120, 27_648, 27_648), {}
    readings = options.pick(20_000, 5_000_000, 100_000_000)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    for name, gpus in (("64 GPUs", 64), ("large", large)):
        with scratch() as folder, sync_playwright() as playwright:
            simulated_store(folder / "store", gpus, readings if name == "large" else gpus * 3600)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
            runs = []
            for _ in range(options.pick(1, 3, 5)):
                runs.append(browsed(folder / "store", browser))
                say(f"{name}: {runs[-1]['listening_s']:.2f} s, {runs[-1]['first_page_s']:.2f} s")
            browser.close()
        used = [row["shown_ms"] for part in runs for step, row in part["steps"].items() if not step.startswith("open")]
        tables[name] = {
            "gpus": gpus, "listening_s": spread([part["listening_s"] for part in runs]),
            "first_page_s": spread([part["first_page_s"] for part in runs]),
            "steps_p95_ms": round(float(np.percentile(used, 95)), 1), "n": len(used),
            "peak_mb": max(part["peak_mb"] or 0 for part in runs),
            "errors": sorted({error for part in runs for error in part["errors"]}),
            "steps": {step: {figure: spread([part["steps"][step][figure] for part in runs], 1)
                             for figure in ("shown_ms", "server_cpu_ms", "browser_cpu_ms")} for step in STEPS},
        }  # fmt: skip
    return {"telemetry_rows": readings, **tables}


def plain(options: BenchOptions) -> dict[str, Any]:
    """A figure with all readings of 16 GPUs, and a table with a row of each GPU."""
    import duckdb
    import polars as pl
    from plotly.graph_objects import Figure, Scatter

    gpus, readings = options.pick(120, 27_648, 27_648), options.pick(20_000, 5_000_000, 100_000_000)
    with scratch() as folder:
        store = folder / "store"
        simulated_store(store, gpus, readings)

        def lines() -> int:
            names = ", ".join(f"'GPU-{place:08x}-0000-4000-8000-{place:012x}'" for place in range(0, gpus, gpus // 16))
            rows = pl.DataFrame(duckdb.execute(
                "SELECT gpu, ts, power_mw, temperature_c, sm_clock_mhz FROM "
                f"read_parquet('{store}/telemetry/*/*.parquet', union_by_name => true) WHERE gpu IN ({names}) "
                "ORDER BY gpu, ts"
            ).to_arrow_table())  # fmt: skip
            traces = [
                Scatter(x=part["ts"].to_list(), y=part[metric].to_list(), name=gpu)
                for (gpu,), part in rows.group_by("gpu", maintain_order=True)
                for metric in ("power_mw", "temperature_c", "sm_clock_mhz")
            ]
            return len(Figure(traces).to_json())

        def table() -> int:
            rows = pl.DataFrame(duckdb.execute(
                "SELECT gpu, workload, median(value) AS ms, count(*) AS n FROM "
                f"read_parquet('{store}/results/*.parquet', union_by_name => true) WHERE figure = 'time' GROUP BY ALL"
            ).to_arrow_table())  # fmt: skip
            return len(json.dumps(rows.pivot("workload", index="gpu", values=["ms", "n"]).to_dicts()))

        figures = {"16 GPUs, 3 metrics": timed(lines), "a table of all GPUs": timed(table)}
    return {name: {"cpu_s": row["cpu_s"], "bytes": row["answer"], "n": 1} for name, row in figures.items()}


SECTIONS = {"pages": pages, "plain": plain}

if __name__ == "__main__":
    run("dashboard", SECTIONS, packages=("dash", "plotly", "duckdb", "polars"))
