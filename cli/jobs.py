"""`whorl jobs`: who had which GPU, which GPUs stand idle, and trainings in jobs that follow without a gap."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..store.configuration import configured
from .ending import stays
from .options import OptionKey, Span, When, cluster_option, json_option, respond, settings, store_option

if TYPE_CHECKING:
    from ..analysis.chains.costs import PolicyRow
    from ..analysis.chains.jobs_log import JobsLog
    from ..jobs.chain import Until
    from .output import ProgressBar


@click.group("jobs", short_help="Store who had which GPU when, from accounting and tags.")
def jobs() -> None:
    """Who had which GPU, and from when to when: the table `jobs` (docs/jobs.md).

    \b
    whorl jobs import --store S --since 7d    ask Slurm's accounting
    whorl jobs tag script > whorl-tag         for prolog and epilog: which GPUs
    whorl jobs show --store whorl-job-4242    what a job collected of its own GPUs
    whorl jobs import --store S --tags DIR    read what prolog and epilog noted
    whorl jobs chain-study --log FILE         when to submit a chain's next job
    whorl jobs idle --store S --running       GPUs that jobs hold and do not use
    whorl jobs chain --script train.sbatch    jobs that follow without a gap
    whorl jobs wait --nodes 8 --time 1-00     how long such a job would wait
    """


@jobs.command("import", short_help="Store who had which GPU, from accounting, its saved output, and tags.")
@store_option
@click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago.")
@click.option("--until", type=When(), help="Up to this time.  [default: now]")
@click.option(
    "--log",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read the saved output of sacct -P or --json instead.",
)
@click.option(
    "--tags",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Also read the tags in this folder. Repeatable.",
)
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: what sacct says]")
@settings(
    OptionKey("time-zone", click.STRING, "Zone of times in --log that are no seconds: Europe/Berlin.", metavar="ZONE"),
    OptionKey(
        "gpus-per-node",
        click.STRING,
        "How many GPUs nodes have: 4, or n[01-18]=8. May be repeated.  [default: what Slurm says, if it is asked]",
        metavar="[NODES=]N",
        multiple=True,
    ),
    OptionKey("clear", click.BOOL, "Remove the tags that were read, once they are stored.", False),
    OptionKey("anonymise", click.BOOL, "Store pseudonyms of users and accounts, from now on.", False),
)
@json_option
def import_jobs(store: str, as_json: bool, **options: Any) -> None:
    """Store who had which GPU, from Slurm's accounting, from its saved output, and from tags.

    \b
    whorl jobs import --store S --since 2026-11-01
    whorl jobs import --store S --log sacct.txt --set time-zone=Europe/Berlin
    whorl jobs import --store S --tags /var/spool/whorl

    Importing again stores only what is new: a job that was running and has ended gets a new record, and the view
    `jobs_now` shows it. Accounting does not say which GPUs of a node a job had. They are stored where a tag says it
    for certain, and where the job had all of them; else the row has the node and no GPU. Tags in the store's own
    folder are always read.

    Exit status 2 if a line or a tag was refused; the others are stored.
    """
    from .answers import accounting
    from .output import print_reply, tell

    reply = accounting.import_jobs(store, **options)
    for refusal in () if as_json else accounting.refusals(reply.result):
        tell(refusal)
    print_reply(reply, as_json=as_json)
    if reply.refused or reply.tags_refused:
        sys.exit(InputError.exit_code)


@jobs.command("show", short_help="What a job collected of its own GPUs, beside the fleet.")
@store_option
@click.option("--fleet", metavar="DIR", help="The store of a fleet: also say where the job's GPUs stand in it.")
@json_option
def show(store: str, fleet: str | None, as_json: bool) -> None:
    """Summarise what `whorl collect --for-job` stored: power, clocks, throttling and energy of each GPU of the job.

    \b
    whorl jobs show --store whorl-job-4242
    whorl jobs show --store whorl-job-4242 --fleet /site/fleet
    """
    from .answers.job import show_job
    from .output import print_reply

    print_reply(show_job(store, fleet=fleet), as_json=as_json)


@jobs.command("tag", short_help="Note that a job begins or ends on this node: for prolog and epilog.")
@click.argument("event", type=click.Choice(["begin", "end", "script"]))
@click.option("--store", metavar="DIR", envvar="WHORL_STORE", show_envvar=True, help="The store: into its folder tags.")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False))
def tag(event: str, store: str | None, folder: Path | None) -> None:
    """Note that a job begins or ends on this node, and which GPUs it has: for prolog and epilog.

    \b
    whorl jobs tag script > /etc/slurm/whorl-tag    # a shell script; start it so:
    sh /etc/slurm/whorl-tag begin /var/spool/whorl  # in Prolog
    sh /etc/slurm/whorl-tag end /var/spool/whorl    # in Epilog

    `whorl jobs tag begin DIR` and `end DIR` run the same script; they need Python's start in addition. Both always
    exit with status 0, as Slurm drains a node whose prolog fails, and do nothing in a job without GPUs.
    """
    from ..errors import WhorlError
    from ..jobs.accounting import tags
    from .output import tell

    if event == "script":
        click.echo(tags.script(), nl=False)
        return
    try:
        complaint = tags.tag(event, store=store, folder=folder)
    except WhorlError as error:
        complaint = str(error)
    if complaint:
        tell(complaint)


@jobs.command("idle", short_help="GPUs that jobs hold and do not use, with hours and cost.")
@store_option
@cluster_option
@click.option(
    "--user", "users", metavar="NAME", multiple=True, help="Only this user's jobs; `me`: your own. Repeatable."
)
@click.option("--running", is_flag=True, help="Only jobs that still run.")
@click.option(
    "--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago.  [default: the last day]"
)
@click.option("--until", type=When(), help="Up to this time.  [default: the last reading]")
@settings(
    OptionKey("at-least", Span(), "Idle for so long at a time.", "10min"),
    OptionKey("price", click.FloatRange(min=0), "Of an hour of a GPU, in your currency.  [default: of whorl.toml]"),
    OptionKey(
        "settings",
        click.Path(dir_okay=False),
        "Carbon and the price of energy.  [default: energy.toml in the store's folder]",
        metavar="FILE",
    ),
)
@json_option
def idle(store: str, **options: Any) -> None:
    """List the GPUs that jobs hold and do not use: for how long, and what it costs.

    \b
    whorl jobs idle --store S --running             for the operator
    whorl jobs idle --store S --user me --since 7d  for a user
    whorl jobs idle --store S --set price=2.50      in money, too

    A GPU is idle where its utilisation is 0 and its power is near what it draws without work, for 10 minutes
    or longer. What nobody read is n/a, not 0 (docs/jobs.md).
    """
    from .answers.job import idle_gpus

    users = [name for name in options["users"] if name != "me"]
    options |= {"mine": len(users) < len(options["users"]), "users": users}
    if options["price"] is None:
        options["price"] = configured("price_per_gpu_hour")
    respond(idle_gpus, store=store, **options)


_POLICIES = "reactive, lead6 (hours), average, test-only, p75"


@jobs.command("chain", short_help="Hand a training from job to job without a gap.")
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
    help="An hour of overlap weighs so many hours of interruption: the quantile 1/(1+COST).",
)
@click.option("--policy", metavar="NAME", help=f"When to submit, in place of --cost: {_POLICIES}.")
@click.option(
    "--option", "sbatch", multiple=True, metavar="OPTION", help="Another option of sbatch, as it is. Repeatable."
)
@click.option("--once", is_flag=True, help="Do what is due, and end: for cron and scrontab.")
@click.option("--dry-run", is_flag=True, help="Only say what it would do.")
@settings(
    OptionKey(
        "signal",
        click.Choice(["USR1", "USR2", "TERM", "INT", "none"]),
        "Asks the running job to checkpoint and leave; none: nothing does.",
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
    from ..analysis.chains.policy import LeadPolicy
    from ..jobs.chain import PATIENCE_S, ChainOptions, plan_chain, run_chain
    from ..jobs.slurm import Slurm
    from . import output
    from .documents.chain import chain_document, chain_mapping
    from .ending import Ending, stays

    chained = ChainOptions(
        script,
        _until(until),
        LeadPolicy.parse(options["policy"]) if options["policy"] else LeadPolicy.of_cost(options["cost"]),
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
    policy = chained.policy.name
    output.print_answer(chain_mapping(report, policy), chain_document(report, policy), as_json=as_json)
    sys.exit(_STATUS.get(report.folder.state.end or "", 0))


_STATUS = {"failed": 6, "unknown": 6, "cancelled": 1}


@jobs.command("wait", short_help="How long a job would wait if it was submitted at this moment.")
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
    from ..analysis.chains.policy import LeadPolicy
    from ..jobs.forecast import Forecaster, JobShape
    from ..jobs.slurm import Slurm, limit_seconds
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
    forecast = Forecaster(slurm, shape, LeadPolicy.parse("p50")).ask(planned=True)
    output.print_answer(wait_mapping(shape, forecast), wait_document(shape, forecast), as_json=as_json)


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


_PATH = click.Path(path_type=Path)
_STUDY_POLICIES = "reactive, lead6 (hours), average, test-only, p75, forest, known"
_STUDY_DEFAULT = "reactive,average,p75,p90; as published reactive,average"


@jobs.command("chain-study", short_help="What each way to submit a chain of jobs would have done here.")
@click.option("--log", "log_path", type=_PATH, required=True, help="The site's jobs: saved sacct -P or --json, or CSV.")
@click.option("--cluster-nodes", type=click.IntRange(1), help="Nodes.  [default: the most that ran jobs at once]")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of each job of the chain.")
@click.option("--policy", metavar="NAMES", help=f"With commas: {_STUDY_POLICIES}.  [default: {_STUDY_DEFAULT}]")
@click.option(
    "--cost",
    type=click.FloatRange(0.01, 99),
    help="An hour of overlap weighs so many hours of interruption: adds the policy cost, the quantile 1/(1+COST).",
)
@click.option(
    "--test-from",
    type=When(),
    help="Test on chains from this day on; learn from those known, anew each week.  [default: the last quarter]",
)
@click.option("--as-published", type=click.Choice(["mirage"]), help="Simulate as the artifact of that study does.")
@settings(
    OptionKey("time-zone", click.STRING, "Of times in the log without one.", "UTC", metavar="ZONE"),
    OptionKey("gpus-per-node", click.IntRange(1), "To count wasted GPU-hours.", 1),
    OptionKey("samples", _PATH, "As published: also write every sample, as a CSV.", metavar="FILE"),
    OptionKey("seed", click.IntRange(0), "Of what is learnt.  [default: 0]"),
)
@json_option
def chain_study(
    log_path: Path, time_zone: str, cluster_nodes: int | None, nodes: int, as_json: bool, **options: Any
) -> None:
    """Say what each way to submit the next job of a chain would have done on a log of this site. It submits nothing.

    \b
    whorl jobs chain-study --log sacct.csv.gz --nodes 8 --cost 0.5
    whorl jobs chain-study --log sacct.csv.gz --policy reactive,lead6,lead12,p75
    whorl jobs chain-study --log ls6.csv --cluster-nodes 72 --as-published mirage

    A chain is a training in jobs of 48 h. Interruption is the time without a job between two of them, overlap the time
    in which both hold their nodes (docs/jobs.md).
    """
    from ..analysis.chains import study
    from ..analysis.chains.jobs_log import read_log
    from ..dashboards.html import refuse_unwritable
    from .documents.chain import study_document, study_mapping
    from .output import ProgressBar, print_answer, tell

    stays("nothing was stored: run the command again")
    _refuse_mixed(options)
    if options["samples"] is not None:
        refuse_unwritable(options["samples"], "samples=")
    log = read_log(log_path, time_zone=time_zone)
    for note in _account(log):
        tell(note)
    size = cluster_nodes or log.most_nodes_at_once
    policies = [name.strip() for name in options["policy"].split(",")] if options["policy"] else []
    since = options["test_from"]
    since_s = None if since is None else since.replace(tzinfo=UTC).timestamp()
    samples: list[dict[str, Any]] = []
    with ProgressBar() as progress:
        if options["as_published"]:
            rows, samples = _as_published(log, policies, size, nodes, since_s=since_s or 0.0, progress=progress)
        else:
            names = tuple(policies) or study.DEFAULT_POLICIES
            learnt = {"test_from_s": since_s, "cost": options["cost"], "seed": options["seed"] or 0}
            chosen = study.StudyOptions(cluster_nodes=size, nodes=nodes, policies=names, **learnt)
            rows = study.chain_study(log, options=chosen, progress=lambda done, total: progress(done, total, "chains"))
    if options["samples"] is not None:
        with options["samples"].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(samples[0]))
            writer.writeheader()
            writer.writerows(samples)
    document = study_document(log, rows, size, options["gpus_per_node"])
    print_answer(study_mapping(log, rows, size, options), document, as_json=as_json)


def _refuse_mixed(options: Mapping[str, Any]) -> None:
    for name in ("cost", "seed"):
        if options["as_published"] and options[name] is not None:
            raise InputError(f"--as-published fixes what --{name} would change; leave out one of them")
    if options["samples"] is not None and not options["as_published"]:
        raise InputError("samples= writes the samples of --as-published mirage; leave it out")


def _as_published(
    log: JobsLog, policies: Sequence[str], cluster_nodes: int, nodes: int, *, since_s: float, progress: ProgressBar
) -> tuple[list[PolicyRow], list[dict[str, Any]]]:
    from ..analysis.chains import published
    from .output import tell

    others = [policy for policy in policies if policy not in published.POLICIES]
    policies = [policy for policy in policies or published.POLICIES if policy not in others]
    if not policies:
        raise InputError(
            f"--policy {','.join(others)}: the published samples are of {' and '.join(published.POLICIES)} only; leave "
            "out --as-published for other policies"
        )
    if others:
        tell(f"note: the published study has no {', '.join(others)}: leave out --as-published to see them")
    starts_s = published.published_starts(log, since_s=since_s)
    samples = published.published_samples(
        log,
        starts_s,
        cluster_nodes=cluster_nodes,
        nodes=nodes,
        progress=lambda done: progress(done, len(starts_s), "windows"),
    )
    return published.published_rows(starts_s, samples, policies), samples


def _account(log: JobsLog) -> Iterable[str]:
    """What of the log was not used, and what is not sure of its times."""
    from ..analysis.chains.jobs_log import SAVE
    from ..dashboards.words import first_of

    for reason, lines in log.refused.items():
        yield f"{log.source}: left out {first_of('line', lines)}: {reason}"
    if log.refused:
        yield f"to have all rows read, save the log with: {SAVE}"
    yield from (f"note: {note}" for note in log.notes)
