"""The tables of energy, each described once: a terminal and a report write its cells as text, a page draws a grid of a
frame in units that suit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ..analysis.energy.answers import By, EnergyAnswer
from ..analysis.energy.attribute import Kind
from ..analysis.energy.books import Balance
from ..analysis.energy.levels import ANY
from ..analysis.energy.one_job import OneJob
from . import energy_words as words
from .table import MISSING, Table, count, number

_DIGITS = 4  # significant ones, of the largest value
_MEASURED = "the part of the time with readings"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class EnergyColumn:
    """A column of a table of energy."""

    title: str
    cell: Callable[[Row], str] | None = None
    """A cell as text; None: only pages have the column."""
    grid: Mapping[str, Any] | None = None
    """How a page draws it: arguments of `app.grid.Column` beside the title; None: only text has the column."""
    right: bool = True
    leaves: int = 0
    """When it leaves a terminal that is too narrow: 1 is the first to go, 0 stays."""
    wraps: bool = False


def text_table(
    columns: Sequence[EnergyColumn], rows: Sequence[Row], title: str = "", *, clusters: bool = True
) -> Table:
    """The columns as text. `clusters`: with the cluster of each row, where the rows are of several: names recur."""
    written = [column for column in columns if column.cell is not None]
    if clusters and len({row["cluster"] for row in rows}) > 1:
        written.insert(1, text("cluster", lambda row: row["cluster"] or MISSING))
    places = range(len(written))
    return Table(
        [column.title for column in written],
        [[column.cell(row) for column in written if column.cell is not None] for row in rows],
        [place for place in places if written[place].right],
        title=title,
        wrapped=[place for place in places if written[place].wraps],
        leaves=sorted((place for place in places if written[place].leaves), key=lambda place: written[place].leaves),
    )


def text(title: str, cell: Callable[[Row], str], **options: Any) -> EnergyColumn:
    """A column of words that only text has."""
    return EnergyColumn(title, cell, right=False, **options)


def with_ends(
    title: str, cells: Callable[[Row], tuple[str, str]] | None, grid: Sequence[Mapping[str, Any] | None] = (None, None)
) -> list[EnergyColumn]:
    """A figure, and its 95 % interval in a column beside it."""
    value, ends = (None, None) if cells is None else ((lambda row: cells(row)[0]), (lambda row: cells(row)[1]))
    return [EnergyColumn(title, value, grid[0]), EnergyColumn("[95 %]", ends, grid[1], right=False)]


@dataclass(frozen=True)
class Unit:
    """The unit of a column: its name, how many of the stored unit it has, digits behind the point."""

    name: str
    size: float = 1.0
    digits: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None], units: Sequence[tuple[str, float]] = words.ENERGIES) -> Unit:
        """What suits these values."""
        finite = [abs(value) for value in values if value is not None and math.isfinite(value)]
        name, size = words.unit_of(finite, units)
        most = max(finite, default=0.0) / size
        return cls(name, size, 0 if most <= 0 else min(6, max(0, _DIGITS - 1 - math.floor(math.log10(most)))))

    def column(self, name: str) -> str:
        """The name of a column in this unit."""
        return f"{name}_{self.name.lower()}"

    def scaled(self, columns: Mapping[str, str]) -> list[pl.Expr]:
        """Columns in this unit: from new names to stored columns."""
        return [(pl.col(stored) / self.size).alias(self.column(name)) for name, stored in columns.items()]

    def with_ends(self, name: str, names: Sequence[str]) -> list[pl.Expr]:
        """A figure and its ends in this unit: NAME, NAME_low and NAME_high."""
        return self.scaled(dict(zip((name, f"{name}_low", f"{name}_high"), names, strict=True)))

    def grids(self, name: str, says: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A figure and its 95 % interval as columns of a page."""
        low, high = self.column(f"{name}_low"), self.column(f"{name}_high")
        best = {"name": self.column(name), "kind": "number", "says": f"{says}: the best figure"}
        ends = {"name": low, "title": "95 %", "kind": "interval", "high": high, "says": f"{says}: its 95 % interval"}
        return {**best, "digits": self.digits}, {**ends, "digits": self.digits}


@dataclass(frozen=True)
class EnergyFrame:
    """Rows with more columns. Names of columns end with their unit: `energy_kwh`."""

    rows: pl.DataFrame
    energy: Unit = Unit("J")
    """Of the columns energy, energy_low and energy_high."""
    columns: Sequence[EnergyColumn] = ()
    """Of the table that shows it."""


