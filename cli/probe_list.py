"""`whorl probe list`: what each probe stresses, its work, its time, what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..dashboards.table import MISSING, Table, number
from .options import any_store_option, json_option
from .output import print_json, print_table, say

if TYPE_CHECKING:
    from ..analysis.spread.keep_rule import Column

_ROUNDS_TO_1000 = 999.5
_PREFIXES = ("", "k", "M", "G", "T", "P")


@click.command("list", short_help="List the probes: what they stress, their work, their time.")
@click.option("--model", metavar="NAME", help="Sizes for this simulated model.  [default: the GPU here, else V100]")
@any_store_option
@click.option("--keep-rule", is_flag=True, help="Of the runs in the store: which probes add a column of their own.")
@json_option
def list_probes(model: str | None, store: str | None, keep_rule: bool, as_json: bool) -> None:
    """List the probes of each suite: what each one stresses, its work, its time, and what it needs.

    A larger suite also runs the probes of the smaller ones. The size is that of one repetition, on the first GPU here
    or on a GPU of --model. The time is the longest that a probe takes on a warm GPU, without its preparation.

    --keep-rule asks the runs of --store instead: a probe stays if its ICC over sittings is at least 0.5, and if the
    probes before it leave more than 30 % of its variance between GPUs unexplained.
    """
    if keep_rule:
        _print_keep_rule(store, as_json=as_json)
        return
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


def _print_keep_rule(store: str | None, *, as_json: bool) -> None:
    """Which probes add a column of their own, by the runs of a store."""
    from ..analysis.spread.keep_rule import LEAST_ICC, LEAST_UNEXPLAINED, MORE_GPUS, keep_rule
    from ..probes.catalogue import PROBES
    from ..store import Store

    columns = keep_rule(Store.open(store), list(PROBES)) if store else []
    if as_json:
        print_json({"schema": "whorl.probe.keep-rule/1", "probes": [column.as_dict() for column in columns]})
        return
    if all(column.simulated for column in columns):
        say("no real data yet" if store else "no real data yet: --store DIR names a store with runs")
    for simulated in (False, True):
        cells = [_keep_cells(column) for column in columns if column.simulated is simulated]
        if cells:
            head = ("cluster", "probe", "GPUs", "sittings", "ICC", "[95 %]", "unexplained", "[95 %]", "after", "stays")
            click.echo()
            title = "simulated data: plumbing only" if simulated else "keep rule"
            print_table(Table(head, cells, (2, 3, 4, 5, 6, 7, 8), title, leaves=(0,)))
    if columns:
        click.echo()
        say(
            "ICC: of the medians of sittings, by GPU. unexplained: how much, %, of the variance between GPUs a "
            "regression on the probes before it leaves; after: how many these are. A probe stays with an ICC of "
            f"at least {LEAST_ICC:g} and more than {100 * LEAST_UNEXPLAINED:g} % unexplained. {MISSING}: it needs "
            f"GPUs with two sittings, and {MORE_GPUS} GPUs more than probes before it."
        )


def _keep_cells(column: Column) -> tuple[str, ...]:
    def share(value: float | None, digits: int, factor: float) -> str:
        return MISSING if value is None else f"{factor * value:.{digits}f}"

    def interval(low: float | None, high: float | None, digits: int, factor: float) -> str:
        return MISSING if low is None else f"{share(low, digits, factor)}, {share(high, digits, factor)}"

    return (
        column.cluster,
        column.workload,
        str(column.gpus),
        str(column.sittings),
        share(column.icc, 2, 1),
        interval(column.icc_low, column.icc_high, 2, 1),
        share(column.unexplained, 0, 100),
        interval(column.unexplained_low, column.unexplained_high, 0, 100),
        str(column.explained_by),
        {None: MISSING, True: "yes", False: "no"}[column.stays],
    )


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
