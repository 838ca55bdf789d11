"""Whether the books of energy balance, what is wrong with readings and jobs, and what power sensors are wrong by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import polars as pl

from ...analysis.energy.answers import By, EnergySummary
from ...analysis.energy.books import CLOSE, Balance, Booked
from ...analysis.energy.calibration import Calibration
from ...analysis.energy.carbon import NoFigure
from ...analysis.energy.claims import JobProblem
from ...analysis.energy.nodes import NodeProblem
from ...analysis.energy.sensor import PowerSource, Problem
from ...store.power_sensors import ErrorSource
from ...store.vocabulary import CalibrationFinding
from ..document import Cell, Column, Document, Part, Section, Table, TableColumns
from ..words import TIMES, in_unit, many, minute, number, part_of, second, unit_of
from .energy import (
    CALLED,
    LISTED,
    REASONS,
    Row,
    days_chart,
    gpu_time,
    headline,
    lacking,
    largest_chart,
    remarks,
    rows_table,
    scaled,
    table_of,
    terms,
    times_of,
)

PARTS = ("metered_j", "attributed_j", "idle_time_j", "unattributed_j")
"""The columns of a GPU's books: the whole, and what it is the sum of."""
_EXAMPLES, _MOST_PROBLEMS, _BOARDS, _REFUSED = 5, 2_000, 64, 5
_PROBLEMS = {code.value: code.meaning for code in (*Problem, *JobProblem, *NodeProblem, *NoFigure)}
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


# -- the books ----------------------------------------------------------------------------------------------------


def balance_document(balance: Balance) -> Document:
    """The books of each GPU, whether they balance, and what is wrong."""
    title = _balance_title(balance)
    parts = [*balance_sentences(balance), _gpus_table(balance), *_problem_parts(balance)]
    return Document(title, [Section(title, parts, times_of(balance.booked))])


def balance_section(balance: Balance) -> Section:
    """Whether the books balance, and what is wrong with readings and jobs."""
    return Section(_balance_title(balance), [*balance_sentences(balance), *_problem_parts(balance)])


def _balance_title(balance: Balance) -> str:
    if not balance.gpus["metered_j"].count():
        return "The books"
    return "The books balance" if balance.balances else "The books do not balance"


def _problem_parts(balance: Balance) -> list[Part]:
    if balance.problems.is_empty():
        return ["No problems were found in the readings and jobs."]
    return [_kinds_table(balance), _examples_table(balance)]


def balance_sentences(balance: Balance) -> Iterable[str]:
    """Where the metered energy went, and what of it is known within bounds only."""
    gpus, dark_s = balance.gpus, balance.booked.dark_s
    unit, size = unit_of([float(gpus["metered_j"].sum())])
    sums = {name: float(gpus[name].sum()) for name in (*PARTS, "measured_s", "gpu_s", "gaps_j", "not_read_j")}
    if n := gpus["metered_j"].count():
        metered, jobs, idle, unattributed = (number(sums[name] / size) for name in PARTS)
        result = "the books balance" if balance.balances else f"THE BOOKS DO NOT BALANCE to {CLOSE:g}: please report it"
        yield (
            f"{many(n, 'GPU')}: {metered} {unit} metered = {jobs} of jobs + {idle} idle + {unattributed} unattributed; "
            f"{result}."
        )
    else:
        yield "n/a: the energy of no GPU is known, so there is nothing to balance."
    yield f"Readings cover {part_of(sums['measured_s'], sums['gpu_s'])} of the {gpu_time(sums['gpu_s'])} counted."
    if sums["gaps_j"] > CLOSE * sums["metered_j"]:  # else it is the rounding of the arithmetic
        yield f"Of it {in_unit(sums['gaps_j'])} in gaps of the readings: these are known within bounds only."
    for reason, n in gpus["reason"].drop_nulls().value_counts(sort=True).iter_rows():
        yield f"n/a for {many(n, 'GPU')}: {REASONS.get(reason, reason)}."
    if n := int((gpus["power_source"] == PowerSource.GPU_POWER.value).sum()):
        yield f"Energy of {many(n, 'GPU')} by {PowerSource.GPU_POWER.meaning}."
    if dark_s > 0:
        yield (
            f"Not counted: {gpu_time(dark_s)} with neither readings nor a job; a guess between what the GPUs draw "
            f"without work and their power limit would be {in_unit(sums['not_read_j'])}."
        )


