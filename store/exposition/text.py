"""The text format that Prometheus scrapes, line by line: version 0.0.4, and OpenMetrics where it differs.

A line that cannot be read costs only itself, and keeps its number. The parser of `prometheus-client` gives up a whole
page for one such line (dcgm-exporter prints texts as values: `DCGM_FI_DEV_NAME{...} Tesla T4`), knows no line numbers,
and rounds counters to floats; so whorl has its own, and tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAME = r"[A-Za-z_:][A-Za-z0-9_:]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LABEL = re.compile(rf"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*({_QUOTED})\s*(,|$)")
_SERIES = re.compile(rf'({_NAME})?\s*(?:\{{((?:[^"}}]|{_QUOTED})*)\}})?')
_LINES = re.compile("^.*$", re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")
_FIRST = re.compile(rf"\s*({_QUOTED})\s*(,|$)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_MEANT = {"n": "\n"}
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


@dataclass(frozen=True, slots=True)
class Help:
    """The words for people about a metric."""

    line: int
    name: str
    words: str


def lines(text: str) -> Iterator[Sample | Damage | Help]:
    """What the lines of a page say. Empty lines, types, units and comments say nothing here."""
    for number, found in enumerate(_LINES.finditer(text), start=1):
        line = found[0].strip()
        if not line:
            continue
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[:2] == ["#", "HELP"]:
                yield Help(number, words[2], words[3])
            continue
        try:
            head = end_of_series(line)
            value, stamp = value_and_stamp(line[head:])
            yield Sample(number, series(line[:head]), value, number_of(value), stamp)
        except ValueError as error:
            yield Damage(number, str(error))


def end_of_series(line: str) -> int:
    """Where in a line its series ends, before the value. Raises ValueError."""
    found = _SERIES.match(line)
    if found is None or not found[0].strip():
        raise ValueError("it does not begin with the name of a metric")
    if line[found.end() : found.end() + 1] == "{":
        raise ValueError("its labels have no end")
    return found.end()


def series(head: str) -> Series:
    """The series that the beginning of a line names. Raises ValueError."""
    found = _SERIES.fullmatch(head.strip())
    labels, at, inside = {}, 0, "" if found is None else found[2] or ""
    name = None if found is None else found[1]
    if name is None and (first := _FIRST.match(inside)):  # a name that holds more than letters stands among the labels
        name, at = first[1][1:-1], first.end()
    while inside[at:].strip():
        label = _LABEL.match(inside, at)
        if label is None:
            raise ValueError(f"its labels cannot be read from {inside[at : at + 20].strip()!r} on")
        labels[label[1]] = _ESCAPED.sub(lambda one: _MEANT.get(one[1], one[1]), label[2][1:-1])
        at = label.end()
    name = name or labels.pop("__name__", None)  # `promtool tsdb dump` has it there
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
    return parts[0], _nanoseconds(parts[1], stamp)


def _nanoseconds(text: str, stamp: float) -> int:
    factor = 10**9 if abs(stamp) < _SECONDS else 10**6
    whole, point, part = text.partition(".")
    if point and _WHOLE.fullmatch(whole) and part.isdigit():  # a float is not exact to the ns
        digits = len(str(factor)) - 1
        return int(whole) * factor + int(part[:digits].ljust(digits, "0"))
    return round(stamp * factor)


def number_of(text: str) -> float | None:
    """A number as Go writes it, whole ones exactly; None for another text."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
