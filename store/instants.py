"""Instants: ns since 1970, and times in UTC without zone, as tables have them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_LAST_NS = 2**63 - 2  # one more is what DuckDB calls infinity


def nanoseconds(when: datetime) -> int:
    """ns since 1970 of a time, which is UTC where it names no zone. Raises OverflowError beyond the years 1 to 9999."""
    since = (when.replace(tzinfo=UTC) if when.tzinfo is None else when) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


def date_of_ns(at_ns: int) -> datetime:
    """The time in UTC without zone that so many ns since 1970 are."""
    return datetime(1970, 1, 1) + timedelta(microseconds=at_ns // 1000)  # noqa: DTZ001


def iso(at_ns: int) -> str:
    """A time in ISO 8601, with every digit that it has."""
    seconds, rest = divmod(at_ns, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else f"{text}Z"


def in_sql(at_ns: int) -> str:
    """A time in SQL; one beyond what tables can hold becomes the first or the last that they can.

    It is a text in quotes: queries that differ in such texts only are known to be alike (see `readers.asked`).
    """
    seconds, rest = divmod(min(max(at_ns, -_LAST_NS), _LAST_NS), 1_000_000_000)
    return f"TIMESTAMP_NS '{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d}'"
