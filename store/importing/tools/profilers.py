"""Durations of kernels as profilers print them in CSV: nvprof (GPU trace, GPU summary), nsys stats (`cuda_gpu_trace`,
`cuda_gpu_kern_sum`), and Nsight Compute (`ncu --csv`, pages `details` and `raw`).

Each kernel that takes a good part of the time of its GPU's kernels is a run. As in the SC'22 study, its duration is the
mean of its launches; of a trace the first and the last launch are left out, and clocks, temperature and power of a
`--system-profiling on` are the medians of the readings between these two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ....errors import InputError
from ..lines import csv_fields, written
from ..meanings import UNITS, find, split_label
from ..rows import Rows, Value, finite, record_of

_SHARE = 0.01  # of the time of all kernels of a GPU: a kernel that takes less is not stored
_LONGEST = 120
_STRANGE = re.compile("[^A-Za-z0-9_+/-]+")
_DEVICE = re.compile(r"^(?:(.*?)\s*\(([0-9]{1,6})\)|([0-9]{1,6}))$")  # "Tesla V100-SXM2-16GB (0)", or "0"
_UUID = re.compile("GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# The header of each kind of table; a table of metrics has no durations.
_HEADERS = {
    "trace": re.compile(r'^"?Start(?: \((\w+)\))?"?,"?Duration(?: \((\w+)\))?"?,.*(?:Grid X|GrdX)', re.MULTILINE),
    "summary": re.compile(
        r'^"?(?:Type"?,"?)?Time ?\(%\)"?,"?(?:Total )?Time.*"?(?:Calls|Instances)"?,"?Avg.*"?Name"?\s*$', re.MULTILINE
    ),
    "metrics": re.compile(r'^"?Device"?,"?Kernel"?,"?Invocations"?,"?(?:Metric|Event) Name', re.MULTILINE),
    "ncu": re.compile(r'^"?ID"?,(?:.*,)?"?Kernel Name"?,', re.MULTILINE),
}
_PROFILING = re.compile(r"^==([0-9]+)== NVPROF is profiling process", re.MULTILINE)
_SECTION = re.compile(r"^=+([0-9]*)=+\s*(.*)$")
_OF_DEVICE = re.compile(r'Device "(.+)"')
_NO_KERNEL = re.compile(r"^\[|^(?:cuda|cu)[A-Z]\w*$|^$")  # copies, readings, calls of the API
_LOCAL = re.compile(r"^(?:localhost|[0-9.]+|[0-9a-f:]*:[0-9a-f:]*)?$")  # the machine that was profiled on has no name
# Readings of nvprof: by meaning, the part of the value, and what makes it one of the meaning.
_READINGS = {
    "[SM/Memory Clock (MHz)]": (("sm_clock [MHz]", 0, 1.0), ("mem_clock [MHz]", 1, 1.0)),
    "[Temperature (C)]": (("temperature [C]", 0, 1.0),),
    "[Power/Limit (mW)]": (("power [W]", 0, 1e-3),),
}
# Metrics of ncu: durations, and clocks by meaning.
_DURATIONS = ("duration", "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration_measured_user.sum")
_CLOCKS = {
    "sm frequency": "sm_clock [MHz]",
    "smsp__cycles_elapsed.avg.per_second": "sm_clock [MHz]",
    "dram frequency": "mem_clock [MHz]",
    "dram__cycles_elapsed.avg.per_second": "mem_clock [MHz]",
}
_CYCLES = {"cycle/nsecond": "GHz", "cycle/usecond": "MHz", "cycle/second": "Hz", "cycle/ns": "GHz", "cycle/us": "MHz"}


@dataclass
class _Line:
    """A line of a table of this kind: texts and units by the names of the columns, in lower case. `process` was
    profiled, and `gpu` is that of a line before the table; each is "" if nothing says it."""

    number: int
    kind: str
    process: str
    gpu: str
    cells: dict[str, str]
    units: dict[str, str]

    def text(self, *names: str) -> str:
        """What it has in the first of these columns; "" if there is none."""
        return next((self.cells[name] for name in names if name in self.cells), "")

    def ms(self, name: str, file: str) -> float | None:
        """A time, ms. Raises InputError where the table does not have the column, or it has no unit of time."""
        if name not in self.cells:
            raise InputError(f"{file}: a table of kernels has no column {name.title()}: profile again")
        factor = _milliseconds(self.units.get(name, ""), f"{file}: column {name.title()!r}")
        number = _number(self.cells[name])
        return None if number is None else number * factor


_GPU = ["process", "device", "node"]  # of a process, what it calls the GPU (`Tesla V100 (0)`, or a number), its host
_LAUNCHES = dict.fromkeys((*_GPU, "kernel"), pl.String()) | {
    "line": pl.Int64(), "ms": pl.Float64(), "start_ms": pl.Float64(), "count": pl.Int64(),
}  # fmt: skip
_VALUES = dict.fromkeys((*_GPU, "of_kernel", "meaning"), pl.String()) | {"at_ms": pl.Float64(), "value": pl.Float64()}


def fits_nvprof(head: str) -> bool:
    """Whether a file that begins so is of nvprof or nsys stats."""
    return any(_HEADERS[kind].search(head) for kind in ("trace", "summary", "metrics")) or bool(_PROFILING.search(head))


def fits_ncu(head: str) -> bool:
    """Whether a file that begins so has a table of Nsight Compute."""
    return _HEADERS["ncu"].search(head) is not None and ("Metric Name" in head or "__" in head)


def _lines(text: str, rows: Rows) -> Iterator[_Line]:
    """The lines of all tables. Others are refused or passed over."""
    process = gpu = kind = ""  # kind: of the present table, "" where its lines are not read
    names: list[str] = []
    units: dict[str, str] = {}
    calls = below = False  # whether a table is of calls of the API; whether its units stand below its header
    for number, content in written(text):
        content = content.strip()
        header = next((kind for kind, pattern in _HEADERS.items() if pattern.match(content)), None)
        if (section := _SECTION.match(content)) is not None:
            process, calls, kind = section[1] or process, "API calls" in section[2], ""
            device = _OF_DEVICE.search(section[2])
            gpu = device[1] if device else "" if "result" in section[2] else gpu
        elif header is not None:
            labels = [split_label(label) for label in csv_fields(content) or []]
            names, below = [name.lower() for name, _ in labels], True
            units = _by_name(names, [unit for _, unit in labels])
            unread = calls or header == "metrics" or "num calls" in names  # nsys: the API, the operating system
            kind = "" if unread else header
        elif kind:
            cells = csv_fields(content)
            if cells is not None and below and _are_units(cells):
                units, below = {name: units[name] or unit for name, unit in _by_name(names, cells).items()}, False
            elif cells is not None and len(cells) == len(names):
                yield _Line(number, kind, process, gpu, _by_name(names, cells), units)
            elif content.count(",") * 2 >= len(names):  # else it is what the application printed
                rows.refuse(number, "it is no whole line of the table: it was cut or damaged")


def _by_name(names: list[str], texts: list[str]) -> dict[str, str]:
    """The text of each column; of two of one name, the first."""
    return dict(reversed(list(zip(names, texts, strict=False))))


def _are_units(cells: list[str]) -> bool:
    """Whether it is the line below a header that has the units."""
    return any(cells) and all(re.fullmatch(r"|%|[a-zA-Z]{1,6}(?:/[a-zA-Z]{1,8})?", cell) for cell in cells)


def read_nvprof(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text. Raises InputError where there is none, or a table lacks columns."""
    tables: dict[str, list[tuple[object, ...]]] = {"trace": [], "summary": []}
    readings: list[tuple[object, ...]] = []
    for line in _lines(text, rows):
        if line.kind not in tables:
            continue
        trace, name = line.kind == "trace", line.text("name")
        gpu = line.process, line.text("device") or line.gpu, ""
        start_ms = line.ms("start", rows.file) if trace else 0.0
        parts = line.text("system").split("/")
        for meaning, part, scale in _READINGS.get(name, ()):
            number = _number(parts[part]) if len(parts) > part else None
            if start_ms is not None and number is not None:
                readings.append((*gpu, None, meaning, start_ms, number * scale))
        if _NO_KERNEL.match(name) or line.text("type") not in ("", "GPU activities"):
            continue
        ms = line.ms("duration" if trace else "avg", rows.file)
        count = 1.0 if trace else _number(line.text("calls", "instances"))
        if not ms or start_ms is None or not count or count < 1:
            rows.refuse(line.number, "a kernel has no readable start, duration or number of calls")
        else:
            kernel = re.sub(r"\s*\[[0-9]+\]$", "", name)
            tables[line.kind].append((*gpu, kernel, line.number, ms, start_ms, int(count)))
    if not any(tables.values()):
        raise InputError(
            f"{rows.file}: it has no durations of kernels in CSV: profile with --print-gpu-trace --csv, or with --csv "
            "alone"
        )
    tool = "nsys" if re.search(r"(?:Duration|Avg) \(\w+\)", text) else "nvprof"  # nsys has the units in the names
    for kind, launches in tables.items():
        _add(launches, readings, rows, tool, text, ends=kind == "summary")


