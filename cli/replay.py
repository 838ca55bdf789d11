"""`whorl replay`: what each policy would have done with a trace of jobs, and how sure that is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from .ending import stays
from .options import OptionKey, json_option, settings, store_choice, typed

_PATH = click.Path(path_type=Path)
_TIME = click.FloatRange(min=0)
_POWER = click.FloatRange(min=0)
_POLICIES = (
    "Names with commas: placements (all is all of these), whole schedulers, or module:Class of your own; help lists "
    "them.  [default: packed,pm-first,pal; as published all]"
)
CLOCKS = ("rounds", "events", "own")
_NAME, _FILE = click.STRING, click.STRING
WORLD = (
    OptionKey("locality-penalty", click.FloatRange(min=1), "Factor on the time of a job that spans nodes.", 1.0),
    OptionKey("backfill", click.Choice(["none", "easy"]), "Whether later jobs may start before the first.", "none"),
    OptionKey(
        "round",
        click.FloatRange(min=0, min_open=True),
        "Length of a round, s, where a policy decides by rounds.  [default: 360; beside shockwave 120]",
    ),
    OptionKey(
        "clock",
        click.Choice(CLOCKS),
        "When policies decide: at the edges of rounds, at every event, or each as it was designed.  [default: rounds "
        "if any policy needs them, else events]",
    ),
    OptionKey(
        "preemption-cost", _TIME, "Seconds that a preempted job loses.  [default: 0; beside shockwave a start costs 20]"
    ),
    OptionKey("migration-cost", _TIME, "Seconds that a moved job loses.", 0.0),
    OptionKey("failures", _FILE, "Failures of nodes: CSV with node, down_s, up_s.", metavar="FILE"),
    OptionKey(
        "mtbf",
        click.FloatRange(min=0, min_open=True),
        "Draw failures at random: mean time between them, per node.",
        metavar="HOURS",
    ),
    OptionKey(
        "repair", click.FloatRange(min=0, min_open=True), "Mean time of a repair, with mtbf.", 24.0, metavar="HOURS"
    ),
    OptionKey("on-failure", click.Choice(["restart", "resume"]), "What a job that loses a node does.", "restart"),
    OptionKey("curves", _FILE, "Step times by placement and batch size: CSV.", metavar="FILE"),
    OptionKey(
        "knowledge", click.Choice(["exact", "estimate", "none"]), "What policies know of the work of jobs.", "exact"
    ),
    OptionKey("knowledge-error", _TIME, "Of estimates: they are off by exp(N(0, s)).", 0.3),
    OptionKey("gpu-power", _POWER, "Of a GPU with a job, where the store has none.", metavar="W"),
    OptionKey("gpu-idle", _POWER, "Of a GPU without a job.", metavar="W"),
    OptionKey("asleep-power", _POWER, "Of a node that sleeps; lets nodes without jobs sleep.", metavar="W"),
    OptionKey("sleep-after", _TIME, "Lets nodes sleep after this time without jobs.", metavar="S"),
    OptionKey("wake", _TIME, "Until a node is awake again.", 0.0, metavar="S"),
    OptionKey("pair-at-least", click.FloatRange(min=1), "eaco: least work of jobs that share.", 1.1),
    OptionKey("alpha", click.FloatRange(0, 1), "eaco: weight of energy against time; 0 shares nothing.", 1.0),
    OptionKey(
        "burst",
        _NAME,
        "Jobs of a model train by this plan of `whorl advise burst --json`. May be repeated.",
        metavar="MODEL=FILE",
        multiple=True,
    ),
    OptionKey("backward", click.FloatRange(0, 1, min_open=True), "Share of a step that is backward.", 2 / 3),
    OptionKey(
        "foreground",
        click.FloatRange(0, 1, min_open=True),
        "burst, spb: share of its speed that a job keeps beside others.",
        1.0,
    ),
    OptionKey(
        "profiles", _FILE, "The study's profiles: files, or their folder. Repeatable.", metavar="FILE", multiple=True
    ),
    OptionKey("seed", click.IntRange(0), "The first seed.  [default: 0; as published 42]"),
    OptionKey(
        "trace-format",
        _NAME,
        "csv, swf, sacct, openb, helios, tiresias, pai, shockwave, gavel, philly, pollux or mirage.  [default: by "
        "content]",
        metavar="NAME",
    ),
    OptionKey(
        "duration-unit",
        click.Choice(["auto", "seconds", "iterations"]),
        "Unit of the CSV's duration; auto: iterations for the PAL study's models.",
        "auto",
    ),
    OptionKey("processors-per-gpu", click.IntRange(1), "For SWF, which counts processors.", 1),
)
"""The keys of --world: what is true, and what policies know of it."""
_ONE_SEED = "one seed is not evidence, because its result may be chance: use --seeds 20"
_NOTHING_KEPT = "{} done, nothing of them is kept: run the command again"


class _Lists(click.Command):
    """A command whose `--trace` takes every word up to the next option, as a shell's `*` gives them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word
            elif option == "--trace" and spread[-1] != option:
                spread.append(option)
            spread.append(word)
        return super().parse_args(ctx, spread)


