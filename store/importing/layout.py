"""Which layout a table has, found from the names of its columns, and what each column means.

A further layout is one row of `LAYOUTS`; a further name of a column is one word in `meanings.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ...errors import InputError, UnitError
from .content import Sheet, headless, listed
from .meanings import (
    DIFFERENCE,
    FIGURE_EXAMPLE,
    JOB_MEANINGS,
    METRIC_KINDS,
    NODE_MEANINGS,
    OTHER_NAMES,
    RUN_MEANINGS,
    TELEMETRY_MEANINGS,
    TIMELINE_MEANINGS,
    UNITS,
    Bound,
    Meaning,
    figure_named,
    figure_of_column,
    find,
    split_label,
    unit_named,
)
from .options import typed

_MEANINGS = {
    "runs": RUN_MEANINGS, "telemetry": TELEMETRY_MEANINGS, "jobs": JOB_MEANINGS, "timelines": TIMELINE_MEANINGS,
    "node_power": NODE_MEANINGS,
}  # fmt: skip
_NAMES_A_GPU = {"gpu", "cabinet", "node", "slot", "index"}
_EITHER = {"began": "timestamp", "timestamp": "began"}  # what --map may call the time of any row


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A known layout of tables: what must be there, and the units of columns that state none."""

    name: str  # as reports and the table `imports` have it
    kind: str  # runs | telemetry | jobs | timelines | node_power
    has: frozenset[str] = frozenset()  # meanings that columns have by their names
    needs: frozenset[str] = frozenset()  # meanings that columns have by their names, or by --map
    columns: tuple[str, ...] = ()  # names of columns that must be there, in lower case
    lacks: frozenset[str] = frozenset()  # and of those that must not
    metric: str = ""  # a pattern that the name of one metric's column must have
    units: Mapping[str, str] = field(default_factory=dict)  # dimension -> unit


_SC22_UNITS = {"power": "W", "clock": "MHz", "temperature": "C", DIFFERENCE: "C"}
_SMI_UNITS = {
    "power": "W", "energy": "mJ", "clock": "MHz", "temperature": "C", "share": "%", "memory": "MiB", "time": "us",
}  # fmt: skip
_OF_A_GPU = frozenset(
    {
        *("gpu", "uuid", "gpu_uuid", "index", "gpu_index", "device", "slot", "name", "gpu_name", "card"),
        *("temperature", "temp", "clock", "freq", "utilization"),
    }
)
"""Names of columns that a table of the power of nodes does not have."""
LAYOUTS = (
    TableLayout("sc22", "runs", has=frozenset({"time"}), units=_SC22_UNITS),
    TableLayout("sc22", "runs", needs=frozenset({"time"}), columns=("exp", "uuid"), units=_SC22_UNITS),
    TableLayout("sc22", "runs", needs=frozenset({"time"}), columns=("exp", "node", "device"), units=_SC22_UNITS),
    TableLayout("nvidia-smi", "telemetry", needs=frozenset({"timestamp"}), metric=r"\.", units=_SMI_UNITS),
    TableLayout("allocations", "jobs", needs=frozenset({"job", "began", "ended"}), units={"share": "ratio"}),
    TableLayout("timeline", "timelines", needs=frozenset({"rank", "step", "optype", "time"}), units={"time": "s"}),
    TableLayout("node power", "node_power", needs=frozenset({"timestamp", "node"}), lacks=_OF_A_GPU),
)


def recognise(sheet: Sheet) -> None:
    """Find the layout of a sheet, and what its columns mean: `sheet.layout`, `kind` and `bound`.

    Raises InputError where it has none, UnitError for a unit that is none.
    """
    units: Mapping[str, str] = {}
    if sheet.format:
        sheet.layout, sheet.bound = sheet.format, _by_meaning(sheet)
        if "gpu" in sheet.bound:
            sheet.bound["gpu"].mapped = True  # the reader knows that it is the GPU, also where it is no usual UUID
    else:
        units = _of_table(sheet)
    _map(sheet)
    _check_complete(sheet)
    if sheet.kind == "runs" and not sheet.format:
        _bind_further(sheet)
    _apply_units(sheet, units)


