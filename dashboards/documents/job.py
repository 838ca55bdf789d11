"""What one job took and would have taken elsewhere, what the place of jobs cost, and GPUs that jobs held idle."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ...analysis.energy.answers import EnergyAnswer
from ...analysis.energy.excess import FALSE, FleetExcess, Of, Unknown
from ...analysis.energy.held_idle import HeldIdle, IdleReason
from ...analysis.energy.idle import IdleSource
from ...analysis.energy.levels import ANY
from ...analysis.energy.options import Option, Quote
from ...analysis.energy.quote import OneJob, Quoted
from ...analysis.tuning.power_plan import Estimate
from ...store.instants import date_of_ns
from ..document import WORDS, Cell, Chart, Column, Command, Document, Part, Section, Table, TableColumns, Tiles
from ..figures.energy import PLACES, places
from ..words import (
    ENERGIES,
    MISSING,
    TIMES,
    count,
    duration,
    estimate,
    in_store,
    in_unit,
    listed,
    many,
    minute,
    number,
    part_of,
    second,
    unit_of,
    with_interval,
)
from .energy import (
    CO2E,
    ENERGY,
    GRAMS,
    IDLE,
    JOULES,
    LISTED,
    MEASURED,
    REASONS,
    Row,
    bare,
    carbon,
    costs,
    energy_tile,
    estimate_text,
    estimated,
    gpu_time,
    how_sure,
    idle_cell,
    idle_sources,
    lacking,
    measured_cell,
    rows_table,
    scaled,
    table_of,
    terms,
    times_of,
)

_EXCESS_REASONS = {**REASONS, **{code.value: code.meaning for code in Unknown}}
_EXCESS_J = ("excess_j", "excess_low_j", "excess_high_j")
_EXCESS_S = ("excess_s", "excess_low_s", "excess_high_s")
_LISTED, _BESIDE = 20, 50


# -- one job ------------------------------------------------------------------------------------------------------


def job_document(job: OneJob) -> Document:
    """A job, or the tasks of an array: its energy, its GPUs, and what it would have taken elsewhere."""
    answer = job.answer
    rows = answer.rows.to_dicts()
    if not rows:
        return Document("Energy of a job", ["Nothing of it was metered: none of its GPUs has readings."])
    total = rows[0] if len(rows) == 1 else answer.total
    if len(rows) == 1:
        person = f" of {total['user']}" if total["user"] else ""
        account = f" ({total['account']})" if total["account"] else ""
        title, lead = f"Job {total['job_id']}{person}{account}", _of_job(total)
    else:
        title, lead = f"{many(len(rows), 'job')} of one number, as of an array", times_of(answer.booked)
    parts: list[Part] = [Tiles([*_job_tiles(answer, total), *_lost_tiles(job.elsewhere), *costs(total, answer.booked)])]
    if len(rows) > 1:
        parts.append(rows_table(answer))
    if job.gpus["gpu"].count():
        parts.append(_gpus_section(job))
    basis = Section("What the figures stand on", [how_sure(answer), *idle_sources(rows), *carbon(answer)])
    parts += [_elsewhere(job), _beside(answer), basis, terms()]
    return Document(title, [Section(title, parts, lead)])


def _of_job(row: Row) -> str:
    """When a job ran, on what, and how it ended."""
    state = f"{row['state']}, " if row["state"] else ""
    runs = f", {row['allocations']} runs" if row["allocations"] > 1 else ""
    still = " It is still running: the figures are those up to the last reading." if row["ended"] is None else ""
    return (
        f"{state}{second(row['began'])} to {second(row['ended'], 'now')} UTC{runs}, {duration(row['duration_s'])} on "
        f"{_some_gpus(row['gpus'])}.{still}"
    )


def _some_gpus(n: int | None) -> str:
    """How many GPUs, where any is known."""
    return many(n, "GPU") if n else "GPUs that nobody knows"


def _job_tiles(answer: EnergyAnswer, row: Row) -> Iterable[tuple[str, str]]:
    """The energy of a job, what of it its GPUs would have drawn without work, and what the scheduler says."""
    part = part_of(row["measured_s"], row["gpu_s"])
    yield energy_tile(
        row, f"energy, by {row['method']}; {part} of the time has readings" if row["method"] else "energy"
    )
    if (share := idle_cell(row)) is not None:
        basis = "idle share: of its GPUs that were ever seen idle"
        if row["idle_share"] is None:
            basis = f"idle share: {IdleSource(row['idle_source']).meaning}"
        elif row["idle_j"] is not None:
            basis = f"idle share: {in_unit(row['idle_j'])} that its GPUs would have drawn without work"
        yield with_interval(*share, unit="%", most=1) if isinstance(share, tuple) else f"{share} %", basis
    if row.get("scheduler_j") is not None:
        again = f"; {many(answer.beside or 0, 'other job')} on its nodes at that time count the same energy again"
        basis = f"by the scheduler, of whole nodes with processors and memory{again if answer.beside else ''}"
        yield in_unit(row["scheduler_j"]), basis


def _lost_tiles(elsewhere: Quoted | None) -> Iterable[tuple[str, str]]:
    """What a job lost to hardware: GPU time and energy beyond those of the median GPUs of its models."""
    row = None if elsewhere is None else elsewhere.lost
    if row is None:
        return
    for names, unit, figure in ((_EXCESS_S, "s", "GPU time"), (_EXCESS_J, "j", "energy")):
        name = f"{figure} lost to hardware"
        if row[names[0]] is None:
            yield MISSING, f"{name}: {bare(_EXCESS_REASONS.get(row[f'excess_{unit}_reason'], 'nothing was used'))}"
        else:
            text = estimate_text(row, names, TIMES if unit == "s" else ENERGIES)
            yield text, f"{name}, beyond the median GPU of the model; n = {count(row['compared'])} GPUs compared"


def _gpus_section(job: OneJob) -> Section:
    """The GPUs of a job, and where they stand in the fleet."""
    parts: list[Part] = []
    frame = job.gpus.with_columns(pl.coalesce("name", "gpu", pl.lit("(GPU not known)")).alias("what"))
    if (figure := places(frame)) is not None:
        says = "Slower than the median GPU of its model in such work, with the 95 % interval of another sitting."
        cut = f" The {PLACES} slowest are drawn." if frame.height > PLACES else ""
        parts.append(Chart("How much slower its GPUs are", says + cut, {"places": figure}))
    else:
        parts.append(
            "Nobody knows where its GPUs stand: they were not compared with others of their model. `whorl campaign` "
            "measures them."
        )
    title = "Its GPUs, and where they stand in the fleet"
    return Section(title, [*parts, _gpus_table(frame)])


def _gpus_table(frame: pl.DataFrame) -> Table:
    rows = frame.to_dicts()
    has_places = "rank" in frame.columns and not frame["rank"].is_null().all()
    columns: TableColumns = [(Column("GPU", page="gpu"), "what")]
    if frame["job_id"].n_unique() > 1:
        columns.append((Column("job", page="energy"), "job_id"))
    columns += [
        (Column("model", drops=9), "model"),
        (Column("share", "number", 2, explains="The part of the GPU that the job had.", drops=8), "share"),
        (Column("time", drops=5), lambda row: duration(row["duration_s"])),
        (JOULES, estimated(ENERGY)),
        (IDLE, idle_cell),
        (MEASURED, measured_cell),
        (Column("by", drops=6), "method"),
    ]
    if has_places:
        time, seconds = unit_of([row["excess_high_s"] for row in rows], TIMES)
        slower = ("slower_pct", "slower_low_pct", "slower_high_pct")
        columns += [
            (Column("slower %", "estimate", explains="Than the median GPU of its model."), estimated(slower)),
            (Column("rank", drops=3, explains="1 is the fastest; n: how many were compared."), _rank),
            (Column("in", drops=4, explains="The work in which they were compared."), _basis),
            (Column(f"lost GPU {time}", "estimate", drops=1), estimated(_EXCESS_S, seconds)),
        ]
    columns += [("verdicts", "verdicts"), (Column("why n/a", drops=2), lambda row: row["reason"] or "")]
    return table_of(columns, rows, most=LISTED)


def _rank(row: Row) -> Cell:
    return None if row["rank"] is None else f"{row['rank']:,} of {row['compared']:,}"


def _basis(row: Row) -> Cell:
    return "any work" if row["basis"] == ANY else row["basis"]


def _elsewhere(job: OneJob) -> Section:
    """What it would have taken elsewhere, or why nobody knows."""
    title = "What it would have taken elsewhere"
    if job.elsewhere is None:
        return Section(title, [job.why_not or MISSING])
    return Section(title, [*quote_parts(job.elsewhere), *job.elsewhere.notes])


def _beside(answer: EnergyAnswer) -> Section:
    """The other jobs that were on its nodes at that time."""
    title, others = "Other jobs beside it", answer.others
    if others is None or others.is_empty():
        return Section(title, ["None is known on its nodes at that time."])
    columns: TableColumns = [
        (Column("job", page="energy"), "job_id"),
        ("user", "user"),
        (Column("account", drops=4), "account"),
        (Column("began (UTC)", "time", drops=3), "began"),
        (Column("ended (UTC)", "time", drops=3), lambda row: row["ended"] or "now"),
        (Column("GPUs there", "count"), "gpus"),
        (Column("of these, GPUs of this job", "count"), "shared"),
    ]
    sentence = f"{many(others.height, 'job')} had GPUs on its nodes at that time."
    return Section(title, [table_of(columns, others.to_dicts(), most=_BESIDE)], sentence)


# -- what it would take elsewhere ---------------------------------------------------------------------------------


def quote_document(quoted: Quoted) -> Document:
    """What a job or a workload takes, and would take elsewhere."""
    work = quoted.work
    gpus = _some_gpus(work.gpus) + (f" of {', '.join(work.models) or 'an unknown model'}" if work.gpus else "")
    if quoted.job is not None:
        busy = "for an unknown part of it" if work.busy is None else f"{100 * work.busy:.0f} % of it"
        kind = f", workload {work.workload}" if work.workload else "" if work.use == ANY else f", mostly {work.use}"
        title, lead = f"Job {quoted.job}, here and elsewhere", f"On {gpus}: busy {busy}{kind}."
    else:
        first = quoted.quotes[0]
        title = f"What {work.workload or f'work of class {work.use}'} takes"
        lead = f"On {gpus}, always busy; measured: {first.source}, n = {first.n}."
    return Document(title, [Section(title, list(quote_parts(quoted)), lead)])


def quote_parts(quoted: Quoted) -> Iterable[Part]:
    """The options with figures as a table, then those without and why."""
    complete = [quote for quote in quoted.quotes if quote.reason is None and quote.j is not None]
    if complete:
        yield _quote_table(quoted, complete)
    reasons: dict[str, list[str]] = {}
    for quote in quoted.quotes:
        if quote not in complete:
            name = f"{quote.option} {quote.choice or ''}".rstrip()
            reasons.setdefault(quote.reason or "there is no figure", []).append(name)
    yield from (f"n/a: {', '.join(names)}: {reason}." for reason, names in reasons.items())


def _quote_table(quoted: Quoted, quotes: Sequence[Quote]) -> Table:
    rows = quote_rows(quoted, quotes)

    def choice(row: Row) -> str:
        return str(row["what"] if row["start"] is None else f"{row['what']}: {minute(row['start'])}")

    columns: TableColumns = [
        ("option", "option"),
        ("which", choice),
        (
            Column("time", "estimate", unit="s"),
            estimated(("duration_s", "duration_low_s", "duration_high_s")),
        ),
        (JOULES, estimated(ENERGY)),
    ]
    if any(row["co2e_g"] is not None for row in rows):
        columns.append((GRAMS, estimated(CO2E)))
    if any(row["cost"] is not None for row in rows):
        columns.append((Column(f"cost {quoted.settings.currency or ''}".rstrip(), "number"), "cost"))
    columns += [
        ("best", lambda row: "yes" if row["best"] else ""),
        (Column("from", "sentence", drops=1), lambda row: row["basis"] or ""),
        (Column("n", "count"), lambda row: "" if row["n"] is None else row["n"]),
    ]
    below = "best: no other option is as good in time, energy and grams. Each option changes one thing."
    return table_of(columns, rows, below=below)


def quote_rows(quoted: Quoted, quotes: Sequence[Quote] | None = None) -> list[dict[str, Any]]:
    """A row for each option, for programs and for tables; `quotes`: only these."""
    return [_quote_row(quoted, quote) for quote in (quoted.quotes if quotes is None else quotes)]


def _quote_row(quoted: Quoted, quote: Quote) -> dict[str, Any]:
    work, first = quoted.work, quote.option in (Option.AS_IT_RAN, Option.DEFAULT)
    (s, s_low, s_high), (j, j_low, j_high), (g, g_low, g_high) = map(_ends, (quote.s, quote.j, quote.g))
    return {
        "cluster": work.cluster, "job_id": quoted.job, "option": quote.option.value, "what": quote.choice,
        "energy_j": j, "low_j": j_low, "high_j": j_high, "idle_j": work.idle_j if first else None, "duration_s": s,
        "method": work.method if first else None, "reason": quote.reason, "co2e_g": g, "cost": quote.cost,
        "duration_low_s": s_low, "duration_high_s": s_high, "co2e_low_g": g_low, "co2e_high_g": g_high,
        "start": None if quote.start_ns is None else date_of_ns(quote.start_ns), "basis": quote.source, "n": quote.n,
        "best": quote.pareto,
    }  # fmt: skip


def _ends(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


# -- what the place of jobs cost ----------------------------------------------------------------------------------


def excess_document(excess: FleetExcess, store: str | Path) -> Document:
    """What slow and hungry GPUs cost: what is sure, then a table, those first that cost most."""
    title = "What slow and hungry GPUs cost"
    rows = excess.rows.to_dicts()
    if not rows:
        return Document(title, ["No job had a GPU in this time: there is no excess."])
    parts: list[Part] = []
    for total in excess.totals.iter_rows(named=True):
        parts += _of_cluster(excess, total, [row for row in rows if row["cluster"] == total["cluster"]])
    parts.append(_excess_table(excess, rows))
    for reason, n in Counter(row["excess_j_reason"] for row in rows if row["excess_j"] is None).most_common():
        parts.append(f"n/a for {many(n, 'row')}: {_EXCESS_REASONS.get(reason, reason or 'nothing was used')}.")
    words = [
        "excess: what the GPUs used beyond what the median GPU of their model would have needed for the same work; "
        "below 0 where a GPU is better. [ ]: 95 % intervals.",
        f"sure: above 0 so clearly that in {100 - 100 * FALSE:.0f} of 100 fleets no GPU is named by chance.",
    ]
    parts.append(Section(WORDS, words, folded=True))
    sections: list[Part] = [Section(title, parts, times_of(excess.booked))]
    sure = (row for row in rows if excess.by is Of.GPU and (row["excess_j_shown"] or row["excess_s_shown"]))
    if (first := next(sure, None)) is not None:
        options = in_store(store, first["cluster"])
        explain = f"whorl explain {shlex.quote(first['name'] or first['gpu'])} {options}"
        sections += ["Next, why the first of these is so:", Command(explain)]
    return Document(title, sections)


def _of_cluster(excess: FleetExcess, total: Row, rows: Sequence[Row]) -> Iterable[str]:
    """What a cluster's GPUs cost: those that are sure, then all together."""
    cluster = total["cluster"]
    if excess.by is Of.GPU:
        compared = many(sum(row["excess_j"] is not None or row["excess_s"] is not None for row in rows), "GPU")
        hungry, slow = ([row for row in rows if row[f"excess_{unit}_shown"]] for unit in "js")
        if hungry:
            yield (
                f"Cluster {cluster}: {len(hungry):,} of {compared} surely needed more energy than the median GPU of "
                f"their model: {in_unit(sum(row['excess_j'] for row in hungry))} more{_a_year(excess, hungry)}."
            )
        if slow:
            yield (
                f"Cluster {cluster}: {len(slow):,} of {compared} surely took longer than the median GPU of their "
                f"model: {gpu_time(sum(row['excess_s'] for row in slow))} more."
            )
        waits_s, waits_j = (sum(row[name] or 0.0 for row in slow) for name in ("held_s", "held_j"))
        if waits_s:
            yield (
                f"If the GPUs of a job wait for each other, others waited for {'it' if len(slow) == 1 else 'these'}: "
                f"at most {gpu_time(waits_s)} and {in_unit(waits_j)}, which is not in the table."
            )
        if not hungry and not slow:
            yield f"Cluster {cluster}: none of {compared} surely costs more than the median GPU of its model."
    if total["excess_j"] is not None:
        share = 100 * total["excess_j"] / total["energy_j"] if total["energy_j"] else None
        part = "" if share is None else f" ({estimate(share, digits=2)} % of their energy)"
        energy = f"{estimate_text(total, _EXCESS_J)}{part}"
        time = "time n/a" if total["excess_s"] is None else f"GPU time {estimate_text(total, _EXCESS_S, TIMES)}"
        yield f"All GPUs of {cluster} together, beyond the median GPU: energy {energy}; {time}."


