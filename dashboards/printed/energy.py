"""What `whorl energy` and its sub-verbs `reconcile`, `excess` and `quote` print for people, and their documents for
programs."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.energy.answers import RECONCILE_SCHEMA, SCHEMA, By, EnergyAnswer
from ...analysis.energy.attribute import Kind
from ...analysis.energy.billing import hours_share
from ...analysis.energy.books import CLOSE, Balance
from ...analysis.energy.excess import FALSE, FleetExcess, Of
from ...analysis.energy.levels import ANY
from ...analysis.energy.one_job import OneJob
from ...analysis.energy.options import Option, Quote
from ...analysis.energy.quote import Quoted
from ...analysis.tuning.power_plan import Estimate
from ...store.instants import date_of_ns
from .. import energy_words as words
from ..energy_table import EnergyColumn, energy_table, gpu_table, text, text_table, with_ends
from ..table import MISSING, Line, Table, count, many, number

_LISTED = 40
"""Rows that are listed for people; --json has all."""
_EXCESS_LISTED = 20
_EXAMPLES = 5

Row = Mapping[str, Any]


def rows_as_csv(rows: pl.DataFrame) -> str:
    """Rows as CSV, with a header. A missing value is an empty field."""

    def cell(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat() + "Z"
        return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value

    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(rows.columns)
    writer.writerows([cell(value) for value in row] for row in rows.iter_rows())
    return lines.getvalue()


def _more(rows: int, listed: int, formats: str = "--json and --csv have all") -> Iterable[str]:
    if rows > listed:
        yield f"and {rows - listed:,} more: {formats}"


# -- energy ---------------------------------------------------------------------------------------------------


def energy_document(answer: EnergyAnswer) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    booked = answer.booked
    return {
        "schema": SCHEMA,
        "rows": answer.rows.to_dicts(),
        "by": answer.by.value,
        "since": booked.since,
        "until": booked.until,
        "total": answer.total or None,
        "not_read_s": booked.dark_s,
        "currency": booked.settings.currency,
        "settings": None if booked.settings.path is None else str(booked.settings.path),
        "factors": booked.factors.to_dicts(),
        "co2e_hours_share": hours_share(booked.factors),
        "sensor": words.sensor_error(booked),
        **({} if answer.gpus is None else {"gpus": answer.gpus.to_dicts(), "beside": answer.beside}),
    }


def energy_parts(answer: EnergyAnswer, store: str | Path) -> Iterable[str | Table]:
    """The energy of each row for people, the largest first, and what it stands on."""
    rows = answer.rows.to_dicts()
    if not rows:
        yield "no GPU has telemetry in this time: nothing was metered"
        return
    listed, jobs = rows[:_LISTED], [row for row in rows if row["kind"] == Kind.JOB]
    if answer.by.of_people:  # what nobody used stands last, however many rows there are
        listed = [*jobs[:_LISTED], *(row for row in rows if row["kind"] != Kind.JOB)]
    yield energy_table(answer, listed)
    yield from _more(len(rows), len(listed))
    yield ""
    yield from words.in_all(answer)
    yield from words.explained(answer, store)
    if answer.by is By.JOB and jobs and (job := jobs[0]["job_id"]):
        yield ""
        cluster = f" --cluster {shlex.quote(jobs[0]['cluster'])}" if jobs[0]["cluster"] else ""
        yield Line(f"next: whorl energy --store {shlex.quote(str(store))} --job {shlex.quote(job)}{cluster}")


def job_document(job: OneJob) -> dict[str, Any]:
    """The document of `whorl.energy/1` of one job."""
    document = energy_document(job.answer)
    if job.elsewhere is None:
        return document
    gpus = job.gpus.drop("verdicts").to_dicts()
    return {**document, "gpus": gpus, "what_if": _quote_rows(job.elsewhere), "excess": job.elsewhere.lost}


def job_parts(answer: EnergyAnswer, elsewhere: Quoted) -> Iterable[str | Table]:
    """A job for people: its energy and what it is made of, each of its GPUs, and what it would have taken elsewhere."""
    gpus = pl.DataFrame() if answer.gpus is None else answer.gpus
    for row in answer.rows.iter_rows(named=True):
        yield from (words.of_job(row), "")
        lines = [list(line) for line in (*words.energy_lines(answer, row), *_cost_lines(answer, row))]
        yield from (Table(("of the job", "figure", "which is"), lines, wrapped=(2,)), "")
        yield from (gpu_table(gpus.filter(pl.col("job_id") == row["job_id"]).to_dicts()), "")
    yield from _lost(elsewhere.lost)
    yield from ("", "what if: the same job", "")
    yield from options(elsewhere)
    yield from ("", words.sensors(answer.booked))
    yield from words.carbon(answer)


def _cost_lines(answer: EnergyAnswer, row: Row) -> Iterable[tuple[str, str, str]]:
    """Name, figure, and what to know about it: of the grams and the money."""
    parts = ["of that energy", *(["of the rest of the nodes"] if row["host_j"] is not None else [])]
    parts += ["of the building"] if answer.booked.settings.pue else []
    for names, head in words.costs_of(answer):
        name, _, unit = head.partition(" ")
        figure, (low, high) = number(row[names[0]]), (number(row[end]) for end in names[1:])
        yield name, f"{figure} {unit} [{low}, {high}]", " and ".join(parts)


def _lost(row: Row | None) -> Iterable[str]:
    """What its GPUs took beyond the median GPUs of their models, or why that is not known."""
    if row is None:
        return
    if figures := [words.excess_interval(row, unit) for unit in "sj" if row[f"excess_{unit}"] is not None]:
        yield (
            f"lost to hardware: {', '.join(figures)}: beyond what the median GPU of the model would have taken for the "
            f"same work; {row['compared']:,} GPUs compared"
        )
    for unit, figure in (("s", "time"), ("j", "energy")):
        if row[f"excess_{unit}"] is None:
            why = words.EXCESS_REASONS.get(row[f"excess_{unit}_reason"], "nothing was used")
            yield f"{figure} lost to hardware: n/a: {why}"


# -- reconcile ------------------------------------------------------------------------------------------------


def balance_document(balance: Balance) -> dict[str, Any]:
    """The document of `whorl.energy.reconcile/1`: `rows` of GPUs, and `problems`, each with a sentence."""
    booked = balance.booked
    sentences = [
        f"{words.about(row)}: {words.problem_meaning(row['problem'], booked, row['cluster'])}"
        for row in balance.problems.iter_rows(named=True)
    ]
    return {
        "schema": RECONCILE_SCHEMA,
        "rows": balance.gpus.to_dicts(),
        "problems": [
            {**row, "sentence": sentence, "do": words.TO_DO.get(row["problem"])}
            for row, sentence in zip(balance.problems.iter_rows(named=True), sentences, strict=True)
        ],
        "balances": balance.balances,
        "since": booked.since,
        "until": booked.until,
        "not_read_s": booked.dark_s,
    }


def balance_parts(balance: Balance) -> Iterable[str | Table]:
    """The books of each GPU for people, whether they balance, and what is wrong."""
    gpus = balance.gpus
    (unit, joules), (time, seconds) = words.unit_of(gpus["metered_j"]), words.unit_of(gpus["gaps_s"], words.TIMES)

    def scaled(name: str, scale: float, digits: int = 4) -> Any:
        return lambda row: number(None if row[name] is None else row[name] / scale, digits)

    heads = (f"metered {unit}", "= of jobs", "+ idle", "+ unattributed")
    columns = [
        text("GPU", lambda row: row["name"] or row["gpu"]),
        *(EnergyColumn(head, scaled(name, joules)) for head, name in zip(heads, words.PARTS, strict=True)),
        EnergyColumn("rest J", _rest, leaves=1),
        EnergyColumn(f"gaps {time}", scaled("gaps_s", seconds, 2), leaves=2),
        EnergyColumn("problems", lambda row: count(row["problems"])),
    ]
    yield text_table(columns, gpus.head(_LISTED).to_dicts(), words.times_of(balance.booked))
    yield from _more(gpus.height, _LISTED, "--json has all")
    yield ""
    yield from words.books_sentences(balance)
    yield ""
    if balance.problems.is_empty():
        yield "no problems were found in the readings and jobs"
        return
    names = words.gpu_names(balance)
    for kind, times, on, meaning, do in words.problem_kinds(balance):
        examples = balance.problems.filter(pl.col("problem") == kind)
        gpus_hit = "" if on is None else f" on {on} GPU{'' if on == '1' else 's'}"
        yield f"{kind}, {times} time{'' if times == '1' else 's'}{gpus_hit}: {meaning}"
        if do is not None:
            yield f"  do: {do}"
        for row in examples.head(_EXAMPLES).iter_rows(named=True):
            yield f"  {words.about(row, names.get((row['cluster'], row['gpu'])))}"
        yield from (f"  {line}" for line in _more(examples.height, _EXAMPLES, "--json has all"))


def _rest(row: Row) -> str:
    """What is left of a GPU's books, J: 0 where only the rounding of the arithmetic is."""
    if row["difference_j"] is None:
        return MISSING
    return number(0.0 if abs(row["difference_j"]) <= CLOSE * abs(row["metered_j"]) else row["difference_j"], 2)


