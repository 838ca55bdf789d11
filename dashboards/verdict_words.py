"""The parts of a verdict as text, for pages and terminals alike."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.verdicts import Level, Verdict
from .table import MISSING, many

_NAMED = 4
_PART = 12  # of a UUID: `GPU-` and eight digits


def name(one: Verdict) -> str:
    """The name, with the number of GPUs where it is not that of one and does not say it."""
    counted = many(len(one.gpus), "GPU")
    return short(one.name) if one.level == Level.GPU or one.name == counted else f"{one.name} ({counted})"


def short(name: str) -> str:
    """A name for a table: of a UUID the first part, which every command takes."""
    return name[:_PART] if len(name) > 2 * _PART and name[:4] in ("GPU-", "MIG-") else name


def causes(one: Verdict) -> str:
    """The parts of the effect in words: `4.0 power cap, 1.3 heat`."""
    parts = [f"{part.pct:.1f} {part.what}" for part in one.causes]
    return ", ".join(parts) if parts else MISSING


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:+.1f}"


def interval(low: float | None, high: float | None) -> str:
    """A 95 % interval; n/a where there is none."""
    return MISSING if low is None or high is None else f"[{low:+.1f}, {high:+.1f}]"


def some(names: Sequence[str], most: int = _NAMED) -> str:
    """The first of several names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else MISSING
