"""What `whorl energy excess` says: what the place of jobs cost, for people and for programs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...analysis.energy.answers import SCHEMA
from ...analysis.energy.excess import FALSE, FleetExcess, Of, Unknown
from ..energy_words import REASONS, TIMES, unit_of
from ..table import MISSING, Line, Table, count, many, number
from .energy import gpu_time, times_of, with_clusters

_LISTED = 20
"""Rows that are listed for people; --json has all."""
EXCESS_REASONS: Mapping[str, str] = {**REASONS, **{code.value: code.meaning for code in Unknown}}
"""What the codes of `excess_j_reason` and `excess_s_reason` mean."""
_HEADS = {Of.GPU: ("GPU", "model"), Of.NODE: ("node", "GPUs"), Of.JOB: ("job", "user")}

Row = Mapping[str, Any]


def document(excess: FleetExcess) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    return {
        "schema": SCHEMA,
        "rows": excess.rows.to_dicts(),
        "by": excess.by.value,
        "totals": excess.totals.to_dicts(),
        "since": excess.booked.since,
        "until": excess.booked.until,
        "currency": excess.booked.settings.currency,
        "notes": list(excess.notes),
    }


def answer(excess: FleetExcess, store: str | Path) -> Iterable[str | Table]:
    """The excess for people: what is sure, then a table, those first that cost most."""
    rows = excess.rows.to_dicts()
    if not rows:
        yield "no job had a GPU in this time: there is no excess"
        return
    for total in excess.totals.iter_rows(named=True):
        yield from _of_cluster(excess, total, [row for row in rows if row["cluster"] == total["cluster"]])
    yield ""
    yield _table(excess, rows[:_LISTED])
    if len(rows) > _LISTED:
        yield f"and {len(rows) - _LISTED:,} more: --json and --csv have all"
    yield ""
    yield (
        "excess: what the GPUs used beyond what the median GPU of their model would have needed for the same work; "
        "below 0 where a GPU is better. [95 %] intervals"
    )
    if excess.by is Of.GPU:
        yield f"sure: above 0 so clearly that in {100 - 100 * FALSE:.0f} of 100 fleets no GPU is named by chance"
    for reason, n in Counter(row["excess_j_reason"] for row in rows if row["excess_j"] is None).most_common():
        yield f"n/a for {many(n, 'row')}: {EXCESS_REASONS.get(reason, reason or 'nothing was used')}"
    sure = (row for row in rows if excess.by is Of.GPU and (row["excess_j_shown"] or row["excess_s_shown"]))
    if (first := next(sure, None)) is not None:
        yield ""
        options = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(first['cluster'])}"
        yield Line(f"next: whorl explain {shlex.quote(first['name'] or first['gpu'])} {options}")


def _of_cluster(excess: FleetExcess, total: Row, rows: Sequence[Row]) -> Iterable[str]:
    """What a cluster's GPUs cost: those that are sure, then all together."""
    cluster = total["cluster"]
    if excess.by is Of.GPU:
        compared = many(sum(row["excess_j"] is not None or row["excess_s"] is not None for row in rows), "GPU")
        hungry, slow = ([row for row in rows if row[f"excess_{unit}_shown"]] for unit in "js")
        if hungry:
            yield (
                f"cluster {cluster}: {len(hungry):,} of {compared} surely needed more energy than the median GPU of "
                f"their model: {_joules(sum(row['excess_j'] for row in hungry))} more{_a_year(excess, hungry)}"
            )
        if slow:
            yield (
                f"cluster {cluster}: {len(slow):,} of {compared} surely took longer than the median GPU of their "
                f"model: {gpu_time(sum(row['excess_s'] for row in slow))} more"
            )
        waits_s, waits_j = (sum(row[name] or 0.0 for row in slow) for name in ("held_s", "held_j"))
        if waits_s:
            yield (
                f"if the GPUs of a job wait for each other, others waited for {'it' if len(slow) == 1 else 'these'}: "
                f"at most {gpu_time(waits_s)} and {_joules(waits_j)}, which is not in the table"
            )
        if not hungry and not slow:
            yield f"cluster {cluster}: none of {compared} surely costs more than the median GPU of its model"
    if total["excess_j"] is not None:
        part = f", {number(100 * total['excess_j'] / total['energy_j'], 2)} % of their energy"
        energy = excess_interval(total, "j") + (part if total["energy_j"] else "")
        yield f"all GPUs of {cluster} together: {energy}; {excess_interval(total, 's')}"


