"""`dcgmi dmon` and `nvidia-smi dmon`: a line for each GPU and reading, under a header of short names that comes again.

dcgmi prints no times, and nvidia-smi dmon only with -o. They may stand in front of each line (`dcgmi dmon ... | ts
%.s`) or in a line of their own before the readings (`date; dcgmi dmon -c 1`), or follow from --at and --every. Columns
of nvidia-smi depend on -s and the driver; --format csv puts commas between them. Not stored are its rxpci and txpci,
which are of the last 20 ms only, and sbecc and dbecc, which are of the GPU's life.
"""

from __future__ import annotations

import re

from ....errors import InputError
from ..lines import written
from ..meanings import LOST_MARKS, labelled, of_field, split_label
from ..rows import Rows, Value
from ..times import Times

DCGMI, NVIDIA_SMI = "dcgmi dmon", "nvidia-smi dmon"

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
_BOARD = {"UUID#": "gpu", "DVNAM": "model", "SRNUM": "serial", "VBVER": "vbios", "DRVER": "driver"}
_XID, _XID_CODE = "XIDER", re.compile("[1-9][0-9]{0,4}")
ENTITY_HEADER = re.compile(r"#\s*Entity\b", re.IGNORECASE)
_ENTITY_UNITS = re.compile(r"(?<!\S)Id(?!\S)", re.IGNORECASE)
_KINDS = "GPU|GPU[-_]I|GPU[-_]CI|vGPU|Switch|Link|CPU|CPU[-_]CORE|Core|ConnectX|UNKNOWN"
_ENTITY = re.compile(rf"(?<!\S)({_KINDS}) +([0-9]{{1,9}})(?!\S)", re.IGNORECASE)
_MESSAGE = re.compile(r"\b(?:error|unable|fail|no devices)|is lost\b|requires reset", re.IGNORECASE)

_COLUMNS = {
    "gpu": "index", "pwr": "power [W]", "mclk": "mem_clock [MHz]", "pclk": "sm_clock [MHz]", "fb": "memory_used [MiB]",
    "temp": "temperature [C]", "gtemp": "temperature [C]", "mtemp": "memory_temperature [C]",  # temp: until driver 396
    "sm": "utilization [%]", "mem": "memory_utilization [%]", "pci": "pcie_replays",
    "enc": "encoder_utilization [%]", "dec": "decoder_utilization [%]", "mmaact": "tensor_active [%]",
    "gract": "gr_engine_active [%]", "smutil": "sm_active [%]", "smocc": "sm_occupancy [%]",
    "dram": "dram_active [%]", "fp64": "fp64_active [%]", "fp32": "fp32_active [%]", "fp16": "fp16_active [%]",
}  # fmt: skip
_OF_LOST = re.compile(rf"\s\[?({'|'.join(LOST_MARKS)})\]?\s*$", re.IGNORECASE)
_MAY_BE_TIME = re.compile(r"\s*(?:[A-Z][a-z]{1,2}\b|\S+\s*$|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.,]+\s*$)")
_INSTANCE = ("mig", "gi", "ci", "gi-id", "ci-id")
_NO_METRIC = ("date", "time", _XID, *_INSTANCE)
_GPU_HEADER = re.compile(r"(?:^|[\s\]])#\s*(?:date[\s,]+)?(?:time[\s,]+)?gpu[\s,]+(?!pid\b)\S", re.IGNORECASE)
_GPU_UNITS = re.compile(r"(?:^|[\s\]])#\s*(?:YYYYMMDD[\s,]+)?(?:HH:MM:SS[\s,]+)?Idx\b", re.IGNORECASE)


