"""What `whorl verdicts diff` says."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...analysis.verdicts.compare import LEAST_GPUS
from ...analysis.verdicts.difference import ERROR_RATE, Difference, Step
from ..table import Line, Table, count, many, minute, number
from ..words import interval, percent
from ..words import listed as some
from ..words import short_names as short

_LISTED = 20
_NAMED = 6  # GPUs in a sentence


def document(difference: Difference) -> dict[str, Any]:
    """The document of `whorl.diff/1`."""
    return {
        "schema": "whorl.diff/1",
        "cluster": difference.cluster,
        "before": difference.before,
        "after": difference.after,
        "looks": difference.looks,
        "error_rate": ERROR_RATE,
        "steps": [_step(step) for step in difference.steps],
        "moved": [asdict(gpu) for gpu in difference.moved],
        "new": list(difference.new),
        "gone": list(difference.gone),
        "identity": dict(difference.identity),
        "notes": list(notes(difference)),
    }


def _step(step: Step) -> dict[str, Any]:
    row = asdict(step)
    del row["compared"]
    return row | {"why": why_not(step)}


def why_not(step: Step) -> str | None:
    """Why the GPUs of a workload could not be told apart, in a sentence; None where they could."""
    return None if step.compared else f"{many(step.n, 'GPU')} measured before and after; {LEAST_GPUS} are needed"


def notes(difference: Difference) -> Iterator[str]:
    """What was left out, in sentences."""
    if difference.undated:
        yield f"left out: {difference.undated:,} runs whose time is not known"
    if lone := difference.lone:
        names = ", ".join(lone[:_NAMED]) + (" and others" if len(lone) > _NAMED else "")
        gpus = f"{many(len(lone), 'GPU')} ({names})"
        yield f"not named, as one run alone shows that it moved: {gpus}; measure again to know"


def answer(difference: Difference, store: str | Path) -> Iterable[str | Table]:
    """What changed, for people: the fleet, then GPUs, then what else is different."""
    rows = [
        [
            step.workload,
            number(step.before_ms),
            number(step.after_ms),
            percent(step.step_pct),
            interval(step.low_pct, step.high_pct),
            count(step.n),
            count(step.moved) if step.compared else "n/a",
        ]
        for step in difference.steps
    ]
    times = f"before {minute(difference.before)} and since {minute(difference.after)} (UTC)"
    yield Table(
        ("workload", "ms before", "ms after", "step %", "[95 %]", "GPUs", "moved"),
        rows,
        (1, 2, 3, 5, 6),
        title=f"cluster {difference.cluster}: {times}",
        leaves=(2, 1),
    )
    if not rows:
        yield "no GPU was measured both before and after in the same workload: nothing can be compared"
    yield ""
    yield from _moved(difference)
    for step in difference.steps:
        if not step.compared:
            yield f"{step.workload}: which GPUs moved cannot be said: {why_not(step)}"
    for what, names in (("new", difference.new), ("gone", difference.gone)):
        if names:
            yield f"{what}, {many(len(names), 'GPU')}: {some(list(short(names).values()), 8)}"
    for what, n in difference.identity.items():
        yield f"another {what} than before: {many(n, 'GPU')}"
    yield from notes(difference)
    if difference.moved:
        yield ""
        where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(difference.cluster)}"
        yield Line(f"next: whorl explain {shlex.quote(_first(difference))} {where}")


def _moved(difference: Difference) -> Iterable[str | Table]:
    if not difference.looks:
        return
    compared = f"{many(difference.looks, 'comparison')}, about {100 * ERROR_RATE:g} % of those named may be false"
    if not difference.moved:
        yield f"no GPU moved against the fleet ({compared})"
        yield ""
        return
    names = short(gpu.name for gpu in difference.moved)
    rows = [
        [
            names[gpu.name],
            gpu.workload,
            percent(gpu.change_pct),
            percent(gpu.against_pct),
            interval(gpu.low_pct, gpu.high_pct),
            "< 1e-6" if gpu.q < 1e-6 else number(gpu.q, 1),
            f"{gpu.sittings_before} and {gpu.sittings_after}",
        ]
        for gpu in difference.moved[:_LISTED]
    ]
    gpus = len({gpu.gpu for gpu in difference.moved})
    yield Table(
        ("GPU", "workload", "change %", "against fleet %", "[95 %]", "q", "sittings"),
        rows,
        (2, 3, 5),
        title=f"{many(gpus, 'GPU')} moved against the fleet ({compared})",
        leaves=(6, 5, 2),
    )
    if len(difference.moved) > _LISTED:
        yield f"and {len(difference.moved) - _LISTED:,} more: --json has all"
    yield ""


def _first(difference: Difference) -> str:
    name = difference.moved[0].name
    return short([name])[name]
