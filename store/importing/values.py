"""Turn texts into numbers. Impossible values are refused; what means "unknown" becomes NULL.

The unit of a duration may be proven by the other columns of its rows: published files of the same authors give `perf`
in ms, in s and in ns, without a mark. What proves it, the strongest first:

1. the same duration in a second column whose name states a unit (`perf_s`);
2. the kernels' own start times, in s: (last start - first start) is the duration of (number - 1) kernels, or of the
   whole run (not in a training, whose kernels are not its iterations);
3. the training's own time, in s, a second or more: in one unit only, it holds between 10 and 100,000 iterations.

Where nothing proves it, the user is asked, because nobody would ever notice a wrong unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

from ...errors import InputError, UnitError
from .content import LINE, OWN, Rule, Sheet
from .layout import unit_behind
from .meanings import PLACEHOLDERS, UNITS, Bound, Meaning, Unit, find, split_label
from .options import typed

_NUMBER = r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
# 1,5 or 1,234.5 or 1 234 or 12,5 W
_SEPARATED = r"^[+-]?[0-9.]*[0-9][ ,'\u00a0][0-9][0-9 ,.'\u00a0]*(?:[A-Za-z%°µμ].*)?$"
_LABELLED = _NUMBER + r"[ \u00a0]*([A-Za-z%°µμ].*)$"
_TIME = UNITS["time"]
_CANDIDATES = (_TIME["s"], _TIME["ms"], _TIME["us"], _TIME["ns"])
_AGREES = 0.05  # kernel start times agree with the mean kernel to 0.2 % in the published files
_ITERATIONS, _SHORTEST_S = (10, 100_000), 1.0  # of a training
_KERNELS = ("kern_min_start", "kern_max_start", "num_kerns")
_POINT = "write numbers with a decimal point, not a decimal comma, and nothing between thousands (1234.5)"


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


def stated(column: str, *, minus_one: bool = False) -> pl.Expr:
    """The text of a column; null where it stands for "unknown"."""
    return pl.when(~is_placeholder(column, minus_one=minus_one)).then(pl.col(column))


def numbers(
    sheet: Sheet, items: Sequence[Bound], *, minus_one: bool, required: str = "", unless: pl.Expr | None = None
) -> None:
    """Parse columns of numbers into `parsed(meaning)`, in the meaning's unit.

    The unit of a duration may be proven later, by other columns (`prove_unit`). If nothing states it, the numbers stay
    as they are and `bound.unit` stays None. A row whose value is no number, has a foreign unit, or lies outside the
    meaning's limits is refused, and so is one that lacks the meaning called `required`, `unless` that holds for the
    row. Raises InputError (UnitError) where no value of a column can be one.
    """
    rules: list[Rule] = []
    for bound in items:
        name, meaning, unknown = bound.column, bound.meaning, pl.col(missing(bound.meaning))
        separated = _parse(sheet, bound, minus_one=minus_one, counted=meaning.name != required)
        reason = f"{name} is not a readable {meaning.dimension or 'number'}" + (f": {_POINT}" if separated else "")
        outside = (
            f"outside {meaning.low:g} to {meaning.high:g}" if meaning.high < math.inf else f"below {meaning.low:g}"
        )
        limits = f"{outside} {meaning.unit}".removesuffix("ratio").rstrip()
        rules.append((~unknown & pl.col(parsed(meaning)).is_null(), reason))
        rules.append((~unknown & ~_inside(bound), f"{name} is {limits}"))
        if meaning.name == required:
            rules.append((unknown if unless is None else unknown & ~unless, f"{name} is missing"))
    sheet.refuse(*rules)


def further_numbers(sheet: Sheet, items: Sequence[Bound]) -> None:
    """Parse columns that must cost neither a row nor the file; those that do not hold what their names say are ignored.

    Of the others, a value that cannot be becomes NULL, and a note counts them.
    """
    for bound in items:
        column = parsed(bound.meaning)
        try:
            _parse(sheet, bound, minus_one=True, counted=True)
        except InputError as error:
            sheet.placeholders.pop(bound.column, None)
            sheet.units.pop(bound.column, None)
            sheet.notes.append(f"{bound.column} is not stored: {str(error).removeprefix(f'{sheet.file}: ')}")
            del sheet.bound[bound.meaning.name]
            continue
        wrong = ~pl.col(missing(bound.meaning)) & ~_inside(bound)
        (number,) = sheet.counts(wrong)
        if number:
            first = sheet.line(sheet.frame.filter(wrong)[LINE][0])
            sheet.frame = sheet.frame.with_columns(pl.when(~wrong).then(pl.col(column)).alias(column))
            values = f"{number} {'value' if number == 1 else 'values'} cannot be the {bound.meaning.description}"
            sheet.notes.append(f"{bound.column}: {values}, so NULL is stored (first line {first})")


def _parse(sheet: Sheet, bound: Bound, *, minus_one: bool, counted: bool) -> bool:
    """Add `missing(meaning)` and `parsed(meaning)`; whether a text has a comma, or separates thousands.

    Raises InputError (UnitError) where the column holds no value that can be one.
    """
    name, meaning = bound.column, bound.meaning
    unknown, value = pl.col(missing(meaning)), pl.col(parsed(meaning))
    sheet.frame = sheet.frame.with_columns(is_placeholder(name, minus_one=minus_one).alias(missing(meaning)))
    sheet.frame = sheet.frame.with_columns(pl.when(~unknown).then(_plain(bound)).alias(parsed(meaning)))
    without, empty = sheet.counts(unknown, pl.col(name) == "")
    placeholders = without - empty if sheet.format else without  # a row of a format need not have every column
    if placeholders and counted:
        sheet.placeholders[name] = placeholders
    strange = sheet.frame.lazy().filter(~unknown & value.is_null()).group_by(name).len("n").collect()
    separated = not sheet.format and strange[name].str.contains(_SEPARATED).any()
    if meaning.dimension:
        _convert(sheet, bound, strange, believed=sheet.frame.height - without)
        if bound.unit is not None:
            sheet.units[name] = {"unit": bound.unit.name, "from": bound.source}
    (fitting,) = sheet.counts(_inside(bound))
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


def _plain(bound: Bound) -> pl.Expr:
    """A text that is a number and nothing else, as a number; else null."""
    text = pl.col(bound.column)
    if bound.meaning.kind == "hex":  # a bit mask as nvidia-smi writes it (0x...), or a plain integer
        digits = text.str.extract(r"^0[xX]([0-9a-fA-F]{1,16})$", 1).str.to_integer(base=16, strict=False)
        return pl.coalesce(digits, text.cast(pl.Int64, strict=False)).cast(pl.Float64)
    if bound.meaning.kind == "pstate":
        return text.str.extract("^P?([0-9]{1,3})$", 1).cast(pl.Float64)
    if bound.meaning.kind == "flag":  # Yes or No, or a number
        text = text.str.to_lowercase().replace({"yes": "1", "no": "0"})
    number = text.cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def _convert(sheet: Sheet, bound: Bound, strange: pl.DataFrame, *, believed: int) -> None:
    """Bring the numbers into the meaning's unit, and set `bound.unit`. One whose own unit does not fit becomes null.

    `strange` has each text that is no plain number, such as `46.19 W`, and on how many rows (`n`). --unit overrules
    everything. A unit in the column's name or in --map must agree with the units after the values. If only the format
    is known, the unit after most of the `believed` values counts. Raises UnitError.
    """
    meaning, name, column = bound.meaning, bound.column, parsed(bound.meaning)
    parts = pl.col(name).str.extract_groups(_LABELLED).struct
    texts = strange.select(name, "n", number=parts[0].cast(pl.Float64), label=parts[1].str.strip_chars())
    texts = texts.filter(pl.col("number").is_finite())
    by_label = texts.group_by("label").agg(pl.col("n").sum()).sort("n", "label", descending=[True, False])
    counts: dict[str, int] = dict(by_label.iter_rows())
    units = {label: unit for label in counts if (unit := find(label, meaning.dimension)) is not None}
    say_which = f"say which with {typed('--unit', name, 'UNIT')}"
    bare_counts = True  # a number without a unit is in the column's unit
    if bound.source == "--unit" and bound.unit is not None:
        units = dict.fromkeys(counts, bound.unit)
    elif counts and not units and sum(counts.values()) == believed:
        raise UnitError(
            f"{sheet.file}: column {name!r} has values in {next(iter(counts))[:20]!r}, which is not a unit of "
            f"{meaning.dimension} ({', '.join(UNITS[meaning.dimension])}); {say_which}"
        )
    elif bound.source not in ("", "the format"):
        others = [label for label, unit in units.items() if unit != bound.unit]
        if others and bound.unit is not None and sum(counts[label] for label in others) == believed:
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name} and the values say {others[0]}; {say_which}"
            )
        units = {label: unit for label, unit in units.items() if unit == bound.unit}
    elif sum(counts[label] for label in units) * 2 > believed:
        unit = next(iter(units.values()))
        bare_counts = bound.unit == unit  # a bare number among numbers with units must be in the format's unit
        bound.unit, bound.source = unit, "the values"
    elif meaning.unit != "ratio":  # a unit that stands after only a few values is not the column's unit; 50 % is 0.5
        units = {label: unit for label, unit in units.items() if unit == bound.unit}
    if bound.unit is None and meaning.name != "time":
        as_mapped = typed("--map", name, f"{meaning.name}:{meaning.unit}")
        raise UnitError(
            f"{sheet.file}: column {name!r} has no unit; give it: {as_mapped} or {typed('--unit', name, meaning.unit)}"
        )
    target = UNITS[meaning.dimension][meaning.unit]
    factor, offset = (1.0, 0.0) if bound.unit is None else bound.unit.to(target)
    scaled = pl.col(column) * factor + offset if bare_counts else pl.lit(None, pl.Float64)
    if counts and sheet.unfinished:  # in a last line that does not end, the unit may be cut off
        scaled = pl.when(pl.col(LINE) != sheet.unfinished).then(scaled)
    if counts:
        scales = [(label, *unit.to(target)) for label, unit in units.items()]
        schema = {"label": pl.String, "factor": pl.Float64, "offset": pl.Float64}
        texts = texts.join(pl.DataFrame(scales, schema, orient="row"), on="label")
        numbers = texts.select(pl.col("number") * pl.col("factor") + pl.col("offset")).to_series()
        scaled = pl.col(name).replace_strict(texts[name], numbers, default=scaled, return_dtype=pl.Float64)
    sheet.frame = sheet.frame.with_columns(scaled.alias(column))


def _inside(bound: Bound) -> pl.Expr:
    """Whether a value lies within the limits of its meaning. The limits are in the stored unit."""
    value = pl.col(parsed(bound.meaning))
    if bound.unit is None and bound.meaning.dimension:
        return value.is_not_null()
    return value.is_between(bound.meaning.low, bound.meaning.high).fill_null(False)


# -- the unit of a duration -----------------------------------------------------------------------------------


def prove_unit(sheet: Sheet, bound: Bound) -> None:
    """Find the unit of the duration, turn `parsed(time)` into ms, and refuse rows that contradict themselves.

    Raises UnitError where nothing says or proves the unit, or a proof contradicts the name of the column.
    """
    name, column = bound.column, parsed(bound.meaning)
    scale = 1.0 if bound.unit is None else bound.unit.to(_TIME["ms"])[0]
    proven, source, seconds = _proof(sheet, bound, pl.col(column) / scale)  # of the number as it was written
    if bound.unit is None:
        if proven is None:
            raise UnitError(
                f"{sheet.file}: column {name!r} has no unit, and no other column proves one; say it, for example "
                f"{typed('--unit', name, 'ms')}"
            )
        bound.unit, bound.source = proven, source
        sheet.frame = sheet.frame.with_columns(pl.col(column) * proven.to(_TIME["ms"])[0])
        sheet.units[name] = {"unit": proven.name, "from": source}
    elif proven not in (None, bound.unit):
        if bound.source != "--unit":
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name}, but {source} says {proven.name}; "
                f"say which with {typed('--unit', name, 'UNIT')}"
            )
        sheet.notes.append(f"--unit says {name} is in {bound.unit.name}; by {source} it is in {proven.name}")
    if seconds is not None:
        error = (pl.col(column) / (seconds * 1000) - 1.0).abs()
        agreeing, contradicting = sheet.counts(error < _AGREES, error > _AGREES)
        if agreeing > contradicting:
            sheet.refuse((error > _AGREES, f"{name} contradicts {source}"))


def _proof(sheet: Sheet, bound: Bound, raw: pl.Expr) -> tuple[Unit | None, str, pl.Expr | None]:
    """The unit of the duration `raw` that other columns prove, what proves it, and where they have it, in s."""
    columns = {name.lower(): name for name in sheet.names}
    base = split_label(bound.column)[0].removesuffix(f"_{unit_behind(bound.column, bound.meaning)}").lower()
    twins = [(columns.get(f"{base}_{unit.name}", bound.column), unit) for unit in _CANDIDATES]
    proofs = [(f"column {twin!r}", _number(twin) * unit.factor) for twin, unit in twins if twin != bound.column]
    trained = next((name for name in sheet.names if name.lower().startswith("train_time")), None)
    if trained is None and columns.keys() >= set(_KERNELS):
        first, last, number = (_number(columns[name]) for name in _KERNELS)
        durations = ((last - first) / (number - 1), last - first)
        proofs += [("the kernels' start times", seconds) for seconds in durations]
    for source, seconds in proofs:
        ratio = raw / pl.when(seconds > 0).then(seconds)
        comparable, *agreeing = sheet.counts(
            ratio.is_finite(), *((ratio * unit.factor - 1.0).abs() < _AGREES for unit in _CANDIDATES)
        )
        for unit, count in zip(_CANDIDATES, agreeing, strict=True):
            if count * 2 > comparable:
                return unit, source, seconds
    if trained is None:
        return None, "", None
    ratio = raw / pl.when(_number(trained) >= _SHORTEST_S).then(_number(trained))
    middle = sheet.frame.select(ratio.filter(ratio.is_finite() & (ratio > 0)).median()).item()
    fewest, most = _ITERATIONS
    units = [unit for unit in _CANDIDATES if middle and 1 / most <= middle * unit.factor <= 1 / fewest]
    return units[0] if len(units) == 1 else None, f"column {trained!r}", None


def _number(name: str) -> pl.Expr:
    """The number that a text begins with: published training times have words behind it."""
    return pl.col(name).str.extract(_NUMBER, 1).cast(pl.Float64, strict=False)
