"""The phases of a first GPU: what each measures, and what it writes down as soon as it is known."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from whorl.errors import DeviceError, WhorlError
from whorl.kernels import cupy_library
from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.cublas import DATA_TYPES
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.cupy_loaded import CupyLoaded
from whorl.kernels.cupy_waiting import OUTSTANDING, Late, Waiting
from whorl.kernels.device import finish
from whorl.kernels.sizing import VECTOR, flop_per_s
from whorl.kernels.work import Buffer, Gemm, Launch, Work
from whorl.probes.catalogue import Probe, find_probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.node_watch import NodeWatch
from whorl.probes.protocol import Measured, measure
from whorl.probes.steps import Task
from whorl.probes.watch import Recent

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60.0
INTERVAL_S = 0.1
CEILING_PROBES = (
    "gemm-bf16", "gemm-fp32", "fma-fp32", "stream-triad", "gemm-fp16", "gemm-fp64", "gemm-tf32", "gemm-fp8",
    "fma-fp64", "fma-fp16", "fma-int32", "copy-d2d", "stream-copy",
)  # fmt: skip
SPREAD_KERNELS = ("gemm-bf16", "fma-fp32", "stream-triad", "gemm-fp32", "fma-fp64", "copy-d2d", "l2-read")
SPREAD_RUNS = 12
TELEMETRY_KERNELS = ("gemm-fp32", "stream-triad")
TELEMETRY_PAIRS = 8
COUNTER_S = 4.0
RUN_S = 0.6
"""Of one run of a kernel among several."""


class Findings:
    """What a phase has found so far, in a file that is whole at any time."""

    def __init__(self, path: Path | None) -> None:
        """`path`: of the file; what stands in it was found by a process that ended early."""
        self._path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def put(self, name: str, value: Any) -> None:
        """Write a finding down, instead of an earlier one of that name."""
        self.values[name] = value
        self._write()

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Write a row of a list of findings down."""
        self.values.setdefault(name, []).append(row)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            part = self._path.with_name(self._path.name + ".part")
            part.write_text(json.dumps(self.values))
            part.replace(self._path)


@dataclass(frozen=True)
class Phase:
    """One phase: how long it may take, s, and what it does with the GPU."""

    limit_s: float
    run: Callable[[CupyDevice, Findings], None]
    resumes: bool = False
    """Whether another process goes on with it where one failed or was killed."""


def run_phase(name: str, gpu: int, findings: Findings) -> int:
    """Run a phase in this process; the answer is its exit status. The last line on standard error says what failed."""
    try:
        device = cupy_devices([gpu])[0]
        try:
            (l2_read if name == "l2_read" else PHASES[name].run)(device, findings)
        finally:
            device.close()
    except WhorlError as error:
        print(error, file=sys.stderr)
        return DeviceError.exit_code
    return 0


def _deadline() -> float:
    """When the phase will be killed, by `time.monotonic`, less what it takes to write the last finding."""
    return _BEGAN + float(os.environ.get("WHORL_PHASE_SECONDS", "600")) - 3.0


_BEGAN = time.monotonic()


def _work(device: CupyDevice, kernel: str, **parameters: Any) -> Work | None:
    """What a kernel does on this GPU; None where it cannot run it, or the phase has no time left."""
    work = find_kernel(kernel).build(device.facts, **parameters)
    return work if isinstance(work, Work) and time.monotonic() < _deadline() else None


def _needed(device: CupyDevice, kernel: str) -> Work:
    work = find_kernel(kernel).build(device.facts)
    if not isinstance(work, Work):
        raise DeviceError(f"{device.facts.gpu}: it cannot run {kernel}")
    return work


@contextmanager
def _loaded(device: CupyDevice, work: Work, seed: int = 1) -> Iterator[CupyLoaded]:
    loaded = finish(device.load(work, seed=seed))
    try:
        yield loaded
    finally:
        loaded.unload()


# -- phases -----------------------------------------------------------------------------------------------


