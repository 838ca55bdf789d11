"""The few figures about energy that stand first: what was metered, whose it was, what a job lost, grams and money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analysis.energy.answers import EnergyAnswer, EnergySummary
from ..analysis.energy.books import Booked
from ..analysis.energy.quote import Quoted
from .energy_words import MASSES, REASONS, lacking, unit_of, with_interval
from .printed.energy_excess import EXCESS_REASONS, excess_interval
from .printed.energy_job import energy_lines
from .table import MISSING, count, many, number

Row = Mapping[str, Any]
Tile = tuple[str, str]
"""A value, and what it is."""

_KINDS = {
    "job": "of jobs",
    "idle": "idle: no job had the GPU, and it did nothing",
    "unattributed": "unattributed: it worked, nobody knows for whom",
}


def metered(found: EnergySummary) -> list[Tile]:
    """What was metered, and its parts, in one unit."""
    total = found.total
    if not total:
        return [(MISSING, "metered: no GPU has telemetry in this time")]
    unit, joules = unit_of([total["energy_j"] or total["known_j"]])
    tiles = [_energy(total, unit, joules, f"metered on {many(total['gpus'] or 0, 'GPU')}")]
    for kind, what in _KINDS.items():
        if kind == "job" and not found.booked.has_jobs:
            tiles.append((MISSING, "of jobs: no job is known in this time (whorl jobs import)"))
        elif kind in found.parts:
            tiles.append(_energy(found.parts[kind], unit, joules, what))
        else:  # of a GPU whose energy is not known, nobody knows a part either
            tiles.append((MISSING if total["energy_j"] is None else f"0 {unit}", what))
    return tiles


def used(found: EnergyAnswer, row: Row) -> list[Tile]:
    """The energy of a job, what of it its GPUs would have drawn without work, and what the scheduler says."""
    tiles = []
    for name, figure, says in energy_lines(found, row):
        value, ends = figure.split(" [") if figure.endswith("]") else (figure, "")
        tiles.append((value, f"{name}{_whole(f' [{ends}') if ends else ''}: {_plain(says)}"))
    return tiles


def _energy(row: Row, unit: str, joules: float, what: str) -> Tile:
    if row["energy_j"] is None:
        return MISSING, f"{what}: {_plain(REASONS.get(row['reason'], row['reason'] or 'there is no figure'))}"
    energy, ends = with_interval(row, joules)
    return f"{energy} {unit}", f"{what} {_whole(ends)}"


def _plain(text: str) -> str:
    """A sentence without the marks of code."""
    return text.replace("`", "")


def _whole(ends: str) -> str:
    """An interval that is not broken at the end of a line."""
    return ends.replace(" ", "\u00a0")


def costs(row: Row, booked: Booked) -> list[Tile]:
    """Grams and money of a row, or what the settings lack."""
    unit, grams = unit_of([row["co2e_g"]], MASSES)
    tiles = []
    for name, what, scale, of, why in (
        ("co2e", "CO2e", grams, unit, booked.carbon_reason),
        ("cost", "cost", 1.0, booked.settings.currency or "", booked.cost_reason),
    ):
        value, low, high = (row[one] for one in _ENDS[name])
        if value is not None:
            ends = f"[{number(low / scale)}, {number(high / scale)}]"
            tiles.append((f"{number(value / scale)} {of}".rstrip(), f"{what} {_whole(ends)}"))
        elif booked.settings.path is None:
            tiles.append((MISSING, f"{what}: write energy.toml in the store's folder (docs/carbon.md)"))
        else:
            said = lacking(why, booked.zones_without_factor()) if why else "there is no figure of the energy"
            tiles.append((MISSING, f"{what}: {_plain(said)}"))
    return tiles


_ENDS = {"co2e": ("co2e_g", "co2e_low_g", "co2e_high_g"), "cost": ("cost", "cost_low", "cost_high")}


def lost(elsewhere: Quoted | None) -> list[Tile]:
    """What a job lost to hardware: GPU time and energy beyond those of the median GPUs of its models."""
    row = None if elsewhere is None else elsewhere.lost
    if row is None:
        return [(MISSING, "lost to hardware: none of its GPUs is known")]
    tiles = []
    for of, what in (("s", "GPU time"), ("j", "energy")):
        name = f"{what} lost to hardware"
        if row[f"excess_{of}"] is None:
            why = EXCESS_REASONS.get(row[f"excess_{of}_reason"], "nothing was used")
            tiles.append((MISSING, f"{name}: {_plain(why)}"))
            continue
        best, ends = excess_interval(row, of).split(" [")
        tiles.append((best, f"{name} {_whole(f'[{ends}')}; {count(row['compared'])} GPUs compared"))
    return tiles
