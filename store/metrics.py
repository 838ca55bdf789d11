"""Every metric of a GPU, written once: its column of `telemetry`, and its name in each interface.

A metric is one row of `METRICS` and stands nowhere else. From the row follow the column, what a minute keeps of it
(`store/schema.py`), docs/tables.md, the import of an nvidia-smi column (`store/importing/meanings.py`) and how it is
read (`collectors/`). A simulated GPU has the metric if `simulation/stepping.py` gives a value of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

ALL_LINKS = 0xFFFFFFFF  # NVML's scope for "all NVLinks together"


@dataclass(frozen=True, slots=True)
class Field:
    """Field values of NVML, read with all others of a GPU in one driver call. Several are added up.

    `scopes` are tried in turn until one is answered: some parts know a metric only for the whole module. `call` gives
    the same value if the driver does not know the field.
    """

    ids: tuple[int, ...]
    scopes: tuple[int, ...] = (0,)
    call: Call | None = None

    def __str__(self) -> str:
        return f"field{'s' * (len(self.ids) > 1)} {' + '.join(map(str, self.ids))}"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of NVML that fills a structure: `function(device, *arguments, &structure)`.

    The value lies at byte `offset` as `type` (numpy's name). `preset` is written into the structure's first words
    before every call: the version by which NVML tells its structures apart. `older` is asked where a driver or GPU does
    not support this one. MIG instances are asked only where `instances` says so.
    """

    function: str
    arguments: tuple[int, ...] = ()
    type: Literal["u4", "i4", "u8"] = "u4"
    offset: int = 0
    preset: tuple[int, ...] = ()
    older: Call | None = None
    instances: bool = False

    def __str__(self) -> str:
        return self.function


@dataclass(frozen=True, slots=True)
class Stamp:
    """The age of the field value `id`, by the driver's own time stamp, in us."""

    id: int

    def __str__(self) -> str:
        return f"time stamp of field {self.id}"


@dataclass(frozen=True, slots=True)
class Part:
    """A constant of the GPU that the driver does not give; it follows from the GPU's architecture."""

    name: Literal["power_window"]

    def __str__(self) -> str:
        return "by the GPU's architecture"


