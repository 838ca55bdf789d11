"""Durations of kernels, as profilers list them: a run for each kernel that takes a good part of the time.

As in the SC'22 study, the duration of a run is the mean of its launches.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....errors import InputError
from ..rows import Rows, Value
from ..units import UNITS, find

_SHARE = 0.01  # of the time of all kernels of a GPU: a kernel that takes less is not stored
_STRANGE = re.compile("[^A-Za-z0-9_+/-]+")
_LONGEST = 120
_DEVICE = re.compile(r"^\s*(.*?)\s*\(([0-9]+)\)\s*$")  # "Tesla V100-SXM2-16GB (0)"
_UUID = re.compile("GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass
class Kernel:
    """The launches of one kernel on one GPU in one process."""

    line: int
    mean_ms: float
    launches: int
    values: dict[str, Value] = field(default_factory=dict)  # what else is known of the run, by meaning

    @property
    def total_ms(self) -> float:
        return self.mean_ms * self.launches


@dataclass(frozen=True)
class Device:
    """A GPU as a profiler names it: the process that was profiled, and a number in it, if there is one."""

    process: str
    number: int | None
    model: str = ""
    node: str = ""


Found = Mapping[Device, Mapping[str, Kernel]]


def device(process: str, said: str, node: str = "") -> Device:
    """The GPU that a column calls `Tesla V100-SXM2-16GB (0)` or `0`."""
    named = _DEVICE.match(said)
    if named is not None:
        return Device(process, int(named[2]), named[1], node)
    return Device(process, int(said) if said.strip().isdecimal() else None, "", node)


def add(found: Found, rows: Rows, tool: str, text: str) -> None:
    """Add a run for each kernel that takes a good part of its GPU's time; of `--workload`, only the longest one."""
    record = hashlib.sha256(text.encode()).hexdigest()[:16]
    numbers = {(one.node, one.number) for one in found}
    small = 0
    for one, kernels in found.items():
        whole = sum(kernel.total_ms for kernel in kernels.values())
        by_time = sorted(kernels.items(), key=lambda item: -item[1].total_ms)
        kept = [item for item in by_time if item[1].total_ms >= _SHARE * whole]
        if rows.options.workload is not None:
            kept = kept[:1]
        small += len(by_time) - len(kept)
        for name, kernel in sorted(kept, key=lambda item: item[1].line):
            values: dict[str, Value] = {"workload": f"{tool} {_workload(name)}", "kernel": name, **kernel.values}
            mean = float(f"{kernel.mean_ms:.15g}")  # 200000 ns are 0.2 ms, not 0.19999999999999998
            values |= {"time [ms]": mean, "kernels": kernel.launches, **_gpu(one, rows, len(numbers))}
            rows.add(kernel.line, values, f"{record} {one.process}")
    if small:
        why = "--workload stores the longest one" if rows.options.workload is not None else "less than 1 % of the time"
        rows.note(f"{small} {'kernel is' if small == 1 else 'kernels are'} not stored: {why}")


def _gpu(one: Device, rows: Rows, several: int) -> dict[str, Value]:
    values: dict[str, Value] = {"model": one.model} if one.model else {}
    if one.node:
        values["node"] = one.node
    in_name = _UUID.search(rows.file)
    if several == 1 and in_name is not None and rows.options.gpu is None:
        rows.note("the GPU is taken from the file's name")
        return values | {"gpu": in_name[0]}
    if one.number is None:
        return values  # --gpu names it, or the import asks for that
    rows.note("a process numbers only the GPUs that it sees: after CUDA_VISIBLE_DEVICES, say --gpu NAME")
    return values | {"index": one.number}


def _workload(kernel: str) -> str:
    """The name of a kernel without its arguments, of plain characters."""
    depth, end = 0, len(kernel)
    for place, letter in enumerate(kernel):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth and place and not kernel.startswith("(anonymous", place):
            end = place
            break
    name = _STRANGE.sub(".", kernel[:end].removeprefix("void ").strip()).strip(".")
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}.{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"
    return name or "kernel"


def fields(line: str) -> list[str] | None:
    """The fields of a line of CSV; None if its quotes are damaged."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return None


def milliseconds(unit: str, where: str) -> float:
    """How many ms one of these units of time has. Raises InputError, which begins with `where`."""
    known = find(unit.lower().replace("econds", "").replace("econd", ""), "time")
    if known is None:
        raise InputError(f"{where}: {unit!r} is no unit of time (s, ms, us, ns)")
    return known.to(UNITS["time"]["ms"])[0]


def number(text: str) -> float | None:
    """A number of a profiler, with or without commas between thousands; None if that cannot be told for sure."""
    if re.fullmatch(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", text):
        text = text.replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    for line, content in enumerate(text.splitlines(), start=1):
        if content.strip():
            yield line, content.strip()


def column(names: Sequence[str], *wanted: str) -> int | None:
    """The place of the first of these names in a header, in whatever case."""
    lower = [name.lower() for name in names]
    return next((lower.index(name) for name in wanted if name in lower), None)
