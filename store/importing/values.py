"""Turn texts into numbers. Impossible values are refused; what means "unknown" becomes NULL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ...errors import InputError, UnitError
from .content import LINE, OWN, Rule, Sheet
from .layout import Bound
from .meanings import PLACEHOLDERS, Meaning
from .options import typed
from .units import UNITS, Unit, find

_NUMBER = r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
_SEPARATED = r"^[+-]?[0-9]+[ ,.'\u00a0][0-9 ,.'\u00a0]*$"  # 1,5 or 1,234.5 or 1 234
_LABELLED = _NUMBER + r"[ \u00a0]*([A-Za-z%°µμ].*)$"


@dataclass
class Seen:
    """What parsing found: placeholders by column, units by column, remarks."""

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
    seen: Seen,
    *,
    minus_one: bool,
    required: str = "",
    unless: pl.Expr | None = None,
    lenient: bool = False,
) -> None:
    """Parse columns of numbers into `parsed(meaning)`, in the meaning's unit.

    The unit of a duration may be found later, from other columns. If nothing states it, the numbers stay as they are
    and `bound.unit` stays None. A row whose value is no number, has a foreign unit, or lies outside the meaning's
    limits is refused, and so is one that lacks the meaning called `required`, `unless` that holds for the row. Raises
    InputError (UnitError) where that is most of a column: then it does not hold what its name says. If `lenient`, no
    row is refused: such a value becomes NULL, and a note counts them.
    """
    sheet.frame = sheet.frame.with_columns(
        is_placeholder(b.column, minus_one=minus_one).alias(missing(b.meaning)) for b in items
    )
    sheet.frame = sheet.frame.with_columns(
        pl.when(~pl.col(missing(b.meaning))).then(_plain(b)).alias(parsed(b.meaning)) for b in items
    )
    unknown = sheet.counts(*(pl.col(missing(b.meaning)) for b in items))
    strange = sheet.counts(*(~pl.col(missing(b.meaning)) & pl.col(parsed(b.meaning)).is_null() for b in items))
    scaled = []
    for bound, without, odd in zip(items, unknown, strange, strict=True):
        if sheet.format:  # a row of a format need not have every column
            (said,) = sheet.counts(pl.col(missing(bound.meaning)) & (pl.col(bound.column) != ""))
        else:
            said = without
        if said and bound.meaning.name != required:
            seen.placeholders[bound.column] = said
        if bound.meaning.dimension:
            value = _with_units(sheet, bound, labelled=odd > 0, believed=sheet.frame.height - without)
            if value is not None:
                scaled.append(value.alias(parsed(bound.meaning)))
            if bound.unit is not None:
                seen.units[bound.column] = {"unit": bound.unit.name, "from": bound.source}
    if scaled:
        sheet.frame = sheet.frame.with_columns(scaled)
    _check_columns(sheet, items, unknown)
    if lenient:
        _without_wrong(sheet, items, seen)
        return
    rules: list[Rule] = []
    for bound in items:
        name, meaning = bound.column, bound.meaning
        value, known = pl.col(parsed(meaning)), ~pl.col(missing(meaning))
        limits = f"{meaning.low:g} to {meaning.high:g} {meaning.unit}".removesuffix("ratio").rstrip()
        rules.append((known & value.is_null(), f"{name} is not a readable {meaning.dimension or 'number'}"))
        rules.append((known & ~_inside(bound), f"{name} is outside {limits}"))
        if meaning.name == required:
            rules.append((~known if unless is None else ~known & ~unless, f"{name} is missing"))
    sheet.refuse(*rules)


def further_numbers(sheet: Sheet, items: Sequence[Bound], seen: Seen) -> list[Bound]:
    """Parse columns that must cost neither a row nor the file; returns those that do not hold what their names say."""
    try:
        numbers(sheet, items, seen, minus_one=True, lenient=True)
    except InputError:
        pass  # one of them or more: which ones is found below
    else:
        return []
    lost = []
    for bound in items:
        try:
            numbers(sheet, [bound], seen, minus_one=True, lenient=True)
        except InputError as error:
            seen.placeholders.pop(bound.column, None)
            seen.units.pop(bound.column, None)
            seen.notes.append(f"{bound.column} is not stored: {str(error).removeprefix(f'{sheet.file}: ')}")
            lost.append(bound)
    return lost


def _without_wrong(sheet: Sheet, items: Sequence[Bound], seen: Seen) -> None:
    """Turn values that cannot be into NULL."""
    wrong = [~pl.col(missing(b.meaning)) & ~_inside(b) for b in items]
    for bound, bad, number in zip(items, wrong, sheet.counts(*wrong), strict=True):
        if number:
            column = parsed(bound.meaning)
            first = sheet.line(sheet.frame.filter(bad)[LINE][0])
            sheet.frame = sheet.frame.with_columns(pl.when(~bad).then(pl.col(column)).alias(column))
            what = f"{number} {'value' if number == 1 else 'values'} cannot be the {bound.meaning.description}"
            seen.notes.append(f"{bound.column}: {what}, so NULL is stored (first line {first})")


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


def _with_units(sheet: Sheet, bound: Bound, *, labelled: bool, believed: int) -> pl.Expr | None:
    """The numbers in the meaning's unit, or None if they stay as they are. Sets `bound.unit`.

    --unit overrules everything. A unit in the column's name or in --map must agree with the units after the values. If
    only the format is known, the unit after most values counts. A number whose own unit does not fit becomes null.
    """
    meaning, name = bound.meaning, bound.column
    target = UNITS[meaning.dimension][meaning.unit]
    number = pl.col(parsed(meaning))
    labels: dict[str, int] = {}
    if labelled:
        odd = sheet.frame.filter(~pl.col(missing(meaning)) & number.is_null())
        counted = odd[name].str.extract(_LABELLED, 2).str.strip_chars().drop_nulls().value_counts(sort=True, name="n")
        labels = dict(counted.rows())
    own = {label: unit for label in labels if (unit := find(label, meaning.dimension)) is not None}
    without_label = True
    if bound.source == "--unit" and bound.unit is not None:
        own = dict.fromkeys(labels, bound.unit)
    elif sum(n for label, n in labels.items() if label not in own) * 2 > believed:
        label = next(label for label in labels if label not in own)
        raise UnitError(
            f"{sheet.file}: column {name!r} has values in {label!r}, which is not a unit of {meaning.dimension} "
            f"({', '.join(UNITS[meaning.dimension])}); {typed('--unit', name, 'UNIT')} gives their unit"
        )
    elif bound.source not in ("", "the format"):
        others = [label for label, unit in own.items() if unit != bound.unit]
        if bound.unit is not None and sum(labels[label] for label in others) * 2 > believed:
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name} and the values say {others[0]}; "
                f"say which with {typed('--unit', name, 'UNIT')}"
            )
        own = {label: unit for label, unit in own.items() if unit == bound.unit}
    elif own and sum(labels[label] for label in own) * 2 > believed:
        unit = next(iter(own.values()))
        without_label = bound.unit == unit  # a bare number among numbers with units must be in the format's unit
        bound.unit, bound.source = unit, "the values"
    elif meaning.unit != "ratio":  # a unit that stands after only a few values is not the column's unit; 50 % is 0.5
        own = {label: unit for label, unit in own.items() if unit == bound.unit}
    if bound.unit is None and meaning.name != "time":
        as_mapped = typed("--map", name, f"{meaning.name}:{meaning.unit}")
        raise UnitError(
            f"{sheet.file}: column {name!r} has no unit; give it: {as_mapped} or {typed('--unit', name, meaning.unit)}"
        )
    if bound.unit is None:
        return None
    if not labels:
        return None if bound.unit == target else _scaled(number, bound.unit, target)
    parts = pl.col(name).str.extract_groups(_LABELLED).struct
    digits, beside = parts[0], parts[1].str.strip_chars()
    values = [_scaled(number, bound.unit, target)] if without_label else []
    for each, unit in own.items():
        value = pl.when(beside == each).then(digits).cast(pl.Float64)
        values.append(_scaled(pl.when(value.is_finite()).then(value), unit, target))
    return pl.when(~pl.col(missing(meaning))).then(pl.coalesce(values) if values else None)


def _scaled(number: pl.Expr, unit: Unit, target: Unit) -> pl.Expr:
    factor, offset = unit.to(target)
    if factor != 1.0:
        number = number * factor
    return number + offset if offset else number


def _inside(bound: Bound) -> pl.Expr:
    """Whether a value lies within the limits of its meaning. The limits are in the stored unit."""
    value = pl.col(parsed(bound.meaning))
    if bound.unit is None and bound.meaning.dimension:
        return value.is_not_null()
    return value.is_between(bound.meaning.low, bound.meaning.high).fill_null(False)


def _zero_watts(bound: Bound) -> pl.Expr:
    """Readings of a sensor that does not work: they are marked later, and say nothing of the column's unit."""
    return pl.lit(bound.meaning.unit == "mW") & (pl.col(parsed(bound.meaning)) == 0)