@dataclass(frozen=True, slots=True)
class Dcgm:
    """A field of DCGM, by number: numbers are stable over DCGM's versions, names are not.

    What DCGM gives, times `scale`, is the metric in its unit. dcgm-exporter prints the same numbers.
    """

    id: int
    scale: int = 1

    def __str__(self) -> str:
        return f"{self.id}" if self.scale == 1 else f"{self.id} x {self.scale}"


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of `telemetry` that a GPU's driver gives: its name, DuckDB type, unit ("" for none) and meaning.

    gauge: a momentary value; a minute keeps minimum, mean and maximum. counter: it grows, and a fall means that it
    began anew; a minute keeps the first and the last. mask: bits; a minute keeps every bit that was set. The fast tier
    is read at every tick, the slow one every few seconds. What NVML gives is multiplied by `scale` to give `unit`.
    """

    name: str
    type: Literal["INTEGER", "BIGINT"]
    unit: str
    kind: Literal["gauge", "counter", "mask"]
    tier: Literal["fast", "slow"]
    description: str
    nvml: Field | Call | Stamp | Part | None
    dcgm: Dcgm | None = None
    prometheus: tuple[str, ...] = ()  # dcgm-exporter's names, the newest first; dashboards know the last
    smi: tuple[str, ...] = ()  # as nvidia-smi names its columns, in lower case
    scale: int = 1
    wraps: bool = False  # a counter that may begin anew by itself
    absent: int | None = None  # the driver's number for "unknown"
    encoding: str = ""  # the encoding in Parquet, if measurements found one better than a dictionary


_POWER_INSTANT = 186  # its time stamp gives power_age_us
_SM, _MEMORY = 1, 2  # NVML's clock domains
_VOLATILE = 0  # ECC errors since the driver was loaded
_TEMPERATURE_V1, _MEMORY_V2 = 0x100000C, 0x2000028  # versions: size in the low bytes, number in the highest
_DELTA, _SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"


def _violation(policy: int) -> Call:
    """Time held down by a policy, ns: the second word of nvmlViolationTime_t."""
    return Call("nvmlDeviceGetViolationStatus", (policy,), type="u8", offset=8)


_TEMPERATURE = Call(
    "nvmlDeviceGetTemperatureV",
    type="i4",
    offset=8,
    preset=(_TEMPERATURE_V1, 0),
    older=Call("nvmlDeviceGetTemperature", (0,)),
)
_REASONS = Call(
    "nvmlDeviceGetCurrentClocksEventReasons",
    type="u8",
    older=Call("nvmlDeviceGetCurrentClocksThrottleReasons", type="u8"),
)
_USED = Call(
    "nvmlDeviceGetMemoryInfo_v2",
    type="u8",
    offset=32,
    preset=(_MEMORY_V2,),
    older=Call("nvmlDeviceGetMemoryInfo", type="u8", offset=16),  # counts what the driver reserves as well
    instances=True,
)

# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("power_mw", "INTEGER", "mW", "gauge", "fast", "board power as the driver reports it",
           Call("nvmlDeviceGetPowerUsage"), Dcgm(155, 1000),
           ("DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_POWER_USAGE"), ("power.draw",), encoding=_SPLIT),
    Metric("power_instant_mw", "INTEGER", "mW", "gauge", "fast", "board power, instantaneous reading",
           Field((_POWER_INSTANT,), scopes=(0, 1)), Dcgm(157, 1000),
           ("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS", "DCGM_FI_DEV_POWER_USAGE_INSTANT"), ("power.draw.instant",),
           encoding=_SPLIT),
    Metric("power_average_mw", "INTEGER", "mW", "gauge", "fast", "board power, the driver's moving average",
           Field((185,)), smi=("power.draw.average",), encoding=_SPLIT),
    Metric("power_window_ms", "INTEGER", "ms", "gauge", "fast",
           "time over which the sensor averages power_mw; NULL where unknown", Part("power_window")),
    Metric("power_age_us", "INTEGER", "us", "gauge", "fast",
           "age of the instantaneous power reading at ts, by the driver's time stamp", Stamp(_POWER_INSTANT)),
    Metric("energy_mj", "BIGINT", "mJ", "counter", "fast", "energy counter since the driver was loaded",
           Field((83,), call=Call("nvmlDeviceGetTotalEnergyConsumption", type="u8")), Dcgm(156),
           ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), ("total_energy_consumption",), encoding=_DELTA),
    Metric("sm_clock_mhz", "INTEGER", "MHz", "gauge", "fast", "SM clock",
           Call("nvmlDeviceGetClockInfo", (_SM,)), Dcgm(100), ("DCGM_FI_DEV_SM_CLOCK",),
           ("clocks.current.sm", "clocks.sm")),
    Metric("mem_clock_mhz", "INTEGER", "MHz", "gauge", "fast", "memory clock",
           Call("nvmlDeviceGetClockInfo", (_MEMORY,)), Dcgm(101), ("DCGM_FI_DEV_MEM_CLOCK",),
           ("clocks.current.memory", "clocks.mem")),
    Metric("temperature_c", "INTEGER", "degC", "gauge", "fast", "GPU temperature", _TEMPERATURE, Dcgm(150),
           ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP"), ("temperature.gpu",), encoding=_DELTA),
    Metric("memory_temperature_c", "INTEGER", "degC", "gauge", "fast", "memory temperature", Field((82,)), Dcgm(140),
           ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "DCGM_FI_DEV_MEMORY_TEMP"), ("temperature.memory",), encoding=_DELTA),
    Metric("utilization", "INTEGER", "%", "gauge", "fast", "share of the last sample period in which a kernel ran",
           Call("nvmlDeviceGetUtilizationRates"), Dcgm(203), ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL"),
           ("utilization.gpu",)),
    Metric("memory_utilization", "INTEGER", "%", "gauge", "fast", "share of the last sample period with memory traffic",
           Call("nvmlDeviceGetUtilizationRates", offset=4), Dcgm(204), ("DCGM_FI_DEV_MEM_COPY_UTIL",),
           ("utilization.memory",)),
    Metric("memory_used", "BIGINT", "B", "gauge", "slow", "device memory in use", _USED, Dcgm(252, 2**20),
           ("DCGM_FI_DEV_FB_USED",), ("memory.used",)),
    Metric("power_limit_mw", "INTEGER", "mW", "gauge", "slow", "enforced power limit",
           Call("nvmlDeviceGetEnforcedPowerLimit"), Dcgm(164, 1000),
           ("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
           ("enforced.power.limit", "power.limit")),
    Metric("pstate", "INTEGER", "", "gauge", "slow", "performance state, 0 is the fastest",
           Call("nvmlDeviceGetPerformanceState"), Dcgm(190), ("DCGM_FI_DEV_GPU_PSTATE", "DCGM_FI_DEV_PSTATE"),
           ("pstate",), absent=32),
    Metric("fan_speed", "INTEGER", "%", "gauge", "slow", "fan speed, share of its maximum",
           Call("nvmlDeviceGetFanSpeed"), Dcgm(191), ("DCGM_FI_DEV_FAN_SPEED",), ("fan.speed",), encoding=_DELTA),
    Metric("clock_event_reasons", "BIGINT", "", "mask", "fast", "why the clock has its value: the driver's bit mask",
           _REASONS, Dcgm(112), ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
           ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
    Metric("power_violation_ns", "BIGINT", "ns", "counter", "fast",
           "time the clock was held down by the power limit, a counter",
           Field((74,), call=_violation(0)), Dcgm(240), ("DCGM_FI_DEV_POWER_VIOLATION",), encoding=_DELTA),
    Metric("thermal_violation_ns", "BIGINT", "ns", "counter", "fast",
           "time the clock was held down by temperature, a counter",
           Field((75,), call=_violation(1)), Dcgm(241), ("DCGM_FI_DEV_THERMAL_VIOLATION",), encoding=_DELTA),
    Metric("sync_boost_violation_ns", "BIGINT", "ns", "counter", "slow",
           "time the clock was held down by synchronised boost with other GPUs, a counter",
           Field((76,), call=_violation(2)), Dcgm(242), ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION",), encoding=_DELTA),
    Metric("board_limit_violation_ns", "BIGINT", "ns", "counter", "slow",
           "time the clock was held down by a limit of the board, a counter",
           Field((77,), call=_violation(3)), Dcgm(243), ("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",), encoding=_DELTA),
    Metric("reliability_violation_ns", "BIGINT", "ns", "counter", "slow",
           "time the clock was held down for reliability (voltage), a counter",
           Field((79,), call=_violation(5)), Dcgm(245), ("DCGM_FI_DEV_RELIABILITY_VIOLATION",), encoding=_DELTA),
    Metric("software_thermal_ns", "BIGINT", "ns", "counter", "slow",
           "time the clock was held down by the driver because of temperature, a counter",
           Field((269,)), Dcgm(1422),
           ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",), encoding=_DELTA),
    Metric("hardware_thermal_ns", "BIGINT", "ns", "counter", "slow",
           "time the clock was held down by the hardware because of temperature, a counter",
           Field((270,)), Dcgm(1423),
           ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",), encoding=_DELTA),
    Metric("power_brake_ns", "BIGINT", "ns", "counter", "fast",
           "time the clock was held down by the external power brake, a counter", Field((271,)), Dcgm(1424),
           ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",), encoding=_DELTA),
    Metric("pcie_tx_bytes", "BIGINT", "B", "counter", "slow", "sent over PCIe, a counter that may wrap", Field((197,)),
           wraps=True, encoding=_DELTA),
    Metric("pcie_rx_bytes", "BIGINT", "B", "counter", "slow", "received over PCIe, a counter that may wrap",
           Field((198,)), wraps=True, encoding=_DELTA),
    Metric("nvlink_tx_bytes", "BIGINT", "B", "counter", "slow", "sent over all NVLinks, a counter",
           Field((138,), scopes=(ALL_LINKS,)), scale=1024, encoding=_DELTA),  # driver: KiB
    Metric("nvlink_rx_bytes", "BIGINT", "B", "counter", "slow", "received over all NVLinks, a counter",
           Field((139,), scopes=(ALL_LINKS,)), scale=1024, encoding=_DELTA),
    Metric("pcie_replays", "BIGINT", "", "counter", "slow", "PCIe packets sent again, a counter",
           Field((94,), call=Call("nvmlDeviceGetPcieReplayCounter")), Dcgm(202),
           ("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")),
    Metric("ecc_corrected", "BIGINT", "", "counter", "slow", "memory errors corrected since the driver was loaded",
           Field((3,), call=Call("nvmlDeviceGetTotalEccErrors", (0, _VOLATILE), type="u8")), Dcgm(310),
           ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",)),
    Metric("ecc_uncorrected", "BIGINT", "", "counter", "slow",
           "memory errors not corrected since the driver was loaded",
           Field((4,), call=Call("nvmlDeviceGetTotalEccErrors", (1, _VOLATILE), type="u8")), Dcgm(311),
           ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",)),
    Metric("remapped_rows", "BIGINT", "", "counter", "slow", "memory rows remapped in the GPU's life, both kinds",
           Field((142, 143))),
)
# fmt: on

ROW = {metric.name: row for row, metric in enumerate(METRICS)}  # name -> its row in METRICS and in a sweep

# -- the one rule for board power ---------------------------------------------------------------------------

BOARD_POWER = ("power_instant_mw", "power_mw")  # the instantaneous reading, else what the driver reports


def board_power_mw() -> pl.Expr:
    """Board power of rows of `telemetry`, mW, for Polars; SQL: coalesce(power_instant_mw, power_mw)."""
    import polars as pl

    return pl.coalesce(BOARD_POWER)


UNTRUSTED_POWER = ("power_stuck", "power_zero")  # marks of `telemetry.quality`: such power is no measurement


def power_is_trusted(quality: str = "quality") -> str:
    """SQL: whether the column `quality` has none of these marks."""
    return f"NOT regexp_matches(coalesce({quality}, ''), '{'|'.join(UNTRUSTED_POWER)}')"


def board_power_of(values: Mapping[str, float | NDArray[np.float64]]) -> NDArray[np.float64]:
    """The same of floats or numpy arrays by column, NaN where not known."""
    import numpy as np

    instant, reported = (values[column] for column in BOARD_POWER)
    return np.asarray(np.where(np.isnan(instant), reported, instant), np.float64)
