"""What `whorl probe run` and `whorl probe list` say: the runs, what was not run and why, and what to do next.

Nodes that only measure print it: it imports nothing that they lack.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ...store.instants import iso
from ...store.names import by_number, gpu_name
from ...store.vocabulary import EndedBy
from ..document import Cell, Column, Command, Document, Part, Section, Table, TableColumns
from ..words import MISSING, many, number

if TYPE_CHECKING:
    from ...analysis.spread.repeats import Column as KeepRow
    from ...probes.campaign import Plan, Report, Summary
    from ...probes.catalogue import Probe

_MOST_GPUS = 12
"""Of more GPUs, a probe is one row."""
_NAMED = 4
_CONDITIONS = ("steady", "drift", "independent", "sm_clock_mhz", "power_w", "temperature_c")


# -- for programs ------------------------------------------------------------------------------------------------


def probe_mapping(report: Report, plan: Plan, *, backend: str) -> dict[str, Any]:
    """The report as `whorl.probe.run/1`."""
    return {
        "schema": "whorl.probe.run/1",
        "campaign": report.campaign,
        "cluster": report.cluster,
        "backend": backend,
        "suite": plan.asked.effort.suite,
        "neighbours": plan.neighbours,
        "began": None if report.began_ns is None else iso(report.began_ns),
        "ended": None if report.ended_ns is None else iso(report.ended_ns),
        "gpus": report.gpus,
        "runs": [_run_mapping(run) for run in report.runs],
        "not_run": [{"gpu": gpu, "probe": probe, "reason": reason} for gpu, probe, reason in report.unrun],
        "failed": [{"gpu": gpu, "error": error} for gpu, error in report.failures.items()],
        "stored_before": report.skipped,
        "rows": report.rows,
        "notes": report.notes,
    }


def _run_mapping(run: Summary) -> dict[str, Any]:
    headline = {
        key: None if run.headline is None else getattr(run.headline, name)
        for key, name in (("figure", "name"), ("value", "value"), ("unit", "unit"))
    }
    return {
        **{name: getattr(run, name) for name in ("gpu", "node", "index", "model", "probe")},
        "status": run.status_detail or run.status,
        "outcome": run.status,
        "ended_by": run.ended_by,
        **headline,
        **{f"time_{name}_ms": getattr(run, f"{name}_ms") for name in ("median", "low", "high")},
        "repeats": run.n,
        **{name: getattr(run, name) for name in _CONDITIONS},
        "clock_events_s": None if run.clock_events is None else dict(run.clock_events),
        "levels": {name: {"value": level.value, "unit": level.unit} for name, level in run.levels.items()},
    }


# -- for people --------------------------------------------------------------------------------------------------


def probe_document(report: Report, plan: Plan, store: str) -> Document:
    """The runs, what was not run and why, and what to do next."""
    done = [run for run in report.runs if run.ended_by != EndedBy.FAILED]
    probes = list(dict.fromkeys(probe.name for probe in plan.probes))
    gpus = list(dict.fromkeys(run.gpu for run in done))
    ordered = sorted(done, key=lambda run: (by_number(run.node), run.index))
    by_gpu = len(gpus) <= _MOST_GPUS
    parts: list[Part] = [_summary(report, plan, done, gpus=len(gpus))]
    if not by_gpu:
        parts.append(_fleet_table(done, probes))
    elif len(probes) > 1:
        for gpu in dict.fromkeys(run.gpu for run in ordered):
            runs = {run.probe: run for run in done if run.gpu == gpu}
            first = next(iter(runs.values()))
            title = f"{first.model} {_place(first)} {gpu}"
            parts.append(_run_table(title, "probe", [(probe, runs[probe]) for probe in probes if probe in runs], plan))
    elif done and not done[0].levels:
        parts.append(_run_table(probes[0], "GPU", [(_place(run), run) for run in ordered], plan))
    parts += _level_tables([(_place(run), run) for run in ordered], plan, by_gpu=by_gpu)
    parts += [*_remarks(report, plan, by_gpu=by_gpu), *_problems(report)]
    written = ", ".join(f"{many(rows, 'row')} of {table}" for table, rows in sorted(report.rows.items()))
    parts.append(f"stored in {store}: {written or 'nothing new'}")
    parts.append(Command(f"next: {_next(report, shlex.quote(store))}"))
    return Document(f"Campaign {report.campaign}", parts)


def _summary(report: Report, plan: Plan, done: Sequence[Summary], *, gpus: int) -> str:
    models = ", ".join(sorted({run.model for run in done}))
    seconds = 0.0 if report.began_ns is None or report.ended_ns is None else (report.ended_ns - report.began_ns) / 1e9
    measured = "nothing new was measured"
    if done:
        probes = len({run.probe for run in done})
        measured = f"{many(len(done), 'run')} of {many(probes, 'probe')} on {many(gpus, f'{models} GPU')}"
    effort = f"suite {plan.asked.effort.suite}, neighbours {plan.neighbours}"
    return f"campaign {report.campaign}: {measured}, {seconds:,.0f} s, {effort}"


def _run_table(title: str, head: str, runs: Sequence[tuple[str, Summary]], plan: Plan) -> Table:
    """A row for each run: the time of a repetition with its 95 % interval, and what the GPU was like."""
    columns: TableColumns = [(head, lambda pair: pair[0])]

    def add(column: Column | str, cell: Callable[[Summary], Cell]) -> None:
        columns.append((column, lambda pair: cell(pair[1])))

    if any(run.median_ms is not None for _, run in runs):
        add(Column("ms", "number"), lambda run: number(run.median_ms, 5))
        add(Column("± %", "number"), _half_width)
        add(Column("n", "count", drops=1), lambda run: run.n)
    else:
        add(Column("readings", "count", drops=1), lambda run: run.readings)
    add(
        Column("figure", "number"),
        lambda run: None if run.headline is None else f"{number(run.headline.value)} {run.headline.unit}",
    )
    add(Column("MHz", "number", 0), lambda run: run.sm_clock_mhz)
    add(Column("W", "number", drops=3), lambda run: number(run.power_w, 4))
    add(Column("°C", "number", 0, drops=2), lambda run: run.temperature_c)
    add(
        "ended",
        lambda run: "wrong result" if run.wrong else f"{run.ended_by}{' *' if _drifted(run, plan) else ''}",
    )
    return Table.of(runs, columns, title)


def _drifted(run: Summary, plan: Plan) -> bool:
    """Whether the times still moved by more than they are to be known to."""
    return run.drift is not None and abs(run.drift) > plan.asked.half_width


def _half_width(run: Summary) -> str:
    if run.low_ms is None or run.high_ms is None or not run.median_ms:
        return MISSING
    half = number(50 * (run.high_ms - run.low_ms) / run.median_ms, 2)
    return f"≥ {half}" if run.independent is False else half


def _fleet_table(done: Sequence[Summary], probes: Sequence[str]) -> Table:
    """A row for each probe: the medians of its GPUs, the lowest and the highest one."""
    columns: list[Column | str] = [
        "probe", Column("GPUs", "count"), Column("median", "number"), Column("lowest .. highest", "number", drops=1),
        Column("range %", "number"), Column("MHz", "number", drops=3), Column("W", "number", drops=2), "slowest",
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for probe in probes:
        runs = [run for run in done if run.probe == probe and run.headline is not None]
        values = sorted(run.headline.value for run in runs if run.headline is not None)
        units = [run.headline.unit for run in runs if run.headline is not None]
        if not values:
            continue
        middle = median(values)
        slowest = max(runs, key=lambda run: -1.0 if run.median_ms is None else run.median_ms)
        rows.append(
            [
                probe,
                len(runs),
                f"{number(middle)} {units[0]}",
                f"{number(values[0])} .. {number(values[-1])}",
                number(100 * (values[-1] - values[0]) / middle, 3) if middle else None,
                _typical(runs, "sm_clock_mhz"),
                _typical(runs, "power_w"),
                None if slowest.median_ms is None else _place(slowest),
            ]
        )
    return Table(columns, rows)


def _typical(runs: Sequence[Summary], name: str) -> float | None:
    values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
    return median(values) if values else None


def _remarks(report: Report, plan: Plan, *, by_gpu: bool) -> Iterator[str]:
    """What the signs in the table mean, and how many runs began before the GPU was steady."""
    timed = [run for run in report.runs if run.median_ms is not None and run.n is not None]
    drifted = [run for run in timed if _drifted(run, plan)]
    if drifted:
        sign = "*: " if by_gpu else f"{len(drifted):,} of {len(timed):,} runs: "
        requested = number(100 * plan.asked.half_width, 2)
        yield f"{sign}the time still changed by more than the requested {requested} % while it was measured"
    if by_gpu and timed:
        yield "ms: median of n repeats; ± %: half the width of its 95 % interval; ended: why measuring ended"
    if by_gpu and any(_half_width(run).startswith("≥") for run in timed):
        yield "≥: the repeats are correlated, so the true interval is wider by an unknown amount"
    unsteady = [run for run in timed if run.steady is False]
    if unsteady:
        longer = "" if plan.asked.effort.suite == "full" else "; a longer --suite warms up longer"
        yield (
            f"{len(unsteady):,} of {len(timed):,} runs began before temperature and clock were steady: compare only "
            f"GPUs that were measured in the same way{longer}"
        )


def _problems(report: Report) -> Iterator[str]:
    """What went wrong, what was not run and why."""
    for run in report.wrong[:_NAMED]:
        yield f"wrong result: {run.probe} on {_place(run)} ({run.gpu}): {run.status_detail}"
    if len(report.wrong) > _NAMED:
        yield f"wrong results in {len(report.wrong) - _NAMED:,} more runs: see events of kind 'wrong_result'"
    for run in report.unhealthy[:_NAMED]:
        yield f"{run.probe} on {_place(run)} ({run.gpu}): {run.status_detail}"
    if len(report.unhealthy) > _NAMED:
        further = len(report.unhealthy) - _NAMED
        yield f"changes of health in {further:,} more runs: see events of kind 'health_changed'"
    for gpu, error in list(report.failures.items())[:_NAMED]:
        yield f"failed: {error}" if gpu in error else f"failed: {gpu}: {error}"
    if len(report.failures) > _NAMED:
        yield f"failed on {len(report.failures) - _NAMED:,} more GPUs: see events of kind 'probe_failed'"
    for (probe, reason), gpus in Counter((probe, reason) for _, probe, reason in report.unrun).items():
        yield f"not run: {probe} on {many(gpus, 'GPU')}: {reason}"
    if report.skipped:
        yield f"not repeated: {many(report.skipped, 'run')} that the campaign had already stored"
    yield from (f"note: {note}" for note in report.notes)


def _next(report: Report, store: str) -> str:
    """A command that has something to say of what was measured: GPUs are compared by times, which not all probes have.

    Runs that were stored before may have any.
    """
    if report.skipped or any(run.median_ms is not None for run in report.runs):
        return f"whorl verdicts variability --store {store}"
    if any(run.headline is not None or run.levels for run in report.runs):
        query = "select workload, figure, gpu, value, unit from results order by all"
    elif report.runs:
        query = "select gpu, workload, status, status_detail from runs order by all"
    else:
        query = "select kind, detail from events order by ts"
    return f'whorl sql --store {store} "{query}"'


def _place(run: Summary) -> str:
    return gpu_name(run.gpu, run.node, run.index)


# -- probes of more than one figure: a square wave, a staircase of load, a scan of sizes, a soak -------------------

_WAVE = (
    ("high W", "power_high", 4),
    ("low W", "power_low", 4),
    ("swing W", "power_swing", 4),
    ("of steady W", "power_swing_steady", 4),
    ("seen %", "swing_seen", 3),
    ("new every ms", "sensor_period", 3),
    ("mean over ms", "sensor_window", 2),
    ("J by power", "energy_by_power", 4),
    ("J by counter", "energy_by_counter", 4),
)
"""Headings of the table of a wave, the figure of each, and its digits."""
_DROPPED = {"energy_by_power": 4, "energy_by_counter": 3, "sensor_window": 2, "sensor_period": 1}
"""Figures that a narrow terminal leaves out, as `Column.drops`."""
_POWER_AT, _FOUND_AT = "power_at_", "found_at_"
_BINARY_PREFIXES = ("", "Ki", "Mi", "Gi")


def _level_tables(runs: Sequence[tuple[str, Summary]], plan: Plan, *, by_gpu: bool) -> Iterator[Table]:
    """What the runs of such probes found: a row for each GPU by its name, or else their medians in one row."""
    for probe in plan.probes:
        probe_runs = [(name, run) for name, run in runs if run.probe == probe.name and run.levels]
        if not probe_runs:
            continue
        of_probe = [run for _, run in probe_runs]
        title, figures = _level_columns(probe, plan, of_probe)
        sample = "" if probe.kind == "soak" else _sample_size(of_probe)
        grouped = [(f"median of {len(probe_runs):,}", of_probe)]
        if by_gpu:
            grouped = [(name, [run]) for name, run in probe_runs]
        rows = [
            [name, *(_median_text(group, figure, digits) for _, figure, digits in figures)] for name, group in grouped
        ]
        columns: list[Column | str] = [
            Column(head, "number", drops=_DROPPED.get(figure, 0)) for head, figure, _ in figures
        ]
        yield Table([Column("GPU"), *columns], rows, f"{title}{sample}")


def _level_columns(probe: Probe, plan: Plan, runs: Sequence[Summary]) -> tuple[str, list[tuple[str, str, int]]]:
    """Title, and heading, figure and digits of each column."""
    if probe.kind == "square":
        conditions = plan.asked
        title = (
            f"{probe.name}: what the power sensor shows of load for "
            f"{1000 * conditions.period_s * conditions.duty:g} ms in every {1000 * conditions.period_s:g} ms"
        )
        return title, list(_WAVE)
    names = list(dict.fromkeys(name for run in runs for name in run.levels))
    if probe.kind == "soak":
        rates = [name for name in names if name.startswith(_FOUND_AT)]
        title = f"{probe.name}: of GPUs that do one repetition in N wrong, the share that this soak finds, %, by N"
        counted = ("repetitions", "checked_repetitions", 6)
        return title, [counted, *((f"{int(name.removeprefix(_FOUND_AT)):,}", name, 3) for name in rates)]
    if probe.kind == "staircase":
        steps = [name for name in names if name.startswith(_POWER_AT)]
        title = f"{probe.name}: W with load on a share of the multiprocessors"
        return title, [(f"{name.removeprefix(_POWER_AT)} %", name, 4) for name in steps]
    figure = probe.figure.rpartition("_at_")[0]
    at_sizes = [name for name in names if name.startswith(f"{figure}_at_")]
    unit = next(run.levels[name].unit for run in runs for name in at_sizes if name in run.levels)
    scanned = probe.scan[0] if probe.scan else "size"
    sizes = [name.rpartition("_at_")[2] for name in at_sizes]
    headings = [size if scanned == "depth" else _bytes(size) for size in sizes]
    title = f"{probe.name}: {figure.replace('_', ' ')} in {unit} by {scanned}"
    return title, [(heading, name, 4) for heading, name in zip(headings, at_sizes, strict=True)]


def _sample_size(runs: Sequence[Summary]) -> str:
    """Sample size and half width of the interval, for the GPU that was measured least.

    A scan has repeats and an interval at each size. Power has readings and no interval.
    """
    sizes = [
        (run, name.removeprefix("repeats_at_")) for run in runs for name in run.levels if name.startswith("repeats_at_")
    ]
    if sizes:
        fewest = min(run.levels[f"repeats_at_{size}"].value for run, size in sizes)
        halves = [half for run, size in sizes if (half := _half_width_at(run, size)) is not None]
        width = f"; 95 % interval: ± {number(max(halves), 2)} % or less" if halves else ""
        without = len(sizes) - len(halves)
        unknown = f"; no interval for {without} of {len(sizes)}" if without else ""
        return f" (n = {fewest:,.0f} or more repeats{width}{unknown})"
    readings = [run.readings for run in runs if run.readings is not None]
    return f" (n = {min(readings):,} or more readings)" if readings else ""


def _half_width_at(run: Summary, size: str) -> float | None:
    """Half the 95 % interval of the time at a size, % of the median; None where too few repeats are independent."""
    low, high, middle = (run.levels.get(f"time_{name}_at_{size}") for name in ("low", "high", "median"))
    return None if low is None or high is None or middle is None else 50 * (high.value - low.value) / middle.value


def _median_text(runs: Sequence[Summary], figure: str, digits: int) -> str:
    """The median of a figure; one that is averaged over less than the sensor's period is below that."""
    values = [run.levels[figure].value for run in runs if figure in run.levels]
    if not values:
        return MISSING
    middle = median(values)
    if figure == "checked_repetitions":
        return f"{middle:,.0f}"
    if figure == "sensor_window":
        periods = [run.levels["sensor_period"].value for run in runs if "sensor_period" in run.levels]
        if periods and middle <= 2 * median(periods):
            return f"< {number(2 * median(periods), digits)}"
    return number(middle, digits)


