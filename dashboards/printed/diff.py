"""What `whorl diff` says."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from ...analysis.verdicts.difference import ERROR_RATE, Difference
from ..table import Line, Table, count, many, minute, number
from ..verdict_words import interval, percent, short, some

_LISTED = 20


def answer(found: Difference, store: str | Path) -> Iterable[str | Table]:
    """What changed, for people: the fleet, then GPUs, then what else is different."""
    rows = [
        [
            one.workload,
            number(one.before_ms),
            number(one.after_ms),
            percent(one.step_pct),
            interval(one.low_pct, one.high_pct),
            count(one.n),
            count(one.moved) if one.why is None else "n/a",
        ]
        for one in found.steps
    ]
    yield Table(
        ("workload", "ms before", "ms after", "step %", "[95 %]", "GPUs", "moved"),
        rows,
        (1, 2, 3, 5, 6),
        title=f"cluster {found.cluster}: before {minute(found.before)} and since {minute(found.after)} (UTC)",
        leaves=(2, 1),
    )
    if not rows:
        yield "no GPU was measured both before and after in the same workload: nothing can be compared"
    yield ""
    yield from _moved(found)
    for one in found.steps:
        if one.why is not None:
            yield f"{one.workload}: which GPUs moved cannot be said: {one.why}"
    for what, names in (("new", found.new), ("gone", found.gone)):
        if names:
            yield f"{what}, {many(len(names), 'GPU')}: {some(list(short(names).values()), 8)}"
    for what, n in found.identity.items():
        yield f"another {what} than before: {many(n, 'GPU')}"
    yield from found.notes
    if found.moved:
        yield ""
        where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(found.cluster)}"
        yield Line(f"next: whorl explain {shlex.quote(_first(found))} {where}")


def _moved(found: Difference) -> Iterable[str | Table]:
    if not found.looks:
        return
    compared = f"{many(found.looks, 'comparison')}, about {100 * ERROR_RATE:g} % of those named may be false"
    if not found.moved:
        yield f"no GPU moved against the fleet ({compared})"
        yield ""
        return
    said = short(one.name for one in found.moved)
    rows = [
        [
            said[one.name],
            one.workload,
            percent(one.change_pct),
            percent(one.against_pct),
            interval(one.low_pct, one.high_pct),
            "< 1e-6" if one.q < 1e-6 else number(one.q, 1),
            f"{one.sittings_before} and {one.sittings_after}",
        ]
        for one in found.moved[:_LISTED]
    ]
    gpus = len({one.gpu for one in found.moved})
    yield Table(
        ("GPU", "workload", "change %", "against fleet %", "[95 %]", "q", "sittings"),
        rows,
        (2, 3, 5),
        title=f"{many(gpus, 'GPU')} moved against the fleet ({compared})",
        leaves=(6, 5, 2),
    )
    if len(found.moved) > _LISTED:
        yield f"and {len(found.moved) - _LISTED:,} more: --json has all"
    yield ""


def _first(found: Difference) -> str:
    name = found.moved[0].name
    return short([name])[name]
