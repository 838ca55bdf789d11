"""CSV of Nsight Compute (`ncu --csv`): pages `details` (a line for each metric) and `raw` (a column for each metric).

Only how long a kernel took and its clocks are read.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....errors import InputError
from ..rows import Rows
from ..units import UNITS, find
from .kernels import Device, Kernel, add, column, device, fields, milliseconds, number, numbered

_HEADER = re.compile(r'^"?ID"?,(?:.*,)?"?Kernel Name"?,', re.MULTILINE)
_DURATION = ("Duration", "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration_measured_user.sum")
_CLOCKS = {
    "SM Frequency": "sm_clock [MHz]",
    "smsp__cycles_elapsed.avg.per_second": "sm_clock [MHz]",
    "DRAM Frequency": "mem_clock [MHz]",
    "dram__cycles_elapsed.avg.per_second": "mem_clock [MHz]",
}
_LOCAL = re.compile(r"^(?:localhost|[0-9.]+|[0-9a-f:]*:[0-9a-f:]*)?$")  # the machine that was profiled on has no name


@dataclass
class _Launch:
    line: int
    device: Device
    kernel: str
    ms: float | None = None
    clocks: dict[str, float] = field(default_factory=dict)


def fits(head: str) -> bool:
    """Whether a file that begins so has a table of Nsight Compute."""
    return _HEADER.search(head) is not None and ("Metric Name" in head or "__" in head)


def read(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text."""
    launches: dict[tuple[str, ...], _Launch] = {}
    names: list[str] = []
    units: list[str] = []
    for line, content in numbered(text):
        if _HEADER.match(content):
            names, units = fields(content) or [], []
            continue
        if not names or content.startswith("=="):
            continue
        cells = fields(content)
        if cells is None or len(cells) != len(names):
            if content.count(",") * 2 >= len(names):  # else it is what the application printed
                rows.refuse(line, "it is no whole line of the table: it was cut or damaged")
            continue
        if column(names, "metric name") is None and not cells[0]:
            units = cells  # the line below the header of a raw page
            continue
        _line(line, names, units, cells, launches, rows)
    found: dict[Device, dict[str, list[_Launch]]] = {}
    for launch in launches.values():
        if launch.ms is not None:
            found.setdefault(launch.device, {}).setdefault(launch.kernel, []).append(launch)
    if not found:
        raise InputError(
            f"{rows.file}: no kernel has a duration; profile with the section SpeedOfLight or with "
            "--metrics gpu__time_duration.sum"
        )
    add({one: {name: _kernel(each) for name, each in of.items()} for one, of in found.items()}, rows, "ncu", text)


def _kernel(launches: Sequence[_Launch]) -> Kernel:
    times = [launch.ms for launch in launches if launch.ms is not None]
    kernel = Kernel(launches[0].line, statistics.fmean(times), len(times))
    for meaning in dict.fromkeys(_CLOCKS.values()):
        known = [launch.clocks[meaning] for launch in launches if meaning in launch.clocks]
        if known:
            kernel.values[meaning] = statistics.median(known)
    return kernel


def _line(
    line: int,
    names: Sequence[str],
    units: Sequence[str],
    cells: Sequence[str],
    launches: dict[tuple[str, ...], _Launch],
    rows: Rows,
) -> None:
    def cell(*wanted: str) -> str:
        place = column(names, *wanted)
        return "" if place is None else cells[place]

    key = (cell("process id"), cell("device"), cell("id"), cell("kernel name"))
    if key not in launches:
        node = "" if _LOCAL.match(cell("host name")) else cell("host name")
        launches[key] = _Launch(line, device(key[0], key[1] or "0", node), key[3])
    launch = launches[key]
    if column(names, "metric name") is not None:
        _metric(launch, cell("metric name"), cell("metric unit"), cell("metric value"), line, rows)
        return
    for place, name in enumerate(names):
        if name in _DURATION or name in _CLOCKS:
            _metric(launch, name, units[place] if place < len(units) else "", cells[place], line, rows)


def _metric(launch: _Launch, name: str, unit: str, text: str, line: int, rows: Rows) -> None:
    if name not in _DURATION and name not in _CLOCKS:
        return
    value = number(text)
    if name in _DURATION and launch.ms is None:
        if value is None or value <= 0:
            rows.refuse(line, f"the duration of a kernel is no number above 0 ({text or 'empty'})")
        else:
            launch.ms = value * milliseconds(unit, f"{rows.file}: {name} in line {line}")
    elif name in _CLOCKS and value and (mhz := _megahertz(unit)) is not None:
        launch.clocks[_CLOCKS[name]] = value * mhz


def _megahertz(unit: str) -> float | None:
    """How many MHz a unit of ncu has: `Ghz`, `cycle/nsecond`, ...; None if it is none."""
    each = {"cycle/nsecond": "GHz", "cycle/usecond": "MHz", "cycle/second": "Hz", "cycle/ns": "GHz", "cycle/us": "MHz"}
    known = find(each.get(unit, unit), "clock")
    return None if known is None else known.to(UNITS["clock"]["MHz"])[0]
