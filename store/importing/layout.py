"""Which format a file has, found from its column names, and what each column means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ...errors import InputError, UnitError
from . import figures
from .content import Sheet, headless
from .meanings import (
    JOB_MEANINGS,
    JOB_UNITS,
    OTHER_NAMES,
    RUN_MEANINGS,
    SC22_UNITS,
    SMI_UNITS,
    TELEMETRY_MEANINGS,
    Meaning,
)
from .options import Options, typed
from .units import UNITS, Unit, find, named, split_label

_CAPITAL = re.compile("^(.*[a-z0-9])([A-Z][A-Za-z]{0,2})$")
METRIC_KINDS = ("number", "hex", "pstate")
_NEEDED_OF_JOBS = {"job", "began", "ended"}
_MEANINGS = {"runs": RUN_MEANINGS, "telemetry": TELEMETRY_MEANINGS, "jobs": JOB_MEANINGS}


@dataclass
class Bound:
    """A column of the file bound to a meaning.

    `unit` is None while unknown; `source` says where the unit comes from.
    """

    meaning: Meaning
    column: str
    unit: Unit | None = None
    source: str = ""
    mapped: bool = False  # the user said so with an option: its values are checked less strictly
    lenient: bool = False  # further telemetry or a limit that nobody mapped: it never costs a row or the file


@dataclass
class Layout:
    """A recognised format: which meanings the file has, by the meaning's name."""

    name: str  # sc22 | nvidia-smi | allocations | mapped, or a row of `formats.FORMATS`
    kind: str  # runs | telemetry | jobs
    bound: dict[str, Bound]
    notes: list[str] = field(default_factory=list)

    def ignored(self, sheet: Sheet) -> list[str]:
        used = {b.column for b in self.bound.values()}
        return [name for name in sheet.names if name not in used]


def recognise(sheet: Sheet, options: Options) -> Layout:
    """The layout of a sheet. Raises InputError where it has none, UnitError for a unit that is none."""
    if sheet.format:
        layout = Layout(sheet.format, sheet.kind, _by_meaning(sheet), list(sheet.notes))
        if "gpu" in layout.bound:
            layout.bound["gpu"].mapped = True  # the reader knows that it is the GPU, also where it is no usual UUID
        if options.columns:
            _map(sheet, layout, options)
        if layout.kind == "telemetry" and not any(b.meaning.kind in METRIC_KINDS for b in layout.bound.values()):
            others = ", ".join(layout.ignored(sheet)[:8]) or "none at all"
            raise InputError(f"{sheet.file} is of {sheet.format} and has no metric that is stored; it has {others}")
        _units(sheet, layout, options)
        return layout
    smi = _bind(sheet, TELEMETRY_MEANINGS)
    dotted = any("." in b.column for b in smi.values() if b.meaning.kind in METRIC_KINDS)
    runs, jobs = _bind(sheet, RUN_MEANINGS), _bind(sheet, JOB_MEANINGS)
    if "time" in runs or (_maps(options, "time") and _of_study(runs)):
        layout = Layout("sc22", "runs", runs)
    elif dotted and ("timestamp" in smi or _maps(options, "timestamp")):
        layout = Layout("nvidia-smi", "telemetry", smi)
    elif options.columns and not (_maps_job(options) or _of_jobs(jobs, options)):
        layout = _mapped(options, runs, smi)
    elif jobs.keys() >= _NEEDED_OF_JOBS or options.columns:
        layout = Layout("allocations", "jobs", jobs)
    elif dotted:
        raise InputError(
            f"{sheet.file} is a stream of nvidia-smi without `timestamp`; query that as well, or say which column has "
            "the times with --map COLUMN=timestamp"
        )
    else:
        raise InputError(_unrecognised(sheet))
    if options.columns:
        _map(sheet, layout, options)
    lacks = _NEEDED_OF_JOBS - layout.bound.keys()
    if layout.kind == "jobs" and (lacks or not {"gpu", "index", "node"} & layout.bound.keys()):
        missing = min(lacks, default="gpu")
        raise InputError(f"{sheet.file} is of jobs and no column is {missing}: name it with --map COLUMN={missing}")
    if layout.kind == "runs":
        _bind_further(sheet, layout)
    _units(sheet, layout, options)
    return layout


def _of_study(runs: dict[str, Bound]) -> bool:
    """Whether columns of runs are those of the SC'22 study, whatever it calls the duration here."""
    return "workload" in runs and runs["workload"].column.lower() == "exp" and _names_gpus(runs)


def _of_jobs(jobs: dict[str, Bound], options: Options) -> bool:
    """Whether columns are those of allocations, and no --map makes runs or readings of them."""
    return jobs.keys() >= _NEEDED_OF_JOBS and not (_maps(options, "time") or _maps(options, "timestamp"))


