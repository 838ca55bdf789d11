"""Texts turned into numbers and times; what cannot be believed is refused, what means "unknown" is NULL."""

from __future__ import annotations

from dataclasses import dataclass, field
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from ...errors import InputError, UnitError
from .content import LINE, Sheet
from .layout import Bound
from .meanings import PLACEHOLDERS, Meaning
from .units import UNITS, Unit, find

_NUMBER = r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^\s0-9.+\-].*)?$"


@dataclass
class Seen:
    """What was met on the way: placeholders by column, units by column, remarks."""

    placeholders: dict[str, int] = field(default_factory=dict)
    units: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def parsed(meaning: Meaning) -> str:
    """The name of the column that holds the parsed values of a meaning."""
    return f"={meaning.name}"


def is_placeholder(column: str, *, minus_one: bool) -> pl.Expr:
    """Whether a text stands for "unknown"; -1 does where a format uses it as a code."""
    codes = PLACEHOLDERS | ({"-1", "-1.0"} if minus_one else set())
    return pl.col(column).str.to_lowercase().is_in(sorted(codes))


def numbers(sheet: Sheet, bound: Bound, seen: Seen, *, minus_one: bool, required: bool = False) -> None:
    """Parse a column of numbers into `parsed(meaning)`, in the meaning's unit.

    Where the unit of the column is not known and no value names one, the numbers stay as they are and
    `bound.unit` stays None. A row whose value is no number, has a foreign unit, or lies outside the meaning's
    limits is refused. Raises InputError (UnitError) where that is most of the column: then the column does
    not hold what its name says.
    """
    meaning, name = bound.meaning, bound.column
    text = pl.col(name)
    label = text.str.extract(_NUMBER, 2).str.strip_chars()
    number = text.str.extract(_NUMBER, 1).cast(pl.Float64)
    if meaning.kind == "hex":
        label, number = pl.lit(None, pl.String), _hexadecimal(text)
    elif meaning.kind == "pstate":
        label, number = pl.lit(None, pl.String), text.str.extract("^P?([0-9]+)$", 1).cast(pl.Float64)
    elif not meaning.dimension:
        number = pl.when(label.is_null()).then(number)
    sheet.frame = sheet.frame.with_columns(
        is_placeholder(name, minus_one=minus_one).alias("unknown"),
        number.alias("number"),
        label.alias("label"),
    )
    if meaning.dimension:
        _convert(sheet, bound, seen)
    unknown, number = pl.col("unknown"), pl.col("number")
    scaled = bound.unit is not None or not meaning.dimension
    inside = number.is_finite()
    if scaled:
        inside &= number.is_between(meaning.low, meaning.high)
    bad = ~unknown & ~inside.fill_null(False)
    _check_column(sheet, bound, bad, scaled)
    placeholders = int(sheet.frame["unknown"].sum())
    if placeholders and not required:
        seen.placeholders[name] = placeholders
    sheet.refuse(~unknown & number.is_null(), f"{name} is no {meaning.dimension or 'number'} that can be read")
    sheet.refuse(bad, f"{name} is outside {meaning.low:g} to {meaning.high:g} {meaning.unit}".rstrip())
    if required:
        sheet.refuse(unknown, f"{name} is missing")
    value = pl.when(~unknown).then(number).alias(parsed(meaning))
    sheet.frame = sheet.frame.with_columns(value).drop("unknown", "number", "label")


def _hexadecimal(text: pl.Expr) -> pl.Expr:
    """A bit mask as nvidia-smi writes it (0x...), or a plain integer."""
    digits = text.str.extract(r"^0[xX]([0-9a-fA-F]{1,16})$", 1)
    plain = text.str.extract(r"^([0-9]{1,18})$", 1).cast(pl.Int64)
    return pl.coalesce(digits.str.to_integer(base=16, strict=False), plain).cast(pl.Float64)


