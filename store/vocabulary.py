"""The codes and keys that columns hold: an enumeration or a tuple of rows for each, with what each code means.

`VOCABULARIES` has them all as tables for people: `whorl schema` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import polars as pl


class Code(StrEnum):
    """A code with its meaning, and the names of the columns that hold more of it."""

    meaning: str
    fills: tuple[str, ...]

    def __new__(cls, code: str, meaning: str = "", *fills: str) -> Self:
        member = str.__new__(cls, code)
        member._value_, member.meaning, member.fills = code, meaning, fills
        return member


# fmt: off
class Outcome(Code):
    """Whether the figures of a run are to be trusted; `runs.status_detail` says it in a sentence."""

    OK = "ok", "it ended well"
    WRONG_RESULT = "wrong_result", "the check found wrong elements: do not trust its figures"
    HEALTH_CHANGED = ("health_changed",
                      "the results are right and compared, but the GPU's health changed: see that event")
    LOST = "lost", "the driver does not reach the GPU any more"
    HUNG = "hung", "the GPU did not end its work in time"
    FAILED = "failed", "anything else that kept it from ending"


COMPARED = (Outcome.OK, Outcome.HEALTH_CHANGED)
"""The figures of runs that came out so are compared."""


class EndedBy(Code):
    """Why measuring ended."""

    PRECISE = "precise", "the interval was as narrow as asked"
    TIME_LIMIT = "time limit", "the time was over"
    MOST_REPEATS = "most repeats", "no more repeats fit"
    COMPLETE = "complete", "all was done: its length is fixed"
    WRONG = "wrong", "a soak ended at the first wrong result"
    STOPPED = "stopped", "somebody stopped a soak; it has figures until then"
    FAILED = "failed", "it did not end: only a soak has figures"


class JobSource(Code):
    """Where a row of `jobs` comes from."""

    SACCT = "sacct", "Slurm's accounting (`whorl jobs import`)"
    TAG = "tag", "a tag of a prolog or epilog (`whorl jobs tag`)"
    CSV = "csv", "a file of allocations (`whorl import`)"
    EXPORTER = "exporter", "pages of an exporter that say which job had a GPU (`whorl import`)"
    SCONTROL = "scontrol", "what `scontrol show job -d` says (`whorl import`)"
    CGROUP = "cgroup", "a collector saw processes of the job on the GPU (`whorl collect`)"
    SIMULATED = "simulated", "an invented job on a simulated fleet (`whorl demo`)"


class PowerMeter(Code):
    """What measured a row of `node_power`."""

    IPMI = "ipmi", "the node's BMC, asked by DCMI"
    REDFISH = "redfish", "the node's BMC, asked by Redfish"
    RAPL = "rapl", "the CPU's own counters of energy (RAPL)"
    HWMON = "hwmon", "the ACPI power meter, as Linux has it under hwmon"
    PDU = "pdu", "a power distribution unit, or another meter in front of the node"
    SIMULATED = "simulated", "the meter of a simulated node"


class PowerOf(Code):
    """What a row of `node_power` is the power of."""

    NODE_WALL = "node_wall", "the whole node, where the current enters its power supplies"
    NODE_DC = "node_dc", "the whole node, behind its power supplies"
    NODE = "node", "the whole node; on which side of its power supplies is not known"
    PLATFORM = "platform", "RAPL's platform (psys): with the CPUs, without most GPUs"
    CPU = "cpu", "the CPU packages"
    DRAM = "dram", "the memory of the CPUs"


class CalibrationFinding(Code):
    """What to know of a row of `calibrations`."""

    OK = "ok", "boards worked at different times, and are told apart"
    TOGETHER = ("together", "boards worked together: their sum is known, hardly which is wrong")
    STEADY = "steady", "its power hardly changed: the gain is not known"
    FEW = "few", "there are few windows"
    DRIFTS = "drifts", "the gain changed: the interval holds both ends"


class GpuFrom(Code):
    """How the GPU of a row of `jobs` is known. None of them takes an index for another."""

    TAG = "tag", "a tag read its UUID on the node"
    WHOLE_NODE = "whole node", "the job had all GPUs of its nodes"
    FILE = "file", "the imported file names it"
    PROCESS = "process", "a process of the job was on it; it may have had others"


class TagState(Code):
    """The state of a job of which only tags, or its processes, are known."""

    RUNNING = "RUNNING", "it has begun"
    ENDED = "ENDED", "its epilog ran, or its processes are gone"
    LOST = "LOST", "its epilog never ran; it ended at `ended` at the latest"


class EventKind(Code):
    """What happened; with the typed columns that its events fill if the values are known."""

    # of a GPU and its driver
    XID = ("xid", "the driver told of an error: `code` is the XID, `n` how many", "code", "n")
    LOST = "lost", "the GPU does not answer any more"
    NEEDS_RESET = "needs_reset", "the GPU cannot be used before it is reset"
    ABSENT = "absent", "no GPU is where one was"
    RETURNED = "returned", "a GPU that was lost answers again"
    APPEARED = "appeared", "a GPU that was not there before"
    RETIRED = "retired", "it was taken out: `whorl check` does not miss it"
    MIG = "mig", "MIG instances changed; `n` are there", "n"
    DRIVER_GONE = "driver_gone", "the driver was unloaded or replaced"
    DRIVER_RELOADED = "driver_reloaded", "the driver is back", "version"
    HUNG = "hung", "a call of the driver does not return", "duration_ns"
    ANSWERS_AGAIN = "answers_again", "it returned", "duration_ns"
    COUNTER_RESET = ("counter_reset", "a counter fell; without a `metric`, all fell to 0", "metric", "before", "value")
    HEALTH = ("health",
              "DCGM's health check has error `code`; `value` 10: warning, 20: failure, 0: over", "code", "value")

    # what cannot be read
    NOT_SUPPORTED = ("not_supported", "the GPU or driver does not have `metric`; without one, see `detail`", "metric")
    NOT_PERMITTED = "not_permitted", "this user may not read `metric`", "metric"
    FAILED_READING = ("failed_reading", "no number for `metric`: an error, or no answer", "metric")
    MODULE_POWER = "module_power", "instantaneous power is of the whole module, with the processor"

    # sensors: `quality` is the mark in `telemetry.quality`
    STUCK_SENSOR = ("stuck_sensor",
                    "power stayed at `value` mW while the load moved", "quality", "value", "duration_ns")
    ZERO_POWER = ("zero_power", "`n` power readings were 0 W", "quality", "n", "duration_ns")
    QUANTISED_SENSOR = "quantised_sensor", "power readings are multiples of `value` mW", "quality", "value"
    SLOW_SENSOR = "slow_sensor", "a new power value comes rarely", "quality", "duration_ns"
    SENSOR_RECOVERED = "sensor_recovered", "the mark `quality` is no longer true", "quality"

    # of sources with a clock of their own: an engine, an exporter
    SOURCE_GONE = "source_gone", "an engine or exporter does not answer"
    SOURCE_BACK = ("source_back", "it answers again", "duration_ns")
    EXPORTER = ("exporter", "what is wrong on an exporter's page; with a `metric`, what of it is NULL", "metric")
    SOURCE_VERSION = "source_version", "version of the source's software", "version"

    # of a collector
    COLLECT_BEGAN = "collect_began", "a collector began to read", "duration_ns"
    COLLECT_ENDED = "collect_ended", "it ended", "n"
    MISSED_TICKS = "missed_ticks", "ticks were missed", "n", "duration_ns"
    SUSPENDED = "suspended", "the machine slept", "duration_ns"
    CLOCK_STEP = "clock_step", "the wall clock was set; back where negative", "duration_ns"

    # of probes
    WRONG_RESULT = "wrong_result", "a probe found `n` wrong elements", "workload", "n"
    PROBE_FAILED = "probe_failed", "the GPU failed in a probe; without one, it could not be used", "workload"
    HEALTH_CHANGED = ("health_changed",
                      "a `metric` changed while a probe ran; without one: `n` XIDs, the last `code`",
                      "workload", "metric", "before", "value", "code", "n")
    UNFIT = "unfit", "`whorl probe prolog` found the GPU unfit for a job"
    PROBE_NOT_RUN = "probe_not_run", "a probe was not run", "workload"
    SETTINGS_CHANGED = ("settings_changed",
                        "the power limit, mW, or the locked clock, MHz, was changed", "metric", "before", "value")
    SETTINGS_RESTORED = "settings_restored", "a setting is again what it was"
    SETTINGS_NOT_RESTORED = "settings_not_restored", "a setting could not be restored: restore it by hand"
    SETTINGS_LEFT_OVER = "settings_left_over", "settings that an earlier process left changed"

    # of files of jobs
    JOB_REFUSED = ("job_refused",
                   "an allocation of `job_id` was not stored; negative: it ended before it began", "duration_ns")

    # of campaigns through a batch system
    JOB_SUBMITTED = "job_submitted", "a job was submitted to measure the node: try `n`", "n"


OUT_OF_USE = (EventKind.LOST, EventKind.NEEDS_RESET, EventKind.ABSENT)
"""After these a GPU cannot be used, until it is seen again."""


POWER, THERMAL, BRAKE, OTHER = "power", "thermal", "brake", "other"
"""Kinds of reasons: the power limit, heat, the hardware's own brake, anything else."""


