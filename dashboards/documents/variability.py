"""How much the GPUs differ, whether that repeats from workload to workload, and what each of them is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from ...analysis import Across, Variability
from ...analysis.verdicts.compare import LEAST_GPUS
from ...analysis.verdicts.fingerprint import Fingerprints
from ...store.names import by_number
from ..document import WORDS, Cell, CellSource, Column, Command, Document, Facts, Part, Section, Table, TableColumns
from ..words import MISSING, count, in_store, interval, listed, number, short_names, with_interval

_NAMED = 5  # outliers and pairs for people; JSON has all
_GPUS = 20
_CLASSES = ("compute", "memory", "power", "latency", "path", "other")

Names: TypeAlias = Mapping[tuple[str, str], str]
"""By cluster and GPU, the GPU's name for people."""
_WORDS = (
    ("level run, gpu", "every run counts; or the median of each GPU's runs"),
    ("fence %", "400 IQR / median, as the SC'22 study defines the spread"),
    ("whisk %", "from the lowest to the highest value within the Tukey fences, in % of the median"),
    ("worst", "the slowest over the median"),
    ("slow/fast", "how many are beyond the Tukey fences"),
    ("ICC", "the share of a single run's variance that belongs to the GPU"),
)


# -- how much they differ ----------------------------------------------------------------------------------------


def variability(rows: Sequence[Variability], names: Names) -> Document:
    """A table for each cluster, then what it means, workload by workload."""
    parts: list[Part] = []
    for cluster, members in groupby(rows, key=lambda row: row.cluster):
        chosen = list(members)
        meanings = []
        for workload, levels in groupby(chosen, key=lambda row: row.workload):
            by_level = {row.level: row for row in levels}
            meanings.append(Section(f"Workload {workload}", _meaning(by_level["run"], by_level["gpu"], names)))
        parts.append(Section(f"Cluster {cluster}", [_spread_table(chosen), *meanings]))
    parts += _how_made(rows[0], has_intervals=any(any(row.interval.values()) for row in rows))
    parts.append(Section(WORDS, [Facts(_WORDS)], folded=True))
    return Document("Variability", parts)


def _spread_table(rows: Sequence[Variability]) -> Table:
    columns: TableColumns = [
        ("workload", lambda row: row.workload if row.level == "run" else ""),
        ("level", "level"),
        (Column("n", "count"), "n"),
        (Column("median", drops=1), lambda row: f"{number(row.median)} {row.unit or ''}".strip()),
        (
            Column("fence % [95 %]", "estimate"),
            _of_several(lambda row: (row.fence_pct, *(row.interval["fence_pct"] or (None, None)))),
        ),
        (Column("whisk %", "number", 2, drops=6), _of_several(lambda row: row.whisk_pct)),
        (Column("p95-p5 %", "number", 2, drops=5), _of_several(lambda row: row.p95p5_pct)),
        (Column("CoV %", "number", 2, drops=4), _of_several(lambda row: row.cov_pct)),
        (Column("rCoV %", "number", 2, drops=9), _of_several(lambda row: row.rcov_pct)),
        (Column("range %", "number", 2, drops=8), _of_several(lambda row: row.range_pct)),
        (Column("worst", "number", 3), _of_several(lambda row: row.worst_over_median)),
        (Column("slow/fast", drops=2), _of_several(lambda row: f"{len(row.slow):,}/{len(row.fast):,}")),
        (
            Column("ICC [95 %]", "estimate", drops=3),
            lambda row: (row.icc.value, row.icc.low, row.icc.high) if row.level == "run" else "",
        ),
    ]
    return Table.of(rows, columns)


def _of_several(cell: Callable[[Variability], Cell]) -> Callable[[Variability], Cell]:
    """A cell about a spread: one value has none."""
    return lambda row: cell(row) if row.n >= 2 else None


def _how_made(row: Variability, *, has_intervals: bool) -> Iterator[str]:
    if not row.replicates:
        yield "Intervals were not computed (replicates=0)."
    elif has_intervals:
        yield (
            f"Intervals: 95 %, {row.replicates:,} bootstrap replicates, GPUs (or nodes, where their GPUs are alike) "
            f"resampled with all their runs, seed {row.seed}."
        )


