"""The energy of a time: what was metered, whose it was by day and by user, and whether the books balance."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from dash import Dash, html

from ....analysis.energy.answers import FIRST, By, EnergySummary
from ...energy_table import Shown, of_problems, shown
from ...energy_tiles import costs, metered
from ...figures.energy_books import CLUSTERS, books
from ...figures.energy_users import largest
from ...printed.energy import explained
from ...printed.energy_balance import problem_kinds, sentences, title
from ..grid import Column, serve, table
from ..page import command, graph, prose, rows, section, tiles, told
from ..state import parse
from .asked import BYS, Asked, ask, whole
from .columns import PROBLEMS as OF_PROBLEMS
from .columns import columns

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

PROBLEMS = "energy-problems"
_SENT = 200  # rows that are sent with the page
_HIGH_PX = 520


def register(app: Dash, reading: Reading) -> None:
    """Answer what the tables ask for."""

    def answered(by: By, search: str | None) -> Shown | None:
        found = whole(reading, ask(parse(search)[0]).state).answer
        return None if found is None else shown(found.answers[by])

    for by in By:

        def titled(search: str | None, by: By = by) -> list[Column]:
            found = answered(by, search)
            return [] if found is None else columns(by, found)

        def listed(search: str | None, by: By = by) -> pl.DataFrame:
            found = answered(by, search)
            return pl.DataFrame() if found is None else found.rows

        serve(app, _grid(by), titled, listed, follows=("cluster", "since", "until", "last"), file=f"energy-{by}.csv")

    def problems(search: str | None) -> pl.DataFrame:
        found = whole(reading, ask(parse(search)[0]).state)
        if found.answer is None:
            return pl.DataFrame()
        balance = found.answer.balance
        return reading.kept(("problems in words", search, found.made_at), lambda: of_problems(balance))

    serve(
        app, PROBLEMS, lambda _: OF_PROBLEMS, problems, follows=("cluster", "since", "until", "last"),
        file="energy-problems.csv",
    )  # fmt: skip


def body(found: EnergySummary, asked: Asked, store: Path) -> list[Component]:
    """The page. `store`: where the store is."""
    answer = found.answers[asked.by]
    return [
        *([told(html.P(prose(one))) for one in asked.says]),
        *_short(found),
        tiles(metered(found) + costs(found.total, found.booked)) if found.total else tiles(metered(found)),
        html.Ul([html.Li(prose(one)) for one in explained(answer, store)], className="soft says"),
        _by_day(found),
        _by(found, asked),
        _books(found),
        section(
            "The same in a terminal",
            command(_command(found, asked, store)),
            says="With --json and --csv for programs.",
        ),
    ]


def _short(found: EnergySummary) -> list[Component]:
    if not found.cut:
        return []
    says = "There are very many readings, so that only the last part of them is shown. Choose a longer time above."
    return [told(html.P(says))]


def _by_day(found: EnergySummary) -> Component:
    rows = found.answers[By.DAY].rows
    says = "Days are in UTC. The line at the end of a bar: 95 % interval of what was metered."
    if rows["cluster"].n_unique() > CLUSTERS:
        says += f" The first {CLUSTERS} clusters are drawn: choose one above."
    drawn = graph(books(rows), "Energy of each day: of jobs, idle and unattributed", id="energy-days")
    return section("Where the energy went, day by day", drawn, says=says)


def _by(found: EnergySummary, asked: Asked) -> Component:
    by = asked.by
    name = BYS[by]
    answer = found.answers[by]
    several = asked.state.cluster is None and answer.rows["cluster"].n_unique() > 1
    frame = shown(answer)
    drawn = []
    if by is not By.DAY:
        figure = largest(by, answer.rows, FIRST, found.beyond[by], several=several)
        drawn.append(graph(figure, f"Energy by {name}, the largest first", id="energy-largest"))
    label = f"Energy by {name}"
    listed = _table(_grid(by), columns(by, frame), frame.rows, label)
    says = "With 95 % intervals. n is the number of GPUs."
    if found.n[by] > answer.rows.height:
        says += f" The {answer.rows.height:,} largest of {found.n[by]:,} rows: the command below gives all."
    return section(f"Energy by {name}", *drawn, listed, says=says)


def _books(found: EnergySummary) -> Component:
    balance = found.balance
    name = title(balance)
    said = html.Ul([html.Li(prose(one)) for one in sentences(balance)], className="soft says")
    kinds = problem_kinds(balance)
    if not kinds:
        return section(name, said, told(html.P("No problems were found in the readings and jobs.")))
    cells = [[*one[:3], *(None if text is None else prose(text) for text in one[3:])] for one in kinds]
    head = ("problem", "times", "GPUs", "what it means", "what to do")
    listed = rows(head, cells, right=(1, 2), wrapped=(3, 4), label="Problems of the readings and jobs")
    n = balance.problems.height
    each = _table(PROBLEMS, OF_PROBLEMS, None if n > _SENT else of_problems(balance), "Each problem")
    return section(name, said, listed, html.H3("Each of them"), each)


def _table(name: str, shown_: Sequence[Column], frame: pl.DataFrame | None, label: str) -> Component:
    """A table whose rows are sent with the page where they are few; None: it asks for them."""
    few = frame if frame is not None and frame.height <= _SENT else None
    return table(name, shown_, few, label=label, height=_HIGH_PX)


def _command(found: EnergySummary, asked: Asked, store: Path) -> str:
    """What prints the same."""
    words = ["whorl energy --store", shlex.quote(str(store)), "--by", asked.by.value]
    if asked.state.cluster is not None:
        words += ["--cluster", shlex.quote(asked.state.cluster)]
    words += ["--since", found.booked.since.isoformat()]
    if asked.state.until is not None:
        words += ["--until", found.booked.until.isoformat()]
    return " ".join(words)


def _grid(by: By) -> str:
    return f"energy-rows-{by.value}"