# -- rows of energy -------------------------------------------------------------------------------------------


def energy_table(answer: EnergyAnswer, rows: Sequence[Row]) -> Table:
    """Some rows of an answer as text, in units that suit them."""
    energies = [row["high_j"] or row["energy_j"] or row["known_j"] for row in rows] + [answer.total.get("energy_j")]
    units = Unit(*words.unit_of(energies)), Unit(*words.unit_of([row["gpu_s"] for row in rows], words.TIMES)), Unit("g")
    by_day = answer.by is By.DAY
    return text_table(_energy_columns(answer, *units), rows, words.times_of(answer.booked), clusters=not by_day)


def energy_frame(answer: EnergyAnswer) -> EnergyFrame:
    """The rows of an answer, with `what` (what a row is of), its energy, GPU time and CO2e, `idle, measured, of_jobs,
    of_nobody` (in %), and `why` where there is no figure."""
    rows, by = answer.rows, answer.by
    energy = Unit.of(rows.select(pl.coalesce("high_j", "known_j")).to_series())
    time, grams = Unit.of(rows["gpu_s"], words.TIMES), Unit.of(rows["co2e_g"], words.MASSES)
    of_job = pl.col("kind") == Kind.JOB.value
    if by.of_people:
        extra = [pl.when(of_job).then(100 * pl.col("idle_share")).alias("idle")]
        extra += [] if by is By.JOB else [pl.when(of_job).then("jobs").alias("jobs")]
    else:
        total = pl.coalesce("energy_j", "known_j")
        parts = {"of_jobs": "attributed_j", "idle": "idle_time_j", "of_nobody": "unattributed_j"}
        extra = [pl.when(total > 0).then(100 * pl.col(column) / total).alias(name) for name, column in parts.items()]
    frame = rows.with_columns(
        pl.Series("what", [words.name_of(by, row) for row in rows.iter_rows(named=True)], pl.String),
        *_common(energy), *time.scaled({"time": "gpu_s"}), *grams.with_ends("co2e", words.CO2E), *extra,
    )  # fmt: skip
    return EnergyFrame(frame, energy, _energy_columns(answer, energy, time, grams))


def _common(energy: Unit) -> list[pl.Expr]:
    """The energy, what of the time has readings (%), and why there is no figure."""
    measured = pl.when(pl.col("gpu_s") > 0).then(100 * pl.col("measured_s") / pl.col("gpu_s")).alias("measured")
    return [*energy.with_ends("energy", words.ENERGY), measured, _meaning("reason", words.REASONS).alias("why")]


def _energy_columns(answer: EnergyAnswer, energy: Unit, time: Unit, grams: Unit) -> list[EnergyColumn]:
    rows, by = answer.rows, answer.by

    def share(name: str, title: str, stored: str, says: str) -> EnergyColumn:
        def part(row: Row) -> str:
            return words.percent(row[stored], row["known_j"] if row["energy_j"] is None else row["energy_j"])

        return EnergyColumn(title, part, _number(name, says))

    columns = _names(by)
    if rows["cluster"].n_unique() > 1:
        columns.append(EnergyColumn("cluster", None, {"name": "cluster"}))
    of_time = {**_number(time.column("time"), "GPU time: share x time, over all GPUs"), "digits": time.digits}
    columns.append(EnergyColumn(f"GPU {time.name}", lambda row: number(row["gpu_s"] / time.size, 3), of_time, leaves=1))
    columns += with_ends(
        energy.name, lambda row: words.with_interval(row, energy.size), energy.grids("energy", "energy")
    )
    if by.of_people:
        says = "what its GPUs would have drawn without work"
        columns.append(EnergyColumn("idle %", _of_jobs(words.idle_share), _number("idle", says)))
    else:
        nobody = "no known job had it, and nothing shows that it was idle"
        columns += [
            share("of_jobs", "jobs %", "attributed_j", "the part of the energy that jobs used"),
            share("idle", "idle %", "idle_time_j", "no job had the GPU, and it did nothing"),
            share("of_nobody", "unattributed %", "unattributed_j", nobody),
        ]
    columns.append(_measured(leaves=7))
    cost = {"kind": "number", "digits": 2}
    cost_ends = {"name": "cost_low", "title": "95 %", "kind": "interval", "digits": 2, "high": "cost_high"}
    for names, head in words.costs_of(answer):
        value, ends = grams.grids("co2e", "CO2e") if names is words.CO2E else (cost, cost_ends)
        value = {"name": "cost", "title": f"CO2e {grams.name}" if names is words.CO2E else "cost", **value}
        columns.append(EnergyColumn(head, _figure(names[0]), value))
        columns.append(EnergyColumn("95 %", None, ends))
    if not rows["reason"].is_null().all():
        columns.append(EnergyColumn("why n/a", None, {"name": "why", "width": 320}))
    return columns