def read_ncu(text: str, rows: Rows) -> None:
    """Add the kernels of each table in the text. Raises InputError where none has a duration."""
    launches: dict[tuple[str, ...], tuple[object, ...]] = {}
    clocks: list[tuple[tuple[str, ...], str, float]] = []
    first_lines: dict[tuple[str, ...], int] = {}
    for line in _lines(text, rows):
        if line.kind != "ncu":
            continue
        process, device, kernel, host = map(line.text, ("process id", "device", "kernel name", "host name"))
        key = process, device, kernel, line.text("id")
        number = first_lines.setdefault(key, line.number)
        metrics = [(name, line.units.get(name, ""), text) for name, text in line.cells.items()]
        if "metric name" in line.cells:  # else each metric has a column
            metrics = [(line.text("metric name").lower(), line.text("metric unit"), line.text("metric value"))]
        for name, unit, value in metrics:
            measured = _number(value) if name in _DURATIONS or name in _CLOCKS else None
            if name in _CLOCKS and measured and (clock := find(_CYCLES.get(unit, unit), "clock")) is not None:
                clocks.append((key, _CLOCKS[name], measured * clock.to(UNITS["clock"]["MHz"])[0]))
            elif name in _DURATIONS and key not in launches and not measured:
                rows.refuse(line.number, f"the duration of a kernel is no number above 0 ({value[:40] or 'empty'})")
            elif name in _DURATIONS and key not in launches and measured:
                gpu = process, device or "0", "" if _LOCAL.match(host) else host
                ms = measured * _milliseconds(unit, f"{rows.file}: {name}")
                launches[key] = (*gpu, kernel, number, ms, float(len(launches)), 1)
    if not launches:
        raise InputError(
            f"{rows.file}: no kernel has a duration; profile with the section SpeedOfLight or with "
            "--metrics gpu__time_duration.sum"
        )
    last = {(key, meaning): value for key, meaning, value in clocks if key in launches}
    readings = [(*launches[key][:4], meaning, None, value) for (key, meaning), value in last.items()]
    _add(list(launches.values()), readings, rows, "ncu", text, ends=True)


