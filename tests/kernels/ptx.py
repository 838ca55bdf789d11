"""NVRTC's PTX as Python objects: what a kernel declares, and its instructions in order.

Written from NVIDIA's "Parallel Thread Execution ISA". `interpreter.py` runs what is parsed here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""By bytes."""

TYPES: dict[str, type[np.generic[Any]]] = {
    "pred": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    **{f"{kind}{8 * size}": unsigned for size, unsigned in UNSIGNED.items() for kind in "bu"},
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "bf16": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
}
"""How numpy holds a type of PTX; what it has no type for is held as bits."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, as `@!%p1 bra $L__BB0_3`."""

    text: str
    parts: tuple[str, ...]
    """The operation and what qualifies it: ("ld", "global", "nc", "v2", "f64")."""
    operands: tuple[str, ...]
    guard: str | None = None
    """The predicate that decides which threads do it."""
    negated: bool = False

    @property
    def type(self) -> str:
        """The type that it ends with, which is that of its operands."""
        return self.parts[-1]


@dataclass(frozen=True, eq=False)
class Kernel:
    """One `.entry` of a module."""

    name: str
    parameters: dict[str, str]
    """Name -> type, in order."""
    registers: dict[str, str]
    """Name -> type."""
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    shared: dict[str, int]
    """Variables in shared memory -> offset; those whose size the launch decides begin at `shared_bytes`."""
    shared_bytes: int


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{;]*\{")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?\s*([\w$]+)\s*(?:,|$)")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[(\d*)\])?\s*;")
_ELSEWHERE = re.compile(r"\.(?:local|const|global)\s+(?:\.align\s+\d+\s+)?\.\w+\s+[\w$]+\s*(?:\[\d*\])?\s*(?:=|;)")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^;]+);")
_LABEL = re.compile(r"\s*([\w$]+):(?!:)\s*")
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_OPERAND = re.compile(r",(?![^{\[]*[}\]])")


@lru_cache(maxsize=256)
def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a module, by name."""
    text = _COMMENT.sub("", text)
    outside, kernels = text, []
    for entry in _ENTRY.finditer(text):
        body = text[entry.end() : _closing(text, entry.end())]
        outside = outside.replace(body, "")
        kernels.append((entry[1], entry[2], body))
    return {name: _kernel(name, parameters, body, outside) for name, parameters, body in kernels}


def _closing(text: str, start: int) -> int:
    """Where the brace that was opened before `start` is closed."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    raise ValueError("a function of the PTX has no end")


def _kernel(name: str, parameters: str, body: str, outside: str) -> Kernel:
    registers: dict[str, str] = {}
    for declared in _REGISTERS.finditer(body):
        for register in declared[2].split(","):
            stem, count = re.fullmatch(r"\s*([%\w$]+?)(?:<(\d+)>)?\s*", register).groups()  # type: ignore[union-attr]
            names = [stem] if count is None else [f"{stem}{number}" for number in range(int(count))]
            registers.update(dict.fromkeys(names, declared[1]))
    if _ELSEWHERE.search(outside) or _ELSEWHERE.search(body):
        raise NotImplementedError(f"{name}: variables in local, constant or global memory are not known here")
    shared, end = {}, 0
    variables = [*_SHARED.finditer(outside), *_SHARED.finditer(body)]
    for declared in sorted(variables, key=lambda match: match[4] == ""):  # those without a size begin last
        align, kind, variable, count = declared.groups()
        size = np.dtype(TYPES[kind]).itemsize
        boundary = int(align or size)
        shared[variable] = -(-end // boundary) * boundary
        end = shared[variable] + size * (1 if count is None else int(count or 0))
    code, labels = _code(_SHARED.sub("", _REGISTERS.sub("", body)))
    takes = {match[2]: match[1] for match in _PARAMETER.finditer(re.sub(r"\s+", " ", parameters).replace(" ,", ","))}
    return Kernel(name, takes, registers, code, labels, shared, end)


def _code(body: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for raw in body.split(";"):
        statement = raw.lstrip("{} \t\n")  # braces of scopes; those of vectors are inside of a statement
        while label := _LABEL.match(statement):
            labels[label[1]] = len(code)
            statement = statement[label.end() :].lstrip("{} \t\n")
        statement = " ".join(statement.split())
        if not statement or statement.startswith("."):
            continue
        match = _INSTRUCTION.match(statement)
        if match is None:
            raise ValueError(f"the PTX has a statement that is no instruction: {statement}")
        operands = tuple(operand.strip() for operand in _OPERAND.split(match[4])) if match[4] else ()
        code.append(Instruction(statement, tuple(match[3].split(".")), operands, match[2], match[1] == "!"))
    return tuple(code), labels
