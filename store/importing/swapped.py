"""Find telemetry columns whose names were swapped: together they show physics that no GPU can have.

If two header names were swapped, each column alone is plausible. Together they are not:

* power and SM clock: above the clocks of an idle GPU, a board draws fewer watts than its SM clock has megahertz;
* power and temperature, power and memory clock: clocks and temperatures are read as whole numbers, so that their
  medians are whole or half, and power in mW. These are therefore not powers: a column without decimals beside a higher
  temperature with decimals; a column without decimals that hardly changes beside a memory clock with decimals;
* SM clock and memory clock: the memory clock has a few fixed steps, the SM clock many.

Means have decimals everywhere, and whole watts may be rounded: neither alone is a reason to suspect a swap. Columns
that --map names are believed.
"""

from __future__ import annotations

import polars as pl

from ...errors import InputError
from .content import Sheet
from .layout import Bound
from .options import typed
from .values import parsed

_FEW_ROWS = 5  # below, decimals may be missing by chance
_FEW_STEPS, _MANY_STEPS = 3, 5
_IDLE = 200.0  # MHz; an idle MI300X shows 132 MHz at 140 W
_HOTTEST = 110.0  # degrees Celsius


def check(sheet: Sheet, bound: dict[str, Bound]) -> None:
    """Raise InputError if the names of two telemetry columns in a sheet of runs seem to be swapped."""
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
            f"{sheet.file}: {bound[one].column!r} and {bound[other].column!r} seem to have each other's names ({why}): "
            f"say which is which with {typed('--map', bound[one].column, f'{one}:{bound[one].meaning.unit}')} "
            f"{typed('--map', bound[other].column, f'{other}:{bound[other].meaning.unit}')}"
        )

    def decimals(key: str) -> bool:
        return key in names and (found[f"decimals {key}"] or 0) > 0.5

    whole_watts = found.get("decimals power") == 0
    watts, degrees, clock = (found.get(f"median {key}") for key in ("power", "temperature", "sm_clock"))
    if whole_watts and decimals("temperature") and (watts or 0.0) < min(degrees or 0.0, _HOTTEST):
        raise swapped("power", "temperature", f"{watts:g} W without decimals, {degrees:g} degrees with")
    if whole_watts and decimals("mem_clock") and found["steps power"] <= _FEW_STEPS < found["steps mem_clock"]:
        raise swapped("power", "mem_clock", "a power in few whole steps and a memory clock with decimals")
    if watts is not None and clock is not None and watts > clock > _IDLE:
        raise swapped("power", "sm_clock", f"a median of {watts:g} W at {clock:g} MHz")
    fixed, many = found.get("steps sm_clock"), found.get("steps mem_clock")
    if fixed == 1 and many is not None and many >= _MANY_STEPS and not decimals("mem_clock"):
        raise swapped("sm_clock", "mem_clock", "an SM clock that never moves and a memory clock that does")
