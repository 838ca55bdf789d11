"""A fleet in words: three answers (which GPUs, why, what to do), newest readings, and how much its GPUs differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import polars as pl

from ...analysis import Variability
from ...analysis.contents import FRESH_S, FleetNow
from ...analysis.runs.probing import Probed
from ...analysis.verdicts import Judgement, Kind, Verdict
from ...analysis.verdicts.judge import ERROR_RATE
from ...analysis.verdicts.verdict import Planted, falsely_named
from ...store.vocabulary import clock_in_words
from ..document import WORDS, Cell, Column, Facts, Part, Picture, Section, Table, TableColumns
from ..figures.drawing import Look, looks
from ..figures.machine import Grid, picture
from ..words import (
    MISSING,
    capital,
    duration,
    estimate,
    interval,
    interval_digits,
    listed,
    many,
    minute,
    number,
    quantity,
    second,
    short_names,
)
from .evidence import action, because, remark, size
from .gpu import software
from .verdicts import MEANINGS, GpuCounts, least, name_of, not_judged, to_watch
from .verdicts import headline as headline_of

WORST = 5
"""Findings in the three answers; the others are counted, and stand in the table of all."""
_NAMES = 6  # of GPUs in a sentence


# -- the three answers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedFleet:
    """The GPUs of a cluster with what was concluded about them."""

    gpus: pl.DataFrame
    """gpu, name, node, cabinet, slot, uuid, in the order of places: of `Probed`, or of `analysis.contents.places`."""
    judgement: Judgement
    judged: Collection[str] = ()
    """Keys of the GPUs that were compared; empty where all were, or nobody knows."""

    @cached_property
    def grid(self) -> Grid:
        """Where the cell of each GPU is."""
        return Grid.of(self.gpus)

    @cached_property
    def verdicts(self) -> Mapping[str, Sequence[Verdict]]:
        """By key of a GPU its verdicts, the worst first."""
        return self.judgement.by_key(self.gpus)

    @cached_property
    def looks(self) -> Mapping[str, Look]:
        """By key of a GPU that has verdicts, how it is drawn."""
        return looks(self.verdicts)

    @property
    def odd(self) -> int:
        """How many GPUs something is wrong with, each once."""
        keys = dict(zip(self.gpus["name"], self.gpus["gpu"], strict=True))
        wrong = (verdict for verdict in self.judgement.rows if verdict.kind is not Kind.FAST)
        names = {name for verdict in wrong for name in verdict.gpus}
        return len({self.grid.cell.get(keys.get(name, name), name) for name in names})

    @property
    def judged_gpus(self) -> int:
        """How many GPUs were judged, each once: two names may be those of one GPU."""
        if not self.judged or not self.judgement.gpus:
            return min(self.judgement.gpus, self.grid.gpus)
        return len({self.grid.cell[gpu] for gpu in self.judged if gpu in self.grid.cell})

    @property
    def maybe_twice(self) -> bool:
        """Whether a GPU may have two names: then numbers of GPUs are upper bounds."""
        return self.grid.gpus < len(self.grid.cell)


def headline(fleet: JudgedFleet) -> str:
    """How many GPUs are odd and how many are fine, in a sentence."""
    counted = GpuCounts(fleet.grid.gpus, fleet.judged_gpus, fleet.odd, fleet.maybe_twice)
    return headline_of(fleet.judgement, counted)


def three_answers(fleet: JudgedFleet) -> list[Section]:
    """Which GPUs, why, and what to do first: the first screen of the dashboard, of a report and of a demo's end.

    `machine` is the picture beside them.
    """
    judgement = fleet.judgement
    worst = judgement.rows[:WORST]
    names = short_names((verdict.name for verdict in judgement.rows), fleet.gpus["gpu"])
    sections = []
    if worst:
        sections.append(Section("Which GPUs", [_which(judgement, worst, names)], anchor="which"))
        reasons: dict[str, str] = {}
        actions: dict[str, list[str]] = {}
        for verdict in worst:
            reasons.setdefault(names[verdict.name], f"{capital(because(verdict))}.")
            actions.setdefault(action(verdict), []).append(names[verdict.name])
        why = list(reasons.items())
        do = [(listed(list(dict.fromkeys(of_action)), 3), sentence) for sentence, of_action in actions.items()]
        sections += [Section("Why", [Facts(why)], anchor="why"), Section("What to do", [Facts(do)], anchor="do")]
    elif judgement.gpus:
        sections.append(Section("What to do", ["Nothing now."], anchor="do"))
    elif (gaps := not_judged(judgement.not_judged)) is not None:
        sections.append(Section("What could not be judged", [gaps], anchor="why"))
    return sections


def machine(fleet: JudgedFleet) -> Picture:
    """The machine, with the GPUs that stand out marked and named."""
    judgement, judged = fleet.judgement, None
    if fleet.judged or not judgement.gpus:
        judged = {gpu: bool(judgement.gpus) and gpu in fleet.judged for gpu in fleet.grid.cell}
    twice = " A GPU that is known by its UUID in one file and by its place in another has one cell."
    cabinets = "A block is a cabinet" if fleet.grid.by_cabinet else "A block holds nodes in the order of their names"
    caption = f"{cells_of(fleet.grid) if fleet.grid.apart else cabinets}.{twice if fleet.maybe_twice else ''}"
    return replace(picture(fleet.grid, fleet.looks, judged), caption=caption)


def cells_of(grid: Grid) -> str:
    """What a cell, a row and a block of the machine are, without a full stop."""
    return f"A cell is a GPU, a row a node{', a block a cabinet' if grid.by_cabinet else ''}"


def _which(judgement: Judgement, worst: Sequence[Verdict], names: Mapping[str, str]) -> Table:
    others = len(judgement.rows) - len(worst)
    gpu = Column("GPU", page="gpu", explains="Or the node or the batch of GPUs that the finding is about")
    effect = "Against its peers: slower, hotter and more are positive; a fact that was seen has no size"
    columns: TableColumns = [
        (gpu, lambda verdict: name_of(verdict, names)),
        ("finding", "kind"),
        ("state", "state"),
        (Column("effect [95 %]", explains=effect), lambda verdict: size(verdict) or None),
    ]
    return Table.of(worst, columns, below=f"and {many(others, 'more finding')}" if others else "")


def unseen(fleet: JudgedFleet) -> Section | None:
    """What is too small to see, and what could not be judged; None where there is nothing to say."""
    judgement = fleet.judgement
    smallest, reasons = least(judgement.smallest), not_judged(judgement.not_judged)
    parts: list[Part] = [] if smallest is None else [smallest]
    if reasons is not None and (judgement.gpus or judgement.rows):  # else the answers say so
        subjects = list(dict.fromkeys(gap.subject for gap in judgement.not_judged))
        parts.append(f"Not everything could be judged: {listed(subjects, _NAMES)}.")
        parts.append(Section("What could not be judged", [reasons], folded=True))
    return Section("Too small to see, or not judged", parts, anchor="unseen") if parts else None


def measure_again(judgement: Judgement) -> list[Part]:
    """GPUs whose newest sitting is slower, but not surely; nothing where there are none."""
    table = to_watch(judgement.watch)
    return [] if table is None else [table]


# -- the newest readings ------------------------------------------------------------------------------------------

_METRICS = {  # words, the unit that is shown, its size in the stored unit
    "utilization": ("load", "%", 1.0),
    "power_mw": ("power", "W", 1e3),
    "temperature_c": ("temperature", "°C", 1.0),
    "memory_used": ("memory in use", "B", 1.0),
}


def newest_readings(now: FleetNow | None, at: datetime | None = None) -> Section | None:
    """Load, power, temperature and memory of the fleet, jobs that run and nodes that are silent; None where the store
    has no telemetry. `at`: the time of a live page (UTC, without a zone), which says how old the newest reading is."""
    if now is None:
        return None
    rows: list[Sequence[Cell]] = []
    for metric in now.metrics:
        word, unit, scale = _METRICS[metric.metric]
        median, low, high = (quantity(value / scale, unit) for value in (metric.median, metric.low, metric.high))
        rows.append((word, median, f"{low} to {high}", metric.n))
    columns: list[Column | str] = ["reading", "median", "lowest to highest", Column("GPUs", "count")]
    age = ""
    if at is not None and at >= now.newest:
        age = f", {duration((at - now.newest).total_seconds())} ago"
    parts: list[Part] = [Table(columns, rows)] if rows else []
    parts.append(f"The newest reading is of {second(now.newest)} UTC{age}.")
    if now.jobs:
        parts.append(
            f"{many(now.jobs, 'job')} running" + (f" on {many(now.job_gpus, 'GPU')}." if now.job_gpus else ".")
        )
    elif now.jobs == 0:  # accounting often tells of jobs that have ended only: whether others run is not known
        parts.append("No job is recorded as running.")
    if now.silent_nodes:
        nodes = f"{many(len(now.silent_nodes), 'node')}: {listed(now.silent_nodes, _NAMES)}"
        parts.append(f"No reading in the last {duration(FRESH_S)} from {nodes}.")
    if now.mute:
        parts.append(f"{many(now.mute, 'GPU')} not answering: lost, hung or waiting for a reset.")
    return Section("Now", parts, anchor="now")


# -- planted faults -----------------------------------------------------------------------------------------------


def planted_faults(
    planted: Sequence[Planted], judged: Judgement, campaign: Probed, names: Mapping[str, str]
) -> Section:
    """The faults that were put into simulated GPUs, beside what was found."""
    caught = sum(bool(fault.found) for fault in planted)
    healthy = [names.get(gpu, gpu) for gpu in falsely_named(planted, judged, campaign.gpus)]
    named = f"healthy GPUs that were named: {listed(healthy, _NAMES) if healthy else 'none'}"
    if not planted:
        return Section("Planted faults", [f"No fault was planted; {named}."])
    columns: TableColumns = [
        ("GPU", lambda fault: names.get(fault.gpu, fault.gpu)),
        ("planted", "kind"),
        ("result", lambda fault: f"found: {fault.found}" if fault.found else "missed"),
    ]
    if any(remark(fault) for fault in planted):
        columns.append((Column("remark", "sentence"), lambda fault: remark(fault) or ""))
    missed_first = sorted(planted, key=lambda fault: (bool(fault.found), fault.kind, fault.gpu))
    table = Table.of(missed_first, columns)
    lead = f"{caught} of {many(len(planted), 'planted fault')} found; {named}. The judge does not know this list."
    return Section("Planted faults", [table], lead)


# -- how much the GPUs differ -------------------------------------------------------------------------------------


def noun_of(campaign: Probed) -> str:
    """What a campaign runs is a probe; what other tools measured is a workload."""
    return "probe" if campaign.campaign else "workload"


def what_ran(campaign: Probed, gpus: int) -> str:
    """What was measured, in a sentence without a full stop."""
    simulated = "simulated " if campaign.simulated else ""
    nodes = campaign.gpus["node"].drop_nulls().n_unique()
    on_nodes = f" on {many(nodes, 'node')}" if nodes else ""
    upto = "up to " if campaign.maybe_twice else ""
    counted = many(gpus, " ".join(f"{simulated}{' and '.join(campaign.models)} GPU".split()))
    source = f"in campaign {campaign.campaign}" if campaign.campaign else f"on cluster {campaign.cluster}"
    return (
        f"{upto}{counted}{on_nodes} ran {many(len(campaign.probes), noun_of(campaign))} {source}: "
        f"{many(campaign.runs.height, 'run')}, {_valid(campaign)} of them valid"
    )


def _valid(campaign: Probed) -> str:
    from ...analysis.runs.measurements import SOUND

    valid = int(campaign.runs.select(SOUND.sum()).item())
    return "all" if valid == campaign.runs.height else f"{valid:,}"


def spread_table(rows: Sequence[Variability], noun: str) -> Table:
    """How much the GPUs differ in each probe, and what goes with a long time."""
    if all(row.n < 2 for row in rows):
        nothing = "One GPU was measured: there is none to compare it with."
        return Table.of(rows, [(noun, "workload"), ("median time", _with_unit)], "Times", nothing)
    columns: TableColumns = [
        (noun, "workload"),
        (Column("GPUs", "count"), "n"),
        ("median time [95 %]", _with_unit),
        (Column("spread, % [95 %]", "estimate", explains=_SPREAD), _fence),
        (Column("slowest GPU, % longer", "number", 1, explains=_SLOWEST), _longer),
        (Column("ρ clock", "estimate", drops=2, explains=_RHO), lambda row: _rho(row, "sm_clock")),
        (Column("ρ temp.", "estimate", drops=1, explains=_RHO), lambda row: _rho(row, "temperature")),
    ]
    return Table.of(rows, columns, "How much the GPUs differ")


def _fence(row: Variability) -> Cell:
    return _estimate(row.fence_pct, row.interval.get("fence_pct")) if row.n > 1 else None


def _longer(row: Variability) -> float | None:
    return None if row.worst_over_median is None or row.n < 2 else 100 * (row.worst_over_median - 1)


def _rho(row: Variability, name: str) -> Cell:
    correlation = row.correlation.get(name)
    return None if correlation is None else _estimate(correlation.spearman, correlation.interval)


def _estimate(value: float | None, bounds: tuple[float, float] | None) -> Cell:
    return None if value is None else (value, *(bounds or (None, None)))


def _with_unit(row: Variability) -> str:
    """The median GPU's time with its interval and unit."""
    bounds = row.interval.get("median") if row.n > 1 else None
    unit = f" {row.unit}" if row.unit else ""
    if bounds is None:
        return f"{number(row.median)}{unit}"
    places = max(interval_digits(*bounds), interval_digits(0, row.median) + 1)
    return f"{estimate(row.median, digits=places)} {interval(*bounds, digits=places, signed=False)}{unit}"


