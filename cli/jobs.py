"""`whorl jobs`: who had which GPU, from Slurm's accounting and from tags of prologs and epilogs."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError
from .options import When, json_option, store_option

if TYPE_CHECKING:
    from ..jobs.accounting.importing import Report


@click.group("jobs", short_help="Who had which GPU when: accounting and tags into the store.")
def jobs() -> None:
    """Who had which GPU, and from when to when: the table `jobs`.

    \b
    whorl jobs import --store S --since 7d    ask Slurm's accounting
    whorl jobs tag script > whorl-tag         for prolog and epilog: which GPUs
    whorl jobs import --store S --tags DIR    read what prolog and epilog noted

    Then: whorl sql --store S "select * from jobs_on_gpu" (docs/jobs.md).
    """


@jobs.command("import", short_help="Store who had which GPU, from accounting, its saved output, and tags.")
@store_option
@click.option("--since", type=When(), help="Ask sacct for jobs from this time on: 2026-11-01 (UTC), or 7d ago.")
@click.option("--until", type=When(), help="Up to this time.  [default: now]")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read the saved output of sacct -P or --json instead (plain, .gz or .zst).",
)
@click.option(
    "--tags",
    "tag_folders",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Also read the tags in this folder. Repeatable.",
)
@click.option("--clear", is_flag=True, help="Remove the tags that were read, once they are stored.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: what sacct says]")
@click.option("--time-zone", metavar="ZONE", help="Zone of times in --file that are no seconds: Europe/Berlin.")
@click.option(
    "--gpus-per-node",
    metavar="[NODES=]N",
    multiple=True,
    help="How many GPUs nodes have: 4, or n[01-18]=8. Repeatable.  [default: what Slurm says, if it is asked]",
)
@click.option("--anonymise", is_flag=True, help="Store pseudonyms of users and accounts, from now on.")
@json_option
def import_jobs(
    store: str,
    since: datetime | None,
    until: datetime | None,
    file: Path | None,
    tag_folders: tuple[Path, ...],
    clear: bool,
    cluster: str | None,
    time_zone: str | None,
    gpus_per_node: tuple[str, ...],
    anonymise: bool,
    as_json: bool,
) -> None:
    """Store who had which GPU, from Slurm's accounting, from its saved output, and from tags.

    \b
    whorl jobs import --store S --since 2026-11-01
    whorl jobs import --store S --file sacct.txt --time-zone Europe/Berlin
    whorl jobs import --store S --tags /var/spool/whorl

    Importing again stores only what is new: a job that was running and has ended gets a new record, and the view
    `jobs_now` shows it. Accounting does not say which GPUs of a node a job had. They are stored where a tag read
    their UUIDs, and where the job had all of them; else the row has the node and no GPU. Tags in the store's own
    folder are always read.

    Exit status 2 if a line or a tag was refused; the others are stored.
    """
    from ..jobs.accounting.importing import import_jobs as run
    from .output import print_json

    if file is not None and (since is not None or until is not None):
        raise click.UsageError("--file has its own times: leave out --since and --until")
    if until is not None and since is None:
        raise click.UsageError("--until needs --since")
    if until is not None and since is not None and until <= since:
        raise click.UsageError("--until must be later than --since")
    if file is None and time_zone is not None:
        raise click.UsageError("--time-zone is for --file: sacct is asked for seconds")
    report = run(
        store,
        since=since,
        until=until,
        file=file,
        tag_folders=tag_folders,
        cluster=cluster,
        time_zone=time_zone,
        gpus_per_node=gpus_per_node,
        anonymise=anonymise,
        clear=clear,
    )
    if as_json:
        print_json(report.as_dict())
    else:
        _describe(report)
    if report.refused or report.tags_refused:
        sys.exit(InputError.exit_code)


@jobs.command("tag", short_help="Note that a job begins or ends on this node: for prolog and epilog.")
@click.argument("event", type=click.Choice(["begin", "end", "script"]))
@click.option("--store", metavar="DIR", envvar="WHORL_STORE", show_envvar=True, help="The store: into its folder tags.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Write the tag into this folder.")
def tag(event: str, store: str | None, folder: Path | None) -> None:
    """Note that a job begins or ends on this node, and which GPUs it has: for prolog and epilog.

    \b
    whorl jobs tag script > /etc/slurm/whorl-tag    # a shell script; start it so:
    sh /etc/slurm/whorl-tag begin /var/spool/whorl  # in Prolog
    sh /etc/slurm/whorl-tag end /var/spool/whorl    # in Epilog

    `whorl jobs tag begin` and `end` run the same script; they need Python's start in addition. Both always exit with
    status 0, as Slurm drains a node whose prolog fails, and do nothing in a job without GPUs.
    """
    from ..errors import WhorlError
    from ..jobs.accounting import tagging
    from .output import tell

    if event == "script":
        click.echo(tagging.script(), nl=False)
        return
    try:
        said = tagging.tag(event, store=store, folder=folder)
    except WhorlError as error:
        said = str(error)
    if said:
        tell(said)


def _describe(report: Report) -> None:
    """Print the report, for people."""
    from ..dashboards.table import count, many
    from .output import say, tell

    if report.source:
        say(
            f"{report.source}: {many(report.allocations, 'allocation')} of GPUs in cluster {report.cluster or 'n/a'}: "
            f"{count(report.stored)} stored, {count(report.known)} known already"
        )
        for why, number in report.passed.items():
            say(f"passed over: {count(number)} {why}", "  ", "    ")
        if report.allocations:
            say(f"all GPUs known by UUID: {count(report.with_gpus)} of {count(report.allocations)}", "  ", "    ")
        for why, number in sorted(report.unknown.items(), key=lambda one: (-one[1], one[0])):
            say(f"not known: {count(number)} {why}", "  ", "    ")
    if report.tags or report.tags_refused:
        say(f"tags: {count(report.tags)} read, {many(report.tags_stored, 'allocation')} stored")
        for why, number in report.tags_unknown.items():
            say(f"GPUs not known: {count(number)} {why}", "  ", "    ")
    elif not report.source:
        say("there are no tags: nothing was stored")
    for why, lines in report.refused.items():
        tell(f"{report.source}: refused {_some('line', lines)}: {why}")
    for why, names in report.tags_refused.items():
        tell(f"refused {_some('tag', names)}: {why}")
    for note in report.notes:
        tell(f"note: {note}")


def _some(what: str, items: list[int] | list[str]) -> str:
    shown = ", ".join(str(item) for item in sorted(items)[:5]) + (", ..." if len(items) > 5 else "")
    return f"{what}{'s' if len(items) > 1 else ''} {shown}" + (f" ({len(items)} in all)" if len(items) > 5 else "")
