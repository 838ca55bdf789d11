"""Text that nvbandwidth prints without `--json`, as the documents that it would have written with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..rows import Rows

_VERSION = re.compile(r"^\s*nvbandwidth Version:\s*(\S+)", re.MULTILINE)
_RUNNING = re.compile(r"^\s*[Rr]unning ([A-Za-z0-9_]+)\.?\s*$", re.MULTILINE)
_DEVICE = re.compile(r"^\s*Device\s+([0-9]+:\s+.*\S)\s*$")
_DRIVER = re.compile(r"^\s*Driver Version:\s*(\S+)")
_SAYS = re.compile(r"\((?:GB/s|ns)\)\s*$")
_COLUMNS = re.compile(r"^\s*0(?:\s+[0-9]+)*\s*$")
_ROW = re.compile(r"^\s*([0-9]+)\s+(\S.*)$")
_ERROR = re.compile(r"^\s*\[?(?:ERROR|Error)\b[\]:]*\s*(.*\S)")


def fits(head: str) -> bool:
    """Whether a file that begins so is text of nvbandwidth."""
    return _VERSION.search(head) is not None or (_RUNNING.search(head) is not None and "(row)" in head)


def documents(text: str, rows: Rows) -> Iterator[tuple[dict[str, Any], list[int], str]]:
    """Each output in the text: as a document, the lines of its tests, and its text."""
    begins = [found.start() for found in _VERSION.finditer(text)] or [0]
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        part = text[begin:end]
        yield *_document(part, text.count("\n", 0, begin) + 1, rows), part


def _document(text: str, first: int, rows: Rows) -> tuple[dict[str, Any], list[int]]:
    tests: list[dict[str, Any]] = []
    lines: list[int] = []
    devices: list[str] = []
    of: dict[str, Any] = {"testcases": tests, "GPU Device list": devices}
    width, heads = 0, False  # columns of the present matrix; whether the next line names them
    for line, content in enumerate(text.splitlines(), start=first):
        test = tests[-1] if tests else {}
        if (found := _RUNNING.match(content)) is not None:
            tests.append({"name": found[1], "status": "it was cut short"})
            lines.append(line)
            width = 0
        elif (found := _DEVICE.match(content)) is not None:
            devices.append(found[1])
        elif (found := _DRIVER.match(content)) is not None:
            of["Driver Version"] = found[1]
        elif test and _SAYS.search(content):
            test["bandwidth_description"], heads, width = content.strip(), True, 0
        elif heads and _COLUMNS.match(content):
            width, heads = len(content.split()), False
        elif width and (found := _ROW.match(content)) is not None:
            cells = found[2].split()
            if len(cells) == width:
                test.setdefault("bandwidth_matrix", []).append(cells)
                test["status"] = "Passed"
            else:
                rows.refuse(line, f"{test['name']}: a line of the matrix has {len(cells)} of {width} values")
        elif content.strip():
            width = 0
            if test and "waived" in content.lower() and test["status"] != "Passed":
                test["status"] = "Waived"
            elif test and (found := _ERROR.match(content)) is not None:
                test |= {"status": "Error", "error": found[1]}
    return of, lines