_SPREAD = (
    "From one Tukey fence of the GPUs' times to the other, in % of the median: four times the range of the middle half"
)
_SLOWEST = (
    "How much longer the slowest GPU takes than the median one: a job that waits for all its GPUs waits for it. It "
    "has no interval: no resample of the GPUs has a slower one"
)
_RHO = (
    "Whether slow GPUs have other clocks or temperatures, as a rank correlation: near +1 slow GPUs have high ones, "
    "near -1 low ones, near 0 there is no such rule"
)


def definitions(judged: Judgement, noun: str, replicates: int | None) -> Section:
    """What the words of a report mean, in a fold."""
    pairs = [
        (
            "stands out",
            f"chance does not explain how far a GPU is from the GPUs of its model, and the difference is large enough "
            f"to matter. {judged.looks:,} comparisons were made; of 100 GPUs that are named for their figures, at most "
            f"{100 * ERROR_RATE:g} should be healthy (Benjamini and Hochberg)",
        ),
        *((word, MEANINGS[word]) for word in ("suspected", "confirmed", "sitting", "p", "q")),
        ("cause", "a hint from clocks, power, temperature and events, and no diagnosis"),
        ("spread", _SPREAD),
        ("slowest GPU", _SLOWEST),
        ("ρ", _RHO),
        ("power and energy", "as the sensors report them"),
    ]
    if replicates:
        pairs.append(("[low, high]", f"a 95 % interval; that of a spread is by bootstrap, {replicates:,} replicates"))
    pairs.append((noun, "each GPU is compared with the median GPU of its model in the same " + noun))
    return Section(WORDS, [Facts(pairs)], folded=True, anchor="words")


