"""`whorl import`: files of measurements, from any tool, into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError, WhorlError
from .options import json_option, store_option
from .output import tell

if TYPE_CHECKING:
    from ..store.importing import Report


@click.command("import", short_help="Import files of measurements, of any tool, into a store.")
@store_option
@click.option("--cluster", default="fleet", show_default=True, help="Name of the files' cluster.")
@click.option(
    "--gpu", metavar="NAME", help="The GPU, if a file does not name it: node/slot, UUID or a part; else a new name."
)
@click.option("--node", metavar="NAME", help="The host of a stream's GPUs, if a file does not name it.")
@click.option("--model", metavar="NAME", help="The GPUs' product name, if a file has none: its power sensor follows.")
@click.option("--workload", metavar="NAME", help="The workload; overrides what a file says.")
@click.option(
    "--map",
    "mapping",
    metavar="COLUMN=MEANING[:UNIT]",
    multiple=True,
    help="What a column means (time:ms, gpu, power:W, ...): for files of unknown format. Repeatable.",
)
@click.option(
    "--unit",
    "units",
    metavar="[COLUMN=]UNIT",
    multiple=True,
    help="The unit of a column, or of the duration; overrides what was found. Repeatable.",
)
@click.option("--time-zone", default="UTC", show_default=True, help="Zone of time stamps that have none.")
@click.option("--at", metavar="TIME", help="When it was measured, if a file has no times: '2026-11-23 14:05:00'.")
@click.option("--every", type=float, metavar="SECONDS", help="Time between two readings, if a stream has no times.")
@click.option("--header", metavar="NAMES", help="Names of the columns, with commas, for files without a header line.")
@json_option
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def import_files(
    store: str,
    cluster: str,
    gpu: str | None,
    node: str | None,
    model: str | None,
    workload: str | None,
    mapping: tuple[str, ...],
    units: tuple[str, ...],
    time_zone: str,
    at: str | None,
    every: float | None,
    header: str | None,
    as_json: bool,
    files: tuple[Path, ...],
) -> None:
    """Import FILES of measurements into a store; a new store is made if needed.

    The format is found from the content: the files of the SC'22 variability study and its successors,
    nvidia-smi (--query-gpu, dmon, -q), dcgmi dmon, pages of dcgm-exporter, Omnistat, nvbandwidth, SuperBench,
    gpu-burn, nvprof, nsys, ncu, allocations of jobs, and any CSV or Parquet with --map; plain, .gz or .zst. Every row
    is accounted for: kept, a duplicate, or refused with its line and the reason. Importing a file again adds nothing.
    One file is stored whole or not at all; the others of the command go on.
    """
    from ..store import Store
    from ..store.importing import Options, import_file
    from .output import Progress, print_json

    options = Options(
        cluster=cluster,
        gpu=gpu,
        node=node,
        model=model,
        workload=workload,
        columns=_pairs(mapping, "--map"),
        units=_pairs(units, "--unit"),
        time_zone=time_zone,
        at=at,
        every=every,
        header=header,
    )
    opened = Store.create(store) if any(path.exists() for path in files) else None  # a wrong name makes no store
    reports, errors = [], []
    progress = Progress()
    for position, path in enumerate(files):
        if len(files) > 1:
            progress(position, len(files), f"importing {path.name}")
        else:
            progress.say(f"importing {path.name}")
        try:
            if opened is None:
                raise InputError(f"{path}: there is no such file")
            report = import_file(opened, path, options)
        except WhorlError as error:
            errors.append((path, error))
            progress.clear()
            tell(str(error))
            continue
        reports.append(report)
        if not as_json:
            progress.clear()
            _describe(report)
    progress.clear()
    if as_json:
        failed = [{"file": str(path), "error": str(error)} for path, error in errors]
        print_json({"schema": "whorl.import/1", "files": [report.as_dict() for report in reports], "failed": failed})
    if errors:
        sys.exit(errors[0][1].exit_code)


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        column, value = _pair(text, option)
        if column in pairs:
            what = f"column {column!r}" if column else "the duration"
            raise InputError(f"{option} is given twice for {what}; give it once")
        pairs[column] = value
    return pairs


def _pair(text: str, option: str) -> tuple[str, str]:
    """`COLUMN=VALUE`; for --unit, a bare `VALUE` is about the duration. A column may hold `=` itself."""
    column, equals, value = text.rpartition("=")
    if not value or (not equals and option != "--unit"):
        example = "perf=time:ms" if option == "--map" else "perf=ms"
        raise InputError(f"{option} {text!r} is not COLUMN=VALUE; an example is {option} {example}")
    return column, value


def _describe(report: Report) -> None:
    """Print the report on a file, for people."""
    from ..dashboards.table import count, many
    from ..store.importing.layout import by_name
    from .output import say

    total = report.total
    if report.already:
        say(f"{report.file}: imported before into cluster {report.cluster}; nothing added")
        return
    say(
        f"{report.file}: {many(total.rows, 'row')} of {_what(report)}: {count(total.kept)} kept, "
        f"{many(total.duplicates, 'duplicate')} dropped, {count(total.refused)} refused; {many(report.gpus, 'GPU')}"
    )
    sources: dict[str, dict[str, list[str]]] = {}
    for name, unit in report.units.items():
        source = "the columns' names" if unit["from"] == by_name(name) else unit["from"]
        sources.setdefault(source, {}).setdefault(unit["unit"], []).append(name.partition(" [")[0])
    for source, taken in sources.items():
        units = "; ".join(f"{', '.join(names)} {unit}" for unit, names in taken.items())
        say(f"units from {source}: {units}", "  ", "    ")
    if report.placeholders:
        unknown = ", ".join(f"{name} {count(number)}" for name, number in report.placeholders.items())
        say(f"placeholders stored as NULL: {unknown}", "  ", "    ")
    for reason, lines in sorted(report.refusals.items(), key=lambda item: -len(item[1])):
        first = ", ".join(str(line) for line in sorted(lines)[:5]) + (", ..." if len(lines) > 5 else "")
        say(f"refused: {count(len(lines))} where {reason} (line {first})", "  ", "    ")
    for note in report.notes:
        say(f"note: {note}", "  ", "    ")
    if report.ignored:
        say(f"columns not stored: {', '.join(report.ignored)}", "  ", "    ")


def _what(report: Report) -> str:
    if report.kind == "jobs":
        return "jobs"
    return "telemetry" if not report.workloads else " and ".join(report.workloads)
