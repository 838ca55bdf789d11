"""`nvidia-smi -q`, as XML (-x) or as text: the whole state of each GPU, or a part of it; once or many times in a file.

Each log is read by itself, so a torn one costs only itself. Elements were renamed and moved from driver to driver: a
value is taken from the first of its places that a log has. The titles of the text are turned into the paths that the
same values have in XML. The XML parser sees nothing outside of the logs: no document type, and so no entities.

A GPU that is lost has `GPU is lost` in place of its values, or only a line with its PCI address: it is a row without
readings, and whoever takes the rows makes an event of it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.parsers import expat

from ...vocabulary import reason_bit
from ..content import written
from ..identity import address
from ..rows import Rows, Value
from .stamped import Times

XML, TEXT = "nvidia-smi -q -x", "nvidia-smi -q"

_XML_BEGIN, _XML_END = re.compile("<nvidia_smi_log[ >]"), "</nvidia_smi_log>"
_XML_GPU = re.compile("<gpu[ >]")
_DEEPEST = 8  # elements inside each other in the element `gpu`
_UNUSED = ("supported_clocks", "processes", "accounted_processes", "mig_devices")  # the most of a log, and instances
_TEXT_BEGIN = re.compile(r"^=+ ?NVSMI LOG ?=+\s*$", re.MULTILINE)
_INDENT = 4  # spaces for each title that a line of text stands under
_ADDRESS = "[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:[.][0-9A-Fa-f])?"
_TEXT_GPU = re.compile(rf"^GPU ({_ADDRESS})\s*$")
_LINE = re.compile(r"^( *)(\S.*?)\s*(?: : ?(.*))?$")
_SENTENCE = re.compile(rf"(?i)unable to determine the device handle for gpu *({_ADDRESS})|gpu *({_ADDRESS}).* is lost")
_LOST = "GPU is lost"
_STATED = re.compile("(?i)[0-9]|is lost|requires reset|err!")  # other words mean that a value is not known

_IDENTITY = {"gpu": "uuid", "model": "product_name", "serial": "serial", "vbios": "vbios_version"}
_POWER = ("gpu_power_readings", "power_readings")  # the second until driver 530
_COUNTERS = "clocks_event_reasons_counters"
# Numbers: where they may stand in the element `gpu`, the place of the newest drivers first.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "power [W]": tuple(f"{group}/power_draw" for group in _POWER),
    "power_average [W]": ("gpu_power_readings/average_power_draw",),
    "power_instant [W]": ("gpu_power_readings/instant_power_draw",),
    "power_limit [W]": tuple(
        f"{group}/{name}" for name in ("current_power_limit", "enforced_power_limit", "power_limit") for group in _POWER
    ),
    **{f"power_limit_{kind} [W]": tuple(f"{group}/{kind}_power_limit" for group in _POWER)
       for kind in ("default", "min", "max")},
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
    **{f"{kind}_utilization [%]": (f"utilization/{kind}_util",) for kind in ("memory", "encoder", "decoder")},
    **{f"memory_{kind} [MiB]": (f"fb_memory_usage/{kind}", f"memory_usage/{kind}")
       for kind in ("used", "free", "total")},
    "fan_speed [%]": ("fan_speed",),
    "pstate": ("performance_state",),
    "pcie_replays": ("pci/replay_counter",),
    "remapped_rows_corrected": ("remapped_rows/remapped_row_corr",),
    "remapped_rows_uncorrected": ("remapped_rows/remapped_row_unc",),
    **{f"{name} [us]": (f"{_COUNTERS}/{_COUNTERS}_{counter}",) for name, counter in (
        ("power_violation", "sw_power_cap"), ("sync_boost_violation", "sync_boost"),
        ("software_thermal", "sw_therm_slowdown"), ("hardware_thermal", "hw_therm_slowdown"),
        ("power_brake", "hw_power_brake"))},
}  # fmt: skip
_OF_INSTANCE = ("memory_used [MiB]", "memory_free [MiB]", "memory_total [MiB]")
# Reasons of the clock: elements are `clocks_event_reason_` (until driver 530 `clocks_throttle_reason_`) and these.
REASONS = {
    "gpu_idle": "idle", "applications_clocks_setting": "applications_clocks",
    "user_defined_clocks": "applications_clocks",  # until driver 352
    "sw_power_cap": "power_cap", "hw_slowdown": "hw_slowdown", "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "thermal_software", "hw_thermal_slowdown": "thermal_hardware",
    "hw_power_brake_slowdown": "power_brake", "display_clocks_setting": "display_clocks",
}  # fmt: skip
# Memory errors since the driver was loaded: one total (until driver 440), or parts that add up.
_ECC = {
    "ecc_corrected": ("single_bit/total", ("sram_correctable", "dram_correctable")),
    "ecc_uncorrected": (
        "double_bit/total",
        ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
    ),
}
# Titles of the text whose path in XML does not follow from their words.
_TITLES = {
    "gpu_uuid": "uuid",
    "serial_number": "serial",
    "pci/bus_id": "pci/pci_bus_id",
    "pci/replays_since_reset": "pci/replay_counter",
    "temperature/gpu_current_temp": "temperature/gpu_temp",
    "temperature/memory_current_temp": "temperature/memory_temp",
    "temperature/gpu_shutdown_temp": "temperature/gpu_temp_max_threshold",
    "temperature/gpu_slowdown_temp": "temperature/gpu_temp_slow_threshold",
    "temperature/gpu_max_operating_temp": "temperature/gpu_temp_max_gpu_threshold",
    "gpu_power_readings/instantaneous_power_draw": "gpu_power_readings/instant_power_draw",
    "remapped_rows/correctable_error": "remapped_rows/remapped_row_corr",
    "remapped_rows/uncorrectable_error": "remapped_rows/remapped_row_unc",
    "remapped_rows/remapping_failure_occurred": "remapped_rows/remapped_row_failure",
    "ecc_errors/volatile/sram_uncorrectable_sec_ded": "ecc_errors/volatile/sram_uncorrectable_secded",
    **{f"utilization/{name}": f"utilization/{name}_util" for name in ("gpu", "memory", "encoder", "decoder")},
    **{f"{group}/{title}": f"{group}/{name}_clock" for group in ("clocks", "max_clocks")
       for title, name in (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"))},
    **{f"{_COUNTERS}/{title}": f"{_COUNTERS}/{_COUNTERS}_{name}" for title, name in (
        ("sw_power_capping", "sw_power_cap"), ("sync_boost", "sync_boost"),
        ("sw_thermal_slowdown", "sw_therm_slowdown"), ("hw_thermal_slowdown", "hw_therm_slowdown"),
        ("hw_power_braking", "hw_power_brake"))},
}  # fmt: skip
_REASON_TITLES = re.compile("^clocks_(event|throttle)_reasons/(?:hw_slowdown/)?([a-z_]+)$")
_REASON_NAMES = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}

Texts = Mapping[str, str]


@dataclass
class _Gpu:
    """One GPU of a log: texts by path, and those of its MIG instances with their lines."""

    line: int
    address: str
    texts: dict[str, str] = field(default_factory=dict)
    instances: list[tuple[int, dict[str, str]]] = field(default_factory=list)


@dataclass
class _Log:
    """One log. What follows a damaged place is lost; GPUs before it are kept."""

    line: int
    head: dict[str, str] = field(default_factory=dict)
    gpus: list[_Gpu] = field(default_factory=list)
    damage: tuple[int, str] | None = None


def fits_xml(head: str) -> bool:
    """Whether a text is a log of `nvidia-smi -q -x`."""
    return _XML_BEGIN.search(head) is not None


def fits_text(head: str) -> bool:
    """Whether a text is a log of `nvidia-smi -q`."""
    return _TEXT_BEGIN.search(head) is not None


def read_xml(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    begins = [begin.start() for begin in _XML_BEGIN.finditer(text)]
    line, last = 1, 0
    for begin, following in zip(begins, [*begins[1:], len(text)], strict=True):
        front, first = text[last:begin] if begin == begins[0] else "", line
        line += text.count("\n", last, begin)
        end = text.find(_XML_END, begin, following)
        stop = following if end < 0 else end + len(_XML_END)
        stamp = _add(_parsed(text[begin:stop], line), rows, XML)
        _add_sentences(front, first, stamp, rows)
        _add_sentences(text[stop:following], line + text.count("\n", begin, stop), stamp, rows)
        last = begin


def _add_sentences(text: str, first: int, stamp: str | None, rows: Rows) -> None:
    """Rows of the GPUs that nvidia-smi calls lost in a line between logs."""
    for number, line in enumerate(text.splitlines()):
        if stamp is not None and (match := _SENTENCE.search(line)) is not None:
            rows.add(first + number, {"timestamp": stamp, "gpu": _LOST, "pci_bus_id": address(match[1] or match[2])})


def _parsed(text: str, line: int) -> _Log:
    """One log of XML, which begins in this line."""
    log, depth = _Log(line), 0
    lines = (line + text.count("\n", 0, begin.start()) for begin in _XML_GPU.finditer(text))
    try:
        # A text that begins with the log has no document type, and so no entities.
        for event, element in ET.iterparse(io.StringIO(text), events=("start", "end")):  # noqa: S314
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1 and element.tag == "gpu":
                gpu = _Gpu(next(lines, line), element.get("id", ""), dict(_texts(element)))
                gpu.instances = [(gpu.line, dict(_texts(part))) for part in element.iterfind("mig_devices/mig_device")]
                log.gpus.append(gpu)
            elif event == "end" and depth == 1:
                log.head[element.tag] = (element.text or "").strip()
    except ET.ParseError as error:
        why = f"the log is cut short or damaged ({expat.errors.messages[error.code]})"
        log.damage = (line + error.position[0] - 1, why)
    return log


def _texts(element: ET.Element, path: str = "") -> Iterator[tuple[str, str]]:
    """The texts inside an element by their paths in it."""
    for child in element:
        if child.tag not in _UNUSED and path.count("/") < _DEEPEST:
            yield f"{path}{child.tag}", (child.text or "").strip()
            yield from _texts(child, f"{path}{child.tag}/")


def read_text(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the last line may be cut in the middle of its value
    for log in _logs(text):
        _add(log, rows, TEXT)


def _logs(text: str) -> Iterator[_Log]:
    log: _Log | None = None
    titles: list[str] = []
    for number, line in written(text):
        if _TEXT_BEGIN.match(line.strip()):
            if log is not None:
                yield log
            log = _Log(number)
        elif log is not None and (match := _TEXT_GPU.match(line) or _SENTENCE.search(line)) is not None:
            lost = {"uuid": _LOST} if match.re is _SENTENCE else {}
            log.gpus.append(_Gpu(number, match[1] or match[2], lost))
        elif log is not None and (match := _LINE.match(line)) is not None:
            _put(log, number, titles, match)
    if log is not None:
        yield log


def _put(log: _Log, number: int, titles: list[str], match: re.Match[str]) -> None:
    """What a line says below the titles above it, which begin with those of the GPU."""
    indent, title, value = match.groups()
    titles[max(len(indent) // _INDENT - 1, 0) :] = [re.sub("[^a-z0-9]+", "_", title.lower()).strip("_")]
    if not log.gpus or not indent:
        log.head.setdefault(titles[-1], (value or "").strip())
        return
    gpu = log.gpus[-1]
    if titles == ["mig_device"]:
        gpu.instances.append((number, {}))
    elif titles[0] == "mig_device" and gpu.instances:
        gpu.instances[-1][1]["/".join(titles[1:])] = (value or "").strip()
    elif value is not None:
        gpu.texts[_path("/".join(titles))] = value.strip()


def _path(titles: str) -> str:
    """The path in XML of what stands under these titles."""
    if (match := _REASON_TITLES.match(titles)) is not None:
        kind, reason = match.groups()
        return f"clocks_{kind}_reasons/clocks_{kind}_reason_{_REASON_NAMES.get(reason, reason)}"
    return _TITLES.get(titles, titles)


def _add(log: _Log, rows: Rows, tool: str) -> str | None:
    """Add the rows of a log, and return its time."""
    printed = log.head.get("timestamp", "")
    stamp = Times(rows, tool).of(printed, 0) if printed else None
    if log.damage is not None:
        rows.refuse(*log.damage)
    elif not log.gpus:
        rows.refuse(log.line, "the log has no GPU")
    complete = log.damage is None and log.head.get("attached_gpus") == str(len(log.gpus))
    for position, gpu in enumerate(log.gpus):
        if stamp is None:
            rows.refuse(gpu.line, "its log has no readable time")
            continue
        inside = gpu.texts.get("pci/pci_bus_id", "")
        board: dict[str, Value] = {"timestamp": stamp, "driver": log.head.get("driver_version")}
        board |= {"pci_bus_id": address(inside if re.search("[0-9]", inside) else gpu.address)}
        board |= {name: gpu.texts.get(path) for name, path in _IDENTITY.items()}
        uuid = gpu.texts.get("uuid", "")
        if not uuid:  # `nvidia-smi -q -d` does not print it: then its number is all that is known
            del board["gpu"]
        elif re.search("(?i)err", uuid):
            board["gpu"] = _LOST
        # With -i, a log has not all GPUs: their places are no numbers then.
        number = position if complete and not re.search("(?i)is lost|requires reset|err", uuid) else None
        rows.add(gpu.line, {**board, "index": number, "instance": None, **_readings(gpu.texts)})
        for line, texts in gpu.instances:
            compute = texts.get("compute_instance_id", "0")
            name = f"GI{texts.get('gpu_instance_id', '')}" + ("" if compute == "0" else f"-CI{compute}")
            memory = {label: _number(texts, label) for label in _OF_INSTANCE}
            rows.add(line, {**board, "model": None, "index": number, "instance": name, **memory})
    return stamp


def _readings(texts: Texts) -> dict[str, Value]:
    values: dict[str, Value] = {label: _number(texts, label) for label in _NUMBERS}
    failed = texts.get("remapped_rows/remapped_row_failure", "").lower()
    licensed = texts.get("vgpu_software_licensed_product/license_status", "").lower().split(" ")[0]
    return {
        **values,
        "clock_event_reasons": _reasons(texts),
        "ecc_corrected": _ecc(texts, "ecc_corrected"),
        "ecc_uncorrected": _ecc(texts, "ecc_uncorrected"),
        "remapped_rows": _sum(values["remapped_rows_corrected"], values["remapped_rows_uncorrected"]),
        "row_remap_failed": {"yes": 1, "no": 0}.get(failed),
        "vgpu_licensed": {"licensed": 1, "unlicensed": 0}.get(licensed),
    }


def _number(texts: Texts, label: str) -> str | None:
    """The text of the first place that states a number, or that the GPU is lost."""
    return next((texts[place] for place in _NUMBERS[label] if _STATED.search(texts.get(place, ""))), None)


def _sum(*values: Value) -> int | None:
    """The sum of counts; None where one is not known."""
    counts = [int(value) for value in values if isinstance(value, str) and value.isdecimal()]
    return sum(counts) if len(counts) == len(values) else None


def _ecc(texts: Texts, name: str) -> int | None:
    total, parts = _ECC[name]
    stated = [texts[path] for part in parts if (path := f"ecc_errors/volatile/{part}") in texts]
    return _sum(*stated) if stated else _sum(texts.get(f"ecc_errors/volatile/{total}"))


def _reasons(texts: Texts) -> int | None:
    """The bit mask of the reasons for the clock. None where no reason is active or inactive."""
    mask = None
    for name, reason in REASONS.items():
        for kind in ("event", "throttle"):
            state = texts.get(f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}", "").lower()
            if state in ("active", "not active"):
                mask = (mask or 0) | (reason_bit(reason) if state == "active" else 0)
    return mask
