"""What `whorl dashboard` costs, driven by a real browser: first page, opening pages, and steps on them.

    python -m benchmarks.dashboard [--quick | --long]

pages   stores of 64 and of 27,648 GPUs (runs, verdicts, jobs, an hour of telemetry; 100 million readings with --long,
        else 5 million). Each repeat starts the dashboard anew and does the same steps. `listening_s`: from the start of
        the process until it answers; `first_page_s`: from there until the first page is there with nothing
        under way; of each step the milliseconds until the browser has drawn it, the CPU of the server, and that of
        the browser's page, beside which the server's stands
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from whorl.benchmarks.fleets import PER_NODE
from whorl.benchmarks.harness import BenchOptions, cpu_s, peak_mb, run, say, scratch, spread
from whorl.benchmarks.readings import FleetReadings, FleetShape
from whorl.benchmarks.verdict_speed import make

PAGE_METRICS = (
    "power_mw", "energy_mj", "sm_clock_mhz", "temperature_c", "utilization", "memory_used", "clock_event_reasons",
    "power_violation_ns",
)  # fmt: skip
BEGAN_NS = 1_792_800_000 * 10**9
"""When the hour of telemetry begins: after the last run."""
BLOCK = 100  # nodes whose telemetry is made at a time


def simulated_store(root: Path, gpus: int, rows: int) -> None:
    """The store, with about this many rows of telemetry."""
    from whorl.analysis.verdicts.fingerprint import fingerprints
    from whorl.analysis.verdicts.judgements import conclude

    store, nodes = make(root, gpus), gpus // PER_NODE
    say("verdicts and fingerprints")
    conclude(store)
    fingerprints(store)
    for first in range(0, nodes, BLOCK):
        block = range(first, min(first + BLOCK, nodes))
        readings = FleetReadings(FleetShape(block, max(60, rows // gpus), whole_nodes=True, began_ns=BEGAN_NS))
        store.append({"telemetry": readings.table(PAGE_METRICS), "jobs": readings.jobs()}, f"telemetry-{first}")
    say("telemetry")


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


if __name__ == "__main__":
    run("dashboard", {"pages": pages}, packages=("dash", "plotly", "duckdb", "polars"))
