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
EXCESS_REASONS: Mapping[str, str] = {**REASONS, **{one.value: one.meaning for one in Unknown}}
"""What the codes of `excess_j_reason` and `excess_s_reason` mean."""

Row = Mapping[str, Any]


def document(found: FleetExcess) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    return {
        "schema": SCHEMA,
        "rows": found.rows.to_dicts(),
        "by": found.by.value,
        "totals": found.totals.to_dicts(),
        "since": found.booked.since,
        "until": found.booked.until,
        "currency": found.booked.settings.currency,
        "notes": list(found.notes),
    }


def answer(found: FleetExcess, store: str | Path) -> Iterable[str | Table]:
    """The excess for people: what is sure, then a table, those first that cost most."""
    rows = found.rows.to_dicts()
    if not rows:
        yield "no job had a GPU in this time: there is no excess"
        return
    for total in found.totals.iter_rows(named=True):
        yield from _of_cluster(found, total, [row for row in rows if row["cluster"] == total["cluster"]])
    yield ""
    yield _table(found, rows[:_LISTED])
    if len(rows) > _LISTED:
        yield f"and {len(rows) - _LISTED:,} more: --json and --csv have all"
    yield ""
    yield (
        "excess: what the GPUs used beyond what the median GPU of their model would have needed for the same work; "
        "below 0 where a GPU is better. [95 %] intervals"
    )
    if found.by is Of.GPU:
        yield f"sure: above 0 so clearly that in {100 - 100 * FALSE:.0f} of 100 fleets no GPU is named by chance"
    for reason, n in Counter(row["excess_j_reason"] for row in rows if row["excess_j"] is None).most_common():
        yield f"n/a for {many(n, 'row')}: {EXCESS_REASONS.get(reason, reason or 'nothing was used')}"
    first = next((row for row in rows if found.by is Of.GPU and _sure(row)), None)
    if first is not None:
        yield ""
        where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(first['cluster'])}"
        yield Line(f"next: whorl explain {shlex.quote(first['name'] or first['gpu'])} {where}")


def _of_cluster(found: FleetExcess, total: Row, rows: Sequence[Row]) -> Iterable[str]:
    """What a cluster's GPUs cost: those that are sure, then all together."""
    where = total["cluster"]
    if found.by is Of.GPU:
        known = sum(row["excess_j"] is not None or row["excess_s"] is not None for row in rows)
        hungry = [row for row in rows if row["excess_j_shown"]]
        slow = [row for row in rows if row["excess_s_shown"]]
        if hungry:
            energy = _joules(sum(row["excess_j"] for row in hungry))
            yield (
                f"cluster {where}: {len(hungry):,} of {many(known, 'GPU')} surely needed more energy than the median "
                f"GPU of their model: {energy} more{_a_year(found, hungry)}"
            )
        if slow:
            hours = gpu_time(sum(row["excess_s"] for row in slow))
            yield (
                f"cluster {where}: {len(slow):,} of {many(known, 'GPU')} surely took longer than the median GPU of "
                f"their model: {hours} more"
            )
        waits, waste = (sum(row[name] or 0.0 for row in slow) for name in ("held_s", "held_j"))
        if waits:
            whom = "it" if len(slow) == 1 else "these"
            yield (
                f"if the GPUs of a job wait for each other, others waited for {whom}: at most {gpu_time(waits)} and "
                f"{_joules(waste)}, which is not in the table"
            )
        if not hungry and not slow:
            yield f"cluster {where}: none of {many(known, 'GPU')} surely costs more than the median GPU of its model"
    if total["excess_j"] is not None:
        of = (
            f", {number(100 * total['excess_j'] / total['energy_j'], 2)} % of their energy" if total["energy_j"] else ""
        )
        yield f"all GPUs of {where} together: {excess_interval(total, 'j')}{of}; {excess_interval(total, 's')}"