class _Log:
    """A log as far as it was read: the names of the present columns, and their meanings with units."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.times = rows, Times(rows)
        self._sweep, self._entities = 0, set[str]()  # the number of the present sweep, and what was in it so far
        self.parent: str | None = None  # the GPU whose line came last: dcgmi prints the instances of a GPU behind it
        self.names: list[str] = []
        self.labels: list[str] = []
        self._texts: dict[str, str] = {}  # each text once: in a long log, most come again and again

    def add(
        self, line: int, before: str, fields: list[str], *, entity: str, values: dict[str, Value], clock: str = ""
    ) -> int | None:
        """Add the reading of a line, and return its key; None where it is refused. `values` are what is known besides
        the columns, `before` is the text in front of them, `clock` the time of its own."""
        if entity in self._entities:  # a new sweep begins when a GPU comes again
            self._sweep, self._entities = self._sweep + 1, set()
        self._entities.add(entity)
        if len(fields) != len(self.names):
            self.rows.refuse(line, f"it has {len(fields)} values, but the header names {len(self.names)}")
            return None
        stamp_text = self.times.of(clock or before, self._sweep)
        if stamp_text is None:
            self.rows.refuse(line, "it has no readable time")
            return None
        texts = [self._texts.setdefault(text, text) for text in fields]
        columns = {label: text for name, label, text in zip(self.names, self.labels, texts, strict=True)
                   if name not in _NO_METRIC}  # fmt: skip
        return self.rows.add(line, {"timestamp": stamp_text, **columns, **values})

    def begins_at(self, text: str) -> bool:
        """Whether a line is a time and nothing else, with which a new sweep begins."""
        if not _MAY_BE_TIME.match(text) or not self.times.begins(text, self._sweep + 1):
            return False
        self._sweep, self._entities = self._sweep + 1, set()
        return True


def read_dcgmi(text: str, rows: Rows) -> None:
    """Add the readings of a log. Raises InputError where it has no times and no option gives them."""
    log, messages = _Log(rows), dict[str, None]()
    for line, content in written(text):
        if (match := ENTITY_HEADER.search(content)) is not None:
            log.names = content[match.end() :].split()
            log.labels = [_of_dcgm(name) for name in log.names]
        elif log.names and (match := _ENTITY.search(content)) is not None:
            _reading_of_dcgmi(log, line, content, match)
        elif _ENTITY_UNITS.search(content):
            continue
        elif _MESSAGE.search(content):
            messages[" ".join(content.split())[:200]] = None
        elif re.search("[0-9]", content) and not log.begins_at(content):
            rows.refuse(line, f"it is no reading of {DCGMI}")
    if messages and not len(rows):
        raise InputError(f"{rows.file} has no readings; {DCGMI} said: {next(iter(messages))}")
    for message in messages:
        rows.note(f"{DCGMI} said: {message}")
    if len(rows) and "gpu" not in log.labels:
        rows.note("dcgmi's own numbers of GPUs are taken for the driver's: `dcgmi discovery -l` shows both")


def _reading_of_dcgmi(log: _Log, line: int, text: str, entity: re.Match[str]) -> None:
    """A line of values behind the entity that they are of."""
    kind, number = entity[1].upper().replace("_", "-"), entity[2]
    if not kind.startswith("GPU"):
        log.rows.refuse(line, f"it is of a {entity[1]}, and only GPUs are stored")
        return
    before, name = text[: entity.start()], f"{kind} {number}"
    values: dict[str, Value] = {"index": number, "instance": None}
    if kind == "GPU":
        log.parent = number
    else:
        values = {"index": log.parent, "instance": name}
        values |= {label: None for label in log.labels if not _of_instance(label)}
        log.rows.note("of MIG instances only memory and profiling metrics are stored: others are of the whole GPU")
    fields = text[entity.end() :].split()
    if len(fields) > len(log.names):  # a text with blanks in it: two blanks part the columns
        fields = re.split(r"\s{2,}", text[entity.end() :].strip())
    key = log.add(line, before, fields, entity=name, values=values)
    if key is not None and _XID in log.names:
        code = fields[log.names.index(_XID)]
        counts = {int(code) if _XID_CODE.fullmatch(code) else 0: 1}
        log.rows.xids(key, f"{log.rows.host} {name}".strip(), counts, None, source=_XID)


def _of_dcgm(name: str) -> str:
    """The name of a column's meaning, with its unit; a column that is not stored keeps its own name."""
    field = of_field(_FIELDS.get(name, 0))
    return _BOARD.get(name, name) if field is None else labelled(*field)


def _of_instance(label: str) -> bool:
    """Whether a MIG instance has the metric itself, and not its GPU."""
    base, unit = split_label(label)
    return unit in ("ratio", "B/s") or base in ("memory_used", "memory_free") or label in _BOARD.values()


def fits_nvidia_smi(head: str) -> bool:
    """Whether a text has the header of `nvidia-smi dmon`."""
    headers = (_header(line, match) for line in head.split("\n") if (match := _GPU_HEADER.search(line)))
    return any(sum(word.lower() in _COLUMNS for word in words) > 1 for words in headers)


def read_nvidia_smi(text: str, rows: Rows) -> None:
    """Add the readings of a log. Raises InputError where it has no times and no option gives them."""
    log = _Log(rows)
    for line, content in written(text):
        if (match := _GPU_HEADER.search(content)) is not None:
            log.names = [name.lower() for name in _header(content, match)]
            log.labels = [_COLUMNS.get(name, name) for name in log.names]
        elif _GPU_UNITS.search(content):
            continue
        elif _MESSAGE.search(content):
            if (lost := _OF_LOST.search(content)) is not None and "gpu" in log.names:
                _reading(log, line, content[: lost.start()], lost[1])
            else:
                rows.message(line, content)
        elif log.begins_at(content):
            continue
        elif log.names:
            _reading(log, line, content)
        else:
            rows.refuse(line, "it stands before the header")


def _header(line: str, match: re.Match[str]) -> list[str]:
    return _words(line[line.index("#", match.start()) + 1 :])


def _words(text: str) -> list[str]:
    return [word.strip() for word in (text.split(",") if "," in text else text.split())]


def _reading(log: _Log, line: int, text: str, lost: str = "") -> None:
    """A line of values; with `lost`, that stands in place of the values behind the number of a GPU."""
    fields, before, width = _words(text), "", len(log.names)
    if lost:
        fields += ["-" if name in _INSTANCE else lost for name in log.names[log.names.index("gpu") + 1 :]]
    if "," in text:
        before, _, fields[0] = fields[0].rpartition(" ")
    elif len(fields) > width:
        before, fields = " ".join(fields[:-width]), fields[-width:]
    cells = dict(zip(log.names, fields, strict=False))
    instance = " ".join(f"{name} {cells[name]}" for name in _INSTANCE if cells.get(name, "-") not in ("-", "N/A", ""))
    clock = " ".join(cells[name] for name in ("date", "time") if name in cells and "time" in cells)
    values: dict[str, Value] = {"instance": instance} if instance else {}
    log.add(line, before, fields, entity=f"{cells.get('gpu')} {instance}", values=values, clock=clock)
