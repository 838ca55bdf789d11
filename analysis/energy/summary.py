"""The energy of a store over a time at a glance: every grouping, whose it was and whether the books balance.

It is made from one reading of the telemetry, and small enough to be kept. Its rows are those of `whorl energy` and of
`whorl energy reconcile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ...store.instants import date_of_ns, nanoseconds
from .answers import Answer, By, allocations, answered, beyond, parts
from .balance import Balance, held
from .booked import AROUND, Booked, booked_both
from .carbon.settings import Settings, find_settings
from .pieces import Kind
from .readings import covered, rows_since

if TYPE_CHECKING:
    from ...store import Store

ROWS = 50_000
"""Rows of a grouping that are kept, the largest first."""
FIRST = 15
"""Rows of a grouping that a figure shows one by one; the others are one row more."""
READINGS = 12_000_000
"""Where no time is asked for: no more readings than this, about."""
LENGTHS = {name: timedelta(minutes=one) for name, one in (
    ("10min", 10), ("1h", 60), ("6h", 360), ("1d", 1440), ("7d", 7 * 1440), ("30d", 30 * 1440)
)}  # fmt: skip
"""Times up to the last reading, by the name that `last` of `summary` has. Where no time is asked for, the longest of
them that has not too many readings."""
ALL = "all"
_MUCH_LESS = 0.8


@dataclass(frozen=True)
class Summary:
    """The energy of a time. All of its `booked` are without pieces."""

    answers: Mapping[By, Answer]
    """Of each grouping, with the largest `ROWS` rows."""
    n: Mapping[By, int]
    """How many rows there are."""
    beyond: Mapping[By, dict[str, Any] | None]
    """Of each grouping, what comes after its `FIRST` rows, as one row."""
    parts: Mapping[str, dict[str, Any]]
    """By kind (job, idle, unattributed), the row of all energy of that kind, of those that there are."""
    balance: Balance
    booked: Booked
    cut: bool
    """Whether the time is shorter than the longest of `LENGTHS`, as that has so many readings."""

    @property
    def ends_ns(self) -> tuple[int, int]:
        """From when to when, ns since 1970."""
        since, until = (nanoseconds(one) for one in (self.booked.since, self.booked.until))
        return since, until

    @property
    def total(self) -> dict[str, Any]:
        """The row of all that was metered; empty where nothing was."""
        return self.answers[By.USER].total


def summary(
    store: Store,
    cluster: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    last: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Summary:
    """The energy of a store's GPUs from `since_ns` to `until_ns` (ns since 1970, UTC), or over the `last` part of the
    readings: a name of `LENGTHS`, or "all". Without any of these, over the usual time.

    It asks nothing of the network: of carbon, what files have. Raises InputError as `answers.energy`.
    """
    say = progress or (lambda _: None)
    say("looking for telemetry")
    since, until, cut = _asked(store, cluster, since_ns, until_ns, last)
    whole, by_day = booked_both(
        store, cluster=cluster, since=since, until=until, settings=offline(store), progress=progress
    )
    say("adding up")
    jobs = allocations(store)
    answers, rest, n = {}, {}, {}
    for by in By:
        found = by_day if by is By.DAY else whole
        answer = answered(store, by, found, jobs=jobs)
        rest[by] = None if by is By.DAY else beyond(found, answer, FIRST, jobs)
        n[by] = answer.rows.height
        answers[by] = replace(answer, rows=_largest(answer), booked=found.without_pieces)
    kinds = {str(row["kind"]): row for row in parts(whole).iter_rows(named=True)}
    balance = held(store, whole)
    return Summary(answers, n, rest, kinds, replace(balance, booked=whole.without_pieces), whole.without_pieces, cut)


def offline(store: Store) -> Settings:
    """The settings of a store, with which no service is asked for hours. Raises InputError."""
    return replace(find_settings(store.root), offline=True)


def _largest(answer: Answer) -> pl.DataFrame:
    """The largest rows; what nobody used is always among them."""
    if answer.rows.height <= ROWS:
        return answer.rows
    if not answer.by.of_people:
        return answer.rows.head(ROWS).clone()
    nobodys = answer.rows.filter(pl.col("kind") != Kind.JOB.value)
    return pl.concat([answer.rows.filter(pl.col("kind") == Kind.JOB.value).head(ROWS), nobodys])


def _asked(
    store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None, last: str | None
) -> tuple[datetime | None, datetime | None, bool]:
    """The time to look at (None: from the first reading, up to the last), and whether it is shorter than usual.

    Meters also read an hour before: a shorter time is only taken where it has much fewer readings with that hour.
    """
    until = None if until_ns is None else date_of_ns(until_ns)
    found = covered(store, cluster=cluster)
    if found.is_empty() or last == ALL:
        return None, until, False
    first, end = found["first"].min(), until or found["last"].max()
    assert isinstance(first, datetime)
    assert isinstance(end, datetime)
    if since_ns is not None:
        return max(first, date_of_ns(since_ns)), until, False
    if last is not None:
        if last not in LENGTHS:
            raise InputError(f"last={last} is no time: write last={ALL}, or one of {', '.join(LENGTHS)}")
        return max(first, end - LENGTHS[last]), until, False
    lengths = sorted(LENGTHS.values(), reverse=True)
    begins = [max(first, end - length) for length in lengths]
    counts = rows_since(store, [one - AROUND for one in begins], end, cluster=cluster)
    few = max(READINGS, counts[-1] / _MUCH_LESS)
    number = next(number for number, n in enumerate(counts) if n <= few)
    return begins[number], until, begins[number] > begins[0]
