"""The conditions of runs: the keys of the JSON object in `runs.conditions`, their types and values, and its reader.

Code that writes conditions uses these keys. Code that reads them calls `read` or `stated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .system.files import parse_json

if TYPE_CHECKING:
    import polars as pl


class Clock(StrEnum):
    """How the SM clock was set."""

    FREE = "free"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Condition:
    """One key. Its value is null if nothing was asked for, or if it is not known."""

    name: str
    type: str
    """'text', 'number', 'integer', 'boolean', 'list' or 'object'."""
    unit: str
    description: str
    alike: str = ""
    """The word for it when runs that differ in it must not be pooled; "" if they may be pooled."""


CONDITIONS = (
    # settings of the GPU
    Condition("clock", "text", "", "how the SM clock was set: free or locked", "clock"),
    Condition("locked_clock_mhz", "number", "MHz", "the clock that was locked"),
    Condition("asked_power_limit_w", "number", "W", "power limit as asked", "power limit"),
    Condition("power_limit_w", "number", "W", "power limit in force"),
    Condition("power_limit_default_w", "number", "W", "power limit as delivered"),
    Condition("compute_mode", "text", "", "the driver's compute mode"),
    Condition("mig", "boolean", "", "whether MIG is on"),
    Condition("persistence", "boolean", "", "whether the driver stays loaded"),
    Condition("ecc", "boolean", "", "whether ECC is on"),
    Condition("neighbours", "text", "", "the other GPUs of the node: idle or busy", "neighbours"),
    Condition("other_processes", "list", "", "numbers of other processes on the GPU when the run began"),
    Condition("simulated", "boolean", "", "whether the GPU is simulated"),
    # asked for
    Condition("suite", "text", "", "how thoroughly was measured: quick, standard or full", "suite"),
    Condition("kernel", "text", "", "what ran: a kernel of whorl, or as an imported file has it"),
    Condition("seed", "integer", "", "seed of the inputs"),
    Condition("asked_precision", "number", "", "asked half width of the median's 95 % interval, share of the median"),
    Condition("asked_repeats", "integer", "", "the fewest repeats that were asked for"),
    Condition("time_limit_s", "number", "s", "the longest time to measure that was asked for"),
    Condition("asked_start_temperature_c", "number", "degC", "temperature to cool down to before, as asked"),
    Condition("asked_input", "text", "", "asked distribution of the input"),
    Condition("period_s", "number", "s", "of a square wave: its period"),
    Condition("duty", "number", "", "of a square wave: the share of load"),
    # the work
    Condition("precision", "text", "", "arithmetic of the work: fp32, bf16, ..."),
    Condition("path", "text", "", "where its bytes go: dram, l2, pcie, peer or none"),
    Condition("flop", "number", "", "FLOP of one repetition"),
    Condition("bytes", "number", "B", "bytes of one repetition"),
    Condition("operations", "number", "", "other operations of one repetition"),
    Condition("input", "text", "", "distribution of the input", "input"),
    Condition("parameters", "object", "", "sizes of the work by name", "sizes"),
    Condition("works", "integer", "", "how many works ran; the others are those of a scan"),
    Condition("scanned", "text", "", "of a scan: the parameter"),
    Condition("values", "list", "", "of a scan: its values"),
    # found while it ran
    Condition("start_temperature_c", "number", "degC", "GPU temperature before the warm-up"),
    Condition("cool_down_s", "number", "s", "how long it waited for that temperature"),
    Condition("warm_up_s", "number", "s", "how long it was warmed up"),
    Condition("steady", "boolean", "", "whether times, clock and temperature were steady when measuring began"),
    Condition("repeats", "integer", "", "repeats that were counted"),
    Condition("each", "integer", "", "repetitions in a repeat"),
    Condition("block", "integer", "", "repeats in a block of the interval's bootstrap"),
    Condition(
        "independent", "boolean", "", "whether the interval is wide enough for repeats that depend on each other"
    ),
    Condition("drift", "number", "", "share by which the times changed while it was measured"),
    Condition("energy_from", "text", "", "where its energy comes from: counter or power"),
    Condition("readings", "integer", "", "readings of telemetry in its window"),
    # imported
    Condition("input_size", "text", "", "input size as the file has it"),
    Condition("reps", "text", "", "repetitions as the file has them"),
    Condition("run", "text", "", "number of the run as the file has it"),
    Condition("warmup", "text", "", "warm-up as the file has it"),
    Condition("kernels", "text", "", "kernels as the file has them"),
    # simulated campaigns
    Condition("load", "text", "", "name of the simulated load"),
    Condition("unit", "text", "", "what a unit of the load's work is"),
    Condition("units", "integer", "", "units of work in a run"),
    Condition("repeat_s", "number", "s", "how long a repeat is"),
    Condition("steady_state", "boolean", "", "whether it was computed for steady state, not stepped through time"),
)


def read(text: str | None) -> Mapping[str, Any]:
    """The conditions of a run by key; empty if they are missing or not a JSON object."""
    try:
        found = parse_json(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stated(key: str) -> pl.Expr:
    """The value of a key in the column `conditions`, as text: 'none' for null, NULL if the key is missing."""
    import polars as pl

    return pl.when(states(key)).then(pl.col("conditions").str.json_path_match(f"$.{key}").fill_null("none"))


def stated_in_sql(key: str, column: str = "conditions") -> str:
    """The value of a key in a query of DuckDB, as text: NULL for null, for no key and for a text that is no JSON."""
    return f"json_extract_string(case when json_valid({column}) then {column} end, '$.{key}')"


def states(key: str) -> pl.Expr:
    """Whether the column `conditions` may have a key."""
    import polars as pl

    return pl.col("conditions").str.contains(f'"{key}":', literal=True)


def clock_in_words(clock: object, locked_mhz: object) -> str | None:
    """How the clock was set, for people: 'free' or 'locked at 1200 MHz'; None if it is not known."""
    if clock != Clock.LOCKED:
        return None if clock is None else str(clock)
    mhz = f"{locked_mhz:g}" if isinstance(locked_mhz, int | float) else locked_mhz
    return f"locked at {mhz} MHz"
