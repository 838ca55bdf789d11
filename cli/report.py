"""`whorl report`: the HTML report of a store, whatever filled it."""

from __future__ import annotations

from pathlib import Path

import click

from .options import store_option


@click.command("report", short_help="Write the HTML report of a store: how the GPUs differ, which stand out.")
@store_option
@click.option("--campaign", metavar="NAME", help="Which campaign.  [default: the last one]")
@click.option("--cluster", metavar="NAME", help="Which cluster; needed if several have runs without a campaign.")
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page.")
def report(store: str, campaign: str | None, cluster: str | None, out: str) -> None:
    """Compare the GPUs of a store and write one HTML page that needs no network.

    The page shows a campaign of probes: the last one, or the one that --campaign names. If there is none, it shows
    all runs of a cluster, as `whorl import` stored them. docs/report.md says how GPUs are compared.
    """
    from ..dashboards.printed.campaign import answer
    from ..dashboards.store_report import report as write
    from .output import Progress, show

    with Progress() as progress:
        looked = write(store, out, campaign, cluster, progress=progress.say)
    show(answer(looked, store, Path(out)))