def _assignments(texts: Iterable[str], option: str, form: str, example: str) -> dict[str, str]:
    """What a repeatable option of NAME=VALUE says. Raises InputError where one is no such pair, or named twice."""
    from ..errors import InputError

    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise InputError(f"{option}{text!r} is not {form}; an example is {option}{example}")
        if name in values:
            raise InputError(f"{option.strip(' =')} is given twice for {name}; give it once")
        values[name] = value
    return values


@click.command("replay", cls=_Lists, short_help="What each policy would have done with a trace of jobs.")
@click.option(
    "--trace", type=_PATH, multiple=True, metavar="FILE...",
    help="Job traces: CSV, SWF, sacct, logs, and those of published studies.",
)  # fmt: skip
@store_choice("The store with the GPUs' scores.")
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="MODEL=WORKLOAD",
    help="The workload that stands for a model of the trace; `*`: all others, `none`: equal GPUs.",
)
@click.option("--policy", multiple=True, metavar="NAMES", help=_POLICIES)
@click.option(
    "--scheduler", multiple=True, metavar="NAMES", help="Of placements: fifo, las, srtf, or all.  [default: fifo]"
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many seeds to replay.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the fleet; without it, the measured fleet.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs per node.")
@click.option(
    "--regimes", type=_PATH, metavar="FILE", help="Batch sizes of the jobs over time: JSON, as Shockwave's traces need."
)
@click.option("--pairs", type=_PATH, metavar="FILE", help="Speeds of jobs that share a GPU: CSV.")
@click.option("--node-power", type=_POWER, metavar="W", help="Of a node that is awake, without its GPUs.")
@click.option(
    "--deadline-slack",
    type=click.FloatRange(min=1),
    metavar="X",
    help="Jobs without a deadline are to end within X times their time alone.  [default for eaco: 1.25]",
)
@click.option("--as-published", type=click.Choice(["pal-sc24"]), help="Simulate as the artifact of that study does.")
@settings(*WORLD, name="--world", says="What else is true of the replayed world")
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
    whorl replay ... --world locality-penalty=1.7 --world backfill=easy
    whorl replay --policy help       the policies; --world help what may be set
    whorl replay --as-published pal-sc24 --trace T.csv --world profiles=DIR
    """
    from ..dashboards.answers.replay import replay as replayed
    from .output import ProgressBar, print_reply, show, tell

    if "help" in options["policy"]:
        from ..dashboards.documents.replay import policy_table

        show([policy_table()])
        return
    as_json, plot = options.pop("as_json"), options["plot"]
    options["classes"] = _assignments(options["classes"], "--class ", "MODEL=WORKLOAD", "resnet50=resnet")
    options["burst"] = _assignments(options["burst"], "burst=", "MODEL=FILE", "vgg16=plan.json")
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
