"""The text of `scontrol -o`: fields KEY=VALUE, and the words that stand for nothing."""

from __future__ import annotations

import re

_NONE = {"", "(null)", "N/A", "n/a", "None"}
_FIELDS = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=")


def fields(line: str) -> dict[str, str]:
    """KEY=VALUE pairs, values with spaces included; of a key that comes twice, the first, which is Slurm's own."""
    parts = _FIELDS.split(line)  # what stands before the first key, a key, its value, a key, ...
    return dict(zip(parts[-2:0:-2], map(str.strip, parts[:1:-2]), strict=True))  # backwards: the first one stays


def is_none(value: str) -> bool:
    return value in _NONE


def said(value: str) -> str:
    """A value, "" where it says that there is none."""
    return "" if is_none(value) else value


def names(value: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(name for name in value.split(",") if not is_none(name))