def _a_year(excess: FleetExcess, rows: Sequence[Row]) -> str:
    """What these would cost in a year; nothing where the time is too short to tell."""
    kwh, money = ([row[name] for row in rows if row[name] is not None] for name in ("year_kwh", "year_cost"))
    if not kwh:
        return ""
    cost = f" and {number(sum(money), 3)} {excess.booked.settings.currency or ''}".rstrip() if money else ""
    return f", which is {number(sum(kwh), 3)} kWh{cost} a year at this pace"


def _excess_table(excess: FleetExcess, rows: Sequence[Row]) -> Table:
    unit, size = unit_of([row[name] for row in rows for name in ("energy_j", "excess_high_j")])
    time, seconds = unit_of([row["excess_high_s"] for row in rows], TIMES)
    names: dict[Of, TableColumns] = {
        Of.GPU: [
            (Column("GPU", page="gpu"), lambda row: row["name"] or row["gpu"] or "(GPU not known)"),
            (Column("model", drops=6), "model"),
        ],
        Of.NODE: [
            ("node", lambda row: row["node"] or "(node not known)"),
            (Column("GPUs", "count"), "gpus"),
        ],
        Of.JOB: [
            (Column("job", page="energy"), "job_id"),
            (Column("user", drops=6), "user"),
        ],
    }

    def sure(row: Row) -> str:
        return ", ".join(word for word, letter in (("energy", "j"), ("time", "s")) if row[f"excess_{letter}_shown"])

    columns: TableColumns = [
        *names[excess.by],
        (Column(f"energy {unit}", "number", drops=3), scaled("energy_j", size)),
        (Column(f"excess {unit}", "estimate"), estimated(_EXCESS_J, size)),
        (Column(f"excess GPU {time}", "estimate"), estimated(_EXCESS_S, seconds)),
        (Column("kWh a year", "number", drops=4), "year_kwh"),
    ]
    if any(row["excess_cost"] is not None for row in rows):
        money = excess.booked.settings.currency or "cost"
        columns.append((Column(f"{money} a year", "number"), "year_cost"))
    if excess.by is Of.GPU:
        columns += [
            ("sure", sure),
            (Column("verdicts", "sentence", drops=2), lambda row: row["verdicts"] or ""),
            (Column("runs", "count", drops=5), "runs"),
        ]
    return table_of(columns, rows, most=_LISTED)


