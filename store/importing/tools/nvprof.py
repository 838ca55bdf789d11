"""CSV of nvprof (GPU trace, GPU summary) and of nsys stats (`cuda_gpu_trace`, `cuda_gpu_kern_sum`).

A trace has a line for each launch, and with `--system-profiling on` also readings of clocks, temperature and power. As
in the SC'22 study, the first and the last launch of a kernel are left out, and the readings of a run are the medians
of those between the first and the last launch.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....errors import InputError
from ..rows import Rows
from ..units import split_label
from .kernels import Device, Kernel, add, column, device, fields, milliseconds, number, numbered

_TRACE = re.compile(r'^"?Start(?: \((\w+)\))?"?,"?Duration(?: \((\w+)\))?"?,.*(?:Grid X|GrdX)', re.MULTILINE)
_SUMMARY = re.compile(
    r'^"?(?:Type"?,"?)?Time ?\(%\)"?,"?(?:Total )?Time.*"?(?:Calls|Instances)"?,"?Avg.*"?Name"?\s*$', re.MULTILINE
)
_METRICS = re.compile(r'^"?Device"?,"?Kernel"?,"?Invocations"?,"?(?:Metric|Event) Name', re.MULTILINE)
_PROFILING = re.compile(r"^==([0-9]+)== NVPROF is profiling process", re.MULTILINE)
_SECTION = re.compile(r"^=+([0-9]*)=+\s*(.*)$")
_OF_DEVICE = re.compile(r'Device "(.+)"')
_NO_KERNEL = re.compile(r"^\[|^(?:cuda|cu)[A-Z]\w*$")  # copies, readings, calls of the API
_READINGS = {"[SM/Memory Clock (MHz)]": 1.0, "[Temperature (C)]": 1.0, "[Power/Limit (mW)]": 1e-3}


@dataclass
class _Launches:
    line: int
    starts: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)  # ms


@dataclass
class _Traced:
    """What a trace says of one GPU."""

    kernels: dict[str, _Launches] = field(default_factory=dict)
    readings: dict[str, list[tuple[float, str]]] = field(default_factory=dict)  # name -> start, value


@dataclass
class _Table:
    """Where the columns of the present table are, and their units."""

    names: list[str]
    units: list[str]
    trace: bool
    process: str
    on: str = ""  # the GPU, where a line before the table says it
    _places: dict[tuple[str, ...], int | None] = field(default_factory=dict)
    _factors: dict[int, float] = field(default_factory=dict)

    def place(self, *wanted: str) -> int | None:
        if wanted not in self._places:
            self._places[wanted] = column([split_label(name)[0] for name in self.names], *wanted)
        return self._places[wanted]

    def factor(self, place: int, rows: Rows) -> float:
        """Of a column of times: how many ms its unit has."""
        if place not in self._factors:
            unit = split_label(self.names[place])[1] or (self.units[place] if place < len(self.units) else "")
            self._factors[place] = milliseconds(unit, f"{rows.file}: column {self.names[place]!r}")
        return self._factors[place]


def fits(head: str) -> bool:
    """Whether a file that begins so is of nvprof or nsys stats."""
    return any(pattern.search(head) for pattern in (_TRACE, _SUMMARY, _METRICS, _PROFILING))


def read(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text."""
    traced: dict[Device, _Traced] = {}
    summed: dict[Device, dict[str, Kernel]] = {}
    table: _Table | None = None
    process, calls, on = "", False, ""
    for line, content in numbered(text):
        section = _SECTION.match(content)
        if section is not None:
            process, calls, table = section[1] or process, "API calls" in section[2], None
            of = _OF_DEVICE.search(section[2])
            on = of[1] if of else "" if "result" in section[2] else on
            continue
        if _TRACE.match(content) or _SUMMARY.match(content):
            names = fields(content) or []
            of_host = column(names, "num calls") is not None  # nsys: the API and the operating system
            table = None if of_host else _Table(names, [], bool(_TRACE.match(content)), process, on)
            continue
        if _METRICS.match(content):
            table = None
            continue
        if table is None or calls:
            continue
        cells = fields(content)
        if cells is not None and not table.units and _are_units(cells):
            table.units = cells
        elif cells is None or len(cells) != len(table.names):
            if content.count(",") * 2 >= len(table.names):  # else it is what the application printed
                rows.refuse(line, "it is no whole line of the table: it was cut or damaged")
        elif table.trace:
            _launch(line, cells, table, traced, rows)
        else:
            _sum(line, cells, table, summed, rows)
    found = {
        one: {name: _of_launches(one_kernel, of) for name, one_kernel in of.kernels.items()}
        for one, of in traced.items()
    }
    if not any([*found.values(), *summed.values()]):
        raise InputError(f"{rows.file}: {_nothing(text)}")
    for each in (found, summed):
        add(each, rows, "nsys" if _is_nsys(text) else "nvprof", text)