def _names_gpus(bound: dict[str, Bound]) -> bool:
    return "gpu" in bound or {"node", "slot"} <= bound.keys()


def _mapped(options: Options, runs: dict[str, Bound], telemetry: dict[str, Bound]) -> Layout:
    """The layout of a file of which --map says everything; the GPU, the workload and the time of a reading also have
    their usual names."""
    kind, usual = ("runs", runs) if _maps(options, "time") else ("telemetry", telemetry)
    said = {text.partition(":")[0] for text in options.columns.values()}
    found: dict[str, Bound] = {n: usual[n] for n in ("gpu", "cabinet", "node", "slot", "index") if n in usual}
    if "index" in found and found["index"].column.lower() == "index":
        del found["index"]  # in a table of any kind, it may be the number of the row
    names_it = options.gpu is not None or said & {"gpu", "cabinet", "node", "slot", "index"}
    if names_it or (kind == "runs" and not _names_gpus(found)):
        # The node stays: GPU 3 of one node is not GPU 3 of another.
        found = {name: bound for name, bound in found.items() if name == "node" and "node" not in said}
    # Several workloads in one would compare their times with each other. A `model` may be that of the GPU.
    workload = usual.get("workload") if kind == "runs" and options.workload is None else None
    if workload is not None and "workload" not in said and workload.column.lower() != "model":
        found["workload"] = workload
    if kind == "telemetry" and "timestamp" in usual:
        found["timestamp"] = usual["timestamp"]
    return Layout("mapped", kind, found)


def _unrecognised(sheet: Sheet) -> str:
    shown = ", ".join(sheet.names[:12]) + (", ..." if len(sheet.names) > 12 else "")
    if [name.lower() for name in sheet.names] == ["timestamp"]:
        return f"{sheet.file} has only time stamps (no metric, no duration): nothing to import"
    if any(re.match("[0-9]{4}", name) for name in sheet.names):
        return str(headless(sheet.file, sheet.names))
    return (
        f"{sheet.file}: no known format has the columns {shown}; say what they mean, for example of runs "
        f"--map COLUMN=time:ms --map COLUMN=gpu, of readings --map COLUMN=timestamp --map COLUMN=power:W"
    )


def _by_meaning(sheet: Sheet) -> dict[str, Bound]:
    """Bind the columns of a format, which are named after meanings. Figures of a run never cost it."""
    meanings = {meaning.name: meaning for meaning in _MEANINGS[sheet.kind]}
    bound: dict[str, Bound] = {}
    for column in sheet.names:
        base = split_label(column)[0]
        figure = figures.named(base) if sheet.kind == "runs" and base not in meanings else None
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
        for usual in meaning.names:
            with_unit = [name for name in behind.get(usual, []) if unit_behind(name, meaning)]
            found = plain.get(usual) or next(iter(with_unit), None)
            if found is not None:
                bound[meaning.name] = _labelled(sheet, meaning, found)
                break
    return bound


def _bind_further(sheet: Sheet, layout: Layout) -> None:
    """Bind what else runs may have. In an unknown format, only columns whose names state the unit."""
    for name in layout.ignored(sheet):
        meaning = _by_other_name(name) or figures.of_column(name)
        if meaning is None or meaning.name in layout.bound:
            continue
        try:
            found = _labelled(sheet, meaning, name)
        except UnitError:
            continue
        if found.unit is None and layout.name == "mapped":
            what = meaning.description.removeprefix("condition: ")
            how = typed("--map", name, f"{meaning.name}:{meaning.unit}")
            layout.notes.append(f"if {name} is the {what}, say so with {how}")
            continue
        found.lenient = True
        layout.bound[meaning.name] = found


def _by_other_name(name: str) -> Meaning | None:
    base = split_label(name)[0].lower()
    for meaning in RUN_MEANINGS:
        names = (*meaning.names, *OTHER_NAMES[meaning.name]) if meaning.name in OTHER_NAMES else ()
        if base in names or (base.rpartition("_")[0] in names and unit_behind(name, meaning)):
            return meaning
    return None


def unit_behind(name: str, meaning: Meaning) -> str:
    """The unit at the end: `perf_s` is in s, `DurationNs` in ns. "" if there is none (`perf_min` is a minimum)."""
    base, _, unit = name.rpartition("_")
    if not base and (found := _CAPITAL.match(name)):
        base, unit = found.groups()
    return unit if base and unit.lower() != "min" and meaning.dimension and find(unit, meaning.dimension) else ""


def by_name(name: str) -> str:
    """Where a unit comes from that stands in the name of a column."""
    return f"the column's name {name!r}"


def _labelled(sheet: Sheet, meaning: Meaning, name: str) -> Bound:
    """A column bound to a meaning, with the unit that its name states."""
    label = split_label(name)[1] or unit_behind(name, meaning)
    if not label or not meaning.dimension:
        return Bound(meaning, name)
    where = f"{sheet.file}: column {name!r}"
    return Bound(meaning, name, named(label, meaning.dimension, where), by_name(name))


