"""`whorl replay`: what each policy would have done with a trace of jobs, and how sure that is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .ending import stays
from .options import json_option, store_choice, typed

_PATH = click.Path(path_type=Path)
_TIME = click.FloatRange(min=0)
_POWER = click.FloatRange(min=0)
_POLICIES = (
    "Names with commas: placements (all is all of these), whole schedulers, or module:Class of your own; help lists "
    "them.  [default: packed,pm-first,pal; as published all]"
)
CLOCKS = ("rounds", "events", "own")
_ONE_SEED = "one seed is not evidence, because its result may be chance: use --seeds 20"
_NOTHING_KEPT = "{} done, nothing of them is kept: run the command again"


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


def _assignments(
    option: str, example: str
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, str]]:
    """Reads a repeatable option of NAME=VALUE. What it makes raises InputError where one is none, or named twice."""

    def read(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        from ..errors import InputError

        values: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.rpartition("=")
            if not (name and equals and value):
                raise InputError(
                    f"{option} {text!r} is not {example.split()[0]}; an example is {option} {example.split()[1]}"
                )
            if name in values:
                raise InputError(f"{option} is given twice for {name}; give it once")
            values[name] = value
        return values

    return read


@click.command("replay", cls=_Lists, short_help="What each policy would have done with a trace of jobs.")
@click.option(
    "--trace", type=_PATH, multiple=True, metavar="FILE...",
    help="Job traces: CSV, SWF, sacct, logs, and those of published studies.",
)  # fmt: skip
@click.option(
    "--trace-format", metavar="NAME",
    help="csv, swf, sacct, openb, helios, tiresias, pai, shockwave, gavel, philly, pollux or mirage.  "
    "[default: found from the content]",
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
@store_choice("The store with the GPUs' scores.")
@click.option("--cluster", metavar="NAME", help="The store's cluster, if it has several.")
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="MODEL=WORKLOAD",
    callback=_assignments("--class", "MODEL=WORKLOAD resnet50=resnet"),
    help="The measured workload that stands for a model of the trace; `*` is all other models, `none` the same time "
    "on every GPU.",
)
@click.option("--policy", multiple=True, metavar="NAMES", help=_POLICIES)
@click.option(
    "--scheduler", multiple=True, metavar="NAMES", help="Of placements: fifo, las, srtf, or all.  [default: fifo]"
)
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
    type=click.FloatRange(min=0, min_open=True),
    help="Length of a round in seconds, for policies and schedulers that decide by rounds.  [default: 360; beside "
    "shockwave 120]",
)
@click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    help="When policies decide: at the edges of rounds, at every event, or each one as it was designed.  [default: "
    "rounds if any policy or scheduler needs them, else events]",
)
@click.option(
    "--preemption-cost",
    type=_TIME,
    help="Seconds that a preempted job loses.  [default: 0; beside shockwave every start costs 20]",
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
@click.option(
    "--regimes", type=_PATH, metavar="FILE", help="Batch sizes of the jobs over time: JSON, as Shockwave's traces need."
)
@click.option("--pairs", type=_PATH, metavar="FILE", help="Speeds of jobs that share a GPU: CSV.")
@click.option("--curves", type=_PATH, metavar="FILE", help="Step times by placement and batch size: CSV.")
@click.option(
    "--knowledge",
    type=click.Choice(["exact", "estimate", "none"]),
    default="exact",
    show_default=True,
    help="What policies know of the work of jobs.",
)
@click.option(
    "--knowledge-error", type=_TIME, default=0.3, show_default=True, help="Of estimates: they are off by exp(N(0, s))."
)
@click.option("--gpu-power", type=_POWER, metavar="W", help="Of a GPU with a job, where the store has none.")
@click.option("--gpu-idle", type=_POWER, metavar="W", help="Of a GPU without a job.")
@click.option("--node-power", type=_POWER, metavar="W", help="Of a node that is awake, without its GPUs.")
@click.option("--asleep-power", type=_POWER, metavar="W", help="Of a node that sleeps; lets nodes without jobs sleep.")
@click.option("--sleep-after", type=_TIME, metavar="S", help="Lets nodes sleep after this time without jobs.")
@click.option("--wake", type=_TIME, default=0.0, show_default=True, metavar="S", help="Until a node is awake again.")
@click.option(
    "--deadline-slack",
    type=click.FloatRange(min=1),
    metavar="X",
    help="Jobs without a deadline are to end within X times their time alone.  [default for eaco: 1.25]",
)
@click.option(
    "--pair-at-least",
    type=click.FloatRange(min=1),
    default=1.1,
    show_default=True,
    help="eaco: least work of jobs that share a GPU, against one alone.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="eaco: weight of energy against time; 0 shares nothing.",
)
@click.option(
    "--burst",
    multiple=True,
    metavar="MODEL=FILE",
    callback=_assignments("--burst", "MODEL=FILE vgg16=plan.json"),
    help="Jobs of a model train by this plan of `whorl advise burst --json`.",
)
@click.option(
    "--backward",
    type=click.FloatRange(0, 1, min_open=True),
    default=2 / 3,
    show_default="0.67",
    help="Share of a training step that the backward pass takes.",
)
@click.option(
    "--foreground",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="burst, spb: share of its speed that a job keeps beside those in its idle time.",
)
@click.option("--as-published", type=click.Choice(["pal-sc24"]), help="Simulate as the artifact of that study does.")
@click.option(
    "--profiles", type=_PATH, multiple=True, metavar="FILE...", help="The study's profiles, as files or their folder."
)
@click.option("--plot", type=_PATH, metavar="FILE", help="Write the figures into one HTML page that needs no network.")
@click.option("--workers", type=click.IntRange(1), help="Number of processes.  [default: one for each core]")
@json_option
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> None:
    """Replay job traces on the measured fleet under several policies, and compare these seed by seed.

    The baselines `packed` and `drain-outliers` (packed without the nodes of far-off GPUs) are always run, and every
    policy runs beside itself without scores: it is worth what it gains beyond all three. docs/replay.md says what is
    simulated and how to read the answer.

    \b
    whorl replay --trace T.csv --store S --policy packed,pal --seeds 20
    whorl replay --trace T.csv --regimes R.json --store S --policy shockwave,las
    whorl replay --policy help
    whorl replay --as-published pal-sc24 --trace T.csv --profiles DIR --json
    """
    from ..dashboards.answers.replay import replay as replayed
    from .output import ProgressBar, print_reply, show, tell

    if "help" in options["policy"]:
        from ..dashboards.documents.replay import policy_table

        show([policy_table()])
        return
    as_json, plot = options.pop("as_json"), options["plot"]
    if options["as_published"] and not typed(ctx, "store"):
        options["store"] = None

    def progressed(ended: int, replays: int) -> None:
        stays(_NOTHING_KEPT.format(f"{ended:,} of {replays:,} replays were" if ended else "no replay was"))
        progress(ended, replays, "replays")

    with ProgressBar() as progress:
        reply = replayed(options.pop("trace"), options.pop("store"), **options, progress=progressed)
    if options["seeds"] == 1:
        tell(f"warning: {_ONE_SEED}")
    for reason in reply.reasons:
        tell(reason)
    print_reply(reply, as_json=as_json)
    if plot is not None:
        click.echo(f"figures: {plot}", err=True)
    if reply.refused:
        sys.exit(reply.refused[0][1].exit_code)
