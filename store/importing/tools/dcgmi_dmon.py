"""`dcgmi dmon`: a line for each GPU and reading, under a header of DCGM's short names that comes again and again.

dcgmi prints no times. They may stand in front of each line (`dcgmi dmon ... | ts %.s`), or follow from --at and
--every.
"""

from __future__ import annotations

import re

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind
from ..content import written
from ..meanings import labelled, of_field
from ..rows import Rows, Value
from ..units import find, split_label
from .stamped import COUNTED, Sweeps, Times, front

NAME = "dcgmi dmon"

# DCGM's short names and the numbers of their fields: both stay from version to version.
_FIELDS = {
    "SMCLK": 100, "MMCLK": 101, "DVCCTR": 112, "MMTMP": 140, "TMPTR": 150, "POWER": 155, "TOTEC": 156, "POWINST": 157,
    "EPLMT": 164, "PSTAT": 190, "FANSP": 191, "RPCTR": 202, "GPUTL": 203, "MCUTL": 204, "ECUTL": 206, "DCUTL": 207,
    "PVIOL": 240, "TVIOL": 241, "SBVIO": 242, "BLVIO": 243, "RVIOL": 245, "FBFRE": 251, "FBUSD": 252,
    "ESVTL": 310, "EDVTL": 311, "URMPS": 393, "CRMPS": 394, "RRF": 395, "VLCST": 526,
    "GRACT": 1001, "SMACT": 1002, "SMOCC": 1003, "TENSO": 1004, "DRAMA": 1005, "FP64A": 1006, "FP32A": 1007,
    "FP16A": 1008, "PCITX": 1009, "PCIRX": 1010, "NVLTX": 1011, "NVLRX": 1012,
    "CLKSWTHNS": 1422, "CLKHWTHNS": 1423, "CLKPWRBRKNS": 1424,
}  # fmt: skip
_ABOUT = {"UUID#": "gpu", "DVNAM": "model", "SRNUM": "serial", "VBVER": "vbios", "DRVER": "driver"}
_XID = "XIDER"
_XID_CODE = re.compile("[1-9][0-9]{0,4}")

_HEADER = re.compile(r"#\s*Entity\b", re.IGNORECASE)
_UNITS = re.compile(r"(?<!\S)Id(?!\S)", re.IGNORECASE)
_KINDS = "GPU|GPU[-_]I|GPU[-_]CI|vGPU|Switch|Link|CPU|CPU[-_]CORE|Core|ConnectX|UNKNOWN"
_ENTITY = re.compile(rf"(?<!\S)({_KINDS}) +([0-9]{{1,9}})(?!\S)", re.IGNORECASE)
_SAYS = re.compile("error|unable|fail", re.IGNORECASE)


def fits(head: str) -> bool:
    """Whether a text has the header of `dcgmi dmon`."""
    return _HEADER.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add the readings of a log. Raises InputError where it has no times and no option gives them."""
    log = _Log(rows)
    for line, content in written(text):
        log.take(line, content)
    log.end()


class _Header:
    """The columns of the lines that follow it."""

    def __init__(self, text: str, entity: re.Match[str]) -> None:
        words = list(re.finditer(r"\S+", _behind(text, entity)))
        self.names = [word[0] for word in words]
        self.labels: list[str] = []
        self._begin = entity.start()
        self._places = [word.span() for word in words]
        self.state_units("")

    def state_units(self, text: str) -> None:
        """Take the units from the second line of a header, where each stands under its column."""
        units = {}
        for word in re.finditer(r"\S+", text):
            far = [min(abs(word.start() - low), abs(word.end() - high)) for low, high in self._places]
            units[self.names[far.index(min(far))]] = word[0]
        self.labels = [_label(name, units.get(name, "")) for name in self.names]

    def fields(self, text: str, entity: re.Match[str]) -> list[str]:
        """The values of a line. A text may have spaces; then the line is cut where the columns begin."""
        words = text[entity.end() :].split()
        if len(words) <= len(self.names):
            return words
        begins = [low + entity.start() - self._begin for low, _ in self._places]
        if len(text) <= begins[-1] or not all(text[low - 1].isspace() and not text[low].isspace() for low in begins):
            return words
        return [text[low:high].strip() for low, high in zip(begins, [*begins[1:], len(text)], strict=True)]


def _behind(text: str, found: re.Match[str]) -> str:
    return " " * found.end() + text[found.end() :]


def _label(name: str, stated: str) -> str:
    """The name of a column's meaning, with its unit; a column that is not stored keeps its own name."""
    known = of_field(_FIELDS.get(name, 0))
    if known is None:
        return _ABOUT.get(name, name)
    meaning, unit = known
    said = find(stated, meaning.dimension) if stated and meaning.dimension else None
    return labelled(meaning, unit if said is None else said.name)


