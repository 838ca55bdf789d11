"""The section of a report about energy: whose it was, day by day, and whether the books balance.

Its figures and numbers are those of the page Jobs and energy.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ..analysis.energy.answers import FIRST, By, EnergySummary
from ..analysis.energy.attribute import Kind
from .energy_tiles import costs, metered
from .figures.energy_books import books
from .figures.energy_users import largest
from .page import Drawing, Facts, Section
from .printed.energy import explained, listed
from .printed.energy_balance import problem_kinds, sentences, title
from .table import Table

_ROWS = 40  # of a table


def energy_section(found: EnergySummary) -> Section:
    """The section. Nobody's energy is by day only, where no job is known."""
    since, until = (f"{one:%Y-%m-%d %H:%M}" for one in (found.booked.since, found.booked.until))
    tiles = metered(found) + (costs(found.total, found.booked) if found.total else [])
    parts: list[Table | Drawing | Facts] = [Facts([(value, says) for value, says in tiles])]
    days = found.answers[By.DAY].rows
    if days["energy_j"].count():
        says = "Days are in UTC. The line at the end of a bar: 95 % interval of what was metered."
        parts.append(Drawing("Where the energy went, day by day", says, {"days": books(days)}))
    if found.booked.has_jobs:
        of = {by.value: largest(by, found.answers[by].rows, FIRST, found.beyond[by]) for by in (By.USER, By.ACCOUNT)}
        says = f"The largest {FIRST} and all others, with 95 % intervals."
        parts.append(Drawing("Who used the energy", says, of))
    parts += [_listed(found, by) for by in ((By.USER, By.ACCOUNT, By.DAY) if found.booked.has_jobs else (By.DAY,))]
    answer = found.answers[By.USER if found.booked.has_jobs else By.DAY]
    parts += [
        Table((), (), title="What the figures stand on", says=_sentences(explained(answer))),
        *_books(found),
    ]
    cut = " There are very many readings: only the last part of them is in it." if found.cut else ""
    says = f"What the GPUs drew from {since} to {until} UTC, whichever campaign this report shows.{cut}"
    return Section("Energy", says, parts)


def _listed(found: EnergySummary, by: By) -> Table:
    """The largest rows of a grouping, or the last days; what nobody used stands last."""
    rows = found.answers[by].rows
    if by is By.DAY:
        some = rows.tail(_ROWS)
    else:
        jobs = pl.col("kind") == Kind.JOB.value
        some = pl.concat([rows.filter(jobs).head(_ROWS), rows.filter(~jobs)])
    left = found.n[by] - some.height
    more = f" {left:,} more are left out: whorl energy --by {by.value} has all." if left > 0 else ""
    made = listed(found.answers[by], some.to_dicts())
    return Table(made.header, made.rows, made.right, f"Energy by {by.value}", f"With 95 % intervals.{more}")


def _books(found: EnergySummary) -> list[Table]:
    balance = found.balance
    kinds = problem_kinds(balance)
    said = [*sentences(balance), *(() if kinds else ("no problems were found in the readings and jobs",))]
    head = ("problem", "times", "GPUs", "what it means", "what to do") if kinds else ()
    rows = [[one or "" for one in kind] for kind in kinds]
    return [Table(head, rows, right=(1, 2), title=title(balance), says=_sentences(said), wrapped=(3, 4))]


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{one[0].upper()}{one[1:]}." for one in texts)