def _maps(options: Options, meaning: str) -> bool:
    return any(text.partition(":")[0] == meaning for text in options.columns.values())


def _maps_job(options: Options) -> bool:
    """Whether a meaning is mapped that only a file of allocations has."""
    others = {meaning.name for meaning in (*RUN_MEANINGS, *TELEMETRY_MEANINGS)}
    only = {meaning.name for meaning in JOB_MEANINGS} - others
    return any(text.partition(":")[0] in only for text in options.columns.values())


def _map(sheet: Sheet, layout: Layout, options: Options) -> None:
    """Apply --map.

    In a known format it adds or changes columns; in an unknown format only it gives columns a meaning.
    """
    kind = layout.kind
    every = dict.fromkeys(m.name for meanings in _MEANINGS.values() for m in meanings)
    for column, text in options.columns.items():
        name = text.partition(":")[0]
        if name not in every and figures.named(name) is None:
            raise InputError(
                f"--map {column}={text}: {name!r} is not a known meaning; known are {', '.join(every)}, and of runs "
                f"further telemetry such as {figures.EXAMPLE}"
            )
    meanings = {m.name: m for m in _MEANINGS[kind]}
    if kind == "runs":
        asked = (figures.named(text.partition(":")[0]) for text in options.columns.values())
        meanings |= {meaning.name: meaning for meaning in asked if meaning is not None}
    mapped: dict[str, Bound] = {}
    for column, text in options.columns.items():
        name, _, unit = text.partition(":")
        name = {"began": "timestamp"}.get(name, name) if kind == "telemetry" else {"timestamp": "began"}.get(name, name)
        if column not in sheet.names:
            raise InputError(f"{sheet.file} has no column {column!r} (--map); it has {', '.join(sheet.names[:12])}")
        if name not in meanings:
            why = " (one of runs needs a COLUMN=time:UNIT)" if kind == "telemetry" else ""
            raise InputError(
                f"--map {column}={text}: a file of {kind} has no {name!r}{why}; it has {', '.join(meanings)}"
            )
        if name in mapped:
            raise InputError(f"--map: both {mapped[name].column!r} and {column!r} are mapped to {name}")
        meaning = meanings[name]
        if unit and not meaning.dimension:
            raise InputError(f"--map {column}={text}: {name} has no unit")
        mapped[name] = _labelled(sheet, meaning, column)
        mapped[name].mapped = True
        if unit:
            given, stated = named(unit, meaning.dimension, f"--map {column}={text}"), mapped[name].unit
            if stated not in (None, given):
                raise UnitError(
                    f"{sheet.file}: --map says {column!r} is in {given.name} and its name says otherwise; if --map is "
                    f"right, say {typed('--map', column, name)} {typed('--unit', column, given.name)}"
                )
            mapped[name].unit, mapped[name].source = given, "--map"
    theirs = {b.column for b in mapped.values()}
    layout.bound = {name: b for name, b in layout.bound.items() if b.column not in theirs} | mapped
    if kind == "runs" and "time" not in layout.bound:
        raise InputError("--map leaves no column for the duration: name one, for example COLUMN=time:ms")
    if kind == "telemetry" and "timestamp" not in layout.bound:
        raise InputError(
            "--map: name a duration (COLUMN=time:ms) for runs, or a time (COLUMN=timestamp) and metrics for telemetry"
        )
    if kind == "telemetry" and not any(b.meaning.kind in METRIC_KINDS for b in layout.bound.values()):
        raise InputError("--map: name at least one metric, for example COLUMN=power:W")


def _units(sheet: Sheet, layout: Layout, options: Options) -> None:
    """Apply --unit, then the usual units of the format."""
    by_column = {b.column: b for b in layout.bound.values()}
    for column, text in options.units.items():
        target = layout.bound.get("time") if column == "" else by_column.get(column)
        if target is None:
            if column == "":
                raise InputError(f"{sheet.file} has no duration column for --unit {text}; use --unit COLUMN=UNIT")
            raise InputError(f"{sheet.file}: --unit {column}={text} names a column that does not exist or is not used")
        if not target.meaning.dimension:
            raise InputError(f"{sheet.file}: --unit {column}={text}: {target.meaning.name} has no unit")
        target.unit = named(text, target.meaning.dimension, "--unit")
        target.source = "--unit"
    known = {"sc22": SC22_UNITS, "nvidia-smi": SMI_UNITS, "allocations": JOB_UNITS}.get(layout.name, {})
    for bound in layout.bound.values():
        dimension = bound.meaning.dimension
        if bound.unit is None and dimension in known:
            bound.unit = UNITS[dimension][known[dimension]]
            bound.source = "the format"