def _convert(sheet: Sheet, bound: Bound, seen: Seen) -> None:
    """Scale the numbers to the meaning's unit; a number whose own unit does not fit becomes null.

    --unit overrules everything; a unit in the column's name or in --map must agree with the units beside the
    values; where only the format is known, the units beside the values count.
    """
    meaning, name = bound.meaning, bound.column
    believed = int((~sheet.frame["unknown"]).sum())
    counted = sheet.frame.filter(pl.col("label").is_not_null())["label"].value_counts(sort=True, name="n")
    labels: dict[str, int] = dict(counted.rows())
    own = {label: unit for label in labels if (unit := find(label, meaning.dimension)) is not None}
    if bound.source == "--unit" and bound.unit is not None:
        own = dict.fromkeys(labels, bound.unit)
    elif sum(n for label, n in labels.items() if label not in own) * 2 > believed:
        label = next(label for label in labels if label not in own)
        raise UnitError(
            f"{sheet.file}: column {name!r} has values in {label!r}, which is no unit of {meaning.dimension} "
            f"({', '.join(UNITS[meaning.dimension])})"
        )
    elif own and bound.source in ("", "the format"):
        bound.unit, bound.source = next(iter(own.values())), "the values"
    elif bound.unit is not None:
        others = [label for label, unit in own.items() if unit != bound.unit]
        if sum(labels[label] for label in others) * 2 > believed:
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name} and the values say {others[0]}; "
                f"say which with --unit {name}=UNIT"
            )
        own = {label: unit for label, unit in own.items() if unit == bound.unit}
    unlabelled = pl.col("label").is_null()
    if bound.unit is None:  # decided later, from what else the rows say
        sheet.frame = sheet.frame.with_columns(pl.when(unlabelled).then(pl.col("number")).alias("number"))
        return
    target = UNITS[meaning.dimension][meaning.unit]
    each = [pl.when(unlabelled).then(_scaled(bound.unit, target))]
    each += [pl.when(pl.col("label") == label).then(_scaled(unit, target)) for label, unit in own.items()]
    sheet.frame = sheet.frame.with_columns(pl.coalesce(each).alias("number"))
    seen.units[name] = {"unit": bound.unit.name, "from": bound.source}


def _scaled(unit: Unit, target: Unit) -> pl.Expr:
    factor, offset = unit.to(target)
    number = pl.col("number")
    if factor != 1.0:
        number = number * factor
    return number + offset if offset else number


def _check_column(sheet: Sheet, bound: Bound, bad: pl.Expr, scaled: bool) -> None:
    """Refuse the file where a column does not hold what its name and unit say."""
    meaning, name = bound.meaning, bound.column
    believed = sheet.frame.filter(~pl.col("unknown"))
    if not believed.height:
        return
    wrong = believed.filter(bad)
    unit = f" in {bound.unit.name} (from {bound.source})" if bound.unit is not None else ""
    if wrong.height * 2 > believed.height:
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold a {meaning.description}{unit}: "
            f"line {wrong[0, LINE]} has {wrong[0, name]!r}; the columns look shifted, renamed or relabelled "
            f"(--map and --unit say what they are)"
        )
    if scaled and meaning.usual[0] > float("-inf"):
        median = believed.filter(~bad)["number"].median()
        low, high = meaning.usual
        if isinstance(median, float) and not low <= median <= high:
            raise UnitError(
                f"{sheet.file}: column {name!r} has a median of {median:g} {meaning.unit}{unit}, which is no "
                f"{meaning.description} of a GPU; say the unit with --unit {name}=UNIT"
            )


_ZONED = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$"