def _gpus_table(balance: Balance) -> Table:
    """The books of each GPU."""

    def rest(row: Row) -> Cell:
        """What is left of a GPU's books, J: 0 where only the rounding of the arithmetic is."""
        if row["difference_j"] is None:
            return None
        return 0.0 if abs(row["difference_j"]) <= CLOSE * abs(row["metered_j"]) else row["difference_j"]

    gpus = balance.gpus
    (unit, size), (time, seconds) = unit_of(gpus["metered_j"]), unit_of(gpus["gaps_s"], TIMES)
    heads = (f"metered {unit}", "= of jobs", "+ idle", "+ unattributed")
    columns: TableColumns = [
        (Column("GPU", page="gpu"), lambda row: row["name"] or row["gpu"]),
        *((Column(head, "number"), scaled(name, size)) for head, name in zip(heads, PARTS, strict=True)),
        (Column("rest J", "number", drops=2), rest),
        (Column(f"gaps {time}", "number", drops=1), scaled("gaps_s", seconds)),
        (Column("problems", "count"), "problems"),
    ]
    return table_of(columns, gpus.to_dicts(), most=LISTED)


def _kinds_table(balance: Balance) -> Table:
    """The kinds of problems, those with most rows first, what each means and what to do."""
    gpus = pl.struct("cluster", "gpu").filter(pl.col("gpu").is_not_null()).n_unique().alias("gpus")
    kinds = balance.problems.group_by("problem", maintain_order=True).agg(pl.len(), pl.col("n").sum(), gpus)
    rows = kinds.sort("len", descending=True, maintain_order=True).to_dicts()
    columns: TableColumns = [
        ("problem", "problem"),
        (Column("times", "count"), "n"),
        (Column("GPUs", "count"), lambda row: row["gpus"] or ""),
        (Column("what it means", "sentence"), lambda row: problem_meaning(row["problem"], balance.booked)),
        (Column("what to do", "sentence"), lambda row: TO_DO.get(row["problem"], "")),
    ]
    return Table.of(rows, columns, "What is wrong with readings and jobs")


def _examples_table(balance: Balance) -> Table:
    """Each problem, those first that come first of their kind: of what, when, how much."""
    number = pl.int_range(pl.len()).over("problem")
    ranked = balance.problems.sort(number >= _EXAMPLES, "problem", number, maintain_order=True)
    names = {(row["cluster"], row["gpu"]): row["name"] or row["gpu"] for row in balance.gpus.iter_rows(named=True)}
    columns: TableColumns = [
        ("problem", "problem"),
        (Column("where and when (UTC)", "sentence"), lambda row: about(row, names.get((row["cluster"], row["gpu"])))),
        (Column("times", "count"), "n"),
    ]
    first = int(ranked.select((number < _EXAMPLES).sum()).item())
    return Table.of(ranked.head(_MOST_PROBLEMS).to_dicts(), columns, "Where and when", most=first)


def problem_meaning(problem: str, booked: Booked, cluster: str | None = None) -> str:
    """What a problem means; `cluster`: whose zones are meant."""
    if problem == NoFigure.NO_FACTOR:
        return lacking(problem, booked.zones_without_factor(cluster))
    return str(_PROBLEMS.get(problem, problem))


def about(row: Row, gpu: str | None = None) -> str:
    """What a problem concerns: of what, when, how much. `gpu`: the name of the GPU, if people know it by another."""
    row = row if gpu is None else {**row, "gpu": gpu}
    places = ((noun, row[noun.lower()]) for noun in ("GPU", "node", "cluster"))
    nouns = [f"{noun} {name}" for noun, name in places if name][:1]
    nouns += [f"job {row['job_id']}"] if row["job_id"] else []
    nouns += [f"and job {row['other_job_id']}"] if row["other_job_id"] else []
    span = f", {second(row['began'], 'now')} to {second(row['ended'], 'now')}" if row["began"] is not None else ""
    joules = f", {number(row['joules'])} J" if row["joules"] is not None else ""
    differ = f", {row['percent']:+.1f} %" if row["percent"] is not None else ""
    times = f", {row['n']:,} times" if row["n"] > 1 else ""
    why = f"; {row['detail']}" if row["detail"] else ""
    return f"{' '.join(nouns)}{span}{joules}{differ}{times}{why}"


# -- the energy of a store at a glance ----------------------------------------------------------------------------


