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

import polars as pl

from ...analysis.energy.answers import SCHEMA, Answer, By
from ...analysis.energy.attributing import JobReason
from ...analysis.energy.carbon.billing import NoFigure, lacking
from ...analysis.energy.metering import Reason
from ...analysis.energy.pieces import Kind
from ..table import MISSING, Line, Table, count, many, number

_LISTED = 40
"""Rows that are listed for people; --json has all."""
_UNITS = (("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Units of time, as `unit_of` takes them."""
_MOST_AS = 0.1
"""The largest energy of a table has at least this much of its unit."""

_FACTORS = 5

_LEFT_OUT = ("account", "cluster", "model", "GPUs", "jobs", "measured %", "user")
"""Columns for which a narrow terminal has no room, after the GPU time, the first of them first."""

REASONS: Mapping[str, str] = {reason.value: reason.meaning for reason in (*Reason, *JobReason)}
"""What the codes of `reason` mean."""

Row = Mapping[str, Any]


def document(found: Answer) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    booked = found.booked
    return {
        "schema": SCHEMA,
        "rows": found.rows.to_dicts(),
        "by": found.by.value,
        "since": booked.since,
        "until": booked.until,
        "total": found.total or None,
        "not_read_s": booked.dark_s,
        "currency": booked.settings.currency,
        "settings": None if booked.settings.path is None else str(booked.settings.path),
        "factors": booked.factors.to_dicts(),
        "sensor": booked.sensor.describe(),
        **({} if found.gpus is None else {"gpus": found.gpus.to_dicts(), "beside": found.beside}),
    }


def rows_as_csv(rows: pl.DataFrame) -> str:
    """Rows as CSV, with a header. A missing value is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.columns)
    writer.writerows([_field(value) for value in row] for row in rows.iter_rows())
    return text.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def unit_of(
    values: Iterable[float | None], units: Sequence[tuple[str, float]] = _UNITS, least: float = _MOST_AS
) -> tuple[str, float]:
    """The unit of a column of energies: its name, and how many J it has. The largest value has `least` of it."""
    most = max((abs(one) for one in values if one is not None and math.isfinite(one)), default=0.0)
    return next((unit for unit in units if most >= least * unit[1]), units[-1])


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
    time, seconds = unit_of([row["gpu_s"] for row in rows], TIMES, 1.0)
    header = [*_heads(found.by), f"GPU {time}", unit, "[95 %]"]
    body = [[*_names(found.by, row), number(row["gpu_s"] / seconds, 3), *with_interval(row, joules)] for row in rows]
    if found.by.of_people:
        header.append("idle %")
        for cells, row in zip(body, rows, strict=True):
            cells.append(percent(row["idle_share"], 1.0) if row["kind"] == Kind.JOB else "")
    else:
        header += ["jobs %", "idle %", "unattributed %"]
        for cells, row in zip(body, rows, strict=True):
            whole = row["known_j"] if row["energy_j"] is None else row["energy_j"]
            cells += [percent(row[name], whole) for name in ("attributed_j", "idle_time_j", "unattributed_j")]
    header.append("measured %")
    for cells, row in zip(body, rows, strict=True):
        cells.append(percent(row["measured_s"], row["gpu_s"]))
    for name, head in costs_of(found):
        header.append(head)
        for cells, row in zip(body, rows, strict=True):
            cells.append(number(row[name]))
    names = len(_heads(found.by))
    right = [place for place in range(names, len(header)) if header[place] != "[95 %]"]
    title = f"{found.booked.since:%Y-%m-%d %H:%M:%S} to {found.booked.until:%Y-%m-%d %H:%M:%S} UTC"
    leaves = [names, *(header.index(one) for one in _LEFT_OUT if one in header)]
    return Table(header, body, right, title=title, leaves=leaves)


def costs_of(found: Answer) -> list[tuple[str, str]]:
    """The columns of grams and money that have a figure, with their heads."""
    heads = {"co2e_g": "CO2e g", "cost": f"cost {found.booked.settings.currency or ''}".rstrip()}
    return [(name, head) for name, head in heads.items() if not found.rows[name].is_null().all()]


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


def gpu_time(seconds: float) -> str:
    """GPU time for people."""
    unit, long = unit_of([seconds], TIMES, 1.0)
    return f"{number(seconds / long, 3)} GPU {unit}"


def some_gpus(n: int | None) -> str:
    """How many GPUs, where any is known."""
    return many(n, "GPU") if n else "GPUs that nobody knows"


def with_interval(row: Row, joules: float) -> tuple[str, str]:
    """An energy and its 95 % interval, in a unit that has so many joules."""
    if row["energy_j"] is None:
        return MISSING, MISSING
    low, high = (number(row[name] / joules) for name in ("low_j", "high_j"))
    return number(row["energy_j"] / joules), f"[{low}, {high}]"


def percent(part: float | None, whole: float | None) -> str:
    """A part of a whole, in per cent."""
    if part is None or not whole:
        return MISSING
    return f"{100 * part / whole:.0f}"


def _explained(found: Answer, rows: Sequence[Row]) -> Iterable[str]:
    total = found.total
    if total.get("energy_j") is not None:
        unit, joules = unit_of([total["energy_j"]])
        energy, bounds = with_interval(total, joules)
        yield (
            f"metered in all: {energy} {unit} {bounds} on {many(total['gpus'], 'GPU')}; "
            f"{percent(total['measured_s'], total['gpu_s'])} % of that time has readings"
        )
        if total["gpus_no_figure"]:
            yield f"not in it: {many(total['gpus_no_figure'], 'GPU')} of which no reading counts"
    elif total:
        unit, joules = unit_of([total["known_j"]])
        yield f"metered in all: n/a; {number(total['known_j'] / joules)} {unit} have an honest figure"
    if len(found.booked.problems):
        yield "problems were found in readings or jobs: `whorl energy reconcile` names them"
    if not found.booked.has_jobs:
        yield "no job is known in this time: `whorl jobs import` or `whorl import` adds who had which GPU"
    reasons = Counter((row["reason"], _how_long(row)) for row in rows if row["energy_j"] is None)
    for (reason, when), n in reasons.most_common():
        yield f"n/a in {many(n, 'row')}: {when}{REASONS.get(reason, reason)}"
    if found.booked.dark_s > 0:
        yield f"not counted: {gpu_time(found.booked.dark_s)} without readings in which no job had the GPU"
    if found.by.of_people:
        kinds = {row["kind"] for row in rows}
        meant = {
            Kind.IDLE: "(idle): no job had the GPU, and it did nothing",
            Kind.UNATTRIBUTED: "(unattributed): it worked, and nobody knows for whom",
        }
        said = "".join(f". {what}" for kind, what in meant.items() if kind in kinds)
        yield f"idle %: the part that the GPUs would have drawn without work{said}"
    yield f"95 % intervals; of the power sensors: {found.booked.sensor.describe()}"
    yield from carbon(found)


def _how_long(row: Row) -> str:
    """For what part of the time the reason of a row holds: words before it."""
    if row["measured_s"] <= 0:
        return ""
    if row["measured_s"] <= 0.5 * row["gpu_s"]:
        return "for half of the time or more, "
    return "for a part of the time, which nothing bounds (no power limit is known), "


def carbon(found: Answer) -> Iterable[str]:
    """What the grams and the money stand on; what to give where there are none."""
    booked = found.booked
    for row in booked.factors.head(_FACTORS).iter_rows(named=True):
        low, high = (number(row[name]) for name in ("low_g_per_kwh", "high_g_per_kwh"))
        grams = low if low == high else f"{low} to {high}"
        where = f"zone {row['zone']}" if row["zone"] else "contract"
        year = "" if row["year"] is None else f", {row['year']}"
        pue = "no PUE is given, so it is without the building" if row["pue"] is None else f"PUE {number(row['pue'])}"
        yield f"CO2e: {grams} g per kWh, {where} ({row['method']}-based){year}, source: {row['source']}; {pue}"
    if len(booked.factors) > _FACTORS:
        yield f"and {len(booked.factors) - _FACTORS} more sources of CO2e: --json has all"
    if costs_of(found):
        yield "intervals of CO2e and cost are those of the energy: nobody states how wrong a factor is"
    if booked.settings.path is None:
        yield "for CO2e and cost, write a file energy.toml in the store's folder (docs/carbon.md)"
        return
    for name, what in (("carbon_reason", "CO2e"), ("cost_reason", "cost")):
        why = booked.counted[name].drop_nulls().value_counts(sort=True)
        code = next((one for one in why[name] if one != NoFigure.NO_ENERGY), None)
        if code is not None:
            yield f"{what} n/a: {lacking(code, booked.zones_without_factor())}"


def _next(found: Answer, store: str | Path) -> Iterable[str]:
    first = next((row for row in found.rows.iter_rows(named=True) if row["kind"] == Kind.JOB), None)
    if found.by is By.JOB and first is not None and first["job_id"]:
        yield ""
        yield Line(f"next: whorl energy --store {shlex.quote(str(store))} --job {shlex.quote(first['job_id'])}")
