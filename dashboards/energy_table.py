"""Answers about energy as frames to show: in units that suit them, with a name for each row and why it has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ..analysis.energy.answers import By, EnergyAnswer
from ..analysis.energy.attribute import Kind
from ..analysis.energy.books import Balance
from ..analysis.energy.levels import ANY
from ..analysis.energy.one_job import OneJob
from .energy_words import ENERGIES, MASSES, REASONS, TIMES, name_of, unit_of
from .printed.energy_balance import problem_rows
from .printed.energy_excess import EXCESS_REASONS

_ENERGY = {"energy": "energy_j", "energy_low": "low_j", "energy_high": "high_j"}
_DIGITS = 4  # significant ones, of the largest value


@dataclass(frozen=True)
class Unit:
    """The unit of a column: its name, how many of the stored unit it has, digits behind the point."""

    name: str
    size: float = 1.0
    digits: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None], units: Sequence[tuple[str, float]] = ENERGIES) -> Unit:
        """What suits these values."""
        known = [abs(one) for one in values if one is not None and math.isfinite(one)]
        name, size = unit_of(known, units)
        most = max(known, default=0.0) / size
        return cls(name, size, 0 if most <= 0 else min(6, max(0, _DIGITS - 1 - math.floor(math.log10(most)))))

    def column(self, name: str) -> str:
        """The name of a column in this unit."""
        return f"{name}_{self.name.lower()}"


@dataclass(frozen=True)
class Shown:
    """Rows with more columns. Names of columns end with their unit: `energy_kwh`."""

    rows: pl.DataFrame
    energy: Unit = Unit("J")
    """Of the columns energy, energy_low and energy_high."""
    time: Unit = Unit("s")
    """Of the column time."""
    grams: Unit = Unit("g")
    """Of the columns co2e, co2e_low and co2e_high."""
    lost: Unit = Unit("s")
    """Of the columns lost, lost_low and lost_high."""


def shown(found: EnergyAnswer) -> Shown:
    """The rows of an answer, with `what` (what a row is of), its energy, GPU time and CO2e, `idle, measured, of_jobs,
    of_nobody` (in %), and `why` where there is no figure."""
    rows = found.rows
    energy = Unit.of(rows.select(pl.coalesce("high_j", "known_j")).to_series())
    time, grams = Unit.of(rows["gpu_s"], TIMES), Unit.of(rows["co2e_g"], MASSES)
    whole = pl.coalesce("energy_j", "known_j")
    parts = {"of_jobs": "attributed_j", "idle": "idle_time_j", "of_nobody": "unattributed_j"}
    of_job = pl.col("kind") == Kind.JOB.value
    more = [pl.when(of_job).then(100 * pl.col("idle_share")).alias("idle")]
    if found.by in (By.USER, By.ACCOUNT):
        more.append(pl.when(of_job).then("jobs").alias("jobs"))
    if not found.by.of_people:
        more = [pl.when(whole > 0).then(100 * pl.col(column) / whole).alias(name) for name, column in parts.items()]
    more += _scaled(_ENERGY, energy)
    more += _scaled({"co2e": "co2e_g", "co2e_low": "co2e_low_g", "co2e_high": "co2e_high_g"}, grams)
    return Shown(
        rows.with_columns(
            pl.Series("what", [name_of(found.by, row) for row in rows.iter_rows(named=True)], pl.String),
            *_scaled({"time": "gpu_s"}, time),
            pl.when(pl.col("gpu_s") > 0).then(100 * pl.col("measured_s") / pl.col("gpu_s")).alias("measured"),
            _meaning("reason", REASONS).alias("why"),
            *more,
        ),
        energy,
        time,
        grams,
    )


def of_gpus(found: OneJob) -> Shown:
    """The GPUs of a job as `shown` has them, with what it lost on each (GPU time in excess) and `lost_why`."""
    rows = found.gpus
    energy, time = Unit.of(rows["high_j"]), Unit.of(rows["gpu_s"], TIMES)
    lost = Unit.of(rows["excess_high_s"], TIMES) if "excess_s" in rows.columns else Unit("s")
    more: list[pl.Expr] = []
    if "excess_s" in rows.columns:
        more = _scaled({"lost": "excess_s", "lost_low": "excess_low_s", "lost_high": "excess_high_s"}, lost)
        more.append(_meaning("excess_s_reason", EXCESS_REASONS).alias("lost_why"))
        more.append(pl.col("basis").replace({ANY: "any work"}))
    return Shown(
        rows.with_columns(
            pl.coalesce("name", "gpu", pl.lit("(GPU not known)")).alias("what"),
            *_scaled(_ENERGY, energy),
            *_scaled({"time": "duration_s"}, time),
            (100 * pl.col("idle_share")).alias("idle"),
            pl.when(pl.col("gpu_s") > 0).then(100 * pl.col("measured_s") / pl.col("gpu_s")).alias("measured"),
            _meaning("reason", REASONS).alias("why"),
            *more,
        ),
        energy,
        time,
        lost=lost,
    )


def of_problems(found: Balance) -> pl.DataFrame:
    """What is wrong, a row each: problem, about, means, do (what to do), began, ended, n, joules."""
    schema = dict.fromkeys(("problem", "about", "means", "do"), pl.String)
    rows = [[None if one is None else one.replace("`", "") for one in row] for row in problem_rows(found)]  # no code
    more = found.problems.select("cluster", "gpu", "job_id", "began", "ended", "n", "joules")
    return pl.concat([pl.DataFrame(rows, schema=schema, orient="row"), more], how="horizontal")


def _scaled(columns: Mapping[str, str], unit: Unit) -> list[pl.Expr]:
    return [(pl.col(column) / unit.size).alias(unit.column(name)) for name, column in columns.items()]


def _meaning(column: str, meanings: Mapping[str, str]) -> pl.Expr:
    return pl.col(column).replace(list(meanings), list(meanings.values()))
