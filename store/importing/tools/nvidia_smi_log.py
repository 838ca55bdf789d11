"""`nvidia-smi -q -x`: the whole state of each GPU as XML, once or, with -l or a loop around it, many times in one file.

Each log is read by itself, so a torn one costs only itself. Elements were renamed and moved from driver to driver: a
value is taken from the first of its places that a log has. The XML parser sees nothing outside of the logs: no document
type, and so no entities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from ....errors import InputError
from ...vocabulary import reason_bit
from ..rows import Rows, Value
from .stamped import Times

NAME = "nvidia-smi -q -x"

_BEGIN = re.compile("<nvidia_smi_log[ >]")
_END = "</nvidia_smi_log>"
_DEEPEST, _LONGEST = 32, 4096  # real logs have 7 elements inside each other, and texts of some 60 characters
_UNUSED = ("supported_clocks", "processes", "accounted_processes")  # the most of a log

# What a GPU is, and its numbers: where they may stand in the element `gpu`, the place of the newest drivers first.
_IDENTITY = {
    "gpu": "uuid",
    "model": "product_name",
    "serial": "serial",
    "vbios": "vbios_version",
    "pci_bus_id": "pci/pci_bus_id",
}
_POWER = ("gpu_power_readings", "power_readings")  # until driver 530
_NUMBERS: dict[str, tuple[str, ...]] = {
    "power [W]": tuple(f"{each}/power_draw" for each in _POWER),
    "power_average [W]": ("gpu_power_readings/average_power_draw",),
    "power_instant [W]": ("gpu_power_readings/instant_power_draw",),
    "power_limit [W]": tuple(
        f"{each}/{name}" for name in ("current_power_limit", "enforced_power_limit", "power_limit") for each in _POWER
    ),
    "power_limit_default [W]": tuple(f"{each}/default_power_limit" for each in _POWER),
    "power_limit_min [W]": tuple(f"{each}/min_power_limit" for each in _POWER),
    "power_limit_max [W]": tuple(f"{each}/max_power_limit" for each in _POWER),
    "sm_clock [MHz]": ("clocks/sm_clock", "clocks/graphics_clock"),
    "mem_clock [MHz]": ("clocks/mem_clock",),
    "sm_clock_max [MHz]": ("max_clocks/sm_clock", "max_clocks/graphics_clock"),
    "mem_clock_max [MHz]": ("max_clocks/mem_clock",),
    "temperature [C]": ("temperature/gpu_temp",),
    "memory_temperature [C]": ("temperature/memory_temp",),
    "temperature_max_operating [C]": ("temperature/gpu_temp_max_gpu_threshold",),
    "temperature_slowdown [C]": ("temperature/gpu_temp_slow_threshold",),
    "temperature_shutdown [C]": ("temperature/gpu_temp_max_threshold",),
    "utilization [%]": ("utilization/gpu_util",),
    "memory_utilization [%]": ("utilization/memory_util",),
    "encoder_utilization [%]": ("utilization/encoder_util",),
    "decoder_utilization [%]": ("utilization/decoder_util",),
    "memory_used [MiB]": ("fb_memory_usage/used", "memory_usage/used"),
    "memory_free [MiB]": ("fb_memory_usage/free", "memory_usage/free"),
    "memory_total [MiB]": ("fb_memory_usage/total", "memory_usage/total"),
    "fan_speed [%]": ("fan_speed",),
    "pstate": ("performance_state",),
    "pcie_replays": ("pci/replay_counter",),
    "remapped_rows_corrected": ("remapped_rows/remapped_row_corr",),
    "remapped_rows_uncorrected": ("remapped_rows/remapped_row_unc",),
    "power_violation [us]": ("clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",),
    "sync_boost_violation [us]": ("clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost",),
    "software_thermal [us]": ("clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown",),
    "hardware_thermal [us]": ("clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",),
    "power_brake [us]": ("clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake",),
}
_OF_INSTANCE = ("memory_used [MiB]", "memory_free [MiB]", "memory_total [MiB]")
# Reasons of the clock: elements are `clocks_event_reason_` (until driver 530 `clocks_throttle_reason_`) and these.
_REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "applications_clocks",
    "user_defined_clocks": "applications_clocks",  # until driver 352
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "thermal_software",
    "hw_thermal_slowdown": "thermal_hardware",
    "hw_power_brake_slowdown": "power_brake",
    "display_clocks_setting": "display_clocks",
}
# Memory errors since the driver was loaded: one total (until driver 440), or parts that add up.
_ECC = {
    "ecc_corrected": ("single_bit/total", ("sram_correctable", "dram_correctable")),
    "ecc_uncorrected": (
        "double_bit/total",
        ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
    ),
}

Texts = Mapping[str, str]


def fits(head: str) -> bool:
    """Whether a text is a log of `nvidia-smi -q -x`."""
    return _BEGIN.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    begins = [found.start() for found in _BEGIN.finditer(text)]
    line = 1
    for position, begin in enumerate(begins):
        line += text.count("\n", begins[position - 1] if position else 0, begin)
        following = begins[position + 1] if position + 1 < len(begins) else len(text)
        end = text.find(_END, begin, following)
        log = Log(line)
        log.parse(text[begin : following if end < 0 else end + len(_END)])
        add(log, rows)


@dataclass
class Gpu:
    """One element `gpu`: texts by path, and those of its MIG instances."""

    line: int
    texts: dict[str, str] = field(default_factory=dict)
    instances: list[tuple[int, dict[str, str]]] = field(default_factory=list)


class Log:
    """One log. What follows a damaged place is lost; GPUs before it are kept."""

    def __init__(self, line: int) -> None:
        self.head: dict[str, str] = {}
        self.gpus: list[Gpu] = []
        self.damage = ""
        self.line = line
        self._path: list[str] = []
        self._text: list[str] = []
        self._gpu: Gpu | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append

    def parse(self, text: str) -> None:
        """Read the text of the log."""
        try:
            self._parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            self.damage = f"the log is cut short or damaged ({expat.errors.messages[error.code]})"
        except InputError as error:
            self.damage = str(error)

    @property
    def here(self) -> int:
        """The line of the file at which the parser is."""
        return self.line + self._parser.CurrentLineNumber - 1

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if len(self._path) > _DEEPEST:
            raise InputError(f"the log has more than {_DEEPEST} elements inside each other, unlike any of nvidia-smi")
        if self._path[1:] == ["gpu"]:
            self._gpu = Gpu(self.here, {"pci/pci_bus_id": attributes.get("id", "")})
        elif self._gpu is not None and self._path[2:] == ["mig_devices", "mig_device"]:
            self._gpu.instances.append((self.here, {}))

    def _end(self, _: str) -> None:
        text = "".join(self._text).strip()
        self._text.clear()
        inside = self._path[1:]
        self._path.pop()
        if len(text) > _LONGEST:
            raise InputError(f"the log has a text of {len(text)} characters, unlike any of nvidia-smi")
        if self._gpu is None:
            self.head["/".join(inside)] = text
        elif inside == ["gpu"]:
            self.gpus.append(self._gpu)
            self._gpu = None
        elif inside[1:3] == ["mig_devices", "mig_device"]:
            self._gpu.instances[-1][1]["/".join(inside[3:])] = text
        elif inside[1] not in _UNUSED:
            self._gpu.texts["/".join(inside[1:])] = text


def add(log: Log, rows: Rows) -> None:
    """Add the rows of a log."""
    said = log.head.get("timestamp", "")
    stamp = Times(rows, NAME).of(said, 0) if said else None
    if log.damage:
        rows.refuse(log.here, log.damage)
    elif not log.gpus:
        rows.refuse(log.line, "the log has no GPU")
    whole = not log.damage and log.head.get("attached_gpus") == str(len(log.gpus))
    for position, gpu in enumerate(log.gpus):
        if stamp is None:
            rows.refuse(gpu.line, "its log has no readable time")
            continue
        known: dict[str, Value] = {
            "timestamp": stamp,
            "driver": log.head.get("driver_version"),
            **{name: gpu.texts.get(path) for name, path in _IDENTITY.items()},
        }
        if not known["gpu"]:  # `nvidia-smi -q -d` does not print it: then its number is all that is known
            del known["gpu"]
        number = position if whole else None  # with -i, a log has not all GPUs: their places are no numbers then
        rows.add(gpu.line, {**known, "index": number, "instance": None, **_values(gpu.texts)})
        for line, texts in gpu.instances:
            name = _instance(texts)
            memory = {label: _number(texts, _NUMBERS[label]) for label in _OF_INSTANCE}
            rows.add(line, {**known, "model": None, "index": number, "instance": name, **memory})


def _instance(texts: Texts) -> str:
    """The name of a MIG instance, as exporters and collectors have it; further compute instances have their number."""
    compute = texts.get("compute_instance_id", "0")
    return f"GI{texts.get('gpu_instance_id', '')}" + ("" if compute == "0" else f"-CI{compute}")


def _values(texts: Texts) -> dict[str, Value]:
    values: dict[str, Value] = {label: _number(texts, places) for label, places in _NUMBERS.items()}
    corrected, uncorrected = values["remapped_rows_corrected"], values["remapped_rows_uncorrected"]
    failed = texts.get("remapped_rows/remapped_row_failure", "").lower()
    licensed = texts.get("vgpu_software_licensed_product/license_status", "").lower().split(" ")[0]
    return {
        **values,
        "clock_event_reasons": _reasons(texts),
        "ecc_corrected": _ecc(texts, "ecc_corrected"),
        "ecc_uncorrected": _ecc(texts, "ecc_uncorrected"),
        "remapped_rows": _sum(corrected, uncorrected),
        "row_remap_failed": {"yes": 1, "no": 0}.get(failed),
        "vgpu_licensed": {"licensed": 1, "unlicensed": 0}.get(licensed),
    }


def _number(texts: Texts, places: tuple[str, ...]) -> str | None:
    """The text of the first place that has a number; words mean that it is not known."""
    return next((texts[place] for place in places if re.search("[0-9]", texts.get(place, ""))), None)


def _sum(*values: Value) -> int | None:
    """The sum of counts; None where one is not known."""
    counts = [int(value) for value in values if isinstance(value, str) and value.isdecimal()]
    return sum(counts) if len(counts) == len(values) else None


def _ecc(texts: Texts, name: str) -> int | None:
    total, parts = _ECC[name]
    there = [texts[path] for part in parts if (path := f"ecc_errors/volatile/{part}") in texts]
    return _sum(*there) if there else _sum(texts.get(f"ecc_errors/volatile/{total}"))


def _reasons(texts: Texts) -> int | None:
    """The bit mask of the reasons for the clock. None where no reason is active or inactive."""
    mask = None
    for name, reason in _REASONS.items():
        for kind in ("event", "throttle"):
            said = texts.get(f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}", "").lower()
            if said in ("active", "not active"):
                mask = (mask or 0) | (reason_bit(reason) if said == "active" else 0)
    return mask