# -- GPUs that jobs held without use ------------------------------------------------------------------------------


def idle_document(idle: HeldIdle) -> Document:
    """The jobs that held GPUs without use, those with most of it first, and what is not known."""
    title = "GPUs that jobs held without use"
    lead = f"{minute(idle.since)} to {minute(idle.until)} UTC"
    if idle.jobs.is_empty() and not idle.gpus_not_known:
        return Document(title, [f"No job had a GPU from {lead}."])
    jobs = idle.jobs.filter(pl.col("idle_s") > 0)
    parts: list[Part] = []
    if idle.total and idle.total["idle_s"] is not None:
        parts += _idle_total(idle, jobs.height)
    if jobs.height:
        parts.append(_idle_table(idle, jobs.to_dicts()))
    parts += _idle_not_known(idle)
    if jobs.height and idle.carbon_reason is not None and idle.cost_reason is not None:
        parts.append("For grams and money of the energy, write zone and price into energy.toml (docs/energy.md).")
    elif jobs.height and (idle.carbon_reason or idle.cost_reason):
        parts.append(f"n/a: {lacking(idle.carbon_reason or idle.cost_reason or '')}.")
    words = ["idle: a utilisation of 0 and little power, for as long as at-least= says (docs/jobs.md)."]
    return Document(title, [Section(title, [*parts, Section(WORDS, words, folded=True)], lead)])


