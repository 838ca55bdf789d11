"""Turn texts into numbers. Impossible values are refused; what means "unknown" becomes NULL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ...errors import InputError, UnitError
from .content import LINE, OWN, Rule, Sheet
from .layout import Bound
from .meanings import PLACEHOLDERS, Meaning
from .options import typed
from .units import UNITS, find

_NUMBER = r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
# 1,5 or 1,234.5 or 1 234 or 12,5 W
_SEPARATED = r"^[+-]?[0-9.]*[0-9][ ,'\u00a0][0-9][0-9 ,.'\u00a0]*(?:[A-Za-z%°µμ].*)?$"
_LABELLED = _NUMBER + r"[ \u00a0]*([A-Za-z%°µμ].*)$"
_LABEL = f"{OWN}label"  # what stands behind the number of a row, while its column is read
_BARE = ""
_SAMPLE = 1000  # texts by which a column is known
_POINT = "write numbers with a decimal point, not a decimal comma, and nothing between thousands (1234.5)"


@dataclass
class Remarks:
    """What parsing met: placeholders by column, units by column, remarks."""

    placeholders: dict[str, int] = field(default_factory=dict)
    units: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def parsed(meaning: Meaning) -> str:
    """The name of the column that holds the parsed values of a meaning."""
    return f"{OWN}{meaning.name}"


def missing(meaning: Meaning) -> str:
    """The name of the column that says where a meaning's value is unknown."""
    return f"{OWN}no {meaning.name}"


def is_placeholder(column: str, *, minus_one: bool) -> pl.Expr:
    """Whether a text stands for "unknown"; -1 does where a format uses it as a code."""
    codes = PLACEHOLDERS | ({"-1", "-1.0"} if minus_one else set())
    return pl.col(column).str.to_lowercase().is_in(codes)


def numbers(
    sheet: Sheet,
    items: Sequence[Bound],
    remarks: Remarks,
    *,
    minus_one: bool,
    required: str = "",
    unless: pl.Expr | None = None,
    spend: bool = False,
) -> None:
    """Parse columns of numbers into `parsed(meaning)`, in the meaning's unit.

    The unit of a duration may be proven later, by other columns. If nothing states it, the numbers stay as they are and
    `bound.unit` stays None. A row whose value is no number, has a foreign unit, or lies outside the meaning's limits is
    refused, and so is one that lacks the meaning called `required`, `unless` that holds for the row. Raises InputError
    (UnitError) where no value of a column can be one. With `spend`, the texts are dropped, which take much memory.
    """
    rules: list[Rule] = []
    for bound in items:
        name, meaning, unknown = bound.column, bound.meaning, pl.col(missing(bound.meaning))
        separated = _parse(sheet, bound, remarks, minus_one=minus_one, counted=meaning.name != required)
        value = pl.col(parsed(meaning))
        reason = f"{name} is not a readable {meaning.dimension or 'number'}" + (f": {_POINT}" if separated else "")
        outside = (
            f"outside {meaning.low:g} to {meaning.high:g}" if meaning.high < math.inf else f"below {meaning.low:g}"
        )
        limits = f"{outside} {meaning.unit}".removesuffix("ratio").rstrip()
        rules.append((~unknown & value.is_null(), reason))
        rules.append((~unknown & ~_inside(bound), f"{name} is {limits}"))
        if meaning.name == required:
            rules.append((unknown if unless is None else unknown & ~unless, f"{name} is missing"))
        if spend:
            sheet.frame = sheet.frame.drop(name)
    sheet.refuse(*rules)


def further_numbers(sheet: Sheet, items: Sequence[Bound], remarks: Remarks) -> list[Bound]:
    """Parse columns that must cost neither a row nor the file; returns those that do not hold what their names say.

    Of the others, a value that cannot be becomes NULL, and a note counts them.
    """
    lost = []
    for bound in items:
        column = parsed(bound.meaning)
        try:
            _parse(sheet, bound, remarks, minus_one=True, counted=True)
        except InputError as error:
            remarks.placeholders.pop(bound.column, None)
            remarks.units.pop(bound.column, None)
            remarks.notes.append(f"{bound.column} is not stored: {str(error).removeprefix(f'{sheet.file}: ')}")
            lost.append(bound)
            continue
        wrong = ~pl.col(missing(bound.meaning)) & ~_inside(bound)
        (number,) = sheet.counts(wrong)
        if number:
            first = sheet.line(sheet.frame.filter(wrong)[LINE][0])
            sheet.frame = sheet.frame.with_columns(pl.when(~wrong).then(pl.col(column)).alias(column))
            values = f"{number} {'value' if number == 1 else 'values'} cannot be the {bound.meaning.description}"
            remarks.notes.append(f"{bound.column}: {values}, so NULL is stored (first line {first})")
    return lost