def _check_columns(sheet: Sheet, items: Sequence[Bound], unknown: list[int]) -> None:
    """Refuse the file if a column does not hold what its name and unit say."""
    inside = sheet.counts(*(_inside(b) for b in items))
    medians = sheet.frame.select(
        pl.col(parsed(b.meaning)).filter(_inside(b) & ~_zero_watts(b)).median().alias(parsed(b.meaning)) for b in items
    )
    for bound, good, without in zip(items, inside, unknown, strict=True):
        meaning, name = bound.meaning, bound.column
        believed = sheet.frame.height - without
        unit = f" in {bound.unit.name} (from {bound.source})" if bound.unit is not None else ""
        if (believed - good) * 2 > believed:
            wrong = sheet.frame.filter(~pl.col(missing(meaning)) & ~_inside(bound)).row(0, named=True)
            if wrong[parsed(meaning)] is None and re.match(_SEPARATED, wrong[name]):
                raise InputError(
                    f"{sheet.file}: column {name!r}: line {sheet.line(wrong[LINE])} has {wrong[name]!r}; write numbers "
                    "with a decimal point and nothing between thousands (1234.5)"
                )
            raise InputError(
                f"{sheet.file}: column {name!r} does not contain a {meaning.description}{unit}: "
                f"line {sheet.line(wrong[LINE])} has {wrong[name]!r}; the columns look shifted, renamed or relabelled "
                f"(use --map and --unit to say what they are)"
            )
        median = medians[parsed(meaning)][0]
        low, high = meaning.usual
        if median is not None and (bound.unit is not None or not meaning.dimension) and not low <= median <= high:
            raise UnitError(
                f"{sheet.file}: column {name!r} has a median of {median:g} {meaning.unit}, read{unit}, which is "
                f"unusual for a column of this meaning ({meaning.description.removeprefix('condition: ')}): it looks "
                "shifted, renamed or in another unit (use --map and --unit)"
            )
