"""`whorl jobs chain` and `whorl jobs wait`: a training in jobs that follow without a gap, and the wait of a job."""

from __future__ import annotations

import math
import re
import sys
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..store.configuration import configured
from .options import OptionKey, Span, json_option, settings

if TYPE_CHECKING:
    from ..jobs.chain import Until

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
    "--option", "sbatch", multiple=True, metavar="OPTION", help="Another option of sbatch, as it is. Repeatable."
)
@click.option("--once", is_flag=True, help="Do what is due, and end: for cron and scrontab.")
@click.option("--dry-run", is_flag=True, help="Only say what the wait would be and when the next job is submitted.")
@settings(
    OptionKey(
        "signal",
        click.Choice(["USR1", "USR2", "TERM", "INT", "none"]),
        "Asks the running job to checkpoint and leave. none: its successor waits until it ends.",
        "USR1",
    ),
    OptionKey("folder", click.Path(path_type=Path), "Folder of the chain.  [default: SCRIPT.chain]", metavar="DIR"),
    OptionKey("patience", Span(), "Give up if Slurm does not answer for so long.  [default: 10min]"),
    OptionKey("resume", click.BOOL, "Go on with a chain that has ended.", False),
)
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
    from .documents.chain import chain_document, chain_mapping
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
        output.print_json(chain_mapping(report, chained.policy.name))
    else:
        output.print_document(chain_document(report, chained.policy.name))
    sys.exit(_STATUS.get(report.folder.state.end or "", 0))


_STATUS = {"failed": 6, "unknown": 6, "cancelled": 1}


@click.command("wait", short_help="How long a job would wait if it was submitted at this moment.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of the job.")
@click.option("--time", "limit", metavar="LIMIT", required=True, help="Its time limit, as for sbatch: 24:00:00.")
@settings(OptionKey("partition", click.STRING, "Its partition.  [default: whorl.toml, or Slurm's]", metavar="NAME"))
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
    from .documents.chain import wait_document, wait_mapping

    partition = partition or configured("partition")
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
        output.print_json(wait_mapping(shape, forecast))
    else:
        output.print_document(wait_document(shape, forecast))


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
