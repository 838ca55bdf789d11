"""What a column of an imported file can mean: one row per meaning, with unit, limits and usual names.

A new metric of imported telemetry, or a further name for a known one, is one row here.
"""

from __future__ import annotations

from dataclasses import dataclass

EXACT = 2.0**53  # beyond it a float does not hold every integer


@dataclass(frozen=True, slots=True)
class Meaning:
    """A meaning: its name in `--map`, where it is stored, and what values can be believed.

    `low` and `high` bound single values, in `unit`; a row outside is refused. `usual` bounds the median of
    the column: outside it, the column does not hold what its name or unit says, and the file is refused.
    """

    name: str
    kind: str  # number | hex | pstate | text | time stamp | identity
    description: str
    names: tuple[str, ...] = ()  # in lower case, as published files spell it
    dimension: str = ""
    unit: str = ""  # the unit stored; "" for a plain number
    column: str = ""  # the column of the store
    low: float = float("-inf")
    high: float = float("inf")
    usual: tuple[float, float] = (float("-inf"), float("inf"))
    pattern: str = ""  # of a text: what it must look like


_COUNT = r"^[0-9]+(?:\.0+)?$"
_CLOCK = {"dimension": "clock", "unit": "MHz", "low": 1.0, "high": 10_000.0, "usual": (100.0, 10_000.0)}
_MEMORY_CLOCK = _CLOCK | {"usual": (300.0, 10_000.0)}
_HEAT = {"dimension": "temperature", "unit": "C", "low": -40.0, "high": 150.0, "usual": (12.0, 97.0)}
_NOW_CLOCK = _CLOCK | {"low": 0.0}  # a parked GPU shows 0
_NOW_HEAT = _HEAT | {"usual": (5.0, 125.0)}  # a single reading, and memory, may be colder and hotter
_SHARE = {"dimension": "share", "unit": "%", "low": 0.0, "high": 100.0}
_WATTS = {"dimension": "power", "unit": "W", "low": 0.0, "high": 5_000.0, "usual": (1.0, 5_000.0)}
_MILLIWATTS = {"dimension": "power", "unit": "mW", "low": 0.0, "high": 5e6, "usual": (1e3, 5e6)}


def _number(name: str, description: str, names: tuple[str, ...], column: str, **limits: object) -> Meaning:
    return Meaning(name, "number", description, names, column=column, **limits)  # type: ignore[arg-type]


_IDENTITY: tuple[Meaning, ...] = (
    Meaning("gpu", "identity", "the GPU: a UUID, or cabinet-node-device", ("uuid", "gpu_uuid", "gpu uuid")),
    Meaning("cabinet", "identity", "cabinet or rack", ("cabinet",)),
    Meaning("node", "identity", "host", ("node", "host", "hostname")),
    Meaning("slot", "identity", "position of the GPU in its node", ("device", "slot")),
)

# A published `device` is a place; `dev_id` is not: in the files that have it, it is 0 on every row.
RUN_MEANINGS: tuple[Meaning, ...] = (
    *_IDENTITY,
    Meaning("workload", "text", "what ran", ("exp", "model", "app", "application", "benchmark", "workload")),
    _number("time", "duration of the run", ("perf",), "value", dimension="time", unit="ms", low=0.0),
    Meaning("job", "text", "batch job", ("job_id", "jobid"), column="job_id"),
    Meaning("began", "time stamp", "when the run began", ("ts", "timestamp"), column="began"),
    _number("sm_clock", "median SM clock", ("freq", "median_freq", "sm_clock"), "sm_clock_mhz", **_CLOCK),
    _number("mem_clock", "median memory clock", ("memfreq", "median_memfreq"), "mem_clock_mhz", **_MEMORY_CLOCK),
    _number("temperature", "median temperature", ("temp", "median_temp"), "temperature_c", **_HEAT),
    _number("power", "median board power", ("pwr", "median_pwr"), "power_w", **_WATTS),
    Meaning("input_size", "text", "condition: size of the input", ("input_size",)),
    Meaning("reps", "text", "condition: repeats, or the number of the run", ("reps",), pattern=_COUNT),
    Meaning("run", "text", "condition: number of the run", ("run",), pattern=_COUNT),
    Meaning(
        "warmup", "text", "condition: whether it was a warm-up run", ("warmup",), pattern="^(?i:true|false|yes|no|0|1)$"
    ),
    Meaning("kernel", "text", "condition: name of the kernel", ("kern",), pattern="^[A-Za-z_(<]"),
    Meaning("kernels", "text", "condition: number of kernels", ("num_kerns",), pattern=_COUNT),
)

