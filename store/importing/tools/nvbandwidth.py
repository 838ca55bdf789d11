"""Output of nvbandwidth, JSON or text: a matrix of bandwidths or latencies for each test.

A value of a test between host and GPU is about the GPU of its column. Between GPUs, it is about that of its row, and
the values of a row are the repeats of one run: repeat 3 is with GPU 3. What GPUs do to each other in both directions at
once is written by nvbandwidth below each other into one matrix: the first direction, the second, both added up.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import InputError
from ..identity import address
from ..lines import written
from ..rows import Rows, Value, at_rate, finite, parts, record_of

_JSON = re.compile(r'\{\s*"nvbandwidth"\s*:')
_VERSION = re.compile(r"^\s*nvbandwidth Version:")
_RUNNING = re.compile(r"^\s*[Rr]unning ([A-Za-z0-9_]+)\.?\s*$", re.MULTILINE)
_MODEL = (
    r"(?P<model>.+?)\s*"
    r"(?:\((?:PCI:)?(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)\))?"
)
# "Device 0: NVIDIA H100 80GB HBM3 (00000000:07:00)", in JSON without the word, from version 0.8 on with ": (node7)".
_DEVICE = re.compile(rf"^\s*(?:Device\s+)?(?P<number>[0-9]{{1,4}})\s*:\s*{_MODEL}\s*(?::\s*\((?P<host>[^()]*)\))?\s*$")
# "Process 2 (worker-1): device 0: HGX GB200 (00000008:01:00)": the matrix has the number of the process.
_PROCESS = re.compile(
    r"^\s*Process\s+(?P<number>[0-9]{1,5})\s*\((?P<host>[^()]+)\)\s*:\s*device\s+(?P<device>[0-9]{1,4})\s*:\s*"
    + rf"{_MODEL}\s*$"
)
_HOST = re.compile(
    r"^\s*(?!localhost\b)([A-Za-z0-9][A-Za-z0-9._-]*)\s*$"
)  # alone on the line above the first device, since v0.8
_DRIVER = re.compile(r"^\s*Driver Version:\s*(\S+)")
_DESCRIPTION = re.compile(r"\((?:GB/s|ns)\)\s*$")
_COLUMNS = re.compile(r"^\s*0(?:\s+[0-9]+)*\s*$")
_ROW = re.compile(r"^\s*([0-9]+)\s+(\S.*)$")
_ERROR = re.compile(r"^\s*\[?(?:ERROR|Error)\b[\]:]*\s*(.*\S)")
_DIRECTIONS = {"read": ("_read1", "_read2", "_total"), "write": ("_write1", "_write2", "_total")}


@dataclass
class _Test:
    """One test: `matrix` has rows of texts or numbers."""

    line: int
    name: str
    status: str = "Passed"
    error: str = ""
    description: str = ""
    matrix: list[list[Any]] = field(default_factory=list)


@dataclass
class _Output:
    """One run of nvbandwidth. `devices` are the lines that list its GPUs, `host` is of those that name none."""

    line: int
    text: str
    host: str = ""
    driver: str = ""
    devices: list[str] = field(default_factory=list)
    tests: list[_Test] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def fits(head: str) -> bool:
    """Whether a file that begins so is of nvbandwidth; other text may stand before it."""
    text = "nvbandwidth Version:" in head or (_RUNNING.search(head) is not None and "(row)" in head)
    return text or _JSON.search(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add the values of each test of each output in the text. Raises InputError for JSON that is damaged."""
    outputs = list(_of_json(text, rows) if _JSON.search(text) else _of_text(text, rows))
    _check_one_host(outputs, rows)
    for output in outputs:
        _add(output, rows)


def _check_one_host(outputs: list[_Output], rows: Rows) -> None:
    """Refuse several outputs that name no host, but for repeats on the host of --node. Raises InputError."""
    nameless = [
        output
        for output in outputs
        if output.tests and not (rows.host or output.host or any(host for host, _ in _entries(output)))
    ]
    listed: dict[str, tuple[str, int]] = {}
    for output in nameless:
        for _, entry in _entries(output):
            before, line = listed.setdefault(entry["number"], (entry["pci"] or entry["model"], output.line))
            if before != (entry["pci"] or entry["model"]):
                raise InputError(
                    f"{rows.file}: device {entry['number']} is {before} in the output of nvbandwidth from line {line} "
                    f"on and {entry['pci'] or entry['model']} in that from line {output.line} on, and neither names "
                    "its host: split the file there and give each part its --node"
                )
    if len(nameless) > 1 and rows.options.node is None and rows.options.gpu is None:
        raise InputError(
            f"{rows.file} has {len(nameless)} outputs of nvbandwidth that name no host (from line {nameless[0].line} "
            f"and from line {nameless[1].line} on): if they are of one node, give --node NAME; else split the file and "
            "give each part its --node"
        )


