"""What a column of an imported file can mean: one row per meaning, with unit, limits and usual names; and the units of
measurement: their names, what they measure, and the factor between them.

A further meaning, or a further name for a known one, is one row here. Of telemetry, the metrics are rows of
`store/metrics.py`; what else a file of runs has of telemetry is a figure of the run, below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...errors import UnitError
from ..metrics import METRICS, Metric
from ..schema import GPUS
from ..vocabulary import EventKind, reason_bit

# -- units ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: a value in it, times `factor` plus `offset`, is a value in the dimension's first unit."""

    name: str
    dimension: str
    factor: float
    offset: float = 0.0

    def to(self, other: Unit) -> tuple[float, float]:
        """(factor, offset) that turn a value in this unit into one in `other`.

        The factor is rounded to 15 digits, so that s -> ms is 1000 and not 999.9999999999999.
        """
        if self.name == other.name:
            return 1.0, 0.0
        factor = float(f"{self.factor / other.factor:.15g}")
        return factor, (self.offset - other.offset) / other.factor


DIFFERENCE = "temperature difference"
_BINARY = {"KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
_DECIMAL = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
# dimension -> unit -> factor to the dimension's first unit
_FACTORS: dict[str, dict[str, float]] = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "clock": {"MHz": 1.0, "Hz": 1e-6, "kHz": 1e-3, "GHz": 1e3},
    "power": {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "energy": {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6},
    "temperature": {"C": 1.0, "K": 1.0},
    DIFFERENCE: {"C": 1.0, "K": 1.0},
    "share": {"%": 1.0, "ratio": 100.0, "ppm": 1e-4},
    "memory": {"B": 1.0} | _DECIMAL | _BINARY,
    "rate": {f"{name}/s": factor for name, factor in ({"B": 1.0} | _DECIMAL | {"TB": 1e12} | _BINARY).items()},
    "arithmetic": {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "operations": {"op/s": 1.0, "Mop/s": 1e6, "Gop/s": 1e9, "Top/s": 1e12},
}
_OFFSETS = {("temperature", "K"): -273.15}
_SYNONYMS = {
    word: unit
    for unit, words in (
        ("s", "sec secs second seconds"), ("ms", "msec millisecond milliseconds"), ("us", "µs μs usec microseconds"),
        ("ns", "nsec nanosecond nanoseconds"), ("W", "watt watts"), ("mW", "milliwatt milliwatts"),
        ("C", "degc °c celsius"), ("K", "kelvin"), ("%", "percent pct"), ("B", "bytes"), ("J", "joule joules"),
    )
    for word in words.split()
}  # fmt: skip

UNITS: dict[str, dict[str, Unit]] = {
    dimension: {
        name: Unit(name, dimension, factor, _OFFSETS.get((dimension, name), 0.0)) for name, factor in units.items()
    }
    for dimension, units in _FACTORS.items()
}


def find(text: str, dimension: str) -> Unit | None:
    """The unit of this dimension that `text` names, or None.

    The exact spelling comes first; otherwise capitals do not count, as in `freq_mhz`. (`MW` is no unit of a
    GPU's power, and is not read as milliwatts.)
    """
    units = UNITS[dimension]
    name = text.strip()
    name = name if name in units else _SYNONYMS.get(name.lower(), name)
    if name in units:
        return units[name]
    if name.isupper() and dimension in ("power", "energy"):
        return None
    matches = [unit for unit in units.values() if unit.name.lower() == name.lower()]
    return matches[0] if len(matches) == 1 else None


def unit_named(text: str, dimension: str, where: str) -> Unit:
    """The unit of this dimension that `text` names. Raises UnitError, which begins with `where`."""
    unit = find(text, dimension)
    if unit is None:
        known = ", ".join(UNITS[dimension])
        raise UnitError(f"{where}: {text!r} is not a unit of {dimension} that whorl knows ({known})")
    return unit


_BRACKET = re.compile(r"^(.*?)\s*[\[(]\s*([^\[\]()]+?)\s*[\])]\s*$")


def split_label(name: str) -> tuple[str, str]:
    """A column's name and the unit in brackets behind it: `power.draw [W]` -> (`power.draw`, `W`)."""
    match = _BRACKET.match(name.strip())
    return (match[1].strip(), match[2]) if match else (name.strip(), "")


# -- meanings -------------------------------------------------------------------------------------------------

METRIC_KINDS = ("number", "hex", "pstate", "flag")
EXACT = 2.0**53  # above it a float does not hold every integer


@dataclass(frozen=True, slots=True)
class Meaning:
    """A meaning: its name in `--map`, where it is stored, and which values are possible.

    `low` and `high` limit single values, in `unit`; a row outside is refused.
    """

    name: str
    kind: str  # number | hex | pstate | flag | limit | text | time stamp | identity
    description: str
    names: tuple[str, ...] = ()  # in lower case, as published files spell it
    dimension: str = ""
    unit: str = ""  # the unit stored; "" for a plain number
    column: str = ""  # the column of the store
    low: float = float("-inf")
    high: float = float("inf")


@dataclass
class Bound:
    """A column of a file bound to a meaning.

    `unit` is None while unknown; `source` says where the unit comes from.
    """

    meaning: Meaning
    column: str
    unit: Unit | None = None
    source: str = ""
    mapped: bool = False  # the user said so with an option: any text is a name, and limits of form do not count
    lenient: bool = False  # further telemetry or a limit that nobody mapped: it never costs a row or the file


_CLOCK = {"dimension": "clock", "unit": "MHz", "low": 1.0, "high": 10_000.0}
_HEAT = {"dimension": "temperature", "unit": "C", "low": -40.0, "high": 150.0}
_WATTS = {"dimension": "power", "unit": "W", "low": 0.0, "high": 5_000.0}


def _number(name: str, description: str, names: tuple[str, ...], column: str, **limits: object) -> Meaning:
    return Meaning(name, "number", description, names, column=column, **limits)  # type: ignore[arg-type]


def _in_words(names: str) -> tuple[str, ...]:
    """Names, each also with blanks instead of underscores."""
    return tuple(dict.fromkeys(name for word in names.split() for name in (word, word.replace("_", " "))))


_IDENTITY: tuple[Meaning, ...] = (
    Meaning("gpu", "identity", "the GPU: a UUID, or cabinet-node-device", ("uuid", "gpu_uuid", "gpu uuid")),
    Meaning("cabinet", "identity", "cabinet or rack", ("cabinet",)),
    Meaning("node", "identity", "host", ("node", "host", "hostname")),
    Meaning("slot", "identity", "position of the GPU in its node", ("device", "slot")),
)

# Limits of metrics by their unit, and of the metrics that differ from others of their unit.
_BY_UNIT: dict[str, dict[str, object]] = {
    "mW": {"dimension": "power", "unit": "mW", "low": 0.0, "high": 5e6},
    "mJ": {"dimension": "energy", "unit": "mJ", "low": 0.0, "high": EXACT},
    "MHz": _CLOCK | {"low": 0.0},  # a parked GPU shows 0
    "degC": _HEAT,
    "%": {"dimension": "share", "unit": "%", "low": 0.0, "high": 100.0},
    "ppm": {"dimension": "share", "unit": "ppm", "low": 0.0, "high": 1.1e6},  # DCGM's ratios reach a little above 1
    "ns": {"dimension": "time", "unit": "ns", "low": 0.0, "high": EXACT},
    "B/s": {"dimension": "rate", "unit": "B/s", "low": 0.0, "high": 1e14},
    "B": {"dimension": "memory", "unit": "B", "low": 0.0, "high": EXACT},
    "": {"low": 0.0, "high": EXACT},
}
_UNLIKE: dict[str, dict[str, object]] = {
    "fan_speed": {"high": 200.0},
    "pstate": {"kind": "pstate", "high": 32.0},
    "row_remap_failed": {"kind": "flag", "names": ("remapped_rows.failure",)},
    "memory_used": {"high": 2.0**41},  # 2 TiB: bytes taken for MiB are more
    "memory_free": {"high": 2.0**41},
}


def _named(column: str) -> str:
    """A column without its unit."""
    return re.sub("_(mw|mj|mhz|c|ns|ppm)$", "", column)


def _of_metric(metric: Metric) -> Meaning:
    names = (*metric.smi, *(name.removesuffix(".active") for name in metric.smi if name.endswith(".active")))
    usual: dict[str, object] = {"kind": "hex" if metric.kind == "mask" else "number", "names": names}
    limits = usual | _BY_UNIT[metric.unit] | _UNLIKE.get(metric.name, {})
    return Meaning(_named(metric.name), description=metric.description, column=metric.name, **limits)  # type: ignore[arg-type]


_BOARD: tuple[Meaning, ...] = (
    Meaning("serial", "text", "board serial number", ("serial", "gpu_serial")),
    Meaning("vbios", "text", "firmware version", ("vbios_version",)),
    Meaning("driver", "text", "driver version", ("driver_version",)),
    Meaning("pci_bus_id", "text", "PCI address", ("pci.bus_id", "gpu_bus_id")),
    Meaning("mig_profile", "text", "profile of a MIG instance"),
)
BOARD = ("model", *(meaning.name for meaning in _BOARD))
"""What a file may say of a GPU besides its place: columns of `gpus`."""

LIMITS: dict[str, tuple[str, ...]] = {
    "power_limit_default_mw": ("power.default_limit",), "power_limit_min_mw": ("power.min_limit",),
    "power_limit_max_mw": ("power.max_limit",), "sm_clock_max_mhz": ("clocks.max.sm",),
    "mem_clock_max_mhz": ("clocks.max.memory", "clocks.max.mem"), "temperature_max_operating_c": (),
    "temperature_slowdown_c": (), "temperature_shutdown_c": (), "memory_total": ("memory.total",),
}  # fmt: skip
"""What a GPU may do at most: columns of `gpus`, and what nvidia-smi --query-gpu calls them."""

# A published `device` is a place; `dev_id` is not: in the files that have it, it is 0 on every row.
RUN_MEANINGS: tuple[Meaning, ...] = (
    *_IDENTITY,
    Meaning("index", "identity", "the number of the GPU on its node, as the tool counts"),
    Meaning("workload", "text", "what ran", ("exp", "model", "app", "application", "benchmark", "workload")),
    _number("time", "duration of the run", ("perf", "med_iter_dur"), "value", dimension="time", unit="ms", low=0.0),
    Meaning("job", "text", "batch job", ("job_id", "jobid"), column="job_id"),
    Meaning("began", "time stamp", "when the run began", ("ts", "timestamp"), column="began"),
    _number("sm_clock", "median SM clock", ("freq", "median_freq", "sm_clock"), "sm_clock_mhz", **_CLOCK),
    _number("mem_clock", "median memory clock", ("memfreq", "median_memfreq"), "mem_clock_mhz", **_CLOCK),
    _number("temperature", "median temperature", ("temp", "median_temp"), "temperature_c", **_HEAT),
    _number("power", "median board power", ("pwr", "median_pwr"), "power_w", **_WATTS),
    Meaning("input_size", "text", "condition: size of the input", ("input_size",)),
    Meaning("reps", "text", "condition: repeats, or the number of the run", ("reps",)),
    Meaning("run", "text", "condition: number of the run", ("run",)),
    Meaning("warmup", "text", "condition: whether it was a warm-up run", ("warmup",)),
    Meaning("kernel", "text", "condition: name of the kernel", ("kern",)),
    Meaning("kernels", "text", "condition: number of kernels", ("num_kerns",)),
    _number("power_limit", "condition: power limit that was set", (), "asked_power_limit_w", **_WATTS),
    _number("locked_clock", "condition: SM clock that was locked", (), "locked_clock_mhz", **_CLOCK),
    Meaning("path", "text", "condition: where its bytes go"),
    Meaning("precision", "text", "condition: arithmetic of the work"),
    _number("flop", "condition: FLOP of one repetition", (), "flop", low=0.0),
    _number("bytes", "condition: bytes of one repetition", (), "bytes", low=0.0),
    _number("repeat", "which repeat of the run, from 0", (), "repeat", low=0.0, high=2**31 - 1),
    Meaning("status", "text", "how it came out, a code of `runs.status`"),
    Meaning("status_detail", "text", "the same in a sentence"),
    # In published files, `model` is the workload.
    Meaning("model", "text", "product name of the GPU", ("gpu_name", "gpu_model")),
    *_BOARD,
)

CONDITIONS = ("input_size", "reps", "run", "warmup", "kernel", "kernels", "power_limit", "locked_clock", "path",
              "precision", "flop", "bytes")  # fmt: skip

# Meanings of runs that a column may have also in files of other layouts, and names that only those have: such a column
# never costs a row.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "power": ("power",),
    "temperature": ("temperature",),
    "sm_clock": (),
    "mem_clock": ("mem_clock",),
    "power_limit": ("power_limit", "power_cap", "enforced.power.limit", "power.limit"),
    "locked_clock": ("locked_clock",),
}

TELEMETRY_MEANINGS: tuple[Meaning, ...] = (
    Meaning("gpu", "identity", "the GPU: a UUID", ("uuid", "gpu_uuid")),
    Meaning("index", "identity", "the driver's index of the GPU", ("index", "gpu_index")),
    Meaning("node", "identity", "host", ("node", "host", "hostname")),
    Meaning("model", "text", "product name", ("name", "gpu_name")),
    *_BOARD,
    Meaning("timestamp", "time stamp", "when the reading was taken", ("timestamp",), column="ts"),
    *(_of_metric(metric) for metric in METRICS if metric.unit in _BY_UNIT),  # no tool prints a sensor's window or age
    *(
        Meaning(_named(c.name), "limit", c.description, LIMITS[c.name], column=c.name, **_BY_UNIT[c.unit])  # type: ignore[arg-type]
        for c in GPUS.columns
        if c.name in LIMITS
    ),
    Meaning("instance", "identity", "a MIG instance of the row's GPU, as the tool names it"),
)


def of_field(number: int) -> tuple[Meaning, str] | None:
    """What a field of DCGM means, and the unit in which DCGM prints it ("" for a plain number).

    None if it is not stored, or printed in no unit that has a name.
    """
    metric = next((metric for metric in METRICS if metric.dcgm is not None and metric.dcgm.id == number), None)
    if metric is None or metric.dcgm is None:
        return None
    meaning = next(meaning for meaning in TELEMETRY_MEANINGS if meaning.column == metric.name)
    if not meaning.dimension:
        return meaning, ""
    units = UNITS[meaning.dimension]
    fitting = [unit.name for unit in units.values() if unit.to(units[meaning.unit])[0] == metric.dcgm.scale]
    return (meaning, fitting[0]) if fitting else None


def labelled(meaning: Meaning, unit: str) -> str:
    """The name of a column of this meaning in a format's rows."""
    return f"{meaning.name} [{unit}]" if unit else meaning.name


# An allocation of a GPU to a job: a row of the table `jobs`.
_LISTED_GPUS = "the GPU or GPUs: UUIDs, names that the store knows, or numbers on the node"
_PART = "part of the GPU that it had: 1, or 100 %, is all"
_SHARE: dict[str, object] = {"dimension": "share", "unit": "ratio", "low": 1e-6, "high": 1.0}
JOB_MEANINGS: tuple[Meaning, ...] = (
    Meaning("job", "text", "batch job", ("job_id", "jobid", "job"), column="job_id"),
    Meaning("raw_id", "text", "the number that the job itself sees", ("raw_id", "jobidraw"), column="raw_id"),
    Meaning("gpu", "identity", _LISTED_GPUS, ("uuid", "gpu_uuid", "gpu", "gpus", "gpu_uuids")),
    Meaning("index", "identity", "number of the GPU on its node", ("index", "gpu_index", "gpu_id", "gpu_ids")),
    Meaning("node", "text", "host", ("node", "host", "hostname"), column="node"),
    Meaning("began", "time stamp", "when the job began", ("began", "start", "start_time"), column="began"),
    Meaning("ended", "time stamp", "when the job ended; empty: it runs", ("ended", "end", "end_time"), column="ended"),
    Meaning("submitted", "time stamp", "when it was submitted", ("submitted", "submit_time"), column="submitted"),
    Meaning("user", "text", "who", ("user", "user_name"), column="user"),
    Meaning("account", "text", "the account that pays", ("account", "project"), column="account"),
    Meaning("partition", "text", "partition or queue", ("partition", "queue"), column="partition"),
    Meaning("state", "text", "the scheduler's state", ("state", "job_state"), column="state"),
    _number("share", _PART, ("share", "gpu_share"), "share", **_SHARE),
)

# An operation of a rank of a training job: a row of the table `operations`.
_INDEX: dict[str, object] = {"low": 0.0, "high": 1e9}
_SECONDS: dict[str, object] = {"dimension": "time", "unit": "s"}
TIMELINE_MEANINGS: tuple[Meaning, ...] = (
    _number("rank", "number of the rank", ("rank", "global_rank"), "rank", **_INDEX),
    _number("step", "number of the training step", ("step", "iteration", "iter"), "step", **_INDEX),
    Meaning("optype", "text", "what the operation is", ("optype", "op_type"), column="optype"),
    _number("time", "duration of the operation", ("duration",), "duration_s", **_SECONDS, low=0.0, high=1e6),
    _number("start", "when it began, by the file's clock", ("start_ts", "start"), "began_s", **_SECONDS),
    _number("stage", "stage of the pipeline", ("stage", "pp_rank"), "stage", **_INDEX),
    _number("dp_rank", "place in data parallelism", ("dp_rank",), "dp_rank", **_INDEX),
    _number("microbatch", "number of the microbatch", ("mb_id", "microbatch"), "microbatch", **_INDEX),
    _number("model_chunk", "part of the model that the rank has", ("mc", "model_chunk"), "model_chunk", **_INDEX),
)

# A reading of a meter of a node: a row of the table `node_power`.
_POWER_NAMES = "power watts kilowatts kw mw w active_power real_power node_power power_consumption"
_ENERGY_NAMES = "energy kwh wh joules active_energy node_energy"
NODE_MEANINGS: tuple[Meaning, ...] = (
    Meaning("node", "text", "host", ("node", "host", "hostname", "server")),
    Meaning("timestamp", "time stamp", "when it was read", ("timestamp", "time", "ts", "datetime", "date")),
    _number("node_power", "power of the node", _in_words(_POWER_NAMES), "power_mw", **_BY_UNIT["mW"] | {"high": 1e9}),
    _number("node_energy", "counter of the node's energy", _in_words(_ENERGY_NAMES), "energy_mj", **_BY_UNIT["mJ"]),
    Meaning("part", "text", "which outlet or power supply", ("part", "outlet", "psu", "power_supply", "feed")),
    Meaning("source", "text", "what measured it, a code of `node_power.source`", ("source",)),
    Meaning("covers", "text", "what it is the power of, a code of `node_power.covers`", ("covers",)),
)

# Texts that stand for "unknown" (compared in lower case). nvidia-smi writes in brackets why it has no value.
_WHY = (
    "n/a", "not supported", "unknown error", "insufficient permissions", "not found", "function not found", "no data",
    "requested functionality has been deprecated", "deprecated", "timeout", "err!",
    "gpu access blocked by the operating system", "in use by another client",
)  # fmt: skip
LOST_MARKS = {"gpu is lost": EventKind.LOST, "gpu requires reset": EventKind.NEEDS_RESET}
"""What nvidia-smi writes in each field of a GPU that does not answer, with or without brackets: what happened to it."""
NO_ANSWER = frozenset({"err!", "[err!]", "unknown error", "[unknown error]"})
"""What it writes where a call of the driver failed: of one field the sensor, of all fields of a row the GPU."""
PLACEHOLDERS = frozenset(
    {"", "na", "n/a", "nan", "null", "none", "-", "err!", "not supported", "unknown error"}
    | {"unknown", "#n/a"}  # of Slurm, which says so of the end of a job that runs, and of spreadsheets
    | {f"[{why}]" for why in (*_WHY, *LOST_MARKS)}
    | set(LOST_MARKS)
)


REASON_BITS = {  # "throttle" until driver 530
    name: reason_bit(reason)
    for name, reason in {
        "gpu_idle": "idle", "idle": "idle", "applications_clocks_setting": "applications_clocks",
        "user_defined_clocks": "applications_clocks",  # until driver 352
        "sw_power_cap": "power_cap", "hw_slowdown": "hw_slowdown", "sync_boost": "sync_boost",
        "sw_thermal_slowdown": "thermal_software", "hw_thermal_slowdown": "thermal_hardware",
        "hw_power_brake_slowdown": "power_brake", "display_clocks_setting": "display_clocks",
        "display_clock_setting": "display_clocks",
    }.items()
}  # fmt: skip
"""What nvidia-smi calls the single reasons for a clock, in columns, elements and titles: their bits."""


# -- figures of runs ------------------------------------------------------------------------------------------

# Telemetry of a run besides the medians that `runs` has columns for: a column for each statistic of each metric, known
# by the words of its name in any order, is a figure in `results`: `power_max`, `sm_clock_mean`, `temperature_p95`. A
# further word for a metric or a statistic is added here, and a further metric is one row.
_STATISTICS = {
    "mean": ("mean", "avg", "average"),
    "max": ("max", "maximum", "peak"),
    "min": ("min", "minimum"),
    "median": ("median", "med", "p50"),
    "sd": ("std", "stdev", "stddev", "sd"),
}
_SAID = {"mean": "mean", "max": "highest", "min": "lowest", "median": "median", "sd": "standard deviation of the"}
_WORDS = {word: statistic for statistic, words in _STATISTICS.items() for word in words}
_PERCENTILE = r"(?:p|percentile_?)0?([1-9][0-9]?)|([1-9][0-9]?)th(?:_?(?:percentile|pctl?))?"
_BETWEEN = re.compile(rf"(?:^|_)(?:({'|'.join(_WORDS)})|{_PERCENTILE})(?=_|$)")
_AT_AN_END = re.compile(rf"^({'|'.join(_WORDS)})(?=.)|(?<=.)({'|'.join(_WORDS)})$")
_CEILING = "clocks.max."  # of nvidia-smi: what the clock may be at most, not what it was


_FIGURES = tuple(  # what is measured; the words of a column's name without the statistic, written as one
    Meaning(name, "number", description, tuple(words.split()), dimension, unit, low=low, high=high)
    for name, description, dimension, unit, low, high, words in (
        ("power", "board power", "power", "W", 0.0, 5e3,
         "power pwr powerdraw gpupower gpupwr powergpu boardpower powerusage watts"),
        ("sm_clock", "SM clock", "clock", "MHz", 0.0, 1e4,
         "smclock smclk smfreq smfrequency clocksm clockssm clockscurrentsm clock clk freq frequency gpuclock "
         "gpuclk gpufreq gpufrequency coreclock corefreq clockcore graphicsclock sclk"),
        ("mem_clock", "memory clock", "clock", "MHz", 0.0, 1e4,
         "memclock memclk memfreq memfrequency memoryclock memoryclk memoryfreq memoryfrequency clocksmem "
         "clocksmemory clockscurrentmemory clockmem mclk"),
        ("temperature", "GPU temperature", "temperature", "C", -40.0, 150.0,
         "temperature temp gputemperature gputemp temperaturegpu tempgpu coretemp coretemperature"),
        ("memory_temperature", "memory temperature", "temperature", "C", -40.0, 150.0,
         "memorytemperature memorytemp memtemperature memtemp temperaturememory temperaturemem hbmtemp "
         "hbmtemperature"),
        ("utilization", "GPU utilization", "share", "%", 0.0, 100.0,
         "utilization utilisation util gpuutilization gpuutilisation gpuutil utilizationgpu smutil"),
        ("memory_utilization", "memory utilization", "share", "%", 0.0, 100.0,
         "memoryutilization memoryutil memutilization memutil utilizationmemory"),
        ("memory_used", "memory used", "memory", "B", 0.0, EXACT,
         "memoryused memused usedmemory memoryusage memusage"),
        ("fan_speed", "fan speed", "share", "%", 0.0, 200.0, "fanspeed fan"),
        ("energy_total", "energy of the whole run", "energy", "J", 0.0, 1e12,
         "energy totalenergy energytotal gpuenergy energyconsumed energyconsumption"),
        ("rate", "floating-point operations per second", "arithmetic", "GFLOP/s", 0.0, 1e9, "flops"),
        ("operation_rate", "operations per second", "operations", "Gop/s", 0.0, 1e9, ""),
        ("bandwidth", "bytes per second", "rate", "GB/s", 0.0, 1e6, "bandwidth"),
        ("latency", "latency", "time", "ns", 0.0, 1e15, ""),
        ("wrong_elements", "wrong elements of the result", "", "", 0.0, EXACT, ""),
    )
)  # fmt: skip
_BY_NAME = {figure.name: figure for figure in _FIGURES}
_BY_WORDS = {word: metric.name for metric in _FIGURES for word in metric.names}
_STORED = {"C": "degC"}  # as the tables write a unit

_OWN_COLUMN = {"power", "sm_clock", "mem_clock", "temperature"}  # without a statistic they are the medians in `runs`

FIGURE_EXAMPLE = "power_max, sm_clock_mean or temperature_p95"


def figure_named(name: str) -> Meaning | None:
    """The figure called `name`: a metric, or a metric and a statistic, such as `power_max` and `sm_clock_p95`."""
    metric, _, statistic = (name, "", "") if name in _BY_NAME else name.rpartition("_")
    is_statistic = not statistic or statistic in _STATISTICS or re.fullmatch("p[1-9][0-9]?", statistic)
    return _figure(metric, statistic) if is_statistic else None


def figure_of_column(name: str) -> Meaning | None:
    """The figure that a column holds by its name, without the unit in brackets or behind an underscore."""
    base = split_label(name)[0]
    if base.lower().startswith(_CEILING):
        return None
    figure = _of_words(base)
    before, _, last = base.rpartition("_")
    if figure is None and before and (short := _of_words(before)) is not None:
        return short if find(last, short.dimension) is not None else None
    return figure


def figure_unit(meaning: Meaning) -> str:
    """The unit of a figure as `results` has it."""
    return _STORED.get(meaning.unit, meaning.unit)


def _of_words(base: str) -> Meaning | None:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base)  # maxPower
    text = re.sub("[^a-z0-9]+", "_", apart.lower()).strip("_")
    match = _BETWEEN.search(text)
    if match is not None:
        word, *percentile = match.groups()
        number = next(filter(None, percentile), None)
        statistic = _WORDS[word] if word else "median" if number == "50" else f"p{number}"
    else:
        text = text.replace("_", "")
        match = None if text in _BY_WORDS else _AT_AN_END.search(text)  # maxpower
        statistic = "" if match is None else _WORDS[match[1] or match[2]]
    words = text if match is None else text[: match.start()] + text[match.end() :]
    return _figure(_BY_WORDS.get(words.replace("_", ""), ""), statistic)


def _figure(metric_name: str, statistic: str) -> Meaning | None:
    metric = _BY_NAME.get(metric_name)
    if metric is None or (not statistic and metric_name in _OWN_COLUMN):
        return None
    if not statistic:
        return replace(metric, names=())
    phrase = _SAID.get(statistic, f"percentile {statistic[1:]} of the")
    figure = replace(metric, name=f"{metric.name}_{statistic}", description=f"{phrase} {metric.description}", names=())
    if statistic != "sd":
        return figure
    return replace(figure, low=0.0, dimension=metric.dimension.replace("temperature", DIFFERENCE))
