"""`whorl doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import sys
from typing import Any

import click

from .options import DCGM_ROWS, EXPORTER_ROWS, backend_option, json_option


@click.command("doctor", short_help="What works on this machine, and why the rest does not.")
@click.option("--store", metavar="DIR", envvar="WHORL_STORE", help="Also check every file of this store.")
@backend_option(
    "dcgm",
    "prometheus",
    says="Also read a dcgm or prometheus that stands elsewhere.",
    several=True,
    dcgm=DCGM_ROWS,
    prometheus=EXPORTER_ROWS,
)
@json_option
def doctor(store: str | None, as_json: bool, **given: Any) -> None:
    """Show what works on this machine, and why the rest does not.

    \b
    whorl doctor
    whorl doctor --backend prometheus:url=http://localhost:9400/metrics

    Exit status 1 if something that whorl always needs does not work, or if a file of the store is damaged.
    """
    from .answers.doctor import findings, machine_document, machine_mapping
    from .output import print_answer

    rows = findings(store, host=given["host"], socket=given["socket"], urls=given["url"])
    print_answer(machine_mapping(rows), machine_document(rows), as_json=as_json)
    if not all(row.works for row in rows if row.vital):
        sys.exit(1)
