"""Reasons for a GPU's clock: what each means, its kind, and the bit and counter by which a driver reports it.

Bits are those of `telemetry.clock_event_reasons`, as NVML numbers them (`nvmlClocksEventReason*`); names are the fields
of `runs.clock_events`.
"""

from __future__ import annotations

from dataclasses import dataclass

POWER, THERMAL, BRAKE, OTHER = "power", "thermal", "brake", "other"
"""Kinds of reasons: the power limit, heat, the hardware's own brake, anything else."""


@dataclass(frozen=True, slots=True)
class ClockEvent:
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


def bit(name: str) -> int:
    """The bit of a reason."""
    (number,) = (reason.bit for reason in CLOCK_EVENTS if reason.name == name)
    assert number is not None
    return number


def names(kind: str) -> tuple[str, ...]:
    """The reasons of a kind."""
    return tuple(reason.name for reason in CLOCK_EVENTS if reason.kind == kind)
