"""Every metric of a GPU, written once: its column of `telemetry`, and its name in each interface.

A metric is one row of `METRICS` and stands nowhere else. From the row follow the column, what a minute keeps of it
(`store/schema.py`), docs/tables.md, the import of an nvidia-smi column (`store/importing/meanings.py`) and how it is
read (`collectors/`). A simulated GPU has the metric if `simulation/stepping.py` gives a value of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


class Field(NamedTuple):
    """Field values of NVML, read with all others of a GPU in one driver call. Several are added up.

    `scopes` are tried in turn until one is answered: some parts know a metric only for the whole module. Where no scope
    is, the driver may count for each NVLink: the field `by_link` of all links is added up. `call` gives the same value
    if the driver does not know the field.
    """

    ids: tuple[int, ...]
    scopes: tuple[int, ...] = (0,)
    call: Call | None = None
    by_link: int | None = None

    def __str__(self) -> str:
        links = "" if self.by_link is None else f", or {self.by_link} of each link"
        return f"field{'s' * (len(self.ids) > 1)} {' + '.join(map(str, self.ids))}{links}"


class Call(NamedTuple):
    """A function of NVML that fills an output: `function(device, *arguments, &output)`.

    `output` is the width of a number ("u4", "i4" or "u8"), or a structure of nvidia-ml-py without what its name begins
    and ends with: "nvmlMemory_v2" is `c_nvmlMemory_v2_t`, of the version `nvmlMemory_v2`. The value is its `part`. A
    function that fills several numbers has as many `outputs`. One without any says by its return code whether something
    is well: the value is 1, or 0 where it returns `bad_code`.

    `older` is asked where a driver or GPU does not support this one. MIG instances are asked only where `instances`
    says so. If `only_if`, this part of the structure says whether the GPU has the value at all. A `rare` call is
    costly, and made once in many slow readings.
    """

    function: str
    arguments: tuple[int, ...] = ()
    output: str = "u4"
    part: str = "value"
    older: Call | None = None
    instances: bool = False
    outputs: int = 1
    only_if: str = ""
    bad_code: int | None = None
    rare: bool = False

    def __str__(self) -> str:
        return self.function


class Gpm(NamedTuple):
    """A profiling metric of NVML, by number: a mean between two looks (GPM: Hopper and newer)."""

    id: int

    def __str__(self) -> str:
        return f"GPM {self.id}"


class Stamp(NamedTuple):
    """The age of the field value `id`, by the driver's own time stamp, in us."""

    id: int

    def __str__(self) -> str:
        return f"time stamp of field {self.id}"


class Part(NamedTuple):
    """A constant of the GPU that the driver does not give; it follows from the GPU's architecture."""

    name: Literal["power_window"]

    def __str__(self) -> str:
        return "by the GPU's architecture"


class Dcgm(NamedTuple):
    """A field of DCGM, by number: numbers are stable over DCGM's versions, names are not.

    What DCGM gives, times `scale`, is the metric in its unit. dcgm-exporter prints the same numbers.
    """

    id: int
    scale: int = 1

    def __str__(self) -> str:
        return f"{self.id}" if self.scale == 1 else f"{self.id} x {self.scale}"

    @property
    def profiling(self) -> bool:
        """Whether it is a profiling field: those are watched apart, not everybody may, and no faster than 100 ms."""
        return 1000 < self.id < 1100


