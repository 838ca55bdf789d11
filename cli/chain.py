"""`whorl jobs chain` and `whorl jobs wait`: a training in jobs that follow without a gap, and the wait of a job."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..dashboards.table import MISSING
from ..errors import InputError
from .options import Span, configured_option, json_option

if TYPE_CHECKING:
    from ..dashboards.table import Table
    from ..jobs.chain import ChainReport, Until
    from ..jobs.forecast import Forecast, JobShape, MeanInterval

_POLICIES = "reactive, lead6 (hours), average, test-only, p75"


@click.command("chain", short_help="Hand a training from job to job without a gap.")
@click.option("--script", required=True, type=click.Path(path_type=Path), help="The script of each job, as for sbatch.")
@click.option(
    "--until",
    metavar="WHEN",
    default="done",
    show_default=True,
    help="done: its exit status is 0; a number of jobs; a time: 2026-12-24T18:00 (UTC); or from the first job on: 7d.",
)
@click.option(
    "--cost",
    type=click.FloatRange(0),
    default=0.5,
    show_default=True,
    help="An hour in which two jobs overlap weighs so many hours of interruption; it picks the quantile 1/(1+COST).",
)
@click.option("--policy", metavar="NAME", help=f"When to submit, in place of --cost: {_POLICIES}.")
@click.option(
    "--signal",
    type=click.Choice(["USR1", "USR2", "TERM", "INT", "none"]),
    default="USR1",
    show_default=True,
    help="Asks the running job to checkpoint and leave. none: its successor waits until it ends.",
)
@click.option("--sbatch", multiple=True, metavar="OPTION", help="Another option of sbatch. Repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the chain.  [default: SCRIPT.chain]")
@click.option("--patience", type=Span(), help="Give up if Slurm does not answer for so long.  [default: 10min]")
@click.option("--once", is_flag=True, help="Do what is due, and end: for cron and scrontab.")
@click.option("--resume", is_flag=True, help="Go on with a chain that has ended.")
@click.option("--dry-run", is_flag=True, help="Only say what the wait would be and when the next job is submitted.")
@json_option
def chain(script: Path, until: str, *, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Run a training that takes longer than the time limit of a job, as a chain of jobs that hand over to each other.

    \b
    whorl jobs chain --script train.sbatch --dry-run
    whorl jobs chain --script train.sbatch --until done --cost 0.5

    The next job is submitted when the wait that is predicted for it reaches the time that the running one has left.
    Once it starts it sends the running one SIGUSR1, waits until that has left, and goes on. docs/jobs.md has the two
    lines that a script needs for that.

    You may stop the command at any time and run it again: no job is submitted twice. It ends when the work is done, a
    job failed or was cancelled, or two jobs in a row ended within a minute.

    Exit status 0; 1 if the chain was cancelled; 6 if a job failed; 5 if Slurm is not here, does not answer, or refuses.
    """
    from ..jobs.chain import PATIENCE_S, ChainOptions, plan_chain, run_chain
    from ..jobs.forecast import LeadPolicy
    from ..jobs.slurm import Slurm
    from . import output
    from .ending import Ending, stays

    chained = ChainOptions(
        script,
        _until(until),
        LeadPolicy.parse(options["policy"], options["cost"]),
        signal=None if options["signal"] == "none" else options["signal"],
        sbatch=options["sbatch"],
        folder=options["folder"],
        progress=output.tell,
        once=options["once"],
        resume=options["resume"],
        patience_s=options["patience"] or PATIENCE_S,
    )
    if dry_run:
        report = plan_chain(Slurm(), chained)
    else:
        stays("jobs that were submitted stay in the queue; to go on, run the command again")
        with Ending():
            report = run_chain(Slurm(), chained)
    if as_json:
        output.print_json(_chain_document(report, chained.policy.name))
    else:
        output.show(_chain_lines(report, chained.policy.name))
    sys.exit(_STATUS.get(report.folder.state.end or "", 0))


_STATUS = {"failed": 6, "unknown": 6, "cancelled": 1}


@click.command("wait", short_help="How long a job would wait if it was submitted at this moment.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of the job.")
@click.option("--time", "limit", metavar="LIMIT", required=True, help="Its time limit, as for sbatch: 24:00:00.")
@configured_option("--partition", key="partition", metavar="NAME", help="Its partition.  [default: the default one]")
@json_option
def wait(nodes: int, limit: str, partition: str | None, as_json: bool) -> None:
    """Predict the wait of a job from the queue as it is and from what jobs waited here: the median, 75 % and 90 %.

    \b
    whorl jobs wait --nodes 8 --time 24:00:00

    It learns from Slurm's accounting, so it needs the right to see the jobs of others. It also says how often such a
    prediction held, on jobs that it did not learn from. Nothing is submitted.
    """
    from ..jobs.forecast import QUANTILES, Forecaster, JobShape, LeadPolicy, limit_seconds
    from ..jobs.slurm import Slurm
    from . import output

    limit_s = limit_seconds(limit)
    if not 0 < limit_s < math.inf:
        raise InputError("a job without a time limit waits like none here: give one, as --time 24:00:00")
    slurm = Slurm()
    slurm.check()
    if partition is not None and (unknown := set(partition.split(",")) - slurm.partitions().keys()):
        raise InputError(f"Slurm has no partition {', '.join(sorted(unknown))}; it has {', '.join(slurm.partitions())}")
    shape = JobShape(nodes, limit_s, partition)
    forecast = Forecaster(slurm, shape, LeadPolicy("p50", QUANTILES[0])).ask(planned=True)
    if as_json:
        output.print_json({"schema": "whorl.jobs.wait/1"} | _shape(shape) | _forecast(forecast))
    else:
        output.show([f"a job of {_shape_words(shape)}, submitted at this moment:", *_forecast_lines(forecast)])


