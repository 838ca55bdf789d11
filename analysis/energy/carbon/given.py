"""Values of a TOML file, checked: each error names the key and says what to write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ....errors import InputError
from ....store.instants import nanoseconds
from ....store.vocabulary import Code
from .dated import ALWAYS, NEVER

C = TypeVar("C", bound=Code)


def only(table: dict[str, Any], keys: Sequence[str], where: str = "") -> None:
    """Refuse keys that mean nothing."""
    for key in table:
        if key not in keys:
            of = f" in {where}" if where else ""
            raise InputError(f"there is no key {key!r}{of}; there are {', '.join(keys)}")


def tables(items: Any, key: str, keys: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each table of a list, checked for unknown keys, with what to call it in an error."""
    if not isinstance(items, list):
        raise InputError(f"{key} must be a list of tables: begin each with [[{key}]]")
    for number, item in enumerate(items, start=1):
        where = key if len(items) == 1 else f"{key} number {number}"
        if not isinstance(item, dict):
            raise InputError(f"{where} must be a table with the keys {', '.join(keys)}, not {item!r}")
        only(item, keys, where)
        yield item, where


def _called(key: str, where: str) -> str:
    if key == "value":
        return where
    return f"{key} of {where}" if where else key


def text(table: dict[str, Any], key: str, missing: str | None = None, where: str = "") -> str | None:
    """A text that is not empty, or `missing` where the key is not there."""
    if key not in table:
        return missing
    return name(table, key, where)


def name(table: dict[str, Any], key: str, where: str = "") -> str:
    """A text that must be there and not be empty."""
    called = _called(key, where)
    if key not in table:
        raise InputError(f"{called} is missing")
    value = table[key]
    if not isinstance(value, str):
        raise InputError(f"{called} must be a text in quotes, not {value!r}")
    if not value.strip():
        raise InputError(f"{called} is empty: write a name, or leave the line out")
    return value.strip()


def number(table: dict[str, Any], key: str, where: str, low: float, high: float, missing: float | None = None) -> float:
    """A number from `low` to `high`; it must be there unless `missing` is given."""
    called = _called(key, where)
    if key not in table:
        if missing is not None:
            return missing
        raise InputError(f"{called} is missing")
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{called} must be a number, not {value!r}")
    if not low <= value <= high:
        limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
        raise InputError(f"{called} must be {limits}, not {value:g}")
    return float(value)


def code(table: dict[str, Any], key: str, codes: type[C], missing: C, where: str = "") -> C:
    """One of the codes of an enumeration."""
    value = table.get(key, missing)
    if value not in list(codes):
        raise InputError(f"{_called(key, where)} must be {' or '.join(codes)}, not {value!r}")
    return codes(value)


def zone_info(called: str) -> ZoneInfo:
    """The time zone of this name."""
    try:
        return ZoneInfo(called)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(f"there is no time zone {called!r}; an example is Europe/Berlin") from error


def instant(table: dict[str, Any], key: str, zone: str, missing: int, where: str) -> int:
    """A date or time as ns UTC; what has no zone is in `zone`."""
    if key not in table:
        return missing
    value = table[key]
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise InputError(f"{key} of {where} must be a date, as 2026-01-31, not {value!r}")
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone_info(zone))
    return min(max(nanoseconds(value), ALWAYS), NEVER)  # the year 9999 is no int64
