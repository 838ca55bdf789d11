"""`whorl verdicts`: what was found about the GPUs of a store, worst first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from .engine_options import engine_of, place_options
from .options import When, cluster_option, json_option, store_option


@click.command("verdicts", short_help="What was found about GPUs, nodes, batches and ranks, worst first.")
@store_option
@cluster_option
@click.option("--campaign", metavar="NAME", help="Only the runs of this campaign.")
@click.option("--since", type=When(), help="Only runs since this date (UTC), or since so long ago: 30d.")
@place_options
@json_option
def verdicts(
    store: str, cluster: str | None, campaign: str | None, since: datetime | None, as_json: bool, **place: Any
) -> None:
    """Judge every GPU of a store against its peers and its own past. Say what was found, and what could not be judged.

    \b
    suspected  seen in one sitting: measure again on another day
    confirmed  seen in two sittings that are at least 6 hours apart

    Timelines of training jobs are judged too: ranks that compute slower than those with the same work.
    The findings are stored in table `verdicts`, beside the earlier ones. docs/verdicts.md explains them.
    """
    from ..dashboards.answers.judging import verdicts as judged
    from .output import ProgressBar, print_reply

    with engine_of(place, store) as engine, ProgressBar() as progress:
        progress.say("judging the GPUs")
        reply = judged(store, cluster=cluster, campaign=campaign, since=since, engine=engine, progress=progress.say)
    print_reply(reply, as_json=as_json)