# -- figures and conditions of the runs ---------------------------------------------------------------------------

_RUN_FIGURES = (  # column, head
    ("power_w", "power, W"),
    ("energy", "energy, J"),
    ("rate", "GFLOP/s"),
    ("operation_rate", "Gop/s"),
    ("bandwidth", "GB/s"),
    ("latency", "latency, ns"),
    ("efficiency", "GFLOP/J"),
    ("sm_clock_mhz", "clock, MHz"),
    ("temperature_c", "temp., °C"),
)


def run_figures(campaign: Probed) -> Table | None:
    """Power, rates and the other figures of each probe: the median GPU and the middle nine tenths."""
    figures = [(name, head) for name, head in _RUN_FIGURES if campaign.runs[name].is_not_null().any()]
    if not figures:
        return None
    figures_of_runs = campaign.runs.select("workload", "gpu", *(name for name, _ in figures))
    rows = []
    for probe in campaign.probes:
        runs = figures_of_runs.filter(pl.col("workload") == probe)
        rows.append([probe, runs["gpu"].n_unique(), *(_middle(runs[name]) for name, _ in figures)])
    columns: list[Column | str] = [
        noun_of(campaign),
        Column("GPUs", "count"),
        *(Column(head) for _, head in figures),
    ]
    below = "The median GPU (5th to 95th percentile)."
    if any(name in ("energy", "efficiency") for name, _ in figures):
        below += " Energy is that of one repetition, by the energy counter where there is one, else power times time."
    return Table(columns, rows, "Power, energy and rates", below)


