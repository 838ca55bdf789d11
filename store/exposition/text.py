"""The text format that Prometheus scrapes, line by line: version 0.0.4, and OpenMetrics where it differs.

A line that cannot be read costs only itself, and keeps its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

# The parser of `prometheus-client` takes 12 times as long as `collectors/exporter` for a page like the one before (91
# and 7.5 ms, 32 GPUs with 60 metrics), gives up a page for one bad line (dcgm-exporter prints texts as values:
# `DCGM_FI_DEV_NAME{...} Tesla T4`), knows no line numbers and no exact times. Tests compare the two.

_NAME = r"[A-Za-z_:][A-Za-z0-9_:]*"
_QUOTED = r'"(?:[^"\\]++|\\.)*+"'  # nothing is tried twice: a page of any size is read in one pass
_SERIES = re.compile(rf'({_NAME})?\s*(?:\{{((?:[^"}}]++|{_QUOTED})*+)\}})?')
_LABEL = re.compile(rf"\s*(?:([A-Za-z_][A-Za-z0-9_]*)\s*=\s*)?({_QUOTED})\s*(?:,|$)")
_LINES = re.compile("^.*$", re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_LAST = 9.2e12  # a time stamp of any unit beyond it does not fit into ns of 64 bits
_SECONDS = 9_200_000_000  # a time stamp below it is in s, as OpenMetrics has it, else in ms


@dataclass(frozen=True, slots=True)
class Series:
    """One line up to its value: a metric's name and its labels."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """A line with a value. `value` is None where the page has a text that is no number."""

    line: int
    series: Series
    text: str
    value: float | None
    stamp_ns: int | None  # UTC, where the page says it


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be read, and why."""

    line: int
    why: str


def lines(text: str) -> Iterator[Sample | Damage]:
    """What the lines of a page say. Empty lines and comments say nothing here."""
    for number, match in enumerate(_LINES.finditer(text), start=1):
        line = match[0].strip()
        if line and not line.startswith("#"):
            try:
                end = end_of_series(line)
                value, stamp_ns = value_and_stamp(line[end:])
                yield Sample(number, series(line[:end]), value, number_of(value), stamp_ns)
            except ValueError as error:
                yield Damage(number, str(error))


def end_of_series(line: str) -> int:
    """Where in a line its series ends, before the value. Raises ValueError."""
    match = _SERIES.match(line)
    if match is None or not match[0].strip():
        raise ValueError("it does not begin with the name of a metric")
    if line[match.end() : match.end() + 1] == "{":
        raise ValueError("its labels have no end")
    return match.end()


def series(head: str) -> Series:
    """The series that the beginning of a line names. Raises ValueError."""
    match = _SERIES.fullmatch(head.strip())
    name, inside = (None, "") if match is None else (match[1], (match[2] or "").strip())
    labels: dict[str, str] = {}
    at = 0
    while at < len(inside):
        label = _LABEL.match(inside, at)
        if label is None or (label[1] is None and (name or labels)):
            raise ValueError(f"its labels cannot be read from {inside[at : at + 20].strip()!r} on")
        # A name that holds more than letters stands first among the labels; `promtool tsdb dump` calls it __name__.
        value = _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], label[2][1:-1])
        labels[label[1] or "__name__"] = value
        at = label.end()
    name = name or labels.pop("__name__", None)
    if name is None:
        raise ValueError("it does not begin with the name of a metric")
    return Series(name, labels)


def value_and_stamp(tail: str) -> tuple[str, int | None]:
    """The text of the value, and the time stamp (ns, UTC) if there is one. Raises ValueError."""
    tail = tail.partition(" # ")[0].strip()  # behind it OpenMetrics has an example
    if not tail:
        raise ValueError("it has no value")
    parts = tail.split()
    if len(parts) == 1 or number_of(parts[0]) is None:
        return tail, None
    if len(parts) > 2:
        raise ValueError("it has more than a value and a time stamp")
    stamp = number_of(parts[1])
    if stamp is None or not abs(stamp) < _LAST:
        raise ValueError(f"{parts[1]!r} is no time stamp")
    factor = 10**9 if abs(stamp) < _SECONDS else 10**6
    try:
        return parts[0], int(Decimal(parts[1]) * factor)  # a float is not exact to the ns
    except ArithmeticError:  # an exponent of 20 digits
        raise ValueError(f"{parts[1]!r} is no time stamp") from None


def number_of(text: str) -> float | None:
    """A number as Go writes it, whole ones exactly; None for another text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
