"""Host lists as Slurm writes them: n[01-03,07] for n01, n02, n03, n07."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from ..errors import InputError

LONGEST = 1_000_000  # names: a list that means more is a mistake

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,40})(?:-([0-9]{1,40}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)


def expand(hosts: str) -> list[str]:
    """The names that a host list stands for, in its order.

    Several brackets in a name multiply, the last changing fastest; [08-10] keeps its zeros. Raises InputError where
    brackets are not paired, a range is none, or the list means more than LONGEST names.
    """
    names: list[str] = []
    for part in _parts(hosts):
        pieces = _BRACKETS.split(part)  # literal, range, literal, ..., literal
        if any(bracket in piece for piece in pieces[::2] for bracket in "[]"):
            raise InputError(f"{hosts!r} is not a host list: its brackets are not paired")
        choices = [[piece] if i % 2 == 0 else _numbers(piece, hosts) for i, piece in enumerate(pieces)]
        if len(names) + math.prod(map(len, choices)) > LONGEST:
            raise InputError(f"{hosts!r} means more than {LONGEST:,} hosts")
        names += map("".join, itertools.product(*choices))
    return names


def _parts(hosts: str) -> Iterator[str]:
    """The list at its commas outside brackets."""
    depth, begin = 0, 0
    for i, letter in enumerate(hosts):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield from filter(None, [hosts[begin:i].strip()])
            begin = i + 1
    yield from filter(None, [hosts[begin:].strip()])


def _numbers(ranges: str, hosts: str) -> list[str]:
    found: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise InputError(f"{hosts!r} is not a host list: [{ranges}] is not a range of numbers")
        first, last = match[1], match[2] or match[1]
        length = int(last) - int(first) + 1
        if length < 1 or len(found) + length > LONGEST:
            raise InputError(f"{hosts!r} is not a host list: {text} is empty or means too many hosts")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def compress(names: Iterable[str]) -> str:
    """The names as one host list, sorted, each once; "" for none. `expand` gives them back."""
    grouped: dict[str, list[str]] = {}
    for name in set(names):
        match = _NUMBERED.fullmatch(name)
        prefix, digits = (match[1], match[2]) if match else (name, "")
        grouped.setdefault(prefix, []).append(digits)
    parts = []
    for prefix, numbers in sorted(grouped.items()):
        if "" in numbers:
            parts.append(prefix)
        spelled = sorted(filter(None, numbers), key=lambda digits: (int(digits), len(digits)))
        if len(spelled) == 1:
            parts.append(prefix + spelled[0])
        elif spelled:
            parts.append(f"{prefix}[{','.join(_ranges(spelled))}]")
    return ",".join(parts)


def _ranges(numbers: list[str]) -> Iterator[str]:
    """Sorted numbers as runs: a number continues one if counting on from its first, padded alike, spells it."""
    first = last = numbers[0]
    for number in [*numbers[1:], ""]:
        if number and number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