def _parse(sheet: Sheet, bound: Bound, remarks: Remarks, *, minus_one: bool, counted: bool) -> bool:
    """Add `missing(meaning)` and `parsed(meaning)`; whether a text has a comma, or separates thousands.

    Raises InputError (UnitError) where the column holds no value that can be one.
    """
    name, meaning = bound.column, bound.meaning
    unknown, value = pl.col(missing(meaning)), pl.col(parsed(meaning))
    sheet.frame = sheet.frame.with_columns(is_placeholder(name, minus_one=minus_one).alias(missing(meaning)))
    sheet.frame = sheet.frame.with_columns(pl.when(~unknown).then(_plain(bound)).alias(parsed(meaning)))
    without, strange, empty = sheet.counts(unknown, ~unknown & value.is_null(), pl.col(name) == "")
    placeholders = without - empty if sheet.format else without  # a row of a format need not have every column
    if placeholders and counted:
        remarks.placeholders[name] = placeholders
    texts = sheet.frame.lazy().filter(~unknown & value.is_null()).select(name).head(_SAMPLE).collect()[name]
    if meaning.dimension:
        labels = _split_labels(sheet, bound, texts) if strange else {}
        if labels and sheet.unfinished:
            whole = (pl.col(LINE) != sheet.unfinished) | pl.col(_LABEL).is_not_null()
            sheet.frame = sheet.frame.with_columns(pl.when(whole).then(value).alias(parsed(meaning)))
        scaled = _in_unit(sheet, bound, labels, believed=sheet.frame.height - without)
        if scaled is not None:
            sheet.frame = sheet.frame.with_columns(scaled.alias(parsed(meaning)))
        if bound.unit is not None:
            remarks.units[name] = {"unit": bound.unit.name, "from": bound.source}
        sheet.frame = sheet.frame.drop(_LABEL, strict=False)
    (fitting,) = sheet.counts(_inside(bound))
    separated = not sheet.format and bool(texts.str.contains(_SEPARATED).any())
    if sheet.frame.height > without and not fitting:
        line, text = sheet.frame.filter(~unknown).select(LINE, name).row(0)
        place = f"line {sheet.line(line)} has {text[:40]!r}"
        if separated:
            raise InputError(f"{sheet.file}: column {name!r}: {place}; {_POINT}")
        unit = f" in {bound.unit.name} (from {bound.source})" if bound.unit is not None else ""
        raise InputError(
            f"{sheet.file}: column {name!r} does not contain a {meaning.description}{unit}: {place}, and no row has "
            f"one; say its unit with {typed('--unit', name, 'UNIT')}, or what it is with "
            f"{typed('--map', name, 'MEANING')}"
        )
    return separated


def _split_labels(sheet: Sheet, bound: Bound, texts: pl.Series) -> dict[str, int]:
    """Read numbers with a text behind them (`46.19 W`): `parsed(meaning)` gets the number, `_LABEL` the text.

    Returns how often each text stands there. The first rows tell which is usual: the others are few, and are read by a
    pattern, which is slow.
    """
    text, value = pl.col(bound.column), pl.col(parsed(bound.meaning))
    beside = texts.str.extract(_LABELLED, 2).str.strip_chars().drop_nulls()
    label = beside.mode().sort()[0] if len(beside) else "W"
    number = text.str.strip_suffix(label).str.strip_chars_end(" \u00a0").cast(pl.Float64, strict=False)
    odd = ~pl.col(missing(bound.meaning)) & value.is_null()
    sheet.frame = sheet.frame.with_columns(
        pl.when(odd & number.is_finite()).then(number).otherwise(value).alias(parsed(bound.meaning)),
        pl.when(odd & number.is_finite()).then(pl.lit(label)).alias(_LABEL),
    )
    if sheet.counts(odd)[0]:
        parts = text.str.extract_groups(_LABELLED).struct
        number = parts[0].cast(pl.Float64)
        sheet.frame = sheet.frame.with_columns(
            pl.when(odd & number.is_finite()).then(number).otherwise(value).alias(parsed(bound.meaning)),
            pl.when(odd & number.is_finite()).then(parts[1].str.strip_chars()).otherwise(_LABEL).alias(_LABEL),
        )
    counts = sheet.frame[_LABEL].drop_nulls().value_counts(sort=True, name="n")
    return dict(counts.rows())


