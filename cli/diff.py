"""`whorl diff`: what changed between two times, of the fleet and of single GPUs."""

from __future__ import annotations

from datetime import datetime

import click

from .options import When, cluster_option, json_option, store_option


@click.command("diff", short_help="What changed between two dates: the fleet, and single GPUs.")
@store_option
@click.option(
    "--before", type=When(), required=True, help="Compare the runs before this date (UTC), or so long ago: 30d ..."
)
@click.option("--after", type=When(), required=True, help="... with those since this date.")
@cluster_option
@json_option
def diff(store: str, before: datetime, after: datetime, cluster: str | None, as_json: bool) -> None:
    """Compare every GPU with itself: its sittings before a date with those after another one.

    \b
    whorl diff --store S --before 2026-10-01 --after 2026-11-01

    What changed for all GPUs alike, as at a driver update, is said once. Then come the GPUs that moved against it,
    with intervals, and those that are new or gone.
    """
    from ..dashboards.answers.judging import diff as compared
    from .output import ProgressBar, print_reply

    with ProgressBar() as progress:
        progress.say("comparing")
        reply = compared(store, before=before, after=after, cluster=cluster)
    print_reply(reply, as_json=as_json)
