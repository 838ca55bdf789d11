"""What an address asks of the page: which GPUs, which metrics, from when to when."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ....analysis.telemetry.bands import sample
from ....analysis.telemetry.choosing import Boards, Chosen, boards, choose
from ....analysis.telemetry.extent import SECOND, WINDOWS, Range, extent, last_hour, last_readings, meant, newest
from ....analysis.telemetry.readings import Key, Which, shown
from ....errors import QueryError
from ....store.metrics import ROW
from ...figures.telemetry import MOST_LINES
from ...words import many
from ..reading import STILL

if TYPE_CHECKING:
    from ..reading import Reading
    from ..state import State as Address

T = TypeVar("T")

PATH = "telemetry"
METRICS = ("power_mw", "sm_clock_mhz", "temperature_c")
"""What an address without metrics shows."""
TABLES = (*STILL, "telemetry")
"""Tables that tell when readings of the past may have changed: an import, a new day."""
_MOST_METRICS = 6
_LOOKED_AT = 8  # GPUs that tell when readings began
_SETTLED_NS = 900_000_000_000  # so long ago, everything is written: rows of slow sources come late


@dataclass(frozen=True)
class TelemetryView:
    """What an address asks for."""

    chosen: Chosen
    names: dict[Key, str]
    """Of the GPUs; with their cluster where the store has several."""
    metrics: tuple[str, ...]
    range: Range
    first: int
    last: int
    window: int | None
    """The page follows the newest readings, and shows so much of them (ns)."""
    notes: tuple[str, ...]

    @property
    def which(self) -> Which:
        """The GPUs, for a query: all of them, or each by its key."""
        return self.chosen.cluster if self.chosen.everything else self.chosen.keys

    @property
    def has_bands(self) -> bool:
        """Whether the GPUs are too many for a line each."""
        return len(self.chosen.boards) > MOST_LINES

    @property
    def has_masks(self) -> bool:
        """Whether a metric is shown as spans."""
        return any(shown(name).kind == "mask" for name in self.metrics)


def view_of(reading: Reading, state: Address, last: int | None = None) -> TelemetryView:
    """What an address asks for. Raises QueryError, which says what there is, where there is nothing to show.

    `last`: when the last reading was (ns since 1970), where that was asked for a moment ago.
    """
    chosen = choose(
        known_boards(reading), cluster=state.cluster, gpus=state.gpu, nodes=state.node, cabinets=state.cabinet
    )
    notes = [f"{name} is not in this store: it is left out." for name in chosen.unknown]
    if not chosen.boards:
        raise QueryError(f"This store has no {', '.join(chosen.unknown) or 'GPU'}: choose other GPUs in the list.")
    metrics = tuple(name for name in state.metric if name in ROW)[:_MOST_METRICS]
    unknown = [name for name in state.metric if name not in ROW]
    notes += [f"There is no metric {name[:60]!r}: choose one of the list." for name in unknown]
    if len(state.metric) > _MOST_METRICS:
        notes.append(f"The first {_MOST_METRICS} metrics are shown.")
    which: Which = chosen.cluster if chosen.everything else chosen.keys
    ends = reading.answer(extent, which, tables=TABLES)
    last = newest(reading.store, which) if last is None else last
    if ends is None and last is None:
        raise QueryError(
            "These GPUs have no telemetry: whorl collect reads it, whorl import brings that of other tools."
        )
    read = reading.answer(last_readings, which, tables=TABLES)  # a store may know more GPUs by their runs
    with_readings = tuple(board for board in chosen.boards if board.key in read)
    if 0 < len(with_readings) < len(chosen.boards):
        notes.append(f"{many(len(chosen.boards) - len(with_readings), 'GPU')} without readings left out.")
        chosen = replace(chosen, boards=with_readings, everything=False)
    first, last = ends[0] if ends else last or 0, max(last or 0, ends[1] if ends else 0)
    window = WINDOWS.get(state.live or "")
    if state.live and window is None:
        notes.append(f"live={state.live[:20]!r} is none of {', '.join(WINDOWS)}: it is left out.")
    if window:
        span = Range(last - window, last)
    elif state.since is None and state.until is None:
        span = Range(answered(reading, last, last_hour, sample(chosen.keys, _LOOKED_AT), first, last), last + SECOND)
    else:
        span = meant(first, last, state.since, state.until)
    several = len({board.cluster for board in chosen.boards}) > 1
    names = {
        board.key: f"{board.cluster or 'no cluster'}: {board.name}" if several else board.name
        for board in chosen.boards
    }
    notes += [span.says] if span.says else []
    return TelemetryView(chosen, names, metrics or METRICS, span, first, last, window, tuple(notes))


def known_boards(reading: Reading) -> Boards:
    """The GPUs of the store."""
    return reading.answer(boards, tables=("gpus", "telemetry"))


def is_settled(until: int) -> bool:
    """Whether all readings up to a time (ns since 1970) are written."""
    return until < time.time_ns() - _SETTLED_NS


def answered(reading: Reading, until: int, answer: Callable[..., T], *arguments: Hashable) -> T:
    """What `answer` answers: kept where the range that it is about has ended, else made anew."""
    if is_settled(until):
        return reading.answer(answer, *arguments, tables=TABLES)
    return answer(reading.store, *arguments)