def _of_table(sheet: Sheet) -> Mapping[str, str]:
    """Set the layout and the kind of a table, and bind its columns; returns the units that the layout has."""
    mapped = {text.partition(":")[0] for text in sheet.options.columns.values()}
    dated = mapped | ({"timestamp"} if sheet.options.at is not None else set())
    dated |= {"node"} if sheet.options.node is not None else set()
    of_jobs = mapped & ({m.name for m in JOB_MEANINGS} - {m.name for m in (*RUN_MEANINGS, *TELEMETRY_MEANINGS)})
    names = {split_label(name)[0].lower() for name in sheet.names}
    by_kind = {kind: _bind(sheet, meanings) for kind, meanings in _MEANINGS.items() if kind != "timelines"}
    for row in LAYOUTS:
        bound = by_kind.get(row.kind) or _bind(sheet, _MEANINGS[row.kind])  # of what fits no other, the plain words
        metrics = [b.column for b in bound.values() if b.meaning.kind in METRIC_KINDS]
        fits = row.has <= bound.keys() and row.needs <= bound.keys() | dated and names.issuperset(row.columns)
        fits = fits and row.lacks.isdisjoint(names)
        if row.kind == "node_power":
            of_nodes = {meaning.name for meaning in NODE_MEANINGS}
            fits = fits and "timestamp" in bound and bool(metrics) and mapped <= of_nodes and sheet.options.gpu is None
        if row.kind == "jobs":  # a file of runs may name jobs and times, too
            fits = bool(of_jobs) or (fits and not mapped & {"time", "timestamp"})
        if fits and (not row.metric or any(re.search(row.metric, column) for column in metrics)):
            sheet.layout, sheet.kind, sheet.bound = row.name, row.kind, bound
            return row.units
    if sheet.options.columns:
        _mapped(sheet, mapped, by_kind)
        return {}
    if any("." in b.column for b in by_kind["telemetry"].values() if b.meaning.kind in METRIC_KINDS):
        raise InputError(
            f"{sheet.file} is a stream of nvidia-smi without `timestamp`; query that as well, say which column has "
            "the times with --map COLUMN=timestamp, or when it began with --at TIME --every SECONDS"
        )
    raise _unrecognised(sheet)


def _mapped(sheet: Sheet, mapped: set[str], by_kind: Mapping[str, dict[str, Bound]]) -> None:
    """The layout of a file of which --map says everything; the GPU, the workload and the time of a reading also have
    their usual names."""
    kind = "runs" if mapped & {"time", "status"} else "telemetry"
    kind = "node_power" if mapped & {"node_power", "node_energy"} else kind
    by_name = by_kind[kind]
    bound = {name: column for name, column in by_name.items() if name in _NAMES_A_GPU}
    if "index" in bound and bound["index"].column.lower() == "index":
        del bound["index"]  # in a table of any kind, it may be the number of the row
    names_gpus = "gpu" in bound or {"node", "slot"} <= bound.keys()
    if sheet.options.gpu is not None or mapped & _NAMES_A_GPU or (kind == "runs" and not names_gpus):
        # The node stays: GPU 3 of one node is not GPU 3 of another.
        bound = {name: column for name, column in bound.items() if name == "node" and "node" not in mapped}
    # Several workloads in one would compare their times with each other. A `model` may be that of the GPU.
    workload = by_name.get("workload") if kind == "runs" and sheet.options.workload is None else None
    if workload is not None and "workload" not in mapped and workload.column.lower() != "model":
        bound["workload"] = workload
    if kind != "runs" and "timestamp" in by_name:
        bound["timestamp"] = by_name["timestamp"]
    sheet.layout, sheet.kind, sheet.bound = "mapped", kind, bound


def _unrecognised(sheet: Sheet) -> InputError:
    if any(re.match("[0-9]{4}", name) for name in sheet.names):
        return headless(sheet.file, sheet.names)
    return InputError(
        f"{sheet.file}: no known format has the columns {listed(sheet.names)}; say what they mean, for example of runs "
        f"--map COLUMN=time:ms --map COLUMN=gpu, of readings --map COLUMN=timestamp --map COLUMN=power:W"
    )


def _by_meaning(sheet: Sheet) -> dict[str, Bound]:
    """Bind the columns of a format, which are named after meanings. Figures of a run never cost it."""
    meanings = {meaning.name: meaning for meaning in _MEANINGS[sheet.kind]}
    bound: dict[str, Bound] = {}
    for column in sheet.names:
        base = split_label(column)[0]
        figure = figure_named(base) if sheet.kind == "runs" and base not in meanings else None
        if (meaning := meanings.get(base, figure)) is not None:
            bound[meaning.name] = _labelled(sheet, meaning, column)
            bound[meaning.name].lenient = meaning is figure
            if bound[meaning.name].unit is not None:
                bound[meaning.name].source = "the format"
    return bound


