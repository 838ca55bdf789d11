"""What of a first GPU's figures is accepted: shares of what the same run reached, and spreads between its own runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

CEILING_SHARES = {"best copy": 92.0, "plain product": 98.0, "peak of the units": 95.0}
"""A rate is at least this share of its ceiling, %: copies, products through the library, chains of multiply-adds."""
COMPUTE_CV, BANDWIDTH_CV = 0.5, 0.3
"""Coefficient of variation over the runs' median times, at most, %."""
ZEROS_GAIN = 5.0
"""A product of zeros is faster than one of uniform numbers by this, %: bits that do not change take no power."""
TELEMETRY_COST = 0.2
"""Reading telemetry makes a kernel slower by at most this, %."""
L2_DRAM_SHARE = 2.0
"""Of the bytes that l2-read reads, at most this share comes from device memory, %."""
WORST_ERROR = 0.5
"""The largest error of a right result as a share of its tolerance, at most."""


def coefficient_of_variation(values: list[float]) -> float | None:
    """Standard deviation over mean, %; None of fewer than two values."""
    return 100 * statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else None


def acceptance(phases: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure that a phase came to: value, n, what is accepted, and whether it is met."""
    findings = {name: answer.get("findings", {}) for name, answer in phases.items()}
    rows = [*_kernels(findings.get("kernels", {})), *_ceilings(findings.get("ceilings", {}))]
    rows += [*_spread(findings.get("spread", {})), *_inputs(findings.get("inputs", {}))]
    for row in findings.get("telemetry", {}).get("kernels", []):
        rows.append(_most(f"telemetry beside {row['kernel']}", row["cost_percent"], TELEMETRY_COST, n=row["pairs"]))
    share = findings.get("ncu", {}).get("dram_share_percent")
    if share is not None:
        rows.append(_most("l2-read from device memory", share, L2_DRAM_SHARE, n=1))
    return rows


def _kernels(findings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rows = findings.get("kernels", [])
    checked = [row for row in rows if row.get("problem") is None]
    if checked:
        repetitions = sum(row["repetitions"] for row in checked)
        yield _most("wrong elements of all kernels", sum(row["wrong"] for row in checked), 0, n=repetitions, unit="")
        worst = max(row["worst"] for row in checked)
        yield _most("worst error over tolerance", worst, WORST_ERROR, n=len(checked), unit="")
        missed = sum(not row["omission_is_found"] for row in checked)
        yield _most("kernels in which a repetition that does nothing passes", missed, 0, n=len(checked), unit="")
    if rows:
        yield _most("kernels that failed", len(rows) - len(checked), 0, n=len(rows), unit="")


def _ceilings(findings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in findings.get("probes", []):
        goal = CEILING_SHARES.get(row["ceiling"])
        if goal is not None and row.get("share_percent") is not None:
            yield _least(f"{row['probe']} of the {row['ceiling']}", row["share_percent"], goal, n=row["n"])


def _spread(findings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in findings.get("kernels", []):
        variation = coefficient_of_variation(row["times_ms"])
        if variation is not None:
            goal = BANDWIDTH_CV if row["path"] == "dram" else COMPUTE_CV
            yield _most(f"variation of {row['kernel']}", variation, goal, n=len(row["times_ms"]))


def _inputs(findings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rates = {row["input"]: row["rate"] for row in findings.get("products", [])}
    if "uniform" in rates and "zeros" in rates:
        gain = 100 * (rates["zeros"] / rates["uniform"] - 1)
        yield _least("zeros faster than uniform numbers", gain, ZEROS_GAIN, n=2)


def _least(figure: str, value: float, goal: float, *, n: int, unit: str = "%") -> dict[str, Any]:
    return {"figure": figure, "value": value, "unit": unit, "n": n, "at_least": goal, "met": value >= goal}


def _most(figure: str, value: float, goal: float, *, n: int, unit: str = "%") -> dict[str, Any]:
    return {"figure": figure, "value": value, "unit": unit, "n": n, "at_most": goal, "met": value <= goal}
