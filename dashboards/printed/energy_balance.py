"""What `whorl energy reconcile` says: where the metered energy of each GPU went, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ...analysis.energy.attributing import JobProblem
from ...analysis.energy.balance import CLOSE, SCHEMA, Balance
from ...analysis.energy.booked import Booked
from ...analysis.energy.carbon.billing import NoFigure, lacking
from ...analysis.energy.metering import Problem
from ..table import MISSING, Table, count, many, number
from .energy import REASONS, TIMES, gpu_time, unit_of

_LISTED = 40
_EXAMPLES = 5
_MEANS = {one.value: one.meaning for one in (*Problem, *JobProblem, *NoFigure)}

Row = Mapping[str, Any]


def document(found: Balance) -> dict[str, Any]:
    """The document of `whorl.energy.reconcile/1`: `rows` of GPUs, and `problems`, each with a sentence."""
    return {
        "schema": SCHEMA,
        "rows": found.gpus.to_dicts(),
        "problems": [{**row, "sentence": sentence(row, found.booked)} for row in found.problems.iter_rows(named=True)],
        "balances": found.balances,
        "since": found.booked.since,
        "until": found.booked.until,
        "not_read_s": found.booked.dark_s,
    }


def sentence(row: Row, booked: Booked) -> str:
    """A problem in words: of what, when, and what was done."""
    return f"{about(row)}: {_meaning(row['problem'], booked, row['cluster'])}"


def _meaning(problem: str, booked: Booked, cluster: str | None = None) -> str:
    if problem == NoFigure.NO_FACTOR:
        return lacking(problem, booked.zones_without_factor(cluster))
    return str(_MEANS.get(problem, problem))


def about(row: Row) -> str:
    """What a problem concerns."""
    places = ((what, row[what.lower()]) for what in ("GPU", "node", "cluster"))
    of = [f"{what} {name}" for what, name in places if name][:1]
    of += [f"job {row['job_id']}"] if row["job_id"] else []
    of += [f"and job {row['other_job_id']}"] if row["other_job_id"] else []
    when = f", {_at(row['began'])} to {_at(row['ended'])}" if row["began"] is not None else ""
    joules = f", {number(row['joules'])} J" if row["joules"] is not None else ""
    differ = f", {row['percent']:+.1f} %" if row["percent"] is not None else ""
    times = f", {row['n']:,} times" if row["n"] > 1 else ""
    why = f"; {row['detail']}" if row["detail"] else ""
    return f"{' '.join(of)}{when}{joules}{differ}{times}{why}"


def answer(found: Balance) -> Iterable[str | Table]:
    """The books of each GPU for people, whether they balance, and what is wrong."""
    rows = found.gpus.to_dicts()
    unit, joules = unit_of([row["metered_j"] for row in rows])
    names = ("metered_j", "attributed_j", "idle_time_j", "unattributed_j")
    time, seconds = unit_of([row["gaps_s"] for row in rows], TIMES, 1.0)
    body = [
        [
            row["name"] or row["gpu"],
            *(number(row[name] / joules) if row[name] is not None else MISSING for name in names),
            _rest(row),
            number(None if row["gaps_s"] is None else row["gaps_s"] / seconds, 2),
            count(row["problems"]),
        ]
        for row in rows[:_LISTED]
    ]
    yield Table(
        ("GPU", f"metered {unit}", "= of jobs", "+ idle", "+ unattributed", "rest J", f"gaps {time}", "problems"),
        body,
        tuple(range(1, 8)),
        title=f"{found.booked.since:%Y-%m-%d %H:%M:%S} to {found.booked.until:%Y-%m-%d %H:%M:%S} UTC",
        leaves=(5, 6),
    )
    if len(rows) > _LISTED:
        yield f"and {len(rows) - _LISTED:,} more: --json has all"
    yield ""
    totals = [number(sum(row[name] or 0.0 for row in rows) / joules) for name in names]
    said = "the books balance" if found.balances else f"THE BOOKS DO NOT BALANCE to {CLOSE:g}: please report it"
    known = sum(row["metered_j"] is not None for row in rows)
    yield (
        f"{many(known, 'GPU')}: {totals[0]} {unit} metered = {totals[1]} of jobs + {totals[2]} idle + {totals[3]} "
        f"unattributed; {said}"
    )
    gaps = sum(row["gaps_j"] or 0.0 for row in rows)
    if any(row["gaps_s"] for row in rows):
        yield f"of it {number(gaps / joules)} {unit} in gaps of the readings: these are known within bounds only"
    for reason, n in Counter(row["reason"] for row in rows if row["reason"]).most_common():
        yield f"n/a for {many(n, 'GPU')}: {REASONS.get(reason, reason)}"
    if found.booked.dark_s > 0:
        guess = number(float(found.gpus["not_read_j"].sum()) / joules)
        yield (
            f"not counted: {gpu_time(found.booked.dark_s)} with neither readings nor a job; a guess "
            f"between what the GPUs draw without work and their power limit would be {guess} {unit}"
        )
    yield ""
    yield from _problems(found)


def _rest(row: Row) -> str:
    """What is left of a GPU's books, J: 0 where only the rounding of the arithmetic is."""
    if row["difference_j"] is None:
        return MISSING
    return number(0.0 if abs(row["difference_j"]) <= CLOSE * abs(row["metered_j"]) else row["difference_j"], 2)


def _problems(found: Balance) -> Iterable[str | Table]:
    rows = found.problems.to_dicts()
    if not rows:
        yield "no problems were found in the readings and jobs"
        return
    names = {(row["cluster"], row["gpu"]): row["name"] or row["gpu"] for row in found.gpus.iter_rows(named=True)}
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row["problem"], []).append(row)
    for kind, of_kind in sorted(kinds.items(), key=lambda one: -len(one[1])):
        gpus = len({(row["cluster"], row["gpu"]) for row in of_kind if row["gpu"]})
        where = f" on {many(gpus, 'GPU')}" if gpus else ""
        yield f"{kind}, {many(sum(row['n'] for row in of_kind), 'time')}{where}: {_meaning(kind, found.booked)}"
        for one in of_kind[:_EXAMPLES]:
            yield f"  {about({**one, 'gpu': names.get((one['cluster'], one['gpu']), one['gpu'])})}"
        if len(of_kind) > _EXAMPLES:
            yield f"  and {len(of_kind) - _EXAMPLES:,} more: --json has all"


def _at(when: datetime | None) -> str:
    return "now" if when is None else f"{when:%Y-%m-%d %H:%M:%S}"
