"""`whorl collect`: read this node's GPUs into a store until told to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..dashboards.words import many
from ..errors import WhorlError
from .options import (
    DCGM_ROWS,
    EXPORTER_ROWS,
    OptionKey,
    Span,
    any_store_option,
    backend_option,
    json_option,
    settings,
    simulated_rows,
    typed,
)

if TYPE_CHECKING:
    from ..collectors.collect import Collected, Collecting, CollectOptions
    from ..collectors.job_process import JobCommand


@click.command(
    "collect",
    short_help="Read this node's GPUs into a store until you stop it.",
    context_settings={"allow_interspersed_args": False},  # what follows the command is the command's
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND ...]")
@any_store_option
@click.option("--for-job", is_flag=True, help="Only the GPUs of this batch job, into a folder of its own.")
@click.option("--interval", type=Span(), default="1s", show_default=True, help="Time between readings.")
@click.option("--duration", type=Span(), help="Stop after this time; without it, at Ctrl-C or SIGTERM.")
@backend_option(
    default="nvml",
    says="What is read: nvml, dcgm, prometheus or simulated.",
    dcgm=DCGM_ROWS,
    prometheus=EXPORTER_ROWS,
    simulated=simulated_rows(1024, "8", "H100"),
)
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: as Slurm calls it, else local]")
@click.option("--node", metavar="NAME", help="Name of this node.  [default: its host name]")
@settings(
    OptionKey("slow-interval", Span(), "Time between readings of slowly changing metrics.", "10s"),
    OptionKey(
        "durable",
        Span(tick=0.0),
        "'tick', or the longest time until a reading is safe on the disk.  [default: by file system]",
    ),
    OptionKey("hung", Span(), "A call that takes longer counts as hanging.  [default: 5s, or ten intervals]"),
    OptionKey("node-power", click.BOOL, "Read the power of the node too (RAPL, ACPI, IPMI).", True),
)
@json_option
@click.pass_context
def collect(
    ctx: click.Context, /, command: tuple[str, ...], store: str | None, for_job: bool, as_json: bool, **options: Any
) -> None:
    """Read every GPU of this node into a store until you stop it.

    \b
    whorl collect --store S
    srun whorl collect --for-job -- COMMAND     only this job's GPUs, meanwhile

    It asks the driver itself (nvml), the engine of NVIDIA DCGM (dcgm), or exporters of metrics, here and on other
    nodes (prometheus).

    Ctrl-C, SIGTERM and SIGHUP end it: what was read is flushed and sealed, and the exit status is 0. Reading changes
    no setting of a GPU. If a probe crashed and left settings changed, they are restored first. On a machine without
    GPUs, --backend simulated reads a simulated node.

    With --for-job the store is whorl-job-ID in the folder from which the job was submitted, unless --store is given;
    at the end a summary of each GPU is printed. COMMAND gets the signals, and its exit status is that of whorl.
    """
    from ..collectors.collect import CollectOptions
    from .output import tell

    if for_job and not typed(ctx, "store"):
        store = None  # a site's
    if command and not for_job:
        raise click.UsageError(f"{command[0]!r} is too much: a command can run with --for-job")
    if store is None and not for_job:
        raise click.UsageError("Missing option '--store' (env var: 'WHORL_STORE').")
    collecting_options = CollectOptions(for_job=for_job, **options)
    reading = partial(_read, store, collecting_options)
    if command:
        sys.exit(_beside(command, reading, as_json=as_json))
    if for_job and os.environ.get("SLURM_STEP_ID", "").isdecimal() and not os.environ.get("SLURM_OVERLAP"):
        tell("if this step stands beside your program, it needs srun --overlap: else your own srun waits for it")
    collecting = _collect(reading, as_json=as_json)
    if collecting is not None:
        collecting.leave(0)


def _read(store: str | None, options: CollectOptions, **hooks: Any) -> Collected:
    """Collect; settings that a crashed probe left are put back first."""
    from ..collectors.collect import CollectHooks, collect

    def restore() -> Sequence[str]:
        from ..probes.settings import restore_left_over

        return restore_left_over()

    return collect(store, options, CollectHooks(restore=restore, **hooks))


def _beside(words: Sequence[str], reading: Callable[..., Collected], *, as_json: bool) -> int:
    """Collect while a command runs, which goes on whatever becomes of the collector; its exit status."""
    from ..collectors.job_process import NOT_EXECUTABLE, NOT_FOUND, JobCommand
    from .output import tell

    try:
        with JobCommand(words) as command:
            try:
                collecting = _collect(partial(reading, ended=command.ended), as_json=as_json, command=command)
            except WhorlError as error:
                tell(f"{error}; the command goes on without being measured")
                collecting = None
            status = command.wait()
            if collecting is not None:
                collecting.leave(status)
            return status
    except OSError as error:
        tell(f"cannot run {words[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _collect(
    reading: Callable[..., Collected], *, as_json: bool, command: JobCommand | None = None
) -> Collecting | None:
    """Collect, and say how it went; the collector, which has ended, or None where it never began."""
    from ..collectors.collect import settle
    from .output import ProgressBar, print_json, tell

    settle()
    progress, ready = ProgressBar(every_s=1.0), None

    def begun(collecting: Collecting) -> None:
        nonlocal ready
        ready = collecting
        _say_begun(collecting)

    def look() -> None:
        assert ready is not None
        progress.say(_status(ready))

    with progress:
        try:
            # What nobody sees costs 4 % of a sweep at 10 Hz.
            ended = reading(tell=tell, begun=begun, look=look if progress.live else None, done=_say_job)
        except WhorlError as error:
            if ready is None or not ready.sampler.stuck_in:
                raise
            if command is None:
                tell(str(error))
                ready.leave(error.exit_code)
            raise
    if as_json:
        print_json(ended.document())
        sys.stdout.flush()
    if ended.collecting is None:
        tell("nothing was read" if ended.signal is None else "stopped before anything was read")
        return None
    _say_ended(ended, command)
    return ended.collecting


def _say_begun(collecting: Collecting) -> None:
    from .output import tell

    interval_s, backend = collecting.sampling.interval_s, collecting.backend
    devices = [device for device in collecting.devices if device.parent is None]
    instances = len(collecting.devices) - len(devices)
    models = ", ".join(sorted({str(device.row.get("model") or "unknown") for device in devices}))
    gpus_text = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''} ({models})"
    if instances:
        gpus_text += f" with {instances} MIG instances"
    tell(
        f"collecting from {backend.name}: {gpus_text}, every {interval_s:g} s, into {collecting.store}; "
        f"{collecting.journal.durability}"
    )
    period = backend.period_ms
    if period is not None and interval_s * 1000 < period:
        tell(
            f"note: the power sensor has a new value every {period} ms; at {interval_s * 1000:g} ms most "
            "readings repeat the one before"
        )


def _say_job(ended: Collected) -> None:
    """Tell the summary of a job, in one piece: several nodes write at once. Standard output is the command's."""
    from ..dashboards import terminal
    from ..dashboards.documents.job_gpus import fleet_command, job_document
    from ..dashboards.words import printable

    job = ended.job
    if job is None:
        return
    requeued = f", requeued {many(job.restarts, 'time')}" if job.restarts else ""
    title = f"job {job.job_id}{requeued}" if job.job_id else "this job"
    lines = [f"whorl: {title}, on {ended.node}:"]
    lines += terminal.lines([*job_document(ended.gpus).parts, "All nodes, beside a fleet:", fleet_command(ended.store)])
    click.echo("\n".join(map(printable, lines)), err=True)


def _status(collecting: Collecting) -> str:
    """What is going on, in one line."""
    sampler = collecting.sampler
    counts = sampler.counts
    hanging = f", {len(sampler.stuck_in)} hanging" if sampler.stuck_in else ""
    if sampler.silent:
        hanging += f", {collecting.backend.name} does not answer"
    return f"{many(counts.rows, 'row')}, {many(counts.missed, 'tick')} missed, {many(counts.events, 'event')}{hanging}"


def _say_ended(ended: Collected, command: JobCommand | None) -> None:
    from .output import tell

    if ended.signal is not None:
        why = f"{signal.Signals(ended.signal).name} received"
    elif command is not None and command.ended():
        why = "the command has ended" if command.status is not None else "the command does not end"
    else:
        why = "the duration is over"
    counts = ended.counts
    tell(
        f"{why}; stored {many(counts.rows, 'row')} of {many(counts.ticks, 'tick')}, "
        f"{many(counts.missed, 'tick')} missed, {many(counts.events, 'event')}, in {ended.store}"
    )