def _number(name: str, says: str = "") -> dict[str, Any]:
    return {"name": name, "kind": "number", "says": says}


def _figure(name: str) -> Callable[[Row], str]:
    return lambda row: number(row[name])


def _measured(leaves: int = 0) -> EnergyColumn:
    grid = _number("measured", _MEASURED)
    return EnergyColumn("measured %", lambda row: words.percent(row["measured_s"], row["gpu_s"]), grid, leaves=leaves)


def _of_jobs(cell: Callable[[Row], str]) -> Callable[[Row], str]:
    """The cell, of jobs; nothing of what nobody used."""
    return lambda row: cell(row) if row["kind"] == Kind.JOB else ""


def _names(by: By) -> list[EnergyColumn]:
    """What a row is of."""

    def word(title: str, *, grid: bool = True, leaves: int = 0) -> EnergyColumn:
        def cell(row: Row) -> str:
            return row[title] or ("" if title in ("user", "account") and row["kind"] != Kind.JOB else MISSING)

        return text(title, cell, grid={"name": title} if grid else None, leaves=leaves)

    def jobs_known(row: Row) -> str:
        """How many jobs a row has, and how many of them have an honest figure where not all have."""
        jobs, honest = row["jobs"], row["jobs_known"]
        return count(jobs) if jobs == honest else f"{count(honest)} of {count(jobs)}"

    says = "n: how many GPUs; n/a where nobody knows which they are"
    first: dict[str, Any] = {"name": "what"}
    if by is By.JOB:
        first |= {"link": "energy", "asks": {"job": "job_id", "cluster": "cluster"}}
    gpus = text("GPUs", lambda row: count(row["gpus"]), grid=_number("gpus", says), leaves=5)
    name = text("job" if by is By.JOB else by.value, lambda row: words.name_of(by, row), grid=first)
    jobs = text("jobs", jobs_known, leaves=6)
    if by is By.JOB:
        people = [word("user", leaves=8), word("account", leaves=2)]
        times = [EnergyColumn(f"{end} (UTC)", None, {"name": end, "kind": "time"}) for end in ("began", "ended")]
        return [name, *people, EnergyColumn("state", None, {"name": "state"}), *times, gpus]
    if by.of_people:
        return [name, text("jobs", _of_jobs(jobs_known), grid=_number("jobs"), leaves=6), gpus]
    if by is By.GPU:
        gpu = gpu_link("what", "GPU", lambda row: words.name_of(by, row))
        return [gpu, EnergyColumn("node", None, {"name": "node"}), word("model", leaves=4), jobs]
    return [name, *([word("cluster", grid=False, leaves=3)] if by is By.DAY else []), jobs, gpus]


def gpu_link(name: str, title: str, cell: Callable[[Row], str] | None = None) -> EnergyColumn:
    """A column that leads to the page of the GPU."""
    return EnergyColumn(
        title, cell, {"name": name, "link": "gpu", "asks": {"gpu": "gpu", "cluster": "cluster"}}, right=False
    )


# -- GPUs of a job --------------------------------------------------------------------------------------------


def gpu_table(rows: Sequence[Row]) -> Table:
    """The GPUs of a job as text."""
    return text_table(_gpu_columns(Unit(*words.unit_of([row["high_j"] for row in rows]))), rows, clusters=False)


