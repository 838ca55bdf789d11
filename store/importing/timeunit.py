"""The unit of a published duration that states none, proven by the other columns of its rows, or not at all.

Published files of the same authors give `perf` in ms, in s and in ns, without a mark. What proves the unit, the
strongest first:

1. the same duration in a second column whose name states a unit (`perf_s`);
2. the kernels' own start times, in s: (last start - first start) is the duration of (number - 1) kernels, or of the
   whole run (not in a training, whose kernels are not its iterations);
3. the training's own time, in s, a second or more: in one unit only, it holds between 10 and 100,000 iterations.

Where nothing proves it, the user is asked, because nobody would ever notice a wrong unit. A unit in the column's name
that 1 or 2 contradicts is refused, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ...errors import UnitError
from .content import OWN, Sheet
from .layout import Bound, unit_behind
from .options import typed
from .units import UNITS, Unit, split_label
from .values import Remarks, parsed

_TIME = UNITS["time"]
_CANDIDATES = (_TIME["s"], _TIME["ms"], _TIME["us"], _TIME["ns"])
_AGREES = 0.05  # kernel start times agree with the mean kernel to 0.2 % in the published files
_ITERATIONS, _SHORTEST_S = (10, 100_000), 1.0  # of a training
_KERNELS = ("kern_min_start", "kern_max_start", "num_kerns")
_NUMBER = r"^([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"  # published training times have words behind it


@dataclass(frozen=True)
class _Proof:
    """The unit that other columns prove. `seconds` is the same duration, where they have it."""

    unit: Unit
    columns: tuple[str, ...]
    source: str
    seconds: pl.Expr | None = None


def decide(sheet: Sheet, bound: Bound, remarks: Remarks) -> None:
    """Find the unit of the duration, turn `parsed(time)` into ms, and refuse rows that contradict themselves.

    Raises UnitError where nothing says or proves the unit, or a proof contradicts the name of the column.
    """
    name, column = bound.column, parsed(bound.meaning)
    if not sheet.frame.height:
        return
    raw = pl.col(column)
    if bound.unit is not None:  # `values.numbers` has scaled it to ms: look at the number as it was written
        raw = raw / bound.unit.to(_TIME["ms"])[0]
    proof = _proof(sheet, bound, raw)
    if bound.unit is None:
        if proof is None:
            raise UnitError(
                f"{sheet.file}: column {name!r} has no unit, and no other column proves one; say it, for example "
                f"{typed('--unit', name, 'ms')}"
            )
        bound.unit, bound.source = proof.unit, proof.source
        sheet.frame = sheet.frame.with_columns(pl.col(column) * proof.unit.to(_TIME["ms"])[0])
        remarks.units[name] = {"unit": proof.unit.name, "from": proof.source}
    elif proof is not None and proof.unit != bound.unit:
        if bound.source != "--unit":
            raise UnitError(
                f"{sheet.file}: {bound.source} says {bound.unit.name}, but {proof.source} says {proof.unit.name}; "
                f"say which with {typed('--unit', name, 'UNIT')}"
            )
        remarks.notes.append(
            f"--unit says {name} is in {bound.unit.name}; by {proof.source} it is in {proof.unit.name}"
        )
    if proof is not None and proof.seconds is not None:
        error = (pl.col(column) / (proof.seconds * 1000) - 1.0).abs()
        agreeing, contradicting = sheet.counts(error < _AGREES, error > _AGREES)
        if agreeing > contradicting:
            sheet.refuse((error > _AGREES, f"{name} contradicts the row's own {' and '.join(proof.columns)}"))


def _proof(sheet: Sheet, bound: Bound, raw: pl.Expr) -> _Proof | None:
    columns = {name.lower(): name for name in sheet.names}
    base = split_label(bound.column)[0].removesuffix(f"_{unit_behind(bound.column, bound.meaning)}").lower()
    twins = [(columns.get(f"{base}_{unit.name}", bound.column), unit) for unit in _CANDIDATES]
    references: list[tuple[tuple[str, ...], str, pl.Expr]] = [
        ((twin,), f"column {twin!r}", _number(twin) * unit.factor) for twin, unit in twins if twin != bound.column
    ]
    trained = next((name for name in sheet.names if name.lower().startswith("train_time")), None)
    if trained is None and columns.keys() >= set(_KERNELS):
        kernels = tuple(columns[name] for name in _KERNELS)
        first, last, number = (_number(name) for name in kernels)
        durations = ((last - first) / (number - 1), last - first)
        references += [(kernels, "the kernels' start times", seconds) for seconds in durations]
    names = {name for columns_of, _, _ in references for name in columns_of} | ({trained} if trained else set())
    numbers = (
        pl.coalesce(pl.col(name).cast(pl.Float64, strict=False), pl.col(name).str.extract(_NUMBER, 1).cast(pl.Float64))
        for name in sorted(names)
    )
    sheet.frame = sheet.frame.with_columns(
        number.alias(f"{OWN}number {name}") for name, number in zip(sorted(names), numbers, strict=True)
    )
    for names_of, source, seconds in references:
        ratio = raw / pl.when(seconds > 0).then(seconds)
        comparable, *agreeing = sheet.counts(
            ratio.is_finite(), *((ratio * unit.factor - 1.0).abs() < _AGREES for unit in _CANDIDATES)
        )
        for unit, count in zip(_CANDIDATES, agreeing, strict=True):
            if count * 2 > comparable:
                return _Proof(unit, names_of, source, seconds)
    if trained is None:
        return None
    ratio = raw / pl.when(_number(trained) >= _SHORTEST_S).then(_number(trained))
    middle = sheet.frame.select(ratio.filter(ratio.is_finite() & (ratio > 0)).median()).item()
    if middle is None:
        return None
    fewest, most = _ITERATIONS
    units = [unit for unit in _CANDIDATES if 1 / most <= middle * unit.factor <= 1 / fewest]
    return _Proof(units[0], (trained,), f"column {trained!r}") if len(units) == 1 else None


def _number(name: str) -> pl.Expr:
    return pl.col(f"{OWN}number {name}")
