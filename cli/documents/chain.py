"""What `whorl jobs chain`, `wait` and `chain-study` say: the wait of a job, a chain of them, and ways to submit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...dashboards.document import Column, Document, Part, Table, TableColumns
from ...dashboards.words import MISSING, duration, many
from ...jobs.chain import LinkEnd

if TYPE_CHECKING:
    from ...analysis.chains.costs import PolicyRow, WaitEstimate
    from ...analysis.chains.jobs_log import JobsLog
    from ...jobs.chain import ChainReport
    from ...jobs.forecast import Forecast, JobShape


# -- the wait of a job -------------------------------------------------------------------------------------------


def wait_mapping(shape: JobShape, forecast: Forecast) -> dict[str, Any]:
    """The prediction as `whorl.jobs.wait/1`."""
    return {"schema": "whorl.jobs.wait/1"} | _shape_mapping(shape) | _forecast_mapping(forecast)


def _shape_mapping(shape: JobShape) -> dict[str, Any]:
    return {"nodes": shape.nodes, "limit_s": shape.limit_s, "partition": shape.partition}


def _forecast_mapping(forecast: Forecast) -> dict[str, Any]:
    price = forecast.price
    quantiles = [
        {"quantile": share, "wait_s": wait_s, "right_pct": right and 100 * right[0], "n": right and right[1]}
        for share, wait_s in forecast.quantiles_s.items()
        for right in [forecast.coverage.get(share)]
    ]
    figures = ("interruption_h", "overlap_h", "reactive_h")
    return {
        "basis": forecast.basis,
        "learned_from": forecast.n,
        "quantiles": quantiles,
        "mean_wait_s": forecast.mean_s,
        "planned_wait_s": forecast.planned_s,
        "lead_s": forecast.lead_s,
        "expected": price and {"n": price.n} | {
            name: dict(zip(("mean", "low", "high"), getattr(price, name), strict=True)) for name in figures
        },
        "notes": list(forecast.notes),
    }  # fmt: skip


def wait_document(shape: JobShape, forecast: Forecast) -> Document:
    """How long a job would wait if it was submitted at this moment."""
    answer = "how long it waits is not known"
    if forecast.quantiles_s:
        share, wait_s = next(iter(forecast.quantiles_s.items()))
        answer = f"{100 * share:.0f} % of such jobs wait at most {duration(wait_s)}"
    elif forecast.planned_s is not None:
        answer = f"Slurm itself would start it in {duration(forecast.planned_s)}"
    opening = f"a job of {_shape_words(shape)}, submitted at this moment: {answer}"
    return Document("Wait of a job", [opening, *_forecast_parts(forecast)])


def _forecast_parts(forecast: Forecast) -> Iterator[Part]:
    if forecast.quantiles_s:
        rows = []
        for share, wait_s in forecast.quantiles_s.items():
            right = forecast.coverage.get(share)
            held, jobs = (None, None) if right is None else (f"{100 * right[0]:.0f} %", right[1])
            rows.append([f"{100 * share:.0f} %", duration(wait_s), held, jobs])
        columns = [Column(head, "number") for head in ("of such jobs", "wait at most", "held for")]
        yield Table(
            [*columns, Column("of n jobs", "count")], rows, below=f"learned from {forecast.n:,} jobs of this site"
        )
    elif forecast.mean_s is not None:
        waited = f"waited {duration(forecast.mean_s)} on average (n {forecast.n:,})"
        yield f"the last jobs like it, or of any size where those are few, {waited}"
    if forecast.planned_s is not None:
        yield f"Slurm itself would start it in {duration(forecast.planned_s)}"
    yield from (f"note: {note}" for note in forecast.notes)


def _shape_words(shape: JobShape) -> str:
    partition = f" in partition {shape.partition}" if shape.partition else ""
    return f"{many(shape.nodes, 'node')} for {duration(shape.limit_s)}{partition}"


# -- a chain of jobs ---------------------------------------------------------------------------------------------


def chain_mapping(report: ChainReport, policy: str) -> dict[str, Any]:
    """The chain as `whorl.jobs.chain/1`."""
    state, gaps = report.folder.state, report.interruptions_s
    links = [asdict(link) | {"interruption_s": gaps.get(link.number)} for link in state.links.values()]
    return {
        "schema": "whorl.jobs.chain/1",
        "chain": state.chain if state.links else None,
        "script": state.script,
        "folder": str(report.folder.path),
        "policy": policy,
        "end": state.end,
        "reason": state.reason or None,
        **_shape_mapping(report.shape),
        "forecast": report.forecast and _forecast_mapping(report.forecast),
        "links": links,
        "notes": list(report.notes),
    }


def chain_document(report: ChainReport, policy: str) -> Document:
    """How a chain stands, when the next job is due, and its links."""
    state = report.folder.state
    parts: list[Part] = [f"{state.script}: {_shape_words(report.shape)}"]
    if state.end is not None:
        further = "" if state.end == LinkEnd.DONE else " (--set resume=yes goes on with the next link)"
        parts.append(f"the chain has ended: {state.reason}{further}")
    if report.forecast is not None:
        parts += _due(report.forecast, policy)
        parts += _forecast_parts(report.forecast)
    parts += [_links(report)] if state.links else []
    return Document(f"Chain of {state.script}", [*parts, *(f"note: {note}" for note in report.notes)])


def _due(forecast: Forecast, policy: str) -> Iterator[str]:
    """When the next job is submitted, and what that came to lately."""
    lead_s, price = forecast.lead_s, forecast.price
    due = "when the running one has ended" if lead_s is None else f"{duration(lead_s)} before the running one ends"
    yield f"policy {policy}: the next job is submitted {due}"
    if price is not None:
        yield (
            f"so for {price.n} jobs of about this size lately: interruption {_estimate(price.interruption_h, 2, ' h')} "
            f"and overlap {_estimate(price.overlap_h, 2, ' h')} a link; reactive: interruption "
            f"{_estimate(price.reactive_h, 2, ' h')}"
        )


def _links(report: ChainReport) -> Table:
    gaps = report.interruptions_s
    columns: TableColumns = [
        (Column("link", "count"), "number"),
        ("job", lambda link: link.job or None),
        ("state", lambda link: (link.end or link.state).lower()),
        (Column("start (UTC)", "time", drops=1), lambda link: _clock(link.start_s)),
        (Column("end (UTC)", "time", drops=2), lambda link: _clock(link.end_s)),
        (Column("gap (s)", "number", 0), lambda link: gaps.get(link.number)),
        (Column("detail", "sentence"), "detail"),
    ]
    below = "gap: from the end of a job to the start of the next one; negative where both ran"
    return Table.of(report.folder.state.links.values(), columns, below=below)


def _clock(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# -- a study of ways to submit -----------------------------------------------------------------------------------


def study_mapping(
    log: JobsLog, rows: Sequence[PolicyRow], cluster_nodes: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The study as `whorl.jobs.chain-study/1`."""
    return {
        "schema": "whorl.jobs.chain-study/1",
        "log": {
            "source": log.source,
            "jobs": len(log),
            "submitted_first": datetime.fromtimestamp(log.submit_s[0], UTC),
            "submitted_last": datetime.fromtimestamp(log.submit_s[-1], UTC),
            "passed_over": dict(log.passed),
            "refused": [
                {"reason": reason, "count": len(lines), "lines": list(lines[:1000])}
                for reason, lines in log.refused.items()
            ],
        },
        "cluster_nodes": cluster_nodes,
        "as_published": options["as_published"],
        "rows": [row.as_dict(options["gpus_per_node"]) for row in rows],
    }


