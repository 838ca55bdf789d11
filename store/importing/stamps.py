"""Turn texts into instants: UNIX times, and civil times that have a time zone or are read in a given one."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from ...errors import InputError
from ..instants import times_of_ns
from .content import LINE, OWN, Refused, Sheet
from .layout import Bound
from .meanings import Meaning
from .values import Remarks, is_placeholder, missing, parsed

_ZONED = r"(?:Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])$"
# Years are bounded here because a time in ns beyond 2262 wraps round without an error.
_SHAPE = (
    r"^(?:19[7-9][0-9]|20[0-9]{2})-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
    + f"(?:{_ZONED[:-1]})?$"
)
# 1990 to 2100: outside, a digit was damaged or the number is no time.
_NO_ZONE = "--time-zone {}: there is no such time zone; an example is Europe/Berlin"
_FIRST, _LAST = 631_152_000 * 10**9, 4_102_444_800 * 10**9


def times(sheet: Sheet, bound: Bound, remarks: Remarks, *, minus_one: bool, stream: bool, time_zone: str) -> None:
    """Parse a column of time stamps into `parsed(meaning)`: nanoseconds since 1970, UTC, without zone.

    Known are UNIX times in s, ms, us or ns (told apart by their size, which cannot be mistaken between 2001
    and 2286), `YYYY/MM/DD hh:mm:ss.fff` and ISO 8601. A time without a zone is read in `time_zone`. In a `stream`, rows
    follow each other in time, and each must have a time.
    """
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(_NO_ZONE.format(time_zone)) from error
    meaning, name = bound.meaning, bound.column
    unknown, stamp = pl.col(missing(meaning)), pl.col(parsed(meaning))
    sheet.frame = sheet.frame.with_columns(
        is_placeholder(name, minus_one=minus_one).alias(missing(meaning)),
        _unix(pl.col(name).cast(pl.Int64, strict=False)).alias(parsed(meaning)),
    )
    if any(sheet.counts(~unknown & stamp.is_null())):
        _fractions(sheet, bound)
        _civil(sheet, bound, remarks, time_zone, stream=stream)
    bad = ~unknown & ~stamp.is_between(_FIRST, _LAST).fill_null(False)
    without, wrong = sheet.counts(unknown, bad)
    if wrong * 2 > sheet.frame.height - without:
        first = sheet.frame.filter(bad).row(0, named=True)
        raise InputError(
            f"{sheet.file}: column {name!r} does not contain time stamps: line {sheet.line(first[LINE])} has "
            f"{first[name]!r}; write times like 2026-11-23 14:05:00 or as seconds since 1970, or say which column has "
            "them (--map) if the columns are shifted or renamed"
        )
    if without and not stream:
        remarks.placeholders[name] = without
    if wrong or (without and stream):
        missed = [(unknown, f"{name} is missing")] if stream else []
        sheet.refuse((bad, f"{name} is not a readable time stamp"), *missed)
    instant = times_of_ns(pl.when(~unknown).then(stamp))
    sheet.frame = sheet.frame.with_columns(instant.alias(parsed(meaning)))


def instant(text: str, time_zone: str, option: str) -> int:
    """A single time as ns since 1970, UTC. Raises InputError, which begins with `option`, if it is none."""
    meaning = Meaning("timestamp", "time stamp", "a time")
    padded = text.strip().replace("T", " ")
    for length, tail in ((10, " 00:00:00"), (16, ":00")):  # a day, or a minute
        padded += tail if len(padded) == length and padded[4] in "-/" else ""
    frame = pl.DataFrame({LINE: [1], "text": [padded]})
    sheet = Sheet(option, "", 0, ["text"], frame, 1, Refused())
    try:
        times(sheet, Bound(meaning, "text"), Remarks(), minus_one=False, stream=False, time_zone=time_zone)
        ns: int | None = sheet.frame[parsed(meaning)].dt.epoch("ns").item()
    except InputError as error:
        if option in str(error):
            ns = None
        else:
            raise
    if ns is None:
        raise InputError(f"{option} {text!r} is not a time; an example is {option} '2026-11-23 14:05:00'")
    return ns


def _unix(number: pl.Expr, fraction: pl.Expr | None = None) -> pl.Expr:
    """A UNIX time in ns, from its whole part and its fraction. The size of the whole part gives the unit."""
    time = number
    for limit, factor in ((10**16, 10**3), (10**13, 10**6), (10**10, 10**9)):
        scaled = number * factor if fraction is None else number * factor + (fraction * factor).round().cast(pl.Int64)
        time = pl.when(number < limit).then(scaled).otherwise(time)
    return time


def _fractions(sheet: Sheet, bound: Bound) -> None:
    """UNIX times with a fraction, in two parts: a float is not exact to the ns."""
    parts = pl.col(bound.column).str.extract_groups(r"^([0-9]{9,16})(\.[0-9]+)$").struct
    number = parts[0].cast(pl.Int64, strict=False)
    time = _unix(number, ("0" + parts[1]).cast(pl.Float64))
    sheet.frame = sheet.frame.with_columns(pl.coalesce(parsed(bound.meaning), time))


def _civil(sheet: Sheet, bound: Bound, remarks: Remarks, time_zone: str, *, stream: bool) -> None:
    name, target, clock = bound.column, parsed(bound.meaning), pl.col(f"{OWN}clock")
    text = pl.col(name).str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = pl.when(text.str.contains(_SHAPE)).then(text.str.replace(",", ".", literal=True))
    sheet.frame = sheet.frame.with_columns(
        text.str.replace(_ZONED, "").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
        .alias(f"{OWN}clock"),
        text.str.extract(f"({_ZONED[:-1]})$", 1).str.replace("Z", "+0000").str.replace(":", "").alias(f"{OWN}zone"),
    )  # fmt: skip
    zone = pl.col(f"{OWN}zone")
    seconds = zone.str.slice(1, 2).cast(pl.Int64) * 3600 + zone.str.slice(3, 2).cast(pl.Int64) * 60
    offset = pl.when(zone.str.starts_with("-")).then(-seconds).otherwise(seconds)
    zoned = clock.cast(pl.Int64) - offset * 10**9
    local = clock.is_not_null() & zone.is_null()
    (unzoned,) = sheet.counts(local)
    if not unzoned:
        sheet.frame = sheet.frame.with_columns(pl.coalesce(target, zoned))
        return
    remarks.notes.append(f"{name} has no time zone: read as {time_zone} (--time-zone)")
    try:
        sheet.frame = sheet.frame.with_columns(
            _in_utc(clock, time_zone, "earliest").alias(f"{OWN}early"),
            _in_utc(clock, time_zone, "latest").alias(f"{OWN}late"),
        )
    except pl.exceptions.ComputeError as error:  # `localtime` and the like, which Python knows and Polars does not
        raise InputError(_NO_ZONE.format(time_zone)) from error
    # When clocks go back, one hour occurs twice. A stream shows which one a row is in: the second begins where its time
    # stamps go back.
    twice = local & (pl.col(f"{OWN}early") != pl.col(f"{OWN}late")).fill_null(False)
    (repeated,) = sheet.counts(twice)
    utc = pl.col(f"{OWN}early")
    if repeated:
        rule = "the second time begins where the clock goes back" if stream else "taken as the first time"
        remarks.notes.append(f"{repeated} values of {name} lie in the hour that occurs twice in {time_zone}: {rule}")
    if repeated and stream:
        gpu = f"{OWN}gpu"
        half = (pl.col(f"{OWN}late") - pl.col(f"{OWN}early")) // 2  # of what the clocks go back by
        diff = clock.diff().cast(pl.Int64)
        rare = diff.filter(diff > 0).median().over(gpu) >= half  # such readings may just not go on: 02:00, 02:00
        fell = twice & ((diff.over(gpu) < -half) | (rare & (diff.over(gpu) <= 0))).fill_null(False)
        utc = pl.when(twice & (fell.cum_sum().over(gpu, clock.dt.date()) > 0)).then(pl.col(f"{OWN}late")).otherwise(utc)
    sheet.frame = sheet.frame.with_columns(pl.coalesce(target, pl.when(local).then(utc).otherwise(zoned)))


def _in_utc(clock: pl.Expr, time_zone: str, ambiguous: Literal["earliest", "latest"]) -> pl.Expr:
    """A civil time as ns in UTC; null where the clocks skip it."""
    local = clock.dt.replace_time_zone(time_zone, ambiguous=ambiguous, non_existent="null")
    return local.dt.convert_time_zone("UTC").dt.replace_time_zone(None).cast(pl.Int64)
