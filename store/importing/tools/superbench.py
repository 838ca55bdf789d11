"""Results of SuperBench: one object for each node, a key for each benchmark, metric and GPU.

A key is `benchmark/metric:rank`, where SuperBench gives each rank the GPU of its number. Where the metric itself names
GPUs, as `gpu3_to_cpu_by_dma_bw`, it is about the first of them, and a second one is the repeat of the run. A metric of
all GPUs together, as of NCCL, says nothing of one of them and is not stored: it names no GPU, and its benchmark has
only rank 0 where others have more.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind, Outcome
from ..rows import Rows, Value

_KEY = re.compile(r"^(?P<benchmark>[^/]+)/(?P<metric>.+?)(?::(?P<rank>[0-9]{1,3}))?$")
_NAMES = (
    "kernel-launch|gemm-flops|mem-bw|gpu-copy-bw|gpu-copy|gpu-stream|gpu-burn|nccl-bw|rccl-bw|ib-loopback|nvbandwidth|"
    "cublas-function|cudnn-function|cublaslt-gemm|matmul|sharding-matmul|tensorrt-inference|ort-inference|"
    "computation-communication-overlap|model-benchmarks|[a-z0-9]+_models|monitor"
)
_KNOWN = re.compile(rf'"(?:(?:{_NAMES})(?::[^"/]*)?/[^"]+|[^"/]+/(?:[^"]+/)?return_code(?::[0-9]+)?)"\s*:')
_OF_NO_GPU = re.compile(r"^(?:nccl|rccl|ib|cpu|disk|tcp|gpcnet|msccl|directx-cpu)[-_]")
_GPU = re.compile(r"(?<![a-z])gpu_?([0-9]{1,3})(?![0-9])")
_STRANGE = re.compile("[^A-Za-z0-9_.+/ -]")
_OLD_FLOPS = re.compile(r"^(?:FP|TF|BF)[0-9]+(?:_TC)?$")
_OLD_OPS = re.compile(r"^INT[0-9]+(?:_TC)?$")
_TIME = re.compile(r"(?:^|_)(?:time|times|time_mean|steptime|lat|latency|overhead_event|overhead_wall)$|^steptime_")
_WORK = 1e12  # operations, or FLOP, of a repetition
_GIGABYTE = 1e9


@dataclass(frozen=True)
class _Metric:
    """How the values of a metric are read: a duration is `ms` of a value, and a figure, if any, `scale` times it."""

    ms: Callable[[float], float]
    figure: str = ""
    conditions: Mapping[str, Value] | None = None
    scale: float = 1.0


def fits(head: str) -> bool:
    """Whether a file that begins so has results of SuperBench."""
    return head.lstrip()[:1] in ("{", "[") and _KNOWN.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add the results of every node in the text: a line for each, or one JSON document."""
    left: Counter[str] = Counter()
    for line, record, results in _objects(text, rows):
        _results(line, record, results, rows, left)
    if left:
        shown = ", ".join(f"{name} ({count})" for name, count in left.most_common(8)) + ", ..." * (len(left) > 8)
        rows.note(f"not stored, as it is no rate or duration of a single GPU: {shown}")


