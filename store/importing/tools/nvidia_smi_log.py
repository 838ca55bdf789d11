"""`nvidia-smi -q`, as XML (-x) or as text: the whole state of each GPU, or a part of it; once or many times in a file.

Each log is read by itself, so a torn one costs only itself. Elements were renamed and moved from driver to driver: a
value is taken from the first of its places that a log has. The titles of the text become paths as those of XML. The
XML parser sees nothing outside of the logs: no document type, and so no entities.

A GPU that is lost has `GPU is lost` in place of its values, or only a line with its PCI address: it is a row without
readings, and whoever takes the rows makes an event of it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.parsers import expat

from ..identity import address
from ..lines import written
from ..meanings import REASON_BITS
from ..rows import Rows, Value, parts
from ..times import Times

XML, TEXT = "nvidia-smi -q -x", "nvidia-smi -q"

XML_BEGIN, _XML_END = re.compile("<nvidia_smi_log[ >]"), "</nvidia_smi_log>"
_XML_GPU = re.compile("<gpu[ >]")
_DEEPEST = 8  # elements inside each other in the element `gpu`
_UNUSED = ("supported_clocks", "processes", "accounted_processes", "mig_devices")  # the most of a log, and instances
TEXT_BEGIN = re.compile(r"^=+ ?NVSMI LOG ?=+\s*$", re.MULTILINE)
_INDENT = 4  # spaces for each title that a line of text stands under
_ADDRESS = "[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:[.][0-9A-Fa-f])?"
_TEXT_GPU = re.compile(rf"^GPU ({_ADDRESS})\s*$")
_LINE = re.compile(r"^( *)(\S.*?)\s*(?: : ?(.*))?$")
_SENTENCE = re.compile(rf"(?i)unable to determine the device handle for gpu *({_ADDRESS})|gpu *({_ADDRESS}).* is lost")
_LOST, _RESET = "GPU is lost", "GPU requires reset"
_Sentence = tuple[int, str, str]  # in this line, the GPU at this address is lost or requires a reset
_STATED = re.compile("(?i)[0-9]|is lost|requires reset|err!")  # other words mean that a value is not known

_IDENTITY = {  # in XML and, where it has another one, in text
    "gpu": ("uuid", "gpu_uuid"),
    "model": ("product_name",),
    "serial": ("serial", "serial_number"),
    "vbios": ("vbios_version",),
}
# Numbers: the elements that they may stand in, and their names there, those of the newest drivers and of XML first.
_NUMBERS: dict[str, list[str]] = {
    label: [f"{group}{name}" for name in names.split() for group in groups]
    for groups, labels in (
        (("gpu_power_readings/", "power_readings/"), {  # the second until driver 530
            "power [W]": "power_draw", "power_average [W]": "average_power_draw",
            "power_instant [W]": "instant_power_draw instantaneous_power_draw",
            "power_limit [W]": "current_power_limit enforced_power_limit power_limit",
            **{f"power_limit_{kind} [W]": f"{kind}_power_limit" for kind in ("default", "min", "max")},
        }),
        *(((f"{kind}clocks/",), {
            f"sm_clock{end} [MHz]": "sm_clock sm graphics_clock graphics", f"mem_clock{end} [MHz]": "mem_clock memory",
        }) for kind, end in (("", ""), ("max_", "_max"))),
        (("temperature/",), {
            "temperature [C]": "gpu_temp gpu_current_temp",
            "memory_temperature [C]": "memory_temp memory_current_temp",
            "temperature_max_operating [C]": "gpu_temp_max_gpu_threshold gpu_max_operating_temp",
            "temperature_slowdown [C]": "gpu_temp_slow_threshold gpu_slowdown_temp",
            "temperature_shutdown [C]": "gpu_temp_max_threshold gpu_shutdown_temp",
        }),
        (("utilization/",), {
            "utilization [%]": "gpu_util gpu",
            **{f"{part}_utilization [%]": f"{part}_util {part}" for part in ("memory", "encoder", "decoder")},
        }),
        (("fb_memory_usage/", "memory_usage/"), {f"memory_{kind} [MiB]": kind for kind in ("used", "free", "total")}),
        (("",), {"fan_speed [%]": "fan_speed", "pstate": "performance_state"}),
        (("pci/",), {"pcie_replays": "replay_counter replays_since_reset"}),
        (("remapped_rows/",), {
            "remapped_rows_corrected": "remapped_row_corr correctable_error",
            "remapped_rows_uncorrected": "remapped_row_unc uncorrectable_error",
        }),
        (("clocks_event_reasons_counters/clocks_event_reasons_counters_", "clocks_event_reasons_counters/"), {
            "power_violation [us]": "sw_power_cap sw_power_capping",
            "sync_boost_violation [us]": "sync_boost",
            "software_thermal [us]": "sw_therm_slowdown sw_thermal_slowdown",
            "hardware_thermal [us]": "hw_therm_slowdown hw_thermal_slowdown",
            "power_brake [us]": "hw_power_brake hw_power_braking",
        }),
    )
    for label, names in labels.items()
}  # fmt: skip
_OF_INSTANCE = ("memory_used [MiB]", "memory_free [MiB]", "memory_total [MiB]")
_REASON = re.compile(
    "clocks_(?:event|throttle)_reasons/(?:hw_slowdown/)?(?:clocks_(?:event|throttle)_reason_)?([a-z_]+)"
)
# Memory errors since the driver was loaded: one total (until driver 440), or parts that add up.
_ECC = {
    "ecc_corrected": ("single_bit/total", "sram_correctable dram_correctable"),
    "ecc_uncorrected": (
        "double_bit/total",
        "sram_uncorrectable sram_uncorrectable_parity sram_uncorrectable_secded sram_uncorrectable_sec_ded "
        "dram_uncorrectable",
    ),
}

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
    sentences: list[_Sentence] = field(default_factory=list)
    damage: tuple[int, str] | None = None


def read_xml(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    _add_logs(_xml_logs(text), _sentences(XML_BEGIN.split(text, maxsplit=1)[0], 1), rows)


def _xml_logs(text: str) -> Iterator[_Log]:
    for line, part in parts(text, XML_BEGIN):
        end = part.find(_XML_END)
        xml = part if end < 0 else part[: end + len(_XML_END)]
        log = _parsed(xml, line)
        log.sentences = _sentences(part[len(xml) :], line + xml.count("\n"))
        yield log


def _sentences(text: str, first: int) -> list[_Sentence]:
    """The lines of a text that stands between logs in which nvidia-smi calls a GPU lost."""
    return [
        (first + number, address(match[1] or match[2]), _RESET if "requires reset" in line.lower() else _LOST)
        for number, line in enumerate(text.splitlines())
        if (match := _SENTENCE.search(line)) is not None
    ]


def _add_logs(logs: Iterable[_Log], sentences: list[_Sentence], rows: Rows) -> None:
    """Add the rows of logs, and of the GPUs that sentences in front of them and behind each call lost: at the time of
    the log before, but where that has the GPU, of the next."""
    stamp: str | None = None
    for log in logs:
        stamp = _add(log, rows)
        listed = {address(gpu.address) for gpu in log.gpus}
        _add_lost([*sentences, *(entry for entry in log.sentences if entry[1] not in listed)], stamp, rows)
        sentences = [entry for entry in log.sentences if entry[1] in listed]
    _add_lost(sentences, stamp, rows)


def _add_lost(sentences: list[_Sentence], stamp: str | None, rows: Rows) -> None:
    for line, place, mark in sentences if stamp is not None else ():
        rows.add(line, {"timestamp": stamp, "gpu": mark, "pci_bus_id": place})


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
    for child in element:
        if child.tag not in _UNUSED and path.count("/") < _DEEPEST:
            yield f"{path}{child.tag}", (child.text or "").strip()
            yield from _texts(child, f"{path}{child.tag}/")


def read_text(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the last line may be cut in the middle of its value
    _add_logs(_logs(text), _sentences(TEXT_BEGIN.split(text, maxsplit=1)[0], 1), rows)


def _logs(text: str) -> Iterator[_Log]:
    log: _Log | None = None
    titles: list[str] = []
    for number, line in written(text):
        if TEXT_BEGIN.match(line.strip()):
            if log is not None:
                yield log
            log = _Log(number)
        elif log is not None and (lost := _sentences(line, number)):
            if lost[0][1] in (address(gpu.address) for gpu in log.gpus):
                log.sentences += lost
            else:  # in the place of the GPU
                log.gpus.append(_Gpu(number, lost[0][1], {"uuid": lost[0][2]}))
        elif log is not None and (match := _TEXT_GPU.match(line)) is not None:
            log.gpus.append(_Gpu(number, match[1]))
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
        gpu.texts["/".join(titles)] = value.strip()


def _add(log: _Log, rows: Rows) -> str | None:
    """Add the rows of a log, and return its time."""
    printed = log.head.get("timestamp", "")
    stamp = Times(rows).of(printed, 0) if printed else None
    if log.damage is not None:
        rows.refuse(*log.damage)
    elif not log.gpus:
        rows.refuse(log.line, "the log has no GPU")
    complete = log.damage is None and log.head.get("attached_gpus") == str(len(log.gpus))
    for position, gpu in enumerate(log.gpus):
        if stamp is None:
            rows.refuse(gpu.line, "its log has no readable time")
            continue
        inside = _first(gpu.texts, ("pci/pci_bus_id", "pci/bus_id"), "[0-9]")
        board: dict[str, Value] = {"timestamp": stamp, "driver": log.head.get("driver_version")}
        board |= {name: _first(gpu.texts, places) for name, places in _IDENTITY.items()}
        board |= {"pci_bus_id": address(inside or gpu.address)}
        uuid = str(board["gpu"] or "")
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
            memory = {label: _first(texts, _NUMBERS[label], _STATED) for label in _OF_INSTANCE}
            rows.add(line, {**board, "model": None, "index": number, "instance": name, **memory})
    return stamp


def _readings(texts: Texts) -> dict[str, Value]:
    values: dict[str, Value] = {label: _first(texts, places, _STATED) for label, places in _NUMBERS.items()}
    failed = _first(texts, ("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred")) or ""
    licensed = texts.get("vgpu_software_licensed_product/license_status", "").lower().split(" ")[0]
    return {
        **values,
        "clock_event_reasons": _reasons(texts),
        **{name: _ecc(texts, *places) for name, places in _ECC.items()},
        "remapped_rows": _sum(values["remapped_rows_corrected"], values["remapped_rows_uncorrected"]),
        "row_remap_failed": {"yes": 1, "no": 0}.get(failed.lower()),
        "vgpu_licensed": {"licensed": 1, "unlicensed": 0}.get(licensed),
    }


def _first(texts: Texts, places: Iterable[str], pattern: str | re.Pattern[str] = "") -> str | None:
    """The text of the first of these places that has one in which the pattern is; None if there is none."""
    return next((text for place in places if (text := texts.get(place)) is not None and re.search(pattern, text)), None)


def _sum(*values: Value) -> int | None:
    """The sum of counts; None where one is not known."""
    counts = [int(value) for value in values if isinstance(value, str) and value.isdecimal()]
    return sum(counts) if len(counts) == len(values) else None


def _ecc(texts: Texts, total: str, parts: str) -> int | None:
    stated = [texts[path] for part in parts.split() if (path := f"ecc_errors/volatile/{part}") in texts]
    return _sum(*stated) if stated else _sum(texts.get(f"ecc_errors/volatile/{total}"))


def _reasons(texts: Texts) -> int | None:
    """The bit mask of the reasons for the clock. None where no reason is active or inactive."""
    states = {path: state.lower() for path, state in texts.items() if state.lower() in ("active", "not active")}
    names = {
        match[1]: states[path] for path in states if (match := _REASON.fullmatch(path)) and match[1] in REASON_BITS
    }
    active = {REASON_BITS[name] for name, state in names.items() if state == "active"}
    return sum(active) if names else None
