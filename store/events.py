"""Events: what happened to GPUs and nodes, as rows of the table `events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .schema import arrow_rows
from .vocabulary import EventKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a GPU (its UUID), or to a node or a GPU without a known UUID: a row of `events`."""

    kind: EventKind
    gpu: str | None
    detail: str
    """One sentence for people, made of the typed values."""
    ts_ns: int | None = None
    """UTC; None: now."""
    node: str | None = None
    """None: the node of the process that records it."""
    pci_bus_id: str | None = None
    """Where on the node the GPU is; it is all that is known of a GPU that does not answer."""
    workload: str | None = None
    metric: str | None = None
    quality: str | None = None
    code: int | None = None
    before: float | None = None
    value: float | None = None
    n: int | None = None
    duration_ns: int | None = None
    version: str | None = None
    campaign: str | None = None
    job_id: str | None = None


TYPED = ("workload", "metric", "quality", "code", "before", "value", "n", "duration_ns", "version")
"""The columns besides the sentence that a kind may fill."""


def event_columns(events: Sequence[Event], *, cluster: str, node: str | None = None) -> dict[str, list[Any]]:
    """Events as columns of `events`. Every event must have its time. `node` is for events that name no node."""
    columns: dict[str, list[Any]] = {
        "ts": [event.ts_ns for event in events],
        "cluster": [cluster] * len(events),
        "gpu": [event.gpu for event in events],
        "node": [event.node or node for event in events],
        "kind": [event.kind for event in events],
        **{name: [getattr(event, name) for event in events] for name in ("pci_bus_id", *TYPED, "campaign", "job_id")},
        "detail": [event.detail for event in events],
    }
    for name in ("before", "value"):  # a counter may have more digits than a double: the sentence has them all
        columns[name] = [None if value is None else float(value) for value in columns[name]]
    return columns


def event_rows(events: Sequence[Event], *, cluster: str, node: str | None = None) -> pa.RecordBatch:
    """The columns of `event_columns` as a batch."""
    return arrow_rows("events", event_columns(events, cluster=cluster, node=node)).to_batches()[0]
