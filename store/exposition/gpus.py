"""What an exporter's names, labels and numbers mean: the metric and the GPU of a series, and its value.

Known are those of dcgm-exporter, and of nvidia_gpu_exporter, which prints what nvidia-smi says in base units.

DCGM counts the time that a clock was held down in ns, also where the page of an exporter says us beside it.

Labels differ from version to version and from site to site; what is known of them stands here and nowhere else. The
labels of pods are not read: who had a GPU is in the table `jobs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..metrics import METRICS, ROW, Metric

_XIDS = frozenset({"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "DCGM_XID_ERRORS"})  # the last XID of a GPU

# Other names for the same: counters that DCGM has twice, and those of dcgm-exporter 1.x, which later versions print
# where a site asks for them. Its times held down are left out: its versions differ in their unit.
_ALSO = {
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": "power_violation_ns",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS": "sync_boost_violation_ns",
    "dcgm_sm_clock": "sm_clock_mhz", "dcgm_memory_clock": "mem_clock_mhz", "dcgm_memory_temp": "memory_temperature_c",
    "dcgm_gpu_temp": "temperature_c", "dcgm_power_usage": "power_mw", "dcgm_total_energy_consumption": "energy_mj",
    "dcgm_pcie_replay_counter": "pcie_replays", "dcgm_gpu_utilization": "utilization",
    "dcgm_mem_copy_utilization": "memory_utilization", "dcgm_enc_utilization": "encoder_utilization",
    "dcgm_dec_utilization": "decoder_utilization", "dcgm_fb_free": "memory_free", "dcgm_fb_used": "memory_used",
    "dcgm_ecc_sbe_volatile_total": "ecc_corrected", "dcgm_ecc_dbe_volatile_total": "ecc_uncorrected",
    "dcgm_nvlink_bandwidth_total": "nvlink_bytes_per_s",
}  # fmt: skip
_SMI = {  # names of nvidia_gpu_exporter -> column, and what makes its number one of that column
    "nvidia_smi_power_draw_watts": ("power_mw", 1000),
    "nvidia_smi_power_draw_instant_watts": ("power_instant_mw", 1000),
    "nvidia_smi_power_draw_average_watts": ("power_average_mw", 1000),
    "nvidia_smi_enforced_power_limit_watts": ("power_limit_mw", 1000),
    "nvidia_smi_energy_joules": ("energy_mj", 1000),
    "nvidia_smi_clocks_current_sm_clock_hz": ("sm_clock_mhz", 1e-6),
    "nvidia_smi_clocks_current_memory_clock_hz": ("mem_clock_mhz", 1e-6),
    "nvidia_smi_temperature_gpu": ("temperature_c", 1),
    "nvidia_smi_temperature_memory": ("memory_temperature_c", 1),
    "nvidia_smi_utilization_gpu_ratio": ("utilization", 100),
    "nvidia_smi_utilization_memory_ratio": ("memory_utilization", 100),
    "nvidia_smi_utilization_encoder_ratio": ("encoder_utilization", 100),
    "nvidia_smi_utilization_decoder_ratio": ("decoder_utilization", 100),
    "nvidia_smi_fan_speed_ratio": ("fan_speed", 100),
    "nvidia_smi_memory_used_bytes": ("memory_used", 1),
    "nvidia_smi_memory_free_bytes": ("memory_free", 1),
    "nvidia_gpu_power_usage_milliwatts": ("power_mw", 1),  # these four are of jobstats' exporter
    "nvidia_gpu_temperature_celsius": ("temperature_c", 1),
    "nvidia_gpu_duty_cycle": ("utilization", 1),
    "nvidia_gpu_memory_used_bytes": ("memory_used", 1),
    "nvidia_smi_clocks_event_reasons_active": ("clock_event_reasons", 1),
    "nvidia_smi_clocks_throttle_reasons_active": ("clock_event_reasons", 1),
}
_INFO = "nvidia_smi_gpu_info"
_INFO_SAYS = {"modelName": "name", "gpu": "index", "vbios": "vbios_version"}  # other labels are as dcgm-exporter's
_BARE = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # nvidia_gpu_exporter leaves out GPU-

_UUID = ("UUID", "uuid", "gpu_uuid", "GPU_UUID")
_INSTANCE = ("GPU_I_ID", "gpu_i_id")
# Names of a pod of dcgm-exporter and of a container, which come and go, where a site does not tell it the host's.
_NO_NODE = re.compile(r"(?:[a-z0-9-]+-)?dcgm-exporter-(?:[a-z0-9]+-)?[a-z0-9]{5}|[0-9a-f]{12}")
_NODE = ("Hostname", "hostname", "node", "kubernetes_node", "nodename", "node_name", "host", "instance")
_LABELS = {  # column of `gpus` -> labels, the first that has a value counts
    "model": ("modelName", "model_name", "modelname"),
    "serial": ("DCGM_FI_DEV_SERIAL", "serial"),
    "vbios": ("DCGM_FI_DEV_VBIOS_VERSION", "vbios"),
    "driver": ("DCGM_FI_DRIVER_VERSION", "driver_version"),
    "pci_bus_id": ("pci_bus_id",),
    "mig_profile": ("GPU_I_PROFILE", "gpu_i_profile"),
}
_PARTS = ("nvlink", "nvswitch", "cpu", "cpucore")  # a series with one of these is of a part, not of the GPU
_PODS = ("pod", "exported_pod", "pod_name", "exported_pod_name")
_OF_POD, _REPEATED = 100, 1000  # in the rank: of a label of a pod, of what a MIG instance repeats
_OF_NOBODY = ("utilization", "memory_utilization", "encoder_utilization", "decoder_utilization")  # under MIG they are 0
_OF_INSTANCES = ("_ppm", "_bytes_per_s")  # ends of the columns that an instance has for itself, besides its memory

_BLANKS = (0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0, 1 << 47)  # of 64 and 32 bits, and of floats: whole up to 2^53
_CODES = 16  # numbers from a blank on that say why there is no value
_AFTER_ROUNDING = 2.0**63 - 1024  # a blank of 64 bits that went through a float
# What a metric can be, in its unit; `fan_speed` is a share of a nominal speed.
_LIMITS: dict[str, tuple[float, float]] = {
    "mW": (0, 5e6), "MHz": (0, 10_000), "degC": (-60, 200), "%": (0, 100), "ppm": (0, 1_050_000),
}  # fmt: skip
_UNLIKE = {"fan_speed": (0, 200)}


@dataclass(frozen=True, slots=True)
class Column:
    """Where the values of a metric's name belong: the row in `METRICS`, and what makes them the metric's unit."""

    row: int
    metric: Metric
    scale: float
    low: float
    high: float
    of_instances: bool
    """MIG instances have it for themselves; of all others they repeat the value of the whole GPU."""


@dataclass(frozen=True, slots=True)
class Whose:
    """The GPU of a series: its UUID, and the number of the MIG instance if it is of one."""

    uuid: str
    instance: str | None

    @property
    def key(self) -> str:
        """As the column `gpu` has it. No exporter tells the UUID of an instance."""
        return self.uuid if self.instance is None else f"{self.uuid}:GI{self.instance}"


def _columns() -> dict[str, Column]:
    names = {name: metric for metric in METRICS for name in metric.prometheus}
    names |= {name: METRICS[ROW[column]] for name, column in _ALSO.items()}
    names |= {name: METRICS[ROW[column]] for name, (column, _) in _SMI.items()}
    columns = {}
    for name, metric in names.items():
        low, high = _UNLIKE.get(metric.name) or _LIMITS.get(metric.unit, (0, math.inf))
        columns[name] = Column(
            ROW[metric.name],
            metric,
            _SMI[name][1] if name in _SMI else 1 if metric.dcgm is None else metric.dcgm.scale,
            low,
            high,
            of_instances=metric.name.endswith(_OF_INSTANCES) or metric.name in ("memory_used", "memory_free"),
        )
    return columns


COLUMNS = _columns()
"""By every name that an exporter has or had for it."""


def column(name: str) -> Column | None:
    """What a metric's name means. Some sites have names in lower case, OpenMetrics adds `_total`."""
    short = name.removesuffix("_total")
    return COLUMNS.get(name) or COLUMNS.get(short) or COLUMNS.get(name.upper())


