"""What energy the GPUs of a store drew, whose it was, and how sure that is, as parts of a document."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.energy.answers import By, EnergyAnswer, EnergySummary
from ...analysis.energy.attribute import JobReason, Kind
from ...analysis.energy.billing import HostSource, hours_share
from ...analysis.energy.books import Booked
from ...analysis.energy.carbon import TABLE, NoFigure
from ...analysis.energy.idle import IdleSource
from ...analysis.energy.sensor import Reason
from ..document import (
    Cell,
    Chart,
    Column,
    Command,
    Document,
    Part,
    Section,
    Table,
    TableColumn,
    TableColumns,
    Tiles,
    cell_of,
)
from ..figures.energy import books, largest
from ..words import (
    ENERGIES,
    MASSES,
    MISSING,
    TIMES,
    count,
    in_store,
    in_unit,
    many,
    number,
    part_of,
    second,
    unit_of,
    with_interval_in_unit,
)

Row = Mapping[str, Any]
ENERGY = ("energy_j", "low_j", "high_j")
"""A figure of a row and the ends of its 95 % interval."""
CO2E, COST = ("co2e_g", "co2e_low_g", "co2e_high_g"), ("cost", "cost_low", "cost_high")
REASONS: Mapping[str, str] = {reason.value: reason.meaning for reason in (*Reason, *JobReason)}
"""What the codes of `reason` mean."""
CALLED = {by: "GPU" if by is By.GPU else by.value for by in By}
"""What the rows of each grouping are of."""
_FIRST = 15
"""Rows that a figure shows."""
LISTED = 40
"""Rows that a terminal and a report show."""
_MUCH, _SOME = 0.05, 0.01
"""Parts of all energy that are worth a sentence of their own, if nobody knows whose it was, or if it was idle."""
_FACTORS = 5
_HOSTS = {
    HostSource.MEASURED: "by meters of the nodes",
    HostSource.STATED: "by host_w of the settings",
    HostSource.BOTH: "by meters of the nodes and by host_w of the settings",
}
_PARTS = {
    Kind.JOB: "by jobs",
    Kind.IDLE: "idle: no job had the GPU, and it did nothing",
    Kind.UNATTRIBUTED: "unattributed: it worked, and nobody knows for whom",
}


# -- tables of rows -----------------------------------------------------------------------------------------------


def table_of(
    columns: TableColumns, rows: Sequence[Row], title: str = "", *, below: str = "", most: int | None = None
) -> Table:
    """A table of rows; with the cluster of each where the rows are of several, because names recur there. A column that
    may be left out is, where nothing is in it."""
    clusters: TableColumns = [("cluster", "cluster")] if len({row.get("cluster") for row in rows}) > 1 else []
    filled = [
        (column, source)
        for column, source in [*columns[:1], *clusters, *columns[1:]]
        if not (isinstance(column, Column) and column.drops)
        or any(cell_of(row, source) not in (None, "") for row in rows)
    ]
    return Table.of(rows, filled, title, below, most=most)


def estimated(names: Sequence[str], size: float = 1.0) -> Callable[[Row], Cell]:
    """A figure of a row with its interval, in a unit of this size; None where there is no figure."""

    def cell(row: Row) -> Cell:
        value, low, high = (None if row[name] is None else row[name] / size for name in names)
        return None if value is None else (value, low, high)

    return cell


def scaled(name: str, size: float = 1.0) -> Callable[[Row], Cell]:
    """A number of a row, in a unit of this size."""
    return lambda row: None if row[name] is None else row[name] / size


def estimate_text(row: Row, names: Sequence[str], units: Sequence[tuple[str, float]] = ENERGIES) -> str:
    """A figure of a row with its interval, in the unit that suits it: `278.3 Wh [268.2, 297.9]`."""
    value, low, high = (row[name] for name in names)
    return with_interval_in_unit(value, low, high, units)


def idle_cell(row: Row) -> Cell:
    """What the GPUs of a row would have drawn without work, in % of its energy; `at most 65` where nothing but bounds
    is known."""
    share, low, high = (row[f"idle_share{end}"] for end in ("", "_low", "_high"))
    if share is None:
        return None if high is None or high >= 1 else f"at most {100 * high:.0f}"
    if low is None or high is None or low == high:
        return (100 * share, None, None)
    return (100 * share, 100 * low, 100 * high)


JOULES = Column("energy", "estimate", unit="J", explains="With its 95 % interval. Filters and copies take J.")
GRAMS = Column("CO2e", "estimate", unit="g", explains="With its 95 % interval. Filters and copies take g.")
IDLE = Column(
    "idle %", "estimate", 1, explains="The part of the energy that the GPUs would have drawn without work.", drops=2
)
MEASURED = Column("measured %", "number", 0, explains="The part of the time with readings.", drops=7)


def measured_cell(row: Row) -> Cell:
    """What part of the time has readings, in %."""
    return 100 * row["measured_s"] / row["gpu_s"] if row["gpu_s"] else None


def name_of(by: By, row: Row) -> str:
    """What a row is of."""
    if by.of_people:
        if row["kind"] != Kind.JOB:
            return f"({row['kind']})"
        name = row["job_id" if by is By.JOB else by.value]
        return name or (MISSING if by is By.JOB else f"(no {by.value} known)")
    if by is By.GPU:
        return str(row["name"] or row["gpu"])
    if by is By.NODE:
        return row["node"] or "(node not known)"
    return f"{row['day']:%Y-%m-%d}" if isinstance(row["day"], date) else MISSING


def rows_table(answer: EnergyAnswer, title: str = "") -> Table:
    """The rows of an answer: the largest first, or the newest day."""
    rows = answer.rows.reverse().to_dicts() if answer.by is By.DAY else answer.rows.to_dicts()
    return table_of(_columns(answer, rows), rows, title, below="[ ]: 95 % intervals.", most=LISTED)


def _columns(answer: EnergyAnswer, rows: Sequence[Row]) -> TableColumns:
    by = answer.by
    time, seconds = unit_of([row["gpu_s"] for row in rows], TIMES)

    def share(head: str, name: str, explains: str) -> TableColumn:
        def cell(row: Row) -> Cell:
            total = row["known_j"] if row["energy_j"] is None else row["energy_j"]
            return 100 * row[name] / total if total and row[name] is not None else None

        return Column(head, "number", 0, explains=explains), cell

    def why(row: Row) -> str:
        if row["energy_j"] is not None:
            return ""
        part = ""
        if row.get("jobs_known") and row["known_j"]:
            part = f"; only {count(row['jobs_known'])} of {many(row['jobs'], 'job')}: {in_unit(row['known_j'])}"
        return f"{row['reason'] or ''}{part}".removeprefix("; ")

    columns: TableColumns = [
        *_name_columns(by),
        (
            Column(f"GPU {time}", "number", explains="Share x time, over all its GPUs.", drops=8),
            scaled("gpu_s", seconds),
        ),
        (JOULES, estimated(ENERGY)),
    ]
    if by.of_people:
        columns.append((IDLE, lambda row: idle_cell(row) if row["kind"] == Kind.JOB else ""))
    else:
        columns += [
            share("jobs %", "attributed_j", "The part of the energy that jobs used."),
            share("idle %", "idle_time_j", "No job had the GPU, and it did nothing."),
            share("unattributed %", "unattributed_j", "No known job had it, and nothing shows that it was idle."),
        ]
    columns.append((MEASURED, measured_cell))
    if any(row["co2e_g"] is not None for row in rows):
        columns.append((GRAMS, estimated(CO2E)))
    if any(row["cost"] is not None for row in rows):
        columns.append((Column(f"cost {answer.booked.settings.currency or ''}".rstrip(), "estimate"), estimated(COST)))
    return [*columns, (Column("why n/a", drops=3), why)]


def _name_columns(by: By) -> TableColumns:
    """What a row is of."""

    def word(name: str, drops: int) -> TableColumn:
        return Column(
            name, drops=drops
        ), lambda row: row[name] or ("" if by.of_people and row["kind"] != Kind.JOB else None)

    def time(name: str, drops: int) -> TableColumn:
        return Column(
            f"{name} (UTC)", "time", drops=drops
        ), lambda row: row[name] or ("" if row["kind"] != Kind.JOB else "now" if name == "ended" else None)

    page = "energy" if by is By.JOB else "gpu" if by is By.GPU else ""
    name: TableColumn = (Column("GPU" if by is By.GPU else by.value, page=page), lambda row: name_of(by, row))
    gpus: TableColumn = (Column("GPUs", "count", explains="n: how many GPUs.", drops=6), "gpus")
    jobs: TableColumn = (
        Column("jobs", "count", drops=5),
        lambda row: "" if by.of_people and row["kind"] != Kind.JOB else row["jobs"],
    )
    if by is By.JOB:
        times = (time("began", 11), time("ended", 12))
        return [name, word("user", 4), word("account", 10), word("state", 13), *times, gpus]
    if by is By.GPU:
        return [name, word("model", 9), jobs]
    return [name, jobs, gpus]


# -- the first lines ----------------------------------------------------------------------------------------------


def times_of(booked: Booked) -> str:
    """The time from the first reading to the last, and the time that was asked for where that is longer."""

    def spoken(since: datetime, until: datetime) -> str:
        return f"{second(since)} to {second(until)}"

    question = spoken(booked.since, booked.until)
    first, last = booked.metered.select(pl.col("first").min(), pl.col("last").max()).row(0)
    if first is None or (read := spoken(first, last)) == question:
        return f"{question} UTC"
    return f"readings from {read} UTC; asked for: {question}"


def headline(answer: EnergyAnswer) -> list[Part]:
    """How much energy, whose most of it was, what was idle, how sure all that is, and what to save first."""
    total = answer.total
    if not total:
        return ["No GPU has telemetry in this time: nothing was metered."]
    return [
        Tiles([*_drawn(answer), *costs(total, answer.booked)]),
        *_most(answer),
        *_save_first(answer),
        how_sure(answer),
    ]


def _drawn(answer: EnergyAnswer) -> list[tuple[str, str]]:
    """What was drawn, and whose it was."""
    total, parts = answer.total, answer.parts
    figures = [energy_tile(total, f"drawn by {many(total['gpus'] or 0, 'GPU')}")]
    for kind, meaning in _PARTS.items():
        if kind is Kind.JOB and not answer.booked.has_jobs:
            figures.append((MISSING, "by jobs: no job is known in this time (whorl jobs import)"))
        elif kind.value in parts:
            part = parts[kind.value]
            is_known = total["energy_j"] and part["energy_j"]
            share = f" ({part_of(part['energy_j'], total['energy_j'])})" if is_known else ""
            head, colon, remaining = meaning.partition(":")
            figures.append(energy_tile(part, f"{head}{share}{colon}{remaining}"))
        else:  # of a GPU whose energy is not known, nobody knows a part either
            figures.append((MISSING if total["energy_j"] is None else "0 Wh", meaning))
    return figures


def energy_tile(row: Row, meaning: str) -> tuple[str, str]:
    """The energy of a row with its interval, or why there is none."""
    if row["energy_j"] is None:
        return MISSING, f"{meaning}: {bare(REASONS.get(row['reason'], row['reason'] or 'there is no figure'))}"
    return estimate_text(row, ENERGY), meaning


def costs(row: Row, booked: Booked) -> list[tuple[str, str]]:
    """Grams and money of a row, or what the settings lack; nothing where there are no settings."""
    if booked.settings.path is None:
        return []
    tiles = []
    for names, head, units, reason in (
        (CO2E, "CO2e", MASSES, booked.carbon_reason),
        (COST, "cost", ((booked.settings.currency or "", 1.0),), booked.cost_reason),
    ):  # fmt: skip
        if row[names[0]] is None:
            why = lacking(reason, booked.zones_without_factor()) if reason else "there is no figure of the energy"
            tiles.append((MISSING, f"{head}: {bare(why)}"))
        else:
            tiles.append((estimate_text(row, names, units).rstrip(), head))
    return tiles


def _most(answer: EnergyAnswer) -> Iterable[str]:
    """Whose most of the energy was."""
    rows, by = answer.rows, answer.by
    ranked = rows.filter(
        pl.col("energy_j").is_not_null(), *([pl.col("kind") == Kind.JOB.value] if by.of_people else [])
    )
    if by is By.DAY:
        ranked = ranked.sort("energy_j", descending=True)
    if ranked.height < 2:
        return
    noun, total = CALLED[by], answer.total["energy_j"]
    first, *after = ranked.head(3).to_dicts()
    person = f" of {first['user']}" if by is By.JOB and first["user"] else ""
    part = f", {part_of(first['energy_j'], total)} of all" if total else ""
    then = [f"{name_of(by, row)} ({in_unit(row['energy_j'])})" for row in after]
    yield f"Most: {noun} {name_of(by, first)}{person}, {estimate_text(first, ENERGY)}{part}; then {' and '.join(then)}."


def _save_first(answer: EnergyAnswer) -> Iterable[str]:
    """What could be saved, or must be found out, first."""
    total = answer.total["energy_j"]
    shares = {kind: (row["energy_j"] or 0.0) / total for kind, row in answer.parts.items()} if total else {}
    idle, unknown = shares.get(Kind.IDLE, 0.0), shares.get(Kind.UNATTRIBUTED, 0.0)
    if not answer.booked.has_jobs:
        yield "No job is known in this time, so nobody knows whose it was: `whorl jobs import` adds who had which GPU."
    elif unknown >= _MUCH:
        text = estimate_text(answer.parts[Kind.UNATTRIBUTED], ENERGY)
        yield (
            f"Find out first who used {text}: GPUs worked, and no known job had them. Import all jobs: `whorl jobs "
            "import`."
        )
    if idle >= _SOME:
        text = estimate_text(answer.parts[Kind.IDLE], ENERGY)
        yield (
            f"Save first: {text} were drawn by GPUs that did nothing and that no job had. Fill their nodes, or switch "
            "these off: `whorl energy --by node` says which. `whorl jobs idle` names jobs that hold GPUs without use."
        )
    elif total and answer.booked.has_jobs:
        yield (
            "Hardly a GPU was without a job. `whorl energy excess` says what slow and hungry GPUs cost, `whorl jobs "
            "idle` which jobs hold GPUs without use."
        )


def how_sure(answer: EnergyAnswer) -> str:
    """What part of the time was read, and what the intervals allow for."""
    total = answer.total
    cover = f"readings cover {part_of(total['measured_s'], total['gpu_s'])} of {gpu_time(total['gpu_s'])}"
    return f"How sure: {cover}; the 95 % intervals allow for power sensors with {sensor_error(answer.booked)}."


def gpu_time(seconds: float) -> str:
    """GPU time for people: `2.04 GPU h`."""
    figure, unit = in_unit(seconds, TIMES).split()
    return f"{figure} GPU {unit}"


def bare(text: str) -> str:
    """A sentence without the marks of code, for a tile."""
    return text.replace("`", "")


# -- what the figures stand on ------------------------------------------------------------------------------------


def remarks(answer: EnergyAnswer) -> Section:
    """What is not in the rows and why, and what they stand on."""
    booked, total, sentences = answer.booked, answer.total, []
    if total and total["jobs_known"] < total["jobs"]:
        sentences.append(f"{count(total['jobs_known'])} of {many(total['jobs'], 'job')} have an honest figure.")
    if total and total["gpus_no_figure"]:
        sentences.append(f"Not in it: {many(total['gpus_no_figure'], 'GPU')} of which no reading counts.")
    if total and total["energy_j"] is None:
        sentences.append(f"Of the energy of all, {in_unit(total['known_j'])} have an honest figure.")
    sentences += _reasons(answer.rows)
    if booked.dark_s > 0:
        sentences.append(f"Not counted: {gpu_time(booked.dark_s)} without readings in which no job had the GPU.")
    if answer.by.of_people:
        sentences += idle_sources(answer.rows.iter_rows(named=True))
    return Section("What the figures stand on", [*sentences, *carbon(answer)])


def idle_sources(rows: Iterable[Row]) -> Iterable[str]:
    """How the idle share of jobs is known, where that is not by readings of GPUs without work."""
    sources = Counter(row["idle_source"] for row in rows if row["kind"] == Kind.JOB and row["energy_j"] is not None)
    for source in (IdleSource.COUNTER, IdleSource.EXTENDED, IdleSource.BOUNDED):
        if sources[source]:
            yield f"idle % of {many(sources[source], 'row')}: {source.meaning}."


def _reasons(rows: pl.DataFrame) -> Iterable[str]:
    """Why rows have no figure, for what part of the time, and how many: the most common first."""
    times = (
        pl.when(pl.col("measured_s") <= 0)
        .then(pl.lit(""))
        .when(pl.col("measured_s") <= 0.5 * pl.col("gpu_s"))
        .then(pl.lit("for half of the time or more, "))
        .otherwise(pl.lit("for a part of the time, which nothing bounds (no power limit is known), "))
    )
    missing = rows.filter(pl.col("energy_j").is_null())
    counted = missing.group_by("reason", times.alias("times"), maintain_order=True).len()
    for reason, time, n in counted.sort("len", descending=True, maintain_order=True).iter_rows():
        yield f"n/a in {many(n, 'row')}, {reason}: {time}{REASONS.get(reason, reason)}."


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


def lacking(code: str, zones: Sequence[str] = ()) -> str:
    """What the settings lack, in words; `zones` are those without a factor."""
    meaning = NoFigure(code).meaning
    if code != NoFigure.NO_FACTOR or not zones:
        return meaning
    zone_names = f"zone {zones[0]}" if len(zones) == 1 else f"the zones {', '.join(zones)}"
    return f"{meaning.replace('this zone', zone_names)}. The zones of the shipped table are listed in {TABLE}"


def carbon(answer: EnergyAnswer) -> Iterable[str]:
    """What the grams and the money stand on; what to give where there are none."""
    booked = answer.booked
    for row in booked.factors.head(_FACTORS).iter_rows(named=True):
        low, high = (number(row[name]) for name in ("low_g_per_kwh", "high_g_per_kwh"))
        grams = low if low == high else f"{low} to {high}"
        place = f"zone {row['zone']}" if row["zone"] else "contract"
        year = "" if row["year"] is None else f", {row['year']}"
        pue = "no PUE is given, so it is without the building" if row["pue"] is None else f"PUE {number(row['pue'])}"
        yield f"CO2e: {grams} g per kWh, {place} ({row['method']}-based){year}, source: {row['source']}; {pue}."
    if len(booked.factors) > _FACTORS:
        yield f"And {len(booked.factors) - _FACTORS} more sources of CO2e: --json has all."
    if by_hour := hours_share(booked.factors):
        yield f"CO2e by the hour: {100 * by_hour:.3g} % of the energy."
    yield from _hosts(answer.total)
    if any(not answer.rows[names[0]].is_null().all() for names in (CO2E, COST)):
        yield "Intervals of CO2e and cost are those of the energy: nobody states how wrong a factor is."
    if booked.settings.path is None:
        yield "For CO2e and cost, write a file energy.toml in the store's folder (docs/energy.md)."
        return
    for code, head in ((booked.carbon_reason, "CO2e"), (booked.cost_reason, "cost")):
        if code is not None:
            yield f"{head} n/a: {lacking(code, booked.zones_without_factor())}."


def _hosts(total: Row) -> Iterable[str]:
    """What the rest of the nodes used, and both together."""
    if total.get("host_j") is None:
        return
    yield (
        f"The rest of the nodes (processors, memory, fans): {in_unit(total['host_j'])} {_HOSTS[total['host_source']]}, "
        f"for {part_of(total['host_of_s'], total['gpu_s'])} of the GPU time. It is in CO2e and cost, not in the energy."
    )
    if total["node_j"] is not None:
        node = estimate_text(total, ("node_j", "node_low_j", "node_high_j"))
        yield f"GPUs and the rest of the nodes together: {node}."


def terms() -> Section:
    """The words of energy, in a fold."""
    words = (
        "idle %, of a job: the part of its energy that its GPUs would have drawn without work.",
        *(f"{Kind(kind)}: {Kind(kind).meaning}." for kind in (Kind.IDLE, Kind.UNATTRIBUTED)),
        "measured %: the part of the time with readings. What lies in gaps is bounded by the power without work and by "
        "the power limit, and the interval has it.",
        "[ ]: the 95 % interval, of errors of power sensors, of gaps, and of how often power was read.",
        "honest figure: of a job or GPU with readings for half of its time or more.",
    )
    return Section("What the words mean", words, folded=True)


# -- documents ----------------------------------------------------------------------------------------------------


def energy_section(answer: EnergyAnswer, store: str | Path) -> Section:
    """The energy of an answer: the first lines, the rows, and what they stand on. `store`: where the command that it
    names looks."""
    parts = headline(answer)
    if answer.rows.height:
        parts += [rows_table(answer), remarks(answer)]
        if len(answer.booked.problems):
            command = f"`whorl energy reconcile --store {shlex.quote(str(store))}`"
            parts.append(f"Problems were found in readings or jobs: {command} names them.")
        parts.append(terms())
    return Section(f"Energy by {CALLED[answer.by]}", parts, times_of(answer.booked))


def energy_document(answer: EnergyAnswer, store: str | Path) -> Document:
    """The energy of each row, the largest first, what it stands on, and the command that says more of the first."""
    parts: list[Part] = [energy_section(answer, store)]
    jobs = answer.rows.filter(pl.col("kind") == Kind.JOB.value).head(1).to_dicts() if answer.by is By.JOB else []
    for row in jobs:
        if row["job_id"]:
            cluster = f" --cluster {shlex.quote(row['cluster'])}" if row["cluster"] else ""
            command = f"whorl energy {in_store(store)} --job {shlex.quote(row['job_id'])}{cluster}"
            parts += ["Next, the first of these in full:", Command(command)]
    return Document("Energy", parts)


def days_chart(summary: EnergySummary) -> Chart:
    """Where the energy went, day by day: a figure for each cluster."""
    days = summary.answers[By.DAY].rows
    clusters = days["cluster"].unique().sort().to_list()
    which = f" Of cluster {clusters[0]}, the first of {len(clusters)}." if len(clusters) > 1 else ""
    caption = f"Days are in UTC. The line at the end of a bar: 95 % interval of what was metered.{which}"
    figures = {
        str(cluster): books(days.filter(pl.col("cluster").eq_missing(pl.lit(cluster, pl.String))))
        for cluster in clusters
    }
    return Chart("Where the energy went, day by day", caption, figures)


def largest_chart(summary: EnergySummary, groupings: Sequence[By]) -> Chart:
    """Who used most energy, by one or more groupings."""
    figures = {}
    for by in groupings:
        rows = summary.answers[by].rows
        several = rows["cluster"].n_unique() > 1
        first = rows.filter(pl.col("kind") == Kind.JOB.value).head(_FIRST) if by.of_people else rows.head(_FIRST)
        names = [
            f"{name_of(by, row)} · {row['cluster']}" if several and row["cluster"] else name_of(by, row)
            for row in first.iter_rows(named=True)
        ]
        why = pl.col("reason").replace(list(REASONS), list(REASONS.values())).alias("why")
        figures[CALLED[by]] = largest(first.with_columns(why, what=pl.Series(names, dtype=pl.String)))
    caption = f"The first {_FIRST}, with 95 % intervals; the table has all."
    return Chart(f"The largest, by {' and '.join(figures)}", caption, figures)
