"""The energy of a time: what was metered, whose it was by day and by user, and whether the books balance."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Dash, html

from ....analysis.energy.answers import FIRST, By, EnergySummary
from ...energy_table import PROBLEM_COLUMNS, PROBLEM_HEADS, EnergyColumn, EnergyFrame, energy_frame, problem_frame
from ...energy_tiles import costs, metered
from ...energy_words import books_sentences, books_title, explained, problem_kinds
from ...figures.energy_books import CLUSTERS, books
from ...figures.energy_users import largest
from ..grid import Column, serve, table
from ..page import command, graph, prose, rows, section, tiles, told
from ..state import parse
from .address import BYS, EnergyAddress, address_of, later_summary

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

PROBLEMS = "energy-problems"
_SENT = 200  # rows that are sent with the page
_HIGH_PX = 520


def grid_columns(columns: Sequence[EnergyColumn]) -> list[Column]:
    """The columns of a table that a page has."""
    return [Column(**{"title": column.title, **column.grid}) for column in columns if column.grid is not None]


def register(app: Dash, reading: Reading) -> None:
    """Answer what the tables ask for."""

    def frame(by: By, search: str | None) -> EnergyFrame:
        summary = later_summary(reading, address_of(parse(search)[0]).state).answer
        return EnergyFrame(pl.DataFrame()) if summary is None else energy_frame(summary.answers[by])

    def columns(by: By, search: str | None) -> list[Column]:
        return grid_columns(frame(by, search).columns)

    def frame_rows(by: By, search: str | None) -> pl.DataFrame:
        return frame(by, search).rows

    def problems(search: str | None) -> pl.DataFrame:
        later = later_summary(reading, address_of(parse(search)[0]).state)
        if later.answer is None:
            return pl.DataFrame()
        balance = later.answer.balance
        return reading.kept(("problems in words", search, later.made_at), lambda: problem_frame(balance))

    follows: Any = {"follows": ("cluster", "since", "until", "last")}
    for by in By:
        serve(app, _grid(by), partial(columns, by), partial(frame_rows, by), file=f"energy-{by}.csv", **follows)
    problem_columns = grid_columns(PROBLEM_COLUMNS)
    serve(app, PROBLEMS, lambda _: problem_columns, problems, file="energy-problems.csv", **follows)


def body(summary: EnergySummary, address: EnergyAddress, store: Path) -> list[Component]:
    """The page. `store`: where the store is."""
    cut = "There are very many readings, so that only the last part of them is shown. Choose a longer time above."
    figures = metered(summary) + (costs(summary.total, summary.booked) if summary.total else [])
    same = command(_command(summary, address, store))
    return [
        *(told(html.P(prose(note))) for note in address.notes),
        *([told(html.P(cut))] if summary.cut else []),
        tiles(figures),
        sentences(explained(summary.answers[address.by], store)),
        _by_day(summary),
        _by(summary, address),
        _books(summary),
        section("The same in a terminal", same, says="With --json and --csv for programs."),
    ]


def sentences(texts: Any) -> Component:
    """Sentences about figures, as a list."""
    return html.Ul([html.Li(prose(text)) for text in texts], className="soft says")


def _by_day(summary: EnergySummary) -> Component:
    days = summary.answers[By.DAY].rows
    says = "Days are in UTC. The line at the end of a bar: 95 % interval of what was metered."
    if days["cluster"].n_unique() > CLUSTERS:
        says += f" The first {CLUSTERS} clusters are drawn: choose one above."
    drawn = graph(books(days), "Energy of each day: of jobs, idle and unattributed", id="energy-days")
    return section("Where the energy went, day by day", drawn, says=says)


def _by(summary: EnergySummary, address: EnergyAddress) -> Component:
    by, answer = address.by, summary.answers[address.by]
    several = address.state.cluster is None and answer.rows["cluster"].n_unique() > 1
    frame, label, drawn = energy_frame(answer), f"Energy by {BYS[by]}", []
    if by is not By.DAY:
        figure = largest(by, answer.rows, FIRST, summary.beyond[by], several=several)
        drawn.append(graph(figure, f"{label}, the largest first", id="energy-largest"))
    listed = _table(_grid(by), frame.columns, frame.rows, label)
    says = "With 95 % intervals. n is the number of GPUs."
    if summary.n[by] > answer.rows.height:
        says += f" The {answer.rows.height:,} largest of {summary.n[by]:,} rows: the command below gives all."
    return section(label, *drawn, listed, says=says)


def _books(summary: EnergySummary) -> Component:
    balance = summary.balance
    title, basis, kinds = books_title(balance), sentences(books_sentences(balance)), problem_kinds(balance)
    if not kinds:
        return section(title, basis, told(html.P("No problems were found in the readings and jobs.")))
    cells = [[*kind[:3], *(None if text is None else prose(text) for text in kind[3:])] for kind in kinds]
    listed = rows(PROBLEM_HEADS, cells, right=(1, 2), wrapped=(3, 4), label="Problems of the readings and jobs")
    few = problem_frame(balance) if balance.problems.height <= _SENT else None
    problems = _table(PROBLEMS, PROBLEM_COLUMNS, few, "Each problem")
    return section(title, basis, listed, html.H3("Each of them"), problems)


def _table(name: str, columns: Sequence[EnergyColumn], frame: pl.DataFrame | None, label: str) -> Component:
    """A table whose rows are sent with the page where they are few; None: it asks for them."""
    few = frame if frame is not None and frame.height <= _SENT else None
    return table(name, grid_columns(columns), few, label=label, height=_HIGH_PX)


def _command(summary: EnergySummary, address: EnergyAddress, store: Path) -> str:
    """What prints the same."""
    words = ["whorl energy --store", shlex.quote(str(store)), "--by", address.by.value]
    if address.state.cluster is not None:
        words += ["--cluster", shlex.quote(address.state.cluster)]
    words += ["--since", summary.booked.since.isoformat()]
    if address.state.until is not None:
        words += ["--until", summary.booked.until.isoformat()]
    return " ".join(words)


def _grid(by: By) -> str:
    return f"energy-rows-{by.value}"
