"""`whorl report`: the HTML report of a store, whatever filled it."""

from __future__ import annotations

import click

from .options import store_option


@click.command("report", short_help="Write the HTML report of a store: how the GPUs differ, which stand out.")
@store_option
@click.option("--campaign", metavar="NAME", help="The campaign.  [default: the last one]")
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option("--gpu", "gpu", metavar="NAME", help="The evidence page of this GPU: node/slot, UUID, serial or a part.")
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page.")
def report(store: str, campaign: str | None, cluster: str | None, gpu: str | None, out: str) -> None:
    """Compare the GPUs of a store and write one HTML page that needs no network.

    \b
    whorl report --store S --out report.html
    whorl report --store S --gpu c001-4/3 --out gpu.html

    The page shows a campaign of probes: the last one, or the one that --campaign names. If there is none, it shows
    all runs of a cluster, as `whorl import` stored them. docs/verdicts.md says how GPUs are compared.

    With --gpu it is the page of one GPU: what was found about it, its place, its past and its figures.
    """
    from ..dashboards.answers.report import report as write
    from .output import ProgressBar, print_document

    with ProgressBar() as progress:
        reply = write(store, out, campaign, cluster=cluster, gpu=gpu, progress=progress.say)
    print_document(reply.document())
