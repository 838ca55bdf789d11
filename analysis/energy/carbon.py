"""What a kWh emits somewhere at some time, and where the figure comes from. Nodes use it too, without Polars.

The shipped table has Ember's values of a year, from the data set Yearly Electricity Data (CC BY 4.0): emissions over
the life cycle, of what is generated in the zone; imports are not in them. They are those that the package co2.js 0.16.8
carries, with the year of each. Left out are three places whose value is 0 or a rounded 1000, as their few GWh are given
to 0.01 TWh.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ...store.vocabulary import Code
from .settings import EnergySettings, Method, holding

TABLE = files(__package__) / "factors.csv"
SOURCE = "Ember, Yearly Electricity Data, edition of 2025"


class FactorBasis(Code):
    """What kind of figure the grams of a kWh are."""

    HOURS = "hours", "hour by hour, from a file"
    STATED = "stated", "as the settings state it"
    TABLE = "table", "the mean of a year, from the table that comes with whorl"


class NoFigure(Code):
    """Why there are no grams or no money; the meaning says what to give."""

    NO_ENERGY = "no energy", "there is no figure of the energy"
    NO_ZONE = "no zone", 'the settings name no zone for this cluster and time: write zone = "DE" in energy.toml'
    NO_FACTOR = (
        "no factor",
        "nothing says what a kWh of this zone emits: give a file with intensity, or a [[factor]], in energy.toml",
    )
    NO_CONTRACT = (
        "no contract",
        'no [[factor]] with method = "market" holds on this cluster at this time: give one in energy.toml',
    )
    NO_PRICE = "no price", "no price holds on this cluster at this time: write price = 0.20 in energy.toml"


@dataclass(frozen=True)
class ZoneFactor:
    """The grams of a kWh of a zone in a year."""

    zone: str
    """Three letters of ISO 3166-1, EU or WORLD."""
    code: str | None
    """Two letters of ISO 3166-1."""
    name: str
    g_per_kwh: float
    year: int


@dataclass(frozen=True)
class GridFactor:
    """What a kWh emits at a time, g CO2e without PUE; None with a `reason`, a code of `NoFigure`."""

    g_per_kwh: float | None
    method: Method
    zone: str | None = None
    basis: FactorBasis | None = None
    source: str | None = None
    year: int | None = None
    """None of hours, which have their own."""
    pue: float | None = None
    """None where the site does not state it: the grams are then without the building."""
    reason: NoFigure | None = None


@cache
def shipped_table() -> dict[str, ZoneFactor]:
    """The shipped factors by zone."""
    with TABLE.open(encoding="utf-8") as lines:
        return {
            row["zone"]: ZoneFactor(
                row["zone"], row["code"] or None, row["name"], float(row["g_per_kwh"]), int(row["year"])
            )
            for row in csv.DictReader(lines)
        }


def canonical(zone: str) -> str:
    """One spelling of a zone: DE, deu and Germany are DEU. A zone that the table lacks is itself, in capitals: of
    US-CAL-CISO the table knows nothing, not the factor of the USA."""
    spelling = zone.strip().casefold()
    spelling = "gb" if spelling == "uk" else spelling
    for factor in shipped_table().values():
        if spelling in (factor.zone.casefold(), (factor.code or "").casefold(), factor.name.casefold()):
            return factor.zone
    return zone.strip().upper()


def yearly_factor(settings: EnergySettings, cluster: str | None, at_ns: int) -> GridFactor:
    """What holds at a time where no file has the hour: what the site states, else the shipped table."""
    pue = number_at(settings, "pue", cluster, at_ns)
    method = settings.method
    place = None if method is Method.MARKET else holding(settings.zones, cluster, at_ns)
    zone = None if place is None else canonical(str(place.value))
    if method is Method.LOCATION and zone is None:
        return GridFactor(None, method, pue=pue, reason=NoFigure.NO_ZONE)
    factors = [
        factor
        for factor in settings.factors
        if factor.method is method and zone == (None if zone is None else canonical(factor.zone or ""))
    ]
    stated = holding(factors, cluster, at_ns)
    if stated is not None:
        zone = zone or (None if stated.zone is None else canonical(stated.zone))
        return GridFactor(float(stated.value), method, zone, FactorBasis.STATED, stated.source, int(stated.year), pue)
    mean = shipped_table().get(zone or "")
    if mean is not None:
        return GridFactor(mean.g_per_kwh, method, zone, FactorBasis.TABLE, SOURCE, mean.year, pue)
    reason = NoFigure.NO_FACTOR if method is Method.LOCATION else NoFigure.NO_CONTRACT
    return GridFactor(None, method, zone, pue=pue, reason=reason)


def number_at(settings: EnergySettings, key: str, cluster: str | None, at_ns: int) -> float | None:
    """The `pue`, `price` or `host_w` that holds on a cluster at a time; None where none does."""
    dated = holding(getattr(settings, key), cluster, at_ns)
    return None if dated is None else float(dated.value)


def changes(settings: EnergySettings, since_ns: int, until_ns: int) -> list[int]:
    """`since_ns`, and the times from there to `until_ns` at which a setting begins or ends to hold, in order."""
    ends = {end for value in settings.dated for end in (value.began_ns, value.ended_ns)}
    return sorted({since_ns, *(end for end in ends if since_ns < end < until_ns)})


def zones_between(settings: EnergySettings, since_ns: int, until_ns: int, clusters: Sequence[str | None]) -> list[str]:
    """The zones in which these clusters stood at some time between two times."""
    starts = changes(settings, since_ns, until_ns)
    places = (holding(settings.zones, cluster, at_ns) for cluster in clusters for at_ns in starts)
    return list(dict.fromkeys(str(place.value) for place in places if place is not None))
