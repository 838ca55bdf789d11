"""`whorl replay`: what each placement policy would have done with a trace of jobs, and how sure that is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .ending import stays
from .options import json_option

_PATH = click.Path(path_type=Path)
_TIME = click.FloatRange(min=0)
_POLICIES = "Names with commas, or all.  [default: packed,pm-first,pal; as published all]"
CLOCKS = ("rounds", "events", "own")
_ONE_SEED = "one seed is not evidence, because its result may be chance: use --seeds 20"
_NOTHING_KEPT = "{} done, nothing of them is kept: run the command again"
_GENERAL_ONLY = (  # what the published simulation has no choice of
    *("store", "cluster", "nodes", "gpus_per_node", "locality_penalty", "classes", "trace_format", "duration_unit"),
    *(
        "processors_per_gpu",
        "backfill",
        "round_s",
        "clock",
        "preemption_cost",
        "migration_cost",
        "failures",
        "on_failure",
    ),
    *("mtbf", "repair"),
)


class _Lists(click.Command):
    """A command whose `--trace` and `--profiles` take every word up to the next option, as a shell's `*` gives them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word
            elif option in ("--trace", "--profiles") and spread[-1] != option:
                spread.append(option)
            spread.append(word)
        return super().parse_args(ctx, spread)


@click.command("replay", cls=_Lists, short_help="What each placement policy would have done with a trace of jobs.")
@click.option(
    "--trace", "paths", type=_PATH, multiple=True, metavar="FILE...",
    help="Job traces: CSV, SWF, sacct, and those of published studies.",
)  # fmt: skip
@click.option(
    "--trace-format", metavar="NAME",
    help="csv, swf, sacct, openb, helios, tiresias, pai, gavel or philly.  [default: found from the content]",
)  # fmt: skip
@click.option(
    "--duration-unit",
    type=click.Choice(["auto", "seconds", "iterations"]),
    default="auto",
    show_default=True,
    help="Unit of the CSV's duration; auto: iterations for the PAL study's models.",
)
@click.option(
    "--processors-per-gpu",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="For SWF, which counts processors.",
)
@click.option("--store", metavar="DIR", envvar="WHORL_STORE", show_envvar=True, help="The store with the GPUs' scores.")
@click.option("--cluster", metavar="NAME", help="The store's cluster, if it has several.")
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="MODEL=WORKLOAD",
    help="The measured workload that stands for a model of the trace; `*` is all other models, `none` the same time "
    "on every GPU.",
)
@click.option("--policy", "policies", multiple=True, metavar="NAMES", help=_POLICIES)
@click.option("--scheduler", "schedulers", multiple=True, metavar="NAMES", help="fifo, las, srtf.  [default: fifo]")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many seeds to replay.")
@click.option("--seed", type=click.IntRange(0), help="The first seed.  [default: 0; as published 42]")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the fleet; without it, the measured fleet.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs per node.")
@click.option(
    "--locality-penalty",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="Factor on the time of a job that spans nodes.",
)
@click.option(
    "--backfill",
    type=click.Choice(["none", "easy"]),
    default="none",
    show_default=True,
    help="Whether later jobs may start before the first one that waits.",
)
@click.option(
    "--round",
    "round_s",
    type=click.FloatRange(min=0, min_open=True),
    default=360.0,
    show_default=True,
    help="Length of a round in seconds, for policies and schedulers that decide by rounds.",
)
@click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    help="When policies decide: at the edges of rounds, at every event, or each one as it was designed.  [default: "
    "rounds if any policy or scheduler needs them, else events]",
)
@click.option(
    "--preemption-cost", type=_TIME, default=0.0, show_default=True, help="Seconds that a preempted job loses."
)
@click.option("--migration-cost", type=_TIME, default=0.0, show_default=True, help="Seconds that a moved job loses.")
@click.option("--failures", type=_PATH, metavar="FILE", help="Failures of nodes: CSV with node, down_s, up_s.")
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="Draw failures at random: mean time between them, per node.",
)
@click.option(
    "--repair",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Mean time of a repair, with --mtbf.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["restart", "resume"]),
    default="restart",
    show_default=True,
    help="What a job that loses a node does.",
)
@click.option("--as-published", type=click.Choice(["pal-sc24"]), help="Simulate as the artifact of that study does.")
@click.option(
    "--profiles", type=_PATH, multiple=True, metavar="FILE...", help="The study's profiles, as files or their folder."
)
@click.option("--plot", type=_PATH, metavar="FILE", help="Write the figures into one HTML page that needs no network.")
@click.option("--workers", type=click.IntRange(1), help="Number of processes.  [default: one for each core]")
@json_option
@click.pass_context
def replay(ctx: click.Context, /, **given: Any) -> None:
    """Replay job traces on the measured fleet under several placement policies, and compare these seed by seed.

    The baselines `packed` and `drain-outliers` (packed without the nodes of far-off GPUs) are always run, and every
    policy runs beside itself without scores: it is worth what it gains beyond all three. docs/replay.md says what is
    simulated and how to read the answer.

    \b
    whorl replay --trace T.csv --store S --policy packed,pal --seeds 20
    whorl replay --as-published pal-sc24 --trace T.csv --profiles DIR --json
    """
    from ..analysis.replay.answering import answered
    from ..analysis.replay.setting import as_published, general
    from ..dashboards.printed import replay as printed
    from .output import Progress, print_json, show, tell

    published = given["as_published"] is not None
    _consistent(ctx, given, published)
    setting = as_published(given) if published else general(given)
    if given["seeds"] == 1:
        tell(f"warning: {_ONE_SEED}")
    stays(_NOTHING_KEPT.format("no replay was"))

    def note(ended: int, of: int) -> None:
        stays(_NOTHING_KEPT.format(f"{ended:,} of {of:,} replays were"))
        progress(ended, of, "replays")

    plot, workers = given["plot"], given["workers"] or os.cpu_count() or 1
    with Progress() as progress:
        of = answered(setting, seeds=given["seeds"], workers=workers, record=plot is not None, progress=note)
    for reason in of.reasons:
        tell(reason)
    if plot is not None:
        from ..dashboards.page import write_page
        from ..dashboards.replay_page import replay_page

        write_page(plot, replay_page(of.results, of.findings, conditions=of.conditions, notes=of.notes))
    if given["as_json"]:
        apart = setting.added if setting.apart else ()
        print_json(printed.document(of.results, of.gains, of.findings, of.conditions, of.notes, apart))
    else:
        show(printed.answer(of.results, of.findings, of.conditions, of.notes, setting.clocks))
    if plot is not None:
        click.echo(f"figures: {plot}", err=True)
    if of.refused:
        sys.exit(of.refused[0][1].exit_code)


def _consistent(ctx: click.Context, given: dict[str, Any], published: bool) -> None:
    """Stop at options that do not go together."""
    from ..errors import InputError

    def stated(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    if not given["paths"]:
        raise InputError("give the jobs with --trace FILE..., and the GPUs with --store DIR")
    if given["plot"] is not None:
        from ..dashboards.page import refuse_unwritable

        refuse_unwritable(given["plot"], "--plot")
    options = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    if published:
        off = [options[name] for name in _GENERAL_ONLY if stated(name)]
        if off:
            raise InputError(f"--as-published fixes what {off[0]} would change; leave out one of them")
        if not given["profiles"]:
            raise InputError("--as-published needs the study's profiles: --profiles FILE... (or their folder)")
        return
    if given["profiles"]:
        raise InputError("--profiles works only with --as-published pal-sc24; the scores of a fleet come from --store")
    if given["cluster"] and not given["store"]:
        raise InputError("--cluster names a cluster of a store: give the store with --store")
    if (given["nodes"] is None) != (given["gpus_per_node"] is None):
        raise InputError("give --nodes and --gpus-per-node together: they are the shape of the fleet")
    if given["failures"] and given["mtbf"]:
        raise InputError("--failures reads failures and --mtbf draws them: use only one")
