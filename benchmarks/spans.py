"""What a span costs the application, beside ways without a ledger. Prints JSON.

    python benchmarks/spans.py [--peers PYTHON] [--spans 20000] [--turns 5] > benchmarks/results/spans.json

`--peers` is a Python interpreter that has zeus and nvidia-ml-py. Each way takes empty spans, one after another, in a
process of its own over the simulated driver of the tests (tests/native), whose calls cost next to nothing; so what is
shown is the software's own cost. Ways:

whorl          `with ledger.span(...)`
whorl nested   the same with a span around every ten, and one around all
whorl tasks    100 asyncio tasks, each with spans that overlap the others'
plain          nvidia-ml-py: the energy counter of each GPU, read at begin and end
zeus           ZeusMonitor.begin_window and end_window, without waiting for CUDA
nothing        an empty context manager: what `with` costs

`caller_us` is the CPU time of the calling thread for a span. `process_us` is that of the whole process, with the thread
that splits the energy, less what the same process uses in the same time with one span open: that is the sensor's. The
bare `plain` way knows no nesting, no interval, and no energy of a span that is shorter than the counter's period: the
share of its spans that show 0 J is beside it. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("zeus",)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def _nothing_way(spans: int) -> dict[str, Any]:
    for _ in range(spans):
        with _nothing():
            pass
    return {}


def _flat(ledger: Any, spans: int) -> None:
    for _ in range(spans):
        with ledger.span("request"):
            pass


def _nested(ledger: Any, spans: int) -> None:
    with ledger.span("all"):
        for _ in range(spans // 11):
            with ledger.span("ten"):
                for _ in range(10):
                    with ledger.span("request"):
                        pass


def _tasks(ledger: Any, spans: int) -> None:
    async def one() -> None:
        for _ in range(spans // 100):
            with ledger.span("request"):
                await asyncio.sleep(0)

    async def every() -> None:
        await asyncio.gather(*(one() for _ in range(100)))

    asyncio.run(every())


def _whorl(take: Callable[[Any, int], None]) -> Callable[[int], dict[str, Any]]:
    def way(spans: int) -> dict[str, Any]:
        from whorl import ledger

        books = ledger.open()
        assert books.problem() is None, books.problem()
        _flat(ledger, 1000)
        books.totals()
        began, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        take(ledger, spans)
        own = time.thread_time() - own
        books.totals()  # all of them are split
        lasted, cpu = time.perf_counter() - began, time.process_time() - cpu
        with ledger.span("rest"):  # as long with one span: the sensor's own cost
            rest = time.process_time()
            time.sleep(max(lasted, 0.5))
            rest = (time.process_time() - rest) * lasted / max(lasted, 0.5)
        counted = sum(total.n for total in books.totals()) - 1001
        ledger.close()
        return {"caller_us": own / spans * 1e6, "process_us": (cpu - rest) / spans * 1e6, "spans_counted": counted}

    return way


def _plain(spans: int) -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    none = 0
    own = time.thread_time()
    for _ in range(spans):
        before = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        after = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        none += before == after
    own = time.thread_time() - own
    return {"caller_us": own / spans * 1e6, "process_us": own / spans * 1e6, "share_with_0_j": none / spans}


def _zeus(spans: int) -> dict[str, Any]:
    import pynvml
    from zeus.monitor import ZeusMonitor  # type: ignore[import-not-found]  # the peers have it

    pynvml.nvmlInit()
    monitor = ZeusMonitor(gpu_indices=list(range(pynvml.nvmlDeviceGetCount())), cpu_indices=[])
    none = 0
    cpu, own = time.process_time(), time.thread_time()
    for _ in range(spans):
        monitor.begin_window("request", sync_execution=False)
        none += monitor.end_window("request", sync_execution=False).total_energy == 0
    own, cpu = time.thread_time() - own, time.process_time() - cpu
    return {"caller_us": own / spans * 1e6, "process_us": cpu / spans * 1e6, "share_with_0_j": none / spans}


WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "whorl": _whorl(_flat), "whorl nested": _whorl(_nested), "whorl tasks": _whorl(_tasks), "plain": _plain,
    "zeus": _zeus, "nothing": _nothing_way,
}  # fmt: skip


def turn(way: str, spans: int, python: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [python, __file__, "--way", way, "--spans", str(spans)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    from whorl.benchmarks.reporting import spread  # here: the interpreter of the peers has no whorl

    return {key: spread([one[key] for one in turns], 3) for key in turns[0]} | {"turns": len(turns)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="Python interpreter that has zeus and nvidia-ml-py")
    parser.add_argument("--spans", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--way", choices=tuple(WAYS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        own = time.thread_time()
        found = WAYS[given.way](given.spans)
        own = time.thread_time() - own
        print(json.dumps(found or {"caller_us": own / given.spans * 1e6, "process_us": own / given.spans * 1e6}))
        return
    from whorl.benchmarks.machine import machine  # here: the interpreter of the peers has no whorl
    from whorl.benchmarks.reporting import as_json, say

    simulated = runpy.run_path(str(ROOT / "tests" / "nvml_library.py"))
    ways = [way for way in WAYS if way not in PEERS or given.peers]
    tables: dict[str, Any] = {}
    before = machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        library = simulated["NvmlLibrary"](simulated["compile_library"](folder), folder)
        for gpus in (1, 8):
            library.write(f"gpus {gpus}", "model H100", "load 10 1")
            turns: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for number in range(given.turns):
                for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                    python = str(given.peers) if way in PEERS else sys.executable
                    turns[way].append(turn(way, given.spans, python, library.environment()))
                    say(f"{gpus} GPUs, {way}: {turns[way][-1]}")
            tables[f"{gpus} GPUs"] = {way: summary(ones) for way, ones in turns.items()}
    versions = None
    if given.peers:
        about = "from importlib.metadata import version; print(version('zeus'), version('nvidia-ml-py'))"
        line = subprocess.run([str(given.peers), "-c", about], capture_output=True, text=True, check=True).stdout
        versions = dict(zip(("zeus", "nvidia-ml-py"), line.split(), strict=True))
    print(
        as_json({"benchmark": "spans", "machine": before, "versions": versions, "spans": given.spans, "ways": tables})
    )


if __name__ == "__main__":
    main()
