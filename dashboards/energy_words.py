"""How energy is said everywhere: units, intervals, what a row is of, why there is no figure, and the sentences about
energy, books and problems that the terminal, a report and a page share."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from ..analysis.energy.answers import By, EnergyAnswer
from ..analysis.energy.attribute import JobReason, Kind
from ..analysis.energy.billing import HostSource, hours_share
from ..analysis.energy.books import CLOSE, Balance, Booked
from ..analysis.energy.carbon import TABLE, NoFigure
from ..analysis.energy.excess import Unknown
from ..analysis.energy.idle import IdleSource
from ..analysis.energy.nodes import NodeProblem
from ..analysis.energy.problems import JobProblem
from ..analysis.energy.sensor import PowerSource
from ..analysis.energy.series import Problem, Reason
from .table import MISSING, count, many, number, second

ENERGIES = (("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
"""Units of energy, as `unit_of` takes them."""
TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Units of time."""
MASSES = (("t", 1e6), ("kg", 1e3), ("g", 1.0))
"""Units of CO2e."""
ENERGY = ("energy_j", "low_j", "high_j")
"""A figure of a row and the ends of its 95 % interval, as `interval` takes them."""
CO2E = ("co2e_g", "co2e_low_g", "co2e_high_g")
COST = ("cost", "cost_low", "cost_high")
EXCESS = {
    "j": ("excess_j", "excess_low_j", "excess_high_j"),
    "s": ("excess_s", "excess_low_s", "excess_high_s"),
}
PARTS = ("metered_j", "attributed_j", "idle_time_j", "unattributed_j")
"""The columns of a GPU's books: the whole, and what it is the sum of."""
_LEAST_SHARE = 0.1
"""The largest energy of a column has at least this much of its unit."""
_WIDE = 0.1
"""An idle share that is known so well needs no interval."""
_FACTORS = 5
_HOSTS = {
    HostSource.MEASURED: "by meters of the nodes",
    HostSource.STATED: "by host_w of the settings",
    HostSource.BOTH: "by meters of the nodes and by host_w of the settings",
}

REASONS: Mapping[str, str] = {reason.value: reason.meaning for reason in (*Reason, *JobReason)}
"""What the codes of `reason` mean."""
EXCESS_REASONS: Mapping[str, str] = {**REASONS, **{code.value: code.meaning for code in Unknown}}
"""What the codes of `excess_j_reason` and `excess_s_reason` mean."""
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

Row = Mapping[str, Any]


# -- figures --------------------------------------------------------------------------------------------------


def unit_of(values: Iterable[float | None], units: Sequence[tuple[str, float]] = ENERGIES) -> tuple[str, float]:
    """The unit of a column: its name, and how many of the stored unit (J, s, g) it has.

    The largest value is at least 1 in it; an energy, a tenth.
    """
    least = _LEAST_SHARE if units is ENERGIES else 1.0
    most = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    return next((unit for unit in units if most >= least * unit[1]), units[-1])


def interval(row: Row, names: Sequence[str], scale: float = 1.0, digits: int = 4) -> tuple[str, str]:
    """A figure of a row and its interval `[low, high]`, in a unit that has `scale` of the stored one."""
    value, low, high = (number(None if row[name] is None else row[name] / scale, digits) for name in names)
    return (value, MISSING if row[names[0]] is None else f"[{low}, {high}]")


def with_interval(row: Row, joules: float) -> tuple[str, str]:
    """An energy and its 95 % interval, in a unit that has so many joules; of a group of which too little is known, the
    known part and of how many of its jobs that is."""
    if row["energy_j"] is None and row.get("jobs_known") and row["known_j"]:
        known_of = f"{MISSING} (only {row['jobs_known']:,} of {many(row['jobs'], 'job')})"
        return number(row["known_j"] / joules), known_of
    return interval(row, ENERGY, joules)


def in_unit(value: float | None, digits: int = 4, units: Sequence[tuple[str, float]] = ENERGIES) -> str:
    """A figure in the unit that suits it."""
    unit, scale = unit_of([value], units)
    return f"{number(None if value is None else value / scale, digits)} {unit}"


