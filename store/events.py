"""The table `events`, which holds what happened to GPUs: the kinds of events, and the typed columns each fills.

A kind is one row of `EventKind`. Programs read the typed columns; `detail` says the same in a sentence, for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from .schema import arrow_array, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class EventKind(StrEnum):
    """A kind of event: its name, its meaning, and the typed columns that its events fill if the values are known."""

    meaning: str
    fills: tuple[str, ...]

    def __new__(cls, name: str, meaning: str = "", *fills: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning, member.fills = meaning, fills
        return member

    # of a GPU and its driver
    XID = "xid", "the driver told of an error; `code` is the number of the XID", "code"
    LOST = "lost", "the GPU does not answer any more"
    RETURNED = "returned", "a GPU that was lost answers again"
    APPEARED = "appeared", "a GPU that was not there before"
    RETIRED = "retired", "the GPU was taken out of its node; until it is seen again, `whorl check` does not miss it"
    MIG = "mig", "the MIG instances of the GPU changed; `n` are there now", "n"
    DRIVER_GONE = "driver_gone", "the driver was unloaded or replaced"
    DRIVER_RELOADED = "driver_reloaded", "the driver is back; `version` is its version", "version"
    HUNG = "hung", "a call of the driver has not returned for `duration_ns`", "duration_ns"
    ANSWERS_AGAIN = "answers_again", "a call of the driver that hung returned after `duration_ns`", "duration_ns"
    COUNTER_RESET = (
        "counter_reset",
        "a counter fell from `before` to `value`; without a `metric`, all counters fell to 0",
        "metric",
        "before",
        "value",
    )

    HELD_DOWN = (
        "held_down",
        "the clock was held down by what `metric` counts, for `duration_ns` of the `value` s from then on",
        "metric",
        "duration_ns",
        "value",
    )
    HEALTH = (
        "health",
        "DCGM's health check found its error `code`; `value` is 10 for a warning, 20 for a failure, 0 when it is over",
        "code",
        "value",
    )

    JOB_STATISTICS = (
        "job_statistics",
        "DCGM's own statistics of the job `job_id` on the GPU: it used `value` J in `duration_ns`, with `n` XIDs",
        "value",
        "duration_ns",
        "n",
    )

    # what cannot be read
    NOT_SUPPORTED = (
        "not_supported",
        "this GPU or its driver does not have `metric`; without a `metric`, see the sentence",
        "metric",
    )
    NOT_PERMITTED = "not_permitted", "this user may not read `metric`", "metric"
    FAILED_READING = (
        "failed_reading",
        "no number could be read for `metric`: the driver, engine or exporter gave an error or none",
        "metric",
    )
    MODULE_POWER = "module_power", "instantaneous power is that of the whole module, processor and GPU together"

    # sensors: `quality` is the mark in `telemetry.quality`
    STUCK_SENSOR = (
        "stuck_sensor",
        "the power reading stayed at `value` mW for `duration_ns` while the GPU's load moved",
        "quality",
        "value",
        "duration_ns",
    )
    ZERO_POWER = (
        "zero_power",
        "`n` power readings within `duration_ns` were 0 W, which no GPU draws",
        "quality",
        "n",
        "duration_ns",
    )
    QUANTISED_SENSOR = "quantised_sensor", "power readings are multiples of `value` mW", "quality", "value"
    SLOW_SENSOR = "slow_sensor", "a new power value comes every `duration_ns` only", "quality", "duration_ns"
    SENSOR_RECOVERED = "sensor_recovered", "the mark `quality` is no longer true", "quality"

    # of sources with a clock of their own: an engine, an exporter
    SOURCE_GONE = "source_gone", "a source, as an engine or an exporter, does not answer any more"
    SOURCE_BACK = (
        "source_back",
        "it answers again after `duration_ns`; what it did not keep of that time is missing",
        "duration_ns",
    )

    EXPORTER = (
        "exporter",
        "what readers of its numbers should know about an exporter's page: what is wrong on it, or has another name; "
        "with a `metric`, what of it is NULL or called otherwise",
        "metric",
    )
    SOURCE_VERSION = "source_version", "the software of the source has this `version`", "version"

    # of a collector
    COLLECT_BEGAN = "collect_began", "a collector began to read every `duration_ns`", "duration_ns"
    COLLECT_ENDED = "collect_ended", "it ended after `n` ticks", "n"
    MISSED_TICKS = "missed_ticks", "`n` ticks were missed within `duration_ns`", "n", "duration_ns"
    SUSPENDED = "suspended", "the machine slept for `duration_ns`", "duration_ns"
    CLOCK_STEP = "clock_step", "the wall clock was set by `duration_ns`, back where that is negative", "duration_ns"

    # of probes
    WRONG_RESULT = "wrong_result", "the check of probe `workload` found `n` wrong elements", "workload", "n"
    PROBE_FAILED = "probe_failed", "the GPU failed in probe `workload`; without one, it could not be used", "workload"
    PROBE_NOT_RUN = "probe_not_run", "probe `workload` was not run", "workload"
    SETTINGS_CHANGED = (
        "settings_changed",
        "a setting is `value`, and was `before`: the power limit, mW, or the clock that is locked, MHz",
        "metric",
        "before",
        "value",
    )
    SETTINGS_RESTORED = "settings_restored", "a setting is again what it was"
    SETTINGS_NOT_RESTORED = "settings_not_restored", "a setting could not be restored: restore it by hand"
    SETTINGS_LEFT_OVER = "settings_left_over", "what became of settings that an earlier process left changed"

    # of files of jobs
    JOB_REFUSED = (
        "job_refused",
        "the import did not store an allocation of job `job_id` that lasted `duration_ns`; where that is negative, it "
        "ended before it began",
        "duration_ns",
    )

    # of campaigns through a batch system
    JOB_SUBMITTED = "job_submitted", "a job was submitted that measures the node; it is its try number `n`", "n"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a GPU (its UUID) or to the node (`gpu` is None): a row of `events`."""

    kind: EventKind
    gpu: str | None
    detail: str
    """One sentence for people, made of the typed values."""
    ts_ns: int | None = None
    """UTC; None: now."""
    node: str | None = None
    """None: the node of the process that records it."""
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


def event_rows(events: Sequence[Event], *, cluster: str, node: str | None = None) -> pa.RecordBatch:
    """Events as rows of `events`. Every event must have its time. `node` is for events that name no node."""
    import pyarrow as pa

    schema = arrow_schema("events")
    columns: dict[str, list[Any]] = {
        "ts": [event.ts_ns for event in events],
        "cluster": [cluster] * len(events),
        "gpu": [event.gpu for event in events],
        "node": [event.node or node for event in events],
        "kind": [event.kind for event in events],
        **{name: [getattr(event, name) for event in events] for name in (*TYPED, "campaign", "job_id")},
        "detail": [event.detail for event in events],
    }
    for name in ("before", "value"):  # a counter may have more digits than a double: the sentence has them all
        columns[name] = [None if value is None else float(value) for value in columns[name]]
    kept = pa.schema([schema.field(name) for name in columns])
    return pa.RecordBatch.from_arrays(
        [arrow_array(values, kept.field(name).type) for name, values in columns.items()], schema=kept
    )
