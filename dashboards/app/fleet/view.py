"""What the page shows: which cluster, probe and figure an address means, and where each GPU is in the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ....analysis.fleet.beside import Beside, Printed, beside, held, is_ratio, of_print, printed
from ....analysis.fleet.runs_of import Comparable, comparable, gpus_on, runs_of
from ....analysis.fleet.side_by_side import level_of
from ....analysis.fleet.trend import Trend, trend
from ....analysis.spread.summary import leading_workload
from ....analysis.verdicts import Judgement, Verdict
from ....analysis.verdicts.judgements import newest
from ...figures.fleet import GPU_FIGURES, GpuFigure, Powered, Strips, find, printed_figure
from ...figures.looks import Look, looks
from ...figures.machine import Grid, Shades, end_of, sent

if TYPE_CHECKING:
    from ....analysis.runs.probing import Probed
    from ..reading import Reading
    from ..state import State

LEVELS = ("cabinet", "node")


@dataclass(frozen=True)
class Asked:
    """What an address asks for, of what there is."""

    cluster: Comparable
    clusters: tuple[str, ...]
    workload: str
    campaign: str | None
    figure: GpuFigure
    figures: tuple[GpuFigure, ...]
    printed: Printed | None
    """The figure of the fingerprint that is shown, if it is one."""
    by: str | None

    @property
    def key(self) -> tuple[str | None, ...]:
        """What the figures depend on."""
        return self.cluster.cluster, self.workload, self.campaign, self.figure.key, self.by


@dataclass(frozen=True)
class View:
    """All GPUs of a cluster, as the page shows them."""

    asked: Asked
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
        found = [
            f"There is no column {one.column!r} to brush here: that range is left out."
            for one in state.range
            if one.column not in self.rows.columns or not self.rows.schema[one.column].is_numeric()
        ]
        found += [
            f"A place is written as cabinet:NAME or node:NAME; {':'.join((column, value))!r} is left out."
            for column, _, value in self._places(state)
            if column not in LEVELS
        ]
        unknown = [gpu for gpu in state.gpu if gpu not in self.numbers]
        if unknown:
            found.append(f"Cluster {self.asked.cluster.cluster} has no GPU {unknown[0][:60]!r}.")
        return found

    @staticmethod
    def _places(state: State) -> list[tuple[str, str, str]]:
        return [one.partition(":") for one in state.place]

    def shades(self, rows: pl.Series | None = None) -> Shades:
        """How far each GPU is from the median, as cells of the map; of those rows, or all."""
        shown = self.rows if rows is None else self.rows.filter(rows)
        known = shown.select("row", "column", pl.col(self.asked.figure.apart).cast(pl.Float64)).drop_nulls()
        row, column, apart = (one.to_numpy() for one in known)
        return self.grid.placed(row, column, apart, self.end)

    def cells_of(self, rows: pl.Series) -> NDArray[np.int8]:
        """The cells of the map of these rows."""
        return sent(self.shades(rows))


def ask(reading: Reading, state: State) -> tuple[Asked | None, tuple[str, ...]]:
    """What an address asks for, None where there is nothing to compare; and sentences about what it names in vain."""
    there = reading.answer(comparable)
    if not there:
        return None, ()
    problems: list[str] = []

    def chosen(given: str | None, known: Sequence[str], default: str | None, what: str) -> str | None:
        if given is None or given in known:
            return given if given is not None else default
        instead = default or f"all {what}s"
        shown = f"{instead} {'are' if default is None else 'is'} shown"
        problems.append(f"The store has no {what} {given[:60]!r} here: {shown}.")
        return default

    names = tuple(one.cluster for one in there)
    name = chosen(state.cluster, names, names[0], "cluster")
    cluster = next(one for one in there if one.cluster == name)
    works = [one.name for one in cluster.works]
    workload = chosen(state.probe, works, _first(reading, cluster), "probe") or works[0]
    campaign = chosen(state.campaign, [one.name for one in cluster.campaigns], None, "campaign")
    words, prints = list(GPU_FIGURES), {}
    if campaign is None:  # fingerprints are of all runs
        for one in reading.answer(printed, cluster.cluster, workload):
            own = printed_figure(one, ratio=reading.answer(is_ratio, cluster.cluster, one))
            words.append(own)
            prints[own.key] = one
    if state.figure is not None and state.figure not in {one.key for one in words}:
        problems.append(f"There is no figure {state.figure[:60]!r} here: time is shown.")
    shown = find(words, state.figure)
    by = state.by if state.by in LEVELS else None
    if state.by is not None and by is None:
        problems.append(f"Strips are by {' or '.join(LEVELS)}, not by {state.by[:60]!r}: that is left out.")
    asked = Asked(cluster, names, workload, campaign, shown, tuple(words), prints.get(shown.key), by)
    return asked, tuple(problems)


def _first(reading: Reading, cluster: Comparable) -> str:
    """The probe to look at first: that which a report leads with; without any, the one with most GPUs."""
    leading = reading.answer(leading_workload, cluster.cluster)
    names = {one.name for one in cluster.works}
    if leading is not None and leading.workload in names:
        return leading.workload
    return max(cluster.works, key=lambda one: one.gpus).name


def view(reading: Reading, asked: Asked, read: Callable[[], Probed] | None = None) -> View:
    """What is shown; kept until the store changes. `read`: gives its runs. InputError where the runs are gone."""
    of = asked.cluster.cluster, asked.workload, asked.campaign
    return reading.kept(("fleet", *asked.key), lambda: _view(reading, asked, read or partial(runs, reading, *of)))


def _view(reading: Reading, asked: Asked, read: Callable[[], Probed]) -> View:
    cluster = asked.cluster.cluster
    judged = next((one for one in reading.answer(newest) if one.cluster == cluster), None)
    own = None if asked.printed is None else reading.answer(of_print, cluster, asked.printed)
    found = reading.kept(("beside", cluster, asked.workload, asked.campaign), lambda: beside(read()))
    return placed(asked, found, judged, own)


def runs(reading: Reading, cluster: str, workload: str, campaign: str | None = None) -> Probed:
    """The runs that are compared. Those of a large fleet take long to read: who needs them at once reads them once."""
    known = reading.answer(gpus_on, cluster)
    asked = cluster, workload, campaign
    return reading.shared(("runs", *asked), lambda: runs_of(reading.store, *asked, known))


def trend_of(reading: Reading, cluster: str, workload: str, read: Callable[[], Probed] | None = None) -> Trend | None:
    """The trend of a workload; None where no run with a time has a date. `read`: gives its runs."""
    read = read or partial(runs, reading, cluster, workload)
    return reading.kept(("trend", cluster, workload), lambda: trend(read()))


def placed(asked: Asked, found: Beside, judged: Judgement | None, own: pl.DataFrame | None = None) -> View:
    """The GPUs where they stand in the figures. `own`: of `of_print`, where a figure of the fingerprint is shown."""
    rows = found.rows
    verdicts = {} if judged is None else judged.by_key(rows)
    finding = pl.lit(None, pl.String).alias("finding") if judged is None else judged.worst(rows)
    rows = rows.with_columns(finding)
    if own is not None:
        rows = rows.join(own, on="gpu", how="left", maintain_order="left")
    grid = Grid.of(rows)
    cells = [grid.cell[gpu] for gpu in rows["gpu"].to_list()]
    rows = rows.with_columns(
        pl.Series("row", [row for row, _ in cells], dtype=pl.Int32),
        pl.Series("column", [column for _, column in cells], dtype=pl.Int32),
    )
    level = asked.by or level_of(rows)
    rows = rows.with_columns(pl.col(asked.figure.apart).median().over(level).alias(f"{level}_median"))
    numbers = {gpu: row for row, gpu in enumerate(rows["gpu"].to_list())}
    words = asked.figure
    return View(
        asked,
        found,
        judged,
        level,
        rows,
        dict(verdicts),
        {numbers[gpu]: look for gpu, look in looks(verdicts).items()},
        Strips.of(rows, words, level),
        Powered.of(rows),
        grid,
        end_of(rows[words.apart], words.apart_unit),
    )
