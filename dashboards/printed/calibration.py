"""What `whorl energy calibrate` says: the gain and offset of each board, with intervals, and what they are from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...analysis.energy.calibration import SCHEMA, Calibration
from ...store.power_sensors import ErrorSource
from ...store.vocabulary import CalibrationFinding
from ..energy_table import EnergyColumn, Row, text, text_table
from ..table import MISSING, Table, count, many, minute

_LISTED, _REFUSED = 64, 5


def document(calibration: Calibration) -> dict[str, Any]:
    """The document of `whorl.energy.calibrate/1`."""
    return {
        "schema": SCHEMA,
        "rows": calibration.boards.to_dicts(),
        "nodes": calibration.nodes,
        "refused": calibration.refused.to_dicts(),
        "stored": calibration.stored,
    }


def answer(calibration: Calibration) -> Iterable[str | Table]:
    """The boards in a table, and what stands behind it."""
    rows = calibration.boards.head(_LISTED).to_dicts()
    if not rows:
        yield "n/a: the store knows no GPU; `whorl collect` or `whorl import` adds some"
        return
    columns = [
        text("GPU", lambda row: row["name"] or row["gpu"]),
        text("model", lambda row: row["model"] or MISSING, leaves=1),
        EnergyColumn("windows", lambda row: count(row["windows"])),
        *_with_interval("gain %", "gain", "pct", 2),
        *_with_interval("offset W", "offset", "w", 1),
        text("from", lambda row: row["source"]),
        text("finding", lambda row: row["finding"] or "", leaves=2),
    ]
    yield text_table(columns, rows)
    if calibration.boards.height > _LISTED:
        yield f"and {calibration.boards.height - _LISTED:,} more: --json has all"
    yield ""
    yield from _sentences(calibration)


def _with_interval(head: str, figure: str, unit: str, digits: int) -> list[EnergyColumn]:
    def ends(row: Row) -> str:
        low, high = (row[f"{figure}_{end}_{unit}"] for end in ("low", "high"))
        return MISSING if row[name] is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"

    name = f"{figure}_{unit}"
    value = EnergyColumn(head, lambda row: MISSING if row[name] is None else f"{row[name]:+.{digits}f}")
    return [value, EnergyColumn("[95 %]", ends)]


def _sentences(calibration: Calibration) -> Iterable[str]:
    boards = calibration.boards
    learnt = boards.filter(boards["source"] == ErrorSource.CALIBRATED.value)
    if calibration.nodes:
        done = "stored: energy is that of calibrated boards" if calibration.stored else "nothing is stored"
        yield f"{many(calibration.nodes, 'node')} with power of their own; {done}"
    else:
        yield (
            "n/a: no node has ten windows in which its power and that of all its GPUs are known; `whorl import` and "
            "`whorl collect` read the power of nodes (docs/energy.md)"
        )
    for row in calibration.refused.head(_REFUSED).iter_rows(named=True):
        yield (
            f"not used: node {row['node']}, whose meter ({row['meter']}) moves by "
            f"{round(row['watts_per_watt'], 2) + 0:.2f} W for each W of its GPUs: it is stuck, late by more than a "
            "minute, or no meter of this node alone"
        )
    if calibration.refused.height > _REFUSED:
        yield f"not used: {calibration.refused.height - _REFUSED:,} more nodes for the same reason; --json has all"
    if learnt.height:
        first, last = min(learnt["since"].to_list()), max(learnt["until"].to_list())
        yield f"windows from {minute(first)} to {minute(last)} UTC"
    yield "a sensor reads (1 + gain) x true power + offset"
    for source, n in boards["source"].value_counts(sort=True).iter_rows():
        yield f"{source}, {many(n, 'GPU')}: {ErrorSource(source).meaning}"
    for finding, n in boards["finding"].drop_nulls().value_counts(sort=True).iter_rows():
        yield f"{finding}, {many(n, 'GPU')}: {CalibrationFinding(finding).meaning}"
