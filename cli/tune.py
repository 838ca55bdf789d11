"""`whorl tune`: the setting that saves energy within a bound on time."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import DeviceError, InputError, WhorlError
from .ending import Ending, stays
from .options import Share, Span, any_store_option, json_option, model_option


@click.command("tune", short_help="The power limit, clock and batch that save energy within a bound.")
@click.argument("probe", required=False)
@any_store_option
@click.option("--command", metavar="COMMAND", help="Tune this command: {batch} is the value of the knob batch.")
@click.option("--sweep", metavar="FILE", help="Choose from a sweep that was measured already: CSV, plain or gzip.")
@click.option(
    "--stress",
    type=click.Choice(["power", "spread"]),
    help="Search the kernel of most power, or of the widest spread between GPUs.",
)
@click.option("--max-slowdown", type=Share(), help="At most this much slower than the default, as 5%.")
@click.option("--max-latency", type=Span(), help="A unit of work takes at most this, as 16ms.")
@click.option(
    "--trials", type=click.IntRange(3, 1000), help="How many settings are measured.  [default: 14; --stress: 60]"
)
@click.option(
    "--safe",
    is_flag=True,
    help="Keep near the default, and end a trial early that is over the bound. Still, about one in nine is over it.",
)
@click.option(
    "--knob",
    multiple=True,
    metavar="NAME=V,V,...",
    help="A knob of the command or the probe, and its values, the one in use today first. Repeatable.",
)
@click.option("--unit-of-work", type=float, metavar="N", help="--command: how many units of work a run does.")
@click.option("--timeout", type=Span(), help="--command: end a run after this time.  [default: 1h]")
@click.option("--resume", metavar="FILE", help="Keep a log of the trials there, and go on with one that is there.")
@click.option(
    "--warm-start",
    metavar="FILE|MODEL",
    help="A sweep or a search's log of the same work on another model, or that model. Helps up to 6 trials.",
)
@click.option("--gpu", "chosen", multiple=True, metavar="GPU", help="Only this GPU: UUID or index. Repeatable.")
@click.option(
    "--suite",
    type=click.Choice(["quick", "standard", "full"]),
    help="How thoroughly each trial is measured.  [default: standard; --stress: quick]",
)
@click.option(
    "--backend", type=click.Choice(["cuda", "simulated"]), help="Where probes and kernels run.  [default: cuda]"
)
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 4; --stress: 8]")
@model_option
@click.option("--seed", type=click.IntRange(0), help="Seed of the random trials, and of a simulated fleet.")
@click.option("--across", type=click.Choice(["batch"]), help="--sweep: choose among the batch sizes too.")
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="COLUMN=MEANING",
    help="--sweep: what a column is, as watts=power_limit_w. Repeatable.",
)
@json_option
@click.pass_context
def tune(ctx: click.Context, /, probe: str | None, store: str | None, as_json: bool, **options: Any) -> None:
    """Find the setting of least energy within a bound on time: power limit, SM clock, and knobs of your own.

    \b
    whorl tune gemm-fp16 --store S --max-slowdown 5% --trials 14
    whorl tune --command 'serve --batch {batch}' --knob batch=8,1,2,4,16,32 --max-latency 16ms
    whorl tune --sweep zeus.csv --max-slowdown 5%     from a sweep that was measured already
    whorl tune --stress power --trials 60             the kernel of most power

    The settings of the GPUs are restored afterwards, also after a crash. To set them needs root; where that is not
    possible, the answer is what an administrator types. docs/tune.md has the method.

    Exit status 0; 2 if no knob can be set; 6 if a GPU failed (the others were still measured).
    """
    from . import output
    from .answers.tuning import tune
    from .tune_report import step_text
    from .tune_stress_report import stress_step_text

    options |= {"gpu": options.pop("chosen"), "map": _pairs("map", options.pop("columns"))}
    if probe is None and ctx.get_parameter_source("store") is ParameterSource.ENVIRONMENT:
        store = None
    if options["sweep"] is not None:
        output.print_reply(tune(probe, store=store, **options), as_json=as_json)
        return
    with output.ProgressBar() as progress, Ending(), _TrialLog(options.pop("resume")) as path:
        words = step_text if options["stress"] is None else stress_step_text
        options["progress"] = lambda step: progress(step.done, step.total, words(step))
        reply = tune(probe, store=store, resume=path, tell=output.tell, **options)
    output.print_reply(reply, as_json=as_json)
    if options["stress"] is not None:
        return
    if not reply.trials:
        raise InputError("no knob can be set here, so nothing was searched: the answer is a plan for an administrator")
    if any(gpu.failure for gpu in reply.gpus):
        sys.exit(DeviceError.exit_code)


class _TrialLog:
    """Where the trials are kept while they are made; a context manager of the path.

    Where the user names no file it lies in the state folder, and is removed when all went well: until then, whoever
    interrupts the command is told how to go on with it.
    """

    def __init__(self, path: str | None) -> None:
        self._is_own = path is None
        self._path = Path(path) if path is not None else _new_log()

    def __enter__(self) -> Path:
        words = ["whorl", *sys.argv[1:], *(("--resume", str(self._path)) if self._is_own else ())]
        self._goes_on = f"what was measured stays in {self._path}; to go on, run: {shlex.join(words)}"
        stays(self._goes_on)
        return self._path

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_own or not self._path.exists():
            return
        measured = self._path.read_bytes().count(b"\n") > 1  # below the head
        if kind is None or not measured:
            self._path.unlink()
        elif issubclass(kind, WhorlError):
            from .output import tell

            tell(self._goes_on)


def _new_log() -> Path:
    """A file of this run in the state folder. InputError where there can be none."""
    from ..probes.restore import state_folder

    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"the trials cannot be kept in {folder} ({error.strerror}): name a file with --resume"
        ) from error
    return folder / f"tune-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.jsonl"


def _pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """Words of the form NAME=VALUE by name."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"--{option} {word}: write it as NAME=VALUE")
        if name in pairs:
            raise click.UsageError(f"--{option}: {name} is given twice")
        pairs[name] = value
    return pairs
