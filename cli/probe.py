"""`whorl probe`: work of known size on every GPU, with its telemetry, its repeats and a check of its result."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from .ending import Ending, stays
from .options import Span, fault_option, json_option, model_option, seed_option, store_option
from .probe_list import list_probes
from .probe_prolog import prolog

if TYPE_CHECKING:
    from ..probes.campaign import Report

_SUITES = ("quick", "standard", "full")


@click.group("probe", short_help="Measure GPUs with work of known size: list the probes, run them.")
def probe() -> None:
    """Measure GPUs by work of known size, under stated conditions, with telemetry and a check of every result.

    docs/campaigns.md explains the method, docs/kernels.md what runs.
    """


probe.add_command(list_probes)
probe.add_command(prolog)


@probe.command("run", short_help="Run probes on the GPUs here or on a simulated fleet.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@store_option
@click.option(
    "--suite", type=click.Choice(_SUITES), help="How thoroughly to measure; without NAMEs, also which probes."
)
@click.option(
    "--backend",
    type=click.Choice(["cuda", "simulated", "auto"]),
    default="cuda",
    show_default=True,
    help="Where the probes run; auto: on the GPUs here, else simulated.",
)
@click.option(
    "--gpu",
    "chosen",
    multiple=True,
    metavar="GPU",
    help="Only this GPU: node/slot, UUID, a part, or index; not with --gpus. Repeatable.",
)
@click.option(
    "--neighbours",
    type=click.Choice(["idle", "busy"]),
    default="idle",
    show_default=True,
    help="One GPU of a node after another, or all of them at once.",
)
@click.option("--period", type=Span(), help="power-square, soak: time from one load to the next.  [default: 0.2s]")
@click.option(
    "--duty",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="power-square, soak: share of that time under load.  [default: 0.5]",
)
@click.option(
    "--input", "distribution", metavar="NAME", help="Distribution of the input data, for kernels with a choice."
)
@click.option(
    "--input-seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Seed of the input data."
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Stop when the median's 95 % interval is at most +/- this.  [default: by suite]",
)
@click.option(
    "--repeats", type=click.IntRange(3, 10_000), help="Measure at least this many repeats.  [default: by suite]"
)
@click.option("--time-limit", type=Span(), help="Measure each probe for at most this time.  [default: by suite]")
@click.option("--until-wrong", is_flag=True, help="soak: end at the first wrong result.")
@click.option("--knobs", metavar="FILE", help="stress: its knobs, as `whorl tune --stress --json` printed them.")
@click.option("--start-temperature", type=float, metavar="DEGC", help="Cool down to this before each probe.")
@click.option("--cool-down", type=Span(), default="120s", show_default=True, help="Cool down for at most this time.")
@click.option("--lock-clock", type=float, metavar="MHZ", help="Lock the SM clock, and unlock it afterwards.")
@click.option("--power-limit", type=float, metavar="W", help="Set the power limit, and restore it afterwards.")
@click.option("--exclusive", is_flag=True, help="Refuse a GPU that another process uses.")
@click.option("--campaign", metavar="NAME", help="Name of the campaign; runs that it has stored are not repeated.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: as Slurm calls it, else local]")
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 4]")
@model_option
@seed_option
@click.option("--faults", type=click.IntRange(0), help="Simulated: how many GPUs are faulty.  [default: 0]")
@fault_option
@click.option(
    "--population",
    metavar="NAME",
    help="Simulated: how healthy GPUs differ; see `whorl demo sim --describe`.  [default: normal]",
)
@click.option("--interval", type=Span(), help="Simulated: time between stored readings.  [default: 1s]")
@click.option("--fleet", metavar="FILE", help="Simulated: the cluster of which one node is measured.")
@click.option("--node", metavar="NAME", help="With --fleet: which node.  [default: $SLURMD_NODENAME]")
@json_option
def run(names: tuple[str, ...], store: str, backend: str, as_json: bool, **given: Any) -> None:
    """Run the probes NAMEd, or those of a suite, on every GPU of this node or of a simulated fleet.

    Runs are stored while others are measured. Only --lock-clock and --power-limit change settings of a GPU; these are
    restored afterwards, also after a crash.

    Exit status 0; 1 if a result was wrong; 6 if a GPU failed (the others were still measured).
    """
    from . import output
    from .answers.measuring import measure

    campaign = given["campaign"]

    def begins(name: str) -> None:
        again = ["whorl", *sys.argv[1:], *(() if campaign else ("--campaign", name))]
        stays(f"what was stored stays; to go on with campaign {name}, run: {shlex.join(again)}")
        if sys.stderr.isatty():
            output.tell(f"campaign {name}")

    given |= {"gpu": given.pop("chosen"), "input": given.pop("distribution"), "fault": given.pop("kinds")}
    with output.ProgressBar() as progress, Ending():
        reply = measure(store, *names, backend=backend, progress=progress, tell=output.tell, begins=begins, **given)
    output.print_reply(reply, as_json=as_json)
    leave(reply.report)


def leave(report: Report) -> None:
    """End with the status of a campaign of which a GPU failed or a result was wrong."""
    if report.failures:
        sys.exit(6)
    if report.wrong:
        sys.exit(1)