def _idle_table(idle: HeldIdle, rows: Sequence[Row]) -> Table:
    time, seconds = unit_of([row["idle_s"] for row in rows], TIMES)
    money = idle.currency or "money"
    names = idle.gpus.filter(pl.col("idle_s") > 0).with_columns(pl.coalesce("name", "gpu").alias("what"))
    gpus = names.group_by("cluster", "job_id").agg(pl.col("what").unique().sort())
    by_job = {(cluster, job): of_job for cluster, job, of_job in gpus.iter_rows()}
    columns: TableColumns = [
        (Column("job", page="energy"), "job_id"),
        ("user", "user"),
        (Column("account", drops=7), "account"),
        (Column("GPUs", drops=1), lambda row: listed(by_job.get((row["cluster"], row["job_id"]), []))),
        (Column("held since (UTC)", drops=4), lambda row: minute(row["began"])),
        (Column(f"held GPU {time}", "number", drops=3), scaled("held_s", seconds)),
        (Column(f"idle GPU {time}", "estimate"), estimated(("idle_s", "idle_low_s", "idle_high_s"), seconds)),
        (Column("idle %", "number", 0), scaled("idle_share", 0.01)),
        (
            Column("idle now"),
            lambda row: "ended" if row["ended"] is not None else f"{row['gpus_idle_now']} of {row['gpus']}",
        ),
        (Column("readings an hour", "number", 0, drops=6), lambda row: row["readings"] / row["read_s"] * 3600),
        (
            replace(JOULES, explains="What the GPUs drew meanwhile.", drops=2),
            estimated(ENERGY),
        ),
        (Column(f"GPU time, {money}", "number", drops=1), "gpu_hour_cost"),
        (Column(f"energy, {money}", "number", drops=1), "cost"),
        (Column("CO2e g", "number", drops=5), "co2e_g"),
    ]
    return table_of(columns, rows, most=LISTED)