def _of_json(text: str, rows: Rows) -> Iterator[_Output]:
    for first, part in parts(text, _JSON):
        try:
            document, length = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError) as error:  # damage may begin lists without end
            line = first + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
            raise InputError(
                f"{rows.file}: the JSON is damaged or cut short at line {line}; run nvbandwidth again"
            ) from error
        content = document["nvbandwidth"]
        if not isinstance(content, dict):
            raise InputError(f"{rows.file}: what stands under 'nvbandwidth' is not an object; run nvbandwidth again")
        host, driver = (str(content.get(key) or "") for key in ("Hostname", "Driver Version"))
        output = _Output(
            first, part[:length], host, driver, [str(entry) for entry in _listed(content, "GPU Device list")]
        )
        place = 0
        for test in _listed(content, "testcases"):
            if not isinstance(test, dict):
                continue
            name = re.compile(r'"name"\s*:\s*' + re.escape(json.dumps(test.get("name", "")))).search(part, place)
            place = name.end() if name else place
            keys = ("name", "status", "error", "bandwidth_description")
            title, status, why, description = (str(test.get(key) or "") for key in keys)
            result = _Test(first + part.count("\n", 0, place), title, status, why, description)
            matrix = test.get("bandwidth_matrix")
            if isinstance(matrix, list):
                result.matrix = [row for row in matrix if isinstance(row, list)]
            elif result.status in ("", "Passed", "passed"):
                result.status = "Passed without a matrix"
            output.tests.append(result)
        output.remarks = [str(content[key]) for key in ("error", "warning") if content.get(key)]
        if content.get("error") and not output.tests:
            raise InputError(f"{rows.file}: nvbandwidth measured nothing: {str(content['error'])[:200]}")
        yield output


def _listed(content: Mapping[str, Any], key: str) -> list[Any]:
    """What stands in the list under a key; nothing where it is no list."""
    entries = content.get(key)
    return entries if isinstance(entries, list) else []


def _of_text(text: str, rows: Rows) -> Iterator[_Output]:
    lines = list(written(text))
    begins = [place for place, (_, line) in enumerate(lines) if _VERSION.match(line)] or [0]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        yield _output(lines[begin:end], rows)


def _output(lines: list[tuple[int, str]], rows: Rows) -> _Output:
    output = _Output(lines[0][0] if lines else 1, "\n".join(line for _, line in lines), rows.host)
    test, above = _Test(0, ""), ""
    width, heads = 0, False  # columns of the present matrix; whether the next line names them
    for number, line in lines:
        if (match := _RUNNING.match(line)) is not None:
            test, width = _Test(number, match[1], "it was cut short"), 0
            output.tests.append(test)
        elif _PROCESS.match(line) or (line.lstrip().startswith("Device") and _DEVICE.match(line)):
            if not output.devices and not output.host and (match := _HOST.match(above)) is not None:
                output.host = match[1]
            output.devices.append(line)
        elif (match := _DRIVER.match(line)) is not None:
            output.driver = match[1]
        elif test.line and _DESCRIPTION.search(line):
            test.description, heads, width = line.strip(), True, 0
        elif heads and _COLUMNS.match(line):
            width, heads = len(line.split()), False
        elif width and (match := _ROW.match(line)) is not None:
            cells = match[2].split()
            if len(cells) == width:
                test.matrix.append(cells)
                test.status = "Passed"
            else:
                rows.refuse(number, f"{test.name}: a line of the matrix has {len(cells)} of {width} values")
        else:
            width = 0
            if "waived" in line.lower() and test.status != "Passed":
                test.status = "Waived"
            elif test.line and (match := _ERROR.match(line)) is not None:
                test.status, test.error = "Error", match[1]
        above = line
    return output


