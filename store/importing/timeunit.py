"""Find the unit of a published duration that states none, from the other columns of its rows, if possible.

Published files of the same authors give `perf` in ms, in s and in ns, without a mark. The unit is taken from
the strongest evidence that the file holds, in this order:

1. the same duration in a second column whose name states a unit (`perf_s`);
2. the kernels' own start times, in s: (last start - first start) is the duration of (number - 1) kernels,
   or of the whole run (not in a training, whose kernels are not its iterations);
3. the training time, in s: it holds between 10 and 100,000 iterations;
4. the size alone, if only one of s, ms and ns makes a duration between 1 ms and 1,000 s (a training
   iteration: 5 ms to 60 s); of ns only whole numbers from a billion on, too long for microseconds.

If nothing decides, the file is refused and the user is asked, because nobody would ever notice a wrong unit. A unit in
the column's name that contradicts 1 to 3 is refused, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ...errors import UnitError
from .content import OWN, Sheet
from .layout import Bound, unit_behind
from .meanings import Meaning
from .options import typed
from .units import UNITS, Unit, split_label
from .values import Seen, parsed

_TIME = UNITS["time"]
_CANDIDATES = (_TIME["s"], _TIME["ms"], _TIME["us"], _TIME["ns"])
_PUBLISHED = (_TIME["s"], _TIME["ms"], _TIME["ns"])
_AGREES = 0.05  # kernel start times agree with the mean kernel to 0.2 % in the published files
_LEAST, _MOST = 10, 100_000  # iterations in a training
_NUMBER = r"^([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"


def decide(sheet: Sheet, bound: Bound, seen: Seen, *, training: bool, by_size: bool) -> None:
    """Find the unit of the duration, turn `parsed(time)` into ms, and refuse rows that contradict themselves.

    `training` says that the duration is one iteration of a training, `by_size` that the size alone may count.
    Raises UnitError.
    """
    name, column = bound.column, parsed(bound.meaning)
    if not sheet.frame.height:
        return
    raw = pl.col(column)
    stated = bound.unit
    if stated is not None:  # `values.numbers` has scaled it to ms: look at the number as it was written
        raw = raw / stated.to(_TIME["ms"])[0]
    evidence, reference = _evidence(sheet, bound, raw, training=training)
    if stated is None:
        if evidence is None and not by_size:
            raise UnitError(f"{sheet.file}: column {name!r} has no unit; give it: {typed('--map', name, 'time:ms')}")
        stated, bound.source = evidence or _size_alone(sheet, name, raw, training=training)
        bound.unit = stated
        factor = stated.to(_TIME["ms"])[0]
        if factor != 1.0:
            sheet.frame = sheet.frame.with_columns(pl.col(column) * factor)
        seen.units[name] = {"unit": stated.name, "from": bound.source}
    elif evidence is not None and evidence[0] != stated and bound.source == "--unit":
        seen.notes.append(f"--unit says {name} is in {stated.name}; by {evidence[1]} it is in {evidence[0].name}")
    elif evidence is not None and evidence[0] != stated:
        raise UnitError(
            f"{sheet.file}: {bound.source} says {stated.name}, but {evidence[1]} says {evidence[0].name}; "
            f"say which with {typed('--unit', name, 'UNIT')}"
        )
    if reference is not None:
        error = (pl.col(column) / (reference.seconds * 1000) - 1.0).abs()
        agreeing, contradicting = sheet.counts(error < _AGREES, error > _AGREES)
        if contradicting and agreeing > contradicting:
            sheet.refuse((error > _AGREES, f"{name} contradicts the row's own {' and '.join(reference.columns)}"))


@dataclass(frozen=True)
class _Reference:
    """The same duration, in s, from other columns."""

    seconds: pl.Expr
    columns: tuple[str, ...]
    source: str


def _number(name: str) -> pl.Expr:
    return pl.col(f"{OWN}number {name}")


def _add_numbers(sheet: Sheet, names: list[str]) -> None:
    """Add `_number` of columns: what a text begins with; published training times have words behind it."""
    plain = [pl.col(name).cast(pl.Float64, strict=False).alias(f"{OWN}number {name}") for name in names]
    sheet.frame = sheet.frame.with_columns(plain)
    odd = [name for name in names if sheet.frame[f"{OWN}number {name}"].null_count()]
    begun = [pl.col(name).str.extract(_NUMBER, 1).cast(pl.Float64).alias(f"{OWN}number {name}") for name in odd]
    sheet.frame = sheet.frame.with_columns(begun)


def _references(sheet: Sheet, name: str, meaning: Meaning, *, training: bool) -> list[_Reference]:
    lower = {n.lower(): n for n in sheet.names}
    base = split_label(name)[0].removesuffix(f"_{unit_behind(name, meaning)}").lower()
    twins = {unit: lower.get(f"{base}_{unit.name}", name) for unit in _CANDIDATES}
    found = [
        _Reference(_number(twin) * unit.factor, (twin,), f"column {twin!r}")
        for unit, twin in twins.items()
        if twin != name
    ]
    kernels = [lower.get(n, "") for n in ("kern_min_start", "kern_max_start", "num_kerns")]
    if all(kernels) and not training:
        first, last, number = (_number(n) for n in kernels)
        source = "the kernels' start times"
        found += [_Reference(s, tuple(kernels), source) for s in ((last - first) / (number - 1), last - first)]
    return found


def _evidence(
    sheet: Sheet, bound: Bound, raw: pl.Expr, *, training: bool
) -> tuple[tuple[Unit, str] | None, _Reference | None]:
    """The unit that other columns prove, which columns these are, and the duration that they give for each row.

    Raises UnitError if there is such a duration and no unit makes the column agree with it: one of the two does not
    hold what its name says.
    """
    references = _references(sheet, bound.column, bound.meaning, training=training)
    trained = next((n for n in sheet.names if n.lower().startswith("train_time")), None)
    seconds = [r.seconds for r in references] + ([_number(trained)] if trained is not None else [])
    if not seconds:
        return None, None
    names = {name for r in references for name in r.columns} | ({trained} if trained is not None else set())
    _add_numbers(sheet, sorted(names))
    ratios = [raw / pl.when(s > 0).then(s) for s in seconds]
    medians = sheet.frame.select(r.filter(r.is_finite()).median().alias(str(i)) for i, r in enumerate(ratios)).row(0)
    for reference, median in zip(references, medians, strict=False):
        units = [u for u in _CANDIDATES if median is not None and abs(median * u.factor - 1.0) < _AGREES]
        if units:
            return (units[0], reference.source), reference
    against = next((r for r in references if _filled(sheet, r)), None)
    if against is not None and bound.source != "--unit":
        raise UnitError(
            f"{sheet.file}: in every unit {bound.column!r} contradicts {against.source}: the columns look shifted or "
            f"renamed; if they are right, give the unit with {typed('--unit', bound.column, 'UNIT')}"
        )
    if trained is None or medians[-1] is None:
        return None, None
    units = [u for u in _PUBLISHED if 1 / _MOST <= medians[-1] * u.factor <= 1 / _LEAST]
    fitting = [u for u in units if u in _by_size(sheet, raw, training=training)]
    if not fitting and bound.source != "--unit":
        raise UnitError(
            f"{sheet.file}: in every unit {bound.column!r} is too long or too short for one iteration of the training "
            f"({trained!r}): the columns look shifted or renamed; if they are right, give the unit with "
            f"{typed('--unit', bound.column, 'UNIT')}"
        )
    return ((units[0], f"column {trained!r}"), None) if len(units) == 1 else (None, None)


def _filled(sheet: Sheet, reference: _Reference) -> bool:
    """Whether the columns of a reference hold numbers on most rows (a profiler may have lost the kernels)."""
    above_zero = pl.all_horizontal(_number(name) > 0 for name in reference.columns)
    return sheet.counts(above_zero)[0] * 2 > sheet.frame.height


def _by_size(sheet: Sheet, raw: pl.Expr, *, training: bool) -> list[Unit]:
    """The units in which the median is a usual duration."""
    low, high = (5e-3, 60.0) if training else (1e-3, 1000.0)
    median, whole = sheet.frame.select(raw.median(), (raw == raw.round()).all().alias("whole")).row(0)
    units = [u for u in _PUBLISHED if low <= median * u.factor <= high]
    # Nanoseconds are large whole numbers. Any other number of that size could also be microseconds.
    return [u for u in units if u != _TIME["ns"] or (whole and median >= 1e9)]


def _size_alone(sheet: Sheet, name: str, raw: pl.Expr, *, training: bool) -> tuple[Unit, str]:
    units = _by_size(sheet, raw, training=training)
    median = sheet.frame.select(raw.median()).item()
    if len(units) != 1:
        raise UnitError(
            f"{sheet.file}: the unit of {name!r} (median {median:g}) is not known: "
            f"{' and '.join(u.name for u in units) or 'none of s, ms and ns'} would fit its size: "
            f"give it with {typed('--unit', name, 'UNIT')}"
        )
    return units[0], f"its size (median {median:g})"
