"""`whorl verdicts`: what was found about the GPUs of a store, worst first; how much they differ, what each one is, what
changed, and what to measure next."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    SUITES,
    OptionKey,
    Span,
    When,
    any_store_option,
    cluster_option,
    json_option,
    place_options,
    refuse_before,
    require_store,
    respond,
    settings,
    store_option,
)


@click.group("verdicts", invoke_without_command=True, short_help="Which GPUs, nodes and ranks are odd, worst first.")
@any_store_option
@cluster_option
@click.option("--campaign", metavar="NAME", help="Only the runs of this campaign.")
@click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago.")
@place_options
@json_option
@click.pass_context
def verdicts(ctx: click.Context, /, store: str | None, **chosen: Any) -> None:
    """Say which GPUs of a store are odd, worst first: against their peers, and against their own past.

    \b
    whorl verdicts --store S
    whorl verdicts variability --store S         how much the GPUs differ
    whorl verdicts fingerprint --store S         what each GPU is, class by class
    whorl verdicts diff --store S --before 30d --after 7d     what changed
    whorl verdicts plan --store S --budget 2h    what to measure next

    \b
    suspected  seen in one sitting: measure again on another day
    confirmed  seen in two sittings that are at least 6 hours apart

    Timelines of training jobs are judged too: ranks that compute slower than those with the same work.
    The findings are stored in table `verdicts`, beside the earlier ones. docs/verdicts.md explains them.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx)
        return
    from ..dashboards.answers.judging import verdicts as judged

    respond(judged, store=require_store(store), says="judging the GPUs", **chosen)


@verdicts.command("variability", short_help="How much the GPUs differ, and whether the difference repeats.")
@store_option
@click.option("--cluster", multiple=True, metavar="NAME", help="Only this cluster. Repeatable.")
@click.option("--workload", multiple=True, metavar="NAME", help="Only this workload. Repeatable.")
@click.option("--across", is_flag=True, help="Show the rank correlation between workloads, GPU by GPU.")
@settings(
    OptionKey("replicates", click.IntRange(0, 100_000), "Bootstrap replicates, at least 100; 0: no intervals.", 1000),
    OptionKey("seed", click.IntRange(0), "Seed of the bootstrap.  [default: 2022]"),
)
@json_option
def variability(store: str, across: bool, as_json: bool, **chosen: Any) -> None:
    """Say how much the GPUs of a store differ, per cluster and workload.

    \b
    whorl verdicts variability --store S --workload gemm-fp32

    Level "run" counts every run, level "gpu" the median of each GPU's runs. fence % is 400 IQR/median, the
    definition of the SC'22 study. docs/how-we-know/statistics.md defines every figure.
    """
    from ..dashboards.answers import judging
    from .output import ProgressBar, print_reply

    if across:
        print_reply(judging.across(store, cluster=chosen["cluster"], workload=chosen["workload"]), as_json=as_json)
        return
    with ProgressBar() as progress:
        chosen["progress"] = lambda workload, done, wanted: progress(done, wanted, f"replicates of {workload}")
        reply = judging.variability(store, **chosen)
    print_reply(reply, as_json=as_json)


@verdicts.command("fingerprint", short_help="The figures of each GPU, beside those of its peers.")
@store_option
@cluster_option
@click.option("--gpu", metavar="NAME", help="All figures of this GPU: node/slot, UUID, serial or a part.")
@place_options
@json_option
def fingerprint(**chosen: Any) -> None:
    """Compute the fingerprints of a cluster's GPUs, store them beside the earlier ones, and show them.

    \b
    whorl verdicts fingerprint --store S                   the classes, GPU by GPU
    whorl verdicts fingerprint --store S --gpu c001-4/3    every figure of one GPU

    Every figure has the 95 % interval of another sitting. docs/verdicts.md explains the figures.
    """
    from ..dashboards.answers.judging import fingerprint as computed

    respond(computed, says="computing the fingerprints", **chosen)


@verdicts.command("diff", short_help="What changed between two dates: the fleet, and single GPUs.")
@store_option
@click.option(
    "--before", type=When(), required=True, help="Compare the runs before this date (UTC), or so long ago: 30d ..."
)
@click.option("--after", type=When(), required=True, help="... with those since this date.")
@cluster_option
@json_option
def diff(store: str, as_json: bool, **chosen: Any) -> None:
    """Compare every GPU with itself: its sittings before a date with those after another one.

    \b
    whorl verdicts diff --store S --before 2026-10-01 --after 2026-11-01

    What changed for all GPUs alike, as at a driver update, is said once. Then come the GPUs that moved against it,
    with intervals, and those that are new or gone.
    """
    from ..dashboards.answers.judging import diff as compared
    from .output import ProgressBar, print_reply

    with ProgressBar() as progress:
        progress.say("comparing")
        reply = compared(store, **chosen)
    print_reply(reply, as_json=as_json)


@verdicts.command("plan", short_help="Which GPUs to probe next, in the time that there is.")
@store_option
@click.option("--budget", type=Span(), default="2h", show_default=True, help="GPU time that there is: 30min, 2h.")
@settings(
    OptionKey(
        "probe",
        click.STRING,
        "Which probe; may be repeated.  [default: gemm-fp32, stream-triad]",
        metavar="NAME",
        multiple=True,
    ),
    OptionKey("suite", SUITES, "How thoroughly.", "quick"),
    OptionKey(
        "threshold", click.FloatRange(0, 100, min_open=True), "Slower by this much matters.", 3.0, metavar="PERCENT"
    ),
)
@cluster_option
@json_option
def plan(store: str, as_json: bool, **chosen: Any) -> None:
    """Say which GPUs to probe next: suspected ones, those found faulty long ago, then where a probe tells most.

    \b
    whorl verdicts plan --store S --budget 2h

    A GPU leaves the list when it is decided, with at most 1 in 1,000 GPUs called slow by mistake. Run the commands on
    the nodes that they name.
    """
    from ..dashboards.answers import judging
    from .output import print_reply

    chosen["probe"] = chosen["probe"] or judging.PLANNED_PROBES
    print_reply(judging.plan(store, **chosen), as_json=as_json)
