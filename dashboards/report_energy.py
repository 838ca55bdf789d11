"""The section of a report about energy: whose it was, day by day, and whether the books balance.

Its figures and numbers are those of the page Jobs and energy.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ..analysis.energy.answers import FIRST, By, EnergySummary
from ..analysis.energy.attribute import Kind
from .energy_table import PROBLEM_HEADS, energy_table
from .energy_tiles import costs, metered
from .energy_words import books_sentences, books_title, explained, problem_kinds
from .figures.energy_books import books
from .figures.energy_users import largest
from .page import Drawing, Facts, Section
from .table import Table

_ROWS = 40  # of a table


def energy_section(summary: EnergySummary) -> Section:
    """The section. Nobody's energy is by day only, where no job is known."""
    booked, answers = summary.booked, summary.answers
    people = (By.USER, By.ACCOUNT) if booked.has_jobs else ()
    tiles = metered(summary) + (costs(summary.total, booked) if summary.total else [])
    parts: list[Table | Drawing | Facts] = [Facts(tiles)]
    days = answers[By.DAY].rows
    if days["energy_j"].count():
        says = "Days are in UTC. The line at the end of a bar: 95 % interval of what was metered."
        parts.append(Drawing("Where the energy went, day by day", says, {"days": books(days)}))
    if people:
        drawn = {by.value: largest(by, answers[by].rows, FIRST, summary.beyond[by]) for by in people}
        says = f"The largest {FIRST} and all others, with 95 % intervals."
        parts.append(Drawing("Who used the energy", says, drawn))
    parts += [_rows(summary, by) for by in (*people, By.DAY)]
    basis = explained(answers[By.USER if people else By.DAY])
    parts += [Table((), (), title="What the figures stand on", says=_sentences(basis)), _books(summary)]
    cut = " There are very many readings: only the last part of them is in it." if summary.cut else ""
    time = f"from {booked.since:%Y-%m-%d %H:%M} to {booked.until:%Y-%m-%d %H:%M} UTC"
    return Section("Energy", f"What the GPUs drew {time}, whichever campaign this report shows.{cut}", parts)


def _rows(summary: EnergySummary, by: By) -> Table:
    """The largest rows of a grouping, or the last days; what nobody used stands last."""
    rows = summary.answers[by].rows
    if by is By.DAY:
        listed = rows.tail(_ROWS)
    else:
        jobs = pl.col("kind") == Kind.JOB.value
        listed = pl.concat([rows.filter(jobs).head(_ROWS), rows.filter(~jobs)])
    omitted = summary.n[by] - listed.height
    omission = f" {omitted:,} more are left out: whorl energy --by {by.value} has all." if omitted > 0 else ""
    table = energy_table(summary.answers[by], listed.to_dicts())
    return Table(table.header, table.rows, table.right, f"Energy by {by.value}", f"With 95 % intervals.{omission}")


def _books(summary: EnergySummary) -> Table:
    kinds = problem_kinds(summary.balance)
    none = () if kinds else ("no problems were found in the readings and jobs",)
    says = _sentences([*books_sentences(summary.balance), *none])
    rows = [[cell or "" for cell in kind] for kind in kinds]
    title, head = books_title(summary.balance), PROBLEM_HEADS if kinds else ()
    return Table(head, rows, right=(1, 2), title=title, says=says, wrapped=(3, 4))


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts)
