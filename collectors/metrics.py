"""Every metric that is read from a GPU, written once: how it is stored, and how each interface spells it.

A metric is one row of `METRICS`. The column, its type and its meaning stand in `store/schema.py`; here stand where
the number comes from, by what it is multiplied, and how often it is worth reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ALL_LINKS = 0xFFFFFFFF  # NVML's scope for "all NVLinks together"


@dataclass(frozen=True, slots=True)
class Field:
    """Field values of NVML, read with all others of a GPU in one driver call. Several are added up.

    `scopes` are tried in turn until one is answered: some parts know a metric only for the whole module. `call` is
    what gives the same where the driver does not know the field.
    """

    ids: tuple[int, ...]
    scopes: tuple[int, ...] = (0,)
    call: Call | None = None


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


@dataclass(frozen=True, slots=True)
class Stamp:
    """The age of the field value `id`, by the driver's own time stamp, in us."""

    id: int


@dataclass(frozen=True, slots=True)
class Part:
    """A constant of the part that the driver does not tell, from its architecture."""

    name: Literal["power_window"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of `telemetry` that a GPU's driver gives.

    gauge: a momentary value; counter: grows, and a fall means that it began anew; mask: bits. Where `wraps` is set,
    a counter may begin anew by itself. The value `absent` stands for none. What is read is multiplied by `scale` to
    give `unit`. The fast tier is read at every tick, the slow one every few seconds.
    """

    column: str
    unit: str
    kind: Literal["gauge", "counter", "mask"]
    nvml: Field | Call | Stamp | Part | None
    dcgm: int | None = None  # field number: stable over DCGM's versions, unlike its names
    prometheus: str = ""  # as dcgm-exporter names it
    scale: int = 1
    tier: Literal["fast", "slow"] = "slow"
    wraps: bool = False
    absent: int | None = None  # the driver's number for "unknown"


POWER_INSTANT = 186  # NVML's field of instantaneous power; its time stamp gives power_age_us
_SM, _MEMORY = 1, 2  # NVML's clock domains
_VOLATILE = 0  # ECC errors since the driver was loaded
_TEMPERATURE_V1, _MEMORY_V2 = 0x100000C, 0x2000028  # versions: size in the low bytes, number in the highest


def _violation(policy: int) -> Call:
    """Time held down by a policy, ns: the second word of nvmlViolationTime_t."""
    return Call("nvmlDeviceGetViolationStatus", (policy,), type="u8", offset=8)


_ROWS: tuple[Metric, ...] = (
    Metric("power_mw", "mW", "gauge", Call("nvmlDeviceGetPowerUsage"), 155, "DCGM_FI_DEV_POWER_USAGE", tier="fast"),
    Metric(
        "power_instant_mw",
        "mW",
        "gauge",
        Field((POWER_INSTANT,), scopes=(0, 1)),
        157,
        "DCGM_FI_DEV_POWER_USAGE_INSTANT",
        tier="fast",
    ),
    Metric("power_average_mw", "mW", "gauge", Field((185,)), tier="fast"),
    Metric("power_window_ms", "ms", "gauge", Part("power_window"), tier="fast"),
    Metric("power_age_us", "us", "gauge", Stamp(POWER_INSTANT), tier="fast"),
    Metric(
        "energy_mj",
        "mJ",
        "counter",
        Field((83,), call=Call("nvmlDeviceGetTotalEnergyConsumption", type="u8")),
        156,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        tier="fast",
    ),
    Metric(
        "sm_clock_mhz",
        "MHz",
        "gauge",
        Call("nvmlDeviceGetClockInfo", (_SM,)),
        100,
        "DCGM_FI_DEV_SM_CLOCK",
        tier="fast",
    ),
    Metric(
        "mem_clock_mhz",
        "MHz",
        "gauge",
        Call("nvmlDeviceGetClockInfo", (_MEMORY,)),
        101,
        "DCGM_FI_DEV_MEM_CLOCK",
        tier="fast",
    ),
    Metric(
        "temperature_c",
        "degC",
        "gauge",
        Call(
            "nvmlDeviceGetTemperatureV",
            type="i4",
            offset=8,
            preset=(_TEMPERATURE_V1, 0),
            older=Call("nvmlDeviceGetTemperature", (0,)),
        ),
        150,
        "DCGM_FI_DEV_GPU_TEMP",
        tier="fast",
    ),
    Metric("memory_temperature_c", "degC", "gauge", Field((82,)), 140, "DCGM_FI_DEV_MEMORY_TEMP", tier="fast"),
    Metric(
        "utilization", "%", "gauge", Call("nvmlDeviceGetUtilizationRates"), 203, "DCGM_FI_DEV_GPU_UTIL", tier="fast"
    ),
    Metric(
        "memory_utilization",
        "%",
        "gauge",
        Call("nvmlDeviceGetUtilizationRates", offset=4),
        204,
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        tier="fast",
    ),
    Metric(
        "clock_event_reasons",
        "",
        "mask",
        Call(
            "nvmlDeviceGetCurrentClocksEventReasons",
            type="u8",
            older=Call("nvmlDeviceGetCurrentClocksThrottleReasons", type="u8"),
        ),
        112,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        tier="fast",
    ),
    Metric(
        "power_violation_ns",
        "ns",
        "counter",
        Field((74,), call=_violation(0)),
        240,
        "DCGM_FI_DEV_POWER_VIOLATION",
        tier="fast",
    ),
    Metric(
        "thermal_violation_ns",
        "ns",
        "counter",
        Field((75,), call=_violation(1)),
        241,
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        tier="fast",
    ),
    Metric("power_brake_ns", "ns", "counter", Field((271,)), 1424, tier="fast"),
    Metric(
        "sync_boost_violation_ns",
        "ns",
        "counter",
        Field((76,), call=_violation(2)),
        242,
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    ),
    Metric(
        "board_limit_violation_ns",
        "ns",
        "counter",
        Field((77,), call=_violation(3)),
        243,
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    ),
    Metric(
        "reliability_violation_ns",
        "ns",
        "counter",
        Field((79,), call=_violation(5)),
        245,
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    ),
    Metric("software_thermal_ns", "ns", "counter", Field((269,)), 1422),
    Metric("hardware_thermal_ns", "ns", "counter", Field((270,)), 1423),
    Metric(
        "memory_used",
        "B",
        "gauge",
        Call(
            "nvmlDeviceGetMemoryInfo_v2",
            type="u8",
            offset=32,
            preset=(_MEMORY_V2,),
            older=Call("nvmlDeviceGetMemoryInfo", type="u8", offset=16),  # counts what the driver reserves as well
            instances=True,
        ),
    ),
    Metric("power_limit_mw", "mW", "gauge", Call("nvmlDeviceGetEnforcedPowerLimit"), 164),
    Metric("pstate", "", "gauge", Call("nvmlDeviceGetPerformanceState"), 190, "DCGM_FI_DEV_PSTATE", absent=32),
    Metric("fan_speed", "%", "gauge", Call("nvmlDeviceGetFanSpeed"), 191, "DCGM_FI_DEV_FAN_SPEED"),
    Metric("pcie_tx_bytes", "B", "counter", Field((197,)), wraps=True),
    Metric("pcie_rx_bytes", "B", "counter", Field((198,)), wraps=True),
    Metric("nvlink_tx_bytes", "B", "counter", Field((138,), scopes=(ALL_LINKS,)), scale=1024),  # driver: KiB
    Metric("nvlink_rx_bytes", "B", "counter", Field((139,), scopes=(ALL_LINKS,)), scale=1024),
    Metric(
        "pcie_replays",
        "",
        "counter",
        Field((94,), call=Call("nvmlDeviceGetPcieReplayCounter")),
        202,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    ),
    Metric(
        "ecc_corrected",
        "",
        "counter",
        Field((3,), call=Call("nvmlDeviceGetTotalEccErrors", (0, _VOLATILE), type="u8")),
        310,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    ),
    Metric(
        "ecc_uncorrected",
        "",
        "counter",
        Field((4,), call=Call("nvmlDeviceGetTotalEccErrors", (1, _VOLATILE), type="u8")),
        311,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    Metric("remapped_rows", "", "counter", Field((142, 143))),
)

METRICS = tuple(sorted(_ROWS, key=lambda metric: metric.tier))  # the fast tier first
ROW = {metric.column: row for row, metric in enumerate(METRICS)}  # column -> its row in METRICS and in a sweep