class ClockEvent(NamedTuple):
    """One reason."""

    name: str
    kind: str
    meaning: str
    bit: int | None = None
    """None if the driver reports it only by a counter."""
    counter: str | None = None
    """The column of `telemetry` that counts its time, ns; None if the driver reports it only by the bit."""


CLOCK_EVENTS = (
    ClockEvent("idle", OTHER, "nothing runs", 0x1),
    ClockEvent("applications_clocks", OTHER, "the clock is set by hand", 0x2),
    ClockEvent("power_cap", POWER, "the power limit", 0x4, "power_violation_ns"),
    ClockEvent("hw_slowdown", BRAKE, "the hardware halves the clock or worse: heat, brake or power", 0x8),
    ClockEvent("sync_boost", OTHER, "other GPUs of a group are slower", 0x10, "sync_boost_violation_ns"),
    ClockEvent("thermal_software", THERMAL, "the driver holds it down for heat", 0x20, "software_thermal_ns"),
    ClockEvent("thermal_hardware", THERMAL, "the hardware holds it down for heat", 0x40, "hardware_thermal_ns"),
    ClockEvent("power_brake", BRAKE, "the external power brake", 0x80, "power_brake_ns"),
    ClockEvent("display_clocks", OTHER, "a display needs this clock", 0x100),
    ClockEvent("board_limit", POWER, "a limit of the board", None, "board_limit_violation_ns"),
    ClockEvent("reliability", OTHER, "voltage, for reliability", None, "reliability_violation_ns"),
)


