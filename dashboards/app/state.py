"""What an address says: which cluster, campaign, probe, GPUs, metrics and time a page shows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

MOST_GPUS = 200
"""So many GPUs are kept in an address; browsers and servers cut longer ones."""
_LONGEST = 20_000
_SECOND = 1_000_000_000
_FIRST_NS, _LAST_NS = 0, 2**62


@dataclass(frozen=True)
class State:
    """What a page shows; None and () where the address does not say it. Each field is a name in the address."""

    cluster: str | None = None
    campaign: str | None = None
    probe: str | None = None
    figure: str | None = None
    gpu: tuple[str, ...] = ()
    """Keys or names of the GPUs that are chosen."""
    metric: tuple[str, ...] = ()
    since: int | None = None
    """ns since 1970, and before `until`."""
    until: int | None = None
    query: str | None = None
    """SQL."""

    def search(self) -> str:
        """The part of an address that says it, from "?" on; "" where nothing is said."""
        pairs: list[tuple[str, str]] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                pairs += [(one.name, item) for item in value[:MOST_GPUS]]
            elif isinstance(value, int):
                pairs.append((one.name, _spelled(value)))
            elif value is not None:
                pairs.append((one.name, value))
        return f"?{urlencode(pairs)}" if pairs else ""

    def href(self, path: str, **changes: Any) -> str:
        """A link from any page to the page at `path` with this state, after `changes`. It works under every prefix."""
        return f"{path or './'}{replace(self, **changes).search()}"


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
    for name in ("cluster", "campaign", "probe", "figure", "query"):
        if name in given:
            found[name] = given[name][-1]
    for name in ("gpu", "metric"):
        if name in given:
            values = tuple(dict.fromkeys(given[name]))
            found[name] = values[:MOST_GPUS]
            if len(values) > MOST_GPUS:
                problems.append(f"The address names {len(values):,} values of {name}; the first {MOST_GPUS} are shown.")
    for name in ("since", "until"):
        if name in given:
            at = _time(given[name][-1])
            if at is None:
                shown = given[name][-1][:40]
                problems.append(f"{name}={shown!r} in the address is no time, as 2026-11-23T14:05:00Z: it is left out.")
            found[name] = at
    since, until = found.get("since"), found.get("until")
    if since is not None and until is not None and since >= until:
        problems.append("The address ends its time before it begins: both are left out.")
        found |= {"since": None, "until": None}
    return State(**found), tuple(problems)


def _time(text: str) -> int | None:
    """ns since 1970 of a time in ISO format, UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        whole = int(at.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError):
        return None
    found = whole * _SECOND + at.microsecond * 1000
    return found if _FIRST_NS <= found <= _LAST_NS else None


def _spelled(at: int) -> str:
    """A time in ISO format, to the microsecond."""
    whole, rest = divmod(at, _SECOND)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    micro = f".{rest // 1000:06d}".rstrip("0") if rest >= 1000 else ""
    return f"{text}{micro}Z"