def _until(text: str) -> Until:
    from ..jobs.chain import Until
    from ..store.instants import seconds_of, time_of

    if text == "done":
        return Until()
    if re.fullmatch(r"[1-9]\d*", text):
        return Until(links=int(text))
    try:
        if re.fullmatch(r"[\d.]+ ?[a-z]+", text):
            return Until(span_s=seconds_of(text, plain=False))
        return Until(time_s=time_of(text).replace(tzinfo=UTC).timestamp())
    except InputError as error:
        raise InputError(f"--until {text} is neither done nor a number of jobs nor a time: {error}") from error


# -- what is printed --------------------------------------------------------------------------------------------------


def _chain_document(report: ChainReport, policy: str) -> dict[str, Any]:
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
        **_shape(report.shape),
        "forecast": report.forecast and _forecast(report.forecast),
        "links": links,
        "notes": list(report.notes),
    }


def _shape(shape: JobShape) -> dict[str, Any]:
    return {"nodes": shape.nodes, "limit_s": shape.limit_s, "partition": shape.partition}


def _forecast(forecast: Forecast) -> dict[str, Any]:
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


def _chain_lines(report: ChainReport, policy: str) -> Iterator[str | Table]:
    from ..dashboards.table import Table
    from ..jobs.chain import LinkEnd

    state, gaps = report.folder.state, report.interruptions_s
    yield f"{state.script}: {_shape_words(report.shape)}"
    if report.forecast is not None:
        yield from _forecast_lines(report.forecast)
        lead_s = report.forecast.lead_s
        due = "when the running one has ended" if lead_s is None else f"{_hours(lead_s)} before the running one ends"
        yield f"policy {policy}: the next job is submitted {due}"
        price = report.forecast.price
        if price is not None:
            yield (
                f"so for {price.n} jobs of about this size lately: interruption {_figure(price.interruption_h)} and "
                f"overlap {_figure(price.overlap_h)} a link; reactive: interruption {_figure(price.reactive_h)}"
            )
    if state.links:
        rows = [
            [
                str(link.number),
                link.job or MISSING,
                (link.end or link.state).lower(),
                _clock(link.start_s),
                _clock(link.end_s),
                MISSING if link.number not in gaps else f"{gaps[link.number]:.0f}",
                link.detail,
            ]
            for link in state.links.values()
        ]
        header = ("link", "job", "state", "start (UTC)", "end (UTC)", "gap (s)", "detail")
        yield Table(header, rows, right=(0, 5), wrapped=(6,), leaves=(4, 3))
        yield "gap: from the end of a job to the start of the next one; negative where both ran"
    yield from (f"note: {note}" for note in report.notes)
    if state.end is not None:
        further = "" if state.end == LinkEnd.DONE else " (--resume goes on with the next link)"
        yield f"the chain has ended: {state.reason}{further}"


def _forecast_lines(forecast: Forecast) -> Iterator[str | Table]:
    from ..dashboards.table import Table

    if forecast.quantiles_s:
        rows = [
            [f"{100 * share:.0f} %", _hours(wait_s), *(
                (f"{100 * right[0]:.0f} %", f"{right[1]:,}") if right else (MISSING, MISSING)
            )]
            for share, wait_s in forecast.quantiles_s.items()
            for right in [forecast.coverage.get(share)]
        ]  # fmt: skip
        yield Table(("of such jobs", "wait at most", "held for", "of n jobs"), rows, right=(0, 1, 2, 3))
        yield f"learned from {forecast.n:,} jobs of this site"
    elif forecast.mean_s is not None:
        waited = f"waited {_hours(forecast.mean_s)} on average (n {forecast.n:,})"
        yield f"the last jobs like it, or of any size where those are few, {waited}"
    if forecast.planned_s is not None:
        yield f"Slurm itself would start it in {_hours(forecast.planned_s)}"
    yield from (f"note: {note}" for note in forecast.notes)


def _figure(figure: MeanInterval) -> str:
    mean_h, low_h, high_h = figure
    return f"{mean_h:.2f} h [{MISSING if low_h is None else f'{low_h:.2f}, {high_h:.2f}'}]"


def _shape_words(shape: JobShape) -> str:
    nodes = "1 node" if shape.nodes == 1 else f"{shape.nodes} nodes"
    return f"{nodes} for {_hours(shape.limit_s)}" + (f" in partition {shape.partition}" if shape.partition else "")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _clock(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%d %b %H:%M:%S}"
