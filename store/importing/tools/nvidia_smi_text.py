"""`nvidia-smi -q`: the whole state of each GPU, or with -d a part of it, as text; once, or with -l many times.

The titles of the text are turned into the paths that the same values have in XML, and read as those
(`nvidia_smi_log.py`).
"""

from __future__ import annotations

import re

from ..content import written
from ..rows import Rows
from .nvidia_smi_log import Gpu, Log, add

NAME = "nvidia-smi -q"

_BEGIN = re.compile(r"^=+ ?NVSMI LOG ?=+\s*$", re.MULTILINE)
_INDENT = 4  # spaces for each title that a line stands under
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f.]+)\s*$")
_SAID = re.compile(r"^( *)(\S.*?)\s*(?: : ?(.*))?$")
# Titles whose path in XML does not follow from their words.
_PATHS = {
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
    **{
        f"{of}/{title}": f"{of}/{name}_clock"
        for of in ("clocks", "max_clocks")
        for title, name in (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"))
    },
}
_REASONS = re.compile("^clocks_(event|throttle)_reasons/(?:hw_slowdown/)?([a-z_]+)$")
_REASON = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}
_COUNTERS = "clocks_event_reasons_counters/"
_COUNTER = {
    "sw_power_capping": "sw_power_cap",
    "sw_thermal_slowdown": "sw_therm_slowdown",
    "hw_thermal_slowdown": "hw_therm_slowdown",
    "hw_power_braking": "hw_power_brake",
}


def fits(head: str) -> bool:
    """Whether a text is a log of `nvidia-smi -q`."""
    return _BEGIN.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add a row for each GPU of each log in the text, and for each MIG instance."""
    log: Log | None = None
    above: list[str] = []
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the last line may be cut in the middle of its value
    for number, line in written(text):
        if _BEGIN.match(line.strip()):
            if log is not None:
                add(log, rows)
            log = Log(number)
        elif log is not None and (found := _GPU.match(line)):
            log.gpus.append(Gpu(number, {"pci/pci_bus_id": found[1]}))
        elif log is not None and (found := _SAID.match(line)):
            _put(log, number, above, found)
    if log is not None:
        add(log, rows)


def _put(log: Log, number: int, above: list[str], found: re.Match[str]) -> None:
    """What a line says below the titles `above`, which begin with those of the GPU."""
    indent, title, said = found.groups()
    above[max(len(indent) // _INDENT - 1, 0) :] = [_snake(title)]
    if not log.gpus or not indent:
        log.head.setdefault(above[-1], (said or "").strip())
        return
    gpu = log.gpus[-1]
    if above == ["mig_device"]:
        gpu.instances.append((number, {}))
    elif above[0] == "mig_device" and gpu.instances:
        gpu.instances[-1][1]["/".join(above[1:])] = (said or "").strip()
    elif said is not None:
        gpu.texts[_path("/".join(above))] = said.strip()


def _snake(title: str) -> str:
    return re.sub("[^a-z0-9]+", "_", title.lower()).strip("_")


def _path(titles: str) -> str:
    """The path in XML of what stands under these titles."""
    if found := _REASONS.match(titles):
        kind, reason = found.groups()
        return f"clocks_{kind}_reasons/clocks_{kind}_reason_{_REASON.get(reason, reason)}"
    if titles.startswith(_COUNTERS):
        counter = titles.removeprefix(_COUNTERS)
        return f"{_COUNTERS}clocks_event_reasons_counters_{_COUNTER.get(counter, counter)}"
    return _PATHS.get(titles, titles)
