"""Durations of kernels as profilers print them in CSV: nvprof (GPU trace, GPU summary), nsys stats (`cuda_gpu_trace`,
`cuda_gpu_kern_sum`), and Nsight Compute (`ncu --csv`, pages `details` and `raw`).

Each kernel that takes a good part of the time of its GPU's kernels is a run. As in the SC'22 study, its duration is the
mean of its launches; of a trace the first and the last launch are left out, and clocks, temperature and power of a
`--system-profiling on` are the medians of the readings between these two.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ....errors import InputError
from ..content import written
from ..rows import Rows, Value
from ..units import UNITS, find, split_label

_SHARE = 0.01  # of the time of all kernels of a GPU: a kernel that takes less is not stored
_LONGEST = 120
_STRANGE = re.compile("[^A-Za-z0-9_+/-]+")
_DEVICE = re.compile(r"^\s*(.*?)\s*\(([0-9]{1,6})\)\s*$")  # "Tesla V100-SXM2-16GB (0)"
_UUID = re.compile("GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_TRACE = re.compile(r'^"?Start(?: \((\w+)\))?"?,"?Duration(?: \((\w+)\))?"?,.*(?:Grid X|GrdX)', re.MULTILINE)
_SUMMARY = re.compile(
    r'^"?(?:Type"?,"?)?Time ?\(%\)"?,"?(?:Total )?Time.*"?(?:Calls|Instances)"?,"?Avg.*"?Name"?\s*$', re.MULTILINE
)
_METRICS = re.compile(r'^"?Device"?,"?Kernel"?,"?Invocations"?,"?(?:Metric|Event) Name', re.MULTILINE)
_NCU = re.compile(r'^"?ID"?,(?:.*,)?"?Kernel Name"?,', re.MULTILINE)
_PROFILING = re.compile(r"^==([0-9]+)== NVPROF is profiling process", re.MULTILINE)
_SECTION = re.compile(r"^=+([0-9]*)=+\s*(.*)$")
_OF_DEVICE = re.compile(r'Device "(.+)"')
_NO_KERNEL = re.compile(r"^\[|^(?:cuda|cu)[A-Z]\w*$|^$")  # copies, readings, calls of the API
_LOCAL = re.compile(r"^(?:localhost|[0-9.]+|[0-9a-f:]*:[0-9a-f:]*)?$")  # the machine that was profiled on has no name
# Readings of nvprof: the part of the value, and what makes it one of the meaning.
_READINGS = {
    "sm_clock [MHz]": ("[SM/Memory Clock (MHz)]", 0, 1.0),
    "mem_clock [MHz]": ("[SM/Memory Clock (MHz)]", 1, 1.0),
    "temperature [C]": ("[Temperature (C)]", 0, 1.0),
    "power [W]": ("[Power/Limit (mW)]", 0, 1e-3),
}
_READING_NAMES = {name for name, _, _ in _READINGS.values()}
# Metrics of ncu: durations, and clocks by meaning.
_DURATIONS = ("Duration", "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration_measured_user.sum")
_CLOCKS = {
    "SM Frequency": "sm_clock [MHz]",
    "smsp__cycles_elapsed.avg.per_second": "sm_clock [MHz]",
    "DRAM Frequency": "mem_clock [MHz]",
    "dram__cycles_elapsed.avg.per_second": "mem_clock [MHz]",
}
_CYCLES = {"cycle/nsecond": "GHz", "cycle/usecond": "MHz", "cycle/second": "Hz", "cycle/ns": "GHz", "cycle/us": "MHz"}


@dataclass(frozen=True)
class _Device:
    """A GPU as a profiler names it: the process that was profiled, and a number in it, if there is one."""

    process: str
    number: int | None
    model: str = ""
    node: str = ""


@dataclass
class _Launch:
    """One launch, or the mean of `count`: its start where that is known, and clocks by meaning where it has some."""

    line: int
    ms: float = 0.0
    start_ms: float = 0.0
    count: int = 1
    clocks: dict[str, float] = field(default_factory=dict)


@dataclass
class _Gpu:
    """What tables say of one GPU: the launches of each kernel; readings by name, each with its time."""

    kernels: dict[str, list[_Launch]] = field(default_factory=dict)
    readings: dict[str, list[tuple[float, str]]] = field(default_factory=dict)


@dataclass
class _Table:
    """The present table: its columns and their units. `gpu` is that of a line before it, "" if none says it."""

    header: str
    names: list[str]
    process: str
    gpu: str
    rows: Rows
    units: list[str] = field(default_factory=list)
    factors: dict[int, float] = field(default_factory=dict)  # of columns of times: ms in one of their unit

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each column, by its name in lower case without a unit."""
        return {split_label(name)[0].lower(): place for place, name in reversed(list(enumerate(self.names)))}

    def unit(self, place: int) -> str:
        """The unit in the column's name, or below it."""
        return split_label(self.names[place])[1] or (self.units[place] if place < len(self.units) else "")

    def cell(self, cells: list[str], *names: str) -> str:
        """What a line has in the first of these columns; "" if there is none."""
        return next((cells[self.places[name]] for name in names if name in self.places), "")

    def ms(self, cells: list[str], name: str) -> float | None:
        """A time, ms. Raises InputError where the table does not have the column, or it has no unit of time."""
        if name not in self.places:
            raise InputError(f"{self.rows.file}: a table of kernels has no column {name.title()}: profile again")
        place = self.places[name]
        if place not in self.factors:
            self.factors[place] = _milliseconds(self.unit(place), f"{self.rows.file}: column {self.names[place]!r}")
        number = _number(cells[place])
        return None if number is None else number * self.factors[place]


