"""`nvidia-smi dmon`: a line for each GPU and reading, under a header of short names that comes again and again.

Columns depend on -s and the driver. -o DT puts date and time in front; --format csv puts commas between. Without -o,
times may stand in front of each line (`nvidia-smi dmon ... | ts %.s`), or follow from --at and --every.

Not stored are rxpci and txpci, which are of the last 20 ms only, and sbecc and dbecc, which are of the GPU's life.
"""

from __future__ import annotations

import re

from ..content import written
from ..rows import Rows, Value
from ..units import UNITS, find, split_label
from .stamped import COUNTED, Sweeps, Times, front

NAME = "nvidia-smi dmon"

_COLUMNS = {
    "gpu": "index",
    "pwr": "power [W]",
    "temp": "temperature [C]",  # until driver 396
    "gtemp": "temperature [C]",
    "mtemp": "memory_temperature [C]",
    "sm": "utilization [%]",
    "mem": "memory_utilization [%]",
    "enc": "encoder_utilization [%]",
    "dec": "decoder_utilization [%]",
    "mclk": "mem_clock [MHz]",
    "pclk": "sm_clock [MHz]",
    "fb": "memory_used [MiB]",
    "pci": "pcie_replays",
    "gract": "gr_engine_active [%]",
    "smutil": "sm_active [%]",
    "smocc": "sm_occupancy [%]",
    "mmaact": "tensor_active [%]",
    "dram": "dram_active [%]",
    "fp64": "fp64_active [%]",
    "fp32": "fp32_active [%]",
    "fp16": "fp16_active [%]",
}
_INSTANCE = ("mig", "gi", "ci", "gi-id", "ci-id")
_HEADER = re.compile(r"(?:^|[\s\]])#\s*(?:date[\s,]+)?(?:time[\s,]+)?gpu[\s,]+(?!pid\b)\S", re.IGNORECASE)
_SECOND = re.compile(r"(?:^|[\s\]])#\s*(?:YYYYMMDD[\s,]+)?(?:HH:MM:SS[\s,]+)?Idx\b", re.IGNORECASE)


def fits(head: str) -> bool:
    """Whether a text has the header of `nvidia-smi dmon`."""
    headers = (_behind(line, found) for line in head.split("\n") if (found := _HEADER.search(line)))
    return any(sum(word.lower() in _COLUMNS for word in words) > 1 for words in headers)


def _behind(line: str, found: re.Match[str]) -> list[str]:
    """The words of a line of the header."""
    return _words(line[line.index("#", found.start()) + 1 :])


def _words(text: str) -> list[str]:
    return [word.strip() for word in (text.split(",") if "," in text else text.split())]


def read(text: str, rows: Rows) -> None:
    """Add the readings of a log. Raises InputError where it has no times and no option gives them."""
    log = _Log(rows)
    for line, content in written(text):
        log.take(line, content)
    if log.times.counted:
        rows.note(COUNTED)


class _Log:
    """A log as far as it was read."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.times, self.sweeps = rows, Times(rows, NAME), Sweeps()
        self.names: list[str] = []
        self.labels: list[str] = []
        self.texts: dict[str, str] = {}  # each text once: in a long log, most come again and again

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if found := _HEADER.search(text):
            self.names = [name.lower() for name in _behind(text, found)]
            self.labels = [_COLUMNS.get(name, name) for name in self.names]
        elif found := _SECOND.search(text):
            units = _behind(text, found)
            if len(units) == len(self.names):
                self.labels = [_label(name, unit) for name, unit in zip(self.names, units, strict=True)]
        elif self.names:
            self._reading(line, text)
        else:
            self.rows.refuse(line, "it stands before the header")

    def _reading(self, line: int, text: str) -> None:
        fields = [self.texts.setdefault(word, word) for word in _words(text)]
        before = ""
        if "," in text:
            before, _, fields[0] = fields[0].rpartition(" ")
        elif len(fields) > len(self.names):
            before, fields = " ".join(fields[: -len(self.names)]), fields[-len(self.names) :]
        if len(fields) != len(self.names):
            self.rows.refuse(line, f"it has {len(fields)} values, but the header names {len(self.names)}")
            return
        said = dict(zip(self.names, fields, strict=True))
        node, stamp = front(before)
        index = said.get("gpu", "")
        instance = " ".join(f"{name} {said[name]}" for name in _INSTANCE if said.get(name, "-") not in ("-", "N/A", ""))
        clock = " ".join(said[name] for name in ("date", "time") if name in said)
        when = self.times.of(clock if "time" in said else stamp, self.sweeps.of(node, f"{index} {instance}"))
        if when is None:
            self.rows.refuse(line, "it has no readable time")
            return
        values: dict[str, Value] = {"timestamp": when}
        values |= {
            label: value
            for name, label, value in zip(self.names, self.labels, fields, strict=True)
            if name not in ("date", "time", *_INSTANCE)
        }
        if node:
            values["node"] = node
        if instance:
            values["instance"] = instance
        self.rows.add(line, values)


def _label(name: str, unit: str) -> str:
    """The name of a column's meaning, with the unit that the second line of the header states, if it can be one."""
    label = _COLUMNS.get(name, name)
    base, usual = split_label(label)
    dimension = next((each for each, units in UNITS.items() if usual in units), "")
    stated = "MiB" if name == "fb" else unit.removeprefix("GPM:")  # the MB of nvidia-smi are MiB
    known = find(stated, dimension) if dimension else None
    return f"{base} [{known.name}]" if known is not None else label
