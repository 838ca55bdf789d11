"""Results of SuperBench: one object for each node, a key for each benchmark, metric and GPU.

A key is `benchmark/metric:rank`, where SuperBench gives each rank the GPU of its number. Where the metric itself names
GPUs, as `gpu3_to_cpu_by_dma_bw`, it is about the first of them, and a second one is the repeat of the run. A metric of
all GPUs together, as of NCCL, says nothing of one of them and is not stored: it names no GPU, and its benchmark has
only rank 0 where others have more. A return code, and whether a GPU passed a check, are verdicts on the GPU.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind, Outcome
from ..rows import Rows, Value, at_rate, finite, record_of

_KEY = re.compile(r"^(?P<benchmark>[^/]+)/(?P<metric>.+?)(?::(?P<rank>[0-9]{1,3}))?$")
_NAMES = (
    "kernel-launch|gemm-flops|mem-bw|gpu-copy-bw|gpu-copy|gpu-stream|gpu-burn|nccl-bw|rccl-bw|ib-loopback|nvbandwidth|"
    "cublas-function|cudnn-function|cublaslt-gemm|matmul|sharding-matmul|tensorrt-inference|ort-inference|"
    "computation-communication-overlap|model-benchmarks|[a-z0-9]+_models|monitor"
)
_KNOWN = re.compile(rf'"(?:(?:{_NAMES})(?::[^"/]*)?/[^"]+|[^"/]+/(?:[^"]+/)?return_code(?::[0-9]+)?)"\s*:')
_OF_NO_GPU = re.compile(r"^(?:nccl|rccl|ib|cpu|disk|tcp|gpcnet|msccl|directx-cpu)[-_]")
_OF_ALL_GPUS = re.compile("gpu_all_to_gpu_all|_sum_")
_GPU = re.compile(r"(?<![a-z])gpu_?([0-9]{1,3})(?![0-9])")
_PASSED = re.compile(r"(?:^|[_/-])pass(?:ed)?$")
_STRANGE = re.compile("[^A-Za-z0-9_.+/ -]")
_TIME = r"(?:.*step_time|steptime_|(?:.*_)?(?:time|times|time_mean|steptime|lat|latency|overhead_event|overhead_wall)$)"
# The unit of a metric, by `benchmark/metric` in lower case, as SuperBench documents it. The first one that fits counts;
# "" is no rate or duration.
_UNITS = tuple(
    (re.compile(pattern), unit)
    for pattern, unit in (
        (r"gemm-flops[^/]*/(?:.*_flops|(?:fp|tf|bf)[0-9]+(?:_tc)?)$", "GFLOP/s"),
        (r"[^/]*/.*_flops$|[^/]*gemm[^/]*/(?:fp|tf|bf)[0-9]+(?:_tc)?$", "TFLOP/s"),
        (r"[^/]*/.*_iops$|[^/]*gemm[^/]*/int[0-9]+(?:_tc)?$", "Gop/s"),
        (r"[^/]*/.*(?:bw|bw_remote)$|nvbandwidth[^/]*/.*_bandwidth_", "GB/s"),
        (r"nvbandwidth[^/]*/.*(?:latency|_lat)", "ns"),
        (r"gpu-burn|monitor|[^/]*/(?:.*step_time|steptime_).*_[0-9]+(?:\.[0-9]+)?$", ""),  # the last: a percentile
        (rf"(?:cublas|cudnn)-function[^/]*/{_TIME}", "us"),
        (rf"[^/]*/{_TIME}", "ms"),
        (r"[^/]*/.*throughput", "1/s"),
    )
)
_DURATIONS_MS = {"us": 1e-3, "ms": 1.0}
_FIGURES = {  # unit -> the figure, and the factor to its unit
    "GFLOP/s": ("rate [GFLOP/s]", 1.0),
    "TFLOP/s": ("rate [GFLOP/s]", 1000.0),
    "Gop/s": ("operation_rate [Gop/s]", 1.0),
    "GB/s": ("bandwidth [GB/s]", 1.0),
    "ns": ("latency [ns]", 1.0),
}


def fits(head: str) -> bool:
    """Whether a file that begins so has results of SuperBench."""
    return head.lstrip()[:1] in ("{", "[") and _KNOWN.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add the results of every node in the text: a line for each, or one JSON document. Raises InputError for a
    document that is damaged."""
    others: Counter[str] = Counter()
    nodes = list(rows.objects(text))
    nameless = [line for line, results in nodes if not results.get("node")]
    if len(nameless) > 1:
        raise InputError(
            f"{rows.file}: {len(nameless)} nodes have no name (first lines {nameless[0]} and {nameless[1]}): write a "
            "file for each, and give it its --node"
        )
    for line, results in nodes:
        _Node(line, results, rows, others).add()
    if not len(rows) and rows.sheet.notes:
        raise InputError(f"{rows.file} has no result of a GPU: {rows.sheet.notes[0]}")
    if others:
        listed = ", ".join(f"{name} ({count})" for name, count in others.most_common(8)) + ", ..." * (len(others) > 8)
        rows.note(f"not stored, as it is no rate or duration of a single GPU: {listed}")