def _is_nsys(text: str) -> bool:
    """Whether the units stand in the names of the columns, as nsys writes them."""
    return re.search(r"(?:Duration|Avg) \(\w+\)", text) is not None


def _nothing(text: str) -> str:
    if _METRICS.search(text):
        return "it has metrics of kernels and no durations: profile with --print-gpu-trace --csv, or with --csv alone"
    if not (_TRACE.search(text) or _SUMMARY.search(text)):
        return "it has no table of kernels in CSV: profile with --csv"
    return "no kernel is in it: nothing ran on a GPU, or the file was cut"


def _are_units(cells: Sequence[str]) -> bool:
    return all(cell == "" or re.fullmatch(r"%|[a-zA-Z]{1,3}(?:/s)?", cell) for cell in cells) and any(cells)


def _launch(line: int, cells: Sequence[str], table: _Table, traced: dict[Device, _Traced], rows: Rows) -> None:
    places = [table.place(name) for name in ("start", "duration", "device", "name")]
    start_at, duration_at, device_at, name_at = places
    if start_at is None or duration_at is None or name_at is None:
        raise InputError(f"{rows.file}: the trace has no column Start, Duration or Name; profile again without filters")
    name = cells[name_at]
    one = device(table.process, cells[device_at] if device_at is not None else table.on)
    start = number(cells[start_at])
    of = traced.setdefault(one, _Traced())
    if name in _READINGS:
        system = table.place("system")
        if start is not None and system is not None:
            of.readings.setdefault(name, []).append((start * table.factor(start_at, rows), cells[system]))
        return
    if _NO_KERNEL.match(name) or not name:
        return
    duration = number(cells[duration_at])
    if start is None or duration is None or duration <= 0:
        rows.refuse(line, "a launch has no readable start or duration")
        return
    launches = of.kernels.setdefault(re.sub(r"\s*\[[0-9]+\]$", "", name), _Launches(line))
    launches.starts.append(start * table.factor(start_at, rows))
    launches.durations.append(duration * table.factor(duration_at, rows))


def _of_launches(launches: _Launches, of: _Traced) -> Kernel:
    order = sorted(range(len(launches.starts)), key=launches.starts.__getitem__)
    inner = order[1:-1] if len(order) > 2 else order
    kernel = Kernel(launches.line, statistics.fmean(launches.durations[i] for i in inner), len(inner))
    first, last = launches.starts[order[0]], launches.starts[order[-1]]

    def median(name: str, part: int) -> float | None:
        values = [value.split("/") for at, value in of.readings.get(name, ()) if first < at < last]
        read = [number(each[part]) for each in values if len(each) > part]
        known = [value for value in read if value is not None]
        return statistics.median(known) * _READINGS[name] if known else None

    for meaning, name, part in (
        ("sm_clock [MHz]", "[SM/Memory Clock (MHz)]", 0),
        ("mem_clock [MHz]", "[SM/Memory Clock (MHz)]", 1),
        ("temperature [C]", "[Temperature (C)]", 0),
        ("power [W]", "[Power/Limit (mW)]", 0),
    ):
        if of.readings:
            kernel.values[meaning] = median(name, part)
    return kernel


def _sum(line: int, cells: Sequence[str], table: _Table, summed: dict[Device, dict[str, Kernel]], rows: Rows) -> None:
    kind, calls_at, mean_at, name_at = (
        table.place("type"),
        table.place("calls", "instances"),
        table.place("avg"),
        table.place("name"),
    )
    if calls_at is None or mean_at is None or name_at is None:
        raise InputError(f"{rows.file}: the summary has no column Calls, Avg or Name")
    name = cells[name_at]
    if (kind is not None and cells[kind] != "GPU activities") or _NO_KERNEL.match(name) or not name:
        return
    mean, launches = number(cells[mean_at]), number(cells[calls_at])
    if mean is None or mean <= 0 or launches is None or launches < 1:
        rows.refuse(line, "a kernel has no readable number of calls or mean duration")
        return
    of = summed.setdefault(device(table.process, table.on), {})
    of[name] = Kernel(line, mean * table.factor(mean_at, rows), int(launches))
