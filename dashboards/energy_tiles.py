"""The few figures about energy that stand first: what was metered, whose it was, what a job lost, grams and money."""

from __future__ import annotations

from ..analysis.energy.answers import EnergyAnswer, EnergySummary
from ..analysis.energy.books import Booked
from ..analysis.energy.quote import Quoted
from .energy_words import (
    CO2E,
    COST,
    EXCESS_REASONS,
    MASSES,
    REASONS,
    Row,
    energy_lines,
    excess_interval,
    interval,
    lacking,
    unit_of,
    with_interval,
)  # fmt: skip
from .table import MISSING, count, many

Tile = tuple[str, str]
"""A value, and what it is."""

_KINDS = {
    "job": "of jobs",
    "idle": "idle: no job had the GPU, and it did nothing",
    "unattributed": "unattributed: it worked, nobody knows for whom",
}


def metered(summary: EnergySummary) -> list[Tile]:
    """What was metered, and its parts, in one unit."""
    total = summary.total
    if not total:
        return [(MISSING, "metered: no GPU has telemetry in this time")]
    unit, joules = unit_of([total["energy_j"] or total["known_j"]])
    tiles = [_energy(total, unit, joules, f"metered on {many(total['gpus'] or 0, 'GPU')}")]
    for kind, meaning in _KINDS.items():
        if kind == "job" and not summary.booked.has_jobs:
            tiles.append((MISSING, "of jobs: no job is known in this time (whorl jobs import)"))
        elif kind in summary.parts:
            tiles.append(_energy(summary.parts[kind], unit, joules, meaning))
        else:  # of a GPU whose energy is not known, nobody knows a part either
            tiles.append((MISSING if total["energy_j"] is None else f"0 {unit}", meaning))
    return tiles


def of_job(answer: EnergyAnswer, row: Row) -> list[Tile]:
    """The energy of a job, what of it its GPUs would have drawn without work, and what the scheduler says."""
    tiles = []
    for name, figure, basis in energy_lines(answer, row):
        value, ends = figure.split(" [") if figure.endswith("]") else (figure, "")
        tiles.append((value, f"{name}{_unbroken(f' [{ends}') if ends else ''}: {_plain(basis)}"))
    return tiles


def _energy(row: Row, unit: str, joules: float, meaning: str) -> Tile:
    if row["energy_j"] is None:
        return MISSING, f"{meaning}: {_plain(REASONS.get(row['reason'], row['reason'] or 'there is no figure'))}"
    energy, ends = with_interval(row, joules)
    return f"{energy} {unit}", f"{meaning} {_unbroken(ends)}"


def _plain(text: str) -> str:
    """A sentence without the marks of code."""
    return text.replace("`", "")


def _unbroken(ends: str) -> str:
    """An interval that is not broken at the end of a line."""
    return ends.replace(" ", "\u00a0")


def costs(row: Row, booked: Booked) -> list[Tile]:
    """Grams and money of a row, or what the settings lack."""
    unit, grams = unit_of([row["co2e_g"]], MASSES)
    tiles = []
    for names, figure, scale, suffix, why in (
        (CO2E, "CO2e", grams, unit, booked.carbon_reason),
        (COST, "cost", 1.0, booked.settings.currency or "", booked.cost_reason),
    ):
        if row[names[0]] is not None:
            value, ends = interval(row, names, scale)
            tiles.append((f"{value} {suffix}".rstrip(), f"{figure} {_unbroken(ends)}"))
        elif booked.settings.path is None:
            tiles.append((MISSING, f"{figure}: write energy.toml in the store's folder (docs/energy.md)"))
        else:
            reason = lacking(why, booked.zones_without_factor()) if why else "there is no figure of the energy"
            tiles.append((MISSING, f"{figure}: {_plain(reason)}"))
    return tiles


def lost(elsewhere: Quoted | None) -> list[Tile]:
    """What a job lost to hardware: GPU time and energy beyond those of the median GPUs of its models."""
    row = None if elsewhere is None else elsewhere.lost
    if row is None:
        return [(MISSING, "lost to hardware: none of its GPUs is known")]
    tiles = []
    for unit, figure in (("s", "GPU time"), ("j", "energy")):
        name = f"{figure} lost to hardware"
        if row[f"excess_{unit}"] is None:
            why = EXCESS_REASONS.get(row[f"excess_{unit}_reason"], "nothing was used")
            tiles.append((MISSING, f"{name}: {_plain(why)}"))
        else:
            best, ends = excess_interval(row, unit).split(" [")
            tiles.append((best, f"{name} {_unbroken(f'[{ends}')}; {count(row['compared'])} GPUs compared"))
    return tiles