def _bytes(digits: str) -> str:
    """A number of bytes with a binary prefix where it is a whole one: '16384' is '16 KiB'."""
    if not digits.isdecimal():
        return digits
    value, power = int(digits), 0
    while value and value % 1024 == 0 and power + 1 < len(_BINARY_PREFIXES):
        value, power = value // 1024, power + 1
    return f"{value} {_BINARY_PREFIXES[power]}B"


# -- the list of probes ------------------------------------------------------------------------------------------


def list_document(model: str, probes: Sequence[Mapping[str, Any]], suites: Sequence[str]) -> Document:
    """What each probe stresses, its work, its time and what it needs, by suite."""
    parts: list[Part] = [
        f"{many(len(probes), 'probe')}. Sizes are for one repetition on one {model}. Times are limits per GPU. "
        "CC: compute capability."
    ]
    columns: TableColumns = [
        ("probe", "name"),
        (Column("time", "number"), lambda row: f"{next(iter(row['time_s'].values())):,.4g} s"),
        (Column("stresses", "sentence"), "stresses"),
        (Column("work", "sentence", drops=1), lambda row: row["says"].rstrip(".")),
        (Column("size", "number"), _sizes),
        (
            Column("needs", "sentence"),
            lambda row: (row["needs"] or "").replace("compute capability", "CC").replace(" in the node", ""),
        ),
    ]
    for suite in (*suites, None):
        of_suite = [row for row in probes if row["suite"] == suite]
        if of_suite:
            parts.append(Section(_suite_heading(suite, suites), [Table.of(of_suite, columns)]))
    return Document("Probes", parts)