def _add(output: _Output, rows: Rows) -> None:
    for remark in output.remarks:
        rows.note(f"nvbandwidth says: {remark}")
    record = record_of(output.text)
    gpus = _gpus(output)
    hosts = {str(gpu["node"]) for gpu in gpus.values() if "node" in gpu} or {output.host} - {""}
    board: dict[str, Value] = {"driver": output.driver} if output.driver.lower() not in ("", "unknown", "n/a") else {}
    waived: list[str] = []
    for test in output.tests:
        if test.status == "Waived":
            waived.append(test.name)
            continue
        if test.status not in ("", "Passed", "passed"):
            rows.refuse(
                test.line, f"{test.name} has no result ({test.status}{f': {test.error[:200]}' if test.error else ''})"
            )
            continue
        for number, repeat, values in _cells(test, rows):
            gpu = gpus.get(number)
            if gpu is None and (len(hosts) > 1 or test.name.startswith("multinode")):
                rows.refuse(test.line, f"nothing says on which host GPU {number} of {test.name} is")
                continue
            gpu = gpu or {"index": number, "node": next(iter(hosts), None)}
            rows.add(test.line, values | {"repeat": repeat} | gpu | board, record)
    if waived:
        rows.note(f"nvbandwidth did not run {', '.join(waived)}: they do not fit the machine")


def _entries(output: _Output) -> Iterator[tuple[str, dict[str, Any]]]:
    """The host of each listed GPU, "" where nothing names it, and the parts of its line."""
    for line in output.devices:
        if (match := _PROCESS.match(line) or _DEVICE.match(line)) is not None:
            yield match["host"] or output.host, match.groupdict()


def _gpus(output: _Output) -> dict[int, dict[str, Value]]:
    """What the output says of its GPUs, by their number in its matrices.

    A GPU has the number that its process gives it; where two of a host have the same one, as each process saw its own
    GPU only, and where a list goes through several hosts, the GPUs of each host are counted.
    """
    entries = list(_entries(output))
    numbers = Counter((host, entry.get("device")) for host, entry in entries)
    several = len({host for host, _ in entries}) > 1
    counted = any(times > 1 for (_, device), times in numbers.items() if device is not None)
    counted |= several and any("device" not in entry for _, entry in entries)
    places: Counter[str] = Counter()
    gpus: dict[int, dict[str, Value]] = {}
    for host, entry in entries:
        number = int(entry["number"])
        gpus[number] = {"index": places[host] if counted else int(entry.get("device") or number)}
        gpus[number] |= {"model": entry["model"]} | ({"node": host} if host else {})
        if entry["pci"]:
            gpus[number]["pci_bus_id"] = address(entry["pci"])
        places[host] += 1
    return gpus


def _cells(test: _Test, rows: Rows) -> Iterator[tuple[int, int, dict[str, Value]]]:
    """The GPU, the repeat and the values of each cell of a test's matrix."""
    width = max((len(row) for row in test.matrix), default=0)
    latency = "(ns)" in test.description or "latency" in test.name
    between = "GPU(row)" in test.description or (not test.description and "device_to_device" in test.name)
    peers = between and len(test.matrix) > 1
    height = width if peers and width and len(test.matrix) % width == 0 else max(len(test.matrix), 1)
    parts = len(test.matrix) // height
    kind = "read" if "read" in test.name else "write"
    names = _DIRECTIONS[kind] if parts == 3 else tuple(f"_{part + 1}" for part in range(parts))
    for place, row in enumerate(test.matrix):
        part, number = divmod(place, height)
        workload = f"nvbandwidth {test.name}" + (names[part] if parts > 1 else "")
        for column, cell in enumerate(row):
            if str(cell).strip().upper() in ("N/A", "") or (peers and column == number):
                continue  # there is no such path, and a GPU is no peer of its own
            value = finite(cell)
            if value is None or value <= 0:
                figure = "latency" if latency else "bandwidth"
                rows.refuse(test.line, f"{test.name} has a {figure} that is no number above 0 ({str(cell)[:40]})")
                continue
            path = "dram" if "local" in test.name else "peer" if between else "pcie"
            values = at_rate("latency [ns]" if latency else "bandwidth [GB/s]", value)
            gpu, repeat = (number, column) if peers else (column, number)
            yield gpu, repeat, values | {"path": path, "workload": workload}