@dataclass(frozen=True, slots=True)
class Place:
    """Where the values of a series belong: the column, None for the last XID; and the GPU.

    Of several series of one GPU and metric, that with the least rank counts: the GPU's own comes before those that a
    pod or a MIG instance repeats, and a newer name before an older one.
    """

    column: Column | None
    whose: Whose
    rank: int


def place(name: str, labels: Mapping[str, str]) -> Place | None:
    """Where the values of a series belong; None where it has no metric that is stored, or no GPU.

    Of an instance, utilisation is no number: dcgm-exporter prints 0 where the driver does not know it.
    """
    of_name, owner = column(name), whose(labels)
    if owner is None or (of_name is None and name.upper() not in _XIDS):
        return None
    names = () if of_name is None else of_name.metric.prometheus
    rank = names.index(name) if name in names else len(names)
    rank += _OF_POD * sum(bool(labels.get(label)) for label in _PODS)
    if owner.instance is not None:
        if of_name is not None and of_name.metric.name in _OF_NOBODY:
            return None
        if of_name is None or not of_name.of_instances:
            number = owner.instance
            rank += _REPEATED + (int(number) if number.isdecimal() and len(number) < 6 else 0)
            owner = Whose(owner.uuid, None)
    return Place(of_name, owner, rank)


