"""What `whorl jobs idle` says: which GPUs jobs held and did not use, for how long, and what that cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from ...analysis.energy.held_idle import SCHEMA, HeldIdle, IdleReason
from ..energy_table import EnergyColumn, Row, text, text_table, with_ends
from ..energy_words import ENERGY, TIMES, interval, lacking, unit_of
from ..table import MISSING, Table, many, minute, number

_LISTED = 40
_NAMED = 4
"""GPUs of a job that are named."""


def document(idle_gpus: HeldIdle) -> dict[str, Any]:
    """The document of `whorl.jobs_idle/1`."""
    return {
        "schema": SCHEMA,
        "rows": idle_gpus.jobs.to_dicts(),
        "gpus": idle_gpus.gpus.to_dicts(),
        "total": dict(idle_gpus.total) or None,
        "gpus_not_known": idle_gpus.gpus_not_known,
        "since": idle_gpus.since,
        "until": idle_gpus.until,
        "least_s": idle_gpus.options.least_s,
        "price": idle_gpus.options.price,
        "currency": idle_gpus.currency,
        "co2e_reason": idle_gpus.carbon_reason,
        "cost_reason": idle_gpus.cost_reason,
    }


def answer(idle_gpus: HeldIdle) -> Iterable[str | Table]:
    """The jobs that held GPUs without use, those with most of it first, and what is not known."""
    if idle_gpus.jobs.is_empty() and not idle_gpus.gpus_not_known:
        yield f"no job had a GPU from {minute(idle_gpus.since)} to {minute(idle_gpus.until)} UTC"
        return
    idle = idle_gpus.jobs.filter(pl.col("idle_s") > 0)
    if idle.height:
        yield _table(idle_gpus, idle.head(_LISTED).to_dicts())
        if idle.height > _LISTED:
            yield f"and {idle.height - _LISTED:,} more jobs: --json has all"
        yield ""
    if idle_gpus.total and idle_gpus.total["idle_s"] is not None:
        yield from _total(idle_gpus, idle.height)
    yield from _not_known(idle_gpus)
    if not idle.height:
        return
    if idle_gpus.carbon_reason is not None and idle_gpus.cost_reason is not None:
        yield "for grams and money of the energy, write zone and price into energy.toml (docs/energy.md)"
    elif idle_gpus.carbon_reason or idle_gpus.cost_reason:
        yield f"n/a: {lacking(idle_gpus.carbon_reason or idle_gpus.cost_reason or '')}"


def _table(idle_gpus: HeldIdle, rows: Sequence[Row]) -> Table:
    time, seconds = unit_of([row["idle_s"] for row in rows], TIMES)
    energy, joules = unit_of([row["high_j"] for row in rows])
    money = idle_gpus.currency or "money"

    def figure(head: str, name: str, scale: float = 1.0, **options: Any) -> EnergyColumn:
        return EnergyColumn(head, lambda row: number(None if row[name] is None else row[name] / scale, 3), **options)

    def gpus(row: Row) -> str:
        same = (pl.col("job_id").eq_missing(row["job_id"])) & pl.col("cluster").eq_missing(row["cluster"])
        idle = idle_gpus.gpus.filter(same & (pl.col("idle_s") > 0))
        names = idle.select(pl.coalesce("name", "gpu"))["name"].unique().sort().to_list()
        further = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return ", ".join(names[:_NAMED] + further)

    def idle_at_end(row: Row) -> str:
        return "ended" if row["ended"] is not None else f"{row['gpus_idle_now']} of {row['gpus']}"

    bounds = ("idle_s", "idle_low_s", "idle_high_s")
    value, ends = with_ends(energy, lambda row: interval(row, ENERGY, joules))
    columns = [
        text("job", lambda row: row["job_id"] or MISSING),
        text("user", lambda row: row["user"] or MISSING),
        text("account", lambda row: row["account"] or MISSING, leaves=1),
        text("GPUs", gpus, leaves=7),
        text("held since", lambda row: minute(row["began"]), leaves=4),
        figure(f"held {time}", "held_s", seconds),
        figure(f"idle {time}", "idle_s", seconds),
        text("[bounds]", lambda row: interval(row, bounds, seconds, 3)[1], leaves=3),
        figure("idle %", "idle_share", 0.01),
        EnergyColumn("idle now", idle_at_end),
        EnergyColumn("readings an hour", lambda row: number(row["readings"] / row["read_s"] * 3600, 3), leaves=2),
        value,
        EnergyColumn(ends.title, ends.cell, right=False, leaves=6),
        figure(f"GPU time, {money}", "gpu_hour_cost"),
        figure(f"energy, {money}", "cost"),
        figure("grams CO2e", "co2e_g", leaves=5),
    ]
    priced = [any(row[name] is not None for row in rows) for name in ("gpu_hour_cost", "cost", "co2e_g")]
    columns = columns[:-3] + [column for column, is_priced in zip(columns[-3:], priced, strict=True) if is_priced]
    title = f"{minute(idle_gpus.since)} to {minute(idle_gpus.until)} UTC: GPUs that jobs held without use"
    return text_table(columns, rows, title, clusters=False)


def _total(idle_gpus: HeldIdle, jobs: int) -> Iterable[str]:
    """What all jobs left idle, and how well that is known."""
    total, least_s = idle_gpus.total, idle_gpus.options.least_s
    least = f"{least_s / 60:g} min" if least_s >= 60 else f"{least_s:g} s"
    costs = [number(total["idle_gpu_s"] / 3600, 3) + " GPU hours"] if total["idle_gpu_s"] is not None else []
    if total["energy_j"] is not None:
        unit, joules = unit_of([total["high_j"]])
        energy, ends = interval(total, ENERGY, joules)
        costs.append(f"{energy} {unit} [95 %: {ends[1:-1].replace(', ', ' to ')}]")
    money = idle_gpus.currency or "in your currency"
    units = {"gpu_hour_cost": f"{money} of GPU time", "cost": f"{money} of energy", "co2e_g": "g CO2e"}
    costs += [f"{number(total[name], 3)} {unit}" for name, unit in units.items() if total[name] is not None]
    yield (
        f"{many(jobs, 'job')} of {idle_gpus.jobs.height:,} left GPUs idle: {', '.join(costs)}, "
        f"{number(100 * total['idle_share'], 3)} % of the time that was read; idle: a utilisation of 0 and little "
        f"power for at least {least} (docs/jobs.md)"
    )
    per_hour = total["readings"] / total["read_s"] * 3600
    yield (
        f"n {total['readings']:,} readings of {many(total['gpus_known'], 'GPU')}, {number(per_hour, 3)} an hour: "
        f"{number(100 * total['read_s'] / total['held_s'], 3)} % of the time that jobs held GPUs was read"
    )


def _not_known(idle_gpus: HeldIdle) -> Iterable[str]:
    """What is not known of GPUs, and what is known of shared ones."""
    for reason, n in idle_gpus.gpus["reason"].drop_nulls().value_counts(sort=True).rows():
        yield f"n/a for {many(n, 'held GPU')}: {IdleReason(reason).meaning}"
    if idle_gpus.gpus_not_known:
        unknown = many(idle_gpus.gpus_not_known, "held GPU")
        yield f"n/a for {unknown}: nobody knows which GPUs these jobs had (docs/jobs.md)"
    if shared := int(idle_gpus.gpus["shared"].sum()):
        yield (
            f"{many(shared, 'held GPU')} had several holders: it counts as idle where no holder worked; while one "
            "worked, nobody knows what the others did, so their idle time is at least this"
        )
