"""What `whorl energy` says: rows with intervals for people, and the same for programs."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ...analysis.energy.answers import SCHEMA, Answer, By
from ...analysis.energy.pieces import Kind
from ..table import MISSING, Line, Table, count, many, number

_LISTED = 40
"""Rows that are listed for people; --json has all."""
_UNITS = (("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
_MOST_AS = 0.1
"""The largest energy of a table has at least this much of its unit."""

Row = Mapping[str, Any]


def document(found: Answer) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    return {
        "schema": SCHEMA,
        "rows": found.rows.to_dicts(),
        "by": found.by.value,
        "total": found.total or None,
        "since": found.booked.since,
        "until": found.booked.until,
        "notes": list(found.notes),
    }


def as_csv(found: Answer) -> str:
    """The rows as CSV, with a header. A missing value is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.rows.columns)
    writer.writerows([_field(value) for value in row] for row in found.rows.iter_rows())
    return text.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def unit_of(joules: Iterable[float | None]) -> tuple[str, float]:
    """The unit of a column of energies: its name, and how many J it has."""
    most = max((abs(one) for one in joules if one is not None and math.isfinite(one)), default=0.0)
    return next((unit for unit in _UNITS if most >= _MOST_AS * unit[1]), _UNITS[-1])


def answer(found: Answer, store: str | Path) -> Iterable[str | Table]:
    """The energy of each row for people, the largest first, and what it stands on."""
    rows = found.rows.to_dicts()
    if not rows:
        yield "no GPU has telemetry in this time: nothing was metered"
        return
    shown = rows[:_LISTED]
    if found.by.of_people:  # what nobody used stands last, however many rows there are
        nobody = [row for row in rows if row["kind"] != Kind.JOB]
        shown = [*[row for row in rows if row["kind"] == Kind.JOB][:_LISTED], *nobody]
    yield _table(found, shown)
    if len(rows) > len(shown):
        yield f"and {len(rows) - len(shown):,} more: --json and --csv have all"
    yield ""
    yield from _explained(found, rows)
    yield from _next(found, store)


def _table(found: Answer, rows: Sequence[Row]) -> Table:
    unit, joules = unit_of([row["high_j"] or row["energy_j"] for row in rows] + [found.total.get("energy_j")])
    costs = found.booked.priced
    header = [*_heads(found.by), "GPU h", unit, "[95 %]"]
    body = [[*_names(found.by, row), _hours(row), *_energy(row, joules)] for row in rows]
    if found.by.of_people:
        header.append("idle %")
        for cells, row in zip(body, rows, strict=True):
            cells.append(_percent(row["idle_j"], row["energy_j"]) if row["kind"] == Kind.JOB else "")
    else:
        header += ["jobs %", "idle %", "unattributed %"]
        for cells, row in zip(body, rows, strict=True):
            whole = row["known_j"] if row["energy_j"] is None else row["energy_j"]
            cells += [_percent(row[name], whole) for name in ("attributed_j", "idle_time_j", "unattributed_j")]
    header.append("measured %")
    for cells, row in zip(body, rows, strict=True):
        cells.append(_percent(row["measured_s"], row["gpu_s"]))
    if costs:
        header += ["CO2e g", f"cost {found.booked.currency or ''}".rstrip()]
        for cells, row in zip(body, rows, strict=True):
            cells += [number(row["co2e_g"]), number(row["cost"])]
    names = len(_heads(found.by))
    right = [place for place in range(names, len(header)) if header[place] != "[95 %]"]
    title = f"{found.booked.since:%Y-%m-%d %H:%M} to {found.booked.until:%Y-%m-%d %H:%M} UTC"
    return Table(header, body, right, title=title, leaves=tuple(range(1, names))[::-1])


def _heads(by: By) -> tuple[str, ...]:
    return {
        By.JOB: ("job", "user", "account", "GPUs"),
        By.USER: ("user", "jobs", "GPUs"),
        By.ACCOUNT: ("account", "jobs", "GPUs"),
        By.GPU: ("GPU", "model"),
        By.NODE: ("node", "GPUs"),
        By.DAY: ("day", "cluster", "GPUs"),
    }[by]


def _names(by: By, row: Row) -> list[str]:
    """The cells that say what a row is of."""
    gpus = count(row["gpus"])
    if by.of_people:
        name = row[{By.JOB: "job_id", By.USER: "user", By.ACCOUNT: "account"}[by]]
        if row["kind"] != Kind.JOB:
            return [f"({row['kind']})", *([""] * (2 if by is By.JOB else 1)), gpus]
        if by is By.JOB:
            return [name or MISSING, row["user"] or MISSING, row["account"] or MISSING, gpus]
        return [name or f"(no {by.value} known)", count(row["jobs"]), gpus]
    if by is By.GPU:
        return [row["name"] or row["gpu"], row["model"] or MISSING]
    if by is By.NODE:
        return [row["node"] or "(node not known)", gpus]
    day = row["day"]
    return [f"{day:%Y-%m-%d}" if isinstance(day, date) else MISSING, row["cluster"] or MISSING, gpus]


def _hours(row: Row) -> str:
    return number(row["gpu_s"] / 3600, 3)


def _energy(row: Row, joules: float) -> tuple[str, str]:
    if row["energy_j"] is None:
        return MISSING, MISSING
    low, high = (number(row[name] / joules) for name in ("low_j", "high_j"))
    return number(row["energy_j"] / joules), f"[{low}, {high}]"


def _percent(part: float | None, whole: float | None) -> str:
    if part is None or not whole:
        return MISSING
    return f"{100 * part / whole:.0f}"


def _explained(found: Answer, rows: Sequence[Row]) -> Iterable[str]:
    total = found.total
    if total.get("energy_j") is not None:
        unit, joules = unit_of([total["energy_j"]])
        energy, bounds = _energy(total, joules)
        yield (
            f"in all: {energy} {unit} {bounds} metered on {many(total['gpus'], 'GPU')}, "
            f"{_percent(total['measured_s'], total['gpu_s'])} % of their time with readings"
        )
    reasons = Counter(row["reason"] for row in rows if row["energy_j"] is None)
    for reason, n in reasons.most_common():
        yield f"n/a for {many(n, 'row')}: {reason}"
    if found.by.of_people:
        yield (
            "idle: no job had the GPU and it did nothing; unattributed: it worked, and nobody knows for whom; idle %: "
            "what the GPUs would have drawn without work"
        )


def _next(found: Answer, store: str | Path) -> Iterable[str]:
    first = next((row for row in found.rows.iter_rows(named=True) if row["kind"] == Kind.JOB), None)
    if found.by is By.JOB and first is not None and first["job_id"]:
        yield ""
        yield Line(f"next: whorl energy --store {shlex.quote(str(store))} --job {shlex.quote(first['job_id'])}")