def summary_section(summary: EnergySummary) -> Section:
    """The energy of a store for a report: by user, account and day; where no job is known, by day only."""
    booked = summary.booked
    groupings = (By.USER, By.ACCOUNT, By.DAY) if booked.has_jobs else (By.DAY,)
    cut = " There are very many readings: only the last part of them is in it." if summary.cut else ""
    lead = f"From {minute(booked.since)} to {minute(booked.until)} UTC, whichever campaign this report shows.{cut}"
    return Section("Energy", summary_parts(summary, groupings), lead, anchor="energy")


def summary_parts(summary: EnergySummary, groupings: Sequence[By]) -> list[Part]:
    """The energy of a store: the first lines, day by day, the rows of one or more groupings, what they stand on, and
    whether the books balance."""
    answers = summary.answers
    answer = answers[groupings[0]]
    if not answer.total:
        return headline(answer)
    used: list[Part] = []
    if answers[By.DAY].rows["energy_j"].count():
        used.append(days_chart(summary))
    if ranked := [by for by in groupings if by is not By.DAY]:
        used.append(largest_chart(summary, ranked))
    used += [rows_table(answers[by], f"Energy by {CALLED[by]}") for by in groupings]
    return [*headline(answer), Section("Who used it", used), balance_section(summary.balance), remarks(answer), terms()]


# -- the sensors of boards ----------------------------------------------------------------------------------------


def calibration_document(calibration: Calibration) -> Document:
    """What is known of each board's sensor, and what that is from."""
    boards = calibration.boards
    title = "What power sensors are wrong by"
    columns: TableColumns = [
        (Column("GPU", page="gpu"), lambda row: row["name"] or row["gpu"]),
        (Column("model", drops=3), "model"),
        (Column("windows", "count", drops=1), "windows"),
        (Column("gain %", "estimate"), _of_sensor("gain", "pct")),
        (Column("offset W", "estimate"), _of_sensor("offset", "w")),
        ("from", "source"),
        (Column("finding", drops=2), lambda row: row["finding"] or ""),
    ]
    learnt = boards["source"] == ErrorSource.CALIBRATED.value
    ranked = boards.with_columns(learnt.alias("_learnt")).sort("_learnt", descending=True, maintain_order=True)
    listed = table_of(columns, ranked.to_dicts(), most=_BOARDS)
    return Document(title, [Section(title, [*_calibrated(calibration), listed, *_meanings(calibration)])])


def _of_sensor(figure: str, unit: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value, low, high = (row[f"{figure}_{end}{unit}"] for end in ("", "low_", "high_"))
        return None if value is None else (value, low, high)

    return cell


def _calibrated(calibration: Calibration) -> Iterable[str]:
    """How many boards were calibrated, and what to do where none was."""
    boards = calibration.boards
    learnt = boards.filter(boards["source"] == ErrorSource.CALIBRATED.value)
    if calibration.nodes:
        stored = "Stored: energy is that of calibrated boards." if calibration.stored else "Nothing is stored."
        yield f"{many(calibration.nodes, 'node')} with power of their own, {many(learnt.height, 'board')}. {stored}"
    else:
        yield (
            "n/a: no node has ten windows in which its power and that of all its GPUs are known. `whorl import` and "
            "`whorl collect` read the power of nodes (docs/energy.md)."
        )
    for row in calibration.refused.head(_REFUSED).iter_rows(named=True):
        yield (
            f"Not used: node {row['node']}, whose meter ({row['meter']}) moves by "
            f"{round(row['watts_per_watt'], 2) + 0:.2f} W for each W of its GPUs: it is stuck, late by more than a "
            "minute, or no meter of this node alone."
        )
    if calibration.refused.height > _REFUSED:
        others = calibration.refused.height - _REFUSED
        yield f"Not used: {others:,} more nodes for the same reason; --json has all."
    if learnt.height:
        first, last = min(learnt["since"].to_list()), max(learnt["until"].to_list())
        yield f"Windows from {minute(first)} to {minute(last)} UTC."


def _meanings(calibration: Calibration) -> Iterable[str]:
    """What the columns mean, and how many boards each word is of."""
    boards = calibration.boards
    yield "A sensor reads (1 + gain) x true power + offset."
    for source, n in boards["source"].value_counts(sort=True).iter_rows():
        yield f"{source}, {many(n, 'GPU')}: {ErrorSource(source).meaning}."
    for finding, n in boards["finding"].drop_nulls().value_counts(sort=True).iter_rows():
        yield f"{finding}, {many(n, 'GPU')}: {CalibrationFinding(finding).meaning}."
