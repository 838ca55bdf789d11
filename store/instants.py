"""Instants: ns since 1970, and times in UTC without zone, as tables have them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, overload

from ..errors import InputError

if TYPE_CHECKING:
    import polars as pl

    Numbers = TypeVar("Numbers", pl.Expr, pl.Series)

_SPAN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?(ms|s|min|m|h|d|w)?")
"""How people write a span of time: a number and a unit."""
_UNIT_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_LAST_NS = 2**63 - 2  # one more is what DuckDB calls infinity


def nanoseconds(moment: datetime) -> int:
    """ns since 1970 of a time, which is UTC where it names no zone. Raises OverflowError beyond the years 1 to 9999."""
    since = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


def date_of_ns(at_ns: int) -> datetime:
    """The time in UTC without zone that so many ns since 1970 are."""
    return datetime(1970, 1, 1) + timedelta(microseconds=at_ns // 1000)  # noqa: DTZ001


def times_of_ns(numbers: Numbers) -> Numbers:
    """Times as tables have them, of a Polars column or expression of ns since 1970; `dt.epoch("ns")` goes back."""
    import polars as pl

    return (numbers // 1000).cast(pl.Datetime("us"))


def iso(at_ns: int) -> str:
    """A time in ISO 8601, with every digit that it has."""
    seconds, fraction_ns = divmod(at_ns, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{fraction_ns:09d}".rstrip("0") + "Z" if fraction_ns else f"{text}Z"


def in_sql(at_ns: int) -> str:
    """A time in SQL, in whole microseconds; one beyond what tables can hold is the first or the last that they can.

    It is a text in quotes, by which a query reads the files of its time only (see `statements`).
    """
    seconds, fraction_ns = divmod(min(max(at_ns, -_LAST_NS), _LAST_NS), 1_000_000_000)
    return f"TIMESTAMP '{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction_ns // 1000:06d}'"


@overload
def seconds_of(span: float | str, *, plain: bool = True) -> float: ...
@overload
def seconds_of(span: float | str | None, *, plain: bool = True) -> float | None: ...
def seconds_of(span: float | str | None, *, plain: bool = True) -> float | None:
    """A span of time in seconds: of a number, or of 0.1, 100ms, 60s, 5min, 12h, 7d, 2w.

    `plain`: whether a text may leave out the unit, for seconds. Raises InputError for any other text.
    """
    if not isinstance(span, str):
        return span
    match = _SPAN.fullmatch(span.strip().lower())
    if match is None or not (match[2] or plain):
        seconds = "seconds, or " if plain else ""
        raise InputError(f"{span!r} is not a time: give {seconds}a number with ms, s, min, h, d or w")
    return float(match[1]) * _UNIT_S[match[2] or "s"]


@overload
def time_of(moment: datetime | str) -> datetime: ...
@overload
def time_of(moment: datetime | str | None) -> datetime | None: ...
def time_of(moment: datetime | str | None) -> datetime | None:
    """A time in UTC without zone: of one with a zone, of 2026-10-01 or 2026-10-01T12:00 (UTC), or how long ago: 30d.

    Raises InputError for a text that is neither.
    """
    if moment is None:
        return None
    try:
        if not isinstance(moment, datetime):
            moment = str(moment)
            span = _SPAN.fullmatch(moment.strip().lower())
            if span is not None and span[2]:
                return datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=float(span[1]) * _UNIT_S[span[2]])
            moment = datetime.fromisoformat(moment.strip())
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        raise InputError(
            f"{str(moment)!r} is not a date: write 2026-10-01, 2026-10-01T12:00 (UTC), or how long ago, as 30d"
        ) from None
