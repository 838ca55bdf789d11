"""`whorl energy`: joules, grams and money with intervals, whether the books balance, what the place of jobs cost, and
what they would take elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    OptionKey,
    Share,
    Span,
    When,
    any_store_option,
    cluster_option,
    csv_option,
    json_option,
    options,
    place_options,
    refuse_before,
    require_store,
    respond,
    settings,
    store_option,
)

if TYPE_CHECKING:
    from ..dashboards.answers.reply import Reply

shared = options(
    cluster_option,
    click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago."),
    click.option("--until", type=When(), help="Only up to this time.  [default: the last reading]"),
    click.option(
        "--settings",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Carbon, prices and more.  [default: energy.toml in the store's folder]",
    ),
)
"""The options that `whorl energy` and its sub-verbs share, beside `--store`."""


def print_answer(answer: Callable[..., Reply[Any]], *arguments: Any, **chosen: Any) -> Reply[Any]:
    """Print what a function of `dashboards.answers.energy` replies to the options of a verb."""
    if chosen["since"] and chosen["until"] and chosen["until"] <= chosen["since"]:
        raise click.UsageError("--until must be later than --since")
    return respond(answer, *arguments, **chosen)


_BY = ("job", "user", "account", "gpu", "node", "day")


@click.group("energy", invoke_without_command=True, short_help="Joules, grams and money, by job, user, GPU and more.")
@any_store_option
@shared
@click.option("--by", type=click.Choice(_BY), default="job", show_default=True, help="What the rows are of.")
@click.option("--job", metavar="JOBID", help="Only this job, with everything that is known of it.")
@place_options
@json_option
@csv_option
@click.pass_context
def energy(ctx: click.Context, /, store: str | None, by: str, **chosen: Any) -> None:
    """Say what energy the GPUs used, and who used it. Every figure has its 95 % interval.

    \b
    whorl energy --store S --by user --since 30d
    whorl energy --store S --job 4242        one job: idle share, CO2e, what-if
    whorl energy reconcile --store S         whether the books balance
    whorl energy excess --store S            what slow and hungry GPUs cost
    whorl energy quote --store S --job 4242  other GPUs, power caps and hours
    whorl energy calibrate --store S         what power sensors are wrong by

    What no job used has rows of its own: idle (the GPU did nothing), and unattributed (nothing shows that it
    was idle, and no known job had it). All rows add up to what was metered. Jobs come from the table `jobs`
    (docs/jobs.md).

    Carbon and cost need a file of settings. docs/energy.md explains everything.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx)
        return
    from ..dashboards.answers.energy import energy as answer

    print_answer(answer, by, store=require_store(store), **chosen)


@energy.command("reconcile", short_help="Whether the books balance, and what is wrong with readings and jobs.")
@store_option
@shared
@place_options
@json_option
def reconcile(**chosen: Any) -> None:
    """Hold what was metered against what was given to jobs, to nobody (idle) and to somebody unknown, GPU by GPU.

    \b
    whorl energy reconcile --store S --since 30d

    Below stands what is wrong, one sentence each: gaps, stuck sensors, counters that went back, jobs that end before
    they begin, that overlap, or that name an unknown GPU.

    Exit status 1 if the books do not balance.
    """
    from ..dashboards.answers.energy import energy_reconcile

    if not print_answer(energy_reconcile, **chosen).result.balances:
        sys.exit(1)


@energy.command("excess", short_help="What slow and hungry GPUs cost.")
@store_option
@shared
@click.option(
    "--by", type=click.Choice(("gpu", "node", "job")), default="gpu", show_default=True, help="What the rows are of."
)
@place_options
@json_option
@csv_option
def excess(by: str, **chosen: Any) -> None:
    """Say what the place of jobs cost: energy and time beyond what the median GPU of the model would have needed.

    GPUs are compared by their fingerprints, so measure the fleet first: `whorl campaign`.

    \b
    whorl energy excess --store S --since 30d
    """
    from ..dashboards.answers.energy import energy_excess

    print_answer(energy_excess, by, **chosen)


@energy.command("quote", short_help="A job on other GPUs, under power caps, at another hour.")
@store_option
@shared
@click.option("--job", metavar="JOBID", help="A job that has run.")
@click.option("--workload", metavar="NAME", help="Instead: a workload, before any job has run.")
@click.option("--gpus", metavar="N|NAMES", help="Of --workload: how many GPUs, or which: n1/0,n1/1.  [default: 1]")
@click.option("--cap", type=Share(), help="Only this power cap, as 60% of the limit.  [default: 90% to 50%]")
@settings(
    OptionKey("time", Span(), "Of --workload: as much work as takes this at the default limit.  [default: 1h]"),
    OptionKey("model", click.STRING, "Of --workload: on this model of GPU, where it ran on several.", metavar="NAME"),
    OptionKey("deadline", Span(), "It must end within this time from now.", "24h"),
)
@json_option
@csv_option
def quote(job: str | None, gpus: str | None, **chosen: Any) -> None:
    """Say what a job would have taken elsewhere: time, joules, grams and money, with intervals.

    \b
    usual GPU  median GPU of its model    needs `whorl campaign`
    model      each other model           needs the same workloads on both
    cap        lower power limits         needs `whorl tune` of its workload
    start      greenest before deadline   needs hours of a grid (docs/energy.md)

    \b
    whorl energy quote --store S --workload gemm-fp16 --gpus 8 --cap 60%

    says what a workload takes before it has run, from its runs at the default limit and under caps.

    An option without such data is n/a, with the reason. "best": no other option is as good in time, energy and grams.
    """
    from ..dashboards.answers.energy import energy_quote

    if gpus is not None:
        chosen["gpus"] = int(gpus) if gpus.removeprefix("-").isdecimal() else gpus.split(",")
    print_answer(energy_quote, job, **chosen)


@energy.command("calibrate", short_help="What power sensors are wrong by, from the power of nodes.")
@store_option
@shared
@click.option("--dry-run", is_flag=True, help="Store nothing.")
@json_option
@csv_option
def calibrate(**chosen: Any) -> None:
    """Learn gain and offset of each board from the power of its node, store them, and show them with intervals.

    \b
    whorl energy calibrate --store S --since 7d

    It needs the power of nodes (`whorl import`, `whorl collect`) beside telemetry of all their GPUs. From then on,
    energy is that of calibrated boards, with narrower intervals. Other boards have the error that measured boards of
    their model, or of other models, have. docs/energy.md explains it.
    """
    from ..dashboards.answers.energy import energy_calibrate

    print_answer(energy_calibrate, **chosen)