def facts(device: CupyDevice, findings: Findings) -> None:
    """What the GPU, the driver and the libraries say of themselves, and CUDA's status codes as CuPy gives them."""
    about, runtime = device.facts, device.runtime
    names = ("model", "sms", "memory_bytes", "l2_bytes", "max_clock_mhz", "bandwidth_gb_s", "peers")
    properties = {name: getattr(about, name) for name in names}
    findings.put("device", properties | {"capability": ".".join(map(str, about.capability))})
    codes: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {
        "free of a wrong address": lambda: runtime.free(64),
        "copy of a wrong kind": lambda: runtime.memcpy(0, 0, 16, 99),
        "device that is not there": lambda: runtime.setDevice(999),
        "memory beyond all": lambda: runtime.malloc(1 << 50),
    }
    for name, call in calls.items():
        try:
            with device.using("asking for a status"):
                codes[name] = call()
        except Exception as error:
            cause = error.__cause__ or error
            codes[name] = {"status": getattr(cause, "status", None), "words": str(cause)}
        findings.put("status_codes", codes)
    with _loaded(device, _needed(device, "gemm-fp32")):  # the libraries are loaded by it
        pass
    findings.put("versions", dict(device.versions))
    with device.using("asking for its memory"):
        findings.put("memory_free_bytes", int(runtime.memGetInfo()[0]))


def kernels(device: CupyDevice, findings: Findings) -> None:
    """Every kernel over poisoned outputs, by launches and by its graph; one that does nothing must be found.

    A kernel that ruins the GPU for its process, or ends it, has a row that says so, and the next process goes on.
    """
    trying = findings.values.get("trying")
    if trying is not None:
        findings.add("kernels", {"kernel": trying, "problem": "its process ended"})
    for name in KERNELS:
        work = _work(device, name)
        tried = {row["kernel"] for row in findings.values.get("kernels", [])}
        if work is None or name in tried:
            continue
        findings.put("trying", name)
        row: dict[str, Any] = {"kernel": name, "problem": None}
        try:
            with _loaded(device, work, seed=11) as loaded:
                row |= _checked(loaded)
            row["omission_is_found"] = _omission_is_found(device, work)
        except Exception as error:
            row["problem"] = f"{type(error).__name__}: {error}"
        findings.add("kernels", row)
        findings.put("trying", None)
        if device.lost is not None:
            raise DeviceError(device.lost)
    bad = [row["kernel"] for row in findings.values.get("kernels", []) if row["problem"] is not None]
    if bad:
        raise DeviceError(f"these kernels failed: {', '.join(bad)}")


def _checked(loaded: CupyLoaded) -> dict[str, Any]:
    finish(loaded.poison())
    first = finish(loaded.run(1, limit_s=LIMIT_S))  # launch by launch, then the graph is made
    direct = finish(loaded.check())
    finish(loaded.poison())
    timed = finish(loaded.run(5, limit_s=LIMIT_S))
    graph = finish(loaded.check())
    return {
        "elements": graph.elements,
        "repetitions": direct.repetitions + graph.repetitions,
        "wrong": direct.wrong + graph.wrong,
        "first_wrong": direct.first or graph.first,
        "wrong_by_sm": {**direct.by_sm, **graph.by_sm},
        "worst": max(direct.worst, graph.worst),
        "first_ms": float(first.times_ms[0]),
        "times_ms": timed.times_ms.tolist(),
        "memory_bytes": loaded.work.memory_bytes,
    }


def _omission_is_found(device: CupyDevice, work: Work) -> bool:
    """Whether the check finds a repetition that does nothing: the second one, over poisoned outputs."""
    turns = (work.turns[0], (), *work.turns[2:])
    beside = work.beside and (*work.beside[:1], (), *work.beside[2:])
    with _loaded(device, replace(work, turns=turns, beside=beside), seed=11) as loaded:
        finish(loaded.run(2, limit_s=LIMIT_S))
        return finish(loaded.check()).wrong > 0


def _watched(device: CupyDevice, recent: Recent) -> NodeWatch:
    return NodeWatch(recent.feed, None, node=device.facts.node, interval_s=INTERVAL_S)


