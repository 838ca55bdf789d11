"""`whorl import`: files of measurements, from any tool, into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError, WhorlError
from .options import OptionKey, json_option, settings, store_option
from .output import tell

if TYPE_CHECKING:
    from ..store.importing import Report
    from ..store.merging import Merged


@click.command("import", short_help="Import files of measurements, of any tool, into a store.")
@store_option
@click.option("--cluster", metavar="NAME", help="Name of the files' cluster.  [default: fleet; of a store, its own]")
@click.option("--gpu", metavar="NAME", help="The GPU, if a file does not name it.")
@click.option("--node", metavar="NAME", help="The host, if a file does not name it.")
@click.option("--model", metavar="NAME", help="The GPUs' model, if a file has none.")
@click.option("--workload", metavar="NAME", help="The workload; overrides what a file says.")
@click.option(
    "--map",
    metavar="COLUMN=MEANING[:UNIT]",
    multiple=True,
    help="What a column means: time:ms, gpu, power:W. Repeatable.",
)
@click.option(
    "--unit", metavar="[COLUMN=]UNIT", multiple=True, help="The unit of a column, or of the duration. Repeatable."
)
@click.option("--at", metavar="TIME", help="When measured, if a file has no times: '2026-11-23 14:05:00'.")
@click.option("--every", type=float, metavar="SECONDS", help="Time between two readings, if a stream has no times.")
@settings(
    OptionKey("time-zone", click.STRING, "Zone of time stamps that have none.", "UTC", metavar="ZONE"),
    OptionKey("header", click.STRING, "Names of columns, with commas, where there is no header line."),
    OptionKey("job", click.STRING, "The training job of a timeline.  [default: its layout file's, or the file's name]"),
    OptionKey(
        "layout",
        click.Path(path_type=Path),
        "How the ranks of a timeline are laid out (YAML: dp_size, pp_size, tp_size).  [default: meta-X.yaml beside it]",
        metavar="FILE",
    ),
    OptionKey(
        "ranks",
        click.Path(path_type=Path),
        "Which rank has which GPU: CSV (rank,uuid or rank,node,index).",
        metavar="FILE",
    ),
)
@json_option
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def import_files(store: str, as_json: bool, files: tuple[Path, ...], **options: Any) -> None:
    """Import FILES of measurements into a store; a new store is made if needed.

    \b
    whorl import --store S FILE ...
    whorl import --store S --map perf=time:ms --map card=gpu times.csv

    The format is found from the content; docs/import.md lists all: SC'22 files, nvidia-smi, DCGM, exporters,
    benchmarks, profilers, jobs, timelines, power of nodes, stores, and any CSV or Parquet with --map; plain, .gz or
    .zst. Every row is kept, a duplicate, or refused with its line and the reason. Importing a file again adds nothing.
    One file is stored whole or not at all; the others go on.
    """
    from ..dashboards.answers.importing import imported, outcome_parts
    from ..dashboards.documents.stores import next_command
    from .output import ProgressBar, print_json, show

    def done(outcome: Report | Merged | WhorlError) -> None:
        progress.clear()
        if isinstance(outcome, WhorlError):
            tell(str(outcome))
        elif not as_json:
            show(outcome_parts(outcome))

    with ProgressBar() as progress:
        options |= {name: _pairs(options[name], f"--{name}") for name in ("map", "unit")}
        if options["cluster"] is None:
            del options["cluster"]
        imports = imported(files, store, progress=progress, done=done, **options)
    if as_json:
        print_json(imports.mapping())
    else:
        show(next_command(imports.reports, store))
    if imports.failed:
        sys.exit(imports.failed[0][1].exit_code)


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
