"""`whorl tune`: the setting that saves energy within a bound on time."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..errors import DeviceError, InputError
from .ending import Ending, stays
from .options import (
    SUITES,
    OptionKey,
    Share,
    Span,
    any_store_option,
    backend_option,
    json_option,
    settings,
    simulated_rows,
    typed,
)


@click.command("tune", short_help="The power limit, clock and batch that save energy within a bound.")
@click.argument("probe", required=False)
@any_store_option
@click.option("--command", metavar="COMMAND", help="Tune this command: {batch} is the value of the knob batch.")
@click.option("--sweep", metavar="FILE", help="Choose from a measured sweep: CSV, plain or gzip.")
@click.option(
    "--stress", type=click.Choice(["power", "spread"]), help="Search the kernel of most power, or of widest spread."
)
@click.option("--max-slowdown", type=Share(), help="At most this much slower than the default, as 5%.")
@click.option("--max-latency", type=Span(), help="A unit of work takes at most this, as 16ms.")
@click.option(
    "--trials", type=click.IntRange(3, 1000), help="How many settings are measured.  [default: 14; --stress: 60]"
)
@click.option(
    "--knob",
    multiple=True,
    metavar="NAME=V,V,...",
    help="A knob and its values; of a command the first is in use today. Repeatable.",
)
@click.option(
    "--suite", type=SUITES, help="How thoroughly each trial is measured.  [default: standard; --stress: quick]"
)
@backend_option(
    "cuda",
    "simulated",
    says="Where probes and kernels run.  [default: cuda]",
    simulated=simulated_rows(999 * 32, "4; --stress: 8"),
)
@settings(
    OptionKey("safe", click.BOOL, "Keep near the default, and end a trial early that is over the bound.", False),
    OptionKey("resume", click.STRING, "Keep a log of the trials there, and go on with one.", metavar="FILE"),
    OptionKey("gpu", click.STRING, "Only this GPU: UUID or index. May be repeated.", multiple=True),
    OptionKey("across", click.Choice(["batch"]), "--sweep: choose among the batch sizes too."),
    OptionKey("unit-of-work", click.FLOAT, "--command: how many units of work a run does.", metavar="N"),
    OptionKey("timeout", Span(), "--command: end a run after this time.  [default: 1h]"),
    OptionKey(
        "warm-start",
        click.STRING,
        "Of up to 6 trials: a sweep or log of the same work on another model, or that model.",
        metavar="FILE|MODEL",
    ),
)
@json_option
@click.pass_context
def tune(ctx: click.Context, /, probe: str | None, store: str | None, as_json: bool, **options: Any) -> None:
    """Find the setting of least energy within a bound on time: power limit, SM clock, and knobs of your own.

    \b
    whorl tune gemm-fp16 --store S --max-slowdown 5% --trials 14
    whorl tune --command 'serve {batch}' --knob batch=8,1,2 --max-latency 16ms
    whorl tune --sweep zeus.csv --max-slowdown 5%   # was measured already
    whorl tune --stress power --trials 60           # the kernel of most power

    The settings of the GPUs are restored afterwards, also after a crash. To set them needs root; where that is not
    possible, the answer is what an administrator types. docs/tune.md has the method.

    Exit status 0; 2 if no knob can be set; 6 if a GPU failed (the others were still measured).
    """
    from . import output
    from .answers.tuning import tune
    from .documents.tuning import step_text, stress_step_text

    if probe is None and not typed(ctx, "store"):
        store = None
    if options["sweep"] is not None:
        output.print_reply(tune(probe, store=store, **options), as_json=as_json)
        return
    words: Any = step_text if options["stress"] is None else stress_step_text
    with output.ProgressBar() as progress, Ending():
        if log := options["resume"]:
            stays(f"what was measured stays in {log}, and the same command goes on from there")
        else:
            stays("what was measured is lost for the search: with --set resume=FILE it can go on")
        reply = tune(
            probe,
            store=store,
            tell=output.tell,
            progress=lambda step: progress(step.done, step.total, words(step)),
            **options,
        )
    output.print_reply(reply, as_json=as_json)
    if options["stress"] is not None:
        return
    if not reply.trials:
        raise InputError("no knob can be set here, so nothing was searched: the answer is a plan for an administrator")
    if any(gpu.failure for gpu in reply.gpus):
        sys.exit(DeviceError.exit_code)
