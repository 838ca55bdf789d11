"""What `whorl import` says of a file: what was kept and refused, and what was taken for what."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.importing import Report
from ...store.importing.layout import by_name
from ..table import count, many


def answer(report: Report) -> Iterable[str]:
    """The report on a file, for people."""
    total = report.total
    if report.already:
        yield (f"{report.file}: imported before into cluster {report.cluster}; nothing added")
        return
    yield (
        f"{report.file}: {many(total.rows, 'row')} of {_what(report)}: {count(total.kept)} kept, "
        f"{many(total.duplicates, 'duplicate')} dropped, {count(total.refused)} refused; "
        + (f"{many(report.ranks, 'rank')}, " if report.kind == "timelines" else "")
        + many(*((report.nodes, "node") if report.kind == "node_power" else (report.gpus, "GPU")))
    )
    sources: dict[str, dict[str, list[str]]] = {}
    for name, unit in report.units.items():
        source = "the columns' names" if unit["from"] == by_name(name) else unit["from"]
        sources.setdefault(source, {}).setdefault(unit["unit"], []).append(name.partition(" [")[0])
    for source, taken in sources.items():
        units = "; ".join(f"{', '.join(names)} {unit}" for unit, names in taken.items())
        yield f"  units from {source}: {units}"
    if report.placeholders:
        unknown = ", ".join(f"{name} {count(number)}" for name, number in report.placeholders.items())
        yield f"  placeholders stored as NULL: {unknown}"
    for reason, lines in sorted(report.refusals.items(), key=lambda item: -len(item[1])):
        first = ", ".join(str(line) for line in sorted(lines)[:5]) + (", ..." if len(lines) > 5 else "")
        yield f"  refused: {count(len(lines))} where {reason} (line {first})"
    for note in report.notes:
        yield f"  note: {note}"
    if report.ignored:
        yield f"  columns not stored: {', '.join(report.ignored)}"


def _what(report: Report) -> str:
    if report.kind == "jobs":
        return "jobs"
    if report.kind == "timelines":
        return "timelines"
    if report.kind == "node_power":
        return "node power"
    return "telemetry" if not report.workloads else " and ".join(report.workloads)