# -- excess ---------------------------------------------------------------------------------------------------


def excess_document(excess: FleetExcess) -> dict[str, Any]:
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


def excess_parts(excess: FleetExcess, store: str | Path) -> Iterable[str | Table]:
    """The excess for people: what is sure, then a table, those first that cost most."""
    rows = excess.rows.to_dicts()
    if not rows:
        yield "no job had a GPU in this time: there is no excess"
        return
    for total in excess.totals.iter_rows(named=True):
        yield from _of_cluster(excess, total, [row for row in rows if row["cluster"] == total["cluster"]])
    yield ""
    yield _excess_table(excess, rows[:_EXCESS_LISTED])
    yield from _more(len(rows), _EXCESS_LISTED)
    yield ""
    yield (
        "excess: what the GPUs used beyond what the median GPU of their model would have needed for the same work; "
        "below 0 where a GPU is better. [95 %] intervals"
    )
    if excess.by is Of.GPU:
        yield f"sure: above 0 so clearly that in {100 - 100 * FALSE:.0f} of 100 fleets no GPU is named by chance"
    for reason, n in Counter(row["excess_j_reason"] for row in rows if row["excess_j"] is None).most_common():
        yield f"n/a for {many(n, 'row')}: {words.EXCESS_REASONS.get(reason, reason or 'nothing was used')}"
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
                f"their model: {words.in_unit(sum(row['excess_j'] for row in hungry), 3)} more{_a_year(excess, hungry)}"
            )
        if slow:
            yield (
                f"cluster {cluster}: {len(slow):,} of {compared} surely took longer than the median GPU of their "
                f"model: {words.gpu_time(sum(row['excess_s'] for row in slow))} more"
            )
        waits_s, waits_j = (sum(row[name] or 0.0 for row in slow) for name in ("held_s", "held_j"))
        if waits_s:
            yield (
                f"if the GPUs of a job wait for each other, others waited for {'it' if len(slow) == 1 else 'these'}: "
                f"at most {words.gpu_time(waits_s)} and {words.in_unit(waits_j, 3)}, which is not in the table"
            )
        if not hungry and not slow:
            yield f"cluster {cluster}: none of {compared} surely costs more than the median GPU of its model"
    if total["excess_j"] is not None:
        part = f", {number(100 * total['excess_j'] / total['energy_j'], 2)} % of their energy"
        energy = words.excess_interval(total, "j") + (part if total["energy_j"] else "")
        yield f"all GPUs of {cluster} together: {energy}; {words.excess_interval(total, 's')}"


