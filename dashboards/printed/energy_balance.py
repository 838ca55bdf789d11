"""What `whorl energy reconcile` says: where the metered energy of each GPU went, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from ...analysis.energy.answers import RECONCILE_SCHEMA
from ...analysis.energy.books import CLOSE, Balance, Booked
from ...analysis.energy.carbon import NoFigure
from ...analysis.energy.nodes import NodeProblem
from ...analysis.energy.problems import JobProblem
from ...analysis.energy.sensor import PowerSource
from ...analysis.energy.series import Problem
from ..energy_words import REASONS, TIMES, lacking, unit_of
from ..table import MISSING, Table, count, many, number, second
from .energy import gpu_time, percent, times_of, with_clusters

_PARTS = ("metered_j", "attributed_j", "idle_time_j", "unattributed_j")
_LISTED = 40
_EXAMPLES = 5
_MEANS = {one.value: one.meaning for one in (*Problem, *JobProblem, *NodeProblem, *NoFigure)}

_RARE = "nothing, where it is rare: the interval allows for it"
_LOADED = "nothing: it is allowed for"
_WITH_SHARES = "import the jobs with the share of each (a column `share`), or tag jobs on the node (`whorl jobs tag`)"
_READ = "run `whorl collect` on that node, or import readings of it"
TO_DO: Mapping[str, str] = {
    Problem.GAP: "look why nothing was read then: at the log of `whorl collect`, and whether the node was up",
    Problem.STUCK: "load the driver again, or reboot the node; where it comes back, ask the vendor about the sensor",
    Problem.ZERO: "update the driver; where it stays, ask the vendor about the sensor",
    Problem.IMPOSSIBLE: _RARE,
    Problem.COUNTER_RESET: _LOADED,
    Problem.COUNTER_BACK: _RARE,
    Problem.COUNTER_WRAP: _LOADED,
    Problem.COUNTER_JUMP: _RARE,
    Problem.COUNTER_STALE: _RARE,
    Problem.DISAGREE: "nothing, where the GPU's model is known; else name it (`whorl import --model`)",
    Problem.DRIVER_RELOAD: _LOADED,
    Problem.CLOCK_STEP: "keep the clock of the node with chrony or NTP",
    Problem.TWICE: "import the files with UUIDs into a new store, and then those with numbers, which find their GPUs",
    JobProblem.BACKWARD: "mend the times of the job in what was imported, and import it again",
    JobProblem.REFUSED: "mend what the sentence names, and import it again",
    JobProblem.OVERLAP: _WITH_SHARES,
    JobProblem.OVERLAP_NO_SHARES: _WITH_SHARES,
    JobProblem.UNKNOWN_GPU: _READ,
    JobProblem.NO_TELEMETRY: _READ,
    JobProblem.GPU_NOT_KNOWN: "tag jobs on the node (`whorl jobs tag`), or import them with a column of GPUs",
    JobProblem.SHARE_NOT_KNOWN: _WITH_SHARES,
    JobProblem.RELOAD: _LOADED,
    NodeProblem.METERS_DISAGREE: "look which of them is right, and whether both are of this node alone",
    NodeProblem.BELOW_GPUS: "look whether the meter is of this node, and of all its power supplies",
}
"""What a person can do about a problem, by its code; that of `NoFigure` says it itself."""

Row = Mapping[str, Any]


def document(found: Balance) -> dict[str, Any]:
    """The document of `whorl.energy.reconcile/1`: `rows` of GPUs, and `problems`, each with a sentence."""
    return {
        "schema": RECONCILE_SCHEMA,
        "rows": found.gpus.to_dicts(),
        "problems": [
            {**row, "sentence": sentence(row, found.booked), "do": TO_DO.get(row["problem"])}
            for row in found.problems.iter_rows(named=True)
        ],
        "balances": found.balances,
        "since": found.booked.since,
        "until": found.booked.until,
        "not_read_s": found.booked.dark_s,
    }


def sentence(row: Row, booked: Booked) -> str:
    """A problem in words: of what, when, and what was done."""
    return f"{about(row)}: {_meaning(row['problem'], booked, row['cluster'])}"


def problem_rows(found: Balance) -> list[tuple[str, str, str, str | None]]:
    """The rows of `found.problems` in words: the problem, what it concerns, what it means, and what to do."""
    names = {(row["cluster"], row["gpu"]): row["name"] or row["gpu"] for row in found.gpus.iter_rows(named=True)}
    return [
        (
            row["problem"],
            about({**row, "gpu": names.get((row["cluster"], row["gpu"]), row["gpu"])}),
            _meaning(row["problem"], found.booked, row["cluster"]),
            TO_DO.get(row["problem"]),
        )
        for row in found.problems.iter_rows(named=True)
    ]


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
    when = f", {second(row['began'], 'now')} to {second(row['ended'], 'now')}" if row["began"] is not None else ""
    joules = f", {number(row['joules'])} J" if row["joules"] is not None else ""
    differ = f", {row['percent']:+.1f} %" if row["percent"] is not None else ""
    times = f", {row['n']:,} times" if row["n"] > 1 else ""
    why = f"; {row['detail']}" if row["detail"] else ""
    return f"{' '.join(of)}{when}{joules}{differ}{times}{why}"


def answer(found: Balance) -> Iterable[str | Table]:
    """The books of each GPU for people, whether they balance, and what is wrong."""
    rows = found.gpus.head(_LISTED).to_dicts()
    unit, joules = unit_of(found.gpus["metered_j"])
    time, seconds = unit_of(found.gpus["gaps_s"], TIMES)
    body = [
        [
            row["name"] or row["gpu"],
            *(number(row[name] / joules) if row[name] is not None else MISSING for name in _PARTS),
            _rest(row),
            number(None if row["gaps_s"] is None else row["gaps_s"] / seconds, 2),
            count(row["problems"]),
        ]
        for row in rows
    ]
    table = Table(
        ("GPU", f"metered {unit}", "= of jobs", "+ idle", "+ unattributed", "rest J", f"gaps {time}", "problems"),
        body,
        tuple(range(1, 8)),
        title=times_of(found.booked),
        leaves=(5, 6),
    )
    yield with_clusters(table, rows)
    if found.gpus.height > _LISTED:
        yield f"and {found.gpus.height - _LISTED:,} more: --json has all"
    yield ""
    yield from sentences(found)
    yield ""
    yield from _problems(found)


def title(found: Balance) -> str:
    """What stands above the sentences on a page."""
    if not found.gpus["metered_j"].count():
        return "The books"
    return "The books balance" if found.balances else "The books do not balance"


def sentences(found: Balance) -> Iterable[str]:
    """Whether the books balance, and what of them is known within bounds only."""
    unit, joules = unit_of(found.gpus["metered_j"])
    totals = [number(float(found.gpus[name].sum()) / joules) for name in _PARTS]
    counted = found.gpus["metered_j"].count()
    said = "the books balance" if found.balances else f"THE BOOKS DO NOT BALANCE to {CLOSE:g}: please report it"
    if counted:
        yield (
            f"{many(counted, 'GPU')}: {totals[0]} {unit} metered = {totals[1]} of jobs + "
            f"{totals[2]} idle + {totals[3]} unattributed; {said}"
        )
    else:
        yield "n/a: the energy of no GPU is known, so there is nothing to balance"
    measured_s, gpu_s = (float(found.gpus[name].sum()) for name in ("measured_s", "gpu_s"))
    yield f"readings cover {percent(measured_s, gpu_s)} % of the {gpu_time(gpu_s)} counted"
    gaps = float(found.gpus["gaps_j"].sum())
    if gaps > CLOSE * float(found.gpus["metered_j"].sum()):  # else it is the rounding of the arithmetic
        yield f"of it {number(gaps / joules)} {unit} in gaps of the readings: these are known within bounds only"
    for reason, n in found.gpus["reason"].drop_nulls().value_counts(sort=True).iter_rows():
        yield f"n/a for {many(n, 'GPU')}: {REASONS.get(reason, reason)}"
    of_modules = int((found.gpus["power_source"] == PowerSource.GPU_POWER.value).sum())
    if of_modules:
        yield f"energy of {many(of_modules, 'GPU')} by {PowerSource.GPU_POWER.meaning}"
    if found.booked.dark_s > 0:
        guess = number(float(found.gpus["not_read_j"].sum()) / joules)
        yield (
            f"not counted: {gpu_time(found.booked.dark_s)} with neither readings nor a job; a guess "
            f"between what the GPUs draw without work and their power limit would be {guess} {unit}"
        )


def _rest(row: Row) -> str:
    """What is left of a GPU's books, J: 0 where only the rounding of the arithmetic is."""
    if row["difference_j"] is None:
        return MISSING
    return number(0.0 if abs(row["difference_j"]) <= CLOSE * abs(row["metered_j"]) else row["difference_j"], 2)


