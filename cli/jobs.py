"""`whorl jobs`: who had which GPU, from Slurm's accounting and from tags of prologs and epilogs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ..errors import InputError
from .chain import chain, wait
from .chain_study import chain_study
from .idle import idle
from .options import OptionKey, When, json_option, settings, store_option


@click.group("jobs", short_help="Store who had which GPU when, from accounting and tags.")
def jobs() -> None:
    """Who had which GPU, and from when to when: the table `jobs`.

    \b
    whorl jobs import --store S --since 7d    ask Slurm's accounting
    whorl jobs tag script > whorl-tag         for prolog and epilog: which GPUs
    whorl jobs show --store whorl-job-4242    what a job collected of its own GPUs
    whorl jobs import --store S --tags DIR    read what prolog and epilog noted
    whorl jobs chain-study --log FILE         when to submit a chain's next job
    whorl jobs idle --store S --running       GPUs that jobs hold and do not use
    whorl jobs chain --script train.sbatch    jobs that follow without a gap
    whorl jobs wait --nodes 8 --time 1-00     how long such a job would wait

    Then: whorl sql --store S "select * from jobs_on_gpu" (docs/jobs.md).
    """


@jobs.command("import", short_help="Store who had which GPU, from accounting, its saved output, and tags.")
@store_option
@click.option("--since", type=When(), help="Ask sacct for jobs from this time on: 2026-11-01 (UTC), or 7d ago.")
@click.option("--until", type=When(), help="Up to this time.  [default: now]")
@click.option(
    "--log",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read the saved output of sacct -P or --json instead (plain, .gz or .zst).",
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


jobs.add_command(chain)
jobs.add_command(wait)
jobs.add_command(idle)
jobs.add_command(chain_study)
