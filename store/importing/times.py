"""Times: of a column, of one text, and of rows that a tool prints one after another.

A time is a UNIX time, or a civil time that has a time zone or is read in that of time-zone. Readers of logs turn the
many spellings of tools into these first (`Times`): a time that lacks its year or day is completed from --at, and rows
without any time are counted from --at in steps of --every.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from ...errors import InputError
from ..instants import times_of_ns
from .content import LINE, Sheet
from .meanings import Bound, Meaning
from .options import Options
from .rows import Rows
from .values import is_placeholder, missing, parsed

NS = 10**9
EARLY, LATE, LOCAL = "=early", "=late", "=local"  # columns that `add_instants` adds
# 1990 to 2100: outside, a digit was damaged or the number is no time.
_FIRST, _LAST = 631_152_000 * NS, 4_102_444_800 * NS
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])"
# Years are bounded here because a time in ns beyond 2262 wraps round without an error.
_CIVIL = (
    r"^(?:19[7-9][0-9]|20[0-9]{2})-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?" + f"(?:{_OFFSET})?$"
)
_DAY_FIRST = r"^([0-9]{2})\.([0-9]{2})\.([0-9]{4}),? "  # where a date has points, nobody writes the month first
_NO_ZONE = "time-zone={}: there is no such time zone; an example is Europe/Berlin"

_PIECE = 1 << 20  # rows that are read at once
_HALF_DAY = timedelta(hours=12)
_CLOCK = r"[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
_UNIX = re.compile(r"[0-9]{9,19}(?:\.[0-9]+)?")
_ISO = re.compile(rf"([0-9]{{4}})([-/]?)([0-9]{{2}})\2([0-9]{{2}})[ T]+({_CLOCK}) ?(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?")
_MONTHS = {name: number for number, names in enumerate(  # in English and in German
    ("jan", "feb", "mar mär", "apr", "may mai", "jun", "jul", "aug", "sep", "oct okt", "nov", "dec dez"), start=1
) for name in names.split()}  # fmt: skip
_WORD = re.compile(  # of a time with the name of a month
    rf"(?P<month>(?i:{'|'.join(_MONTHS)})[a-zA-Z]*)|(?P<weekday>(?i:mon?|tue|wed|thu|fri?|sat?|sun|di|mi|do|so)[a-zA-Z]*)|"
    rf"(?P<half>(?i:am|pm))|(?P<year>[0-9]{{4}})|(?P<day>[0-9]{{1,2}})\.?|(?P<clock>{_CLOCK})|"
    r"(?P<zone>[A-Z]{3,5}|Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
)


def times(sheet: Sheet, bound: Bound, *, minus_one: bool, stream: bool, after: str = "") -> None:
    """Parse a column of time stamps into `parsed(meaning)`: nanoseconds since 1970, UTC, without zone.

    Known are UNIX times in s, ms, us or ns (told apart by their size, which cannot be mistaken between 2001 and 2286),
    `YYYY/MM/DD hh:mm:ss.fff`, `DD.MM.YYYY hh:mm:ss` and ISO 8601. A time without a zone is one of `options.time_zone`.
    In a `stream`, rows follow each other in time, and each must have a time. Of two equal hours, as clocks go back, it
    is the first, but in a stream the second where the time stamps go back, and where the first is before the time in
    the column `after`. Raises InputError.
    """
    meaning, name, time_zone = bound.meaning, bound.column, sheet.options.time_zone
    unknown, stamp = pl.col(missing(meaning)), pl.col(EARLY)
    sheet.frame = sheet.frame.with_columns(is_placeholder(name, minus_one=minus_one).alias(missing(meaning)))
    sheet.frame = add_instants(sheet.frame, name, time_zone)
    if any(sheet.counts(pl.col(LOCAL))):
        sheet.notes.append(f"{name} has no time zone: read as {time_zone} (time-zone)")
    (repeated,) = sheet.counts(pl.col(EARLY) != pl.col(LATE))
    if repeated:
        rule = "the second time begins where the clock goes back" if stream else "taken as the first time"
        sheet.notes.append(f"{repeated} values of {name} lie in the hour that occurs twice in {time_zone}: {rule}")
        second = _went_back() if stream else (stamp < pl.col(after).dt.epoch("ns")) if after else pl.lit(False)
        sheet.frame = sheet.frame.with_columns(pl.when(second).then(pl.col(LATE)).otherwise(stamp).alias(EARLY))
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
        sheet.placeholders[name] = without
    missed = [(unknown, f"{name} is missing")] if stream else []
    sheet.refuse((bad, f"{name} is not a readable time stamp"), *missed)
    instants = times_of_ns(pl.when(~unknown).then(stamp)).alias(parsed(meaning))
    sheet.frame = sheet.frame.with_columns(instants).drop(EARLY, LATE, LOCAL)


def add_instants(frame: pl.DataFrame, name: str, time_zone: str) -> pl.DataFrame:
    """The frame with the times in a column of text: `EARLY` and `LATE` in ns since 1970, which differ only where an
    hour occurs twice, and `LOCAL`, whether the time has no zone. NULL where it is no time. Raises InputError."""
    _zone(time_zone)
    pieces = frame.select(name).iter_slices(_PIECE) if frame.height else [frame.select(name)]
    return frame.hstack(pl.concat([_instants(piece, time_zone) for piece in pieces]))  # copies of texts are large


def _instants(texts: pl.DataFrame, time_zone: str) -> pl.DataFrame:
    """The columns that `add_instants` adds, of a column of texts."""
    column = pl.col(texts.columns[0])
    text = column.str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = text.str.replace(_DAY_FIRST, "${3}-${2}-${1} ")
    text = pl.when(text.str.contains(_CIVIL)).then(text.str.replace(",", ".", literal=True))
    clock = text.str.replace(f"{_OFFSET}$", "").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    zone = text.str.extract(f"({_OFFSET})$", 1).str.replace("Z", "+0000").str.replace(":", "")
    frame = texts.select(_unix(column).alias(EARLY), clock.alias("clock"), zone.alias("zone"))
    clock, zone = pl.col("clock"), pl.col("zone")
    seconds = zone.str.slice(1, 2).cast(pl.Int64) * 3600 + zone.str.slice(3, 2).cast(pl.Int64) * 60
    zoned = clock.cast(pl.Int64) - pl.when(zone.str.starts_with("-")).then(-seconds).otherwise(seconds) * NS
    local = (clock.is_not_null() & zone.is_null()).alias(LOCAL)
    try:
        return frame.select(
            pl.coalesce(EARLY, zoned, _in_utc(clock, time_zone, "earliest")).alias(EARLY),
            pl.coalesce(EARLY, zoned, _in_utc(clock, time_zone, "latest")).alias(LATE),
            local,
        )
    except pl.exceptions.ComputeError as error:  # `localtime` and the like, which Python knows and Polars does not
        raise InputError(_NO_ZONE.format(time_zone)) from error


def _went_back() -> pl.Expr:
    """Whether a row of a stream is in the second of two equal hours: its GPU's time stamps went back in the first."""
    early, gpu, half = pl.col(EARLY), "=gpu", (pl.col(LATE) - pl.col(EARLY)) // 2  # of what the clocks go back by
    step = early.diff()
    rare = step.filter(step > 0).median().over(gpu) >= half  # such readings may just not go on: 02:00, 02:00
    twice = pl.col(EARLY) != pl.col(LATE)
    fell = twice & ((step.over(gpu) < -half) | (rare & (step.over(gpu) <= 0))).fill_null(False)
    return twice & (fell.cum_sum().over(gpu, early // (86_400 * NS)) > 0)


@lru_cache(maxsize=8)
def instant(text: str, time_zone: str, option: str) -> int:
    """A single time as ns since 1970, UTC. Raises InputError, which begins with `option`, if it is none."""
    meaning = Meaning("timestamp", "time stamp", "a time")
    padded = text.strip().replace("T", " ")
    for length, tail in ((10, " 00:00:00"), (16, ":00")):  # a day, or a minute
        padded += tail if len(padded) == length and padded[4] in "-/" else ""
    frame = pl.DataFrame({LINE: [1], "text": [padded]})
    sheet = Sheet(option, Options(time_zone=time_zone), ["text"], frame)
    ns: int | None = None
    try:
        times(sheet, Bound(meaning, "text"), minus_one=False, stream=False)
        ns = sheet.frame[parsed(meaning)].dt.epoch("ns").item()
    except InputError as error:
        if option not in str(error):
            raise
    if ns is None:
        raise InputError(f"{option} {text!r} is not a time; an example is {option} '2026-11-23 14:05:00'")
    return ns


def text_of_ns(ns: int) -> str:
    """An instant (ns since 1970, UTC) as `times` reads it. Raises ValueError or OverflowError beyond 9999."""
    seconds, fraction = divmod(ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{fraction:09d}Z"


def _zone(time_zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(_NO_ZONE.format(time_zone)) from error


def _unix(text: pl.Expr) -> pl.Expr:
    """A UNIX time in ns; null where it is none. The size of its whole part gives the unit."""
    parts = text.str.extract_groups(r"^([0-9]{1,19})(\.[0-9]+)?$").struct  # apart: a float is not exact to the ns
    time = number = parts[0].cast(pl.Int64, strict=False)
    fraction = ("0" + parts[1]).cast(pl.Float64).fill_null(0.0)
    for limit, factor in ((10**16, 10**3), (10**13, 10**6), (10**10, 10**9)):
        scaled = number * factor + (fraction * factor).round().cast(pl.Int64)
        time = pl.when(number < limit).then(scaled).otherwise(time)
    return time


def _in_utc(clock: pl.Expr, time_zone: str, ambiguous: Literal["earliest", "latest"]) -> pl.Expr:
    """A civil time as ns in UTC; null where the clocks skip it."""
    local = clock.dt.replace_time_zone(time_zone, ambiguous=ambiguous, non_existent="null")
    return local.dt.convert_time_zone("UTC").dt.replace_time_zone(None).cast(pl.Int64)


class Times:
    """The time of each row of a log, as a text that `times` reads. Rows must be asked for in their order."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._options = rows, rows.options
        self._last: datetime | None = None  # the last time that had only its time of day
        self._front: tuple[str, int] | None = None  # a time that stands before the rows, and of which sweep it is

    def of(self, text: str, sweep: int) -> str | None:
        """The time of a row: by its `text`, or else by the number of its sweep. None if `text` is no time.

        Raises InputError where --at or --every is needed and not given.
        """
        text = " ".join(text.strip(" \t[](),|;").split())
        if not text:
            return self._of_sweep(sweep)
        if _UNIX.fullmatch(text):
            return text
        if match := _ISO.fullmatch(text):
            year, _, month, day, clock, zone = match.groups()
            return f"{year}-{month}-{day} {_two_digits(clock)}{zone or ''}"
        if re.fullmatch(_CLOCK, text):
            return self._of_day(_two_digits(text))
        return self._spelled(text)

    def begins(self, line: str, sweep: int) -> bool:
        """Whether a line is a time and nothing else, as `date` prints it: of this sweep, from which others count."""
        stamp = self.of(line, 0) if line.strip() else None
        if stamp is not None:
            self._front = stamp, sweep
        return stamp is not None

    def _spelled(self, text: str) -> str | None:
        """A time with the name of a month, its parts in any order, as `date`, `ts` and C print it in many countries."""
        parts: dict[str, str] = {}
        for word in text.split():
            match = _WORD.fullmatch(word)
            kind = match.lastgroup if match is not None else None
            if kind is None or (kind in parts and kind != "weekday"):
                return None
            parts[kind] = word.rstrip(".")
        if not {"month", "day", "clock"} <= parts.keys():
            return None
        month = _MONTHS[parts["month"][:3].lower()]
        if "year" not in parts:
            begin = self._begin("the times in it have no year")
            parts["year"] = str(begin.year + (month < begin.month - 6) - (month > begin.month + 6))
        clock = _two_digits(parts["clock"])
        if "half" in parts:
            clock = f"{int(clock[:2]) % 12 + 12 * (parts['half'].lower() == 'pm'):02d}{clock[2:]}"
        civil = f"{parts['year']}-{month:02d}-{int(parts['day']):02d} {clock}"
        return civil + self._offset(parts.get("zone", ""), civil)

    def _offset(self, zone: str, civil: str) -> str:
        """What stands behind a time in ISO 8601 for a zone such as CET. Raises InputError if time-zone has none."""
        if zone in ("", "UTC", "GMT", "Z"):
            return "Z" if zone else ""
        if zone[0] in "+-":
            return zone if len(zone) > 3 else f"{zone}00"
        try:
            then = datetime.fromisoformat(civil[:19])
        except ValueError:
            return ""  # it is no time, and will be refused as one
        for fold in (0, 1):
            local = then.replace(tzinfo=_zone(self._options.time_zone), fold=fold)
            if local.tzname() == zone:
                return local.strftime("%z")
        raise InputError(
            f"{self._rows.file}: times in it are in {zone}: say where that is, as --set time-zone=Europe/Berlin"
        )

    def _of_day(self, clock: str) -> str | None:
        """The day of a time of day: that of --at, and later the next one when the clock passes midnight."""
        before = self._last or self._begin("the times in it have no date")
        seconds, _, fraction = clock.partition(".")
        try:
            now = datetime.combine(before.date(), datetime.strptime(seconds, "%H:%M:%S").time())  # noqa: DTZ007
        except ValueError:
            return None
        if self._last is not None or ":" in str(self._options.at):  # else --at says only the day
            now += timedelta(days=(before - now > _HALF_DAY) - (now - before > _HALF_DAY))
        self._last = now
        return f"{now:%Y-%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")

    def _begin(self, why: str) -> datetime:
        """The civil time that --at says, in time-zone."""
        if self._options.at is None:
            raise InputError(f"{self._rows.file}: {why}: say on which day it began, for example --at 2026-11-23")
        self._rows.sheet.used.add("at")
        at_ns = instant(self._options.at, self._options.time_zone, "--at")
        return datetime.fromtimestamp(at_ns // NS, _zone(self._options.time_zone)).replace(tzinfo=None)

    def _of_sweep(self, sweep: int) -> str:
        rows, options = self._rows, self._options
        step_s = options.every or (rows.step_s if options.at is None or self._front is not None else None)
        began_ns = rows.began_ns if options.at is None else instant(options.at, options.time_zone, "--at")
        if self._front is not None:
            stamp, first = self._front
            if sweep == first:
                return stamp
            began_ns, sweep = instant(stamp, options.time_zone, "the time"), sweep - first
        else:
            rows.sweeps = max(rows.sweeps, sweep + 1)
        if began_ns is None or (step_s is None and sweep):
            raise InputError(
                f"{rows.file} has no times: say when it began and how many seconds lie between two readings, for "
                "example --at '2026-11-23 14:05:00' --every 1"
            )
        if self._front is None:
            rows.sheet.used.add("at")
        if sweep:
            rows.sheet.used.add("every")
        if sweep and options.at is not None and self._front is None:
            rows.note(
                "the times are counted from --at in steps of --every: a pause of the tool itself shifts all that follow"
            )
        try:
            return text_of_ns(began_ns + round(sweep * (step_s or 0.0) * NS))
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{rows.file}: --every {step_s:g} puts its readings beyond the year 9999: give the seconds between two "
                "readings"
            ) from error


def _two_digits(clock: str) -> str:
    """A time of day with two digits for the hour, and a point before the fraction."""
    return clock.replace(",", ".").zfill(len(clock) + (clock[1] == ":"))