def _bind(sheet: Sheet, meanings: tuple[Meaning, ...]) -> dict[str, Bound]:
    """Bind columns to meanings by their usual names. A plain name comes before a name with a unit at its end."""
    plain: dict[str, str] = {}
    behind: dict[str, list[str]] = {}
    for name in sheet.names:
        plain.setdefault(split_label(name)[0].lower(), name)
        base, underscore, _ = name.rpartition("_")
        if underscore:
            behind.setdefault(base.lower(), []).append(name)
    bound: dict[str, Bound] = {}
    for meaning in meanings:
        for spelling in meaning.names:
            with_unit = [name for name in behind.get(spelling, []) if unit_behind(name, meaning)]
            column = plain.get(spelling) or next(iter(with_unit), None)
            if column is not None:
                bound[meaning.name] = _labelled(sheet, meaning, column)
                break
    return bound


def _bind_further(sheet: Sheet) -> None:
    """Bind what else runs may have. In an unknown format, only columns whose names state the unit."""
    for name in sheet.ignored():
        meaning = _by_other_name(name) or figure_of_column(name)
        if meaning is None or meaning.name in sheet.bound:
            continue
        try:
            bound = _labelled(sheet, meaning, name)
        except UnitError:
            continue
        if bound.unit is None and sheet.layout == "mapped":
            description = meaning.description.removeprefix("condition: ")
            option = typed("--map", name, f"{meaning.name}:{meaning.unit}")
            sheet.notes.append(f"if {name} is the {description}, say so with {option}")
            continue
        bound.lenient = True
        sheet.bound[meaning.name] = bound


def _by_other_name(name: str) -> Meaning | None:
    base = split_label(name)[0].lower()
    for meaning in RUN_MEANINGS:
        names = (*meaning.names, *OTHER_NAMES[meaning.name]) if meaning.name in OTHER_NAMES else ()
        if base in names or (base.rpartition("_")[0] in names and unit_behind(name, meaning)):
            return meaning
    return None


def unit_behind(name: str, meaning: Meaning) -> str:
    """The unit at the end: `perf_s` is in s. "" if there is none (`perf_min` is a minimum)."""
    base, _, unit = name.rpartition("_")
    return unit if base and unit.lower() != "min" and meaning.dimension and find(unit, meaning.dimension) else ""


def by_name(name: str) -> str:
    """Where a unit comes from that stands in the name of a column."""
    return f"the column's name {name!r}"


def _labelled(sheet: Sheet, meaning: Meaning, name: str) -> Bound:
    """A column bound to a meaning, with the unit that its name states."""
    label = split_label(name)[1] or unit_behind(name, meaning)
    if meaning.name in ("node_power", "node_energy") and find(name, meaning.dimension):
        label = name  # a column that is called after its unit: `watts`, `kWh`
    if not label or not meaning.dimension:
        return Bound(meaning, name)
    place = f"{sheet.file}: column {name!r}"
    return Bound(meaning, name, unit_named(label, meaning.dimension, place), by_name(name))


def _map(sheet: Sheet) -> None:
    """Apply --map.

    In a known format it adds or changes columns; in an unknown format only it gives columns a meaning.
    """
    kind = sheet.kind
    all_meanings = dict.fromkeys(m.name for meanings in _MEANINGS.values() for m in meanings)
    meanings = {m.name: m for m in _MEANINGS[kind]}
    mapped: dict[str, Bound] = {}
    for column, text in sheet.options.columns.items():
        name = text.partition(":")[0]
        figure = figure_named(name)
        if name not in all_meanings and figure is None:
            similar = get_close_matches(name, all_meanings, n=8, cutoff=0.3)
            known = listed(similar or list(all_meanings), 90)
            raise InputError(
                f"--map {column}={text}: {name!r} is not a known meaning; known are {known} and others of "
                f"docs/import.md, and of runs further telemetry such as {FIGURE_EXAMPLE}"
            )
        if kind == "runs" and figure is not None:
            meanings[name] = figure
    for column, text in sheet.options.columns.items():
        name, _, unit = text.partition(":")
        name = name if name in meanings else _EITHER.get(name, name)
        if column not in sheet.names:
            raise InputError(f"{sheet.file} has no column {column!r} (--map); it has {listed(sheet.names)}")
        if name not in meanings:
            why = " (one of runs needs a COLUMN=time:UNIT)" if kind == "telemetry" else ""
            raise InputError(
                f"--map {column}={text}: a file of {kind} has no {name!r}{why}; it has {listed(list(meanings), 200)}"
            )
        if name in mapped:
            raise InputError(f"--map: both {mapped[name].column!r} and {column!r} are mapped to {name}")
        mapped[name] = _as_mapped(sheet, meanings[name], column, text, unit)
    mapped_columns = {b.column for b in mapped.values()}
    sheet.bound = {name: b for name, b in sheet.bound.items() if b.column not in mapped_columns} | mapped