def _a_year(excess: FleetExcess, rows: Sequence[Row]) -> str:
    """What these would cost in a year; nothing where the time is too short to tell."""
    kwh, costs = ([row[name] for row in rows if row[name] is not None] for name in ("year_kwh", "year_cost"))
    if not kwh:
        return ""
    money = f" and {number(sum(costs), 3)} {excess.booked.settings.currency or ''}".rstrip() if costs else ""
    return f", which is {number(sum(kwh), 3)} kWh{money} a year at this pace"


def _excess_table(excess: FleetExcess, rows: Sequence[Row]) -> Table:
    unit, joules = words.unit_of([row["excess_high_j"] for row in rows])
    time, seconds = words.unit_of([row["excess_high_s"] for row in rows], words.TIMES)
    names = {
        Of.GPU: [text("GPU", lambda row: row["name"] or row["gpu"] or "(GPU not known)"),
                 text("model", lambda row: row["model"] or MISSING, leaves=1)],
        Of.NODE: [text("node", lambda row: row["node"] or "(node not known)"),
                  EnergyColumn("GPUs", lambda row: count(row["gpus"]))],
        Of.JOB: [text("job", lambda row: row["job_id"] or MISSING),
                 text("user", lambda row: row["user"] or MISSING, leaves=1)],
    }  # fmt: skip

    def energy(row: Row) -> str:
        return number(None if row["energy_j"] is None else row["energy_j"] / joules)

    def sure(row: Row) -> str:
        return ", ".join(word for word, letter in (("energy", "j"), ("time", "s")) if row[f"excess_{letter}_shown"])

    columns = [
        *names[excess.by],
        EnergyColumn(unit, energy, leaves=4),
        *with_ends(f"excess {unit}", lambda row: words.interval(row, words.EXCESS["j"], joules, 3)),
        *with_ends(f"excess GPU {time}", lambda row: words.interval(row, words.EXCESS["s"], seconds, 3)),
    ]
    if any(row["year_kwh"] is not None for row in rows):
        columns.append(EnergyColumn("kWh a year", lambda row: number(row["year_kwh"], 3), leaves=3))
    if any(row["excess_cost"] is not None for row in rows):
        money = excess.booked.settings.currency or "cost"
        columns.append(EnergyColumn(f"{money} a year", lambda row: number(row["year_cost"], 3)))
    if excess.by is Of.GPU:
        columns += [
            text("sure", sure),
            text("verdicts", lambda row: row["verdicts"] or "", wraps=True, leaves=5),
            EnergyColumn("runs", lambda row: count(row["runs"]), leaves=2),
        ]
    return text_table(columns, rows, words.times_of(excess.booked))