class _Log:
    """A log as far as it was read."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.times, self.sweeps = rows, Times(rows, NAME), Sweeps()
        self.header: _Header | None = None
        self.units_next = self.instances = self.by_uuid = False
        self.parents: dict[str, str] = {}  # node -> the GPU whose line came last
        self.said: dict[str, None] = {}
        self.xids: dict[str, str] = {}

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if found := _HEADER.search(text):
            header = _Header(text, found)
            self.header, self.units_next = header if header.names else None, True
        elif self.header is not None and (found := _ENTITY.search(text)):
            self.units_next = False
            self._reading(line, text, found, self.header)
        elif self.header is not None and self.units_next and (found := _UNITS.search(text)):
            self.units_next = False
            self.header.state_units(_behind(text, found))
        elif _SAYS.search(text):
            self.said[" ".join(text.split())] = None
        elif re.search("[0-9]", text):
            self.rows.refuse(line, f"it is no reading of {NAME}")

    def _reading(self, line: int, text: str, entity: re.Match[str], header: _Header) -> None:
        kind, number = entity[1].upper().replace("_", "-"), entity[2]
        name = f"{kind} {number}"
        node, said = front(text[: entity.start()])
        when = self.times.of(said, self.sweeps.of(node, name))
        fields = header.fields(text, entity)
        if when is None:
            self.rows.refuse(line, "what stands in front of it is no time")
        elif not kind.startswith("GPU"):
            self.rows.refuse(line, f"it is of a {entity[1]}, and only GPUs are stored")
        elif len(fields) != len(header.names):
            self.rows.refuse(line, f"it has {len(fields)} values, but the header names {len(header.names)}")
        else:
            values: dict[str, Value] = {"timestamp": when, "index": None, "instance": None}
            values |= dict(zip(header.labels, fields, strict=True))
            self.by_uuid |= "gpu" in values
            if node:
                values["node"] = node
            if kind == "GPU":
                values["index"] = self.parents[node] = number
            else:  # dcgmi prints the instances of a GPU behind it
                values["index"], values["instance"], self.instances = self.parents.get(node), name, True
                values |= {label: None for label in header.labels if not _of_instance(label)}
            key = self.rows.add(line, values)
            if _XID in header.names:
                self._xid(key, f"{node}:{name}", fields[header.names.index(_XID)])

    def _xid(self, key: int, name: str, code: str) -> None:
        """An event where the number of the last error changes. That of the first line happened before the log."""
        code = code if _XID_CODE.fullmatch(code) else ""
        before, self.xids[name] = self.xids.get(name), code
        if before is None and code:
            self.rows.note(
                f"{name.lstrip(':')} had XID {code} before the log began: when is not known, so it is no event"
            )
        elif code and code != before:
            self.rows.event(key, Event(EventKind.XID, None, f"the driver told of XID {code}", code=int(code)))

    def end(self) -> None:
        """Tell what the tool itself said. Raises InputError where it said something and there is no reading."""
        if self.said and not len(self.rows):
            raise InputError(f"{self.rows.file} has no readings; {NAME} said: {next(iter(self.said))}")
        for text in self.said:
            self.rows.note(f"{NAME} said: {text}")
        if self.times.counted:
            self.rows.note(COUNTED)
        if len(self.rows) and not self.by_uuid:
            self.rows.note("dcgmi's own numbers of GPUs are taken for the driver's: `dcgmi discovery -l` shows both")
        if self.instances:
            self.rows.note("of MIG instances only memory and profiling metrics are stored: others are of the whole GPU")


def _of_instance(label: str) -> bool:
    """Whether a MIG instance has the metric itself, and not its GPU."""
    base, unit = split_label(label)
    return unit in ("ratio", "B/s") or base in ("memory_used", "memory_free") or label in _ABOUT.values()
