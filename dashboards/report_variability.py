"""Tables of the report that say how much the GPUs differ, each figure with its number of GPUs and its interval."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import Variability
from .table import MISSING, Table, signed


def times(known: Sequence[Variability]) -> Table:
    """The times of a single GPU."""
    rows = [[row.workload, f"{digits(row.median)} {row.unit or ''}".strip()] for row in known]
    return Table(["probe", "median"], rows, (1,), says="One GPU was measured: there is none to compare it with.")


def sizes(known: Sequence[Variability], noun: str) -> Table:
    """How much the GPUs differ in each probe or workload."""
    header = [noun, "GPUs", "median", "spread %", "p95 - p5 %", "CoV %"]
    rows = [
        [
            row.workload,
            f"{row.n:,}",
            _median(row),
            *(_interval(row, name) if row.n > 1 else MISSING for name in ("fence_pct", "p95p5_pct", "cov_pct")),
        ]
        for row in known
    ]
    return Table(
        header,
        rows,
        range(1, len(header)),
        cards=True,
        title="Variability",
        says="For the GPUs' median times, in % of the median GPU's time, with 95 % bootstrap intervals "
        f"({known[0].replicates:,} replicates). Spread: from one Tukey fence to the other, four times the range of the "
        "middle half (the variation of the SC'22 study). p95 - p5: the range of the middle 90 % of the GPUs. CoV: "
        "standard deviation over mean, outliers included. Without an interval: too few GPUs, or a few of them decide.",
    )


def extremes(known: Sequence[Variability], noun: str) -> Table:
    """The ends of the distributions, and what goes with a long time."""
    header = [noun, "GPUs", "slowest GPU", "slow / fast", "ρ clock", "ρ temp."]
    rows = [
        [
            row.workload,
            f"{row.n:,}",
            _longer(row) if row.n > 1 else MISSING,
            f"{len(row.slow)} / {len(row.fast)}" if row.n > 1 else MISSING,
            _rho(row, "sm_clock"),
            _rho(row, "temperature"),
        ]
        for row in known
    ]
    return Table(
        header,
        rows,
        range(1, len(header)),
        cards=True,
        title="Slowest GPUs, and what goes with time",
        says="Slowest GPU: how much longer it takes than the median GPU, with a 95 % bootstrap interval: a job that "
        "waits for all its GPUs waits for this one. The interval knows no slower GPU than those that were measured. "
        "Slow / fast: how many GPUs are far from the others, beyond the fences (not a test). ρ: whether slow GPUs "
        "have other clocks or temperatures than fast ones, as a rank correlation with its 95 % interval: near +1, "
        "slow GPUs have high ones; near -1, low ones; near 0, there is no such rule.",
    )


def _median(row: Variability) -> str:
    """The median GPU's time with its interval."""
    bounds = row.interval.get("median") if row.n > 1 else None
    unit = f" {row.unit}" if row.unit else ""
    if bounds is None:
        return f"{digits(row.median)}{unit}"
    return f"{digits(row.median)}{unit} [{digits(bounds[0])}, {digits(bounds[1])}]"


def _longer(row: Variability) -> str:
    """How much longer the slowest GPU takes than the median one, with its interval."""
    bounds = row.interval.get("worst_over_median")
    if row.worst_over_median is None:
        return MISSING
    shown = "" if bounds is None else f" [{100 * (bounds[0] - 1):.1f}, {100 * (bounds[1] - 1):.1f}]"
    return f"{100 * (row.worst_over_median - 1):.1f} % longer{shown}"


def _interval(row: Variability, name: str) -> str:
    value, bounds = getattr(row, name), row.interval.get(name)
    if value is None:
        return MISSING
    if bounds is None:
        return f"{value:.2f}"
    return f"{value:.2f} [{bounds[0]:.2f}, {bounds[1]:.2f}]"


def _rho(row: Variability, name: str) -> str:
    found = row.correlation.get(name)
    if found is None or found.spearman is None:
        return MISSING
    bounds = "" if found.interval is None else f" [{signed(found.interval[0])}, {signed(found.interval[1])}]"
    return f"{signed(found.spearman)}{bounds}"


def digits(value: float, most: int = 4) -> str:
    """A number with this many significant digits, including final zeros; never fewer than the whole number has."""
    if not value:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 10 ** (most - 1) else f"{value:#.{most}g}".removesuffix(".")