def reason_bit(name: str) -> int:
    """The bit of a reason."""
    return {reason.name: reason.bit for reason in CLOCK_EVENTS if reason.bit is not None}[name]


def reasons_of(kind: str) -> tuple[str, ...]:
    """The reasons of a kind."""
    return tuple(reason.name for reason in CLOCK_EVENTS if reason.kind == kind)


class ClockSetting(StrEnum):
    """How the SM clock was set."""

    FREE = "free"
    LOCKED = "locked"


class Condition(NamedTuple):
    """One field of the record."""

    name: str
    type: str
    """As DuckDB spells it."""
    unit: str
    description: str
    alike: str = ""
    """The word for it when runs that differ in it must not be pooled; "" if they may be pooled."""
    added: bool = False
    """Whether files that were written before there was this field lack it: it is NULL in them."""


CONDITIONS = (
    # settings of the GPU
    Condition("clock", "VARCHAR", "", "SM clock: free or locked", "clock"),
    Condition("locked_clock_mhz", "DOUBLE", "MHz", "the clock that was locked"),
    Condition("asked_power_limit_w", "DOUBLE", "W", "power limit as asked", "power limit"),
    Condition("power_limit_w", "DOUBLE", "W", "power limit in force"),
    Condition("power_limit_default_w", "DOUBLE", "W", "power limit as delivered"),
    Condition("compute_mode", "VARCHAR", "", "the driver's compute mode"),
    Condition("mig", "BOOLEAN", "", "whether MIG is on"),
    Condition("persistence", "BOOLEAN", "", "whether the driver stays loaded"),
    Condition("ecc", "BOOLEAN", "", "whether ECC is on"),
    Condition("mps", "BOOLEAN", "",
              "whether MPS shares the GPU among processes", added=True),
    Condition("mps_share_pct", "DOUBLE", "%", "share of the GPU's threads, by MPS", added=True),
    Condition("container", "VARCHAR", "",
              "docker, podman, apptainer, kubernetes or other", added=True),
    Condition("environment", "MAP(VARCHAR, VARCHAR)", "",
              "variables of CUDA and cuBLAS that change results", added=True),
    Condition("neighbours", "VARCHAR", "", "the other GPUs of the node: idle or busy", "neighbours"),
    Condition("cpus", "VARCHAR", "", "CPUs that its process was bound to: 0-15,32-47", added=True),
    Condition("other_processes", "VARCHAR[]", "", "other processes on the GPU"),
    Condition("simulated", "BOOLEAN", "", "whether the GPU is simulated"),
    # asked for
    Condition("suite", "VARCHAR", "", "quick, standard or full", "suite"),
    Condition("kernel", "VARCHAR", "", "the kernel"),
    Condition("seed", "BIGINT", "", "seed of the inputs"),
    Condition("asked_precision", "DOUBLE", "", "asked half width of the median's 95 % interval, as a share"),
    Condition("asked_repeats", "BIGINT", "", "asked repeats, at least"),
    Condition("time_limit_s", "DOUBLE", "s", "asked time limit"),
    Condition("asked_start_temperature_c", "DOUBLE", "degC", "asked temperature to cool down to"),
    Condition("asked_input", "VARCHAR", "", "asked distribution of the input"),
    Condition("period_s", "DOUBLE", "s", "of a square wave: its period"),
    Condition("duty", "DOUBLE", "", "of a square wave: the share of load"),
    # the work
    Condition("precision", "VARCHAR", "", "arithmetic of the work: fp32, bf16, ..."),
    Condition("path", "VARCHAR", "", "where its bytes go: dram, l2, pcie, peer or none"),
    Condition("flop", "DOUBLE", "", "FLOP of one repetition"),
    Condition("bytes", "DOUBLE", "B", "bytes of one repetition"),
    Condition("operations", "DOUBLE", "", "other operations of one repetition"),
    Condition("input", "VARCHAR", "", "distribution of the input", "input"),
    Condition("parameters", "MAP(VARCHAR, DOUBLE)", "", "sizes of the work by name", "sizes"),
    Condition("works", "BIGINT", "", "works that ran"),
    Condition("scanned", "VARCHAR", "", "of a scan: the parameter"),
    Condition("values", "DOUBLE[]", "", "of a scan: its values"),
    # found while it ran
    Condition("start_temperature_c", "DOUBLE", "degC", "GPU temperature before the warm-up"),
    Condition("cool_down_s", "DOUBLE", "s", "how long it cooled down"),
    Condition("warm_up_s", "DOUBLE", "s", "how long it was warmed up"),
    Condition("steady", "BOOLEAN", "", "whether all was steady when measuring began"),
    Condition("repeats", "BIGINT", "", "repeats that were counted"),
    Condition("each", "BIGINT", "", "repetitions in a repeat"),
    Condition("block", "BIGINT", "", "repeats in a block of the interval's bootstrap"),
    Condition("independent", "BOOLEAN", "",
              "whether the interval allows for dependent repeats"),
    Condition("balance", "DOUBLE", "",
              "of copies beside kernels: the copies' time over the kernels', each alone", added=True),
    Condition("blocks", "BIGINT", "",
              "of copies beside kernels: blocks of a kernel", added=True),
    Condition("drift", "DOUBLE", "", "share by which the times changed"),
    Condition("energy_from", "VARCHAR", "", "where its energy comes from: counter or power"),
    Condition("readings", "BIGINT", "", "readings of telemetry in its window"),
    Condition("slow_sms", "BIGINT[]", "",
              "multiprocessors slower than the others", added=True),
    Condition("wrong_by_sm", "MAP(VARCHAR, DOUBLE)", "",
              "wrong elements by multiprocessor", added=True),
    # imported
    Condition("input_size", "VARCHAR", "", "input size"),
    Condition("reps", "VARCHAR", "", "repetitions"),
    Condition("run", "VARCHAR", "", "number of the run"),
    Condition("warmup", "VARCHAR", "", "warm-up"),
    Condition("kernels", "VARCHAR", "", "kernels"),
    # simulated campaigns
    Condition("load", "VARCHAR", "", "name of the simulated load"),
    Condition("unit", "VARCHAR", "", "what a unit of the load's work is"),
    Condition("units", "BIGINT", "", "units of work in a run"),
    Condition("repeat_s", "DOUBLE", "s", "how long a repeat is"),
    Condition("steady_state", "BOOLEAN", "", "whether computed for steady state"),
)
# fmt: on


