"""`whorl report`: the HTML report of a store, whatever filled it."""

from __future__ import annotations

from pathlib import Path

import click

from .options import store_option


@click.command("report", short_help="Write the HTML report of a store: how the GPUs differ, which stand out.")
@store_option
@click.option("--campaign", metavar="NAME", help="Which campaign.  [default: the last one]")
@click.option("--cluster", metavar="NAME", help="Which cluster; needed if several have runs without a campaign.")
@click.option("--gpu", "gpu", metavar="NAME", help="The evidence page of this GPU: node/slot, UUID, serial or a part.")
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page.")
def report(store: str, campaign: str | None, cluster: str | None, gpu: str | None, out: str) -> None:
    """Compare the GPUs of a store and write one HTML page that needs no network.

    The page shows a campaign of probes: the last one, or the one that --campaign names. If there is none, it shows
    all runs of a cluster, as `whorl import` stored them. docs/report.md says how GPUs are compared.

    With --gpu it is the page of one GPU: what was found about it, its place, its past and its figures.
    """
    if gpu is not None:
        _of_gpu(store, gpu, campaign, cluster, out)
        return
    from ..dashboards.printed.campaign import answer
    from ..dashboards.store_report import report as write
    from .output import Progress, show

    with Progress() as progress:
        looked = write(store, out, campaign, cluster, progress=progress.say)
    show(answer(looked, store, Path(out)))


def _of_gpu(store: str, gpu: str, campaign: str | None, cluster: str | None, out: str) -> None:
    from ..dashboards.printed.explain import findings
    from ..dashboards.store_report import report as write
    from ..dashboards.table import Line, many
    from .output import Progress, show

    if campaign is not None:
        raise click.UsageError("--gpu and --campaign cannot be used together: the page of a GPU is about all its runs")
    with Progress() as progress:
        found = write(store, out, cluster=cluster, gpu=gpu, progress=progress.say)
    of = found.found
    said, smallest, judged = ((), (), 0) if of is None else (of.verdicts, of.smallest, of.judged)
    told = findings(found.name, said, smallest, judged if found.lines else None)
    show([f"{found.name}: {many(len(said), 'finding')}", *told])
    show([Line(f"report: {out} (open it in a browser; it needs no network)")])
