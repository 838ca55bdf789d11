"""What an address says: which cluster, campaign, probe, GPUs, metrics and time a page shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...analysis.fleet.side_by_side import Range
from ...errors import InputError

URL = "url"
"""Id of the address (`dcc.Location`): its `search` is the state. A page that changes the state writes it there, with
`Output(URL, "search", allow_duplicate=True)`, and follows it with `Input(URL, "search")` in `page.following`."""
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
    """What a row is: a cabinet, a node; a user, a job, a day."""
    range: tuple[Range, ...] = ()
    """A brush: GPUs whose figures are in these ranges, one for each column."""
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
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                texts = [_range_text(part) if isinstance(part, Range) else part for part in value[:MOST_GPUS]]
                pairs += [(field.name, text) for text in texts]
            elif value is not None:
                pairs.append((field.name, _time_text(value) if field.name in _TIMES else value))
        return f"?{urlencode(pairs, safe=':')}" if pairs else ""

    def href(self, path: str, **changes: Any) -> str:
        """A link from any page to the page at `path` with this state, after `changes`. It works under every prefix."""
        return f"{path or './'}{replace(self, **changes).search()}"


def _names(kind: str) -> frozenset[str]:
    return frozenset(field.name for field in fields(State) if field.type == kind)


_TIMES, _LISTS, _RANGES = _names("int | None"), _names("tuple[str, ...]"), _names("tuple[Range, ...]")


def parse(search: str | None) -> tuple[State, tuple[str, ...]]:
    """What an address says, and sentences about the parts of it that say nothing."""
    text = (search or "").removeprefix("?")
    if len(text) > _LONGEST:
        return State(), ("The address is too long to be read, so that all is shown: choose GPUs again.",)
    texts: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, errors="replace"):
        texts.setdefault(name, []).append(value.replace("\0", ""))
    state: dict[str, Any] = {}
    problems = []
    for name in (field.name for field in fields(State) if field.name in texts):
        if name in _TIMES:
            state[name] = moment(texts[name][-1])
            if state[name] is None:
                problems.append(_no_value(name, texts[name][-1], "time, as 2026-11-23T14:05:00Z"))
        elif name in _RANGES:
            ranges = [(text, _range(text)) for text in texts[name]]
            problems += [
                _no_value(name, text, "range, as slower_pct:2:8") for text, column_range in ranges if not column_range
            ]
            state[name] = tuple({column.column: column for _, column in ranges if column}.values())[:MOST_GPUS]
        elif name in _LISTS:
            values = tuple(dict.fromkeys(texts[name]))
            state[name] = values[:MOST_GPUS]
            if len(values) > MOST_GPUS:
                problems.append(f"The address names {len(values):,} values of {name}; the first {MOST_GPUS} are shown.")
        else:
            state[name] = texts[name][-1]
    since, until = state.get("since"), state.get("until")
    if since is not None and until is not None and since >= until:
        problems.append("The address ends its time before it begins: both are left out.")
        state |= {"since": None, "until": None}
    return State(**state), tuple(problems)


def _no_value(name: str, text: str, kind: str) -> str:
    return f"{name}={text[:40]!r} in the address is no {kind}: it is left out."


def moment(text: str) -> int | None:
    """ns since 1970 of a time in ISO format, UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        seconds = int(at.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError):
        return None
    at_ns = seconds * _SECOND + at.microsecond * 1000
    return at_ns if _FIRST_NS <= at_ns <= _LAST_NS else None


def typed_times(began: str | None, ended: str | None) -> tuple[int | None, int | None]:
    """The ends of a time that a person typed, in ns since 1970; None for an empty field. Raises InputError."""
    times = []
    for text in (began or "", ended or ""):
        times.append(moment(text.strip()))
        if times[-1] is None and text.strip():
            raise InputError(f"{text[:40]!r} is no time: write it as 2026-11-23 14:05 (UTC).")
    since, until = times
    if since is not None and until is not None and since >= until:
        raise InputError("The time ends before it begins: write the earlier one on the left.")
    return since, until


def _range(text: str) -> Range | None:
    """A range that `_range_text` wrote; None for another text, and for a range that all values are in."""
    column, *ends = text.rsplit(":", 2)
    try:
        low, high = (float(end) if end else default for end, default in zip(ends, (-math.inf, math.inf), strict=True))
    except ValueError:
        return None
    bounds = low < math.inf and high > -math.inf and (math.isfinite(low) or math.isfinite(high))
    return Range(column, low, high) if column and low <= high and bounds else None


def _range_text(column: Range) -> str:
    low, high = (f"{end:.5g}" if math.isfinite(end) else "" for end in (column.low, column.high))
    return f"{column.column}:{low}:{high}"


def _time_text(at_ns: int) -> str:
    """A time in ISO format, to the microsecond."""
    seconds, rest_ns = divmod(at_ns, _SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    micro = f".{rest_ns // 1000:06d}".rstrip("0") if rest_ns >= 1000 else ""
    return f"{text}{micro}Z"
