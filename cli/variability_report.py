"""How `whorl variability` looks: a table that fits the terminal, then what it means, workload by workload."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import click

from ..analysis import Across, Variability
from .output import MISSING, count, markdown, number, print_table, width

_LISTED = 5  # outliers and pairs named for people; --json has all
_WIDE, _WIDEST = 118, 140  # columns of a terminal from which further columns of the table are printed


def _fixed(value: float | None, decimals: int = 2) -> str:
    return MISSING if value is None else f"{value:.{decimals}f}"


def _bounds(bounds: Sequence[float | None] | None) -> str:
    """A 95 % interval; "" where there is none."""
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return ""
    decimals = 2 if abs(bounds[1]) < 9.995 else 1
    return f"[{bounds[0]:.{decimals}f}, {bounds[1]:.{decimals}f}]"


@dataclass(frozen=True)
class _Column:
    """A column of the table: its head, its cell for a row, and the width of the terminals that show it."""

    head: str
    cell: Callable[[Variability], str]
    width: int = 0  # of the terminal that it takes
    right: bool = True


_COLUMNS = (
    _Column("workload", lambda r: r.workload if r.level == "run" else "", right=False),
    _Column("level", lambda r: r.level, right=False),
    _Column("n", lambda r: count(r.n)),
    _Column("median", lambda r: f"{number(r.median)} {r.unit or ''}".strip()),
    _Column("fence %", lambda r: _fixed(r.fence_pct)),
    _Column("[95 %]", lambda r: _bounds(r.interval["fence_pct"]), right=False),
    _Column("whisk %", lambda r: _fixed(r.whisk_pct), _WIDE),
    _Column("p95-p5 %", lambda r: _fixed(r.p95p5_pct), _WIDE),
    _Column("CoV %", lambda r: _fixed(r.cov_pct), _WIDE),
    _Column("rCoV %", lambda r: _fixed(r.rcov_pct), _WIDEST),
    _Column("range %", lambda r: _fixed(r.range_pct), _WIDEST),
    _Column("worst", lambda r: _fixed(r.worst_over_median, 3)),
    _Column("slow/fast", lambda r: f"{count(len(r.slow))}/{count(len(r.fast))}"),
    _Column("ICC", lambda r: _fixed(r.icc.value) if r.level == "run" else ""),
    _Column("[95 %]", lambda r: _bounds((r.icc.low, r.icc.high)) if r.level == "run" else "", _WIDE, False),
)


def show(rows: Sequence[Variability]) -> None:
    """Print the rows for people."""
    available = width()
    columns = [c for c in _COLUMNS if available is None or available >= c.width]
    right = [i for i, column in enumerate(columns) if column.right]
    for cluster, members in groupby(rows, key=lambda row: row.cluster):
        chosen = list(members)
        click.echo(f"cluster {cluster}")
        print_table([c.head for c in columns], [[c.cell(row) for c in columns] for row in chosen], right)
        click.echo()
        for title, remarks in _remarks(chosen):
            click.echo(title)
            for remark in remarks:
                click.echo(_wrapped(remark, available, "  ", "    "))
            click.echo()
    for line in _notes(rows[0]):
        click.echo(_wrapped(line, available))
    if len(columns) < len(_COLUMNS):
        more = ", ".join(c.head for c in _COLUMNS if c not in columns and c.head[0] != "[")
        click.echo(_wrapped(f"No room for {more}: a wider terminal, --markdown and --json have them.", available))


def _wrapped(text: str, available: int | None, first: str = "", rest: str = "") -> str:
    """`text` in lines of the terminal's width, 100 at most; names of GPUs stay in one piece."""
    columns = min(available or 100, 100)
    return textwrap.fill(text, columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def as_markdown(rows: Sequence[Variability]) -> str:
    """The rows as a Markdown document."""
    right = [i + 1 for i, column in enumerate(_COLUMNS) if column.right]
    head = ["cluster", *(column.head for column in _COLUMNS)]
    cells = [[row.cluster, row.workload, *(column.cell(row) for column in _COLUMNS[1:])] for row in rows]
    parts = ["# Variability", markdown(head, cells, right), *_notes(rows[0])]
    for cluster, members in groupby(rows, key=lambda row: row.cluster):
        for title, remarks in _remarks(list(members)):
            parts += [f"## {title} on {cluster}", "\n".join(f"* {remark}" for remark in remarks)]
    return "\n\n".join(parts)


def _notes(row: Variability) -> Iterable[str]:
    yield (
        "Level run counts every run, level gpu the median of each GPU's runs. fence % = 400 IQR/median (SC'22); "
        "worst = slowest/median; slow, fast: beyond the Tukey fences; ICC: share of a single run's variance that is "
        "the GPU's."
    )
    if row.replicates:
        yield (
            f"Intervals: 95 %, {row.replicates:,} bootstrap replicates, GPUs resampled with all their runs, "
            f"seed {row.seed}."
        )
    else:
        yield "Intervals were not computed (--replicates 0)."


def _remarks(rows: Sequence[Variability]) -> Iterable[tuple[str, list[str]]]:
    """For each workload, what its figures mean, line by line."""
    for workload, members in groupby(rows, key=lambda row: row.workload):
        by_level = {row.level: row for row in members}
        yield workload, _remarks_of(by_level["run"], by_level["gpu"])


def _remarks_of(run: Variability, gpu: Variability) -> list[str]:
    unit = f" {gpu.unit}" if gpu.unit else ""
    lines = [run.finding]
    if "interval" in run.reasons and run.replicates:
        lines.append(f"the intervals are {run.reasons['interval']}")
    for word, outliers in (("slow", gpu.slow), ("fast", gpu.fast)):
        if outliers:
            named = ", ".join(f"{name} {number(ratio)}x" for name, ratio in outliers[:_LISTED])
            more = f", and {len(outliers) - _LISTED} more" if len(outliers) > _LISTED else ""
            lines.append(f"{word}, {len(outliers)} of {count(gpu.gpus)} GPUs: {named}{more}")
    if len(gpu.modes) > 1:
        heaps = "; ".join(f"{count(int(m['n']))} GPUs near {number(m['median'], 5)}{unit}" for m in gpu.modes)
        p = _p_value(gpu.modes_test.p)
        lines.append(f"{len(gpu.modes)} modes (dip test, p {p}, {count(gpu.modes_test.n)} GPUs): {heaps}")
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
    """What comes back between runs, and where the variance lies."""
    half = run.split_half
    if half["spearman"] is not None:
        yield f"split halves: rank correlation {half['spearman']:.3f} ({count(half['gpus'])} GPUs)"
    if run.icc_job.value is not None:
        bounds = _bounds((run.icc_job.low, run.icc_job.high))
        yield f"ICC by job {run.icc_job.value:.2f} {bounds} ({count(run.icc_job.groups)} jobs)".replace("  ", " ")
    shares = run.shares
    # Where a GPU has one run each, the two cannot be told apart: the last share is that of both.
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
            yield f"{label} {found.spearman:.2f}{bounds}, n {count(found.n)}"


def _p_value(p: float | None) -> str:
    """A p-value; the table behind the dip test ends at 0.001, which means "at most"."""
    if p is None:
        return "n/a"
    return "at most 0.001" if p < 0.00101 else number(p, 2)


_ACROSS_HEAD = ("cluster", "this", "with", "GPUs", "Spearman", "[95 %]", "remark")


def show_across(pairs: Sequence[Across], *, markdown: bool) -> None:
    """Print rank correlations between workloads: times first, then the strongest pairs of other figures."""
    times = [pair for pair in pairs if pair.figure_a == pair.figure_b == "time"]
    others = [pair for pair in pairs if pair not in times and pair.spearman is not None]
    others.sort(key=lambda pair: -abs(pair.spearman or 0.0))
    _across_table("Do the same GPUs take long in both?", times, as_markdown=markdown)
    if others:
        title = f"The strongest of {len(others)} other pairs of figures (of so many, some are strong by chance)"
        _across_table(title, others[:_LISTED], as_markdown=markdown)


def _across_table(title: str, pairs: Sequence[Across], *, as_markdown: bool) -> None:
    cells = [_across_cells(pair) for pair in pairs]
    if as_markdown:
        click.echo(f"## {title}\n\n{markdown(_ACROSS_HEAD, cells, (3, 4))}\n")
        return
    click.echo(title)
    print_table(_ACROSS_HEAD, cells, (3, 4))
    click.echo()


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
