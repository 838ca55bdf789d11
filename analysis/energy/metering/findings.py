"""What is said of a meter: why an energy is no honest figure, and what went wrong in its readings. Codes and rows."""

from __future__ import annotations

from dataclasses import dataclass

from ....store.vocabulary import Code


class Reason(Code):
    """Why the energy of a window is no honest figure."""

    NO_TELEMETRY = "no telemetry", "there is no reading of this GPU in this time"
    NO_SENSOR = "no sensor", "the readings have neither power nor an energy counter"
    STUCK = "sensor stuck", "the power sensor was stuck for most of this time, and no energy counter was read"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws, for most of this time"
    GAPS = "mostly gaps", "less than half of this time has readings"


class Problem(Code):
    """What went wrong in the readings of a GPU, and what was done about it."""

    GAP = "gap", "no readings: bounded by what the GPU draws without work and by its power limit"
    STUCK = "sensor stuck", "the power reading did not move while the GPU's load did: not used"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws: not used"
    IMPOSSIBLE = "impossible power", "readings far above the power limit: not used"
    COUNTER_RESET = "counter reset", "the energy counter began anew: power is used across the reset"
    COUNTER_BACK = "counter back", "the energy counter went back and did not begin anew: power is used there"
    COUNTER_WRAP = "counter wrapped", "the energy counter went over its 32 bits: counted across"
    COUNTER_JUMP = "counter jump", "the energy counter grew by more than the GPU can draw: power is used there"
    COUNTER_STALE = "counter stale", "the energy counter stood still or crept while the GPU drew power: power is used"
    DISAGREE = "counter and power disagree", "the energy counter and the integrated power differ; the interval has both"
    DRIVER_RELOAD = "driver reload", "the driver was loaded again, which sets the energy counter to 0"
    CLOCK_STEP = "clock step", "the wall clock was set: times around it may be wrong by as much"
    TWICE = "counted twice", "the store knows the GPU by its number only and by its UUID: both are in the sums"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was found in the readings of a GPU: a row of `whorl energy reconcile`."""

    problem: Problem
    began_ns: int
    ended_ns: int
    joules: float | None = None
    """Energy that it concerns: best estimate in a gap, size of a step of the counter."""
    percent: float | None = None
    """Of a disagreement: how much more the counter has than the integrated power."""
    seconds: float | None = None
    """Of a step of the clock: by how much it was set, back where that is negative."""
    n: int = 1
    """How many findings of this kind the row stands for."""
    has_rows: bool = False
    """Of a gap: whether the GPU has rows within it, none of which counts."""
