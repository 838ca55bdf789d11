"""`whorl doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import sys

import click

from .options import json_option


@click.command("doctor", short_help="What works on this machine, and why the rest does not.")
@click.option("--store", metavar="DIR", envvar="WHORL_STORE", help="Also check every file of this store.")
@click.option("--host", metavar="HOST:PORT", help="The DCGM engine.  [default: this node's, else one of its own]")
@click.option("--socket", metavar="PATH", help="The DCGM engine, by its Unix socket.")
@click.option("--url", metavar="URL", multiple=True, help="Also read this page of an exporter; may be repeated.")
@json_option
def doctor(store: str | None, host: str | None, socket: str | None, url: tuple[str, ...], as_json: bool) -> None:
    """Show what works on this machine, and why the rest does not.

    Exit status 1 if something that whorl always needs does not work, or if a file of the store is damaged.
    """
    from ..dashboards.table import Table
    from .answers.doctor import findings
    from .output import print_json, print_table

    rows = findings(store, host=host, socket=socket, urls=url)
    if as_json:
        documents = [
            {"what": row.what, "works": row.works, "detail": row.detail, "needed_for": row.needed_for or None}
            for row in rows
        ]
        print_json({"schema": "whorl.doctor/1", "findings": documents})
    else:
        cells = [["yes" if row.works else "no", row.needed_for, f"{row.what}: {row.detail}"] for row in rows]
        print_table(Table(("works", "needed for", "what"), cells, wrapped=(1, 2)))
    if not all(row.works for row in rows if row.vital):
        sys.exit(1)
