"""The codes and keys that columns hold, as tables for people: `whorl schema` and docs/tables.md print them."""

from __future__ import annotations

from dataclasses import dataclass

from .allocations import GpuFrom, JobSource, TagState
from .clock_events import CLOCK_EVENTS
from .conditions import CONDITIONS
from .events import EventKind
from .outcomes import EndedBy, Outcome


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a column of a table may hold: a header, and a row for each code or key."""

    table: str
    column: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        return f"{self.table}.{self.column}"


VOCABULARIES = (
    Vocabulary("runs", "status", ("code", "meaning"), tuple((outcome, outcome.meaning) for outcome in Outcome)),
    Vocabulary("runs", "ended_by", ("code", "meaning"), tuple((end, end.meaning) for end in EndedBy)),
    Vocabulary(
        "runs",
        "conditions",
        ("key", "type", "unit", "meaning"),
        tuple((one.name, one.type, one.unit, one.description) for one in CONDITIONS),
    ),
    Vocabulary(
        "runs",
        "clock_events",
        ("reason", "kind", "bit of clock_event_reasons", "counter", "meaning"),
        tuple(
            (one.name, one.kind, "" if one.bit is None else f"{one.bit:#x}", one.counter or "", one.meaning)
            for one in CLOCK_EVENTS
        ),
    ),
    Vocabulary(
        "events",
        "kind",
        ("kind", "columns", "meaning"),
        tuple((one, ", ".join(one.fills), one.meaning) for one in EventKind),
    ),
    Vocabulary("jobs", "source", ("code", "meaning"), tuple((one, one.meaning) for one in JobSource)),
    Vocabulary("jobs", "gpu_from", ("code", "meaning"), tuple((one, one.meaning) for one in GpuFrom)),
    Vocabulary("jobs", "state", ("of tags", "meaning"), tuple((one, one.meaning) for one in TagState)),
)