class Metric(NamedTuple):
    """One column of `telemetry` that a GPU's driver gives: its name, width, unit ("" for none) and meaning.

    A reading is a whole number of so many `bits`, signed; a driver's number that has more is no reading.

    gauge: a momentary value; a minute keeps minimum, mean and maximum. counter: it grows, and a fall means that it
    began anew; a minute keeps the first and the last. mask: bits; a minute keeps every bit that was set. The fast tier
    is read at every tick, the slow one every few seconds. What NVML gives is multiplied by `scale` to give `unit`.
    """

    name: str
    bits: Literal[32, 64]
    unit: str
    kind: Literal["gauge", "counter", "mask"]
    tier: Literal["fast", "slow"]
    description: str
    nvml: Field | Call | Gpm | Stamp | Part | None
    dcgm: Dcgm | None = None
    prometheus: tuple[str, ...] = ()  # dcgm-exporter's names, the newest first; dashboards know the last
    smi: tuple[str, ...] = ()  # as nvidia-smi names its columns, in lower case
    scale: int = 1
    wraps: bool = False  # a counter that may begin anew by itself
    absent: int | None = None  # the driver's number for "unknown"
    added: bool = False  # files that were written before there was this metric lack its columns: they are NULL


_ALL_LINKS = 0xFFFFFFFF  # NVML's scope for "all NVLinks together"
_POWER_INSTANT = 186  # its time stamp gives power_age_us
_SM, _MEMORY = 1, 2  # NVML's clock domains
_VOLATILE = 0  # ECC errors since the driver was loaded
_LIFETIME = 1  # and in the GPU's life
_CORRUPTED_INFOROM = 14  # a return code
_COUNTERS = "clocks_event_reasons_counters"  # nvidia-smi's columns, in us


def _violation(policy: int) -> Call:
    """Time held down by a policy, ns. The function goes with CUDA 14: it is only for drivers without the field."""
    return Call("nvmlDeviceGetViolationStatus", (policy,), "nvmlViolationTime", "violationTime")


def _ecc(kind: int, since: int) -> Call:
    """Memory errors that were corrected (0) or not (1)."""
    return Call("nvmlDeviceGetTotalEccErrors", (kind, since), "u8")


def _memory(part: str) -> Call:
    """A part of the device memory, bytes. An old driver counts what it reserves as used."""
    older = Call("nvmlDeviceGetMemoryInfo", (), "nvmlMemory", part, instances=True)
    return Call("nvmlDeviceGetMemoryInfo_v2", (), "nvmlMemory_v2", part, older, instances=True)


def _fabric(part: str) -> Call:
    """What the GPU knows of its place in a fabric of NVSwitches; only GPUs that can be in one have it."""
    older = Call("nvmlDeviceGetGpuFabricInfoV", (), "nvmlGpuFabricInfo_v2", part, only_if="state")
    return Call("nvmlDeviceGetGpuFabricInfoV", (), "nvmlGpuFabricInfo_v3", part, older, only_if="state")


# fmt: off
_TEMPERATURE = Call("nvmlDeviceGetTemperatureV", (), "nvmlTemperature_v1", "temperature",
                    older=Call("nvmlDeviceGetTemperature", (0,)))
_REASONS = Call("nvmlDeviceGetCurrentClocksEventReasons", (), "u8",
                older=Call("nvmlDeviceGetCurrentClocksThrottleReasons", (), "u8"))
# fmt: on

_PPM, _MIB = 1_000_000, 2**20


def _dev(*names: str) -> tuple[str, ...]:
    return tuple(f"DCGM_FI_DEV_{name}" for name in names)


