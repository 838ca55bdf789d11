"""The conditions of runs: the fields of the record in `runs.conditions`, their types and meaning, and how to read one.

Code that writes conditions uses these names. A field is NULL if nothing was asked for, or if it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


class Clock(StrEnum):
    """How the SM clock was set."""

    FREE = "free"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Condition:
    """One field of the record."""

    name: str
    type: str
    """As DuckDB spells it."""
    unit: str
    description: str
    alike: str = ""
    """The word for it when runs that differ in it must not be pooled; "" if they may be pooled."""


CONDITIONS = (
    # settings of the GPU
    Condition("clock", "VARCHAR", "", "how the SM clock was set: free or locked", "clock"),
    Condition("locked_clock_mhz", "DOUBLE", "MHz", "the clock that was locked"),
    Condition("asked_power_limit_w", "DOUBLE", "W", "power limit as asked", "power limit"),
    Condition("power_limit_w", "DOUBLE", "W", "power limit in force"),
    Condition("power_limit_default_w", "DOUBLE", "W", "power limit as delivered"),
    Condition("compute_mode", "VARCHAR", "", "the driver's compute mode"),
    Condition("mig", "BOOLEAN", "", "whether MIG is on"),
    Condition("persistence", "BOOLEAN", "", "whether the driver stays loaded"),
    Condition("ecc", "BOOLEAN", "", "whether ECC is on"),
    Condition("neighbours", "VARCHAR", "", "the other GPUs of the node: idle or busy", "neighbours"),
    Condition("other_processes", "VARCHAR[]", "", "other processes on the GPU when the run began"),
    Condition("simulated", "BOOLEAN", "", "whether the GPU is simulated"),
    # asked for
    Condition("suite", "VARCHAR", "", "how thoroughly was measured: quick, standard or full", "suite"),
    Condition("kernel", "VARCHAR", "", "what ran: a kernel of whorl, or as an imported file has it"),
    Condition("seed", "BIGINT", "", "seed of the inputs"),
    Condition("asked_precision", "DOUBLE", "", "asked half width of the median's 95 % interval, share of the median"),
    Condition("asked_repeats", "BIGINT", "", "the fewest repeats that were asked for"),
    Condition("time_limit_s", "DOUBLE", "s", "the longest time to measure that was asked for"),
    Condition("asked_start_temperature_c", "DOUBLE", "degC", "temperature to cool down to before, as asked"),
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
    Condition("works", "BIGINT", "", "how many works ran; the others are those of a scan"),
    Condition("scanned", "VARCHAR", "", "of a scan: the parameter"),
    Condition("values", "DOUBLE[]", "", "of a scan: its values"),
    # found while it ran
    Condition("start_temperature_c", "DOUBLE", "degC", "GPU temperature before the warm-up"),
    Condition("cool_down_s", "DOUBLE", "s", "how long it waited for that temperature"),
    Condition("warm_up_s", "DOUBLE", "s", "how long it was warmed up"),
    Condition("steady", "BOOLEAN", "", "whether times, clock and temperature were steady when measuring began"),
    Condition("repeats", "BIGINT", "", "repeats that were counted"),
    Condition("each", "BIGINT", "", "repetitions in a repeat"),
    Condition("block", "BIGINT", "", "repeats in a block of the interval's bootstrap"),
    Condition(
        "independent", "BOOLEAN", "", "whether the interval is wide enough for repeats that depend on each other"
    ),
    Condition("drift", "DOUBLE", "", "share by which the times changed while it was measured"),
    Condition("energy_from", "VARCHAR", "", "where its energy comes from: counter or power"),
    Condition("readings", "BIGINT", "", "readings of telemetry in its window"),
    # imported
    Condition("input_size", "VARCHAR", "", "input size as the file has it"),
    Condition("reps", "VARCHAR", "", "repetitions as the file has them"),
    Condition("run", "VARCHAR", "", "number of the run as the file has it"),
    Condition("warmup", "VARCHAR", "", "warm-up as the file has it"),
    Condition("kernels", "VARCHAR", "", "kernels as the file has them"),
    # simulated campaigns
    Condition("load", "VARCHAR", "", "name of the simulated load"),
    Condition("unit", "VARCHAR", "", "what a unit of the load's work is"),
    Condition("units", "BIGINT", "", "units of work in a run"),
    Condition("repeat_s", "DOUBLE", "s", "how long a repeat is"),
    Condition("steady_state", "BOOLEAN", "", "whether it was computed for steady state, not stepped through time"),
)


def stated(key: str) -> pl.Expr:
    """A field of the column `conditions`, for Polars."""
    import polars as pl

    return pl.col("conditions").struct.field(key)


def clock_in_words(clock: object, locked_mhz: object) -> str | None:
    """How the clock was set, for people: 'free' or 'locked at 1200 MHz'; None if it is not known."""
    if clock != Clock.LOCKED:
        return None if clock is None else str(clock)
    mhz = f"{locked_mhz:g}" if isinstance(locked_mhz, int | float) else locked_mhz
    return f"locked at {mhz} MHz"
