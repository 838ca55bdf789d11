"""Failures of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError

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
    for one in sorted(failures, key=lambda one: one.down_s):
        node = place.get(one.node)
        if node is None:
            other = ", and none of that name" if isinstance(one.node, str) else ""
            raise InputError(f"a failure names node {one.node}; the fleet has nodes 0 to {len(node_names) - 1}{other}")
        if not 0 <= one.down_s < one.up_s:
            raise InputError(
                f"node {one.node} fails at {one.down_s:g} s and returns at {one.up_s:g} s: a failure must begin at "
                "0 s or later, and end after it began"
            )
        if one.down_s < last.get(node, 0.0):
            raise InputError(
                f"node {one.node} fails at {one.down_s:g} s, but it is still away because of an earlier failure: "
                "failures of a node must not overlap"
            )
        last[node] = one.up_s
        moments.append((one.down_s, -1, node))
        if np.isfinite(one.up_s):
            moments.append((one.up_s, 1, node))
    # If one node comes back at the moment another goes down, the return comes first.
    return sorted(moments, key=lambda moment: (moment[0], -moment[1], moment[2]))


def drawn(
    nodes: int, until_s: float, *, mtbf_h: float, repair_h: float, random: np.random.Generator
) -> tuple[Failure, ...]:
    """Failures of every node, drawn: exponential times between failures (mean `mtbf_h`) and of repair (`repair_h`)."""
    if not (mtbf_h > 0 and repair_h > 0):
        raise InputError("the mean times between failures and of repair must be more than 0 hours")
    found: list[Failure] = []
    for node in range(nodes):
        now = random.exponential(mtbf_h * _HOUR_S)
        while now < until_s:
            back = now + random.exponential(repair_h * _HOUR_S)
            found.append(Failure(node, now, back))
            now = back + random.exponential(mtbf_h * _HOUR_S)
    return tuple(sorted(found, key=lambda one: one.down_s))
