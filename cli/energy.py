"""`whorl energy`: joules, grams and money by job, user, account, GPU, node or day, with intervals."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

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

    What no job used has rows of its own: idle (the GPU did nothing), and unattributed (it worked for somebody who is
    not known). All rows add up to what was metered. Jobs come from the table `jobs` (docs/jobs.md).

    Carbon and cost need a file of settings. docs/energy.md explains everything.
    """
    given = {"store": store, "cluster": cluster, "since": since, "until": until, "settings": settings}
    if ctx.invoked_subcommand is not None:
        for name, value in (("--job", job), ("--json", as_json), ("--csv", as_csv)):
            if value:
                raise click.UsageError(f"{name} must follow {ctx.invoked_subcommand}, not precede it")
        ctx.obj = given
        return
    from ..analysis.energy import answers
    from ..analysis.energy.one_job import one_job
    from ..dashboards.printed import energy as printed
    from ..dashboards.printed import energy_job
    from ..store import Store
    from .output import Progress, print_json, show, tell

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(None, given)
    del options["store"]
    whole = None
    with Progress() as progress:
        opened = Store.open(store or "")
        if job is not None and by == answers.By.JOB and not as_csv:
            whole = one_job(opened, job, **options, progress=progress.say)
            found = whole.answer
        else:
            found = answers.energy(opened, by, job=job, **options, progress=progress.say)
    for note in whole.elsewhere.notes if whole is not None and whole.elsewhere is not None else ():
        tell(f"note: {note}")
    if as_json:
        print_json(printed.document(found) if whole is None else energy_job.document(whole))
    elif as_csv:
        click.echo(printed.rows_as_csv(found.rows), nl=False)
    elif whole is None or whole.elsewhere is None:
        show(printed.answer(found, str(store)))
    else:
        show(energy_job.answer(found, whole.elsewhere))


for _command in (reconcile, excess, quote):
    energy.add_command(_command)
