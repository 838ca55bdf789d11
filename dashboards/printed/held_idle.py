"""What `whorl jobs idle` says: which GPUs jobs held and did not use, for how long, and what that cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ...analysis.energy.held_idle import SCHEMA, HeldIdle, IdleReason
from ..energy_words import ENERGIES, TIMES, lacking, unit_of
from ..table import MISSING, Table, many, minute, number

_LISTED = 40
_NAMED = 4
"""GPUs of a job that are named."""
_LEAVES = ("account", "readings an hour", "[bounds]", "held since", "grams CO2e", "[95 %]", "GPUs")
"""Columns for which a narrow terminal has no room, the first of them first."""

Row = Mapping[str, Any]


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
    yield from _sentences(idle_gpus, idle)


def _table(idle_gpus: HeldIdle, rows: Sequence[Row]) -> Table:
    time, seconds = unit_of([row["idle_s"] for row in rows], TIMES)
    energy, joules = unit_of([row["high_j"] for row in rows], ENERGIES)
    header = ["job", "user", "account", "GPUs", "held since", f"held {time}", f"idle {time}", "[bounds]", "idle %",
              "idle now", "readings an hour", energy, "[95 %]"]  # fmt: skip
    money = [(name, title) for name, title in (("gpu_hour_cost", "GPU time"), ("cost", "energy")) if _any(rows, name)]
    header += [f"{title}, {idle_gpus.currency or 'money'}" for _, title in money]
    header += ["grams CO2e"] if _any(rows, "co2e_g") else []
    cells = []
    for row in rows:
        bounds = f"[{number(row['idle_low_s'] / seconds, 3)}, {number(row['idle_high_s'] / seconds, 3)}]"
        line = [row["job_id"] or MISSING, row["user"] or MISSING, row["account"] or MISSING, _gpus(idle_gpus, row)]
        line += [minute(row["began"]), number(row["held_s"] / seconds, 3), number(row["idle_s"] / seconds, 3), bounds]
        line += [number(100 * row["idle_share"], 3), _idle_now(row)]
        line += [number(row["readings"] / row["read_s"] * 3600, 3), number(_part(row["energy_j"], joules))]
        line += [MISSING if row["low_j"] is None else f"[{', '.join(_ends(row, joules))}]"]
        line += [number(row[name], 3) for name, _ in money]
        line += [number(row["co2e_g"], 3)] if _any(rows, "co2e_g") else []
        cells.append(line)
    right = [place for place, name in enumerate(header) if place > 4 and not name.startswith("[")]
    title = f"{minute(idle_gpus.since)} to {minute(idle_gpus.until)} UTC: GPUs that jobs held without use"
    return Table(header, cells, right, title=title, leaves=[header.index(name) for name in _LEAVES if name in header])


def _gpus(idle_gpus: HeldIdle, row: Row) -> str:
    same = (pl.col("job_id").eq_missing(row["job_id"])) & pl.col("cluster").eq_missing(row["cluster"])
    idle = idle_gpus.gpus.filter(same & (pl.col("idle_s") > 0))
    names = idle.select(pl.coalesce("name", "gpu"))["name"].unique().sort().to_list()
    further = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join(names[:_NAMED] + further)


def _sentences(idle_gpus: HeldIdle, idle: pl.DataFrame) -> Iterable[str]:
    total, options = idle_gpus.total, idle_gpus.options
    least = f"{options.least_s / 60:g} min" if options.least_s >= 60 else f"{options.least_s:g} s"
    rule = f"idle: a utilisation of 0 and little power for at least {least} (docs/jobs.md)"
    if total and total["idle_s"] is not None:
        share = total["idle_share"]
        costs = [number(total["idle_gpu_s"] / 3600, 3) + " GPU hours"] if total["idle_gpu_s"] is not None else []
        if total["energy_j"] is not None:
            unit, joules = unit_of([total["high_j"]], ENERGIES)
            costs.append(f"{number(total['energy_j'] / joules)} {unit} [95 %: {' to '.join(_ends(total, joules))}]")
        for name, says in (("gpu_hour_cost", "of GPU time"), ("cost", "of energy")):
            if total[name] is not None:
                costs.append(f"{number(total[name], 3)} {idle_gpus.currency or 'in your currency'} {says}")
        if total["co2e_g"] is not None:
            costs.append(f"{number(total['co2e_g'], 3)} g CO2e")
        yield (
            f"{many(idle.height, 'job')} of {idle_gpus.jobs.height:,} left GPUs idle: {', '.join(costs)}, "
            f"{number(100 * share, 3)} % of the time that was read; {rule}"
        )
        per_hour = total["readings"] / total["read_s"] * 3600
        yield (
            f"n {total['readings']:,} readings of {many(total['gpus_known'], 'GPU')}, {number(per_hour, 3)} an hour: "
            f"{number(100 * total['read_s'] / total['held_s'], 3)} % of the time that jobs held GPUs was read"
        )
    reasons = idle_gpus.gpus["reason"].drop_nulls().value_counts(sort=True).rows()
    for reason, count in reasons:
        yield f"n/a for {many(count, 'held GPU')}: {IdleReason(reason).meaning}"
    if idle_gpus.gpus_not_known:
        unknown = many(idle_gpus.gpus_not_known, "held GPU")
        yield f"n/a for {unknown}: nobody knows which GPUs these jobs had (docs/jobs.md)"
    shared = int(idle_gpus.gpus["shared"].sum())
    if shared:
        yield (
            f"{many(shared, 'held GPU')} had several holders: it counts as idle where no holder worked; while one "
            "worked, nobody knows what the others did, so their idle time is at least this"
        )
    if not idle.height:
        return
    if idle_gpus.carbon_reason is not None and idle_gpus.cost_reason is not None:
        yield "for grams and money of the energy, write zone and price into energy.toml (docs/carbon.md)"
    elif idle_gpus.carbon_reason or idle_gpus.cost_reason:
        yield f"n/a: {lacking(idle_gpus.carbon_reason or idle_gpus.cost_reason or '')}"


def _idle_now(row: Row) -> str:
    return "ended" if row["ended"] is not None else f"{row['gpus_idle_now']} of {row['gpus']}"


def _any(rows: Sequence[Row], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def _part(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _ends(row: Row, joules: float) -> tuple[str, str]:
    return number(row["low_j"] / joules), number(row["high_j"] / joules)
