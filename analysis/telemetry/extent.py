"""From when to when GPUs have readings, and which range of time is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...errors import QueryError
from ...store.instants import in_sql
from .readings import MINUTE_NS, Key, Which, of

if TYPE_CHECKING:
    import polars as pl

    from ...store import Store

SECOND = 1_000_000_000
LENGTHS = {"hour": 3_600 * SECOND, "day": 86_400 * SECOND, "week": 7 * 86_400 * SECOND}
WINDOWS = {"5m": 300 * SECOND, "15m": 900 * SECOND, "1h": 3_600 * SECOND}
"""How much a figure shows that follows the newest readings."""
_BEFORE = 50  # a 50th of a range before the first reading
_FINE_NS = 120 * SECOND
_FAR = 2  # times as long as the readings that there are: a range is cut to these


@dataclass(frozen=True)
class Range:
    """A range of time, ns since 1970, and a sentence where it is not what was asked for."""

    since: int
    until: int
    says: str = ""

    @property
    def ends(self) -> tuple[str, str]:
        """Its ends for people: as fine as its length asks for."""
        fine = self.until - self.since < _FINE_NS
        return written(self.since, fine=fine), written(self.until, fine=fine)


def extent(store: Store, keys: Which | None = None) -> tuple[int, int] | None:
    """The first and the last reading (ns since 1970) of some GPUs, or of all; None where there is none."""
    ends = []
    for table, lasts in (("telemetry", 0), ("telemetry_minutes", MINUTE_NS)):
        if store.files(table) or table == "telemetry":
            query = f"SELECT epoch_ns(min(ts)), epoch_ns(max(ts)) + {lasts} FROM {table} WHERE {of(keys)}"
            ((first, last),) = store.sql(query).polars().rows()
            ends += [] if first is None else [(first, last)]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None


def newest(store: Store, keys: Which | None = None) -> int | None:
    """When the last reading of these GPUs was taken, those in journals included; None where there is none."""
    ((last,),) = store.sql(f"SELECT epoch_ns(max(ts)) FROM latest WHERE {of(keys)}").polars().rows()
    return None if last is None else int(last)


def last_readings(store: Store, keys: Which) -> dict[Key, int]:
    """When the last reading of each of these GPUs was taken; without those that have none."""
    query = f"SELECT cluster, gpu, epoch_ns(ts) FROM latest WHERE {of(keys)}"
    return {(cluster, gpu): at for cluster, gpu, at in store.sql(query).polars().rows()}


def newest_readings(store: Store, which: Which, metrics: Sequence[str], most: int) -> pl.DataFrame:
    """The newest reading of each of some GPUs, those in journals included, by name; `most` at most.

    Columns: gpu (its name, or its key), at, and the metrics in the unit they are stored in.
    """
    columns = ", ".join(f"l.{name}" for name in metrics)
    return store.sql(
        f"WITH l AS (SELECT * FROM latest WHERE {of(which)}) "
        f"SELECT coalesce(g.name, l.gpu) AS gpu, l.ts AS at, {columns} FROM l LEFT JOIN gpus_now g "
        f"ON g.gpu = l.gpu AND g.cluster IS NOT DISTINCT FROM l.cluster ORDER BY g.node, 1 LIMIT {most}"
    ).polars()


def last_hour(store: Store, keys: Sequence[Key], first: int, last: int) -> int:
    """When the readings of the hour before `last` begin, as these GPUs have them, and a little before. `first`: when
    the first reading of all was."""
    since, began = last - LENGTHS["hour"], first
    if first <= since:
        query = f"SELECT epoch_ns(min(ts)) FROM telemetry WHERE ({of(keys)}) AND ts >= {in_sql(since)}"
        ((began,),) = store.sql(query).polars().rows()
    return since if began is None else max(since, began - (last - began) // _BEFORE)


def meant(first: int, last: int, since: int | None, until: int | None) -> Range:
    """The range that is meant: without an end up to the last reading, without a beginning an hour.

    A range that is far longer than the readings that there are is cut to them. Raises QueryError, which says when the
    first and the last reading were, where the range has none.
    """
    end = last + SECOND
    question = Range(since if since is not None else max(first, (until or end) - LENGTHS["hour"]), until or end)
    if question.since >= question.until or question.since > last or question.until <= first:
        since_text, until_text = written(question.since), written(question.until)
        which = f"from {since_text} to {until_text}" if until else f"after {since_text}"
        raise QueryError(
            f"These GPUs have no reading {which}: their first one is of {written(first)}, the last one of "
            f"{written(last)} (UTC)."
        )
    cut = Range(max(question.since, first - SECOND), min(question.until, end))
    if since is not None and question.until - question.since > _FAR * (cut.until - cut.since):
        says = f"These GPUs have readings from {written(first)} to {written(last)} (UTC): only that is shown."
        return Range(cut.since, cut.until, says)
    return question


def before(last: int, length: str) -> int:
    """So long before the last reading: a beginning for "hour", "day" or "week"."""
    return last - LENGTHS[length]


def written(at: int, *, fine: bool = False) -> str:
    """A time for people, to the second, or `fine` to the millisecond."""
    seconds, nanoseconds = divmod(at, SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return text + (f".{nanoseconds // 1_000_000:03d}" if fine else "")