def gpu_time(seconds: float) -> str:
    """GPU time for people."""
    figure, unit = in_unit(seconds, 3, TIMES).split()
    return f"{figure} GPU {unit}"


def lasted(seconds: float) -> str:
    """A duration for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(part: float | None, total: float | None) -> str:
    """A part of a total, in per cent."""
    return MISSING if part is None or not total else f"{100 * part / total:.0f}"


def excess_interval(row: Row, unit: str) -> str:
    """The excess of a row with its 95 % interval: `j`, energy; `s`, time."""
    if row[f"excess_{unit}"] is None:
        return f"{'energy' if unit == 'j' else 'time'} n/a"
    name, scale = unit_of([row[end] for end in EXCESS[unit]], TIMES if unit == "s" else ENERGIES)
    best, ends = interval(row, EXCESS[unit], scale, 3)
    return f"{best} {'GPU ' if unit == 's' else ''}{name} {ends}"


def idle_share(row: Row) -> str:
    """What the GPUs of a row would have drawn without work, in % of its energy; with its interval where that is wide.

    `at most 65` where nothing but bounds is known.
    """
    share, low, high = (row[f"idle_share{end}"] for end in ("", "_low", "_high"))
    if share is None:
        return MISSING if high is None or high >= 1 else f"at most {100 * high:.0f}"
    if high is None or high - low < _WIDE:
        return f"{100 * share:.0f}"
    return f"{100 * share:.0f} [{100 * low:.0f}, {100 * high:.0f}]"


# -- names ----------------------------------------------------------------------------------------------------


def name_of(by: By, row: Row) -> str:
    """What a row is of."""
    if by.of_people:
        if row["kind"] != Kind.JOB:
            return f"({row['kind']})"
        name = row["job_id" if by is By.JOB else by.value]
        return name or (MISSING if by is By.JOB else f"(no {by.value} known)")
    if by is By.GPU:
        return str(row["name"] or row["gpu"])
    if by is By.NODE:
        return row["node"] or "(node not known)"
    day = row["day"]
    return f"{day:%Y-%m-%d}" if isinstance(day, date) else MISSING


def some_gpus(n: int | None) -> str:
    """How many GPUs, where any is known."""
    return many(n, "GPU") if n else "GPUs that nobody knows"


def times_of(booked: Booked) -> str:
    """The time from the first reading to the last, and the time that was asked for where that is longer."""

    def spoken(since: datetime, until: datetime) -> str:
        return f"{since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S}"

    question = spoken(booked.since, booked.until)
    first, last = booked.metered.select(pl.col("first").min(), pl.col("last").max()).row(0)
    if first is None or (read := spoken(first, last)) == question:
        return f"{question} UTC"
    return f"readings from {read} UTC; asked for: {question}"


def of_job(row: Row) -> str:
    """Whose a job was, when it ran, on what."""
    person = f" of {row['user']}" if row["user"] else ""
    person += f" ({row['account']})" if row["account"] else ""
    state = f", {row['state']}" if row["state"] else ""
    runs = f", {row['allocations']} runs" if row["allocations"] > 1 else ""
    return (
        f"job {row['job_id']}{person}{state}: {second(row['began'])} to {second(row['ended'], 'now')} (UTC){runs}, "
        f"{lasted(row['duration_s'])} on {some_gpus(row['gpus'])}"
    )


# -- what the figures stand on --------------------------------------------------------------------------------


def lacking(code: str, zones: Sequence[str] = ()) -> str:
    """What the settings lack, in words; `zones` are those without a factor."""
    meaning = NoFigure(code).meaning
    if code != NoFigure.NO_FACTOR or not zones:
        return meaning
    zone_names = f"zone {zones[0]}" if len(zones) == 1 else f"the zones {', '.join(zones)}"
    return f"{meaning.replace('this zone', zone_names)}. The zones of the shipped table are listed in {TABLE}"


def idle_sources(rows: Iterable[Row]) -> Iterable[str]:
    """How the idle share of jobs is known, where that is not by readings of GPUs without work."""
    sources = Counter(row["idle_source"] for row in rows if row["kind"] == Kind.JOB and row["energy_j"] is not None)
    for source in (IdleSource.COUNTER, IdleSource.EXTENDED, IdleSource.BOUNDED):
        if sources[source]:
            yield f"idle % of {many(sources[source], 'row')}: {source.meaning}"


def costs_of(answer: EnergyAnswer) -> list[tuple[Sequence[str], str]]:
    """The figures of grams and money that are known, each with its head."""
    heads = ((CO2E, "CO2e g"), (COST, f"cost {answer.booked.settings.currency or ''}".rstrip()))
    return [(names, head) for names, head in heads if not answer.rows[names[0]].is_null().all()]


def in_all(answer: EnergyAnswer) -> Iterable[str]:
    """What the rows add up to."""
    total = answer.total
    if total.get("energy_j") is not None:
        unit, joules = unit_of([total["energy_j"]])
        energy, bounds = with_interval(total, joules)
        yield (
            f"metered in all: {energy} {unit} {bounds} on {many(total['gpus'], 'GPU')}; "
            f"readings cover {percent(total['measured_s'], total['gpu_s'])} % of the {gpu_time(total['gpu_s'])} counted"
        )
        if total["jobs_known"] < total["jobs"]:
            yield f"{count(total['jobs_known'])} of {many(total['jobs'], 'job')} have an honest figure"
        if total["gpus_no_figure"]:
            yield f"not in it: {many(total['gpus_no_figure'], 'GPU')} of which no reading counts"
    elif total:
        yield f"metered in all: n/a; {in_unit(total['known_j'])} have an honest figure"


def explained(answer: EnergyAnswer, store: str | Path | None = None) -> Iterable[str]:
    """What is not in the rows and why, and what they stand on. `store`: where the commands that it names look."""
    if len(answer.booked.problems):
        option = "" if store is None else f" --store {shlex.quote(str(store))}"
        yield f"problems were found in readings or jobs: `whorl energy reconcile{option}` names them"
    if not answer.booked.has_jobs:
        yield "no job is known in this time: `whorl jobs import` or `whorl import` adds who had which GPU"
    for reason, times, n in _reasons(answer.rows):
        yield f"n/a in {many(n, 'row')}: {times}{REASONS.get(reason, reason)}"
    if answer.booked.dark_s > 0:
        yield f"not counted: {gpu_time(answer.booked.dark_s)} without readings in which no job had the GPU"
    if answer.by.of_people:
        kinds = set(answer.rows["kind"])
        meanings = {
            Kind.IDLE: "(idle): no job had the GPU, and it did nothing",
            Kind.UNATTRIBUTED: "(unattributed): no known job had the GPU, and nothing shows that it was idle",
        }
        further = "".join(f". {meaning}" for kind, meaning in meanings.items() if kind in kinds)
        yield f"idle %: the part that the GPUs would have drawn without work{further}"
        yield from idle_sources(answer.rows.iter_rows(named=True))
    yield sensors(answer.booked)
    yield from carbon(answer)


def sensors(booked: Booked) -> str:
    """What the intervals allow for."""
    return f"[95 %] allows for power sensors with {sensor_error(booked)}"


def sensor_error(booked: Booked) -> str:
    """The error of power sensors that the intervals allow for, in words."""
    others = booked.metered.join(booked.errors.calibrated, on=["cluster", "gpu"], how="anti", nulls_equal=True)
    calibrated = booked.metered.height - others.height
    learnt = f"the error that their calibration left ({many(calibrated, 'GPU')}: `whorl energy calibrate`)"
    if calibrated and others.is_empty():
        return learnt
    unread = pl.DataFrame({"cluster": [None], "gpu": [None]}, {"cluster": pl.String, "gpu": pl.String})
    widths = booked.errors.half_widths(unread if others.is_empty() else others)
    halves = (
        [f"{100 * gain:.1f}" for gain in sorted(widths["gain"])],
        [f"{w:.0f}" for w in sorted(widths["offset_w"])],
    )
    gain, offset = (" to ".join(dict.fromkeys((half[0], half[-1]))) for half in halves)
    boards = booked.sensor.boards
    basis = f"as {boards} measured boards have it" if boards else "as the settings state it"
    usual = f"gain within ±{gain} % and offset within ±{offset} W, {basis}"
    return f"{learnt}; others: {usual}" if calibrated else usual


def _reasons(rows: pl.DataFrame) -> list[tuple[str, str, int]]:
    """Why rows have no figure, for what part of the time in words, and how many: the most common first."""
    times = (
        pl.when(pl.col("measured_s") <= 0)
        .then(pl.lit(""))
        .when(pl.col("measured_s") <= 0.5 * pl.col("gpu_s"))
        .then(pl.lit("for half of the time or more, "))
        .otherwise(pl.lit("for a part of the time, which nothing bounds (no power limit is known), "))
    )
    none = rows.filter(pl.col("energy_j").is_null())
    counted = none.group_by("reason", times.alias("times"), maintain_order=True).len()
    return counted.sort("len", descending=True, maintain_order=True).rows()


def carbon(answer: EnergyAnswer) -> Iterable[str]:
    """What the grams and the money stand on; what to give where there are none."""
    booked = answer.booked
    for row in booked.factors.head(_FACTORS).iter_rows(named=True):
        low, high = (number(row[name]) for name in ("low_g_per_kwh", "high_g_per_kwh"))
        grams = low if low == high else f"{low} to {high}"
        place = f"zone {row['zone']}" if row["zone"] else "contract"
        year = "" if row["year"] is None else f", {row['year']}"
        pue = "no PUE is given, so it is without the building" if row["pue"] is None else f"PUE {number(row['pue'])}"
        yield f"CO2e: {grams} g per kWh, {place} ({row['method']}-based){year}, source: {row['source']}; {pue}"
    if len(booked.factors) > _FACTORS:
        yield f"and {len(booked.factors) - _FACTORS} more sources of CO2e: --json has all"
    if by_hour := hours_share(booked.factors):
        yield f"CO2e by the hour: {100 * by_hour:.3g} % of the energy"
    yield from _hosts(answer.total)
    if costs_of(answer):
        yield "intervals of CO2e and cost are those of the energy: nobody states how wrong a factor is"
    if booked.settings.path is None:
        yield "for CO2e and cost, write a file energy.toml in the store's folder (docs/energy.md)"
        return
    for code, figure in ((booked.carbon_reason, "CO2e"), (booked.cost_reason, "cost")):
        if code is not None:
            yield f"{figure} n/a: {lacking(code, booked.zones_without_factor())}"


def _hosts(total: Row) -> Iterable[str]:
    """What the rest of the nodes used, and both together."""
    if total.get("host_j") is None:
        return
    yield (
        f"the rest of the nodes (processors, memory, fans): {in_unit(total['host_j'])} "
        f"{_HOSTS[total['host_source']]}, for {percent(total['host_of_s'], total['gpu_s'])} % of the GPU time; it is "
        "in CO2e and cost, not in the energy"
    )
    if total["node_j"] is not None:
        unit, joules = unit_of([total["node_j"]])
        node, ends = interval(total, ("node_j", "node_low_j", "node_high_j"), joules)
        yield f"GPUs and the rest of the nodes together: {node} {unit} {ends}"


def energy_lines(answer: EnergyAnswer, row: Row) -> Iterable[tuple[str, str, str]]:
    """Of a job: name, figure, and what to know about it. `row`: a row of the answer, or its total."""
    unit, joules = unit_of([row["high_j"]])
    if row["energy_j"] is None:
        yield "energy", MISSING, REASONS.get(row["reason"], row["reason"] or "")
    else:
        energy, bounds = with_interval(row, joules)
        method = f"by {row['method']}; {percent(row['measured_s'], row['gpu_s'])} % of the time has readings"
        yield "energy", f"{energy} {unit} {bounds}", method if row["method"] else "it took no time"
    if row["idle_share"] is not None:
        basis = "of its GPUs that were ever seen idle"
        if row["idle_j"] is not None:
            basis = f"{number(row['idle_j'] / joules)} {unit} that its GPUs would have drawn without work"
        yield "idle share", f"{idle_share(row)} %", basis
    elif (most := idle_share(row)) != MISSING:
        yield "idle share", f"{most} %", IdleSource(row["idle_source"]).meaning
    if row.get("scheduler_j") is not None:
        twice = f"; {many(answer.beside or 0, 'other job')} on its nodes at that time count the same energy again"
        accounting = f"its accounting, of whole nodes with processors and memory{twice if answer.beside else ''}"
        yield "scheduler", f"{number(row['scheduler_j'] / joules)} {unit}", accounting


# -- the books ------------------------------------------------------------------------------------------------


def books_title(balance: Balance) -> str:
    """Whether the books balance, as a heading."""
    if not balance.gpus["metered_j"].count():
        return "The books"
    return "The books balance" if balance.balances else "The books do not balance"


def books_sentences(balance: Balance) -> Iterable[str]:
    """Whether the books balance, and what of them is known within bounds only."""
    gpus, dark_s = balance.gpus, balance.booked.dark_s
    unit, joules = unit_of(gpus["metered_j"])
    sums = {name: float(gpus[name].sum()) for name in (*PARTS, "measured_s", "gpu_s", "gaps_j", "not_read_j")}
    if n := gpus["metered_j"].count():
        metered, jobs, idle, unattributed = (number(sums[name] / joules) for name in PARTS)
        result = "the books balance" if balance.balances else f"THE BOOKS DO NOT BALANCE to {CLOSE:g}: please report it"
        yield (
            f"{many(n, 'GPU')}: {metered} {unit} metered = {jobs} of jobs + {idle} idle + {unattributed} unattributed; "
            f"{result}"
        )
    else:
        yield "n/a: the energy of no GPU is known, so there is nothing to balance"
    yield f"readings cover {percent(sums['measured_s'], sums['gpu_s'])} % of the {gpu_time(sums['gpu_s'])} counted"
    if sums["gaps_j"] > CLOSE * sums["metered_j"]:  # else it is the rounding of the arithmetic
        gaps = number(sums["gaps_j"] / joules)
        yield f"of it {gaps} {unit} in gaps of the readings: these are known within bounds only"
    for reason, n in gpus["reason"].drop_nulls().value_counts(sort=True).iter_rows():
        yield f"n/a for {many(n, 'GPU')}: {REASONS.get(reason, reason)}"
    if n := int((gpus["power_source"] == PowerSource.GPU_POWER.value).sum()):
        yield f"energy of {many(n, 'GPU')} by {PowerSource.GPU_POWER.meaning}"
    if dark_s > 0:
        yield (
            f"not counted: {gpu_time(dark_s)} with neither readings nor a job; a guess between what the GPUs draw "
            f"without work and their power limit would be {number(sums['not_read_j'] / joules)} {unit}"
        )


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


def problem_kinds(balance: Balance) -> list[tuple[str, str, str | None, str, str | None]]:
    """The kinds of problems, those with most rows first: the problem, how often, on how many GPUs, what it means, and
    what to do."""
    gpus = pl.struct("cluster", "gpu").filter(pl.col("gpu").is_not_null()).n_unique().alias("gpus")
    kinds = balance.problems.group_by("problem", maintain_order=True).agg(pl.len(), pl.col("n").sum(), gpus)
    return [
        (kind, count(n), count(on) if on else None, problem_meaning(kind, balance.booked), TO_DO.get(kind))
        for kind, _, n, on in kinds.sort("len", descending=True, maintain_order=True).iter_rows()
    ]


def gpu_names(balance: Balance) -> dict[tuple[str | None, str], str]:
    """What people call the GPUs of a balance, by cluster and UUID."""
    return {(row["cluster"], row["gpu"]): row["name"] or row["gpu"] for row in balance.gpus.iter_rows(named=True)}