def _meaning(run: Variability, gpu: Variability, names: Names) -> list[Part]:
    """What the figures of a workload mean, sentence by sentence."""
    sentences = [run.finding]
    if "interval" in run.reasons and run.replicates:
        start = "the intervals are" if any(run.interval.values()) else "no intervals:"
        sentences.append(f"{start} {run.reasons['interval']}")
    for word, outliers in (("slow", gpu.slow), ("fast", gpu.fast)):
        if outliers:
            gpus = [f"{names.get((gpu.cluster, key), key)} {number(ratio)}x" for key, ratio in outliers]
            sentences.append(f"{word}, {len(outliers)} of {count(gpu.gpus)} GPUs: {listed(gpus, _NAMED)}")
    if len(gpu.modes) > 1:
        unit = f" {gpu.unit}" if gpu.unit else ""
        groups = "; ".join(f"{count(int(mode['n']))} GPUs near {number(mode['median'], 5)}{unit}" for mode in gpu.modes)
        test = f"dip test, p {_p_value(gpu.modes_test.p)}, {count(gpu.modes_test.n)} GPUs"
        sentences.append(f"{len(gpu.modes)} modes ({test}): {groups}")
    sentences.append(f"rank correlation of the GPUs' time with {'; '.join(_correlations(gpu))}")
    sentences += _repeats(run)
    if run.imported:
        sentences.append(
            f"imported: {count(run.imported['rows'])} rows, {count(run.imported['duplicates'])} duplicates dropped, "
            f"{count(run.imported['refused'])} refused"
        )
    if run.left_out:
        sentences.append(f"left out: {count(run.left_out)} rows without a GPU or a finite time")
    return [f"  {sentence}" for sentence in sentences]


def _repeats(run: Variability) -> Iterator[str]:
    """What repeats between runs, and the shares of the variance."""
    half, job, shares = run.split_half, run.icc_job, run.shares
    if half["spearman"] is not None:
        yield f"split halves: rank correlation {half['spearman']:.3f} ({count(half['gpus'])} GPUs)"
    if job.value is not None:
        yield f"ICC by job {with_interval(job.value, job.low, job.high)} ({count(job.groups)} jobs)"
    # If each GPU has one run, GPU and run cannot be separated: the last share is that of both.
    labels = {"gpu": "GPU", "run": "run" if shares["gpu"] is not None else "GPU and run"}
    parts = [
        f"{labels.get(name, name)} {100 * shares[name]:.0f} %"
        for name in ("cabinet", "node", "gpu", "run")
        if shares[name] is not None
    ]
    if parts:
        yield f"shares of the variance: {', '.join(parts)} (n {count(shares['n'])}, {count(shares['gpus'])} GPUs)"


def _correlations(row: Variability) -> Iterator[str]:
    for name, correlation in row.correlation.items():
        label = "SM clock" if name == "sm_clock" else name
        if correlation.spearman is None:
            yield f"{label} n/a ({correlation.reason})"
            continue
        low, high = correlation.interval or (None, None)
        bounds = "" if low is None or high is None else f" {interval(low, high, digits=2, signed=False)}"
        yield f"{label} {correlation.spearman:z.2f}{bounds}, n {count(correlation.n)}"


def _p_value(p: float | None) -> str:
    """A p-value; the table behind the dip test ends at 0.001, which means "at most"."""
    if p is None:
        return MISSING
    return "at most 0.001" if p < 0.00101 else number(p, 2)


def across(pairs: Sequence[Across]) -> Document:
    """Rank correlations between workloads: times first, then the strongest pairs of other figures."""
    times = [pair for pair in pairs if pair.figure_a == pair.figure_b == "time"]
    others = [pair for pair in pairs if pair not in times and pair.spearman is not None]
    others.sort(key=lambda pair: -abs(pair.spearman or 0.0))
    tables: list[Part] = []
    if pairs:
        tables.append(_pairs(times, "Do the same GPUs take long in both?"))
    if others:
        title = f"The strongest of {len(others)} other pairs of figures (of so many, some are strong by chance)"
        tables.append(_pairs(others[:_NAMED], title))
    return Document("Across workloads", tables)


def _pairs(pairs: Sequence[Across], title: str) -> Table:

    def remark(pair: Across) -> str:
        ambiguous = f"{pair.ambiguous} ambiguous identities left out" if pair.ambiguous else ""
        return "; ".join(filter(None, (pair.reason, ambiguous)))

    columns: TableColumns = [
        (Column("cluster", drops=1), "cluster"),
        ("this", lambda pair: f"{pair.figure_a} of {pair.workload_a}"),
        ("with", lambda pair: f"{pair.figure_b} of {pair.workload_b}"),
        (Column("GPUs", "count"), "n"),
        (Column("Spearman [95 %]", "estimate"), lambda pair: (pair.spearman, pair.low, pair.high)),
        (Column("remark", "sentence", drops=2), remark),
    ]
    return Table.of(pairs, columns, title)


# -- what each of them is ----------------------------------------------------------------------------------------


def fingerprints(computed: Fingerprints, store: str | Path) -> Document:
    """The classes GPU by GPU, or every figure of one GPU."""
    if computed.rows.is_empty():
        nothing = "It has no runs: there is no fingerprint." if computed.gpu else "There are no runs that ended well."
        parts: list[Part] = [
            nothing,
            "What was seen of GPUs stands in:",
            Command(f"whorl verdicts {in_store(store)}"),
        ]
    elif computed.gpu is None:
        parts = list(_fleet(computed, in_store(store, computed.cluster)))
    else:
        parts = list(_one_gpu(computed))
    return Document(f"Fingerprints of cluster {computed.cluster}", parts)


