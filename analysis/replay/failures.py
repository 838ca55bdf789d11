"""Failures of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from ...errors import InputError
from .trace_text import CALENDAR_S, csv_of

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that is away from `down_s` to `up_s` (after the trace's first instant; infinite: for good)."""

    node: int | str
    """Its number in the fleet, or its name, which stays the same where every seed draws the order of the nodes."""
    down_s: float
    up_s: float


def checked(failures: Sequence[Failure], node_names: Sequence[str]) -> list[tuple[float, int, int]]:
    """The failures of a fleet's nodes as moments (time, +1 the node comes back or -1 it goes, node's number), in order.

    Raises `InputError` for an unknown node, a node that comes back before it went, or overlapping failures of a node.
    """
    place: dict[int | str, int] = {number: number for number in range(len(node_names))}
    place |= {name: number for number, name in enumerate(node_names)}
    moments: list[tuple[float, int, int]] = []
    last: dict[int, float] = {}
    for failure in sorted(failures, key=lambda failure: failure.down_s):
        node = place.get(failure.node)
        if node is None:
            names = ", and none of that name" if isinstance(failure.node, str) else ""
            raise InputError(
                f"a failure names node {failure.node}; the fleet has nodes 0 to {len(node_names) - 1}{names}"
            )
        if not 0 <= failure.down_s < failure.up_s:
            raise InputError(
                f"node {failure.node} fails at {failure.down_s:g} s and returns at {failure.up_s:g} s: a failure must "
                "begin at 0 s or later, and end after it began"
            )
        if failure.down_s < last.get(node, 0.0):
            raise InputError(
                f"node {failure.node} fails at {failure.down_s:g} s, but it is still away because of an earlier "
                "failure: failures of a node must not overlap"
            )
        last[node] = failure.up_s
        moments.append((failure.down_s, -1, node))
        if np.isfinite(failure.up_s):
            moments.append((failure.up_s, 1, node))
    # If one node comes back at the moment another goes down, the return comes first.
    return sorted(moments, key=lambda moment: (moment[0], -moment[1], moment[2]))


def drawn(
    nodes: int, until_s: float, *, mtbf_h: float, repair_h: float, random: np.random.Generator
) -> tuple[Failure, ...]:
    """Failures of every node, drawn: exponential times between failures (mean `mtbf_h`) and of repair (`repair_h`)."""
    if not (mtbf_h > 0 and repair_h > 0):
        raise InputError("the mean times between failures and of repair must be more than 0 hours")
    failures: list[Failure] = []
    for node in range(nodes):
        now = random.exponential(mtbf_h * _HOUR_S)
        while now < until_s:
            back = now + random.exponential(repair_h * _HOUR_S)
            failures.append(Failure(node, now, back))
            now = back + random.exponential(mtbf_h * _HOUR_S)
    return tuple(sorted(failures, key=lambda failure: failure.down_s))


def read_failures(path: Path | str, node_names: Sequence[str]) -> tuple[Failure, ...]:
    """Failures of a CSV with the columns node (a name, or its number in `node_names`), down_s, up_s (empty: for good).

    Upper and lower case are the same. They hold names: a number would be another node wherever a seed draws the order
    of the nodes.

    Raises:
        InputError: the file cannot be read, or a row names no node or no times.
    """
    do = "Add what is missing (up_s may be empty: the node stays away)"
    table = csv_of(Path(path), "node", "down_s", "up_s", do=do)
    name = {str(number): name for number, name in enumerate(node_names)} | {name.lower(): name for name in node_names}
    examples = ", ".join(node_names[:3]) + (f", ... {node_names[-1]}" if len(node_names) > 3 else "")
    node = pl.col("node").str.to_lowercase()
    table.check(~node.is_in(list(name)), f"no node of the fleet is named {{node!r}}; there are {examples}")
    table.add(node, table.nonnegative("down_s"), table.number("up_s", ("",)))
    down, up = pl.col("down_s"), pl.col("up_s").fill_null(float("inf"))
    table.check(down > CALENDAR_S, "down_s is {down_s}, a time since 1970: write seconds after the trace's first job")
    table.check(up <= down, "down_s is {down_s} and up_s is {up_s}: up_s must be the later one")
    rows = table.frame.select("node", down, up).iter_rows()
    return tuple(Failure(name[node], start, end) for node, start, end in rows)
