"""Telemetry columns under one another's names: physics that no GPU can show.

Two columns whose header names were swapped hold plausible numbers each. Together they do not:

* clocks and temperatures are read as whole numbers, so that their medians are whole or half; board power is
  read in mW. Where power has no decimals and another column has, they are swapped;
* a GPU's board draws fewer watts than its SM clock has megahertz, from idle to the cap of every model so far;
* the memory clock has a few fixed steps, the SM clock many. Where the SM clock never moves and the memory
  clock takes many values, they are swapped.

Columns that --map names are believed.
"""

from __future__ import annotations

import polars as pl

from ...errors import InputError
from .content import Sheet
from .layout import Bound
from .values import parsed

_FEW_ROWS = 5  # below, decimals may be missing by chance
_MANY_STEPS = 5


def check(sheet: Sheet, bound: dict[str, Bound]) -> None:
    """Raise InputError where two telemetry columns of a sheet of runs seem to be under one another's names."""
    names = [key for key in ("sm_clock", "mem_clock", "temperature", "power") if key in bound and not bound[key].mapped]
    if sheet.frame.height < _FEW_ROWS or len(names) < 2:
        return
    value = {key: pl.col(parsed(bound[key].meaning)) for key in names}
    found = sheet.frame.select(
        *(((value[k] * 2) % 1 > 1e-6).mean().alias(f"decimals {k}") for k in names),
        *(value[k].median().alias(f"median {k}") for k in names),
        *(value[k].drop_nulls().n_unique().alias(f"steps {k}") for k in names),
    ).row(0, named=True)

    def swapped(one: str, other: str, why: str) -> InputError:
        return InputError(
            f"{sheet.file}: {bound[one].column!r} and {bound[other].column!r} seem to be under one another's names "
            f"({why}); say which is which with --map {bound[one].column}={one}:{bound[one].meaning.unit} "
            f"--map {bound[other].column}={other}:{bound[other].meaning.unit}"
        )

    for other in names:
        decimals = found[f"decimals {other}"]
        if other != "power" and "power" in names and found["decimals power"] == 0 and (decimals or 0) > 0.5:
            raise swapped("power", other, "a power without decimals and a reading with decimals")
    watts, clock = found.get("median power"), found.get("median sm_clock")
    if watts is not None and clock is not None and watts > clock:
        raise swapped("power", "sm_clock", f"a median of {watts:g} W at {clock:g} MHz")
    fixed, many = found.get("steps sm_clock"), found.get("steps mem_clock")
    if fixed == 1 and many is not None and many >= _MANY_STEPS:
        raise swapped("sm_clock", "mem_clock", "an SM clock that never moves and a memory clock that does")