def fits_nvprof(head: str) -> bool:
    """Whether a file that begins so is of nvprof or nsys stats."""
    return any(pattern.search(head) for pattern in (_TRACE, _SUMMARY, _METRICS, _PROFILING))


def fits_ncu(head: str) -> bool:
    """Whether a file that begins so has a table of Nsight Compute."""
    return _NCU.search(head) is not None and ("Metric Name" in head or "__" in head)


def read_nvprof(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text. Raises InputError where there is none, or a table lacks columns."""
    traced: dict[_Device, _Gpu] = {}
    summed: dict[_Device, _Gpu] = {}
    for line, table, cells in _lines(text, rows):
        if not _NCU.match(table.header):
            _take(line, table, cells, traced if _TRACE.match(table.header) else summed)
    if not any(gpu.kernels for gpu in (*traced.values(), *summed.values())):
        raise InputError(f"{rows.file}: {_nothing(text)}")
    tool = "nsys" if re.search(r"(?:Duration|Avg) \(\w+\)", text) else "nvprof"  # nsys has the units in the names
    _add(traced, rows, tool, text, ends=False)
    _add(summed, rows, tool, text, ends=True)


def _lines(text: str, rows: Rows) -> Iterator[tuple[int, _Table, list[str]]]:
    """The lines of all tables, each with its number, its table and its cells. Others are refused or passed over."""
    table: _Table | None = None
    process, calls, gpu = "", False, ""
    for line, content in written(text):
        content = content.strip()
        if (section := _SECTION.match(content)) is not None:
            process, calls, table = section[1] or process, "API calls" in section[2], None
            named = _OF_DEVICE.search(section[2])
            gpu = named[1] if named else "" if "result" in section[2] else gpu
        elif any(pattern.match(content) for pattern in (_TRACE, _SUMMARY, _METRICS, _NCU)):
            table = _Table(content, _cells(content) or [], process, gpu, rows)
            if _METRICS.match(content) or "num calls" in table.places:  # nsys: the API, the operating system
                table = None
        elif table is not None and not calls:
            cells = _cells(content)
            if cells is not None and not table.units and _are_units(cells):
                table.units = cells
            elif cells is not None and len(cells) == len(table.names):
                yield line, table, cells
            elif content.count(",") * 2 >= len(table.names):  # else it is what the application printed
                rows.refuse(line, "it is no whole line of the table: it was cut or damaged")


def _cells(line: str) -> list[str] | None:
    """The fields of a line of CSV; None if its quotes are damaged."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return None


def _are_units(cells: list[str]) -> bool:
    """Whether it is the line below a header that has the units."""
    return any(cells) and all(re.fullmatch(r"|%|[a-zA-Z]{1,6}(?:/[a-zA-Z]{1,8})?", cell) for cell in cells)


def _nothing(text: str) -> str:
    if _METRICS.search(text):
        return "it has metrics of kernels and no durations: profile with --print-gpu-trace --csv, or with --csv alone"
    if not (_TRACE.search(text) or _SUMMARY.search(text)):
        return "it has no table of kernels in CSV: profile with --csv"
    return "no kernel is in it: nothing ran on a GPU, or the file was cut"


def _take(line: int, table: _Table, cells: list[str], gpus: dict[_Device, _Gpu]) -> None:
    """What a line of a trace or a summary says."""
    trace = _TRACE.match(table.header) is not None
    name, start_ms = table.cell(cells, "name"), table.ms(cells, "start") if trace else 0.0
    gpu = gpus.setdefault(_device(table.process, table.cell(cells, "device") or table.gpu), _Gpu())
    if name in _READING_NAMES:
        if start_ms is not None:
            gpu.readings.setdefault(name, []).append((start_ms, table.cell(cells, "system")))
        return
    if _NO_KERNEL.match(name) or table.cell(cells, "type") not in ("", "GPU activities"):
        return
    ms = table.ms(cells, "duration" if trace else "avg")
    count = 1.0 if trace else _number(table.cell(cells, "calls", "instances"))
    if not ms or start_ms is None or not count or count < 1:
        table.rows.refuse(line, "a kernel has no readable start, duration or number of calls")
        return
    launches = gpu.kernels.setdefault(re.sub(r"\s*\[[0-9]+\]$", "", name), [])
    launches.append(_Launch(line, ms, start_ms, int(count)))


def read_ncu(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text. Raises InputError where none has a duration."""
    gpus: dict[_Device, _Gpu] = {}
    launches: dict[tuple[str, ...], _Launch] = {}
    for line, table, cells in _lines(text, rows):
        if not _NCU.match(table.header):
            continue
        process, device, number, kernel, host = (
            table.cell(cells, name) for name in ("process id", "device", "id", "kernel name", "host name")
        )
        launch = launches.setdefault((process, device, number, kernel), _Launch(line))
        metrics = [tuple(table.cell(cells, f"metric {part}") for part in ("name", "unit", "value"))]
        if "metric name" not in table.places:  # then each metric has a column
            metrics = [(name, table.unit(place), cells[place]) for place, name in enumerate(table.names)]
        had_time = launch.ms > 0
        for metric in metrics:
            _take_metric(launch, line, metric, rows)
        if launch.ms > 0 and not had_time:
            gpu = gpus.setdefault(_device(process, device or "0", "" if _LOCAL.match(host) else host), _Gpu())
            gpu.kernels.setdefault(kernel, []).append(launch)
    if not gpus:
        raise InputError(
            f"{rows.file}: no kernel has a duration; profile with the section SpeedOfLight or with "
            "--metrics gpu__time_duration.sum"
        )
    _add(gpus, rows, "ncu", text, ends=True)


def _take_metric(launch: _Launch, line: int, metric: tuple[str, ...], rows: Rows) -> None:
    """What a metric, its unit and its value say of a launch."""
    name, unit, text = metric
    number = _number(text) if name in _DURATIONS or name in _CLOCKS else None
    if name in _DURATIONS and not launch.ms:
        if not number:
            rows.refuse(line, f"the duration of a kernel is no number above 0 ({text[:40] or 'empty'})")
            return
        launch.ms = number * _milliseconds(unit, f"{rows.file}: {name} in line {line}")
    elif name in _CLOCKS and number and (clock := find(_CYCLES.get(unit, unit), "clock")) is not None:
        launch.clocks[_CLOCKS[name]] = number * clock.to(UNITS["clock"]["MHz"])[0]


def _device(process: str, text: str, node: str = "") -> _Device:
    """The GPU that a column calls `Tesla V100-SXM2-16GB (0)` or `0`."""
    named = _DEVICE.match(text)
    if named is not None:
        return _Device(process, int(named[2]), named[1], node)
    return _Device(process, int(text) if re.fullmatch(r"\s*[0-9]{1,6}\s*", text) else None, "", node)


def _milliseconds(unit: str, where: str) -> float:
    """How many ms one of these units of time has. Raises InputError, which begins with `where`."""
    known = find(unit.lower().replace("econds", "").replace("econd", ""), "time")
    if known is None:
        raise InputError(f"{where}: {unit!r} is no unit of time (s, ms, us, ns)")
    return known.to(UNITS["time"]["ms"])[0]


def _number(text: str) -> float | None:
    """A number of a profiler, with or without commas between thousands; None if that cannot be told for sure."""
    if re.fullmatch(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", text):
        text = text.replace(",", "")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _add(gpus: Mapping[_Device, _Gpu], rows: Rows, tool: str, text: str, *, ends: bool) -> None:
    """Add a run for each kernel that takes a good part of its GPU's time; of `--workload`, only the longest one.

    Without `ends`, the first and the last launch of a kernel count only if there are no others.
    """
    record = hashlib.sha256(text.encode()).hexdigest()[:16]
    numbers = {(device.node, device.number) for device in gpus}
    small = 0
    for device, gpu in gpus.items():
        kernels = [(name, *_run(launches, gpu, ends=ends)) for name, launches in gpu.kernels.items()]
        total_ms = sum(kernel_ms for _, kernel_ms, _ in kernels)
        large = [kernel for kernel in kernels if kernel[1] >= _SHARE * total_ms]
        if rows.options.workload is not None and large:
            large = [max(large, key=lambda kernel: kernel[1])]
        small += len(kernels) - len(large)
        for name, _, values in large:
            values |= {"workload": f"{tool} {_workload(name)}", "kernel": name, **_identity(device, rows, len(numbers))}
            rows.add(gpu.kernels[name][0].line, values, f"{record} {device.process}")
    if small:
        why = "--workload stores the longest one" if rows.options.workload is not None else "less than 1 % of the time"
        rows.note(f"{small} {'kernel is' if small == 1 else 'kernels are'} not stored: {why}")


def _run(launches: list[_Launch], gpu: _Gpu, *, ends: bool) -> tuple[float, dict[str, Value]]:
    """The time of all launches of a kernel, and the run: their mean, and the medians of clocks and readings."""
    ordered = sorted(launches, key=lambda launch: launch.start_ms)
    inner = ordered if ends or len(ordered) < 3 else ordered[1:-1]
    count = sum(launch.count for launch in inner)
    mean_ms = float(f"{math.fsum(launch.ms * launch.count for launch in inner) / count:.15g}")
    values: dict[str, Value] = {"time [ms]": mean_ms, "kernels": count}
    for meaning, (reading, part, scale) in _READINGS.items():
        numbers = [launch.clocks[meaning] for launch in inner if meaning in launch.clocks]
        for start_ms, text in gpu.readings.get(reading, ()):
            number = _number(text.split("/")[part]) if text.count("/") >= part else None
            if ordered[0].start_ms < start_ms < ordered[-1].start_ms and number is not None:
                numbers.append(number * scale)
        values |= {meaning: statistics.median(numbers)} if numbers else {}
    return mean_ms * count, values


def _identity(device: _Device, rows: Rows, number_of_gpus: int) -> dict[str, Value]:
    values: dict[str, Value] = {"model": device.model} if device.model else {}
    values |= {"node": device.node} if device.node else {}
    in_name = _UUID.search(rows.file)
    if number_of_gpus == 1 and in_name is not None and rows.options.gpu is None:
        rows.note("the GPU is taken from the file's name")
        return values | {"gpu": in_name[0]}
    if device.number is None:
        return values  # --gpu names it, or the import asks for that
    rows.note("a process numbers only the GPUs that it sees: after CUDA_VISIBLE_DEVICES, say --gpu NAME")
    return values | {"index": device.number}


def _workload(kernel: str) -> str:
    """The name of a kernel without its arguments, of plain characters."""
    depth, end = 0, len(kernel)
    for place, letter in enumerate(kernel):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth and place and not kernel.startswith("(anonymous", place):
            end = place
            break
    name = _STRANGE.sub(".", kernel[:end].removeprefix("void ").strip()).strip(".")
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}.{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"
    return name or "kernel"
