"""The times that sacct prints: seconds since 1970, civil times with an offset from UTC, or of a zone not named."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from ...errors import InputError
from .content import LINE, Refused

_COLUMNS = {"Submit": "submitted", "Eligible": "eligible", "Start": "began", "End": "ended"}
_EPOCH = r"^[0-9]{9,10}$"
_CIVIL = r"^(?:19[7-9][0-9]|20[0-9]{2})-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}$"
_OFFSET = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$"  # what %z of SLURM_TIME_FORMAT prints, and ISO 8601
_ZONED = _CIVIL.removesuffix("$") + _OFFSET
_SAVE = "SLURM_TIME_FORMAT=%s sacct ..."


def add_times(rows: pl.DataFrame, name: str, time_zone: str | None, refused: Refused, notes: list[str]) -> pl.DataFrame:
    """The rows with `submitted`, `eligible`, `began` and `ended`, in UTC. Rows with other text there are refused.

    Raises InputError where civil times need a zone that was not given, or is none.
    """
    civil = pl.any_horizontal(pl.col(c).str.contains(_CIVIL).fill_null(False) for c in _COLUMNS)
    local = rows.filter(civil)
    if local.height and time_zone is None:
        raise InputError(
            f"{name}: its times have no time zone (line {local[0, LINE]}): give time-zone, for example "
            f"Europe/Berlin, or save seconds: {_SAVE}"
        )
    zone = _checked(time_zone or "UTC")
    parsed = []
    for column, time_name in _COLUMNS.items():
        seconds = pl.when(pl.col(column).str.contains(_EPOCH)).then(pl.col(column).cast(pl.Int64, strict=False))
        offset = pl.when(pl.col(column).str.contains(_ZONED)).then(pl.col(column).str.replace(" ", "T"))
        zoned = offset.str.replace("Z$", "+0000").str.to_datetime("%Y-%m-%dT%H:%M:%S%z", time_unit="us", strict=False)
        since_1970 = pl.coalesce(
            pl.from_epoch(seconds, time_unit="s").cast(pl.Datetime("us")), zoned.dt.replace_time_zone(None)
        )
        text = pl.when(pl.col(column).str.contains(_CIVIL)).then(pl.col(column).str.replace("T", " "))
        clock = text.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False)
        parsed += [pl.coalesce(since_1970, _in_utc(clock, zone, "earliest")).alias(time_name)]
        parsed += [pl.coalesce(since_1970, _in_utc(clock, zone, "latest")).alias(f"{time_name} late")]
    rows = rows.with_columns(parsed)
    bad = [
        ((pl.col(c).is_not_null() & pl.col(time_name).is_null()), f"{c} is no time")
        for c, time_name in _COLUMNS.items()
        if c != "Eligible"
    ]
    rows = refused.take(rows, bad)
    return _decided(rows, zone, notes).drop(f"{time_name} late" for time_name in _COLUMNS.values())


def _decided(rows: pl.DataFrame, zone: str, notes: list[str]) -> pl.DataFrame:
    """The times, where an hour occurs twice: when clocks go back. The elapsed seconds may say which one it is.

    Else it is taken as the first one.
    """
    twice = pl.any_horizontal(
        (pl.col(time_name) != pl.col(f"{time_name} late")).fill_null(False) for time_name in _COLUMNS.values()
    )
    number = rows.select(twice.sum()).item()
    if not number:
        return rows
    notes.append(
        f"{number} jobs have a time in the hour that occurs twice in {zone}: where ElapsedRaw does not decide, the "
        f"first time is taken; seconds are certain: {_SAVE}"
    )
    elapsed = pl.col("ElapsedRaw").cast(pl.Int64, strict=False)

    def lasts(began: str, ended: str) -> pl.Expr:
        return ((pl.col(ended) - pl.col(began)).dt.total_seconds() == elapsed).fill_null(False)

    began_late = ~lasts("began", "ended") & ~lasts("began", "ended late") & lasts("began late", "ended late")
    ended_late = ~lasts("began", "ended") & (lasts("began", "ended late") | began_late)
    return rows.with_columns(
        pl.when(began_late).then("began late").otherwise("began").alias("began"),
        pl.when(ended_late).then("ended late").otherwise("ended").alias("ended"),
    )


def _checked(zone: str) -> str:
    try:
        ZoneInfo(zone)
        pl.Series([None], dtype=pl.Datetime("us")).dt.replace_time_zone(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"time-zone={zone}: there is no such time zone; an example is Europe/Berlin") from error
    return zone


def _in_utc(clock: pl.Expr, zone: str, ambiguous: Literal["earliest", "latest"]) -> pl.Expr:
    """A civil time in UTC; null where the clocks skip it."""
    zoned_clock = clock.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
    return zoned_clock.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
