"""`whorl jobs idle`: GPUs that jobs hold and do not use, with hours and cost."""

from __future__ import annotations

from typing import Any

import click

from ..store.configuration import configured
from .options import OptionKey, Span, When, cluster_option, json_option, settings, store_option


@click.command("idle", short_help="GPUs that jobs hold and do not use, with hours and cost.")
@store_option
@cluster_option
@click.option(
    "--user", "users", metavar="NAME", multiple=True, help="Only this user's jobs; `me`: your own. Repeatable."
)
@click.option("--running", is_flag=True, help="Only jobs that still run.")
@click.option("--since", type=When(), help="From this time on: 2026-11-01 (UTC), or 7d ago.  [default: the last day]")
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
def idle(store: str, as_json: bool, **options: Any) -> None:
    """List the GPUs that jobs hold and do not use: for how long, and what it costs.

    \b
    whorl jobs idle --store S --running             for the operator
    whorl jobs idle --store S --user me --since 7d  for a user
    whorl jobs idle --store S --set price=2.50      in money, too

    A GPU is idle where its utilisation is 0 and its power is near what it draws without work, for 10 minutes
    or longer. What nobody read is n/a, not 0 (docs/jobs.md).
    """
    from .answers.job import idle_gpus
    from .output import ProgressBar, print_reply

    users = [name for name in options["users"] if name != "me"]
    options |= {"mine": len(users) < len(options["users"]), "users": users}
    if options["price"] is None:
        options["price"] = configured("price_per_gpu_hour")
    with ProgressBar() as progress:
        reply = idle_gpus(store, **options, progress=progress.say)
    print_reply(reply, as_json=as_json)