def study_document(log: JobsLog, rows: Sequence[PolicyRow], cluster_nodes: int, gpus_per_node: int) -> Document:
    """Which way has the least interruption, and what each way came to."""
    columns: TableColumns = [
        ("policy", "policy"),
        (Column("interruption, h", "number"), lambda row: _estimate(row.interruption_h, 2)),
        (Column("overlap, h", "number"), lambda row: _estimate(row.overlap_h, 2)),
        (Column("none, %", "number"), lambda row: _estimate(row.none_pct, 0)),
        (Column("n", "count"), "n"),
        (Column("covered %", "number", 1, drops=1), "coverage_pct"),
        (Column("wasted GPU-h", "number", 2, drops=2), lambda row: row.overlap_gpu_h(gpus_per_node)),
    ]
    below = (
        "Means over n chains, in brackets 95 % of what other weeks like these would give. none: without an "
        "interruption, overlap included; covered: waits that were at most what was predicted; wasted: nodes that two "
        "jobs of a chain held at once."
    )
    title = (
        f"Chains of jobs on {many(rows[0].nodes, 'node')} of {cluster_nodes:,}, {many(len(log), 'job')} of {log.source}"
    )
    return Document(title, [f"{title}. {_least_interrupted(rows)}", Table.of(rows, columns, below=below)])


def _least_interrupted(rows: Sequence[PolicyRow]) -> str:
    best = min(rows, key=lambda row: row.interruption_h.value)
    return (
        f"Least interruption: {best.policy}, {_estimate(best.interruption_h, 2)} h a chain, with "
        f"{_estimate(best.overlap_h, 2)} h of overlap (n = {best.n:,} chains)."
    )


def _estimate(figure: WaitEstimate, digits: int, unit: str = "") -> str:
    interval = MISSING if figure.low is None else f"{figure.low:.{digits}f}, {figure.high:.{digits}f}"
    return f"{figure.value:.{digits}f}{unit} [{interval}]"
