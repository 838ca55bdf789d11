"""What `whorl energy quote` says: a job elsewhere, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ...analysis.energy.answers import SCHEMA
from ...analysis.energy.levels import ANY
from ...analysis.energy.options import Option, Quote
from ...analysis.energy.quote import Quoted
from ...analysis.tuning.power_plan import Estimate
from ...store.instants import date_of_ns
from ..energy_words import TIMES, unit_of
from ..table import MISSING, Table, number
from .energy import some_gpus


def document(quoted: Quoted) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    work, (since, until) = quoted.work, quoted.ends
    return {
        "schema": SCHEMA,
        "rows": as_rows(quoted),
        "job": {name: getattr(work, name) for name in ("busy", "use", "workload", "limit_w", "gpus")},
        "since": since,
        "until": until,
        "currency": quoted.settings.currency,
        "notes": list(quoted.notes),
    }


def as_rows(quoted: Quoted) -> list[dict[str, Any]]:
    """A row for each option, for programs."""
    return [_row(quoted, quote) for quote in quoted.quotes]


def _row(quoted: Quoted, quote: Quote) -> dict[str, Any]:
    work, first = quoted.work, quote.option in (Option.AS_IT_RAN, Option.DEFAULT)
    (s, s_low, s_high), (j, j_low, j_high), (g, g_low, g_high) = map(_ends, (quote.s, quote.j, quote.g))
    return {
        "cluster": work.cluster, "job_id": quoted.job, "option": quote.option.value, "what": quote.choice,
        "energy_j": j, "low_j": j_low, "high_j": j_high, "idle_j": work.idle_j if first else None, "duration_s": s,
        "method": work.method if first else None, "reason": quote.reason, "co2e_g": g, "cost": quote.cost,
        "duration_low_s": s_low, "duration_high_s": s_high, "co2e_low_g": g_low, "co2e_high_g": g_high,
        "start": _at(quote.start_ns), "basis": quote.source, "n": quote.n, "best": quote.pareto,
    }  # fmt: skip


def _ends(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def _at(at_ns: int | None) -> datetime | None:
    return None if at_ns is None else date_of_ns(at_ns)


def answer(quoted: Quoted) -> Iterable[str | Table]:
    """The options with figures as a table, then those without and why."""
    work = quoted.work
    busy = "for an unknown part of it" if work.busy is None else f"{100 * work.busy:.0f} % of it"
    kind = f", workload {work.workload}" if work.workload else "" if work.use == ANY else f", mostly {work.use}"
    gpus = f"{some_gpus(work.gpus)} of {', '.join(work.models) or 'an unknown model'}"
    if quoted.job is not None:
        yield f"job {quoted.job} on {gpus}: busy {busy}{kind}"
    else:
        first = quoted.quotes[0]
        work_name = work.workload or f"work of class {work.use}"
        yield f"{work_name} on {gpus}, always busy; measured: {first.source}, n = {first.n}"
    yield ""
    yield from options(quoted)


def options(quoted: Quoted) -> Iterable[str | Table]:
    """The options alone."""
    complete = [quote for quote in quoted.quotes if quote.reason is None and quote.j is not None]
    if complete:
        yield _table(quoted, complete)
        yield ""
        yield "best: no other option is as good in time, energy and grams. Each option changes one thing"
        yield ""
    for quote in quoted.quotes:
        if quote not in complete:
            option = f"{quote.option}{f' {quote.choice}' if quote.choice else ''}"
            yield f"n/a: {option}: {quote.reason or 'there is no figure'}"


def _table(quoted: Quoted, quotes: list[Quote]) -> Table:
    unit, joules = unit_of([_ends(quote.j)[0] for quote in quotes])
    time, seconds = unit_of([_ends(quote.s)[0] for quote in quotes], TIMES)
    header = ["option", "", f"time, {time}", "[95 %]", unit, "[95 %]"]
    body = [[quote.option.value, _what(quote), *_cells(quote.s, seconds), *_cells(quote.j, joules)] for quote in quotes]
    if any(quote.g is not None for quote in quotes):
        header += ["CO2e g", "[95 %]"]
        for cells, quote in zip(body, quotes, strict=True):
            cells += _cells(quote.g, 1.0)
    if any(quote.cost is not None for quote in quotes):
        header.append(quoted.settings.currency or "cost")
        for cells, quote in zip(body, quotes, strict=True):
            cells.append(number(quote.cost, 3))
    header += ["best", "from", "n"]
    for cells, quote in zip(body, quotes, strict=True):
        cells += ["yes" if quote.pareto else "", quote.source or "", "" if quote.n is None else f"{quote.n:,}"]
    right = [place for place in range(2, len(header)) if header[place] not in ("[95 %]", "best", "from")]
    return Table(header, body, right, wrapped=(header.index("from"),), leaves=(header.index("from"),))


def _what(quote: Quote) -> str:
    at = _at(quote.start_ns)
    return quote.choice if at is None else f"{quote.choice}: {at:%Y-%m-%d %H:%M}"


def _cells(estimate: Estimate | None, scale: float) -> list[str]:
    """A figure and its interval."""
    if estimate is None:
        return [MISSING, MISSING]
    value, low, high = (number(end / scale, 3) for end in (estimate.value, estimate.low, estimate.high))
    return [value, f"[{low}, {high}]" if estimate.low != estimate.high else ""]