def problem_kinds(found: Balance) -> list[tuple[str, str, str | None, str, str | None]]:
    """The kinds of problems, those with most rows first: the problem, how often, on how many GPUs, what it means, and
    what to do."""
    gpus = pl.struct("cluster", "gpu").filter(pl.col("gpu").is_not_null()).n_unique().alias("gpus")
    kinds = found.problems.group_by("problem", maintain_order=True).agg(pl.len(), pl.col("n").sum(), gpus)
    return [
        (kind, count(n), count(on) if on else None, _meaning(kind, found.booked), TO_DO.get(kind))
        for kind, _, n, on in kinds.sort("len", descending=True, maintain_order=True).iter_rows()
    ]


def _problems(found: Balance) -> Iterable[str | Table]:
    rows = found.problems
    if rows.is_empty():
        yield "no problems were found in the readings and jobs"
        return
    names = {(row["cluster"], row["gpu"]): row["name"] or row["gpu"] for row in found.gpus.iter_rows(named=True)}
    for kind, times, gpus, means, do in problem_kinds(found):
        own = rows.filter(pl.col("problem") == kind)
        on = "" if gpus is None else f" on {gpus} GPU{'' if gpus == '1' else 's'}"
        yield f"{kind}, {times} time{'' if times == '1' else 's'}{on}: {means}"
        if do is not None:
            yield f"  do: {do}"
        for one in own.head(_EXAMPLES).iter_rows(named=True):
            yield f"  {about({**one, 'gpu': names.get((one['cluster'], one['gpu']), one['gpu'])})}"
        if own.height > _EXAMPLES:
            yield f"  and {own.height - _EXAMPLES:,} more: --json has all"
