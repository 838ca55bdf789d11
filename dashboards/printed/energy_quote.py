"""What `whorl energy quote` says: a job elsewhere, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ...analysis.energy.answers import SCHEMA
from ...analysis.energy.choices.levels import ANY
from ...analysis.energy.choices.quoted import Quoted
from ...analysis.energy.choices.quoting import Option, Quote
from ...store.instants import date_of_ns
from ..energy_words import TIMES, unit_of
from ..table import MISSING, Table, number
from .energy import some_gpus


def document(found: Quoted) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    ran, (since, until) = found.ran, found.ends
    return {
        "schema": SCHEMA,
        "rows": as_rows(found),
        "job": {"busy": ran.busy, "use": ran.use, "workload": ran.workload, "limit_w": ran.limit_w, "gpus": ran.gpus},
        "since": since,
        "until": until,
        "currency": found.settings.currency,
        "notes": list(found.notes),
    }


def as_rows(found: Quoted) -> list[dict[str, Any]]:
    """A row for each option, for programs."""
    return [_row(found, one) for one in found.quotes]


def _row(found: Quoted, one: Quote) -> dict[str, Any]:
    first = one.option in (Option.AS_IT_RAN, Option.DEFAULT)
    return {
        "cluster": found.ran.cluster, "job_id": found.job, "option": one.option.value, "what": one.what,
        "energy_j": one.energy_j, "low_j": one.low_j, "high_j": one.high_j,
        "idle_j": found.ran.idle_j if first else None, "duration_s": one.time_s,
        "method": found.ran.method if first else None, "reason": one.reason, "co2e_g": one.co2e_g, "cost": one.cost,
        "duration_low_s": one.time_low_s, "duration_high_s": one.time_high_s, "co2e_low_g": one.co2e_low_g,
        "co2e_high_g": one.co2e_high_g, "start": _at(one.start_ns), "basis": one.basis, "n": one.n, "best": one.pareto,
    }  # fmt: skip


def _at(at_ns: int | None) -> datetime | None:
    return None if at_ns is None else date_of_ns(at_ns)


def answer(found: Quoted) -> Iterable[str | Table]:
    """The options with figures as a table, then those without and why."""
    ran = found.ran
    busy = "for an unknown part of it" if ran.busy is None else f"{100 * ran.busy:.0f} % of it"
    what = f", workload {ran.workload}" if ran.workload else "" if ran.use == ANY else f", mostly {ran.use}"
    gpus = f"{some_gpus(ran.gpus)} of {', '.join(ran.models) or 'an unknown model'}"
    if found.job is not None:
        yield f"job {found.job} on {gpus}: busy {busy}{what}"
    else:
        time, seconds = unit_of([ran.time_s], TIMES)
        yield (
            f"{ran.workload} on {gpus}, always busy, as much as takes {number(ran.time_s / seconds, 3)} {time} at the "
            f"default power limit; measured on {some_gpus(found.quotes[0].n or 0)}"
        )
    yield ""
    yield from options(found)


def options(found: Quoted) -> Iterable[str | Table]:
    """The options alone."""
    known = [one for one in found.quotes if one.reason is None and one.energy_j is not None]
    if known:
        yield _table(found, known)
        yield ""
        yield "best: no other option is as good in time, energy and grams. Each option changes one thing"
        yield ""
    for one in found.quotes:
        if one not in known:
            yield f"n/a: {one.option}{f' {one.what}' if one.what else ''}: {one.reason or 'there is no figure'}"


def _table(found: Quoted, rows: list[Quote]) -> Table:
    unit, joules = unit_of([one.energy_j for one in rows])
    time, seconds = unit_of([row.time_s for row in rows], TIMES)
    header = ["option", "", f"time, {time}", "[95 %]", unit, "[95 %]"]
    body = [
        [
            row.option.value, _what(row), *_with_ends((row.time_s, row.time_low_s, row.time_high_s), seconds),
            *_with_ends((row.energy_j, row.low_j, row.high_j), joules),
        ]
        for row in rows
    ]  # fmt: skip
    if any(row.co2e_g is not None for row in rows):
        header += ["CO2e g", "[95 %]"]
        for cells, row in zip(body, rows, strict=True):
            cells += _with_ends((row.co2e_g, row.co2e_low_g, row.co2e_high_g), 1.0)
    if any(row.cost is not None for row in rows):
        header.append(found.settings.currency or "cost")
        for cells, row in zip(body, rows, strict=True):
            cells.append(number(row.cost, 3))
    header += ["best", "from", "n"]
    for cells, row in zip(body, rows, strict=True):
        cells += ["yes" if row.pareto else "", row.basis or "", "" if row.n is None else f"{row.n:,}"]
    right = [place for place in range(2, len(header)) if header[place] not in ("[95 %]", "best", "from")]
    return Table(header, body, right, wrapped=(header.index("from"),), leaves=(header.index("from"),))


def _what(row: Quote) -> str:
    at = _at(row.start_ns)
    return row.what if at is None else f"{row.what}: {at:%Y-%m-%d %H:%M}"


def _with_ends(of: tuple[float | None, float | None, float | None], scale: float) -> list[str]:
    best, low, high = (None if one is None else one / scale for one in of)
    if best is None:
        return [MISSING, MISSING]
    ends = f"[{number(low, 3)}, {number(high, 3)}]" if low is not None and low != high else ""
    return [number(best, 3), ends]
