"""What the page Fleet shows of the GPUs of a cluster: which probe and figure an address means, where each GPU is in the
figures, and what a brush holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...analysis.fleet.side_by_side import (
    Beside,
    Comparable,
    Printed,
    beside,
    comparable,
    gpus_on,
    level_of,
    of_print,
    printed,
    runs_of,
)
from ...analysis.spread.variability import leading_workload
from ...analysis.verdicts import Judgement, Verdict
from ..document import Column, Table
from ..figures.drawing import Figure, Look, Scale, box, looks
from ..figures.fleet import (
    GPU_FIGURES,
    GpuFigure,
    Marks,
    Powered,
    Strips,
    against_power,
    printed_figure,
    strips,
)
from ..figures.machine import Grid, end_of, live_map
from .grid import MOST, GridOptions, frame_table
from .reading import judgements

if TYPE_CHECKING:
    from .reading import Reading
    from .state import State as Address

STRIPS, MAP, POWER = "fleet-strips", "fleet-map", "fleet-power"
FIGURES = (STRIPS, MAP, POWER)
"""Ids of the figures that can be brushed."""
CHOICES = ("cluster", "probe", "figure", "campaign")
_ALL = ""
_DIGITS = 5  # significant ones, of a time
_WHO = {
    "chosen": Column("chosen", explains="Choose a GPU: click the cell, or press Enter on it."),
    "label": Column("GPU", page="gpu"),
    "finding": Column("finding", explains="The worst verdict about the GPU or its node, of whorl verdicts"),
}
_MEASURED = {
    "slower_pct": Column("slower", "percent", 2, explains="Its time against the median GPU of its model"),
    "slower_pct_low slower_pct_high": Column("slower, 95 %", "interval", 2, "%"),
    "time": Column("time", "number", 4, "ms"),
    "power_w": Column("power", "number", 1, "W"),
    "sm_clock_mhz": Column("SM clock", "number", 0, "MHz"),
    "temperature_c": Column("temperature", "number", 1, "°C"),
    "n": Column("runs", "count"),
    "sittings": Column("sittings", "count", explains="Runs without a pause of 6 hours: they show how far it repeats"),
    "node": Column("node"),
    "cabinet": Column("cabinet"),
    "model": Column("model"),
}


# -- what an address asks for -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetChoice:
    """What an address asks for, of what there is."""

    cluster: Comparable
    clusters: tuple[str, ...]
    workload: str
    campaign: str | None
    figure: GpuFigure
    figures: tuple[GpuFigure, ...]
    printed: Printed | None
    """The figure of the fingerprint that is chosen, if it is of one."""

    @property
    def values(self) -> dict[str, str]:
        """What the fields of the head say."""
        values = self.cluster.cluster, self.workload, self.figure.key, self.campaign or _ALL
        return dict(zip(CHOICES, values, strict=True))


def choose(reading: Reading, state: Address) -> tuple[FleetChoice | None, list[str]]:
    """What an address asks for, None where there is nothing to compare; and sentences about what it names in vain."""
    clusters, problems = reading.answer(comparable), list[str]()
    if not clusters:
        return None, problems

    def chosen(value: str | None, names: Sequence[str], default: str, noun: str) -> str:
        if value is not None and value not in names:
            shown = f"{default} is" if default else f"all {noun}s are"
            problems.append(f"The store has no {noun} {value[:60]!r} here: {shown} shown.")
        return default if value is None or value not in names else value

    names = tuple(cluster.cluster for cluster in clusters)
    cluster = clusters[names.index(chosen(state.cluster, names, names[0], "cluster"))]
    workloads = [work.name for work in cluster.works]
    workload = state.probe
    if workload not in workloads:
        workload = chosen(workload, workloads, _first(reading, cluster), "probe")
    campaign = chosen(state.campaign, [campaign.name for campaign in cluster.campaigns], _ALL, "campaign") or None
    figures: dict[str, tuple[GpuFigure, Printed | None]] = {figure.key: (figure, None) for figure in GPU_FIGURES}
    if campaign is None:  # fingerprints are of all runs
        for print_ in reading.answer(printed, cluster.cluster, workload):
            figure = printed_figure(print_)
            figures[figure.key] = figure, print_
    key = chosen(state.figure, list(figures), GPU_FIGURES[0].key, "figure")
    every = tuple(figure for figure, _ in figures.values())
    return FleetChoice(cluster, names, workload, campaign, figures[key][0], every, figures[key][1]), problems


def _first(reading: Reading, cluster: Comparable) -> str:
    """The workload that is shown first: that of the worst finding; without findings the one that leads, which takes
    long to say."""
    workloads = [work.name for work in cluster.works]
    judged = [each.judgement for each in judgements(reading) if each.judgement.cluster == cluster.cluster]
    for verdict in (verdict for judgement in judged for verdict in judgement.rows):
        if shown := next((name for name in verdict.workloads if name in workloads), None):
            return shown
    leading = reading.answer(leading_workload, cluster.cluster)
    if leading is not None and leading.workload in workloads:
        return leading.workload
    return max(cluster.works, key=lambda work: work.gpus).name


@dataclass(frozen=True)
class Brush:
    """A rectangle in a figure: the GPUs within it are held. Its ends are values, as people read them on the axes."""

    figure: str
    x0: float
    x1: float
    y0: float
    y1: float

    @classmethod
    def parse(cls, text: str) -> Brush | None:
        """Of an address; None for a text that says no rectangle."""
        name, *ends = text.split(":")
        try:
            x0, x1, low, high = map(float, ends)
        except ValueError:
            return None
        is_figure = f"fleet-{name}" in FIGURES and all(map(isfinite, (x0, x1, low, high)))
        return cls(f"fleet-{name}", x0, x1, low, high) if is_figure else None

    def __str__(self) -> str:
        ends = (f"{end:.5g}" for end in (self.x0, self.x1, self.y0, self.y1))
        return ":".join([self.figure.removeprefix("fleet-"), *ends])


def brushes(state: Address) -> dict[str, Brush]:
    """The brushes of an address, by figure."""
    known = (Brush.parse(text) for text in state.brush)
    return {brush.figure: brush for brush in known if brush is not None}


# -- the GPUs in the figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetView:
    """All GPUs of a cluster, as the page shows them."""

    choice: FleetChoice
    beside: Beside
    judgement: Judgement | None
    """The newest one of the cluster; None where nobody has judged it."""
    level: str
    rows: pl.DataFrame
    """Those of `beside`, with `finding`, the columns of the figure, and where each GPU is drawn: `row` and `column` on
    the map, `strip`."""
    verdicts: dict[str, tuple[Verdict, ...]]
    """By GPU."""
    looks: dict[int, Look]
    """By row."""
    strips: Strips
    powered: Powered
    grid: Grid

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

    @property
    def axes(self) -> dict[str, tuple[str, str, Scale | None]]:
        """Of each figure, the columns of its axes, and the scale on which the upright one is drawn; None as it is."""
        return {
            STRIPS: ("strip", self.choice.figure.apart, self.strips.scale),
            POWER: ("power_w", "slower_pct", self.powered.scale),
            MAP: ("column", "row", None),
        }

    def held(self, state: Address) -> pl.Series | None:
        """Which rows the brushes hold, as booleans; None where there is none."""
        axes = self.axes
        tests = [
            pl.col(name).is_between(*ends).fill_null(value=False)
            for figure, brush in brushes(state).items()
            for name, ends in zip(axes[figure][:2], ((brush.x0, brush.x1), (brush.y0, brush.y1)), strict=True)
        ]
        return self.rows.select(pl.all_horizontal(tests).alias("held"))["held"] if tests else None

    def picked(self, state: Address) -> list[int]:
        """The rows of the GPUs that are chosen."""
        return [self.numbers[gpu] for gpu in state.gpu if gpu in self.numbers]

    def figures(self, state: Address) -> list[Figure]:
        """Those that can be brushed."""
        figure, held, keys = self.choice.figure, self.held(state), self.rows["gpu"].to_list()
        is_held = None if held is None else held.to_numpy()
        marks = Marks(self.rows["label"].to_list(), self.looks, live=True, picked=self.picked(state), held=is_held)
        values = dict(self.rows.select("gpu", pl.col(figure.apart).cast(pl.Float64)).drop_nulls().iter_rows())
        end = end_of(self.rows[figure.apart], figure.apart_unit)
        drawn = {
            STRIPS: strips(self.strips, marks),
            MAP: live_map(self.grid, values, figure.difference, end, marks, keys),
            POWER: against_power(self.powered, marks),
        }
        edges = {}
        for name, brush in brushes(state).items():
            ends, scale = (brush.y0, brush.y1), self.axes[name][2]
            edges[name] = [box(brush.x0, brush.x1, *(ends if scale is None else scale.bend(ends).tolist()))]
        for name, chart in drawn.items():
            chart.layout.update(
                dragmode="select",
                uirevision=str(self.choice.values),
                selections=[],
                selectionrevision=state.search(),
                shapes=edges.get(name, []),
            )
        return [drawn[name] for name in FIGURES]

    def brushed(self, state: Address, figure: str, ends: dict[str, list[float]] | None) -> Address:
        """The state after a brush in a figure, which takes the place of the earlier one there.

        `ends`: those on both axes, "x" and "y", as they are drawn; None takes the brush away.
        """
        drawn = brushes(state)
        drawn.pop(figure, None)
        if ends is not None:
            (x0, x1), (low, high) = (sorted(ends[axis][:2]) for axis in ("x", "y"))
            scale = self.axes[figure][2]
            values = (low, high) if scale is None else (scale.unbend(low), scale.unbend(high))
            drawn[figure] = Brush(figure, x0, x1, *values)
        return replace(state, brush=tuple(map(str, drawn.values())))

    def pointed(self, figure: str, event: dict[str, Any] | None) -> int | None:
        """The row of the GPU that the mouse is on. `event`: what Plotly says of it."""
        places = (event or {}).get("points") or []
        if not places:
            return None
        point = places[0]
        if figure == MAP:
            return self.cells.get((round(point["y"]), round(point["x"])))
        row = point.get("customdata") if point.get("curveNumber") else point.get("pointNumber")
        row = row[0] if isinstance(row, list) else row
        return row if isinstance(row, int) and 0 <= row < self.rows.height else None

    def table(self, state: Address) -> tuple[Table, GridOptions]:
        """The GPUs that the brush holds, the slowest or the highest first; of very many, those that are farthest from
        the median. A figure of the fingerprint has columns of its own."""
        figure, held = self.choice.figure, self.held(state)
        picked = np.zeros(self.rows.height, dtype=bool)
        picked[self.picked(state)] = True
        mark = pl.when(pl.Series(picked)).then(pl.lit("☑")).otherwise(pl.lit("☐"))
        rows = self.rows.with_columns(mark.alias("chosen"))
        rows = rows if held is None else rows.filter(held)
        if rows.height > MOST:
            rows = rows.sort(pl.col(figure.apart).abs(), descending=True, nulls_last=True).head(MOST)
        typical = self.rows["time"].median()
        digits = 4 if not isinstance(typical, float) else min(max(_DIGITS - 1 - floor(log10(typical)), 0), 9)
        of_gpu = {
            figure.value: Column(figure.name, "number", figure.digits, figure.unit),
            f"{figure.value}_low {figure.value}_high": Column(f"{figure.name}, 95 %", "interval", figure.digits),
            f"{figure.key}_n": Column("its runs", "count"),
        }
        columns = {**_WHO, **({} if figure in GPU_FIGURES else of_gpu), **_MEASURED}
        columns["time"] = replace(columns["time"], digits=digits)
        sort = figure.apart if figure is GPU_FIGURES[0] else figure.value
        return frame_table(rows, columns, "All GPUs"), GridOptions(list(columns), rows["gpu"].to_list(), sort)


def view(reading: Reading, choice: FleetChoice) -> FleetView:
    """What is shown; kept until the store changes. Raises InputError where the runs are gone."""
    cluster, workload, campaign = choice.cluster.cluster, choice.workload, choice.campaign

    def read_probe() -> Beside:
        return beside(
            runs_of(reading.store, cluster, workload, campaign=campaign, known=reading.answer(gpus_on, cluster))
        )

    def make() -> FleetView:
        gpus = reading.kept(("beside", cluster, workload, campaign), read_probe)
        # Of 27,648 GPUs, who they are and where their cells lie is half of what another probe takes.
        grid = reading.kept(("grid", cluster, *gpus.rows["gpu"]), lambda: Grid.of(gpus.rows))
        judged = next((each.judgement for each in judgements(reading) if each.judgement.cluster == cluster), None)
        prints = None if choice.printed is None else reading.answer(of_print, cluster, choice.printed)
        return placed(choice, gpus, grid, judged, prints)

    return reading.kept(("fleet", *choice.values.values()), make)


def placed(
    choice: FleetChoice, gpus: Beside, grid: Grid, judgement: Judgement | None, prints: pl.DataFrame | None = None
) -> FleetView:
    """The GPUs where they stand in the figures. `prints`: of `of_print`, where a figure of the fingerprint is shown."""
    rows, figure = gpus.rows, choice.figure
    verdicts = {} if judgement is None else judgement.by_key(rows)
    finding = pl.lit(None, pl.String).alias("finding") if judgement is None else judgement.worst(rows)
    rows = rows.with_columns(finding)
    if prints is not None:
        rows = rows.join(prints, on="gpu", how="left", maintain_order="left")
    level = level_of(rows)
    strips_of = Strips.of(rows, figure, level)
    cells = np.array([grid.cell[gpu] for gpu in rows["gpu"].to_list()], dtype=np.int32).reshape(-1, 2)
    rows = rows.with_columns(
        pl.Series("row", cells[:, 0]), pl.Series("column", cells[:, 1]), pl.Series("strip", strips_of.x)
    )
    numbers = {gpu: row for row, gpu in enumerate(rows["gpu"].to_list())}
    marked = {numbers[gpu]: look for gpu, look in looks(verdicts).items()}
    return FleetView(choice, gpus, judgement, level, rows, dict(verdicts), marked, strips_of, Powered.of(rows), grid)
