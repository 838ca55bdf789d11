"""How numbers, times, names and terms are written for people: the same words in a terminal, a report and a page.

It imports nothing but the standard library, so that a node that only measures has them too.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

MISSING = "n/a"
LONGEST = 2_000
"""Characters of a sentence that is printed: an error may name a file or a query of any length."""
_UUID_PART = 12
"""Letters of a UUID that are shown: `GPU-` and eight digits."""
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
LADDERS = {"J": ENERGIES, "s": TIMES, "g": MASSES}
"""Units for people, by the unit that is stored."""


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


def unbroken(text: str) -> str:
    """A text in which a number and its unit, and an interval `[1.2, 3.4]`, stay in one piece where lines break."""
    text = re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(" ", "\u00a0"), text)
    return re.sub(r"(?<=\d) (?=[^\W\d]|%)", "\u00a0", text)


def capital(sentence: str) -> str:
    """A sentence that begins with a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def first_of(noun: str, items: Sequence[int] | Sequence[str]) -> str:
    """The first few of them: `line 3`, `lines 1, 2, 3, 4, 5, ... (9 in all)`."""
    some_items = ", ".join(map(str, sorted(items)[:5]))
    further = f", ... ({len(items)} in all)" if len(items) > 5 else ""
    return f"{noun}{'s' if len(items) > 1 else ''} {some_items}{further}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first of several names, and how many others there are: `a, b and 3 more`; n/a for none."""
    others = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + others if names else MISSING


def short_names(names: Iterable[str], beside: Iterable[str] = ()) -> dict[str, str]:
    """Names for people: of a UUID a first part that no other of the names has, nor one `beside` them, so that every
    command takes it."""
    shortened = {name: name for name in names}
    everything = {*shortened, *beside}
    uuids = {name for name in shortened if len(name) > 2 * _UUID_PART and name[:4] in ("GPU-", "MIG-")}
    length = _UUID_PART
    while uuids:
        beginnings = Counter(name[:length] for name in everything)
        shortened |= {name: name[:length] for name in uuids if beginnings[name[:length]] == 1}
        uuids = {name for name in uuids if beginnings[name[:length]] > 1 and length < len(name)}
        length += 1
    return shortened


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
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return f"{text} {unit}" if unit else text


def interval_digits(low: float, high: float, least: int = 1) -> int:
    """Digits behind the point that tell the ends of an interval apart: two significant ones of its width; at least
    `least` but of an interval as wide as 100, at most 6."""
    width = high - low
    if width >= 100:
        return 0
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
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    signed: bool = False,
    unit: str = "",
    most: int | None = None,
) -> str:
    """An estimate and its interval, to the same digits: `+6.1 % [+5.2, +7.0]`; the interval is left out if missing, or
    of no width: then a value below 1 has two digits. `most`: digits behind the point, of figures that nobody needs as
    well as they are known."""
    if low is None or high is None or low == high:
        least = 2 if value is not None and 0 < abs(value) < 1 else 1
        return estimate(value, digits=least if most is None else most, signed=signed, unit=unit)
    digits = interval_digits(low, high) if most is None else min(most, interval_digits(low, high, 0))
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


def with_interval_in_unit(
    value: float | None, low: float | None, high: float | None, units: Sequence[tuple[str, float]] = ENERGIES
) -> str:
    """A stored estimate and its interval, in the unit that suits it: `278.3 Wh [268.2, 297.9]`."""
    if value is None:
        return MISSING
    crosses = low is not None and high is not None and low < 0 < high  # its value may be small beside it
    unit, size = unit_of([low, high] if crosses else [value], units)
    if low is not None and low == high:
        return number(value / size, 3, suffix=f" {unit}")
    return with_interval(*(None if end is None else end / size for end in (value, low, high)), unit=unit)


def part_of(part: float | None, total: float | None) -> str:
    """A part of a total, in per cent: `12 %`; what is more than nothing is no 0."""
    if part is None or not total:
        return MISSING
    percents = 100 * part / total
    return "under 1 %" if 0 < percents < 0.5 else f"{percents:.0f} %"


def count(value: int | None) -> str:
    """A whole number; "n/a" where it is missing."""
    return MISSING if value is None else f"{value:,}"


def in_store(store: object, cluster: str | None = None) -> str:
    """The options of a command that name a store and, if one is meant, its cluster."""
    of_cluster = "" if cluster is None else f" --cluster {shlex.quote(cluster)}"
    return f"--store {shlex.quote(str(store))}{of_cluster}"


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


# -- terms of the judge, by its codes ----------------------------------------------------------------------------