def _idle_total(idle: HeldIdle, jobs: int) -> Iterable[str]:
    """What all jobs left idle, and how well that is known."""
    total = idle.total
    costs = [gpu_time(total["idle_gpu_s"])] if total["idle_gpu_s"] is not None else []
    if total["energy_j"] is not None:
        costs.append(estimate_text(total, ENERGY))
    money = idle.currency or "in your currency"
    units = {"gpu_hour_cost": f"{money} of GPU time", "cost": f"{money} of energy", "co2e_g": "g CO2e"}
    costs += [f"{number(total[name], 3)} {unit}" for name, unit in units.items() if total[name] is not None]
    share = f"{number(100 * total['idle_share'], 3)} % of the time that was read"
    yield (
        f"{jobs:,} of {many(idle.jobs.height, 'job')} left GPUs idle for {duration(idle.options.least_s)} or longer: "
        f"{', '.join(costs)}, {share}."
    )
    per_hour = total["readings"] / total["read_s"] * 3600
    yield (
        f"n = {total['readings']:,} readings of {many(total['gpus_known'], 'GPU')}, {number(per_hour, 3)} an hour: "
        f"{part_of(total['read_s'], total['held_s'])} of the time that jobs held GPUs was read."
    )


def _idle_not_known(idle: HeldIdle) -> Iterable[str]:
    """What is not known of GPUs, and what is known of shared ones."""
    for reason, n in idle.gpus["reason"].drop_nulls().value_counts(sort=True).rows():
        yield f"n/a for {many(n, 'held GPU')}: {IdleReason(reason).meaning}."
    if idle.gpus_not_known:
        unknown = many(idle.gpus_not_known, "held GPU")
        yield f"n/a for {unknown}: nobody knows which GPUs these jobs had (docs/jobs.md)."
    if shared := int(idle.gpus["shared"].sum()):
        yield (
            f"{many(shared, 'held GPU')} had several holders: it counts as idle where no holder worked; while one "
            "worked, nobody knows what the others did, so their idle time is at least this."
        )
