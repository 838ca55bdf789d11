"""What an address says: which cluster, campaign, probe, GPUs, metrics and time a page shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...analysis.fleet.beside import Range

MOST_GPUS = 200
"""So many GPUs are kept in an address; browsers and servers cut longer ones."""
_LONGEST = 20_000
_SECOND = 1_000_000_000
_FIRST_NS, _LAST_NS = 0, 2**62


@dataclass(frozen=True)
class State:
    """What a page shows; None and () where the address does not say it. Each field is a name in the address.

    The type of a field says how it is written: `str | None` once, `tuple[str, ...]` once for each value, `int | None`
    as a time, and a range as `column:low:high`, without an end where it is open.
    """

    cluster: str | None = None
    campaign: str | None = None
    probe: str | None = None
    figure: str | None = None
    gpu: tuple[str, ...] = ()
    """Keys or names of the GPUs that are chosen."""
    node: tuple[str, ...] = ()
    """All GPUs of these nodes."""
    cabinet: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    since: int | None = None
    """ns since 1970, and before `until`."""
    until: int | None = None
    live: str | None = None
    """A page that follows the newest readings: how much of them it shows, as 15m."""
    last: str | None = None
    """Instead of these: so much up to the last reading, as 7d."""
    by: str | None = None
    """What rows are of: cabinet, node; user, job, day."""
    range: tuple[Range, ...] = ()
    """What a brush holds: GPUs whose figures are in these ranges, one of a column."""
    place: tuple[str, ...] = ()
    """And that are at one of these places: `cabinet:c01` or `node:n1`."""
    job: str | None = None
    model: str | None = None
    gpus: str | None = None
    """How many GPUs a job uses."""
    without: tuple[str, ...] = ()
    """Keys or names of GPUs on whose nodes a job shall not run."""
    seeds: str | None = None
    """Of a replay."""
    query: str | None = None
    """SQL."""
    findings: str | None = None
    """`all`: the first page shows all of them."""
    chart: str | None = None
    """How its answer is drawn, with the columns `x`, `y` and `colour`."""
    x: str | None = None
    y: str | None = None
    colour: str | None = None

    def search(self) -> str:
        """The part of an address that says it, from "?" on; "" where nothing is said."""
        pairs: list[tuple[str, str]] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                pairs += [(one.name, _ends(item) if isinstance(item, Range) else item) for item in value[:MOST_GPUS]]
            elif value is not None:
                pairs.append((one.name, _spelled(value) if one.name in _TIMES else value))
        return f"?{urlencode(pairs, safe=':')}" if pairs else ""

    def href(self, path: str, **changes: Any) -> str:
        """A link from any page to the page at `path` with this state, after `changes`. It works under every prefix."""
        return f"{path or './'}{replace(self, **changes).search()}"


_TIMES = frozenset(one.name for one in fields(State) if one.type == "int | None")
_MANY = frozenset(one.name for one in fields(State) if one.type == "tuple[str, ...]")
_RANGES = frozenset(one.name for one in fields(State) if one.type == "tuple[Range, ...]")


def parse(search: str | None) -> tuple[State, tuple[str, ...]]:
    """What an address says, and sentences about the parts of it that say nothing."""
    text = (search or "").removeprefix("?")
    if len(text) > _LONGEST:
        return State(), ("The address is too long to be read, so that all is shown: choose GPUs again.",)
    given: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, errors="replace"):
        given.setdefault(name, []).append(value.replace("\0", ""))
    found: dict[str, Any] = {}
    problems = []
    for name in (one.name for one in fields(State) if one.name in given):
        if name in _TIMES:
            at = moment(given[name][-1])
            if at is None:
                shown = given[name][-1][:40]
                problems.append(f"{name}={shown!r} in the address is no time, as 2026-11-23T14:05:00Z: it is left out.")
            found[name] = at
        elif name in _RANGES:
            ranges = {}
            for text_of in given[name]:
                one = _range(text_of)
                if one is None:
                    shown = text_of[:40]
                    problems.append(f"{name}={shown!r} in the address is no range, as slower_pct:2:8: it is left out.")
                else:
                    ranges[one.column] = one
            found[name] = tuple(ranges.values())[:MOST_GPUS]
        elif name in _MANY:
            values = tuple(dict.fromkeys(given[name]))
            found[name] = values[:MOST_GPUS]
            if len(values) > MOST_GPUS:
                problems.append(f"The address names {len(values):,} values of {name}; the first {MOST_GPUS} are shown.")
        else:
            found[name] = given[name][-1]
    since, until = found.get("since"), found.get("until")
    if since is not None and until is not None and since >= until:
        problems.append("The address ends its time before it begins: both are left out.")
        found |= {"since": None, "until": None}
    return State(**found), tuple(problems)


def moment(text: str) -> int | None:
    """ns since 1970 of a time in ISO format, UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        whole = int(at.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError):
        return None
    found = whole * _SECOND + at.microsecond * 1000
    return found if _FIRST_NS <= found <= _LAST_NS else None


def _range(text: str) -> Range | None:
    """A range that `_ends` wrote."""
    column, *ends = text.rsplit(":", 2)
    try:
        low, high = (float(end) if end else default for end, default in zip(ends, (-math.inf, math.inf), strict=True))
    except ValueError:
        return None
    says = low < math.inf and high > -math.inf and (math.isfinite(low) or math.isfinite(high))
    return Range(column, low, high) if column and low <= high and says else None


def _ends(one: Range) -> str:
    low, high = (f"{end:.5g}" if math.isfinite(end) else "" for end in (one.low, one.high))
    return f"{one.column}:{low}:{high}"


def _spelled(at: int) -> str:
    """A time in ISO format, to the microsecond."""
    whole, rest = divmod(at, _SECOND)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    micro = f".{rest // 1000:06d}".rstrip("0") if rest >= 1000 else ""
    return f"{text}{micro}Z"
