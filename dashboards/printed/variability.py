"""How `whorl verdicts variability` looks: a table that fits the terminal, then its meaning, by workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ...analysis import Across, Variability
from ..table import MISSING, Line, Table, count, number

_LISTED = 5  # outliers and pairs named for people; --json has all

Names: TypeAlias = Mapping[tuple[str, str], str]
"""By cluster and GPU, the GPU's name for people."""


def _fixed(value: float | None, decimals: int = 2) -> str:
    return MISSING if value is None else f"{value:z.{decimals}f}"


def _bounds(bounds: Sequence[float | None] | None) -> str:
    """A 95 % interval; "" if there is none."""
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return ""
    decimals = 2 if abs(bounds[1]) < 9.995 else 1
    return f"[{bounds[0]:z.{decimals}f}, {bounds[1]:z.{decimals}f}]"


def _spread(row: Variability, value: float | None, decimals: int = 2) -> str:
    """A figure of how much values differ: one value has none."""
    return MISSING if row.n < 2 else _fixed(value, decimals)


@dataclass(frozen=True)
class _Column:
    """A column of the table: its head, its cell for a row, and when it leaves a terminal that is too narrow."""

    head: str
    cell: Callable[[Variability], str]
    leaves: int = 0  # the highest first, 0 never
    right: bool = True


_COLUMNS = (
    _Column("workload", lambda r: r.workload if r.level == "run" else "", right=False),
    _Column("level", lambda r: r.level, right=False),
    _Column("n", lambda r: count(r.n)),
    _Column("median", lambda r: f"{number(r.median)} {r.unit or ''}".strip(), 1),
    _Column("fence %", lambda r: _spread(r, r.fence_pct)),
    _Column("[95 %]", lambda r: _bounds(r.interval["fence_pct"]), right=False),
    _Column("whisk %", lambda r: _spread(r, r.whisk_pct), 6),
    _Column("p95-p5 %", lambda r: _spread(r, r.p95p5_pct), 5),
    _Column("CoV %", lambda r: _fixed(r.cov_pct), 4),
    _Column("rCoV %", lambda r: _spread(r, r.rcov_pct), 9),
    _Column("range %", lambda r: _spread(r, r.range_pct), 8),
    _Column("worst", lambda r: _spread(r, r.worst_over_median, 3)),
    _Column("slow/fast", lambda r: MISSING if r.n < 2 else f"{count(len(r.slow))}/{count(len(r.fast))}", 2),
    _Column("ICC", lambda r: _fixed(r.icc.value) if r.level == "run" else "", 3),
    _Column("[95 %]", lambda r: _bounds((r.icc.low, r.icc.high)) if r.level == "run" else "", 7, False),
)
_HEADS = tuple(column.head for column in _COLUMNS)
_RIGHT = tuple(place for place, column in enumerate(_COLUMNS) if column.right)
_LEAVES = tuple(
    sorted((i for i, column in enumerate(_COLUMNS) if column.leaves), key=lambda place: -_COLUMNS[place].leaves)
)


def answer(rows: Sequence[Variability], names: Names) -> Iterable[str | Table]:
    """The rows for people: a table by cluster, then what it means, workload by workload."""
    for cluster, members in groupby(rows, key=lambda row: row.cluster):
        chosen = list(members)
        cells = [[column.cell(row) for column in _COLUMNS] for row in chosen]
        yield Table(_HEADS, cells, _RIGHT, title=f"cluster {cluster}", leaves=_LEAVES)
        yield ""
        for title, remarks in _remarks(chosen, names):
            yield Line(title)
            yield from (f"  {remark}" for remark in remarks)
            yield ""
    yield from _notes(rows)


def as_markdown(rows: Sequence[Variability], names: Names) -> str:
    """The rows as a Markdown document."""
    cells = [[row.cluster, row.workload, *(column.cell(row) for column in _COLUMNS[1:])] for row in rows]
    table = Table(["cluster", *_HEADS], cells, [place + 1 for place in _RIGHT])
    parts = ["# Variability", table.markdown(), *_notes(rows)]
    for cluster, members in groupby(rows, key=lambda row: row.cluster):
        for title, remarks in _remarks(list(members), names):
            parts += [f"## {title} on {cluster}", "\n".join(f"* {remark}" for remark in remarks)]
    return "\n\n".join(parts)


def _notes(rows: Sequence[Variability]) -> Iterable[str]:
    row = rows[0]
    yield (
        "Level run: every run counts; level gpu: the median of each GPU's runs counts. fence % = 400 IQR/median "
        "(SC'22); worst = slowest/median; slow, fast: GPUs beyond the Tukey fences; ICC: share of a single run's "
        "variance that belongs to the GPU."
    )
    if row.replicates and any(any(one.interval.values()) for one in rows):
        yield (
            f"Intervals: 95 %, {row.replicates:,} bootstrap replicates, GPUs (or nodes, where their GPUs are alike) "
            f"resampled with all their runs, seed {row.seed}."
        )
    elif not row.replicates:
        yield "Intervals were not computed (--replicates 0)."


