"""What the page Fleet shows: which cluster, probe and figure an address means, where each GPU is in the figures, and
what a brush holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ....analysis.fleet.side_by_side import (
    Beside,
    Comparable,
    Printed,
    Range,
    beside,
    comparable,
    gpus_on,
    held,
    is_ratio,
    level_of,
    of_print,
    printed,
    runs_of,
)
from ....analysis.fleet.timelines import Trend, trend
from ....analysis.spread.variability import leading_workload
from ....analysis.verdicts import Judgement, Verdict
from ....analysis.verdicts.judgements import newest
from ...figures.fleet import GPU_FIGURES, UNIT, GpuFigure, Powered, Strips, find, printed_figure
from ...figures.looks import Look, Scale, box, looks
from ...figures.machine import Grid, Shades, end_of, sent

if TYPE_CHECKING:
    from ....analysis.runs.probing import Probed
    from ..reading import Reading
    from ..state import State

STRIPS, MAP, POWER = "fleet-strips", "fleet-map", "fleet-power"
FIGURES = (STRIPS, MAP, POWER)
"""Ids of the figures that can be brushed."""
LEVELS = ("cabinet", "node")
_PLACES = 12  # that an address names; more are a range of their medians
_EDGE = 0.015  # of an axis: a brush that ends so near to the edge has no end there
_FAR = 1e4  # beyond every axis, as it is drawn


@dataclass(frozen=True)
class Choice:
    """What an address asks for, of what there is."""

    cluster: Comparable
    clusters: tuple[str, ...]
    workload: str
    campaign: str | None
    figure: GpuFigure
    figures: tuple[GpuFigure, ...]
    printed: Printed | None
    """The figure of the fingerprint that is chosen, if it is of one."""
    by: str | None

    @property
    def key(self) -> tuple[str | None, ...]:
        """What the figures depend on."""
        return self.cluster.cluster, self.workload, self.campaign, self.figure.key, self.by


@dataclass(frozen=True)
class View:
    """All GPUs of a cluster, as the page shows them."""

    choice: Choice
    beside: Beside
    judgement: Judgement | None
    """The newest one of the cluster; None where nobody has judged it."""
    level: str
    rows: pl.DataFrame
    """Those of `beside`, with `row` and `column` on the map, `finding`, the columns of the figure, and the median of
    the GPU's strip in it (`cabinet_median` or `node_median`)."""
    verdicts: dict[str, tuple[Verdict, ...]]
    """By GPU."""
    looks: dict[int, Look]
    """By row."""
    strips: Strips
    powered: Powered
    grid: Grid
    end: float
    """Where the colours of the map end."""

    @cached_property
    def names(self) -> list[str]:
        """What each row's GPU is called."""
        return self.rows["label"].to_list()

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each GPU, by its key and by its name where that is of one GPU."""
        by_name: dict[str, int] = {}
        for column in ("label", "name"):
            once = self.rows[column].is_unique().arg_true()
            by_name |= zip(self.rows[column].gather(once).to_list(), once.to_list(), strict=True)
        return by_name | {gpu: row for row, gpu in enumerate(self.rows["gpu"].to_list())}

    @cached_property
    def cells(self) -> dict[tuple[int, int], int]:
        """The row of the GPU of each cell of the map."""
        return {self.grid.cell[gpu]: row for row, gpu in enumerate(self.rows["gpu"].to_list())}

    def called(self, row: int) -> str:
        """What a GPU is called in an address: its name, or its key where several have that name."""
        name = self.rows["name"][row]
        return str(name) if self.numbers.get(name) == row else str(self.rows["gpu"][row])

    def held(self, state: State) -> pl.Series | None:
        """Which rows the brush holds; None where there is no brush."""
        if not state.range and not state.place:
            return None
        return held(self.rows, state.range, [(column, value) for column, _, value in self._places(state)])

    def picked(self, state: State) -> list[int]:
        """The rows of the GPUs that are chosen."""
        return [self.numbers[gpu] for gpu in state.gpu if gpu in self.numbers]

    def problems(self, state: State) -> list[str]:
        """What a brush or a choice names and is not there, in sentences."""
        schema = self.rows.schema
        sentences = [
            f"There is no column {span.column!r} to brush here: that range is left out."
            for span in state.range
            if span.column not in schema or not schema[span.column].is_numeric()
        ]
        sentences += [
            f"A place is written as cabinet:NAME or node:NAME; {':'.join((column, value))!r} is left out."
            for column, _, value in self._places(state)
            if column not in LEVELS
        ]
        if unknown := [gpu for gpu in state.gpu if gpu not in self.numbers]:
            sentences.append(f"Cluster {self.choice.cluster.cluster} has no GPU {unknown[0][:60]!r}.")
        return sentences

    @staticmethod
    def _places(state: State) -> list[tuple[str, str, str]]:
        return [place.partition(":") for place in state.place]

    def shades(self, rows: pl.Series | None = None) -> Shades:
        """How far each GPU is from the median, as cells of the map; of those rows, or all."""
        frame = self.rows if rows is None else self.rows.filter(rows)
        numbers = frame.select("row", "column", pl.col(self.choice.figure.apart).cast(pl.Float64)).drop_nulls()
        row, column, apart = (series.to_numpy() for series in numbers)
        return self.grid.placed(row, column, apart, self.end)

    def cells_of(self, rows: pl.Series) -> NDArray[np.int8]:
        """The cells of the map of these rows."""
        return sent(self.shades(rows))


# -- what an address means ----------------------------------------------------------------------------------------


def choose(reading: Reading, state: State) -> tuple[Choice | None, tuple[str, ...]]:
    """What an address asks for, None where there is nothing to compare; and sentences about what it names in vain."""
    clusters = reading.answer(comparable)
    if not clusters:
        return None, ()
    problems: list[str] = []

    def chosen(value: str | None, names: Sequence[str], default: str | None, noun: str) -> str | None:
        if value is None or value in names:
            return value if value is not None else default
        instead = default or f"all {noun}s"
        problems.append(
            f"The store has no {noun} {value[:60]!r} here: {instead} {'are' if default is None else 'is'} shown."
        )
        return default

    names = tuple(cluster.cluster for cluster in clusters)
    name = chosen(state.cluster, names, names[0], "cluster")
    cluster = next(cluster for cluster in clusters if cluster.cluster == name)
    workloads = [work.name for work in cluster.works]
    workload = chosen(state.probe, workloads, _first_workload(reading, cluster), "probe") or workloads[0]
    campaign = chosen(state.campaign, [campaign.name for campaign in cluster.campaigns], None, "campaign")
    gpu_figures, prints = list(GPU_FIGURES), {}
    if campaign is None:  # fingerprints are of all runs
        for print_ in reading.answer(printed, cluster.cluster, workload):
            figure = printed_figure(print_, ratio=reading.answer(is_ratio, cluster.cluster, print_))
            gpu_figures.append(figure)
            prints[figure.key] = print_
    if state.figure is not None and state.figure not in {figure.key for figure in gpu_figures}:
        problems.append(f"There is no figure {state.figure[:60]!r} here: time is shown.")
    figure = find(gpu_figures, state.figure)
    by = state.by if state.by in LEVELS else None
    if state.by is not None and by is None:
        problems.append(f"Strips are by {' or '.join(LEVELS)}, not by {state.by[:60]!r}: that is left out.")
    prints_of_figure = prints.get(figure.key)
    return Choice(cluster, names, workload, campaign, figure, tuple(gpu_figures), prints_of_figure, by), tuple(problems)


def _first_workload(reading: Reading, cluster: Comparable) -> str:
    """The probe to look at first: that which a report leads with; without any, the one with most GPUs."""
    leading = reading.answer(leading_workload, cluster.cluster)
    if leading is not None and leading.workload in {work.name for work in cluster.works}:
        return leading.workload
    return max(cluster.works, key=lambda work: work.gpus).name


def view(reading: Reading, choice: Choice, read: Callable[[], Probed] | None = None) -> View:
    """What is shown; kept until the store changes. `read`: gives its runs. InputError where the runs are gone."""
    cluster = choice.cluster.cluster
    key = cluster, choice.workload, choice.campaign
    read_runs = read or partial(runs, reading, *key)

    def make() -> View:
        judgement = next((each for each in reading.answer(newest) if each.cluster == cluster), None)
        prints = None if choice.printed is None else reading.answer(of_print, cluster, choice.printed)
        return placed(choice, reading.kept(("beside", *key), lambda: beside(read_runs())), judgement, prints)

    return reading.kept(("fleet", *choice.key), make)


def runs(reading: Reading, cluster: str, workload: str, campaign: str | None = None) -> Probed:
    """The runs that are compared. Those of a large fleet take long to read: who needs them at once reads them once."""
    gpus = reading.answer(gpus_on, cluster)
    key = cluster, workload, campaign
    return reading.shared(("runs", *key), lambda: runs_of(reading.store, *key, gpus))


def trend_of(reading: Reading, cluster: str, workload: str, read: Callable[[], Probed] | None = None) -> Trend | None:
    """The trend of a workload; None where no run with a time has a date. `read`: gives its runs."""
    read_runs = read or partial(runs, reading, cluster, workload)
    return reading.kept(("trend", cluster, workload), lambda: trend(read_runs()))


def placed(choice: Choice, gpus: Beside, judgement: Judgement | None, prints: pl.DataFrame | None = None) -> View:
    """The GPUs where they stand in the figures. `prints`: of `of_print`, where a figure of the fingerprint is shown."""
    rows = gpus.rows
    verdicts = {} if judgement is None else judgement.by_key(rows)
    finding = pl.lit(None, pl.String).alias("finding") if judgement is None else judgement.worst(rows)
    rows = rows.with_columns(finding)
    if prints is not None:
        rows = rows.join(prints, on="gpu", how="left", maintain_order="left")
    grid = Grid.of(rows)
    cells = [grid.cell[gpu] for gpu in rows["gpu"].to_list()]
    rows = rows.with_columns(
        pl.Series("row", [row for row, _ in cells], dtype=pl.Int32),
        pl.Series("column", [column for _, column in cells], dtype=pl.Int32),
    )
    figure, level = choice.figure, choice.by or level_of(rows)
    rows = rows.with_columns(pl.col(figure.apart).median().over(level).alias(f"{level}_median"))
    numbers = {gpu: row for row, gpu in enumerate(rows["gpu"].to_list())}
    return View(
        choice,
        gpus,
        judgement,
        level,
        rows,
        dict(verdicts),
        {numbers[gpu]: look for gpu, look in looks(verdicts).items()},
        Strips.of(rows, figure, level),
        Powered.of(rows),
        grid,
        end_of(rows[figure.apart], figure.apart_unit),
    )


# -- a brush ------------------------------------------------------------------------------------------------------


def brushed_state(shown_view: View, state: State, figure: str, ends: dict[str, list[float]] | None) -> State:
    """The state after a brush in a figure: it takes the place of the earlier brush there, and leaves the others'.

    `ends`: those on both axes, "x" and "y", as they are drawn; None takes the brush away.
    """
    apart, level = shown_view.choice.figure.apart, shown_view.level
    columns = {STRIPS: (apart, f"{level}_median"), POWER: ("power_w", "slower_pct"), MAP: ("row", "column")}
    others = tuple(span for span in state.range if span.column not in columns[figure])
    places = () if figure == STRIPS else state.place
    if ends is None:
        return replace(state, range=others, place=places)
    (left, right), (low, high) = (sorted(ends[axis][:2]) for axis in ("x", "y"))
    if figure == MAP:
        spans = [Range("row", math.ceil(low), math.floor(high)), Range("column", math.ceil(left), math.floor(right))]
    elif figure == POWER:
        slower = Range("slower_pct", *_unbent(shown_view.powered.scale, low, high, shown_view.powered.y))
        if not any(span.column == "power_w" for span in state.range):  # an earlier range of times is that of the strips
            slower = _narrowed(slower, next((span for span in state.range if span.column == "slower_pct"), slower))
        spans = [Range("power_w", round(left, 1), round(right, 1)), slower]
    else:
        spans = [Range(apart, *_unbent(shown_view.strips.scale, low, high, shown_view.strips.y))]
        names = shown_view.strips.places_between(left, right)
        if names is not None and len(names) <= _PLACES:
            places = tuple(f"{level}:{name}" for name in names)
        elif names is not None:  # the strips are in the order of their medians
            spans.append(Range(f"{level}_median", *shown_view.strips.medians(names)))
    bounded = [span for span in spans if span.low <= span.high and not (math.isinf(span.low) and math.isinf(span.high))]
    return replace(state, range=(*others, *bounded), place=places)


def _narrowed(span: Range, by: Range) -> Range:
    """The part that is in both ranges; the first where nothing is."""
    low, high = max(span.low, by.low), min(span.high, by.high)
    return Range(span.column, low, high) if low <= high else span


def _unbent(scale: Scale, low: float, high: float, places: Any) -> tuple[float, float]:
    """The values between two ends on an axis; no end where there is nothing beyond it."""
    finite = places[np.isfinite(places)]
    least, most = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    near = _EDGE * (most - least)
    return (
        -math.inf if low <= least - near else scale.unbend(low),
        math.inf if high >= most + near else scale.unbend(high),
    )


def edges(shown_view: View, state: State) -> dict[str, list[dict[str, Any]]]:
    """The edges of the brush, by figure."""
    spans = {span.column: span for span in state.range}
    shapes: dict[str, list[dict[str, Any]]] = {name: [] for name in FIGURES}

    def ends(name: str, low: float, high: float, scale: Scale | None = None) -> tuple[float, float]:
        """Those of a range, within those of an axis."""
        span = spans.get(name)
        if span is None:
            return low, high
        if scale is None:
            return max(span.low, low), min(span.high, high)
        bent = (end if math.isinf(end) else float(scale.bend(end)) for end in (span.low, span.high))
        return max(next(bent), low), min(next(bent), high)

    apart, grid, powered = shown_view.choice.figure.apart, shown_view.grid, shown_view.powered
    if apart in spans:
        width = (-0.6 * UNIT, UNIT * (len(shown_view.strips.places) - 0.4))
        shapes[STRIPS] = [box(*width, *ends(apart, -_FAR, _FAR, shown_view.strips.scale))]
    if "slower_pct" in spans or "power_w" in spans:
        slower = ends("slower_pct", -_FAR, _FAR, powered.scale)
        shapes[POWER] = [box(*ends("power_w", *powered.reach), *slower)]
    if "row" in spans or "column" in spans:
        (left, right), (top, bottom) = ends("column", 0, grid.columns), ends("row", 0, grid.rows)
        shapes[MAP] = [box(left - 0.5, right + 0.5, top - 0.5, bottom + 0.5)]
    return shapes