def _plain(bound: Bound) -> pl.Expr:
    """A text that is a number and nothing else, as a number; else null."""
    text = pl.col(bound.column)
    if bound.meaning.kind == "hex":  # a bit mask as nvidia-smi writes it (0x...), or a plain integer
        digits = text.str.extract(r"^0[xX]([0-9a-fA-F]{1,16})$", 1).str.to_integer(base=16, strict=False)
        return pl.coalesce(digits, text.cast(pl.Int64, strict=False)).cast(pl.Float64)
    if bound.meaning.kind == "pstate":
        return text.str.extract("^P?([0-9]{1,3})$", 1).cast(pl.Float64)
    number = text.cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def _in_unit(sheet: Sheet, bound: Bound, labels: dict[str, int], *, believed: int) -> pl.Expr | None:
    """The numbers in the meaning's unit, or None if they stay as they are. Sets `bound.unit`.

    `labels` are the texts beside values, and how many have each. --unit overrules everything. A unit in the column's
    name or in --map must agree with the units after the values. If only the format is known, the unit after most values
    counts. A number whose own unit does not fit becomes null.
    """
    meaning, name = bound.meaning, bound.column
    target, number = UNITS[meaning.dimension][meaning.unit], pl.col(parsed(meaning))
    units = {label: unit for label in labels if (unit := find(label, meaning.dimension)) is not None}
    say_which = f"say which with {typed('--unit', name, 'UNIT')}"
    bare_count = True  # a number without a unit is in the column's unit
    if bound.source == "--unit" and bound.unit is not None:
        units = dict.fromkeys(labels, bound.unit)
    elif labels and not units and sum(labels.values()) == believed:
        raise UnitError(
            f"{sheet.file}: column {name!r} has values in {next(iter(labels))[:20]!r}, which is not a unit of "
            f"{meaning.dimension} ({', '.join(UNITS[meaning.dimension])}); {say_which}"
        )
    elif bound.source not in ("", "the format"):
        others = [label for label, unit in units.items() if unit != bound.unit]
        if others and bound.unit is not None and sum(labels[label] for label in others) == believed:
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name} and the values say {others[0]}; {say_which}"
            )
        units = {label: unit for label, unit in units.items() if unit == bound.unit}
    elif sum(labels[label] for label in units) * 2 > believed:
        unit = next(iter(units.values()))
        bare_count = bound.unit == unit  # a bare number among numbers with units must be in the format's unit
        bound.unit, bound.source = unit, "the values"
    elif meaning.unit != "ratio":  # a unit that stands after only a few values is not the column's unit; 50 % is 0.5
        units = {label: unit for label, unit in units.items() if unit == bound.unit}
    if bound.unit is None and meaning.name != "time":
        as_mapped = typed("--map", name, f"{meaning.name}:{meaning.unit}")
        raise UnitError(
            f"{sheet.file}: column {name!r} has no unit; give it: {as_mapped} or {typed('--unit', name, meaning.unit)}"
        )
    if bound.unit is None:  # a number with a text behind it is no plain number
        return pl.when(pl.col(_LABEL).is_null()).then(number) if labels else None
    factor, offset = bound.unit.to(target)
    if not labels:
        return None if bound.unit == target else number * factor + offset
    scales = {label: unit.to(target) for label, unit in units.items()}
    factors = {label: scale[0] for label, scale in scales.items()} | ({_BARE: factor} if bare_count else {})
    offsets = {label: scale[1] for label, scale in scales.items()} | {_BARE: offset}
    label = pl.col(_LABEL).fill_null(_BARE)
    scaled = number * label.replace_strict(factors, default=None, return_dtype=pl.Float64)
    return (
        scaled + label.replace_strict(offsets, default=0.0, return_dtype=pl.Float64)
        if any(offsets.values())
        else scaled
    )


def _inside(bound: Bound) -> pl.Expr:
    """Whether a value lies within the limits of its meaning. The limits are in the stored unit."""
    value = pl.col(parsed(bound.meaning))
    if bound.unit is None and bound.meaning.dimension:
        return value.is_not_null()
    return value.is_between(bound.meaning.low, bound.meaning.high).fill_null(False)