def _measured(device: CupyDevice, recent: Recent, probe: Probe, *, first: bool) -> Measured | None:
    answer = finish(measure(device, recent, Task(probe, Asked(EFFORTS["quick"]), first=first), find_kernel))
    return answer if isinstance(answer, Measured) else None


# The plain calls that kernels are compared with: a product by CuPy's own handle of cuBLAS, and the runtime's copy.

COMPUTE_TYPES = {"fp64": 70, "fp32": 68, "tf32": 77, "fp16": 68, "bf16": 68}
"""Of cuBLAS, by precision."""
BATCHES = 12


def plain_median_ms(device: CupyDevice, enqueue: Callable[[], None], seconds: float) -> float:
    """The median time of a call, over so many seconds of it in batches, after half as many that are not counted.

    Without those a GPU that its power limit holds down would look faster than under a probe, which warms it up. To be
    called with the device as the current one. DeviceError where a batch takes longer than LIMIT_S.
    """
    runtime, waiting = device.runtime, Waiting(device.runtime, device.stream_address)
    begins, ends = waiting.event(), waiting.event()

    def batch(calls: int) -> float:
        waiting.record(begins)
        for _ in range(calls):
            enqueue()
        waiting.record(ends)
        waiting.until(ends, time.monotonic() + LIMIT_S)
        return float(runtime.eventElapsedTime(begins, ends)) / calls

    try:
        batch(1)
        once_ms = max(batch(1), 1e-3)
        calls = max(1, min(OUTSTANDING, round(1e3 * seconds / BATCHES / once_ms)))
        times = [batch(calls) for _ in range(BATCHES + BATCHES // 2)]
    except Late:  # nothing is given back, as to try would wait for what hangs
        raise DeviceError(f"{device.facts.gpu}: a plain call hangs: {LIMIT_S:g} s were not enough", gone=True) from None
    for event in (begins, ends):
        runtime.eventDestroy(event)
    return float(np.median(times[BATCHES // 2 :]))


def product_gflop_s(device: CupyDevice, loaded: CupyLoaded, seconds: float) -> float:
    """The rate of `cublasGemmEx` as CuPy calls it: both matrices row-major, nothing transposed, its own workspace."""
    step = next(step for step in loaded.work.turns[0] if isinstance(step, Gemm))
    libs = importlib.import_module("cupy_backends.cuda.libs")
    cublas = getattr(libs, "cublas", None) or importlib.import_module("cupy_backends.cuda.libs.cublas")
    scalar = np.float64 if step.precision == "fp64" else np.float32
    alpha, zero = np.ones(1, scalar), np.zeros(1, scalar)
    types = {buffer.name: DATA_TYPES[np.dtype(buffer.dtype).name] for buffer in loaded.work.buffers}
    a, b, c = (loaded.address(name) for name in (step.a, step.b, step.c))
    m, n, k = step.m, step.n, step.k
    with device.using("a plain product"):
        handle = importlib.import_module("cupy").cuda.device.get_cublas_handle()

        def enqueue() -> None:
            cublas.gemmEx(
                *(handle, 0, 0, n, m, k, alpha.ctypes.data, b, types[step.b], n, a, types[step.a], k),
                *(zero.ctypes.data, c, types[step.c], n, COMPUTE_TYPES[step.precision], -1),
            )

        return 2 * m * n * k / plain_median_ms(device, enqueue, seconds) / 1e6


def copy_gb_s(device: CupyDevice, seconds: float) -> float:
    """The rate of the runtime's copy within device memory, bytes read and written, in buffers far beyond L2."""
    runtime = device.runtime
    size = min(1 << 30, device.facts.memory_bytes // 16)
    with device.using("a plain copy"):
        source, target = runtime.malloc(size), runtime.malloc(size)
        stream, kind = device.stream_address, runtime.memcpyDefault
        runtime.memsetAsync(source, 0x5A, size, stream)
        rate = (
            2 * size / plain_median_ms(device, lambda: runtime.memcpyAsync(target, source, size, kind, stream), seconds)
        )
        for address in (source, target):
            runtime.free(address)
    return rate / 1e6


def ceilings(device: CupyDevice, findings: Findings) -> None:
    """The rate of each probe beside its ceiling of the same run: plain cuBLAS, the best copy, lanes times clock."""
    recent = Recent([device.facts.gpu], seconds=120.0, interval_s=INTERVAL_S)
    best_copy = copy_gb_s(device, 1.0)
    findings.put("plain_copy_gb_s", best_copy)
    with _watched(device, recent):
        for position, name in enumerate(CEILING_PROBES):
            if time.monotonic() > _deadline():
                break
            probe = find_probe(name)
            try:
                measured = _measured(device, recent, probe, first=position == 0)
                if measured is not None:
                    findings.add("probes", _beside_ceiling(device, probe, measured, best_copy))
            except DeviceError as error:
                findings.add("problems", {"probe": name, "problem": str(error)})
                if device.lost is not None:
                    raise


def _beside_ceiling(device: CupyDevice, probe: Probe, measured: Measured, best_copy: float) -> dict[str, Any]:
    values = {figure.name: figure.value for figure in measured.figures}
    figure = next(name for name in ("rate", "bandwidth", "operation_rate") if name in values)
    clock = measured.window.sm_clock_mhz
    work = _needed(device, probe.kernel)
    ceiling, kind, problem = None, "peak of the units", None
    family = probe.kernel.partition("-")[0]
    if family in ("stream", "copy"):
        figure, ceiling, kind = "bandwidth", best_copy, "best copy"
    elif family == "gemm" and work.precision != "fp8":
        kind = "plain product"
        with _loaded(device, work) as loaded:
            try:
                ceiling = product_gflop_s(device, loaded, 0.5)
            except (ImportError, RuntimeError) as error:  # of CuPy's binding
                problem = f"the plain product failed: {error}"
    elif clock is not None and device.facts.capability in VECTOR:  # of others no peak is known
        facts = replace(device.facts, max_clock_mhz=clock)
        ceiling = flop_per_s(facts, work.precision, matrix=family == "gemm") / 1e9
        kind = "peak of the units" if family == "fma" else "peak"
    return {
        "probe": probe.name, "figure": figure, "value": values[figure], "ceiling": kind, "ceiling_value": ceiling,
        "share_percent": None if not ceiling else 100 * values[figure] / ceiling,
        "n": int(values.get("repetitions", 0)), "sm_clock_mhz": clock, "power_w": measured.window.power_w,
        "wrong": measured.verdict.wrong, "problem": problem,
    }  # fmt: skip


def quick(device: CupyDevice, findings: Findings) -> None:
    """The quick suite as a user runs it, from the command line into a store, as often as there is time."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            began = time.monotonic()
            taken_s = findings.values.get("runs", [{}])[-1].get("seconds", 0.0)
            if number and began + taken_s > _deadline():
                break
            program = "import benchmarks.gpu_first; from whorl.cli import cli; cli()"
            words = ["probe", "run", "--suite", "quick", "--backend", "cuda", "--gpu", device.facts.gpu, "--json"]
            done = _ran([sys.executable, "-c", program, *words, "--store", f"{folder}/{number}"])
            row: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "exit": done.returncode}
            try:
                row["runs"] = json.loads(done.stdout)["runs"]
            except (ValueError, KeyError):
                row["problem"] = done.stderr.strip()[-500:]
            findings.add("runs", row)
        statuses = [row["exit"] for row in findings.values["runs"]]
        if any(statuses):
            raise DeviceError(f"the quick suite ended with status {max(statuses)}")


def _ran(command: list[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds)


def _last_words(done: subprocess.CompletedProcess[str], lines: int) -> list[str]:
    return (done.stdout + done.stderr).strip().splitlines()[-lines:]


def spread(device: CupyDevice, findings: Findings) -> None:
    """Twelve runs of the kernels that verdicts rest on, in turns, so that a drift of the GPU meets them all."""
    loaded = {name: finish(device.load(work, seed=1)) for name in SPREAD_KERNELS if (work := _work(device, name))}
    rows: dict[str, dict[str, Any]] = {
        name: {"kernel": name, "path": kernel.work.path, "times_ms": [], "wrong": 0} for name, kernel in loaded.items()
    }
    for _ in range(SPREAD_RUNS):
        for name, kernel in loaded.items():
            if time.monotonic() < _deadline():
                rows[name]["times_ms"].append(_median_ms(kernel, RUN_S))
                rows[name]["wrong"] += finish(kernel.check()).wrong
        findings.put("kernels", list(rows.values()))


def _median_ms(loaded: CupyLoaded, seconds: float) -> float:
    """The median time of a repetition over so many seconds, after a third as many that are not counted."""
    once_s = max(float(finish(loaded.run(2, limit_s=LIMIT_S)).times_ms[-1]) / 1e3, 1e-6)
    repeats = max(12, min(2000, round(seconds / once_s)))
    times = finish(loaded.run(repeats + repeats // 3, limit_s=LIMIT_S)).times_ms
    return float(np.median(times[repeats // 3 :]))


def inputs(device: CupyDevice, findings: Findings) -> None:
    """The same products with uniform, normal and zero inputs: data alone change power and clock."""
    recent = Recent([device.facts.gpu], seconds=60.0, interval_s=INTERVAL_S)
    with _watched(device, recent):
        for kernel in ("gemm-bf16", "gemm-fp32"):
            for distribution in ("uniform", "normal", "zeros", "uniform"):
                work = _work(device, kernel, input=distribution)
                if work is None:
                    continue
                with _loaded(device, work) as loaded:
                    began_ns = device.now_ns()
                    time_ms = _median_ms(loaded, 2 * RUN_S)
                window = recent.window(device.facts.gpu, began_ns, device.now_ns())
                row: dict[str, Any] = {"kernel": kernel, "input": distribution, "rate": work.flop / time_ms / 1e6}
                row |= {"power_w": window.power_w, "sm_clock_mhz": window.sm_clock_mhz}
                findings.add("products" if kernel == "gemm-bf16" else "products_fp32", row)


def repeatability(device: CupyDevice, findings: Findings) -> None:
    """Whether a product repeats bit for bit: within a load, after loading again, and with another stream of work."""
    for kernel in ("gemm-bf16", "gemm-fp16", "gemm-tf32", "gemm-fp32", "gemm-fp64", "gemm-fp8", "transformer"):
        work = _work(device, kernel)
        if work is None:
            continue
        digests: list[str] = []
        wrong = repetitions = 0
        for _ in range(2):
            with _loaded(device, work, seed=5) as loaded:
                finish(loaded.run(1, limit_s=LIMIT_S))  # the first run has one repetition more
                for _ in range(2):
                    finish(loaded.poison())
                    finish(loaded.run(work.lap, limit_s=LIMIT_S))
                    verdict = finish(loaded.check())
                    digests.append(_digest(loaded))
                    wrong, repetitions = wrong + verdict.wrong, repetitions + verdict.repetitions
        alike = len(set(digests)) == 1
        row = {"kernel": kernel, "alike": alike, "digests": digests, "wrong": wrong, "n": repetitions}
        findings.add("kernels", row)


def _digest(loaded: CupyLoaded) -> str:
    """A hash of the last result of the first lap."""
    output = next(output for output in loaded.work.outputs if output.turn == loaded.work.lap - 1)
    result = finish(loaded.read(output.buffer))[output.at :][: loaded.work.elements_of(output)]
    return hashlib.sha256(result.tobytes()).hexdigest()[:16]


def memory(device: CupyDevice, findings: Findings) -> None:
    """The memory and multiprocessor tests as the quick suite has them."""
    recent = Recent([device.facts.gpu], seconds=60.0, interval_s=INTERVAL_S)
    for name in ("memory", "sm"):
        measured = _measured(device, recent, find_probe(name), first=False)
        if measured is not None:
            figures = [figure for figure in measured.figures if figure.name != "time"]
            findings.put(
                name,
                {
                    "figures": {figure.name: [figure.value, figure.unit] for figure in figures},
                    "wrong": measured.verdict.wrong,
                    "detail": measured.status_detail,
                    "conditions": {key: value for key, value in measured.conditions.items() if np.isscalar(value)},
                },
            )


def counter(device: CupyDevice, findings: Findings) -> None:
    """How often the energy counter and the power reading have a new value under load."""
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.facts.gpu)
    stop = threading.Event()
    with _loaded(device, _needed(device, "gemm-fp32")) as loaded:
        load = threading.Thread(target=_keep_busy, args=(loaded, stop))
        load.start()
        try:
            for name, read in (
                ("energy_mj", pynvml.nvmlDeviceGetTotalEnergyConsumption),
                ("power_mw", pynvml.nvmlDeviceGetPowerUsage),
            ):
                findings.put(name, _renewed(partial(read, handle)))
        finally:
            stop.set()
            load.join(LIMIT_S)
    pynvml.nvmlShutdown()


def _renewed(read: Callable[[], int]) -> dict[str, Any]:
    """How often a reading has a new value, and how long it takes."""
    edges: list[float] = []
    call_s: list[float] = []
    latest, began = None, time.perf_counter()
    while time.perf_counter() - began < COUNTER_S:
        called = time.perf_counter()
        try:
            value = read()
        except Exception as error:
            return {"problem": str(error)}
        call_s.append(time.perf_counter() - called)
        if value != latest:
            edges.append(called)
            latest = value
        time.sleep(0.0005)
    ms = 1e3 * np.diff(edges[1:])
    if not len(ms):
        return {"problem": "it has had no two new values", "n": 0}
    of_periods = {"period_ms": float(np.median(ms)), "shortest_ms": float(ms.min()), "longest_ms": float(ms.max())}
    return of_periods | {"n": len(ms), "call_us": 1e6 * statistics.median(call_s)}


def _keep_busy(loaded: CupyLoaded, stop: threading.Event) -> None:
    while not stop.is_set():
        finish(loaded.run(20, limit_s=LIMIT_S))


def gil(device: CupyDevice, findings: Findings) -> None:
    """For how long other threads of the process stand still while the GPU is prepared and used."""
    work = _needed(device, "gemm-fp64")
    actions: dict[str, Callable[[], object]] = {
        "nothing": lambda: time.sleep(0.5),
        "loading gemm-fp64": lambda: _ran_and_checked(device, work, 0),
        "running gemm-fp64": lambda: _ran_and_checked(device, work, 20),
        "loading pagerank": lambda: _ran_and_checked(device, _needed(device, "pagerank"), 0),
    }
    for doing, action in actions.items():
        stop = threading.Event()
        gaps_s: list[float] = []

        def tick(stop: threading.Event = stop, gaps_s: list[float] = gaps_s) -> None:
            latest = time.perf_counter()
            while not stop.is_set():
                time.sleep(0.001)
                now = time.perf_counter()
                gaps_s.append(now - latest)
                latest = now

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            action()
        finally:
            stop.set()
            ticker.join()
        findings.add("stalls", {"doing": doing, "longest_ms": 1e3 * max(gaps_s), "n": len(gaps_s)})


def _ran_and_checked(device: CupyDevice, work: Work, repetitions: int) -> None:
    with _loaded(device, work, seed=3) as loaded:
        if repetitions:
            finish(loaded.run(repetitions, limit_s=LIMIT_S))
            finish(loaded.check())


def telemetry(device: CupyDevice, findings: Findings) -> None:
    """The same work in turns with telemetry read ten times a second beside it and without."""
    recent = Recent([device.facts.gpu], seconds=60.0, interval_s=INTERVAL_S)
    for name in TELEMETRY_KERNELS:
        ratios: list[float] = []
        with _loaded(device, _needed(device, name)) as loaded:
            _median_ms(loaded, RUN_S)
            for pair in range(TELEMETRY_PAIRS):
                times: dict[bool, float] = {}
                for watched in (pair % 2 == 0, pair % 2 == 1):  # a GPU that drifts favours neither
                    with _watched(device, recent) if watched else nullcontext():
                        times[watched] = _median_ms(loaded, RUN_S)
                ratios.append(times[True] / times[False])
        costs = [100 * (ratio - 1) for ratio in ratios]
        row = {"kernel": name, "cost_percent": statistics.median(costs), "pairs": len(costs), "costs_percent": costs}
        findings.add("kernels", row)


def gpu_tests(device: CupyDevice, findings: Findings) -> None:
    """The tests that need a GPU, their failures in the words of pytest."""
    device.close()
    seconds = max(10.0, _deadline() - time.monotonic())
    options = ["-q", "--maxfail=20", "-p", "no:cacheprovider", "-W", "default", "tests/gpu"]
    try:
        done = _ran([sys.executable, "-m", "pytest", *options], seconds)
    except subprocess.TimeoutExpired as error:
        findings.put("words", (error.stdout or b"").decode(errors="replace").strip().splitlines()[-40:])
        raise DeviceError(f"pytest did not end within {seconds:.0f} s") from None
    words = _last_words(done, 40)
    findings.put("exit", done.returncode)
    findings.put("words", words)
    if done.returncode:
        last = words[-1] if words else "it said nothing"
        raise DeviceError(f"pytest ended with status {done.returncode}: {last}")


def ncu(device: CupyDevice, findings: Findings) -> None:
    """How many bytes of l2-read come from device memory, where NVIDIA's profiler is there and may count."""
    program = shutil.which("ncu")
    findings.put("there", program is not None)
    if program is None:
        return
    device.close()
    metrics = ("dram__bytes_read.sum", "lts__t_bytes_op_read.sum")
    command = [program, "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)]
    command += ["--kernel-name", "read_again", sys.executable, "-m", "benchmarks.gpu_first", "--run", "l2_read"]
    done = _ran(command, 120)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    try:
        dram, l2 = (statistics.median(float(row[name].replace(",", "")) for row in rows[1:]) for name in metrics)
        findings.put("dram_share_percent", 100 * dram / l2)
    except (KeyError, ValueError, ZeroDivisionError):  # StatisticsError is a ValueError
        findings.put("words", _last_words(done, 12))


def l2_read(device: CupyDevice, findings: Findings) -> None:
    """A few repetitions of l2-read, for the profiler to look at."""
    with _loaded(device, _needed(device, "l2-read")) as loaded:
        finish(loaded.run(5, limit_s=LIMIT_S))
        findings.put("wrong", finish(loaded.check()).wrong)


SPIN = """
extern "C" __global__ void spin(unsigned *flag) { while (*(volatile unsigned *)flag != 1u) { } }
"""


def hang(device: CupyDevice, findings: Findings) -> None:
    """A kernel that never ends: its sentence, how long until it is said, and whether the process still ends."""
    spin = Launch("spin.cu", "spin", (1, 1, 1), (1, 1, 1), ("flag",))
    flag = Buffer("flag", "uint32", 1)
    work = Work(kernel="spin", precision="int32", buffers=(flag,), turns=((spin,),), flop=0, bytes=0, outputs=())
    vars(cupy_library)["source"] = lambda _name: SPIN  # of this process alone
    loaded = finish(device.load(work, seed=1))
    began = time.monotonic()
    try:
        finish(loaded.run(2, limit_s=2.0))
        findings.put("problem", "the kernel ended")
    except DeviceError as error:
        findings.put("sentence", str(error))
        findings.put("gone", error.gone)
        findings.put("seconds", round(time.monotonic() - began, 1))


PHASES = {
    "facts": Phase(60.0, facts),
    "kernels": Phase(150.0, kernels, resumes=True),
    "ceilings": Phase(120.0, ceilings),
    "quick": Phase(120.0, quick),
    "spread": Phase(90.0, spread),
    "inputs": Phase(40.0, inputs),
    "repeatability": Phase(40.0, repeatability),
    "memory": Phase(40.0, memory),
    "counter": Phase(30.0, counter),
    "gil": Phase(30.0, gil),
    "telemetry": Phase(50.0, telemetry),
    "gpu_tests": Phase(150.0, gpu_tests),
    "ncu": Phase(60.0, ncu),
    "hang": Phase(45.0, hang),
}
"""In the order in which they run: what is worth most comes first, and what may leave the GPU unusable last."""
