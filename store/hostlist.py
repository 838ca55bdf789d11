"""Host lists as Slurm writes them, n[01-03,07] for n01, n02, n03, n07: ClusterShell reads and folds them.

ClusterShell has operators between sets (! & ^), groups (@) and wildcards. A list that a user or a file gives is names
and ranges alone: what has no brackets is a name as it stands, and a range with such a sign is refused. Nodes that
measure need no ClusterShell, as it is imported where a list has brackets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ..errors import InputError

LONGEST = 1_000_000  # names: a list that means more is a mistake

_PARTS = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")  # the list at its commas outside brackets
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)
_OTHER = re.compile(r"[!&^@*?%\s]")  # what means something else to ClusterShell
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)


def expand(hosts: str) -> list[str]:
    """The names that a host list stands for: its parts in their order, the numbers within brackets sorted.

    Several brackets in a name multiply, the last changing fastest; [08-10] keeps its zeros. Raises InputError where
    brackets are not paired, a range is none, or the list means more than LONGEST names.
    """
    parts = [part for part in map(str.strip, _PARTS.findall(hosts)) if part]
    if sum(_length(part, hosts) for part in parts) > LONGEST:
        raise InputError(f"{hosts[:80]!r} means more than {LONGEST:,} hosts")
    return [name for part in parts for name in (_names(part, hosts) if "[" in part else (part,))]


def _length(part: str, hosts: str) -> int:
    """How many names a part means, so that a list which means too many is refused before it is made."""
    pieces = _BRACKETS.split(part)  # literal, ranges, literal, ..., literal
    literal = "".join(pieces[::2])
    if "[" in literal or "]" in literal or (len(pieces) > 1 and _OTHER.search(literal)):
        raise InputError(
            f"{hosts[:80]!r} is not a host list: write names and ranges of numbers in pairs of brackets, n[01-03],login"
        )
    return math.prod(sum(_count(text.strip(), hosts) for text in ranges.split(",")) for ranges in pieces[1::2])


def _count(text: str, hosts: str) -> int:
    match = _NUMBERS.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise InputError(f"{hosts[:80]!r} is not a host list: [{text[:20]}] is not a range of numbers")
    return last - first + 1


def _names(part: str, hosts: str) -> Iterable[str]:
    """The names of a part with brackets."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        nodes: Iterable[str] = NodeSet(part.replace(" ", ""), resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise InputError(f"{hosts[:80]!r} is not a host list: {error}") from error
    return nodes


def compress(names: Iterable[str]) -> str:
    """The names as one host list, sorted, each once; "" for none. `expand` gives them back.

    Only the number at the end of a name is folded: Slurm reads nothing behind brackets.
    """
    from ClusterShell.RangeSet import RangeSet

    numbers: dict[str, list[str]] = {}
    plain = set()
    for name in set(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            numbers.setdefault(match[1], []).append(match[2])
    parts = [
        f"{prefix}[{RangeSet.fromlist(digits)}]" if len(digits) > 1 else prefix + digits[0]
        for prefix, digits in numbers.items()
    ]
    return ",".join(sorted([*parts, *plain]))
