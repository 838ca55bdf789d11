"""Output of nvbandwidth, JSON or text: a matrix of bandwidths or latencies for each test.

A value of a test between host and GPU is about the GPU of its column. Between GPUs, it is about that of its row, and
the values of a row are the repeats of one run: repeat 3 is with GPU 3. What GPUs do to each other in both directions at
once is written by nvbandwidth below each other into one matrix: the first direction, the second, both added up.

The duration of a run is that of 1 GB at the bandwidth found, so that lower is better, as for all runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....errors import InputError
from ..rows import Rows, Value
from . import nvbandwidth_text

_GIGABYTE = 1e9
_BEGIN = re.compile(r'\{\s*"nvbandwidth"\s*:')
# "0: NVIDIA H100 80GB HBM3 (00000000:07:00): (node7)"; the host is there from version 0.8 on.
_DEVICE = re.compile(
    r"^\s*(?P<index>[0-9]+)\s*:\s*(?P<model>.+?)\s*"
    r"(?:\((?:PCI:)?(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)\))?"
    r"\s*(?::\s*\((?P<host>[^()]*)\))?\s*$"
)
_DIRECTIONS = {"read": ("_read1", "_read2", "_total"), "write": ("_write1", "_write2", "_total")}


def fits(head: str) -> bool:
    """Whether a file that begins so is of nvbandwidth; other text may stand before it."""
    return _BEGIN.search(head) is not None or nvbandwidth_text.fits(head)


def read(text: str, rows: Rows) -> None:
    """Add the values of each test of each document in the text."""
    if _BEGIN.search(text) is None:
        for of, lines, part in nvbandwidth_text.documents(text, rows):
            _document(of, part, lines, rows)
        return
    found = list(_BEGIN.finditer(text))
    for number, begin in enumerate(found):
        end = found[number + 1].start() if number + 1 < len(found) else len(text)
        part = text[begin.start() : end]
        first = text.count("\n", 0, begin.start()) + 1
        try:
            document, length = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError) as error:  # damage may begin lists without end
            line = first + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
            raise InputError(
                f"{rows.file}: the JSON is damaged or cut short at line {line}; run nvbandwidth again"
            ) from error
        of = document["nvbandwidth"]
        if not isinstance(of, dict):
            raise InputError(f"{rows.file}: what stands under 'nvbandwidth' is not an object; run nvbandwidth again")
        tests = of["testcases"] = [test for test in _listed(of, "testcases") if isinstance(test, dict)]
        _document(of, part[:length], list(_lines(tests, part[:length], first)), rows)


def _document(of: Mapping[str, Any], text: str, lines: Sequence[int], rows: Rows) -> None:
    tests = of["testcases"]
    error = of.get("error")
    if error and not tests:
        raise InputError(f"{rows.file}: nvbandwidth measured nothing: {error}")
    for key in ("error", "warning"):
        if of.get(key):
            rows.note(f"nvbandwidth says: {of[key]}")
    record = hashlib.sha256(text.encode()).hexdigest()[:16]
    gpus = _gpus(of)
    waived: list[str] = []
    for test, line in zip(tests, lines, strict=True):
        name, status = str(test.get("name", "")), str(test.get("status", "Passed"))
        if status == "Waived":
            waived.append(name)
        elif status not in ("Passed", "passed") or not isinstance(test.get("bandwidth_matrix"), list):
            why = f"{status}: {test['error']}" if test.get("error") else status
            rows.refuse(line, f"{name} has no result ({why})")
        else:
            for gpu, repeat, values in _cells(name, test, line, rows):
                rows.add(line, values | {"repeat": repeat} | gpus.get(gpu, {"index": gpu}) | _driver(of), record)
    if waived:
        rows.note(f"nvbandwidth did not run {', '.join(waived)}: they do not fit the machine")


def _lines(tests: Sequence[Mapping[str, Any]], text: str, first: int) -> Iterator[int]:
    """The line of each test: that of its name."""
    at = 0
    for test in tests:
        found = re.compile(r'"name"\s*:\s*' + re.escape(json.dumps(test.get("name", "")))).search(text, at)
        at = found.end() if found else at
        yield first + text.count("\n", 0, at)


def _gpus(of: Mapping[str, Any]) -> dict[int, dict[str, Value]]:
    """What the document says of its GPUs, by their number in it."""
    gpus: dict[int, dict[str, Value]] = {}
    places: dict[str, int] = {}
    for entry in _listed(of, "GPU Device list"):
        if (found := _DEVICE.match(str(entry))) is None:
            continue
        host = found["host"] or str(of.get("Hostname") or "") or None
        slot = places.get(host or "", 0)  # of several hosts, each counts its GPUs from 0
        places[host or ""] = slot + 1
        number = int(found["index"])
        gpus[number] = {"index": slot if len(places) > 1 else number, "model": found["model"]}
        if host:
            gpus[number]["node"] = host
        if found["pci"]:
            gpus[number]["pci_bus_id"] = _pci(found["pci"])
    return gpus


def _listed(of: Mapping[str, Any], key: str) -> list[Any]:
    """What the document lists under a key; nothing where it has no list there."""
    found = of.get(key)
    return found if isinstance(found, list) else []


def _pci(text: str) -> str:
    """A PCI address as the driver writes it: 00000000:07:00.0."""
    domain, rest = text.upper().split(":", 1)
    return f"{domain.zfill(8)}:{rest}" + ("" if "." in rest else ".0")


def _driver(of: Mapping[str, Any]) -> dict[str, Value]:
    version = str(of.get("Driver Version") or "")
    return {"driver": version} if version and version.lower() not in ("unknown", "n/a") else {}


def _cells(name: str, test: Mapping[str, Any], line: int, rows: Rows) -> Iterator[tuple[int, int, dict[str, Value]]]:
    """The GPU, the repeat and the values of each cell of a test's matrix."""
    matrix = [row for row in test["bandwidth_matrix"] if isinstance(row, list)]
    said = str(test.get("bandwidth_description", ""))
    width = max((len(row) for row in matrix), default=0)
    latency = "(ns)" in said or "latency" in name
    between = "GPU(row)" in said or (not said and "device_to_device" in name)
    peers = between and len(matrix) > 1
    height = width if peers and width and len(matrix) % width == 0 else max(len(matrix), 1)
    parts = len(matrix) // height
    kind = "read" if "read" in name else "write"
    names = _DIRECTIONS[kind] if parts == 3 else tuple(f"_{part + 1}" for part in range(parts))
    for place, row in enumerate(matrix):
        part, number = divmod(place, height)
        workload = f"nvbandwidth {name}" + (names[part] if parts > 1 else "")
        for column, cell in enumerate(row):
            if str(cell).strip().upper() in ("N/A", "") or (peers and column == number):
                continue  # there is no such path, and a GPU is no peer of its own
            value = _number(cell)
            if value is None or value <= 0:
                what = "latency" if latency else "bandwidth"
                rows.refuse(line, f"{name} has a {what} that is no number above 0 ({cell})")
                continue
            gpu, repeat = (number, column) if peers else (column, number)
            yield gpu, repeat, _measured(value, name, between, latency=latency) | {"workload": workload}


def _measured(value: float, name: str, between: bool, *, latency: bool) -> dict[str, Value]:
    path = "dram" if "local" in name else "peer" if between else "pcie"
    if latency:
        return {"time [ms]": value / 1e6, "latency [ns]": value, "path": path}
    return {"time [ms]": 1000 / value, "bandwidth [GB/s]": value, "bytes": _GIGABYTE, "path": path}


def _number(cell: object) -> float | None:
    try:
        value = float(str(cell))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