def _fleet(computed: Fingerprints, options: str) -> Iterator[Part]:
    times = computed.rows.filter((pl.col("figure") == "time") & pl.col("workload").is_null())
    by_gpu: dict[str, dict[str, dict[str, Any]]] = {}
    for row in times.iter_rows(named=True):
        by_gpu.setdefault(row["name"], {})[row["class"]] = row
    if not by_gpu:
        yield "No GPU has peers, which are GPUs of its model with the same workload: there is nothing to compare with."
        return
    moves = dict(computed.rows.filter(pl.col("figure") == "time_spread").select("name", "value").iter_rows())
    slowest = {name: max(row["ratio"] for row in classes.values()) for name, classes in by_gpu.items()}
    names = sorted(by_gpu, key=lambda name: (-slowest[name], by_number(name)))
    shorter = short_names(names)
    classes = [name for name in _CLASSES if name in set(times["class"])]

    def class_column(of_class: str) -> tuple[Column | str, CellSource]:
        column = Column(f"{of_class} [95 %]", "percent", explains="Slower than the peers is positive.")
        return column, lambda name: _slower(by_gpu[name].get(of_class))

    yield Table.of(
        names,
        [
            (Column("GPU", page="gpu"), lambda name: shorter[name]),
            *map(class_column, classes),
            (Column("moves", "number", 2, "%", drops=1), moves.get),
            (Column("runs", "count", drops=2), lambda name: max(row["n"] for row in by_gpu[name].values())),
        ],
        f"Cluster {computed.cluster}: {len(names):,} GPUs, those slow in any class first",
        "In % of the time of the peers, slower is positive, the median of the workloads of a class, with the interval "
        "of another sitting; moves: standard deviation of the GPU's own level from sitting to sitting.",
        most=_GPUS,
    )
    yield from _few(times)
    yield "All figures of the first one:"
    yield Command(f"whorl verdicts fingerprint --gpu {shlex.quote(shorter[names[0]])} {options}")


def _few(rows: pl.DataFrame) -> Iterator[str]:
    """What cannot be concluded where there are few GPUs of a model."""
    sizes = {int(peers) for peers in rows["peers"].drop_nulls().unique()}
    if 2 in sizes:
        yield (
            "2 GPUs of a model: the ratios say that they differ, but which of the two is odd cannot be said: a third "
            "GPU of the model tells."
        )
    few = {size for size in sizes if 2 < size < LEAST_GPUS}
    if few:
        yield f"Of {max(few)} GPUs of a model, none can be named: `whorl verdicts` needs {LEAST_GPUS}."


def _slower(row: Mapping[str, Any] | None) -> tuple[float | None, float | None, float | None] | None:
    """How much slower than its peers, with the ends of the interval, in per cent."""
    if row is None:
        return None
    slower, low, high = (
        None if row[name] is None else 100 * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high")
    )
    return slower, low, high


def _one_gpu(computed: Fingerprints) -> Iterator[Part]:
    first = computed.rows.row(0, named=True)
    key = "" if first["gpu"] == first["name"] else f" ({first['gpu']})"
    serial = "" if first["serial"] is None else f", serial {first['serial']}"
    yield f"{first['name']}{key}: {first['model'] or 'model unknown'}{serial}, cluster {computed.cluster}."
    beside_peers = Column("beside peers [95 %]", "percent", explains="Beside the median of the GPUs of its model.")
    columns: TableColumns = [
        ("class", "class"),
        ("workload", lambda row: row["workload"] or "(all)"),
        ("figure", "figure"),
        ("value", lambda row: f"{number(row['value'])} {row['unit']}".strip()),
        (Column("[95 %]", "interval", drops=1), lambda row: (row["low"], row["high"])),
        (beside_peers, lambda row: None if row["ratio"] is None else _slower(row)),
        (
            Column("rank", explains="1 has the lowest value."),
            lambda row: None if row["rank"] is None else f"{row['rank']:,} of {row['peers']:,}",
        ),
        (Column("runs", "count", drops=2), "n"),
        (Column("sittings", "count", drops=3), "sittings"),
    ]
    yield Table.of(
        computed.rows.iter_rows(named=True),
        columns,
        below="[95 %]: of another sitting; beside peers: the median of the GPUs of its model; rank 1 has the lowest "
        "value.",
    )
    yield from _few(computed.rows)
    if computed.neighbours:
        names = short_names([first["name"], *(gpu.name for gpu in computed.neighbours)])
        near = ", ".join(
            f"{names[gpu.name]} ({gpu.distance:.2f} standard deviations over {gpu.figures} figures)"
            for gpu in computed.neighbours
        )
        yield f"Most like it: {near}."
