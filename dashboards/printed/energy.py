"""What `whorl energy` says: rows with intervals for people, and the same for programs."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.energy.answers import SCHEMA, By, EnergyAnswer
from ...analysis.energy.attribute import Kind
from ...analysis.energy.billing import HostSource, hours_share
from ...analysis.energy.books import Booked
from ..energy_words import REASONS, TIMES, idle_share, idle_sources, lacking, name_of, unit_of, with_interval
from ..table import MISSING, Line, Table, count, many, number

_LISTED = 40
"""Rows that are listed for people; --json has all."""
_FACTORS = 5
_HOSTS = {
    HostSource.MEASURED: "by meters of the nodes",
    HostSource.STATED: "by host_w of the settings",
    HostSource.BOTH: "by meters of the nodes and by host_w of the settings",
}

_LEFT_OUT = ("account", "cluster", "model", "GPUs", "jobs", "measured %", "user")
"""Columns for which a narrow terminal has no room, after the GPU time, the first of them first."""

Row = Mapping[str, Any]


def document(found: EnergyAnswer) -> dict[str, Any]:
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
        "co2e_hours_share": hours_share(booked.factors),
        "sensor": sensor_error(booked),
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


def answer(found: EnergyAnswer, store: str | Path) -> Iterable[str | Table]:
    """The energy of each row for people, the largest first, and what it stands on."""
    rows = found.rows.to_dicts()
    if not rows:
        yield "no GPU has telemetry in this time: nothing was metered"
        return
    shown = rows[:_LISTED]
    if found.by.of_people:  # what nobody used stands last, however many rows there are
        nobody = [row for row in rows if row["kind"] != Kind.JOB]
        shown = [*[row for row in rows if row["kind"] == Kind.JOB][:_LISTED], *nobody]
    yield listed(found, shown)
    if len(rows) > len(shown):
        yield f"and {len(rows) - len(shown):,} more: --json and --csv have all"
    yield ""
    yield from in_all(found)
    yield from explained(found, store)
    yield from _next(found, store)


def listed(found: EnergyAnswer, rows: Sequence[Row]) -> Table:
    """Some rows of an answer as a table, in units that suit them."""
    unit, joules = unit_of(
        [row["high_j"] or row["energy_j"] or row["known_j"] for row in rows] + [found.total.get("energy_j")]
    )
    time, seconds = unit_of([row["gpu_s"] for row in rows], TIMES)
    header = [*_heads(found.by), f"GPU {time}", unit, "[95 %]"]
    body = [[*_names(found.by, row), number(row["gpu_s"] / seconds, 3), *with_interval(row, joules)] for row in rows]
    if found.by.of_people:
        header.append("idle %")
        for cells, row in zip(body, rows, strict=True):
            cells.append(idle_share(row) if row["kind"] == Kind.JOB else "")
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
    title = times_of(found.booked)
    leaves = [names, *(header.index(one) for one in _LEFT_OUT if one in header)]
    table = Table(header, body, right, title=title, leaves=leaves)
    return table if found.by is By.DAY else with_clusters(table, rows)


def times_of(booked: Booked) -> str:
    """The time from the first reading to the last, and the time that was asked for where that is longer."""

    def spoken(since: datetime, until: datetime) -> str:
        return f"{since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S}"

    asked = spoken(booked.since, booked.until)
    first, last = booked.metered.select(pl.col("first").min(), pl.col("last").max()).row(0)
    if first is None or (read := spoken(first, last)) == asked:
        return f"{asked} UTC"
    return f"readings from {read} UTC; asked for: {asked}"


def with_clusters(table: Table, rows: Sequence[Row]) -> Table:
    """The table with the cluster of each row, where the rows are of several: names of jobs, users and GPUs recur."""
    if len({row["cluster"] for row in rows}) < 2:
        return table

    def put(cells: Sequence[str], cell: str) -> list[str]:
        return [cells[0], cell, *cells[1:]]

    def moved(places: Sequence[int]) -> list[int]:
        return [place + (place > 0) for place in places]

    return replace(
        table,
        header=put(table.header, "cluster"),
        rows=[put(cells, row["cluster"] or MISSING) for cells, row in zip(table.rows, rows, strict=True)],
        right=moved(table.right),
        wrapped=moved(table.wrapped),
        leaves=moved(table.leaves),
    )


def costs_of(found: EnergyAnswer) -> list[tuple[str, str]]:
    """The columns of grams and money that have a figure, with their heads."""
    heads = {"co2e_g": "CO2e g", "cost": f"cost {found.booked.settings.currency or ''}".rstrip()}
    return [(name, head) for name, head in heads.items() if not found.rows[name].is_null().all()]


def _heads(by: By) -> tuple[str, ...]:
    return {
        By.JOB: ("job", "user", "account", "GPUs"),
        By.USER: ("user", "jobs", "GPUs"),
        By.ACCOUNT: ("account", "jobs", "GPUs"),
        By.GPU: ("GPU", "model", "jobs"),
        By.NODE: ("node", "jobs", "GPUs"),
        By.DAY: ("day", "cluster", "jobs", "GPUs"),
    }[by]


def _names(by: By, row: Row) -> list[str]:
    """The cells that say what a row is of."""
    name, gpus = name_of(by, row), count(row["gpus"])
    if by is By.JOB:
        if row["kind"] != Kind.JOB:
            return [name, "", "", gpus]
        return [name, row["user"] or MISSING, row["account"] or MISSING, gpus]
    if by.of_people:
        return [name, _jobs(row) if row["kind"] == Kind.JOB else "", gpus]
    if by is By.GPU:
        return [name, row["model"] or MISSING, _jobs(row)]
    return [name, *([] if by is By.NODE else [row["cluster"] or MISSING]), _jobs(row), gpus]


def _jobs(row: Row) -> str:
    """How many jobs a row has, and how many of them have an honest figure where not all have."""
    jobs, known = row["jobs"], row["jobs_known"]
    return count(jobs) if jobs == known else f"{count(known)} of {count(jobs)}"


def gpu_time(seconds: float) -> str:
    """GPU time for people."""
    unit, long = unit_of([seconds], TIMES)
    return f"{number(seconds / long, 3)} GPU {unit}"


def some_gpus(n: int | None) -> str:
    """How many GPUs, where any is known."""
    return many(n, "GPU") if n else "GPUs that nobody knows"


def percent(part: float | None, whole: float | None) -> str:
    """A part of a whole, in per cent."""
    if part is None or not whole:
        return MISSING
    return f"{100 * part / whole:.0f}"


def in_all(found: EnergyAnswer) -> Iterable[str]:
    """What the rows add up to."""
    total = found.total
    if total.get("energy_j") is not None:
        unit, joules = unit_of([total["energy_j"]])
        energy, bounds = with_interval(total, joules)
        yield (
            f"metered in all: {energy} {unit} {bounds} on {many(total['gpus'], 'GPU')}; "
            f"readings cover {percent(total['measured_s'], total['gpu_s'])} % of the {gpu_time(total['gpu_s'])} counted"
        )
        if total["jobs_known"] < total["jobs"]:
            yield f"{count(total['jobs_known'])} of {many(total['jobs'], 'job')} have an honest figure"
        if total["gpus_no_figure"]:
            yield f"not in it: {many(total['gpus_no_figure'], 'GPU')} of which no reading counts"
    elif total:
        unit, joules = unit_of([total["known_j"]])
        yield f"metered in all: n/a; {number(total['known_j'] / joules)} {unit} have an honest figure"


def explained(found: EnergyAnswer, store: str | Path | None = None) -> Iterable[str]:
    """What is not in the rows and why, and what they stand on. `store`: where the commands that it names look."""
    if len(found.booked.problems):
        where = "" if store is None else f" --store {shlex.quote(str(store))}"
        yield f"problems were found in readings or jobs: `whorl energy reconcile{where}` names them"
    if not found.booked.has_jobs:
        yield "no job is known in this time: `whorl jobs import` or `whorl import` adds who had which GPU"
    for reason, when, n in _reasons(found.rows):
        yield f"n/a in {many(n, 'row')}: {when}{REASONS.get(reason, reason)}"
    if found.booked.dark_s > 0:
        yield f"not counted: {gpu_time(found.booked.dark_s)} without readings in which no job had the GPU"
    if found.by.of_people:
        kinds = set(found.rows["kind"])
        meant = {
            Kind.IDLE: "(idle): no job had the GPU, and it did nothing",
            Kind.UNATTRIBUTED: "(unattributed): no known job had the GPU, and nothing shows that it was idle",
        }
        said = "".join(f". {what}" for kind, what in meant.items() if kind in kinds)
        yield f"idle %: the part that the GPUs would have drawn without work{said}"
        yield from idle_sources(found.rows.iter_rows(named=True))
    yield f"[95 %] allows for power sensors with {sensor_error(found.booked)}"
    yield from carbon(found)


def sensor_error(booked: Booked) -> str:
    """The error of power sensors that the intervals allow for, in words."""
    others = booked.metered.join(booked.errors.calibrated, on=["cluster", "gpu"], how="anti", nulls_equal=True)
    calibrated = booked.metered.height - others.height
    learnt = f"the error that their calibration left ({many(calibrated, 'GPU')}: `whorl energy calibrate`)"
    if calibrated and others.is_empty():
        return learnt
    unread = pl.DataFrame({"cluster": [None], "gpu": [None]}, {"cluster": pl.String, "gpu": pl.String})
    widths = booked.errors.half_widths(unread if others.is_empty() else others)
    halves = (
        [f"{100 * gain:.1f}" for gain in sorted(widths["gain"])],
        [f"{w:.0f}" for w in sorted(widths["offset_w"])],
    )
    gain, offset = (" to ".join(dict.fromkeys((half[0], half[-1]))) for half in halves)
    boards = booked.sensor.boards
    basis = f"as {boards} measured boards have it" if boards else "as the settings state it"
    usual = f"gain within ±{gain} % and offset within ±{offset} W, {basis}"
    return f"{learnt}; others: {usual}" if calibrated else usual


def _reasons(rows: pl.DataFrame) -> list[tuple[str, str, int]]:
    """Why rows have no figure, for what part of the time in words, and how many: the most common first."""
    when = (
        pl.when(pl.col("measured_s") <= 0)
        .then(pl.lit(""))
        .when(pl.col("measured_s") <= 0.5 * pl.col("gpu_s"))
        .then(pl.lit("for half of the time or more, "))
        .otherwise(pl.lit("for a part of the time, which nothing bounds (no power limit is known), "))
    )
    none = rows.filter(pl.col("energy_j").is_null())
    counted = none.group_by("reason", when.alias("when"), maintain_order=True).len()
    return counted.sort("len", descending=True, maintain_order=True).rows()


def carbon(found: EnergyAnswer) -> Iterable[str]:
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
    if by_hour := hours_share(booked.factors):
        yield f"CO2e by the hour: {100 * by_hour:.3g} % of the energy"
    yield from _hosts(found.total)
    if costs_of(found):
        yield "intervals of CO2e and cost are those of the energy: nobody states how wrong a factor is"
    if booked.settings.path is None:
        yield "for CO2e and cost, write a file energy.toml in the store's folder (docs/carbon.md)"
        return
    for code, what in ((booked.carbon_reason, "CO2e"), (booked.cost_reason, "cost")):
        if code is not None:
            yield f"{what} n/a: {lacking(code, booked.zones_without_factor())}"


def _hosts(total: Row) -> Iterable[str]:
    """What the rest of the nodes used, and both together."""
    if total.get("host_j") is None:
        return
    unit, joules = unit_of([total["host_j"]])
    yield (
        f"the rest of the nodes (processors, memory, fans): {number(total['host_j'] / joules)} {unit} "
        f"{_HOSTS[total['host_source']]}, for {percent(total['host_of_s'], total['gpu_s'])} % of the GPU time; it is "
        "in CO2e and cost, not in the energy"
    )
    if total["node_j"] is not None:
        unit, joules = unit_of([total["node_j"]])
        node, low, high = (number(total[name] / joules) for name in ("node_j", "node_low_j", "node_high_j"))
        yield f"GPUs and the rest of the nodes together: {node} {unit} [{low}, {high}]"


def _next(found: EnergyAnswer, store: str | Path) -> Iterable[str]:
    first = next((row for row in found.rows.iter_rows(named=True) if row["kind"] == Kind.JOB), None)
    if found.by is By.JOB and first is not None and first["job_id"]:
        yield ""
        of = f" --cluster {shlex.quote(first['cluster'])}" if first["cluster"] else ""
        yield Line(f"next: whorl energy --store {shlex.quote(str(store))} --job {shlex.quote(first['job_id'])}{of}")