def whose(labels: Mapping[str, str]) -> Whose | None:
    """Whose values a series has; None if not a GPU's, or one whose UUID is not said."""
    uuid = _first(labels, _UUID)
    if uuid is None or is_part(labels):
        return None
    prefix, dash, digits = uuid.partition("-")
    if dash and prefix.upper() in ("GPU", "MIG"):
        uuid = f"{prefix.upper()}-{digits.lower()}"
    elif _BARE.fullmatch(uuid):
        uuid = f"GPU-{uuid}"
    return Whose(uuid, _first(labels, _INSTANCE))


def is_part(labels: Mapping[str, str]) -> bool:
    """Whether a series is of a link, a switch or a processor."""
    return any(labels.get(part) for part in _PARTS)


def described(labels: Mapping[str, str]) -> dict[str, Any]:
    """What the labels of a series say of its GPU, by column of `gpus`; only what they say."""
    if "ordinal" in labels:  # jobstats' exporter has the driver's number so, and the model as `name`
        labels = {"gpu": labels["ordinal"], "modelName": labels.get("name", ""), **labels}
    row: dict[str, Any] = {key: _first(labels, names) for key, names in _LABELS.items()}
    hosts = (_first(labels, (name,)) for name in _NODE)
    node = next((host for host in hosts if host is not None and not _NO_NODE.fullmatch(host)), None)
    if node is not None and node == labels.get("instance"):
        node = node.rpartition(":")[0].strip("[]") or node  # host:port
    gpu = labels.get("gpu", "")
    row |= {"node": node, "slot": int(gpu) if gpu.isdecimal() and len(gpu) < 4 else None}
    return {key: value for key, value in row.items() if value is not None}


def about(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """What a series that has no metric says of its GPU, as `described`: that of nvidia_gpu_exporter with its name."""
    if name != _INFO:
        return {}
    usual = dict(labels) | {label: labels.get(its_label, "") for label, its_label in _INFO_SAYS.items()}
    return described({label: value for label, value in usual.items() if not value.startswith("[")})  # as in [N/A]


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := labels.get(name, "").strip())), None)


def scaled(value: float | None, column: Column) -> tuple[int | None, str]:
    """A value in the unit of its metric; or None and why: blank | unsupported | denied | no number | impossible."""
    if value is None or not math.isfinite(value):
        return None, "no number"
    why = _blank(value, counter=column.metric.kind == "counter")
    if why:
        return None, why
    metric = value * column.scale
    if not column.low <= metric <= column.high or metric >= _AFTER_ROUNDING:
        return None, "impossible"
    return round(metric), ""


def _blank(value: float, *, counter: bool) -> str:
    """Why a number is none: the codes from each blank on are not found, not supported, not permitted."""
    for blank in _BLANKS:
        if blank <= value < blank + _CODES and not (counter and blank == _BLANKS[1]):
            return {1: "unsupported", 2: "unsupported", 3: "denied"}.get(round(value - blank), "blank")
    return "blank" if value >= (_AFTER_ROUNDING if counter else _BLANKS[2]) else ""