KINDS = {
    "loses GPUs": "cards that are put in this place fail more often than elsewhere",
    "lost": "it fell off the bus: the driver does not reach it",
    "wrong results": "it computes wrong results",
    "failed": "it does not end its work, or the driver reports errors of it",
    "slow": "it takes longer than its peers",
    "hot": "it is hotter than its peers in the same work, or heat holds its clock",
    "power brake": "an external power brake holds its clock: a sign of the node's power supply",
    "hardware slowdown": "its own hardware holds its clock",
    "lower power limit": "it is set to a lower power limit than its peers",
    "under its cap": "its clock is held, and nobody recorded why",
    "pinned clock": "its clock stays low whatever runs, as if it was set by hand",
    "power-hungry": "it draws more power than its peers at the same clock",
    "unstable": "its times scatter more than those of its peers",
    "slower than before": "its level changed on a date",
    "drifting": "it becomes slower week by week",
    "starved": "it waits for its host or its input",
    "sensor suspect": "its power reading cannot be true",
    "memory errors": "the driver reports errors of its memory",
    "fast": "it takes less time than its peers",
}
"""What a kind of finding means, by `analysis.verdicts.Kind`."""
CHANNELS = {
    "temperature rise": "it warms more a watt",
    "temperature": "it is hotter in the same work",
    "power at fixed clock": "it draws more power at the same clock and temperature",
    "highest clock": "its clock stays lower, whatever runs, and it is not hot",
    "power under the cap": "it draws less at no higher clock, where its peers are at their power limit",
    "power at full clock": "it draws less power at the same clock: it waits for something outside the GPU",
    "throttled runs": "heat, a brake or the hardware holds its clock in more of its runs",
}
"""How a GPU differs in a figure, by the name of an `analysis.verdicts.states.Channel`."""
FIGURES = {
    "sm_clock": "SM clock",
    "time_spread": "time, sitting to sitting",
    "work_per_joule": "work per joule",
    "temperature_rise": "warming per watt",
    "power_at_fixed_clock": "power at fixed clock",
    "xids": "XID errors",
}
"""Figures of the table `fingerprints`; the names of the others are words already."""
CLOCK_REASONS = {
    "applications_clocks": "clock set by hand",
    "power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sync_boost": "slower GPUs of its group",
    "thermal_software": "heat, by the driver",
    "thermal_hardware": "heat, by the hardware",
    "power_brake": "external power brake",
    "display_clocks": "clock of a display",
    "board_limit": "limit of the board",
    "reliability": "voltage",
}
"""Why a clock is held, by `store.vocabulary.ClockEvent`; the names of the others are words already."""
ACTIONS = {
    "set power limit": "Set its power limit to that of its peers: `nvidia-smi -i GPU -pl WATTS`.",
    "check power supply": "Check the node's power supplies and cables: they assert the external power brake.",
    "check power then cooling": "Check its power cables and supplies, then its cooling; if that does not help, "
    "ask the vendor.",
    "record clock reasons": "Record why its clock is held (`whorl collect`), then check power supplies and cooling.",
    "clean cooling": "Clean its heat sink and filters, and check fans, airflow and inlet temperature; then its "
    "thermal paste.",
    "check hot spot": "Check its hot spot, the temperature of its memory and the seating of its cooler: the "
    "hardware tells of heat where the sensor shows none.",
    "reset clock": "Look for a clock that is set by hand (`nvidia-smi -q -d CLOCK`) and reset it: `nvidia-smi -rgc`.",
    "reset memory clock": "Look for a memory clock that is set by hand and reset it: `nvidia-smi -rmc`.",
    "check host": "Check the host: its processor clocks, memory, storage and network, and what else runs there.",
    "check host of node": "Check the host: its processor clocks, memory, power supplies and links; its GPUs are "
    "slow alike.",
    "give lighter work": "Nothing is broken: give it work that needs less power, or that does not wait for it.",
    "check memory": "Check its ECC errors and retired or remapped memory rows; if there are many, replace it.",
    "check pcie": "Check width and generation of its PCIe link (`nvidia-smi -q -d PCI`), and reseat it.",
    "check nvlink": "Check its NVLinks, how many are up and their errors: `nvidia-smi nvlink -s` and `-e`.",
    "run full suite": "Run the full suite of probes on it and on a peer, to find what is slow.",
    "check leakage": "Give it work that needs less power; check its cooling, as hot silicon leaks more.",
    "probe longer": "Run the probes again for longer, with `whorl collect` beside them, to find what comes and goes.",
    "find change": "Find out what changed then: driver, firmware, place, cooling, settings. If nothing did, run "
    "the full suite of probes on it.",
    "find common change": "Find out what changed then (driver, firmware, room), and try the earlier state on one node.",
    "compare boards": "Compare firmware, driver and board of these GPUs with those of the others.",
    "plan repair": "Plan its cleaning or repair before it gets worse; check its cooling first.",
    "distrust sensor": "Leave its power out of energy accounts; reload the driver or reset the GPU.",
    "read memory counters": "Read its counters of errors, retired pages and remapped rows (`nvidia-smi -q`). "
    "Reset it if one is pending; if errors come again, replace it.",
    "stop using": "Take it out of service now and run the vendor's diagnostics; results computed on it are suspect.",
    "reset and probe": "Read the node's log for its XID errors, reset it and run the probes again.",
    "reboot node": "Take the node out of service; check its XID errors, its seating and its power, then reboot it.",
    "check place": "Put no other card there before you have checked the place: slots, risers, power supplies and "
    "cables, cooling. The cards that failed there may be sound: test them in another node.",
    "compare places": "Compare this place in several nodes with the others: airflow, temperature, risers, power "
    "cables. If it is the chassis, ask its vendor.",
    "probe ranks": "Run the full suite of probes on the GPU of this rank and on that of a peer, to find what is slow.",
    "probe tensor group": "Run the full suite of probes on the GPUs of all ranks that compute these layers "
    "together (tensor parallelism): they wait for each other, so any of them may be the slow one.",
    "nothing": "Nothing to do; see whether its settings differ from those of its peers.",
}
"""What to do about a finding, by the code of `analysis.verdicts.Action`: the first thing first."""