def _middle(values: pl.Series) -> str | None:
    numbers = values.drop_nulls().cast(pl.Float64)
    if numbers.is_empty():
        return None
    low, middle, high = (number(numbers.quantile(at, "linear"), 3) for at in (0.05, 0.5, 0.95))
    return f"{middle} ({low} to {high})" if low != high else middle


def conditions(campaign: Probed) -> Table | None:
    """How each probe ran, where the runs say so: imported ones do not."""
    if not campaign.campaign:
        return None
    rows: list[dict[str, Any]] = []
    stated_of_runs = campaign.runs.select(
        "workload", "conditions", "began", "ended", "ended_by", "probe_version", "repeats"
    )
    for probe in campaign.probes:
        runs = stated_of_runs.filter(pl.col("workload") == probe)
        stated: dict[str, Any] = next(iter(runs["conditions"].drop_nulls()), {})
        window = (runs["ended"] - runs["began"]).dt.total_nanoseconds().drop_nulls() / 1e9
        endings = runs.group_by("ended_by").len().sort("len", descending=True).drop_nulls()
        rows.append(
            stated | {
                "probe": probe,
                "version": ", ".join(sorted(runs["probe_version"].drop_nulls().unique())),
                "repeats": _median(runs["repeats"].drop_nulls()),
                "window": _median(window),
                "ended by": "; ".join(f"{why} {count:,}" for why, count in endings.iter_rows()) or None,
            }
        )  # fmt: skip
    columns: TableColumns = [
        *((head, head) for head in ("probe", "version")),
        (Column("repeats", "count"), "repeats"),
        (Column("window, s", digits=2), "window"),
        ("ended by", "ended by"),
        ("FLOP", lambda row: _large(row.get("flop"))),
        ("bytes", lambda row: _large(row.get("bytes"))),
        ("path", lambda row: row.get("path")),
        ("clock", lambda row: clock_in_words(row.get("clock"), row.get("locked_clock_mhz")) or None),
        (Column("warm-up, s", digits=1), lambda row: row.get("warm_up_s")),
        (Column("input", "sentence"), lambda row: row.get("input")),
    ]
    below = (
        "Repeats and window: medians over the GPUs. Ended by: how many runs ended because the interval was narrow "
        "enough (precise), at a limit (of time, of repeats), with all work done (complete), or failed. FLOP and bytes: "
        "exact, for one repetition. The other columns are those of the first GPU's run; the store has them for every "
        "run."
    )
    return Table.of(rows, columns, "How the probes ran", below)


