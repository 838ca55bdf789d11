"""The shipped table: what a kWh of each zone emitted in a year, and the names of zones.

The values are Ember's, from the data set Yearly Electricity Data (CC BY 4.0): emissions over the life cycle, of what is
generated in the zone; imports are not in them. They are those that the package co2.js 0.16.8 carries, with the year of
each. Left out are three places whose value is 0 or a rounded 1000, as their few GWh are given to 0.01 TWh.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TABLE = files(__package__) / "factors.csv"
SOURCE = "Ember, Yearly Electricity Data, edition of 2025"


@dataclass(frozen=True)
class ZoneFactor:
    """The grams of a kWh of a zone in a year."""

    zone: str  # three letters of ISO 3166-1, EU or WORLD
    code: str | None  # two letters of ISO 3166-1
    name: str
    g_per_kwh: float
    year: int


@cache
def table() -> dict[str, ZoneFactor]:
    """The shipped factors by zone."""
    with TABLE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return {
        row["zone"]: ZoneFactor(
            row["zone"], row["code"] or None, row["name"], float(row["g_per_kwh"]), int(row["year"])
        )
        for row in rows
    }


def canonical(zone: str) -> str:
    """One spelling of a zone: DE, deu and Germany are DEU. A zone that the table lacks is itself, in capitals."""
    wanted = zone.strip().casefold()
    wanted = {"uk": "gb"}.get(wanted, wanted)
    for one in table().values():
        if wanted in (one.zone.casefold(), (one.code or one.zone).casefold(), one.name.casefold()):
            return one.zone
    return zone.strip().upper()


def shipped(zone: str) -> ZoneFactor | None:
    """The shipped factor of a zone, None where there is none: of US-CAL-CISO it knows nothing, not the USA's."""
    return table().get(canonical(zone))