def _milliseconds(unit: str, where: str) -> float:
    """How many ms one of these units of time has. Raises InputError, which begins with `where`."""
    time = find(unit.lower().replace("econds", "").replace("econd", ""), "time")
    if time is None:
        raise InputError(f"{where}: {unit!r} is no unit of time (s, ms, us, ns)")
    return time.to(UNITS["time"]["ms"])[0]


def _number(text: str) -> float | None:
    """A number of a profiler, with or without commas between thousands; None if that cannot be told for sure."""
    if re.fullmatch(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", text):
        text = text.replace(",", "")
    number = finite(text)
    return number if number is not None and number >= 0 else None


def _add(
    launches: list[tuple[object, ...]],
    readings: list[tuple[object, ...]],
    rows: Rows,
    tool: str,
    text: str,
    *,
    ends: bool,
) -> None:
    """Add a run for each kernel that takes a good part of its GPU's time; of `--workload`, only the longest one.

    Without `ends`, the first and the last launch of a kernel count only if there are no others. Clocks and readings are
    medians: of the launches, or of what was read between the first and the last of them.
    """
    kernel, start = [*_GPU, "kernel"], pl.col("start_ms")
    table = pl.DataFrame(launches, _LAUNCHES, orient="row")
    place, number = start.rank("ordinal").over(kernel), pl.len().over(kernel)
    inner = pl.lit(ends) | (number < 3) | ((place > 1) & (place < number))
    total_ms = (pl.col("ms") * pl.col("count")).filter("inner").sum()
    runs = table.with_columns(inner.alias("inner")).group_by(kernel, maintain_order=True).agg(
        pl.col("line").first(), pl.col("count").filter("inner").sum(), total_ms.alias("total_ms"),
        start.min().alias("first"), start.max().alias("last"),
    )  # fmt: skip
    share = pl.col("total_ms") / pl.col("total_ms").sum().over(_GPU)
    large = runs.filter(share >= _SHARE)
    if rows.options.workload is not None:
        large = large.filter(pl.col("total_ms").arg_max().over(_GPU) == pl.int_range(pl.len()).over(_GPU))
    between = pl.col("at_ms").is_between("first", "last", closed="none")
    values = pl.DataFrame(readings, _VALUES, orient="row").join(large, on=_GPU, maintain_order="left")
    values = values.filter(between | (pl.col("of_kernel") == pl.col("kernel")))
    by_meaning = values.group_by(*kernel, "meaning", maintain_order=True)
    medians: dict[tuple[object, ...], dict[str, Value]] = {}
    for *key, meaning, median in by_meaning.agg(pl.col("value").median()).iter_rows():
        medians.setdefault(tuple(key), {})[meaning] = median
    record = record_of(text)
    alone = runs.select(pl.struct("device", "node").n_unique()).item() == 1
    for process, device, node, name, line, count, time_ms, _, _ in large.iter_rows():
        values_of: dict[str, Value] = {"time [ms]": float(f"{time_ms / count:.15g}"), "kernels": count}
        values_of |= medians.get((process, device, node, name), {})
        values_of |= {
            "workload": f"{tool} {_workload(name)}",
            "kernel": name,
            **_identity(device, node, rows, alone=alone),
        }
        rows.add(line, values_of, f"{record} {process}")
    if small := runs.height - large.height:
        why = "--workload stores the longest one" if rows.options.workload is not None else "less than 1 % of the time"
        rows.note(f"{small} {'kernel is' if small == 1 else 'kernels are'} not stored: {why}")


def _identity(device: str, node: str, rows: Rows, *, alone: bool) -> dict[str, Value]:
    """The GPU that a profiler calls so; `alone` if the file has no other. Without a number, --gpu names it."""
    match = _DEVICE.match(device)
    model, number = (match[1], match[2] or match[3]) if match is not None else ("", None)
    values: dict[str, Value] = {name: text for name, text in (("model", model), ("node", node)) if text}
    in_name = _UUID.search(rows.file)
    if alone and in_name is not None and rows.options.gpu is None:
        rows.note("the GPU is taken from the file's name")
        return values | {"gpu": in_name[0]}
    if number is None:
        return values
    rows.note("a process numbers only the GPUs that it sees: after CUDA_VISIBLE_DEVICES, say --gpu NAME")
    return values | {"index": int(number)}


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
        name = f"{name[:_LONGEST]}.{record_of(kernel)[:8]}"
    return name or "kernel"
