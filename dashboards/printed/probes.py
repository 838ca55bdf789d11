"""What `whorl probe run` says: tables for people, and one document for programs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ...store.instants import iso
from ...store.names import by_number, gpu_name
from ...store.vocabulary import EndedBy
from ..table import MISSING, Line, Table, many, number
from .levels import levels

if TYPE_CHECKING:
    from ...probes.campaign import Plan, Report, Summary

_MOST_GPUS = 12
"""Of more GPUs, a probe is one row."""
_MOST_NAMED = 4


def document(report: Report, plan: Plan, *, backend: str) -> dict[str, Any]:
    """The report as `whorl.probe.run/1`."""
    return {
        "schema": "whorl.probe.run/1",
        "campaign": report.campaign,
        "cluster": report.cluster,
        "backend": backend,
        "suite": plan.asked.effort.suite,
        "neighbours": plan.neighbours,
        "began": _iso(report.began_ns),
        "ended": _iso(report.ended_ns),
        "gpus": report.gpus,
        "runs": [_run(one) for one in report.runs],
        "not_run": [{"gpu": gpu, "probe": probe, "reason": reason} for gpu, probe, reason in report.unrun],
        "failed": [{"gpu": gpu, "error": error} for gpu, error in report.failures.items()],
        "stored_before": report.skipped,
        "rows": report.rows,
        "notes": report.notes,
    }


def _run(one: Summary) -> dict[str, Any]:
    headline = one.headline
    return {
        "gpu": one.gpu,
        "node": one.node,
        "index": one.index,
        "model": one.model,
        "probe": one.probe,
        "status": one.status_detail or one.status,
        "outcome": one.status,
        "ended_by": one.ended_by,
        "figure": None if headline is None else headline.name,
        "value": None if headline is None else headline.value,
        "unit": None if headline is None else headline.unit,
        "time_median_ms": one.median_ms,
        "time_low_ms": one.low_ms,
        "time_high_ms": one.high_ms,
        "repeats": one.n,
        "steady": one.steady,
        "drift": one.drift,
        "independent": one.independent,
        "sm_clock_mhz": one.sm_clock_mhz,
        "power_w": one.power_w,
        "temperature_c": one.temperature_c,
        "clock_events_s": None if one.clock_events is None else dict(one.clock_events),
        "levels": {name: {"value": level.value, "unit": level.unit} for name, level in one.levels.items()},
    }


def answer(report: Report, plan: Plan, store: str) -> Iterable[str | Table]:
    """The runs, what was not run and why, and what to do next, for people."""
    done = [one for one in report.runs if one.ended_by != EndedBy.FAILED]
    gpus = list(dict.fromkeys((one.node, one.index, one.gpu) for one in done))
    probes = list(dict.fromkeys(probe.name for probe in plan.probes))
    models = ", ".join(sorted({one.model for one in done}))
    seconds = 0.0 if report.began_ns is None or report.ended_ns is None else (report.ended_ns - report.began_ns) / 1e9
    ran = ", ".join(
        (
            f"{many(len(done), 'run')} of {many(len({one.probe for one in done}), 'probe')} on "
            f"{many(len(gpus), f'{models} GPU')}"
            if done
            else "nothing new was measured",
            f"{seconds:,.0f} s",
            f"suite {plan.asked.effort.suite}",
            f"neighbours {plan.neighbours}",
        )
    )
    yield f"campaign {report.campaign}: {ran}"
    yield ""
    ordered = sorted(done, key=lambda one: (by_number(one.node), one.index))
    each = len(gpus) <= _MOST_GPUS
    if not each:
        yield _fleet(done, probes)
        yield ""
    elif len(probes) > 1:
        for gpu in dict.fromkeys(one.gpu for one in ordered):
            mine = {one.probe: one for one in done if one.gpu == gpu}
            title = _place(next(iter(mine.values())), whole=True)
            yield _runs(title, "probe", [(probe, mine[probe]) for probe in probes if probe in mine], plan)
            yield ""
    elif done and not done[0].levels:
        yield _runs(probes[0], "GPU", [(_place(one), one) for one in ordered], plan)
        yield ""
    yield from levels([(_place(one), one) for one in ordered], plan, each=each)
    yield from _remarks(report, plan, each=each)
    yield from _rest(report, store)


def _runs(title: str, what: str, runs: Sequence[tuple[str, Summary]], plan: Plan) -> Table:
    """A row for each run: the time of a repetition with its 95 % interval, and what the GPU was like."""
    timed = any(one.median_ms is not None for _, one in runs)
    header = [what, "ms", "± %", "n"] if timed else [what, "readings"]
    rows = []
    for name, one in runs:
        n = one.n if timed else one.readings
        cells = [
            name,
            *((number(one.median_ms, 5), _half_width(one)) if timed else ()),
            MISSING if n is None else str(n),
        ]
        rows.append(
            [
                *cells,
                MISSING if one.headline is None else f"{number(one.headline.value)} {one.headline.unit}",
                number(one.sm_clock_mhz, 4),
                number(one.power_w, 4),
                number(one.temperature_c, 3),
                _ended(one, plan),
            ]
        )
    first = len(header)
    return Table(
        [*header, "figure", "MHz", "W", "°C", "ended"],
        rows,
        tuple(range(1, first + 4)),
        title,
        leaves=(first + 3, first + 4, first + 1),
    )


def _ended(one: Summary, plan: Plan) -> str:
    if one.wrong:
        return "wrong result"
    return f"{one.ended_by} *" if _drifted(one, plan) else one.ended_by


def _drifted(one: Summary, plan: Plan) -> bool:
    """Whether the times still moved by more than they are to be known to."""
    return one.drift is not None and abs(one.drift) > plan.asked.half_width


def _half_width(one: Summary) -> str:
    if one.low_ms is None or one.high_ms is None or not one.median_ms:
        return MISSING
    shown = number(50 * (one.high_ms - one.low_ms) / one.median_ms, 2)
    return f"≥ {shown}" if one.independent is False else shown


def _fleet(done: Sequence[Summary], probes: Sequence[str]) -> Table:
    """A row for each probe: the medians of its GPUs, the lowest and the highest one."""
    rows = []
    for probe in probes:
        mine = [one for one in done if one.probe == probe and one.headline is not None]
        if not mine:
            continue
        values = sorted(one.headline.value for one in mine if one.headline is not None)
        first = mine[0].headline
        assert first is not None
        slowest = max(mine, key=lambda one: -1.0 if one.median_ms is None else one.median_ms)
        rows.append(
            [
                probe,
                f"{len(mine):,}",
                f"{number(median(values))} {first.unit}",
                f"{number(values[0])} .. {number(values[-1])}",
                number(100 * (values[-1] - values[0]) / median(values), 3) if median(values) else MISSING,
                _typical(mine, "sm_clock_mhz", 4),
                _typical(mine, "power_w", 4),
                MISSING if slowest.median_ms is None else _place(slowest),
            ]
        )
    header = ("probe", "GPUs", "median", "lowest .. highest", "range %", "MHz", "W", "slowest")
    return Table(header, rows, (1, 2, 3, 4, 5, 6), leaves=(5, 6, 3))


def _typical(runs: Sequence[Summary], name: str, digits: int) -> str:
    known = [getattr(one, name) for one in runs if getattr(one, name) is not None]
    return number(median(known), digits) if known else MISSING


def _remarks(report: Report, plan: Plan, *, each: bool) -> Iterable[str]:
    """What the signs in the table mean, and how many runs began before the GPU was steady."""
    timed = [one for one in report.runs if one.median_ms is not None and one.n is not None]
    drifted = [one for one in timed if _drifted(one, plan)]
    if drifted:
        sign = "*: " if each else f"{len(drifted):,} of {len(timed):,} runs: "
        asked = number(100 * plan.asked.half_width, 2)
        yield f"{sign}the time still changed by more than the requested {asked} % while it was measured"
    if each and timed:
        yield "ms: median of n repeats; ± %: half the width of its 95 % interval; ended: why measuring ended"
    if each and any(_half_width(one).startswith("≥") for one in timed):
        yield "≥: the repeats are correlated, so the true interval is wider by an unknown amount"
    unsteady = [one for one in timed if one.steady is False]
    if unsteady:
        longer = "" if plan.asked.effort.suite == "full" else "; a longer --suite warms up longer"
        yield (
            f"{len(unsteady):,} of {len(timed):,} runs began before temperature and clock were steady: compare only "
            f"GPUs that were measured in the same way{longer}"
        )


def _rest(report: Report, store: str) -> Iterable[str]:
    for one in report.wrong[:_MOST_NAMED]:
        yield f"wrong result: {one.probe} on {_place(one)} ({one.gpu}): {one.status_detail}"
    if len(report.wrong) > _MOST_NAMED:
        yield f"wrong results in {len(report.wrong) - _MOST_NAMED:,} more runs: see events of kind 'wrong_result'"
    for one in report.unhealthy[:_MOST_NAMED]:
        yield f"{one.probe} on {_place(one)} ({one.gpu}): {one.status_detail}"
    if len(report.unhealthy) > _MOST_NAMED:
        more = len(report.unhealthy) - _MOST_NAMED
        yield f"changes of health in {more:,} more runs: see events of kind 'health_changed'"
    for gpu, error in list(report.failures.items())[:_MOST_NAMED]:
        yield f"failed: {error}" if gpu in error else f"failed: {gpu}: {error}"
    if len(report.failures) > _MOST_NAMED:
        yield f"failed on {len(report.failures) - _MOST_NAMED:,} more GPUs: see events of kind 'probe_failed'"
    for (probe, reason), count in Counter((probe, reason) for _, probe, reason in report.unrun).items():
        yield f"not run: {probe} on {many(count, 'GPU')}: {reason}"
    if report.skipped:
        yield f"not repeated: {many(report.skipped, 'run')} that the campaign had already stored"
    for note in report.notes:
        yield f"note: {note}"
    written = ", ".join(f"{many(rows, 'row')} of {table}" for table, rows in sorted(report.rows.items()))
    yield f"stored in {store}: {written or 'nothing new'}"
    yield Line(f"next: {_next(report, shlex.quote(store))}")


def _next(report: Report, store: str) -> str:
    """A command that has something to say of what was measured: GPUs are compared by times, which not all probes have.

    Runs that were stored before may have any.
    """
    if report.skipped or any(one.median_ms is not None for one in report.runs):
        return f"whorl verdicts variability --store {store}"
    if any(one.headline is not None or one.levels for one in report.runs):
        query = "select workload, figure, gpu, value, unit from results order by all"
    elif report.runs:
        query = "select gpu, workload, status, status_detail from runs order by all"
    else:
        query = "select kind, detail from events order by ts"
    return f'whorl sql --store {store} "{query}"'


def _place(one: Summary, *, whole: bool = False) -> str:
    place = gpu_name(one.gpu, one.node, one.index)
    return f"{one.model} {place} {one.gpu}" if whole else place


def _iso(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else iso(nanoseconds)
