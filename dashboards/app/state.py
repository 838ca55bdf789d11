"""What an address says: which cluster, campaign, probe, GPUs, metrics and time a page shows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

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
    as a time.
    """

    cluster: str | None = None
    campaign: str | None = None
    probe: str | None = None
    figure: str | None = None
    beside: str | None = None
    """The figure of a GPU that the page GPU draws beside those of its peers."""
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
    brush: tuple[str, ...] = ()
    """Rectangles in figures of the page Fleet: `FIGURE:x0:x1:y0:y1`."""
    job: str | None = None
    model: str | None = None
    gpus: str | None = None
    """How many GPUs a job uses."""
    without: tuple[str, ...] = ()
    """Keys or names of GPUs on whose nodes a job shall not run."""
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
                pairs += [(field.name, text) for text in value[:MOST_GPUS]]
            elif value is not None:
                pairs.append((field.name, _time_text(value) if field.name in _TIMES else value))
        return f"?{urlencode(pairs, safe=':')}" if pairs else ""

    def href(self, path: str, **changes: Any) -> str:
        """A link from any page to the page at `path` with this state, after `changes`. It works under every prefix."""
        return f"{path or './'}{replace(self, **changes).search()}"


def _names(kind: str) -> frozenset[str]:
    return frozenset(field.name for field in fields(State) if field.type == kind)


_TIMES, _LISTS = _names("int | None"), _names("tuple[str, ...]")


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
                problems.append(f"{name}={texts[name][-1][:40]!r} in the address is no time, as 2026-11-23T14:05:00Z.")
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


def _time_text(at_ns: int) -> str:
    """A time in ISO format, to the microsecond."""
    seconds, rest_ns = divmod(at_ns, _SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    micro = f".{rest_ns // 1000:06d}".rstrip("0") if rest_ns >= 1000 else ""
    return f"{text}{micro}Z"