def _objects(text: str, rows: Rows) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """The line, the record and the results of each node."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if all(line[0] != "{" or line == "{" for _, line in lines[:1]):  # one document over several lines
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{rows.file}: the JSON is damaged or cut short ({error}); fetch it again") from error
        for one in document if isinstance(document, list) else [document]:
            if isinstance(one, dict):
                yield lines[0][0], _hash(json.dumps(one)), one
        return
    for number, line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield number, _hash(line), found
        else:
            rows.refuse(number, "it is no JSON object: the line is damaged or cut short")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _results(line: int, record: str, results: Mapping[str, Any], rows: Rows, left: Counter[str]) -> None:
    node = results.get("node")
    common: dict[str, Value] = {"node": node} if isinstance(node, str) and node else {}
    keys = {key: found for key in results if (found := _KEY.match(key)) is not None}
    ranks = Counter((found["benchmark"], found["metric"]) for found in keys.values())
    highest: dict[str, int] = {}
    for found in keys.values():
        highest[found["benchmark"]] = max(int(found["rank"] or 0), highest.get(found["benchmark"], 0))
    of_all = {name for name, rank in highest.items() if rank == 0 < max(highest.values())}
    for key, found in keys.items():
        value = results[key]
        benchmark, metric = found["benchmark"], found["metric"]
        named = [int(number) for number in _GPU.findall(metric)]
        if ranks[benchmark, metric] > 1:  # each rank has one GPU, and calls it 0
            named = []
        gpu = named[0] if named else None if found["rank"] is None else int(found["rank"])
        together = "gpu_all_to_gpu_all" in metric or "_sum_" in metric or (benchmark in of_all and not named)
        if gpu is None or together or _OF_NO_GPU.match(benchmark):
            if metric.rpartition("/")[2] != "return_code":
                left[benchmark] += 1
            elif _number(value):
                rows.note(f"{benchmark} failed with return code {value} on {node or 'the node'} (line {line})")
            continue
        values: dict[str, Value] = common | {"index": gpu, "repeat": named[1] if len(named) > 1 else 0}
        if metric.rpartition("/")[2] == "return_code" or re.fullmatch("gpu_[0-9]+_pass", metric):
            _judged(line, record, benchmark, metric, value, values, rows)
            continue
        how = _how(benchmark, metric, results, found["rank"])
        if how is None:
            left[f"{benchmark}/{_without_gpus(metric)}"] += 1
            continue
        number = _number(value)
        if number is None or number <= 0:
            rows.refuse(line, f"{benchmark}/{_without_gpus(metric)} is no number above 0")
            continue
        values |= {"workload": _workload(benchmark, metric), "time [ms]": how.ms(number), **(how.conditions or {})}
        if how.figure:
            values[how.figure] = number * how.scale
        rows.add(line, values, record)


def _judged(
    line: int, record: str, benchmark: str, metric: str, value: Any, values: dict[str, Value], rows: Rows
) -> None:
    """A benchmark that failed on a GPU: a run without a duration, and an event."""
    passed = metric.endswith("_pass")
    number = _number(value)
    if number is None or (number != 0) == passed:
        return
    workload = _workload(benchmark, metric.rpartition("/")[0])
    if passed:
        event = Event(EventKind.WRONG_RESULT, None, f"{benchmark} of SuperBench: wrong results", workload=workload)
        status = Outcome.WRONG_RESULT
    else:
        said = f"{benchmark} of SuperBench failed with return code {number:g}"
        event = Event(EventKind.PROBE_FAILED, None, said, workload=workload)
        status = Outcome.FAILED
    values |= {"workload": workload, "status": status, "status_detail": event.detail}
    rows.event(rows.add(line, values, record), event)


def _how(benchmark: str, metric: str, results: Mapping[str, Any], rank: str | None) -> _Metric | None:
    """How a metric is read, by the names and units that SuperBench documents; None if it is no rate or duration."""
    last = metric.rpartition("/")[2]
    lower, nvbandwidth = last.lower(), benchmark.startswith("nvbandwidth")
    if lower.endswith("_flops") or (_OLD_FLOPS.match(last) and "gemm" in benchmark):
        giga = 1.0 if benchmark.startswith("gemm-flops") else 1000.0
        return _Metric(lambda v: _WORK / (v * giga) / 1e6, "rate [GFLOP/s]", {"flop": _WORK}, giga)
    if lower.endswith("_iops") or (_OLD_OPS.match(last) and "gemm" in benchmark):
        return _Metric(lambda v: _WORK / v / 1e6, "operation_rate [Gop/s]", {"flop": _WORK, "precision": "int8"})
    if lower.endswith(("bw", "bw_remote")) or (nvbandwidth and "_bandwidth_" in lower):
        return _Metric(lambda v: 1000 / v, "bandwidth [GB/s]", {"bytes": _GIGABYTE, "path": _path(lower)})
    if nvbandwidth and ("latency" in lower or "_lat" in lower):
        return _Metric(lambda v: v / 1e6, "latency [ns]", {"path": _path(lower)})
    if benchmark.startswith(("gpu-burn", "monitor")):
        return None
    if _TIME.search(lower) or "step_time" in lower:
        if re.search(r"_[0-9]+(?:\.[0-9]+)?$", lower):
            return None  # a percentile
        micro = benchmark.startswith(("cublas-function", "cudnn-function"))
        return _Metric((lambda v: v / 1000) if micro else (lambda v: v))
    if "throughput" in lower:
        tail = "" if rank is None else f":{rank}"
        twins = [f"{benchmark}/{metric.replace('throughput', name)}{tail}" for name in ("step_time", "steptime")]
        return None if any(twin in results for twin in twins) else _Metric(lambda v: 1000 / v)
    return None


def _path(metric: str) -> str:
    """Where the bytes of a copy go, by the metric's name."""
    named = _GPU.findall(metric)
    if "cpu" in metric or "h2d" in metric or "d2h" in metric or "host" in metric:
        return "pcie"
    return "peer" if len(set(named)) > 1 or "gpu_all" in metric else "dram"


def _without_gpus(metric: str) -> str:
    return _GPU.sub("gpu", metric)


def _workload(benchmark: str, metric: str) -> str:
    name = f"superbench {benchmark}" + (f"/{_without_gpus(metric)}" if metric else "")
    return _STRANGE.sub(".", name)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