# -- quote ----------------------------------------------------------------------------------------------------


def quote_document(quoted: Quoted) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    work, (since, until) = quoted.work, quoted.ends
    return {
        "schema": SCHEMA,
        "rows": _quote_rows(quoted),
        "job": {name: getattr(work, name) for name in ("busy", "use", "workload", "limit_w", "gpus")},
        "since": since,
        "until": until,
        "currency": quoted.settings.currency,
        "notes": list(quoted.notes),
    }


def _quote_rows(quoted: Quoted) -> list[dict[str, Any]]:
    """A row for each option, for programs."""
    return [_quote_row(quoted, quote) for quote in quoted.quotes]


def _quote_row(quoted: Quoted, quote: Quote) -> dict[str, Any]:
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


def quote_parts(quoted: Quoted) -> Iterable[str | Table]:
    """The options with figures as a table, then those without and why."""
    work = quoted.work
    gpus = f"{words.some_gpus(work.gpus)} of {', '.join(work.models) or 'an unknown model'}"
    if quoted.job is not None:
        busy = "for an unknown part of it" if work.busy is None else f"{100 * work.busy:.0f} % of it"
        kind = f", workload {work.workload}" if work.workload else "" if work.use == ANY else f", mostly {work.use}"
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
        yield _quote_table(quoted, complete)
        yield ""
        yield "best: no other option is as good in time, energy and grams. Each option changes one thing"
        yield ""
    for quote in quoted.quotes:
        if quote not in complete:
            option = f"{quote.option}{f' {quote.choice}' if quote.choice else ''}"
            yield f"n/a: {option}: {quote.reason or 'there is no figure'}"


def _quote_table(quoted: Quoted, quotes: Sequence[Quote]) -> Table:
    rows = [_quote_row(quoted, quote) for quote in quotes]
    unit, joules = words.unit_of([row["energy_j"] for row in rows], words.ENERGIES)
    time, seconds = words.unit_of([row["duration_s"] for row in rows], words.TIMES)

    def choice(row: Row) -> str:
        return str(row["what"] if row["start"] is None else f"{row['what']}: {row['start']:%Y-%m-%d %H:%M}")

    def ends(head: str, names: Sequence[str], scale: float = 1.0) -> list[EnergyColumn]:
        """A figure, and its interval where it has one."""

        def cells(row: Row) -> tuple[str, str]:
            figure, bounds = words.interval(row, names, scale, 3)
            return figure, "" if row[names[0]] is not None and row[names[1]] == row[names[2]] else bounds

        return with_ends(head, cells)

    columns = [
        text("option", lambda row: row["option"]),
        text("", choice),
        *ends(f"time, {time}", ("duration_s", "duration_low_s", "duration_high_s"), seconds),
        *ends(unit, ("energy_j", "low_j", "high_j"), joules),
    ]
    if any(row["co2e_g"] is not None for row in rows):
        columns += ends("CO2e g", ("co2e_g", "co2e_low_g", "co2e_high_g"))
    if any(row["cost"] is not None for row in rows):
        columns.append(EnergyColumn(quoted.settings.currency or "cost", lambda row: number(row["cost"], 3)))
    columns += [
        text("best", lambda row: "yes" if row["best"] else ""),
        text("from", lambda row: row["basis"] or "", wraps=True, leaves=1),
        EnergyColumn("n", lambda row: "" if row["n"] is None else f"{row['n']:,}"),
    ]
    return text_table(columns, rows, clusters=False)