def _a_year(excess: FleetExcess, rows: Sequence[Row]) -> str:
    """What these would cost in a year; nothing where the time is too short to tell."""
    kwh, costs = ([row[name] for row in rows if row[name] is not None] for name in ("year_kwh", "year_cost"))
    if not kwh:
        return ""
    money = f" and {number(sum(costs), 3)} {excess.booked.settings.currency or ''}".rstrip() if costs else ""
    return f", which is {number(sum(kwh), 3)} kWh{money} a year at this pace"


def _joules(value: float) -> str:
    unit, joules = unit_of([value])
    return f"{number(value / joules, 3)} {unit}"


def excess_interval(row: Row, unit: str) -> str:
    """The excess of a row with its 95 % interval: `j`, energy; `s`, time."""
    if row[f"excess_{unit}"] is None:
        return f"{'energy' if unit == 'j' else 'time'} n/a"
    ends = [row[f"excess_{name}"] for name in (unit, f"low_{unit}", f"high_{unit}")]
    name, scale = unit_of(ends, TIMES) if unit == "s" else unit_of(ends)
    best, low, high = (number(end / scale, 3) for end in ends)
    return f"{best} {'GPU ' if unit == 's' else ''}{name} [{low}, {high}]"


def _table(excess: FleetExcess, rows: Sequence[Row]) -> Table:
    unit, joules = unit_of([row["excess_high_j"] for row in rows])
    time, seconds = unit_of([row["excess_high_s"] for row in rows], TIMES)
    header = [*_HEADS[excess.by], unit, f"excess {unit}", "[95 %]", f"excess GPU {time}", "[95 %]"]
    body = [
        [*_names(excess.by, row), number(None if row["energy_j"] is None else row["energy_j"] / joules),
         *_cells(row, "j", joules), *_cells(row, "s", seconds)] for row in rows
    ]  # fmt: skip
    more = {"kWh a year": ("year_kwh", "year_kwh"),
            f"{excess.booked.settings.currency or 'cost'} a year": ("excess_cost", "year_cost")}  # fmt: skip
    for head, (needed, yearly) in more.items():
        if any(row[needed] is not None for row in rows):
            header.append(head)
            for cells, row in zip(body, rows, strict=True):
                cells.append(number(row[yearly], 3))
    if excess.by is Of.GPU:
        header += ["sure", "verdicts", "runs"]
        for cells, row in zip(body, rows, strict=True):
            sure = [name for name, letter in (("energy", "j"), ("time", "s")) if row[f"excess_{letter}_shown"]]
            cells += [", ".join(sure), row["verdicts"] or "", count(row["runs"])]
    texts = 1 if excess.by is Of.NODE else 2
    right = [
        place for place, head in enumerate(header) if place >= texts and head not in ("sure", "verdicts", "[95 %]")
    ]
    leaving = ([] if excess.by is Of.NODE else [header[1]]) + ["runs", "kWh a year", unit, "verdicts"]
    leaves = [header.index(head) for head in leaving if head in header]
    wrapped = (header.index("verdicts"),) if excess.by is Of.GPU else ()
    return with_clusters(
        Table(header, body, right, title=times_of(excess.booked), wrapped=wrapped, leaves=leaves), rows
    )


def _names(by: Of, row: Row) -> list[str]:
    if by is Of.GPU:
        return [row["name"] or row["gpu"] or "(GPU not known)", row["model"] or MISSING]
    if by is Of.NODE:
        return [row["node"] or "(node not known)", count(row["gpus"])]
    return [row["job_id"] or MISSING, row["user"] or MISSING]


def _cells(row: Row, unit: str, scale: float) -> list[str]:
    if row[f"excess_{unit}"] is None:
        return [MISSING, MISSING]
    best, low, high = (number(row[f"excess_{name}"] / scale, 3) for name in (unit, f"low_{unit}", f"high_{unit}"))
    return [best, f"[{low}, {high}]"]
