"""`whorl probe`: work of known size on every GPU, with its telemetry, its repeats and a check of its result."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from .ending import Ending, stays
from .options import (
    FAULT_ROW,
    OptionKey,
    Span,
    backend_option,
    json_option,
    settings,
    simulated_rows,
    store_option,
)
from .probe_list import list_probes
from .probe_prolog import prolog

if TYPE_CHECKING:
    from ..probes.campaign import Report

_SUITES = ("quick", "standard", "full")
_SIMULATED = (
    *simulated_rows(999 * 32),
    OptionKey("faults", click.IntRange(0), "How many GPUs are faulty.  [default: 0]"),
    FAULT_ROW,
    OptionKey("population", click.STRING, "How healthy GPUs differ; see `whorl demo sim --describe`."),
    OptionKey("interval", Span(), "Time between stored readings.  [default: 1s]"),
    OptionKey("fleet", click.STRING, "The file of a cluster, of which one node is measured.", metavar="FILE"),
    OptionKey("node", click.STRING, "With fleet: which node.  [default: $SLURMD_NODENAME]", metavar="NAME"),
)
"""What a simulated fleet is like."""


@click.group("probe", short_help="Measure GPUs with work of known size: list the probes, run them.")
def probe() -> None:
    """Measure GPUs by work of known size, under stated conditions, with telemetry and a check of every result.

    docs/campaigns.md explains the method, docs/how-we-know/kernels.md what runs.
    """


probe.add_command(list_probes)
probe.add_command(prolog)


@probe.command("run", short_help="Run probes on the GPUs here or on a simulated fleet.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@store_option
@click.option(
    "--suite", type=click.Choice(_SUITES), help="How thoroughly to measure; without NAMEs, also which probes."
)
@backend_option(
    "cuda",
    "simulated",
    "auto",
    default="cuda",
    says="Where the probes run; auto: on the GPUs here, else simulated.",
    simulated=_SIMULATED,
    auto=_SIMULATED,
)
@click.option(
    "--gpu",
    "chosen",
    multiple=True,
    metavar="GPU",
    help="Only this GPU: node/slot, UUID, a part, or index. Repeatable.",
)
@click.option(
    "--neighbours",
    type=click.Choice(["idle", "busy"]),
    default="idle",
    show_default=True,
    help="One GPU of a node after another, or all of them at once.",
)
@click.option("--time-limit", type=Span(), help="Measure each probe for at most this time.  [default: by suite]")
@click.option("--lock-clock", type=float, metavar="MHZ", help="Lock the SM clock, and unlock it afterwards.")
@click.option("--power-limit", type=float, metavar="W", help="Set the power limit, and restore it afterwards.")
@click.option("--campaign", metavar="NAME", help="Name of the campaign; runs that it has stored are not repeated.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: as Slurm calls it, else local]")
@settings(
    OptionKey("period", Span(), "power-square, soak: time from one load to the next.  [default: 0.2s]"),
    OptionKey(
        "duty",
        click.FloatRange(0, 1, min_open=True, max_open=True),
        "power-square, soak: share of that time under load.  [default: 0.5]",
    ),
    OptionKey("input", click.STRING, "Distribution of the input data, for kernels with a choice.", metavar="NAME"),
    OptionKey("input-seed", click.IntRange(0, 2**32 - 1), "Seed of the input data.", 1),
    OptionKey(
        "precision",
        click.FloatRange(0, 100, min_open=True),
        "Stop when the median's 95 % interval is at most +/- this.  [default: by suite]",
        metavar="PERCENT",
    ),
    OptionKey("repeats", click.IntRange(3, 10_000), "Measure at least this many repeats.  [default: by suite]"),
    OptionKey("until-wrong", click.BOOL, "soak: end at the first wrong result.", False),
    OptionKey(
        "knobs", click.STRING, "stress: its knobs, as `whorl tune --stress --json` printed them.", metavar="FILE"
    ),
    OptionKey("start-temperature", click.FLOAT, "Cool down to this before each probe.", metavar="DEGC"),
    OptionKey("exclusive", click.BOOL, "Refuse a GPU that another process uses.", False),
    OptionKey("cool-down", Span(), "Cool down for at most this time.", "120s"),
    says="What a run is like",
)
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

    given["gpu"] = given.pop("chosen")
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
