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
    from ..jobs.doctor import findings
    from .output import print_json, print_table

    found = findings(store, host=host, socket=socket, urls=url)
    if as_json:
        rows = [
            {"what": f.what, "works": f.works, "detail": f.detail, "needed_for": f.needed_for or None} for f in found
        ]
        print_json({"schema": "whorl.doctor/1", "findings": rows})
    else:
        rows_text = [["yes" if f.works else "no", f.needed_for, f"{f.what}: {f.detail}"] for f in found]
        print_table(Table(("works", "needed for", "what"), rows_text, wrapped=(1, 2)))
    if not all(f.works for f in found if f.vital):
        sys.exit(1)
