"""Whether what was kept of a damaged file can be explained by its text, for `mutations.py`.

The judge shares no code with the importer: it reads the damaged text itself and asks of each stored value which
field, under which header and in which unit, it was.
"""

from __future__ import annotations

import csv
import math
import re
from datetime import UTC, datetime
from statistics import median

from whorl.store.importing import Parsed
from whorl.tests.importing.damage import Case

# meaning -> (column of the frame, accepted names in order, unit of bare numbers, unit stored)
RUNS = {
    "time": ("value", ("perf",), "ms", "ms"),
    "sm_clock": ("sm_clock_mhz", ("freq", "median_freq", "sm_clock"), "mhz", "mhz"),
    "mem_clock": ("mem_clock_mhz", ("memfreq", "median_memfreq"), "mhz", "mhz"),
    "temperature": ("temperature_c", ("temp", "median_temp"), "c", "c"),
    "power": ("power_w", ("pwr", "median_pwr"), "w", "w"),
}
TELEMETRY = {
    "power": ("power_mw", ("power.draw",), "w", "mw"),
    "instant": ("power_instant_mw", ("power.draw.instant",), "w", "mw"),
    "average": ("power_average_mw", ("power.draw.average",), "w", "mw"),
    "sm_clock": ("sm_clock_mhz", ("clocks.current.sm", "clocks.sm"), "mhz", "mhz"),
    "mem_clock": ("mem_clock_mhz", ("clocks.current.memory", "clocks.mem"), "mhz", "mhz"),
    "temperature": ("temperature_c", ("temperature.gpu",), "c", "c"),
    "memory_temperature": ("memory_temperature_c", ("temperature.memory",), "c", "c"),
    "utilization": ("utilization", ("utilization.gpu",), "%", "%"),
    "memory_utilization": ("memory_utilization", ("utilization.memory",), "%", "%"),
}
UNITS = {
    "s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6, "hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3,
    "w": 1.0, "mw": 1e-3, "kw": 1e3, "uw": 1e-6, "c": 1.0, "%": 1.0, "ratio": 100.0,
}  # fmt: skip
UNKNOWN = {
    "", "na", "n/a", "nan", "null", "none", "-", "err!", "not supported", "unknown error", "[n/a]", "[not supported]",
    "[unknown error]", "[gpu is lost]", "[insufficient permissions]", "[not found]",
    "[gpu requires reset]", "[requested functionality has been deprecated]", "[function not found]", "[no data]",
    "[timeout]", "unknown", "#n/a",
}  # fmt: skip
SECONDS = {"perf_s", "train_time"}
NUMBER = re.compile(r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S.*)?$")
LINE = "=line"
METRICS = {
    "pwr": ("power", "w"),
    "freq": ("sm_clock", "mhz"),
    "memfreq": ("mem_clock", "mhz"),
    "temp": ("temperature", "c"),
}
FIGURES = {
    f"{of}_{name}": (f"{metric}_{of}", unit)
    for name, (metric, unit) in METRICS.items()
    for of in ("min", "mean", "max")
}


PLAUSIBLE = {"mhz": (0, 10_000), "c": (-40, 150), "w": (0, 5_000), "%": (0, 100)}


def kind_of(column: str, file: str) -> str:
    """What a column of an undamaged file truly is: a clock, a duration in ms, ..."""
    name = re.sub(r"\s*\[.*", "", column).lower()
    if name in SECONDS:
        return "s"
    if name.endswith("iter_dur"):
        return "s" if "bert" in file or "sample" in file else "ms"
    if name in ("perf", "kern_sum"):
        return "s" if file == "sample-resnet.csv" and name == "perf" else "ms"
    for part, kind in (("freq", "clock"), ("clock", "clock"), ("temp", "heat"), ("pwr", "power"), ("power", "power")):
        if part in name:
            return kind
    return name


KINDS = {"time": ("s", "ms"), "power": ("power",), "instant": ("power",), "average": ("power",)}
KINDS |= dict.fromkeys(("sm_clock", "mem_clock"), ("clock",))
KINDS |= dict.fromkeys(("temperature", "memory_temperature"), ("heat",))


class WrongError(Exception):
    """What the importer did cannot be explained by the file."""


def expect(fine: bool, what: str) -> None:
    if not fine:
        raise WrongError(what)