def _median(values: pl.Series) -> float | None:
    middle = values.median()
    return float(middle) if isinstance(middle, int | float) and middle > 0 else None


def _large(count: object) -> str | None:
    """A large count, to three digits, with a prefix."""
    return quantity(float(count), "B").removesuffix("B").strip() if isinstance(count, int | float) else None


def about(campaign: Probed) -> Facts:
    """What was measured, when, and with which software."""
    began = campaign.runs.select(pl.col("began").min()).item()
    ended = campaign.runs.select(pl.coalesce("ended", "began").max()).item()  # imported runs may say no end
    period = MISSING if began is None else f"{second(began)} to {second(ended)} UTC"
    pairs = [
        ("cluster", campaign.cluster),
        ("campaign", campaign.campaign or "none: all runs of the cluster"),
        *([("models", ", ".join(campaign.models))] if campaign.models else []),
        ("measured", f"{period}{', simulated' if campaign.simulated else ''}"),
    ]
    stated = campaign.runs["conditions"].struct.unnest()
    for key, name in (
        ("suite", "suite"),
        ("neighbours", "neighbours"),
        ("power_limit_w", "power limit, W"),
        ("seed", "seed of the inputs"),
        ("asked_precision", "target half width of the median's 95 % interval, as a share"),
        ("time_limit_s", "time limit of a probe, s"),
    ):
        values = stated[key].drop_nulls().unique().sort()
        if len(values):
            pairs.append(
                (name, ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values))
            )
    if versions := software(campaign.runs["versions"]):
        pairs.append(("versions", versions))
    return Facts(pairs)


def campaigns(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The newest campaigns of a store, of `analysis.contents.newest_campaigns`."""

    def measured(row: Mapping[str, Any]) -> str | None:
        of_all = "" if row["gpus"] is None else f" of {row['gpus']:,}"
        return None if row["measured"] is None else f"{row['measured']:,}{of_all}"

    columns: TableColumns = [
        (Column("campaign", page="fleet"), "campaign"),
        ("cluster", "cluster"),
        ("began (UTC)", lambda row: minute(row["began"])),
        ("ended (UTC)", lambda row: minute(row["ended"])),
        ("GPUs measured", measured),
        (Column("runs", "count"), "runs"),
    ]
    return Table.of(rows, columns)
