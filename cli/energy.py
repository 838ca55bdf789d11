"""`whorl energy`: joules, grams and money by job, user, account, GPU, node or day, with intervals."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from .energy_calibrate import calibrate
from .energy_excess import excess
from .energy_options import joined, shared
from .energy_quote import quote
from .energy_reconcile import reconcile
from .options import csv_option, exclusive, json_option

_BY = ("job", "user", "account", "gpu", "node", "day")


@click.group("energy", invoke_without_command=True, short_help="Joules, grams and money, by job, user, GPU and more.")
@shared
@click.option("--by", type=click.Choice(_BY), default="job", show_default=True, help="What the rows are of.")
@click.option("--job", metavar="JOBID", help="Only this job, with everything that is known of it.")
@json_option
@csv_option
@click.pass_context
def energy(
    ctx: click.Context,
    /,
    store: str | None,
    cluster: str | None,
    since: datetime | None,
    until: datetime | None,
    settings: Path | None,
    by: str,
    job: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Say what energy the GPUs used, and who used it. Every figure has its 95 % interval.

    \b
    whorl energy --store S --by user --since 30d
    whorl energy --store S --job 4242        one job: idle share, CO2e, what-if
    whorl energy reconcile --store S         whether the books balance
    whorl energy excess --store S            what slow and hungry GPUs cost
    whorl energy quote --store S --job 4242  other GPUs, power caps and hours
    whorl energy calibrate --store S         what power sensors are wrong by

    What no job used has rows of its own: idle (the GPU did nothing), and unattributed (nothing shows that it
    was idle, and no known job had it). All rows add up to what was metered. Jobs come from the table `jobs`
    (docs/jobs.md).

    Carbon and cost need a file of settings. docs/energy.md explains everything.
    """
    given = {"store": store, "cluster": cluster, "since": since, "until": until, "settings": settings}
    if ctx.invoked_subcommand is not None:
        for name, value in (("--job", job), ("--json", as_json), ("--csv", as_csv)):
            if value:
                raise click.UsageError(f"{name} must follow {ctx.invoked_subcommand}, not precede it")
        ctx.obj = given
        return
    from ..dashboards.answers.energy import energy as counted
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(None, given)
    with ProgressBar() as progress:
        reply = counted(options.pop("store"), by, job=job, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)


for _command in (reconcile, excess, quote, calibrate):
    energy.add_command(_command)