class _Node:
    """The results of one node, which stand in this line."""

    def __init__(self, line: int, results: Mapping[str, Any], rows: Rows, others: Counter[str]) -> None:
        self.line, self.results, self.rows, self.others = line, results, rows, others
        self.record = record_of(json.dumps(results))
        name = results.get("node")
        self.node = name if isinstance(name, str) else ""
        self.keys = {key: match for key in results if (match := _KEY.match(key)) is not None}
        self.ranks = Counter((match["benchmark"], match["metric"]) for match in self.keys.values())
        highest: Counter[str] = Counter()
        for match in self.keys.values():
            highest[match["benchmark"]] = max(int(match["rank"] or 0), highest[match["benchmark"]])
        self.together = {name for name, rank in highest.items() if rank == 0 < max(highest.values())}

    def add(self) -> None:
        """Add a row for each metric of a GPU."""
        for key, match in self.keys.items():
            benchmark, metric, rank = match.groups()
            value = self.results[key]
            returned, aborted = metric.rpartition("/")[2] == "return_code", metric == "abort"
            gpus = self._gpus(benchmark, metric, rank)
            if not gpus and (returned or aborted):
                if finite(value):
                    host, how = (
                        self.node or "the node",
                        "was aborted" if aborted else f"failed with return code {value}",
                    )
                    self.rows.note(f"{benchmark} {how} on {host} (line {self.line})")
            elif not gpus:
                self.others[benchmark] += 1
            elif returned or _PASSED.search(metric):
                self._judge(benchmark, metric, value, self._of_gpu(gpus))
            elif not (unit := self._unit(benchmark, metric, rank)):
                self.others[f"{benchmark}/{_without_gpus(metric)}"] += 1
            elif (number := finite(value)) is None or number <= 0:
                self.rows.refuse(self.line, f"{benchmark}/{_without_gpus(metric)} is no number above 0")
            else:
                values = self._of_gpu(gpus) | {"workload": _workload(benchmark, metric)}
                self.rows.add(self.line, values | _measured(number, unit, metric), self.record)

    def _unit(self, benchmark: str, metric: str, rank: str | None) -> str:
        """The unit of a metric; "" where it is no rate or duration, or a rate of which the duration is there, too."""
        name = f"{benchmark}/{metric.rpartition('/')[2]}".lower()
        unit = next((unit for pattern, unit in _UNITS if pattern.match(name)), "")
        tail = "" if rank is None else f":{rank}"
        twins = {f"{benchmark}/{metric.replace('throughput', name)}{tail}" for name in ("step_time", "steptime")}
        return "" if unit == "1/s" and not twins.isdisjoint(self.results) else unit

    def _gpus(self, benchmark: str, metric: str, rank: str | None) -> list[int]:
        """The GPUs that a metric is about; none where it is of all of them together, or of no GPU."""
        numbers = [int(number) for number in _GPU.findall(metric)]
        if self.ranks[benchmark, metric] > 1:  # each rank has one GPU, and calls it 0
            numbers = []
        if _OF_NO_GPU.match(benchmark) or _OF_ALL_GPUS.search(metric) or (benchmark in self.together and not numbers):
            return []
        return numbers or ([] if rank is None else [int(rank)])

    def _of_gpu(self, gpus: list[int]) -> dict[str, Value]:
        return {"node": self.node or None, "index": gpus[0], "repeat": gpus[1] if len(gpus) > 1 else 0}

    def _judge(self, benchmark: str, metric: str, value: Any, values: dict[str, Value]) -> None:
        """A benchmark that failed on a GPU: a run without a duration, and an event."""
        check = _PASSED.search(metric) is not None
        number = finite(int(value) if isinstance(value, bool) else value)
        if number is None or (number != 0) == check:
            return
        workload = _workload(benchmark, metric.rpartition("/")[0])
        sentence = f"{benchmark} of SuperBench failed with return code {number:g}"
        kind, status = EventKind.PROBE_FAILED, Outcome.FAILED
        if check:
            sentence = f"{benchmark} of SuperBench: the GPU did not pass {_without_gpus(metric)}"
            kind, status = EventKind.WRONG_RESULT, Outcome.WRONG_RESULT
        values |= {"workload": workload, "status": status, "status_detail": sentence}
        self.rows.event(self.rows.add(self.line, values, self.record), Event(kind, None, sentence, workload=workload))


def _measured(number: float, unit: str, metric: str) -> dict[str, Value]:
    """The duration that a number in this unit says, and the figure, with its conditions."""
    if unit in _DURATIONS_MS:
        return {"time [ms]": number * _DURATIONS_MS[unit]}
    if unit == "1/s":
        return {"time [ms]": 1000 / number}
    label, factor = _FIGURES[unit]
    conditions: dict[str, Value] = {"path": _path(metric)} if unit in ("GB/s", "ns") else {}
    return at_rate(label, number * factor) | ({"precision": "int8"} if unit == "Gop/s" else conditions)


def _path(metric: str) -> str:
    metric = metric.rpartition("/")[2].lower()
    if re.search("cpu|h2d|d2h|host", metric):
        return "pcie"
    return "peer" if len(set(_GPU.findall(metric))) > 1 or "gpu_all" in metric else "dram"


def _without_gpus(metric: str) -> str:
    return _GPU.sub("gpu", metric)


def _workload(benchmark: str, metric: str) -> str:
    name = f"superbench {benchmark}" + (f"/{_without_gpus(metric)}" if metric else "")
    return _STRANGE.sub(".", name)
