"""What `whorl energy --job` says: one job's energy, its parts, and what other figures there are of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...analysis.energy.answers import EnergyAnswer
from ...analysis.energy.idle import IdleSource
from ...analysis.energy.one_job import OneJob
from ...analysis.energy.quote import Quoted
from ..energy_words import REASONS, idle_share, unit_of, with_interval
from ..table import MISSING, Table, many, number, second
from .energy import carbon, costs_of, percent, sensor_error, some_gpus
from .energy import document as energy_document
from .energy_excess import EXCESS_REASONS, excess_interval
from .energy_quote import as_rows, options

Row = Mapping[str, Any]


def document(found: OneJob) -> dict[str, Any]:
    """The document of `whorl.energy/1` of one job."""
    of = energy_document(found.answer)
    if found.elsewhere is None:
        return of
    gpus = found.gpus.drop("verdicts").to_dicts()
    return {**of, "gpus": gpus, "what_if": as_rows(found.elsewhere), "excess": found.elsewhere.lost}


def answer(found: EnergyAnswer, elsewhere: Quoted) -> Iterable[str | Table]:
    """A job for people: its energy and what it is made of, each of its GPUs, and what it would have taken elsewhere."""
    for row in found.rows.iter_rows(named=True):
        yield from _of(found, row)
        yield ""
    yield from lost(elsewhere)
    yield ""
    yield "what if: the same job"
    yield ""
    yield from options(elsewhere)
    yield ""
    yield f"[95 %] allows for power sensors with {sensor_error(found.booked)}"
    yield from carbon(found)


def lost(elsewhere: Quoted) -> Iterable[str]:
    """What its GPUs took beyond the median GPUs of their models, or why that is not known."""
    row = elsewhere.lost
    if row is None:
        return
    known = [excess_interval(row, of) for of in "sj" if row[f"excess_{of}"] is not None]
    if known:
        yield (
            f"lost to hardware: {', '.join(known)}: beyond what the median GPU of the model would have taken for the "
            f"same work; {row['compared']:,} GPUs compared"
        )
    for of, what in (("s", "time"), ("j", "energy")):
        if row[f"excess_{of}"] is None:
            yield f"{what} lost to hardware: n/a: {EXCESS_REASONS.get(row[f'excess_{of}_reason'], 'nothing was used')}"


def said(row: Row) -> str:
    """Whose a job was, when it ran, on what."""
    whose = f" of {row['user']}" if row["user"] else ""
    whose += f" ({row['account']})" if row["account"] else ""
    state = f", {row['state']}" if row["state"] else ""
    runs = f", {row['allocations']} runs" if row["allocations"] > 1 else ""
    return (
        f"job {row['job_id']}{whose}{state}: {second(row['began'])} to {second(row['ended'], 'now')} (UTC){runs}, "
        f"{lasted(row['duration_s'])} on {some_gpus(row['gpus'])}"
    )


def _of(found: EnergyAnswer, row: Row) -> Iterable[str | Table]:
    yield said(row)
    yield ""
    yield Table(("of the job", "figure", "which is"), [list(line) for line in lines(found, row)], wrapped=(2,))
    yield ""
    assert found.gpus is not None
    mine = [one for one in found.gpus.iter_rows(named=True) if one["job_id"] == row["job_id"]]
    unit, joules = unit_of([one["high_j"] for one in mine])
    rows = [
        [
            one["name"] or one["gpu"] or MISSING,
            one["model"] or MISSING,
            number(one["share"], 3),
            lasted(one["duration_s"]),
            *with_interval(one, joules),
            idle_share(one),
            percent(one["measured_s"], one["gpu_s"]),
            one["method"] or MISSING,
        ]
        for one in mine
    ]
    yield Table(
        ("GPU", "model", "share", "time", unit, "[95 %]", "idle %", "measured %", "by"),
        rows,
        (2, 3, 4, 6, 7),
        leaves=(1,),
    )


def lines(found: EnergyAnswer, row: Row) -> Iterable[tuple[str, str, str]]:
    """Name, figure, and what to know about it: of the energy, the grams and the money."""
    yield from energy_lines(found, row)
    building = ["of the building"] if found.booked.settings.pue else []
    more = [*(["of the rest of the nodes"] if row["host_j"] is not None else []), *building]
    for name, head in costs_of(found):
        what, _, in_ = head.partition(" ")
        low, high = (number(row[one]) for one in _ENDS[name])
        yield what, f"{number(row[name])} {in_} [{low}, {high}]", " and ".join(["of that energy", *more])


def energy_lines(found: EnergyAnswer, row: Row) -> Iterable[tuple[str, str, str]]:
    """The same of the energy alone. `row`: a row of the answer, or its total."""
    unit, joules = unit_of([row["high_j"]])
    if row["energy_j"] is None:
        yield "energy", MISSING, REASONS.get(row["reason"], row["reason"] or "")
    else:
        energy, bounds = with_interval(row, joules)
        measured = percent(row["measured_s"], row["gpu_s"])
        yield (
            "energy",
            f"{energy} {unit} {bounds}",
            f"by {row['method']}; {measured} % of the time has readings" if row["method"] else "it took no time",
        )
    if row["idle_share"] is not None:
        whole = (
            "of its GPUs that were ever seen idle"
            if row["idle_j"] is None
            else f"{number(row['idle_j'] / joules)} {unit} that its GPUs would have drawn without work"
        )
        yield "idle share", f"{idle_share(row)} %", whole
    elif (most := idle_share(row)) != MISSING:
        yield "idle share", f"{most} %", IdleSource(row["idle_source"]).meaning
    if row.get("scheduler_j") is not None:
        twice = (
            f"; {many(found.beside, 'other job')} on its nodes at that time count the same energy again"
            if found.beside
            else ""
        )
        yield (
            "scheduler",
            f"{number(row['scheduler_j'] / joules)} {unit}",
            f"its accounting, of whole nodes with processors and memory{twice}",
        )


_ENDS = {"co2e_g": ("co2e_low_g", "co2e_high_g"), "cost": ("cost_low", "cost_high")}


def lasted(seconds: float) -> str:
    """A duration for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