def _remarks(rows: Sequence[Variability], names: Names) -> Iterable[tuple[str, list[str]]]:
    """For each workload, what its figures mean, line by line."""
    for workload, members in groupby(rows, key=lambda row: row.workload):
        by_level = {row.level: row for row in members}
        yield workload, _remarks_of(by_level["run"], by_level["gpu"], names)


def _remarks_of(run: Variability, gpu: Variability, names: Names) -> list[str]:
    unit = f" {gpu.unit}" if gpu.unit else ""
    lines = [run.finding]
    if "interval" in run.reasons and run.replicates:
        made = any(run.interval.values())
        lines.append(f"{'the intervals are' if made else 'no intervals:'} {run.reasons['interval']}")
    for word, outliers in (("slow", gpu.slow), ("fast", gpu.fast)):
        if outliers:
            named = ", ".join(
                f"{names.get((gpu.cluster, key), key)} {number(ratio)}x" for key, ratio in outliers[:_LISTED]
            )
            more = f", and {len(outliers) - _LISTED} more" if len(outliers) > _LISTED else ""
            lines.append(f"{word}, {len(outliers)} of {count(gpu.gpus)} GPUs: {named}{more}")
    if len(gpu.modes) > 1:
        found = "; ".join(f"{count(int(m['n']))} GPUs near {number(m['median'], 5)}{unit}" for m in gpu.modes)
        p = _p_value(gpu.modes_test.p)
        lines.append(f"{len(gpu.modes)} modes (dip test, p {p}, {count(gpu.modes_test.n)} GPUs): {found}")
    lines.append(f"rank correlation of the GPUs' time with {'; '.join(_correlations(gpu))}")
    lines += _repeats(run)
    if run.imported:
        lines.append(
            f"imported: {count(run.imported['rows'])} rows, {count(run.imported['duplicates'])} duplicates dropped, "
            f"{count(run.imported['refused'])} refused"
        )
    if run.left_out:
        lines.append(f"left out: {count(run.left_out)} rows without a GPU or a finite time")
    return lines


def _repeats(run: Variability) -> Iterable[str]:
    """What repeats between runs, and the shares of the variance."""
    half = run.split_half
    if half["spearman"] is not None:
        yield f"split halves: rank correlation {half['spearman']:.3f} ({count(half['gpus'])} GPUs)"
    if run.icc_job.value is not None:
        bounds = _bounds((run.icc_job.low, run.icc_job.high))
        yield f"ICC by job {run.icc_job.value:.2f} {bounds} ({count(run.icc_job.groups)} jobs)".replace("  ", " ")
    shares = run.shares
    # If each GPU has one run, GPU and run cannot be separated: the last share is that of both.
    spoken = {"gpu": "GPU", "run": "run" if shares["gpu"] is not None else "GPU and run"}
    known = [
        f"{spoken.get(name, name)} {100 * shares[name]:.0f} %"
        for name in ("cabinet", "node", "gpu", "run")
        if shares[name] is not None
    ]
    if known:
        yield f"shares of the variance: {', '.join(known)} (n {count(shares['n'])}, {count(shares['gpus'])} GPUs)"


def _correlations(row: Variability) -> Iterable[str]:
    for name, found in row.correlation.items():
        label = "SM clock" if name == "sm_clock" else name
        if found.spearman is None:
            yield f"{label} n/a ({found.reason})"
        else:
            bounds = f" {_bounds(found.interval)}" if found.interval else ""
            yield f"{label} {found.spearman:z.2f}{bounds}, n {count(found.n)}"


def _p_value(p: float | None) -> str:
    """A p-value; the table behind the dip test ends at 0.001, which means "at most"."""
    if p is None:
        return "n/a"
    return "at most 0.001" if p < 0.00101 else number(p, 2)


_ACROSS_HEAD = ("cluster", "this", "with", "GPUs", "Spearman", "[95 %]", "remark")


def across_answer(pairs: Sequence[Across]) -> list[Table]:
    """Rank correlations between workloads: times first, then the strongest pairs of other figures."""
    times = [pair for pair in pairs if pair.figure_a == pair.figure_b == "time"]
    others = [pair for pair in pairs if pair not in times and pair.spearman is not None]
    others.sort(key=lambda pair: -abs(pair.spearman or 0.0))
    tables = [("Do the same GPUs take long in both?", times)] if pairs else []
    if others:
        title = f"The strongest of {len(others)} other pairs of figures (of so many, some are strong by chance)"
        tables.append((title, others[:_LISTED]))
    return [
        Table(_ACROSS_HEAD, [_across_cells(pair) for pair in chosen], (3, 4), title, wrapped=(6,), leaves=(6, 0))
        for title, chosen in tables
    ]


def _across_cells(pair: Across) -> list[str]:
    remarks = [pair.reason or "", f"{pair.ambiguous} ambiguous identities left out" if pair.ambiguous else ""]
    return [
        pair.cluster,
        f"{pair.figure_a} of {pair.workload_a}",
        f"{pair.figure_b} of {pair.workload_b}",
        count(pair.n),
        _fixed(pair.spearman),
        _bounds((pair.low, pair.high)),
        "; ".join(remark for remark in remarks if remark),
    ]