def _suite_heading(suite: str | None, suites: Sequence[str]) -> str:
    if suite is None:
        return "only by name"
    larger = suites[suites.index(suite) + 1 :]
    return f"suite {suite}, and {' and '.join(larger)}" if larger else f"suite {suite}"


def _sizes(row: Mapping[str, Any]) -> str | None:
    sizes = [_size(row[name], unit) for name, unit in (("flop", "FLOP"), ("bytes", "B"), ("operations", "op"))]
    return None if row["unfit"] else ", ".join(filter(None, sizes)) or "none"


def _size(value: int | None, unit: str) -> str:
    """A count with its unit and a decimal prefix, '137 GFLOP'; '' for none."""
    if not value:
        return ""
    power, scaled = 0, float(value)
    while scaled >= 999.5 and power < 5:
        scaled, power = scaled / 1000, power + 1
    return f"{number(float(format(scaled, '.3g')), 3)} {' kMGTP'[power].strip()}{unit}"


def keep_document(rows: Sequence[KeepRow], limits: tuple[float, float, int], *, has_store: bool) -> Document:
    """Which probes add a column of their own, by the runs of a store. `limits`: the least ICC and the least share
    unexplained of a probe that stays, and how many GPUs more than probes before it are needed."""
    least_icc, least_unexplained, more_gpus = limits
    parts: list[Part] = []
    if all(row.simulated for row in rows):
        parts.append("no real data yet" if has_store else "no real data yet: --store DIR names a store with runs")
    columns: TableColumns = [
        (Column("cluster", drops=1), "cluster"),
        ("probe", "workload"),
        (Column("GPUs", "count"), "gpus"),
        (Column("sittings", "count"), "sittings"),
        (Column("ICC", "number", 2), "icc"),
        (Column("[95 %]", "interval", 2), lambda row: (row.icc_low, row.icc_high)),
        (Column("unexplained, %", "number", 0), lambda row: _pct(row.unexplained)),
        (
            Column("[95 %]", "interval", 0),
            lambda row: (_pct(row.unexplained_low), _pct(row.unexplained_high)),
        ),
        (Column("after", "count"), "explained_by"),
        ("stays", lambda row: None if row.stays is None else "yes" if row.stays else "no"),
    ]
    for simulated in (False, True):
        chosen = [row for row in rows if row.simulated is simulated]
        if chosen:
            title = "simulated data: plumbing only" if simulated else "keep rule"
            parts.append(Section(title, [Table.of(chosen, columns)]))
    if rows:
        parts.append(
            "ICC: of the medians of sittings, by GPU. unexplained: how much, %, of the variance between GPUs a "
            "regression on the probes before it leaves; after: how many these are. A probe stays with an ICC of "
            f"at least {least_icc:g} and more than {100 * least_unexplained:g} % unexplained. {MISSING}: it needs "
            f"GPUs with two sittings, and {more_gpus} GPUs more than probes before it."
        )
    return Document("Keep rule", parts)


def _pct(share: float | None) -> float | None:
    return None if share is None else 100 * share