def data_lines(data: bytes) -> tuple[list[str], str, dict[int, list[str] | None]]:
    """The names, the delimiter, and line number -> fields (None where it cannot be cut)."""
    text = data.decode("utf-8-sig", "replace")
    lines = text.split("\n" if "\n" in text else "\r")
    numbered = [(n, line.rstrip("\r")) for n, line in enumerate(lines, start=1) if line.strip("\r").strip()]
    delimiter = max(",;\t", key=numbered[0][1].count)
    cut: dict[int, list[str] | None] = {}
    for n, line in numbered:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True), [])
            cut[n] = [cell.strip() for cell in cells]
        except csv.Error:
            cut[n] = None
    names = cut.pop(numbered[0][0])
    return names or [], delimiter, cut


def split_name(name: str) -> tuple[str, str]:
    match = re.match(r"^(.*?)\s*[\[(]\s*(.+?)\s*[\])]$", name)
    return (match[1].lower(), match[2].lower()) if match else (name.lower(), "")


def position(names: list[str], usual: tuple[str, ...]) -> tuple[int, str] | None:
    """Where a meaning's column is, and the unit in its name."""
    for wanted in usual:
        for i, name in enumerate(names):
            if split_name(name)[0] == wanted:
                return i, split_name(name)[1]
        for i, name in enumerate(names):
            base, _, unit = name.lower().rpartition("_")
            if base == wanted and unit in UNITS:
                return i, unit
    return None


def judge_value(text: str, stored: float | None, bare: str, target: str, *, codes: bool) -> None:
    number = NUMBER.match(text)
    if text.lower() in UNKNOWN or (codes and text in ("-1", "-1.0")):
        expect(stored is None, f"{text!r} became {stored}")
        return
    expect(number is not None, f"{text!r} is no number and became {stored}")
    assert number is not None
    unit = (number[2] or bare).strip().lower()
    expect(unit in UNITS or unit == "k", f"{text!r} has no unit that is one and became {stored}")
    value = float(number[1]) - 273.15 if unit == "k" else float(number[1]) * UNITS[unit] / UNITS[target]
    slack = 0.51 if target in ("mw", "%") or (target in ("mhz", "c") and stored == int(stored or 0)) else 0.0
    close = stored is not None and math.isclose(stored, value, rel_tol=1e-9, abs_tol=slack + 1e-9)
    expect(close, f"{text!r} in {unit} became {stored} {target}")


def judge_time(text: str, stored: datetime | None, *, codes: bool) -> None:
    if text.lower() in UNKNOWN or (codes and text in ("-1", "-1.0")):
        expect(stored is None, f"time {text!r} became {stored}")
        return
    expect(stored is not None, f"time {text!r} was lost")
    assert stored is not None
    if re.fullmatch(r"\+?[0-9.]+", text):
        seconds = float(text)
        while seconds > 1e10:
            seconds /= 1000
    else:
        plain = re.sub(r"(\.[0-9]{6})[0-9]*", r"\1", text.replace("/", "-").replace(" ", "T", 1))
        moment = datetime.fromisoformat(plain)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    expect(abs(stored.replace(tzinfo=UTC).timestamp() - seconds) < 1e-3, f"time {text!r} became {stored}")


def judge_gpu(cells: dict[str, str], row: dict[str, object]) -> None:
    stored = str(row["gpu"])
    uuid = cells.get("uuid")
    if uuid is not None and uuid.lower() in (*UNKNOWN, "-1", "-1.0"):
        return  # then another row of the same place or number names it
    if uuid is not None:
        plain = re.sub("-0+([0-9])", r"-\1", uuid) if not uuid.upper().startswith("GPU") else uuid
        same = stored.lower().removeprefix("gpu-") == plain.lower().removeprefix("gpu-")
        expect(same, f"GPU {uuid!r} became {stored!r}")
    elif "node" in cells and "device" in cells:
        node = cells["node"].lstrip("0") or "0"
        parts = [
            cells.get("cabinet", ""),
            node if node.isdigit() else cells["node"],
            cells["device"].lstrip("0") or "0",
        ]
        expect(stored.endswith("-".join(parts[1:])), f"place {parts} became {stored!r}")


def proven(cells: dict[str, str], time: float) -> bool:
    """Whether a duration in ms is what the row's own kernel starts say, whatever became of its decimal point."""
    try:
        first, last, kernels = (float(cells[name]) for name in ("kern_min_start", "kern_max_start", "num_kerns"))
    except (KeyError, ValueError):
        return False
    span = (last - first) * 1000
    return (
        kernels > 1
        and "train_time" not in cells
        and any(abs(time / s - 1) < 0.05 for s in (span, span / (kernels - 1)))
    )


