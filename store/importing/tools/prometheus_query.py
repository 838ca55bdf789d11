"""Answers of a Prometheus to a query (`curl .../api/v1/query_range?query=...`): JSON with series and their values.

They become the page of an exporter that says the same (`exporter.py`), whose times are those of the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ....errors import InputError
from ..rows import Rows
from . import exporter

_BEGIN = re.compile(r'\s*\{\s*"status"\s*:\s*"(?:success|error)"')


def fits(head: str) -> bool:
    """Whether a text begins as the answer of a Prometheus."""
    return _BEGIN.match(head) is not None


def read(text: str, rows: Rows) -> None:
    """Add a row for each GPU and time in the answer. Raises InputError where it has no series of GPUs."""
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise InputError(f"{rows.file} is cut short or damaged ({error}); save the answer again") from error
    if answer["status"] == "error":
        raise InputError(f"{rows.file}: the Prometheus answered with an error: {answer.get('error', 'none said')}")
    try:
        page = "\n".join(_lines(answer["data"]["result"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{rows.file} is an answer of a Prometheus without series of values; query a metric under /api/v1/query or "
            "/api/v1/query_range"
        ) from error
    if "{" in page and not re.search("^[A-Za-z_:]", page, re.MULTILINE):
        raise InputError(
            f"{rows.file}: its series have no metric's name, as those of a function (rate, avg, ...); query the metric "
            "itself, for example DCGM_FI_DEV_POWER_USAGE"
        )
    exporter.read(page, rows)


def _lines(series: list[dict[str, Any]]) -> Iterator[str]:
    for one in series:
        name = one["metric"].get("__name__", "")
        labels = ",".join(f'{key}="{_escaped(said)}"' for key, said in one["metric"].items() if key != "__name__")
        for time, value in one.get("values") or [one["value"]]:
            yield f"{name}{{{labels}}} {value} {round(float(time) * 1000)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