def _a_year(found: FleetExcess, rows: Sequence[Row]) -> str:
    """What these would cost in a year; nothing where the time is too short to tell."""
    years = [row["year_kwh"] for row in rows if row["year_kwh"] is not None]
    if not years:
        return ""
    costs = [row["year_cost"] for row in rows if row["year_cost"] is not None]
    money = f" and {number(sum(costs), 3)} {found.booked.settings.currency or ''}".rstrip() if costs else ""
    return f", which is {number(sum(years), 3)} kWh{money} a year at this pace"


def _sure(row: Row) -> bool:
    return bool(row["excess_j_shown"] or row["excess_s_shown"])


def _joules(value: float) -> str:
    unit, joules = unit_of([value])
    return f"{number(value / joules, 3)} {unit}"


def excess_interval(row: Row, of: str) -> str:
    """The excess of a row with its 95 % interval: `j`, energy; `s`, time."""
    if row[f"excess_{of}"] is None:
        return f"{'energy' if of == 'j' else 'time'} n/a"
    ends = [row[f"excess_{of}"], row[f"excess_low_{of}"], row[f"excess_high_{of}"]]
    unit, scale = unit_of(ends, TIMES) if of == "s" else unit_of(ends)
    best, low, high = (number(one / scale, 3) for one in ends)
    return f"{best} {'GPU ' if of == 's' else ''}{unit} [{low}, {high}]"


def _table(found: FleetExcess, rows: Sequence[Row]) -> Table:
    unit, joules = unit_of([row["excess_high_j"] for row in rows])
    time, seconds = unit_of([row["excess_high_s"] for row in rows], TIMES)
    heads = {Of.GPU: ("GPU", "model"), Of.NODE: ("node", "GPUs"), Of.JOB: ("job", "user")}[found.by]
    header = [*heads, unit, f"excess {unit}", "[95 %]", f"excess GPU {time}", "[95 %]"]
    body = [[*_names(found.by, row), number(None if row["energy_j"] is None else row["energy_j"] / joules),
             *_cells(row, "j", joules), *_cells(row, "s", seconds)] for row in rows]  # fmt: skip
    if any(row["year_kwh"] is not None for row in rows):
        header.append("kWh a year")
        for cells, row in zip(body, rows, strict=True):
            cells.append(number(row["year_kwh"], 3))
    if any(row["excess_cost"] is not None for row in rows):
        header.append(f"{found.booked.settings.currency or 'cost'} a year".strip())
        for cells, row in zip(body, rows, strict=True):
            cells.append(number(row["year_cost"], 3))
    if found.by is Of.GPU:
        header += ["sure", "verdicts", "runs"]
        for cells, row in zip(body, rows, strict=True):
            sure = [
                name for name, shown in (("energy", row["excess_j_shown"]), ("time", row["excess_s_shown"])) if shown
            ]
            cells += [", ".join(sure), row["verdicts"] or "", count(row["runs"])]
    texts = {0, 1} if found.by is not Of.NODE else {0}
    right = [
        place for place, name in enumerate(header) if place not in texts and name not in ("sure", "verdicts", "[95 %]")
    ]
    leaving = ([] if found.by is Of.NODE else [heads[1]]) + ["runs", "kWh a year", unit, "verdicts"]
    leaves = [header.index(name) for name in leaving if name in header]
    wrapped = (len(header) - 2,) if found.by is Of.GPU else ()
    return with_clusters(Table(header, body, right, title=times_of(found.booked), wrapped=wrapped, leaves=leaves), rows)


def _names(by: Of, row: Row) -> list[str]:
    if by is Of.GPU:
        return [row["name"] or row["gpu"] or "(GPU not known)", row["model"] or MISSING]
    if by is Of.NODE:
        return [row["node"] or "(node not known)", count(row["gpus"])]
    return [row["job_id"] or MISSING, row["user"] or MISSING]


def _cells(row: Row, of: str, scale: float) -> list[str]:
    if row[f"excess_{of}"] is None:
        return [MISSING, MISSING]
    best, low, high = (number(row[f"excess_{name}"] / scale, 3) for name in (of, f"low_{of}", f"high_{of}"))
    return [best, f"[{low}, {high}]"]