def _as_mapped(sheet: Sheet, meaning: Meaning, column: str, text: str, unit: str) -> Bound:
    bound = _labelled(sheet, meaning, column)
    bound.mapped = True
    if unit and not meaning.dimension:
        raise InputError(f"--map {column}={text}: {meaning.name} has no unit")
    if unit:
        option_unit, stated = unit_named(unit, meaning.dimension, f"--map {column}={text}"), bound.unit
        if stated not in (None, option_unit):
            raise UnitError(
                f"{sheet.file}: --map says {column!r} is in {option_unit.name} and its name says otherwise; if --map "
                f"is right, say {typed('--map', column, meaning.name)} {typed('--unit', column, option_unit.name)}"
            )
        bound.unit, bound.source = option_unit, "--map"
    return bound


def _check_complete(sheet: Sheet) -> None:
    bound, mapped = sheet.bound, any(b.mapped for b in sheet.bound.values())
    if sheet.kind == "runs" and not {"time", "status"} & bound.keys():
        raise InputError("--map leaves no column for the duration: name one, for example COLUMN=time:ms")
    if sheet.kind == "telemetry" and "timestamp" not in bound and sheet.options.at is None:
        raise InputError(
            "--map: name a duration (COLUMN=time:ms) for runs, or a time (COLUMN=timestamp) and metrics for telemetry; "
            "of readings without times, say when they began with --at TIME --every SECONDS"
        )
    if sheet.kind == "telemetry" and not sheet.metrics and not sheet.events:
        if mapped and not sheet.format:
            raise InputError("--map: name at least one metric, for example COLUMN=power:W")
        others = listed(sheet.ignored()) or "none at all"
        raise InputError(f"{sheet.file} is of {sheet.layout} and has no metric that is stored; it has {others}")
    if sheet.kind == "node_power" and (
        "timestamp" not in bound or ("node" not in bound and sheet.options.node is None)
    ):
        lacking = "timestamp" if "timestamp" not in bound else "node"
        or_node = ", or say it with --node" if lacking == "node" else ""
        raise InputError(f"{sheet.file}: no column is the {lacking}: name it with --map COLUMN={lacking}{or_node}")
    lacks = {"job", "began", "ended"} - bound.keys()
    if sheet.kind == "jobs" and (lacks or not {"gpu", "index", "node"} & bound.keys()):
        lacking = min(lacks, default="gpu")
        raise InputError(f"{sheet.file} is of jobs and no column is {lacking}: name it with --map COLUMN={lacking}")


def _apply_units(sheet: Sheet, units: Mapping[str, str]) -> None:
    by_column = {b.column: b for b in sheet.bound.values()}
    for column, text in sheet.options.units.items():
        target = sheet.bound.get("time") if column == "" else by_column.get(column)
        if target is None and column == "":
            raise InputError(f"{sheet.file} has no duration column for --unit {text}; use --unit COLUMN=UNIT")
        if target is None:
            raise InputError(f"{sheet.file}: --unit {column}={text} names a column that does not exist or is not used")
        if not target.meaning.dimension:
            raise InputError(f"{sheet.file}: --unit {column}={text}: {target.meaning.name} has no unit")
        target.unit = unit_named(text, target.meaning.dimension, "--unit")
        target.source = "--unit"
    for bound in sheet.bound.values():
        dimension = bound.meaning.dimension
        if bound.unit is None and dimension in units:
            bound.unit = UNITS[dimension][units[dimension]]
            bound.source = "the format"
