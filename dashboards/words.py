"""How numbers, times, names and terms are written for people: the same words in a terminal, a report and a page.

It imports nothing but the standard library, so that a node that only measures has them too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

MISSING = "n/a"
LONGEST = 2_000
"""Characters of a sentence that is printed: an error may name a file or a query of any length."""
_STEERING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but the tab, ends of lines, and what turns the direction of a text."""
_HYPHEN = re.compile(r"(?<![^\s\[(>])-(?=\.?\d)")
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_PREFIXED = frozenset(("J", "W", "Wh", "B", "B/s", "Hz", "s", "g", "FLOP/s"))
"""Units that take a prefix; of the others a number is written as it is."""
ENERGIES = (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
"""Units of an energy in J, as `unit_of` takes them."""
TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Units of a time in s."""
MASSES = (("t", 1e6), ("kg", 1e3), ("g", 1.0))
"""Units of a mass in g."""


# -- texts -------------------------------------------------------------------------------------------------------


def printable(text: str, *, lines: bool = False) -> str:
    """A text of one line without control characters, which would steer a terminal: names of files and GPUs may hold
    some. They are shown as in Python: \\n, \\x1b. With `lines` its lines stay, as those of DuckDB's messages."""
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    text = text.encode("utf-8", "backslashreplace").decode()
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def cut(sentence: str) -> str:
    """A sentence of `LONGEST` characters at most, about: its beginning says what is wrong, its end what to do."""
    hidden = len(sentence) - LONGEST
    if hidden <= 0:
        return sentence
    return f"{sentence[: LONGEST - 500]} [... {hidden:,} characters ...] {sentence[-500:]}"


def minus(text: str) -> str:
    """A text for a page, with "−" (U+2212) before its negative numbers, as Plotly and the tables of a browser write
    them. A terminal keeps the hyphen, which programs read."""
    return _HYPHEN.sub("−", text)


def capital(sentence: str) -> str:
    """A sentence that begins with a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first of several names, and how many others there are: `a, b and 3 more`; n/a for none."""
    others = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + others if names else MISSING


# -- numbers -----------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4, *, suffix: str = "") -> str:
    """A number to this many significant digits; "n/a" if it is missing. Below 0.0001 with a power of ten."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return f"0{suffix}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}{suffix}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded number: 999.96 is 1,000
    return f"{value:,.{max(0, digits - 1 - exponent)}f}{suffix}"


def estimate(value: float | None, *, digits: int = 1, signed: bool = False, unit: str = "") -> str:
    """A number with so many digits behind the point, with + where `signed`; what rounds to 0 has no sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    if not re.search("[1-9]", text):
        text = text.lstrip("+-")
    return f"{text} {unit}" if unit else text


def interval_digits(low: float, high: float, least: int = 1) -> int:
    """Digits behind the point that tell the ends of an interval apart: two significant ones of its width; at least
    `least`, at most 6."""
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return least
    return min(6, max(least, 1 - math.floor(math.log10(width))))


def interval(
    low: float | None, high: float | None, *, digits: int | None = None, signed: bool = True, unit: str = ""
) -> str:
    """An interval, `[+1.2, +3.4]`; n/a where an end is missing. `digits` behind the point; None for as many as tell
    the ends apart."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    places = interval_digits(low, high) if digits is None else digits
    text = f"[{estimate(low, digits=places, signed=signed)}, {estimate(high, digits=places, signed=signed)}]"
    return f"{text} {unit}" if unit else text


def with_interval(
    value: float | None, low: float | None, high: float | None, *, signed: bool = False, unit: str = ""
) -> str:
    """An estimate and its interval, to the same digits: `+6.1 % [+5.2, +7.0]`; the interval is left out if missing."""
    if low is None or high is None:
        return estimate(value, signed=signed, unit=unit)
    digits = interval_digits(low, high)
    shown = interval(low, high, digits=digits, signed=signed)
    return f"{estimate(value, digits=digits, signed=signed, unit=unit)} {shown}"


def percent(value: float | None, digits: int = 1) -> str:
    """A number of per cent with its sign, without "%"; what rounds to 0 has none."""
    return estimate(value, digits=digits, signed=True)


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """A number with its unit, in the prefix that suits it: `12.3 kJ`, `20.0 µs`; n/a where it is missing."""
    if value is None or not math.isfinite(value):
        return MISSING
    if unit not in _PREFIXED or value == 0:
        return number(value, digits, suffix=f" {unit}")
    scale, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0] * 0.9995), _PREFIXES[-1])
    return number(value / scale, digits, suffix=f" {prefix}{unit}")


def unit_of(values: Iterable[float | None], units: Sequence[tuple[str, float]] = ENERGIES) -> tuple[str, float]:
    """The unit that several values share, as those of a column: its name, and its size in the unit they are stored in.
    The largest value is 1 or more in it, if any unit is so small."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    return next((unit for unit in units if largest >= unit[1] * 0.9995), units[-1])


def in_unit(value: float | None, units: Sequence[tuple[str, float]] = ENERGIES, digits: int = 3) -> str:
    """A stored value in the unit that suits it: `278 Wh`."""
    unit, size = unit_of([value], units)
    return number(None if value is None else value / size, digits, suffix=f" {unit}")


def part_of(part: float | None, total: float | None) -> str:
    """A part of a total, in per cent: `12 %`; what is more than nothing is no 0."""
    if part is None or not total:
        return MISSING
    percents = 100 * part / total
    return "under 1 %" if 0 < percents < 0.5 else f"{percents:.0f} %"


def count(value: int | None) -> str:
    """A whole number; "n/a" where it is missing."""
    return MISSING if value is None else f"{value:,}"


def many(value: int, noun: str) -> str:
    """A number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


# -- times -------------------------------------------------------------------------------------------------------


def minute(at: datetime | None) -> str:
    """A time, to the minute."""
    return MISSING if at is None else f"{at:%Y-%m-%d %H:%M}"


def second(at: datetime | None, missing: str = MISSING) -> str:
    """A time, to the second."""
    return missing if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """A length of time: `20 ms`, `94 s`, `26.5 min`, `7.5 h`, `12 d`."""
    small = 0 < seconds < 1
    unit, length = ("ms", 1e-3) if small else ("s", 1.0)
    if not small:
        unit, length = next(
            (pair for pair in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)) if seconds >= 2 * pair[1]),
            (unit, length),
        )
    value = seconds / length
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