def record(fields: Mapping[str, str]) -> str:
    """The type of a record, from the types of its fields by name."""
    parts = (f'"{name}" {kind}' if name in _KEYWORDS else f"{name} {kind}" for name, kind in fields.items())
    return f"STRUCT({', '.join(parts)})"


_KEYWORDS = frozenset({"at", "each", "input", "level", "load", "name", "precision", "values"})
"""Names of fields that SQL knows as words of its own: DuckDB writes them in quotes."""


def stated(key: str) -> pl.Expr:
    """A field of the column `conditions`, for Polars."""
    import polars as pl

    return pl.col("conditions").struct.field(key)


def clock_in_words(clock: object, locked_mhz: object) -> str | None:
    """How the clock was set, for people: 'free' or 'locked at 1200 MHz'; None if it is not known."""
    if clock != ClockSetting.LOCKED:
        return None if clock is None else str(clock)
    mhz = f"{locked_mhz:g}" if isinstance(locked_mhz, int | float) else locked_mhz
    return f"locked at {mhz} MHz"


class Vocabulary(NamedTuple):
    """What a column of a table may hold: a header, and a row for each code or key."""

    table: str
    column: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        return f"{self.table}.{self.column}"


def _codes(table: str, column: str, codes: type[Code], header: str = "code") -> Vocabulary:
    return Vocabulary(table, column, (header, "meaning"), tuple((code, code.meaning) for code in codes))


# fmt: off
VOCABULARIES = (
    _codes("runs", "status", Outcome),
    _codes("runs", "ended_by", EndedBy),
    Vocabulary("runs", "conditions", ("key", "type", "unit", "meaning"),
               tuple((field.name, field.type, field.unit, field.description) for field in CONDITIONS)),
    Vocabulary("runs", "clock_events", ("reason", "kind", "bit of clock_event_reasons", "counter", "meaning"),
               tuple((reason.name, reason.kind, f"{reason.bit:#x}" if reason.bit else "", reason.counter or "",
                      reason.meaning) for reason in CLOCK_EVENTS)),
    Vocabulary("events", "kind", ("kind", "columns", "meaning"),
               tuple((kind, ", ".join(kind.fills), kind.meaning) for kind in EventKind)),
    _codes("jobs", "source", JobSource),
    _codes("jobs", "gpu_from", GpuFrom),
    _codes("jobs", "state", TagState, "of tags"),
    _codes("node_power", "source", PowerMeter),
    _codes("node_power", "covers", PowerOf),
    _codes("calibrations", "finding", CalibrationFinding),
)
# fmt: on