def times(sheet: Sheet, bound: Bound, seen: Seen, *, minus_one: bool, required: bool, time_zone: str) -> None:
    """Parse a column of time stamps into `parsed(meaning)`: nanoseconds since 1970, UTC, without zone.

    Known are UNIX times in s, ms, us or ns (told apart by their size, which cannot be mistaken between 2001
    and 2286), `YYYY/MM/DD hh:mm:ss.fff` and ISO 8601. A time without a zone is read in `time_zone`.
    """
    meaning, name = bound.meaning, bound.column
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InputError(f"--time-zone {time_zone}: there is no such time zone; an example is Europe/Berlin") from error
    text = pl.col(name)
    plain = text.str.extract(r"^([0-9]{9,19}(?:\.[0-9]+)?)$", 1)
    whole = plain.str.extract(r"^([0-9]+)", 1).cast(pl.Int64, strict=False)
    part = ("0" + plain.str.extract(r"(\.[0-9]+)$", 1)).cast(pl.Float64).fill_null(0.0)
    unix = (
        pl.when(whole < 10_000_000_000)
        .then(whole * 1_000_000_000 + (part * 1e9).round().cast(pl.Int64))
        .when(whole < 10_000_000_000_000)
        .then(whole * 1_000_000 + (part * 1e6).round().cast(pl.Int64))
        .when(whole < 10_000_000_000_000_000)
        .then(whole * 1_000 + (part * 1e3).round().cast(pl.Int64))
        .otherwise(whole)
    )
    frame = sheet.frame.with_columns(
        is_placeholder(name, minus_one=minus_one).alias("unknown"),
        unix.alias("unix"),
        pl.lit(None, pl.Int64).alias("civil"),
    )
    if frame["unix"].null_count():
        frame = _civil(frame, name, time_zone, seen)
    stamp = pl.coalesce("unix", "civil")
    # 1990 to 2100: outside, a digit was damaged or the number is no time.
    good = stamp.is_between(631_152_000 * 10**9, 4_102_444_800 * 10**9)
    bad = ~pl.col("unknown") & ~good.fill_null(False)
    believed = frame.filter(~pl.col("unknown"))
    wrong = believed.filter(bad)
    if wrong.height * 2 > believed.height:
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold a time stamp: line {wrong[0, LINE]} has "
            f"{wrong[0, name]!r}; the columns look shifted or renamed"
        )
    sheet.frame = frame
    placeholders = int(frame["unknown"].sum())
    if placeholders and not required:
        seen.placeholders[name] = placeholders
    sheet.refuse(bad, f"{name} is no time stamp that can be read")
    if required:
        sheet.refuse(pl.col("unknown"), f"{name} is missing")
    sheet.frame = sheet.frame.with_columns(
        pl.when(~pl.col("unknown")).then(stamp).cast(pl.Datetime("ns")).alias(parsed(meaning))
    ).drop("unknown", "unix", "civil")


def _civil(frame: pl.DataFrame, name: str, time_zone: str, seen: Seen) -> pl.DataFrame:
    text = pl.col(name).str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    shape = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?$"
    text = pl.when(text.str.contains(shape)).then(text)
    zoned = text.str.contains(_ZONED)
    clock = text.str.replace(_ZONED, "").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    local = clock.dt.replace_time_zone(time_zone, ambiguous="earliest", non_existent="null")
    hours = text.str.extract(r"([+-][0-9]{2}):?[0-9]{2}$", 1).cast(pl.Int64, strict=False).fill_null(0)
    minutes = text.str.extract(r"[+-][0-9]{2}:?([0-9]{2})$", 1).cast(pl.Int64, strict=False).fill_null(0)
    sign = pl.when(text.str.contains(r"-[0-9]{2}:?[0-9]{2}$")).then(-1).otherwise(1)
    offset = hours * 3600 + sign * minutes * 60
    civil = (
        pl.when(zoned)
        .then(clock.cast(pl.Int64) - offset * 1_000_000_000)
        .otherwise(local.dt.convert_time_zone("UTC").dt.replace_time_zone(None).cast(pl.Int64))
    )
    frame = frame.with_columns(civil.alias("civil"), zoned.alias("zoned"))
    unzoned = frame.filter(pl.col("civil").is_not_null() & ~pl.col("zoned")).height
    if unzoned:
        seen.notes.append(f"{name} states no time zone: read as {time_zone} (--time-zone)")
    return frame.drop("zoned")
