"""`omnistat-query --export`: CSV with a column for each time series, under several lines of labels.

Each line of labels begins with the name of the label: `metric`, `instance` (the host), `card` or `accel`, and others.
The line `timestamp` ends them. Below, each line begins with a time in UTC. One line becomes a row for each GPU.
"""

from __future__ import annotations

import re

from ....errors import InputError
from ..lines import csv_fields, written
from ..rows import Rows, Value, finite

NAME = "Omnistat"

# Metrics without the name of their collector (rocm_, nvidia_, omnistat_vendor_accel_), new and old names.
_METRICS = {
    name: label
    for label, names in (
        ("utilization [%]", "utilization_percentage utilization"),
        ("power [W]", "average_socket_power_watts average_socket_power power_usage_watts power_watts"),
        ("power_limit [W]", "power_cap_watts"),
        ("energy [J]", "energy_joules"),
        ("temperature [C]", "temperature_celsius temperature_edge_celsius temperature_edge"),
        ("memory_temperature [C]", "temperature_memory_celsius temperature_hbm"),
        ("sm_clock [MHz]", "sclk_clock_mhz sclk_clock"),
        ("mem_clock [MHz]", "mclk_clock_mhz mclk_clock"),
        ("memory_total [B]", "vram_total_bytes"),
        ("decoder_utilization [%]", "average_decoder_utilization_percentage"),
    )
    for name in names.split()
}
_COLLECTOR = re.compile("^(?:rocm|nvidia|omnistat_vendor_accel)_")
_USED = "vram_used_percentage"  # of vram_total_bytes
_TIME = re.compile(r"^(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:|[0-9]{9,})")
_ZONED = re.compile(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$")


def fits(head: str) -> bool:
    """Whether a text has the lines of labels: the first is `metric`, and the last is `timestamp` and nothing else."""
    first = [line.split(",") for line in head.splitlines()[:32] if line.strip()]
    end = next((parts for parts in first if parts[0].strip('" ') == "timestamp"), [""])
    return end[0] != "" and first[0][0].strip('" ') == "metric" and not "".join(end[1:]).strip('" \r')


# What is stored of a time series: its node, the number of its GPU or the name of its accelerator, and its meaning.
_Column = tuple[str, str | None, str | None, str]


def read(text: str, rows: Rows) -> None:
    """Add a row for each time and GPU. Raises InputError where no time series is of a GPU."""
    labels: dict[str, list[str]] = {}
    columns: list[_Column | None] | None = None
    for line, content in written(text):
        fields = csv_fields(content.rstrip("\r"))
        if fields is None:
            rows.refuse(line, "it has a stray quote")
        elif columns is None and fields[0] == "timestamp":
            columns = _columns(labels, rows)
        elif columns is None:
            labels[fields[0]] = fields[1:]
        elif len(fields) != len(columns) + 1:
            rows.refuse(line, f"it has {len(fields)} fields, but the header names {len(columns) + 1}")
        elif not _TIME.match(fields[0]):
            rows.refuse(line, "its timestamp is not a readable time stamp")
        else:
            _add(line, fields, columns, rows)


def _columns(labels: dict[str, list[str]], rows: Rows) -> list[_Column | None]:
    """What each column holds; None for what is not stored."""
    columns: list[_Column | None] = []
    bound: set[_Column] = set()
    metrics = labels.get("metric", [])
    others: dict[str, None] = {}
    for position, metric in enumerate(metrics):
        series = {name: values[position] for name, values in labels.items() if position < len(values)}
        base = _COLLECTOR.sub("", metric)
        node, card, accelerator = (series.get(name) or "" for name in ("instance", "card", "accel"))
        part = (card, None) if card else (None, f"accel{accelerator}")
        column = (re.sub(r":[0-9]+$", "", node), *part, base if base == _USED else _METRICS.get(base, ""))
        stored = column[-1] and (card or accelerator) and column not in bound
        if not stored:
            others[metric] = None
        columns.append(column if stored else None)
        bound.add(column)
    if not any(columns):
        raise InputError(
            f"{rows.file} is an export of Omnistat without metrics of GPUs ({', '.join(list(others)[:4])}): import "
            f"omnistat-rocm.gpu.csv"
        )
    if others:
        rows.note(f"not stored: {', '.join(others)}")
    return columns


def _add(line: int, fields: list[str], columns: list[_Column | None], rows: Rows) -> None:
    gpus: dict[tuple[str | None, ...], dict[str, Value]] = {}
    for column, value in zip(columns, fields[1:], strict=True):
        if column is not None and value.lower() not in ("", "nan"):
            gpus.setdefault(column[:-1], {})[column[-1]] = value
    stamp = fields[0] if fields[0].isdecimal() or _ZONED.search(fields[0]) else f"{fields[0]}Z"
    for (node, card, accelerator), values in gpus.items():
        row: dict[str, Value] = {"timestamp": stamp, "node": node, "index": card, "instance": accelerator}
        share, total = finite(values.pop(_USED, None)), finite(values.get("memory_total [B]"))
        row |= {"memory_used [B]": share / 100 * total} if share is not None and total is not None else {}
        rows.add(line, row | values)
