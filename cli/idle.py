"""`whorl jobs idle`: GPUs that jobs hold and do not use, with hours and cost."""

from __future__ import annotations

from typing import Any

import click

from .options import Span, When, cluster_option, configured_option, csv_option, exclusive, json_option, store_option


@click.command("idle", short_help="GPUs that jobs hold and do not use, with hours and cost.")
@store_option
@cluster_option
@click.option("--user", "users", metavar="NAME", multiple=True, help="Only jobs of this user. Repeatable.")
@click.option("--mine", is_flag=True, help="Only your own jobs.")
@click.option("--running", is_flag=True, help="Only jobs that still run.")
@click.option("--since", type=When(), help="From this time on: 2026-11-01 (UTC), or 7d ago.  [default: the last day]")
@click.option("--until", type=When(), help="Up to this time.  [default: the last reading]")
@click.option("--at-least", type=Span(), default="10min", show_default=True, help="Idle for so long at a time.")
@configured_option(
    "--price", key="price_per_gpu_hour", type=click.FloatRange(min=0), help="Of an hour of a GPU, in your currency."
)
@click.option(
    "--settings",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Carbon and the price of energy.  [default: energy.toml in the store's folder]",
)
@json_option
@csv_option
def idle(store: str, as_json: bool, as_csv: bool, **options: Any) -> None:
    """List the GPUs that jobs hold and do not use: for how long, and what it costs.

    \b
    whorl jobs idle --store S --running             for the operator
    whorl jobs idle --store S --mine --since 7d     for a user
    whorl jobs idle --store S --price 2.50          in money, too

    A GPU is idle where its utilisation is 0 and its power is near what it draws without work, for 10 minutes
    or longer. What nobody read is n/a, not 0 (docs/jobs.md).
    """
    from .answers.job import idle_gpus
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    with ProgressBar() as progress:
        reply = idle_gpus(store, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)
