"""`whorl plan`: which GPUs to probe next, and for how long."""

from __future__ import annotations

import click

from .options import Span, cluster_option, json_option, store_option, suite_option


@click.command("plan", short_help="Which GPUs to probe next, in the time that there is.")
@store_option
@click.option("--budget", type=Span(), default="2h", show_default=True, help="GPU time that there is: 30min, 2h.")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="NAME",
    help="Which probe. Repeatable.  [default: gemm-fp32, stream-triad]",
)
@suite_option("How thoroughly.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="Slower by this much matters.",
)
@cluster_option
@json_option
def plan(
    store: str,
    budget: float,
    probes: tuple[str, ...],
    suite: str,
    threshold: float,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Say which GPUs to probe next: suspected ones, those found faulty long ago, then where a probe tells most.

    \b
    whorl plan --store S --budget 2h

    A GPU leaves the list when it is decided, with at most 1 in 1,000 GPUs called slow by mistake. Run the commands on
    the nodes that they name.
    """
    from ..dashboards.answers import judging
    from .output import print_reply

    reply = judging.plan(
        store,
        budget=budget,
        probe=probes or judging.PLANNED_PROBES,
        suite=suite,
        threshold=threshold,
        cluster=cluster,
    )
    print_reply(reply, as_json=as_json)