def judge_figures(names: list[str], rows: list[dict[str, object]], cut: dict[int, list[str] | None]) -> None:
    """Further telemetry is what its field says, or NULL."""
    for at, name in enumerate(names):
        figure, unit = FIGURES.get(name, ("", ""))
        for row in rows:
            cells, stored = cut[int(str(row[LINE]))], row.get(f"figure {figure}")
            if cells is not None and isinstance(stored, float):
                judge_value(cells[at], stored, unit, unit, codes=True)


def judge(case: Case, data: bytes, found: Parsed) -> None:
    """Raise WrongError where a row is unaccounted for or a stored value has another meaning than its text."""
    names, _, cut = data_lines(data)
    lower = [name.lower() for name in names]
    rows = list(found.frame.iter_rows(named=True))
    refused = [line for lines in found.report.refusals.values() for line in lines]
    lines = [row[LINE] for row in rows] + found.duplicates + refused
    expect(len(lines) == len(set(lines)), "a line is listed twice")
    expect(set(lines) == set(cut), f"lines unaccounted for or invented: {set(lines) ^ set(cut)}")
    expect(found.report.total.rows == len(cut), "rows are miscounted")
    first = 1 if names[0] in ("", "Unnamed: 0") else 0
    kept, before, twins = {row[LINE] for row in rows}, set(), set()
    for line, cells in cut.items():
        own = tuple(cells or ())[first:]
        expect(line not in found.duplicates or own in before, f"line {line} is no duplicate")
        expect(line not in kept or own not in twins, f"line {line} is a duplicate that was missed")
        before.add(own)
        if line in kept:
            twins.add(own)
    runs = found.kind == "runs"
    for meaning, (column, usual, bare, target) in (RUNS if runs else TELEMETRY).items():
        place = position(names, usual)
        if place is None:
            stored = found.frame[column] if column in found.frame.columns else None
            expect(stored is None or stored.null_count() == len(stored), f"{meaning} came from nowhere")
            continue
        at, unit = place
        true = kind_of(case.truth[at].strip(), case.file) if len(case.truth) == len(names) else ""
        kept_cells = (cut[row[LINE]] for row in rows if row[column] is not None)
        every = [NUMBER.match(cells[at]) for cells in kept_cells if cells is not None]
        values = [float(number[1]) for number in every if number is not None]
        if any(row[column] is not None for row in rows) and true not in (*KINDS.get(meaning, (true,)), ""):
            low, high = PLAUSIBLE.get(bare, (1, 0))  # numbers that could be what the header says cannot be noticed
            # A duration is proven by other columns, where the damage left them.
            kernels = [i for i, name in enumerate(lower) if name in ("kern_min_start", "kern_max_start", "num_kerns")]
            one = cut[rows[0][LINE]] or []
            proof = (len(kernels) == 3 and all(one[i] for i in kernels)) or "perf_s" in lower
            fine = low <= median(values) <= high if meaning != "time" else case.swapped or not proof
            expect(fine, f"{meaning} was read from {case.truth[at]!r}")
        fields = [cells[at] for row in rows if (cells := cut[row[LINE]]) is not None]
        beside = [m[2].lower() for text in fields if (m := NUMBER.match(text)) and m[2]]
        if meaning == "time" and not unit and len(beside) * 2 <= len(fields):
            bare = true if true in ("s", "ms") else kind_of("perf", case.file)
            if case.swapped:  # two durations that were swapped prove each other's unit
                bare = found.report.units[names[at]]["unit"]
        elif beside and not unit and len(beside) * 2 > len(fields):
            bare = max(set(beside), key=beside.count)
        for row, text in zip(rows, fields, strict=True):
            cells = cut[row[LINE]]
            if (
                meaning != "time"
                or unit
                or cells is None
                or not proven(dict(zip(lower, cells, strict=True)), row[column])
            ):
                judge_value(text, row[column], unit or bare, target, codes=runs)
    judge_figures(lower, rows, cut)
    stamp = position(names, ("ts", "timestamp") if runs else ("timestamp",))
    for row in rows:
        cells = cut[row[LINE]]
        assert cells is not None
        if stamp is not None:
            judge_time(cells[stamp[0]], row["began" if runs else "ts"], codes=runs)
        judge_gpu(dict(zip(lower, cells, strict=True)), row)
