"""`whorl probe list`: what each probe stresses, its work, its time, what it needs."""

from __future__ import annotations

from typing import Any

import click

from ..dashboards.table import MISSING, Table, number
from .options import json_option
from .output import print_json, print_table, say

_ROUNDS_TO_1000 = 999.5
_PREFIXES = ("", "k", "M", "G", "T", "P")


@click.command("list", short_help="List the probes: what they stress, their work, their time.")
@click.option("--model", metavar="NAME", help="Sizes for this simulated model.  [default: the GPU here, else V100]")
@json_option
def list_probes(model: str | None, as_json: bool) -> None:
    """List the probes of each suite: what each one stresses, its work, its time, and what it needs.

    A larger suite also runs the probes of the smaller ones. The size is that of one repetition, on the first GPU here
    or on a GPU of --model. The time is the longest that a probe takes on a warm GPU, without its preparation.
    """
    from ..probes.listing import listing
    from ..probes.probe import SUITES

    shown, rows = listing(model)
    if as_json:
        print_json({"schema": "whorl.probe.list/1", "model": shown, "probes": rows})
        return
    say(f"Sizes are for one repetition on one {shown}. Times are limits per GPU. CC: compute capability.")
    for suite in (*SUITES, None):
        some = [row for row in rows if row["suite"] == suite]
        if some:
            click.echo()
            cells = [_cells(row) for row in some]
            head = ("probe", "time", "stresses", "work", "size", "needs")
            print_table(Table(head, cells, (1, 4), _heading(suite, SUITES), wrapped=(2, 3, 5), leaves=(3,)))


def _heading(suite: str | None, suites: tuple[str, ...]) -> str:
    if suite is None:
        return "only by name"
    larger = suites[suites.index(suite) + 1 :]
    return f"suite {suite}, and {' and '.join(larger)}" if larger else f"suite {suite}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = [_size(row[name], unit) for name, unit in (("flop", "FLOP"), ("bytes", "B"), ("operations", "op"))]
    shown = ", ".join(size for size in sizes if size)
    if row["unfit"]:
        shown = MISSING
    needs = str(row["needs"] or "").replace("compute capability", "CC")
    return (
        str(row["name"]),
        f"{next(iter(row['time_s'].values())):,.4g} s",
        str(row["stresses"]),
        str(row["says"]).rstrip("."),
        shown or "none",
        needs.replace(" in the node", ""),
    )


def _size(value: int | None, unit: str) -> str:
    """A count with its unit and a decimal prefix, '137 GFLOP'; '' for none."""
    if not value:
        return ""
    power, scaled = 0, float(value)
    while scaled >= _ROUNDS_TO_1000 and power + 1 < len(_PREFIXES):
        scaled, power = scaled / 1000, power + 1
    return f"{number(float(format(scaled, '.3g')), 3)} {_PREFIXES[power]}{unit}"
