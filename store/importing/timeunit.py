"""The unit of a published duration that states none, found from what else its rows say, or not at all.

Published files of the same authors give `perf` in ms, in s and in ns, without a mark. The unit is taken from
the strongest evidence that the file holds, in this order:

1. the same duration in a second column whose name states a unit (`perf_s`);
2. the kernels' own start times, in s: (last start - first start) is the duration of (number - 1) kernels,
   or of the whole run;
3. the training time, in s: it holds between 10 and 100,000 iterations;
4. the size alone, where only one of s, ms and ns makes a duration between 1 ms and 1,000 s (a training
   iteration: 5 ms to 60 s).

If nothing decides, the file is refused and the person asked: a wrong unit would be silent for ever. A unit in
the column's name that contradicts 1 to 3 is refused as well.
"""

from __future__ import annotations

import polars as pl

from ...errors import UnitError
from .content import Sheet
from .layout import Bound
from .units import UNITS, Unit, split_label
from .values import Seen, parsed

_TIME = UNITS["time"]
_CANDIDATES = (_TIME["s"], _TIME["ms"], _TIME["us"], _TIME["ns"])
_PUBLISHED = (_TIME["s"], _TIME["ms"], _TIME["ns"])
_AGREES = 0.05  # kernel start times agree with the mean kernel to 0.2 % in the published files
_NUMBER = r"^([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"


def decide(sheet: Sheet, bound: Bound, seen: Seen, *, training: bool) -> None:
    """Find the unit of the duration, turn `parsed(time)` into ms, and refuse rows that contradict themselves.

    `training` says that the duration is one iteration of a training. Raises UnitError.
    """
    name, column = bound.column, parsed(bound.meaning)
    if not sheet.frame.height:
        return
    raw = pl.col(column)
    stated = bound.unit
    if stated is not None:  # `values.numbers` has scaled it to ms: look at the number as it was written
        raw = raw / stated.to(_TIME["ms"])[0]
    evidence, ratio = _evidence(sheet, name, raw)
    if stated is None:
        unit, source = evidence if evidence is not None else _by_size(sheet, name, raw, training=training)
        bound.unit, bound.source = unit, source
        factor = unit.to(_TIME["ms"])[0]
        sheet.frame = sheet.frame.with_columns(
            (pl.col(column) * factor if factor != 1.0 else pl.col(column)).alias(column)
        )
        seen.units[name] = {"unit": unit.name, "from": source}
    elif bound.source != "--unit" and evidence is not None and evidence[0] != stated:
        raise UnitError(
            f"{sheet.file}: {bound.source} says {stated.name}, but {evidence[1]} says {evidence[0].name}; "
            f"say which with --unit {name}=UNIT"
        )
    if ratio is not None and bound.unit is not None:
        error = (ratio * bound.unit.factor - 1.0).abs()
        if (sheet.frame.select((error < _AGREES).mean()).item() or 0.0) > 0.5:
            sheet.refuse(error > _AGREES, f"{name} contradicts the row's own {_columns_of(ratio)}")


def _columns_of(ratio: pl.Expr) -> str:
    names = [n for n in dict.fromkeys(ratio.meta.root_names()) if not n.startswith("=")]
    return " and ".join(names)


def _number(name: str) -> pl.Expr:
    return pl.col(name).str.extract(_NUMBER, 1).cast(pl.Float64)


def _evidence(sheet: Sheet, name: str, raw: pl.Expr) -> tuple[tuple[Unit, str] | None, pl.Expr | None]:
    """The unit that the rest of the rows proves, from what, and raw / (that duration in s) by row."""
    lower = {n.lower(): n for n in sheet.names}
    base = split_label(name)[0].lower()
    for candidate in _CANDIDATES:
        twin = lower.get(f"{base}_{candidate.name}")
        if twin is not None and twin != name:
            ratio = raw / (_number(twin) * candidate.factor)
            unit = _agreeing(sheet, ratio)
            if unit is not None:
                return (unit, f"column {twin!r}"), ratio
    if {"kern_min_start", "kern_max_start", "num_kerns"} <= lower.keys():
        span = _number(lower["kern_max_start"]) - _number(lower["kern_min_start"])
        kernels = _number(lower["num_kerns"])
        for duration in (span / (kernels - 1), span):
            ratio = raw / pl.when(duration > 0).then(duration)
            unit = _agreeing(sheet, ratio)
            if unit is not None:
                return (unit, "the kernels' start times"), ratio
    training = next((lower[n] for n in lower if n.startswith("train_time")), None)
    if training is not None:
        seconds = _number(training)
        share = sheet.frame.select((raw / pl.when(seconds > 0).then(seconds)).median()).item()
        if share:
            units = [u for u in _PUBLISHED if 10 <= 1 / (share * u.factor) <= 100_000]
            if len(units) == 1:
                return (units[0], f"column {training!r}"), None
    return None, None


def _agreeing(sheet: Sheet, ratio: pl.Expr) -> Unit | None:
    """The unit in which the median ratio of duration to reference is 1, or None."""
    median = sheet.frame.select(ratio.filter(ratio.is_finite()).median()).item()
    if median is None:
        return None
    units = [u for u in _CANDIDATES if abs(median * u.factor - 1.0) < _AGREES]
    return units[0] if units else None


def _by_size(sheet: Sheet, name: str, raw: pl.Expr, *, training: bool) -> tuple[Unit, str]:
    low, high = (5e-3, 60.0) if training else (1e-3, 1000.0)
    median = sheet.frame.select(raw.median()).item()
    units = [u for u in _PUBLISHED if median is not None and low <= median * u.factor <= high]
    if len(units) != 1:
        raise UnitError(
            f"{sheet.file}: the unit of {name!r} (median {median:g}) cannot be told: "
            f"{' and '.join(u.name for u in units) or 'none of s, ms and ns'} would do; "
            f"say it with --unit {name}=UNIT"
        )
    return units[0], f"its size (median {median:g})"
