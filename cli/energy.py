"""`whorl energy`: the energy of GPUs, with intervals."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from .options import When, exclusive, json_option

_BY = ("gpu", "node", "day")


def shared(command: Any) -> Any:
    """The options that `whorl energy` and its sub-verbs share. They may stand before the sub-verb too."""
    for option in reversed(
        (
            click.option(
                "--store",
                metavar="DIR",
                envvar="WHORL_STORE",
                show_envvar=True,
                help="The store: a folder of tables.",
            ),
            click.option("--cluster", metavar="NAME", help="Only this cluster."),
            click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago."),
            click.option("--until", type=When(), help="Only up to this time.  [default: now]"),
        )
    ):
        command = option(command)
    return command


def joined(inherited: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The shared options of a sub-verb: its own, else those that stand before it. Raises UsageError without a store."""
    both = {**(inherited or {}), **{name: value for name, value in given.items() if value is not None}}
    options = {name: both.get(name) for name in ("store", "cluster", "since", "until")}
    if not options["store"]:
        raise click.UsageError("Missing option '--store'.")
    if options["since"] and options["until"] and options["until"] <= options["since"]:
        raise click.UsageError("--until must be later than --since")
    return options


@click.group("energy", invoke_without_command=True, short_help="What energy the GPUs used.")
@shared
@click.option("--by", type=click.Choice(_BY), default="gpu", show_default=True, help="What the rows are of.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.pass_context
def energy(
    ctx: click.Context,
    /,
    store: str | None,
    cluster: str | None,
    since: datetime | None,
    until: datetime | None,
    by: str,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Say what energy the GPUs used. Every figure has its 95 % interval.

    \b
    whorl energy --store S --by node --since 30d
    """
    given = {"store": store, "cluster": cluster, "since": since, "until": until}
    if ctx.invoked_subcommand is not None:
        for name, value in (("--json", as_json), ("--csv", as_csv)):
            if value:
                raise click.UsageError(f"{name} must follow {ctx.invoked_subcommand}, not precede it")
        ctx.obj = given
        return
    from ..analysis.energy import answers
    from ..dashboards.printed import energy as printed
    from .output import Progress, print_json, show, tell

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(None, given)
    with Progress() as progress:
        found = answers.energy(options.pop("store"), by, **options, progress=progress.say)
    if as_json:
        print_json(printed.document(found))
        return
    for note in found.notes:
        tell(f"note: {note}")
    if as_csv:
        click.echo(printed.as_csv(found), nl=False)
    else:
        show(printed.answer(found, store or ""))