def _ratio(name: str, denominator: str, gpm: int, dcgm: int, *names: str) -> Metric:
    """A share from profiling: the mean since the reading before. NVML gives percent, DCGM a ratio."""
    meaning = f"share of {denominator}"
    exported = tuple(f"DCGM_FI_PROF_{suffix}" for suffix in names)
    return Metric(name, 32, "ppm", "gauge", "slow", meaning, Gpm(gpm), Dcgm(dcgm, _PPM), exported, scale=_PPM // 100)


def _rate(name: str, meaning: str, gpm: int, dcgm: int, exported: str) -> Metric:
    """A rate from profiling: the mean since the reading before. NVML gives MiB/s, DCGM bytes/s."""
    meaning = f"{meaning}, with the protocol"
    names = (f"DCGM_FI_PROF_{exported}",)
    return Metric(name, 64, "B/s", "gauge", "slow", meaning, Gpm(gpm), Dcgm(dcgm), names, scale=_MIB)


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("power_mw", 32, "mW", "gauge", "fast", "board power as the driver reports it",
           Call("nvmlDeviceGetPowerUsage"), Dcgm(155, 1000), _dev("BOARD_POWER_WATTS", "POWER_USAGE"), ("power.draw",)),
    Metric("power_instant_mw", 32, "mW", "gauge", "fast", "board power, instantaneous reading",
           Field((_POWER_INSTANT,), scopes=(0, 1)), Dcgm(157, 1000),
           _dev("BOARD_POWER_RAW_WATTS", "POWER_USAGE_INSTANT"), ("power.draw.instant",)),
    Metric("power_average_mw", 32, "mW", "gauge", "fast", "board power, the driver's moving average", Field((185,)),
           smi=("power.draw.average",)),
    Metric("power_window_ms", 32, "ms", "gauge", "fast",
           "time over which the sensor averages power_mw", Part("power_window")),
    Metric("power_age_us", 32, "us", "gauge", "fast",
           "age of the instantaneous reading at `ts`", Stamp(_POWER_INSTANT)),
    Metric("energy_mj", 64, "mJ", "counter", "fast", "energy counter since the driver was loaded",
           Field((83,), call=Call("nvmlDeviceGetTotalEnergyConsumption", (), "u8")), Dcgm(156),
           _dev("TOTAL_ENERGY_CONSUMPTION"), ("total_energy_consumption",)),
    Metric("sm_clock_mhz", 32, "MHz", "gauge", "fast", "SM clock", Call("nvmlDeviceGetClockInfo", (_SM,)), Dcgm(100),
           _dev("SM_CLOCK"), ("clocks.current.sm", "clocks.sm")),
    Metric("mem_clock_mhz", 32, "MHz", "gauge", "fast", "memory clock", Call("nvmlDeviceGetClockInfo", (_MEMORY,)),
           Dcgm(101), _dev("MEM_CLOCK"), ("clocks.current.memory", "clocks.mem")),
    Metric("temperature_c", 32, "degC", "gauge", "fast", "GPU temperature", _TEMPERATURE, Dcgm(150),
           _dev("GPU_TEMP_CELSIUS", "GPU_TEMP"), ("temperature.gpu",)),
    Metric("memory_temperature_c", 32, "degC", "gauge", "fast", "memory temperature", Field((82,)), Dcgm(140),
           _dev("MEMORY_TEMP_CELSIUS", "MEMORY_TEMP"), ("temperature.memory",)),
    Metric("utilization", 32, "%", "gauge", "fast", "share of time in which a kernel ran",
           Call("nvmlDeviceGetUtilizationRates", (), "nvmlUtilization", "gpu"), Dcgm(203),
           _dev("GPU_UTIL_RATIO", "GPU_UTIL"), ("utilization.gpu",)),
    Metric("memory_utilization", 32, "%", "gauge", "fast", "share of time with memory traffic",
           Call("nvmlDeviceGetUtilizationRates", (), "nvmlUtilization", "memory"), Dcgm(204), _dev("MEM_COPY_UTIL"),
           ("utilization.memory",)),
    Metric("memory_used", 64, "B", "gauge", "slow", "device memory in use", _memory("used"), Dcgm(252, _MIB),
           _dev("FB_USED"), ("memory.used",)),
    Metric("power_limit_mw", 32, "mW", "gauge", "slow", "enforced power limit", Call("nvmlDeviceGetEnforcedPowerLimit"),
           Dcgm(164, 1000), _dev("BOARD_POWER_LIMIT_ENFORCED_WATTS", "ENFORCED_POWER_LIMIT"),
           ("enforced.power.limit", "power.limit")),
    Metric("pstate", 32, "", "gauge", "slow", "performance state, 0 is the fastest",
           Call("nvmlDeviceGetPerformanceState"), Dcgm(190), _dev("GPU_PSTATE", "PSTATE"), ("pstate",), absent=32),
    Metric("fan_speed", 32, "%", "gauge", "slow", "fan speed, share of its maximum", Call("nvmlDeviceGetFanSpeed"),
           Dcgm(191), _dev("FAN_SPEED"), ("fan.speed",)),
    Metric("clock_event_reasons", 64, "", "mask", "fast", "why the clock has its value: the driver's bit mask",
           _REASONS, Dcgm(112), _dev("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS"),
           ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
    Metric("power_violation_ns", 64, "ns", "counter", "fast",
           "clock held down by the power limit", Field((74,), call=_violation(0)), Dcgm(240),
           _dev("POWER_VIOLATION"), (f"{_COUNTERS}.sw_power_cap",)),
    Metric("thermal_violation_ns", 64, "ns", "counter", "fast",
           "clock held down by temperature", Field((75,), call=_violation(1)), Dcgm(241),
           _dev("THERMAL_VIOLATION")),
    Metric("sync_boost_violation_ns", 64, "ns", "counter", "slow",
           "clock held down by synchronised boost with other GPUs",
           Field((76,), call=_violation(2)), Dcgm(242), _dev("SYNC_BOOST_VIOLATION"), (f"{_COUNTERS}.sync_boost",)),
    Metric("board_limit_violation_ns", 64, "ns", "counter", "slow",
           "clock held down by a limit of the board", Field((77,), call=_violation(3)),
           Dcgm(243), _dev("BOARD_LIMIT_VIOLATION")),
    Metric("reliability_violation_ns", 64, "ns", "counter", "slow",
           "clock held down for reliability (voltage)", Field((79,), call=_violation(5)),
           Dcgm(245), _dev("RELIABILITY_VIOLATION")),
    Metric("software_thermal_ns", 64, "ns", "counter", "slow",
           "clock held down by the driver because of temperature", Field((269,)), Dcgm(1422),
           _dev("CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"), (f"{_COUNTERS}.sw_thermal_slowdown",)),
    Metric("hardware_thermal_ns", 64, "ns", "counter", "slow",
           "clock held down by the hardware because of temperature", Field((270,)), Dcgm(1423),
           _dev("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"), (f"{_COUNTERS}.hw_thermal_slowdown",)),
    Metric("power_brake_ns", 64, "ns", "counter", "fast",
           "clock held down by the external power brake", Field((271,)), Dcgm(1424),
           _dev("CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"), (f"{_COUNTERS}.hw_power_brake_slowdown",)),
    Metric("pcie_tx_bytes", 64, "B", "counter", "slow", "sent over PCIe; may wrap", Field((197,)),
           wraps=True),
    Metric("pcie_rx_bytes", 64, "B", "counter", "slow", "received over PCIe; may wrap", Field((198,)),
           wraps=True),
    Metric("nvlink_tx_bytes", 64, "B", "counter", "slow", "sent over all NVLinks",
           Field((138,), scopes=(_ALL_LINKS,)), scale=1024),  # driver: KiB
    Metric("nvlink_rx_bytes", 64, "B", "counter", "slow", "received over all NVLinks",
           Field((139,), scopes=(_ALL_LINKS,)), scale=1024),
    Metric("pcie_replays", 64, "", "counter", "slow", "PCIe packets sent again",
           Field((94,), call=Call("nvmlDeviceGetPcieReplayCounter")), Dcgm(202),
           _dev("PCIE_REPLAY_TOTAL", "PCIE_REPLAY_COUNTER")),
    Metric("ecc_corrected", 64, "", "counter", "slow", "memory errors corrected since the driver was loaded",
           Field((3,), call=_ecc(0, _VOLATILE)), Dcgm(310), _dev("ECC_SBE_VOL_TOTAL"),
           ("ecc.errors.corrected.volatile.total",)),
    Metric("ecc_uncorrected", 64, "", "counter", "slow", "memory errors not corrected since the driver was loaded",
           Field((4,), call=_ecc(1, _VOLATILE)), Dcgm(311), _dev("ECC_DBE_VOL_TOTAL"),
           ("ecc.errors.uncorrected.volatile.total",)),
    Metric("remapped_rows", 64, "", "counter", "slow", "memory rows remapped in the GPU's life, both kinds",
           Field((142, 143))),
    Metric("remapped_rows_corrected", 64, "", "counter", "slow", "memory rows remapped for corrected errors",
           Field((142,)), Dcgm(394), _dev("ROW_REMAP_CORRECTABLE_TOTAL", "CORRECTABLE_REMAPPED_ROWS"),
           ("remapped_rows.correctable",)),
    Metric("remapped_rows_uncorrected", 64, "", "counter", "slow", "memory rows remapped for uncorrected errors",
           Field((143,)), Dcgm(393), _dev("ROW_REMAP_UNCORRECTABLE_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS"),
           ("remapped_rows.uncorrectable",)),
    Metric("row_remap_failed", 32, "", "gauge", "slow", "1: a memory row could not be remapped",
           Field((145,)), Dcgm(395), _dev("ROW_REMAP_FAILED", "ROW_REMAP_FAILURE")),
    Metric("memory_free", 64, "B", "gauge", "slow", "device memory that is free", _memory("free"), Dcgm(251, _MIB),
           _dev("FB_FREE"), ("memory.free",)),
    Metric("encoder_utilization", 32, "%", "gauge", "slow", "use of the video encoders",
           Call("nvmlDeviceGetEncoderUtilization", outputs=2), Dcgm(206), _dev("ENC_UTIL"), ("utilization.encoder",)),
    Metric("decoder_utilization", 32, "%", "gauge", "slow", "use of the video decoders",
           Call("nvmlDeviceGetDecoderUtilization", outputs=2), Dcgm(207), _dev("DEC_UTIL"), ("utilization.decoder",)),
    Metric("vgpu_licensed", 32, "", "gauge", "slow",
           "1: the vGPU driver holds a licence; DCGM says 0 without vGPU, too",
           Call("nvmlDeviceGetGridLicensableFeatures_v4", (), "nvmlGridLicensableFeatures_v4",
                "gridLicensableFeatures.0.featureState", only_if="isGridLicenseSupported"),
           Dcgm(526), _dev("VGPU_LICENSE_STATUS")),
    _ratio("gr_engine_active_ppm", "time in which the compute or graphics engine was busy", 1, 1001,
           "GR_ENGINE_UTIL_RATIO", "GR_ENGINE_ACTIVE"),
    _ratio("sm_active_ppm", "cycles in which an SM had a warp, mean of the SMs", 2, 1002, "SM_UTIL_RATIO", "SM_ACTIVE"),
    _ratio("sm_occupancy_ppm", "places for warps on the SMs that were taken", 3, 1003, "SM_OCCUPANCY_RATIO",
           "SM_OCCUPANCY"),
    _ratio("tensor_active_ppm", "cycles in which a tensor pipe was busy", 5, 1004, "TENSOR_UTIL_RATIO",
           "PIPE_TENSOR_ACTIVE"),
    _ratio("dram_active_ppm", "cycles in which device memory was read or written", 10, 1005, "DRAM_UTIL_RATIO",
           "DRAM_ACTIVE"),
    _ratio("fp64_active_ppm", "cycles in which an FP64 pipe was busy", 11, 1006, "FP64_UTIL_RATIO", "PIPE_FP64_ACTIVE"),
    _ratio("fp32_active_ppm", "cycles in which an FP32 pipe was busy", 12, 1007, "FP32_UTIL_RATIO", "PIPE_FP32_ACTIVE"),
    _ratio("fp16_active_ppm", "cycles in which an FP16 pipe was busy", 13, 1008, "FP16_UTIL_RATIO", "PIPE_FP16_ACTIVE"),
    _rate("pcie_tx_bytes_per_s", "sent over PCIe", 20, 1009, "PCIE_TX_BYTES"),
    _rate("pcie_rx_bytes_per_s", "received over PCIe", 21, 1010, "PCIE_RX_BYTES"),
    _rate("nvlink_tx_bytes_per_s", "sent over all NVLinks", 61, 1011, "NVLINK_TX_BYTES"),
    _rate("nvlink_rx_bytes_per_s", "received over all NVLinks", 60, 1012, "NVLINK_RX_BYTES"),
    # dcgm-exporter calls it a counter; it is a rate, in KiB/s divided by 1000.
    Metric("nvlink_bytes_per_s", 64, "B/s", "gauge", "slow", "sent and received over all NVLinks, data only", None,
           Dcgm(449, 1_024_000), _dev("NVLINK_THROUGHPUT_TOTAL", "NVLINK_BANDWIDTH_TOTAL")),
    Metric("ecc_corrected_lifetime", 64, "", "counter", "slow", "memory errors corrected in the GPU's life",
           Field((5,), call=_ecc(0, _LIFETIME)), Dcgm(312), _dev("ECC_SBE_AGG_TOTAL"),
           ("ecc.errors.corrected.aggregate.total",), added=True),
    Metric("ecc_uncorrected_lifetime", 64, "", "counter", "slow", "memory errors not corrected in the GPU's life",
           Field((6,), call=_ecc(1, _LIFETIME)), Dcgm(313), _dev("ECC_DBE_AGG_TOTAL"),
           ("ecc.errors.uncorrected.aggregate.total",), added=True),
    Metric("sram_errors_exceeded", 32, "", "gauge", "slow",
           "1: replace the GPU, for its uncorrected errors of on-chip memory",
           Call("nvmlDeviceGetSramEccErrorStatus", (), "nvmlEccSramErrorStatus_v1", "bThresholdExceeded"), Dcgm(346),
           _dev("SRAM_EXCEEDED", "THRESHOLD_SRM"), added=True),
    Metric("row_remap_pending", 32, "", "gauge", "slow",
           "1: a memory row waits for a reset to be remapped", Field((144,)), Dcgm(396),
           _dev("ROW_REMAP_PENDING"), added=True),
    Metric("recovery_action", 32, "", "gauge", "slow",
           "what the driver asks for: 0 nothing, 1 reset, 2 reboot the node, 3 stop "
           "peer traffic, 4 drain and reset; more: nvmlDeviceGpuRecoveryAction_t", Field((230,)), Dcgm(1523),
           _dev("GPU_RECOVERY_ACTION", "GET_GPU_RECOVERY_ACTION"), added=True),
    Metric("nvlink_crc_errors", 64, "", "counter", "slow", "checksum errors on all NVLinks",
           Field((38, 45), by_link=163), Dcgm(497), _dev("NVLINK_CRC_ERROR_TOTAL", "NVLINK_ERROR_DL_CRC"), added=True),
    Metric("nvlink_replays", 64, "", "counter", "slow", "packets sent again on all NVLinks",
           Field((52,), by_link=161), Dcgm(499), _dev("NVLINK_REPLAY_TOTAL", "NVLINK_ERROR_DL_REPLAY"), added=True),
    Metric("nvlink_recoveries", 64, "", "counter", "slow", "recoveries of all NVLinks",
           Field((59,), by_link=162), Dcgm(498), _dev("NVLINK_RECOVERY_TOTAL", "NVLINK_ERROR_DL_RECOVERY"), added=True),
    Metric("pcie_generation", 32, "", "gauge", "slow", "PCIe generation of the link; lower while the GPU is idle",
           Call("nvmlDeviceGetCurrPcieLinkGeneration"), Dcgm(237), _dev("PCIE_LINK_GEN"),
           ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"), added=True),
    Metric("pcie_generation_max", 32, "", "gauge", "slow", "PCIe generation, the highest in this node",
           Call("nvmlDeviceGetMaxPcieLinkGeneration"), Dcgm(235), _dev("PCIE_MAX_LINK_GEN"), ("pcie.link.gen.max",),
           added=True),
    Metric("pcie_width", 32, "", "gauge", "slow", "PCIe lanes of the link", Call("nvmlDeviceGetCurrPcieLinkWidth"),
           Dcgm(238), _dev("PCIE_LINK_WIDTH"), ("pcie.link.width.current",), added=True),
    Metric("pcie_width_max", 32, "", "gauge", "slow", "PCIe lanes, the most in this node",
           Call("nvmlDeviceGetMaxPcieLinkWidth"), Dcgm(236), _dev("PCIE_MAX_LINK_WIDTH"), ("pcie.link.width.max",),
           added=True),
    Metric("fabric_state", 32, "", "gauge", "slow",
           "joining the fabric of NVSwitches: 1 not begun, 2 under way, 3 done, 4 failed (by DCGM)",
           _fabric("state"), Dcgm(170), _dev("FABRIC_MANAGER_STATUS"), added=True),
    Metric("fabric_error", 32, "", "gauge", "slow", "error of joining the fabric, 0 for none",
           _fabric("status"), Dcgm(171), _dev("FABRIC_MANAGER_ERROR", "FABRIC_MANAGER_ERROR_CODE"), added=True),
    Metric("inforom_valid", 32, "", "gauge", "slow",
           "1: the InfoROM is well, 0: it is corrupted; read every 10 minutes",
           Call("nvmlDeviceValidateInforom", outputs=0, bad_code=_CORRUPTED_INFOROM, rare=True), Dcgm(84),
           _dev("INFOROM_CONFIG_VALID"), added=True),
    Metric("retired_pages_corrected", 64, "", "counter", "slow",
           "memory pages retired for corrected errors; GPUs before Ampere", Field((29,)), Dcgm(390),
           _dev("RETIRED_SBE"), ("retired_pages.single_bit_ecc.count", "retired_pages.sbe"), added=True),
    Metric("retired_pages_uncorrected", 64, "", "counter", "slow",
           "memory pages retired for uncorrected errors; GPUs before Ampere", Field((30,)), Dcgm(391),
           _dev("RETIRED_DBE"), ("retired_pages.double_bit.count", "retired_pages.dbe"), added=True),
    Metric("retired_pages_pending", 32, "", "gauge", "slow",
           "1: a memory page waits for a reset to be retired", Field((31,)), Dcgm(392),
           _dev("RETIRED_PENDING"), added=True),
)
# fmt: on

ROW = {metric.name: row for row, metric in enumerate(METRICS)}  # name -> its row in METRICS and in a sweep

FAST = tuple(row for row, metric in enumerate(METRICS) if metric.tier == "fast")

# -- the one rule for board power ---------------------------------------------------------------------------

BOARD_POWER = ("power_instant_mw", "power_mw")  # the instantaneous reading, else what the driver reports


def board_power_mw() -> pl.Expr:
    """Board power of rows of `telemetry`, mW, for Polars; SQL: coalesce(power_instant_mw, power_mw)."""
    import polars as pl

    return pl.coalesce(BOARD_POWER)


def board_power_of(values: Mapping[str, float | NDArray[np.float64]]) -> NDArray[np.float64]:
    """The same of floats or numpy arrays by column, NaN where not known."""
    import numpy as np

    instant, reported = (values[column] for column in BOARD_POWER)
    return np.asarray(np.where(np.isnan(instant), reported, instant), np.float64)


UNTRUSTED_POWER = ("power_stuck", "power_zero")  # marks of `telemetry.quality`: such power is no measurement


def power_is_trusted(quality: str = "quality") -> str:
    """SQL: whether the column `quality` has none of these marks."""
    return f"NOT regexp_matches(coalesce({quality}, ''), '{'|'.join(UNTRUSTED_POWER)}')"