def gpu_frame(job: OneJob) -> EnergyFrame:
    """The GPUs of a job as `energy_frame` has rows, with what it lost on each (GPU time in excess) and `lost_why`."""
    rows = job.gpus
    energy, time, lost = Unit.of(rows["high_j"]), Unit.of(rows["gpu_s"], words.TIMES), Unit("s")
    extra: list[pl.Expr] = []
    if "excess_s" in rows.columns:
        lost = Unit.of(rows["excess_high_s"], words.TIMES)
        why = _meaning("excess_s_reason", words.EXCESS_REASONS).alias("lost_why")
        extra = [*lost.with_ends("lost", words.EXCESS["s"]), why, pl.col("basis").replace({ANY: "any work"})]
    frame = rows.with_columns(
        pl.coalesce("name", "gpu", pl.lit("(GPU not known)")).alias("what"),
        *_common(energy), *time.scaled({"time": "duration_s"}), (100 * pl.col("idle_share")).alias("idle"), *extra,
    )  # fmt: skip
    return EnergyFrame(frame, energy, _gpu_columns(energy, lost, frame))


def _gpu_columns(energy: Unit, lost: Unit = Unit("s"), frame: pl.DataFrame | None = None) -> list[EnergyColumn]:
    """`frame`: of a page."""

    def has(name: str) -> bool:
        return frame is not None and name in frame.columns and not frame[name].is_null().all()

    part = {**_number("share", "the part of the GPU that the job had"), "digits": 2}
    partly = frame is not None and not (frame["share"] == 1).all()
    idle = _number("idle", "what it would have drawn without work")
    columns = [
        gpu_link("what", "GPU", lambda row: row["name"] or row["gpu"] or MISSING),
        text("model", lambda row: row["model"] or MISSING, grid={"name": "model"} if has("model") else None, leaves=1),
        EnergyColumn("share", lambda row: number(row["share"], 3), part if partly else None),
        EnergyColumn("time", lambda row: words.lasted(row["duration_s"])),
        *with_ends(energy.name, lambda row: words.with_interval(row, energy.size), energy.grids("energy", "energy")),
        EnergyColumn("idle %", words.idle_share, idle),
        _measured(),
        text("by", lambda row: row["method"] or MISSING),
    ]
    if has("rank"):
        slower = {"name": "slower_pct", "kind": "percent", "digits": 2, "says": "than the median GPU of its model"}
        ends = {"name": "slower_low_pct", "kind": "interval", "digits": 2, "high": "slower_high_pct", "unit": "%"}
        columns += [
            EnergyColumn("slower", None, slower),
            EnergyColumn("95 %", None, ends),
            EnergyColumn("rank", None, _number("rank", "1 is the fastest")),
            EnergyColumn("of", None, _number("compared", "n: how many GPUs of its model were compared")),
            EnergyColumn("in", None, {"name": "basis", "says": "the work in which they were compared"}),
            *with_ends(f"lost {lost.name}", None, lost.grids("lost", "GPU time lost to hardware")),
        ]
    columns.append(gpu_link("verdicts", "verdicts"))
    whys = {"why": "why no energy", "lost_why": "why nothing is known of its loss"}
    return columns + [EnergyColumn(whys[why], None, {"name": why, "width": 300}) for why in whys if has(why)]


# -- problems -------------------------------------------------------------------------------------------------

PROBLEM_HEADS = ("problem", "times", "GPUs", "what it means", "what to do")
"""Heads of `energy_words.problem_kinds`."""
PROBLEM_COLUMNS = [
    EnergyColumn("problem", None, {"name": "problem"}),
    EnergyColumn("where and when", None, {"name": "about", "width": 560}),
    EnergyColumn("times", None, _number("n")),
    EnergyColumn("what to do", None, {"name": "do", "width": 420}),
]
"""Of `problem_frame`."""


def problem_frame(balance: Balance) -> pl.DataFrame:
    """What is wrong, a row each: problem, about, means, do (what to do), began, ended, n, joules."""
    names = words.gpu_names(balance)
    sentences = [
        (
            row["problem"],
            words.about(row, names.get((row["cluster"], row["gpu"]))),
            words.problem_meaning(row["problem"], balance.booked, row["cluster"]),
            words.TO_DO.get(row["problem"]),
        )
        for row in balance.problems.iter_rows(named=True)
    ]
    schema = dict.fromkeys(("problem", "about", "means", "do"), pl.String)
    cells = pl.DataFrame(sentences, schema=schema, orient="row")
    times = balance.problems.select("cluster", "gpu", "job_id", "began", "ended", "n", "joules")
    return pl.concat([cells.with_columns(pl.all().str.replace_all("`", "")), times], how="horizontal")


def _meaning(column: str, meanings: Mapping[str, str]) -> pl.Expr:
    return pl.col(column).replace(list(meanings), list(meanings.values()))