CONDITIONS = ("input_size", "reps", "run", "warmup", "kernel", "kernels")

TELEMETRY_MEANINGS: tuple[Meaning, ...] = (
    Meaning("gpu", "identity", "the GPU: a UUID", ("uuid", "gpu_uuid")),
    Meaning("index", "identity", "the driver's index of the GPU", ("index", "gpu_index")),
    Meaning("model", "text", "product name", ("name", "gpu_name")),
    Meaning("serial", "text", "board serial number", ("serial", "gpu_serial")),
    Meaning("vbios", "text", "firmware version", ("vbios_version",)),
    Meaning("driver", "text", "driver version", ("driver_version",)),
    Meaning("pci_bus_id", "text", "PCI address", ("pci.bus_id", "gpu_bus_id")),
    Meaning("timestamp", "time stamp", "when the reading was taken", ("timestamp",), column="ts"),
    _number("power", "board power", ("power.draw",), "power_mw", **_MILLIWATTS),
    _number("power_instant", "instant power", ("power.draw.instant",), "power_instant_mw", **_MILLIWATTS),
    _number("power_average", "averaged power", ("power.draw.average",), "power_average_mw", **_MILLIWATTS),
    _number(
        "energy",
        "energy counter",
        ("total_energy_consumption",),
        "energy_mj",
        dimension="energy",
        unit="mJ",
        low=0.0,
        high=EXACT,
    ),
    _number("sm_clock", "SM clock", ("clocks.current.sm", "clocks.sm"), "sm_clock_mhz", **_NOW_CLOCK),
    _number("mem_clock", "memory clock", ("clocks.current.memory", "clocks.mem"), "mem_clock_mhz", **_NOW_CLOCK),
    _number("temperature", "temperature", ("temperature.gpu",), "temperature_c", **_NOW_HEAT),
    _number("memory_temperature", "memory temperature", ("temperature.memory",), "memory_temperature_c", **_NOW_HEAT),
    _number("utilization", "busy share", ("utilization.gpu",), "utilization", **_SHARE),
    _number("memory_utilization", "memory traffic share", ("utilization.memory",), "memory_utilization", **_SHARE),
    _number(
        "memory_used",
        "memory in use",
        ("memory.used",),
        "memory_used",
        dimension="memory",
        unit="B",
        low=0.0,
        high=EXACT,
    ),
    _number(
        "power_limit",
        "enforced power limit",
        ("enforced.power.limit", "power.limit"),
        "power_limit_mw",
        **_MILLIWATTS,
    ),
    Meaning("pstate", "pstate", "performance state", ("pstate",), column="pstate", low=0.0, high=32.0),
    _number("fan_speed", "fan speed", ("fan.speed",), "fan_speed", **_SHARE | {"high": 200.0}),
    Meaning(
        "clock_event_reasons",
        "hex",
        "why the clock is where it is, a bit mask",
        ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
        column="clock_event_reasons",
        low=0.0,
        high=EXACT,
    ),
)

# What a value without a unit in its label is in, where the tool is known.
SMI_UNITS = {"power": "W", "energy": "mJ", "clock": "MHz", "temperature": "C", "share": "%", "memory": "MiB"}
SC22_UNITS = {"power": "W", "clock": "MHz", "temperature": "C"}

# Texts that stand for "unknown" (compared in lower case).
PLACEHOLDERS = frozenset(
    {"", "na", "n/a", "nan", "null", "none", "-", "err!", "not supported", "unknown error"}
    | {
        "[n/a]",
        "[not supported]",
        "[unknown error]",
        "[gpu is lost]",
        "[insufficient permissions]",
        "[not found]",
    }
)
