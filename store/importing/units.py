"""Units of measurement: their names, what they measure, and the factor between them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import UnitError


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: a value in it, times `factor` plus `offset`, is a value in the dimension's first unit."""

    name: str
    dimension: str
    factor: float
    offset: float = 0.0

    def to(self, other: Unit) -> tuple[float, float]:
        """(factor, offset) that turn a value in this unit into one in `other`.

        The factor is rounded to 15 digits, so that s -> ms is 1000 and not 999.9999999999999.
        """
        if self.name == other.name:
            return 1.0, 0.0
        factor = float(f"{self.factor / other.factor:.15g}")
        return factor, (self.offset - other.offset) / other.factor


DIFFERENCE = "temperature difference"
_BINARY = {"KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
_DECIMAL = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
# dimension -> unit -> factor to the dimension's first unit
_FACTORS: dict[str, dict[str, float]] = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "clock": {"MHz": 1.0, "Hz": 1e-6, "kHz": 1e-3, "GHz": 1e3},
    "power": {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "energy": {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6},
    "temperature": {"C": 1.0, "K": 1.0},
    DIFFERENCE: {"C": 1.0, "K": 1.0},
    "share": {"%": 1.0, "ratio": 100.0, "ppm": 1e-4},
    "memory": {"B": 1.0} | _DECIMAL | _BINARY,
    "rate": {f"{name}/s": factor for name, factor in ({"B": 1.0} | _DECIMAL | {"TB": 1e12} | _BINARY).items()},
    "arithmetic": {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "operations": {"op/s": 1.0, "Mop/s": 1e6, "Gop/s": 1e9, "Top/s": 1e12},
}
_OFFSETS = {("temperature", "K"): -273.15}
_SYNONYMS = {
    word: unit
    for unit, words in (
        ("s", "sec secs second seconds"), ("ms", "msec millisecond milliseconds"), ("us", "µs μs usec microseconds"),
        ("ns", "nsec nanosecond nanoseconds"), ("W", "watt watts"), ("mW", "milliwatt milliwatts"),
        ("C", "degc °c celsius"), ("K", "kelvin"), ("%", "percent pct"), ("B", "bytes"), ("J", "joule joules"),
    )
    for word in words.split()
}  # fmt: skip

UNITS: dict[str, dict[str, Unit]] = {
    dimension: {
        name: Unit(name, dimension, factor, _OFFSETS.get((dimension, name), 0.0)) for name, factor in units.items()
    }
    for dimension, units in _FACTORS.items()
}


def find(text: str, dimension: str) -> Unit | None:
    """The unit of this dimension that `text` names, or None.

    The exact spelling comes first; otherwise capitals do not count, as in `freq_mhz`. (`MW` is no unit of a
    GPU's power, and is not read as milliwatts.)
    """
    units = UNITS[dimension]
    name = text.strip()
    name = name if name in units else _SYNONYMS.get(name.lower(), name)
    if name in units:
        return units[name]
    if name.isupper() and dimension in ("power", "energy"):
        return None
    matches = [unit for unit in units.values() if unit.name.lower() == name.lower()]
    return matches[0] if len(matches) == 1 else None


def named(text: str, dimension: str, where: str) -> Unit:
    """The unit of this dimension that `text` names. Raises UnitError, which begins with `where`."""
    unit = find(text, dimension)
    if unit is None:
        known = ", ".join(UNITS[dimension])
        raise UnitError(f"{where}: {text!r} is not a unit of {dimension} that whorl knows ({known})")
    return unit


_BRACKET = re.compile(r"^(.*?)\s*[\[(]\s*([^\[\]()]+?)\s*[\])]\s*$")


def split_label(name: str) -> tuple[str, str]:
    """A column's name and the unit in brackets behind it: `power.draw [W]` -> (`power.draw`, `W`)."""
    match = _BRACKET.match(name.strip())
    return (match[1].strip(), match[2]) if match else (name.strip(), "")
