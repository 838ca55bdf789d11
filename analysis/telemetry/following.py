"""What came since: the newest readings of a few GPUs, also those that are only in journals yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .extent import last_readings
from .lines import Line, lines
from .readings import Key

if TYPE_CHECKING:
    from ...store import Store

_AGAIN = 2  # stretches of time that are read once more, for readings that came late
_PAUSE_NS, _STEPS = 10_000_000_000, 5


@dataclass(frozen=True)
class Tail:
    """What came since. Each line replaces what a figure shows of it from `since` on. A GPU without news has no line."""

    since: int
    until: int
    lines: tuple[Line, ...]
    last: dict[Key, int]
    """When the last reading of each GPU was taken, ns since 1970."""


def following(
    store: Store, keys: Sequence[Key], metrics: Sequence[str], known: Mapping[Key, int], width_ns: int, window_ns: int
) -> Tail:
    """What came after `known`, the last reading of each GPU when it was read before.

    `width_ns` is that of the lines which this goes on with. Only readings of the last `window_ns` are read.
    """
    last = last_readings(store, keys)
    until = max(last.values(), default=0) + 1
    changed = [key for key in keys if last.get(key, 0) > known.get(key, 0)]
    oldest = min((known.get(key, 0) for key in changed), default=until)
    since = max(oldest // width_ns - _AGAIN, (until - window_ns) // width_ns) * width_ns
    if not changed:
        return Tail(until, until, (), last)
    found = lines(store, changed, metrics, since, until, width_ns=width_ns)
    return Tail(since, until, tuple(one.after(since) for one in found.lines), last)


def silent_since(last: Mapping[Key, int], steps: Mapping[Key, int | None], now: int) -> dict[Key, int]:
    """The GPUs from which nothing comes any more, and when the last reading of each was taken.

    That is so after several of their usual steps, and some seconds in which a collector may pause.
    """
    patience = {key: _PAUSE_NS + _STEPS * (steps.get(key) or 0) for key in last}
    return {key: at for key, at in last.items() if now - at > patience[key]}
