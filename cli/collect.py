"""`whorl collect`: read this node's GPUs into a store until told to stop."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import click

from ..dashboards.table import many
from ..errors import WhorlError
from .options import Span, json_option, store_option

if TYPE_CHECKING:
    from ..collectors.collect import Collecting
    from ..collectors.sampler import Counts


@click.command("collect", short_help="Read this node's GPUs into a store until you stop it.")
@store_option
@click.option("--interval", type=Span(), default="1s", show_default=True, help="Time between readings.")
@click.option(
    "--slow-interval",
    type=Span(),
    default="10s",
    show_default=True,
    help="Time between readings of slowly changing metrics.",
)
@click.option("--duration", type=Span(), help="Stop after this time; without it, at Ctrl-C or SIGTERM.")
@click.option(
    "--backend",
    metavar="NAME",
    default="nvml",
    show_default=True,
    help="What is read: nvml, dcgm, prometheus or simulated.",
)
@click.option(
    "--durable",
    type=Span(tick=0.0),
    help="'tick', or the longest time until a reading is safe on the disk.  [default: by file system]",
)
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: as Slurm calls it, else local]")
@click.option("--node", metavar="NAME", help="Name of this node.  [default: its host name]")
@click.option(
    "--hung", type=Span(), help="A call that takes longer counts as hanging.  [default: 5s, or ten intervals]"
)
@click.option("--host", metavar="HOST:PORT", help="DCGM: the engine.  [default: this node's, else one of its own]")
@click.option("--socket", metavar="PATH", help="DCGM: the engine, by its Unix socket.")
@click.option("--job", metavar="ID", help="DCGM: store its statistics of this job at the end.")
@click.option("--url", metavar="URL", multiple=True, help="Prometheus: the page of an exporter; may be repeated.")
@click.option("--gpus", type=click.IntRange(1, 1024), help="Simulated: how many GPUs.  [default: 8]")
@click.option("--model", metavar="NAME", help="Simulated: V100, A100, H100 or H200.  [default: H100]")
@click.option("--seed", type=int, help="Simulated: which GPUs of that model.  [default: 1]")
@json_option
def collect(
    store: str,
    interval: float,
    slow_interval: float,
    duration: float | None,
    backend: str,
    durable: float | None,
    cluster: str | None,
    node: str | None,
    hung: float | None,
    host: str | None,
    socket: str | None,
    job: str | None,
    url: tuple[str, ...],
    gpus: int | None,
    model: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Read every GPU of this node into a store until you stop it.

    It asks the driver itself (nvml), the engine of NVIDIA DCGM (dcgm), or exporters of metrics, here and on other
    nodes (prometheus).

    Ctrl-C, SIGTERM and SIGHUP end it: what was read is flushed and sealed, and the exit status is 0. Reading changes
    no setting of a GPU. If a probe crashed and left settings changed, they are restored first. On a machine without
    GPUs, --backend simulated reads a simulated node.
    """
    from ..collectors.collect import settle
    from ..jobs.collecting import collect as run
    from .output import Progress, print_json, tell

    settle()
    progress, ready = Progress(every_s=1.0), None

    def begun(collecting: Collecting) -> None:
        nonlocal ready
        ready = collecting
        _say_begun(collecting)

    def look() -> None:
        assert ready is not None
        progress.say(_status(ready))

    with progress:
        try:
            ended = run(
                store,
                interval=interval,
                slow_interval=slow_interval,
                duration=duration,
                backend=backend,
                durable=durable,
                cluster=cluster,
                node=node,
                hung=hung,
                gpus=gpus,
                model=model,
                seed=seed,
                host=host,
                socket=socket,
                job=job,
                url=url,
                tell=tell,
                begun=begun,
                look=look if progress.live else None,  # what nobody sees costs 4 % of a sweep at 10 Hz
            )
        except WhorlError as error:
            if ready is None or not ready.sampler.stuck_in:
                raise
            tell(str(error))
            ready.leave(error.exit_code)
            raise
    if as_json:
        print_json(ended.document())
        sys.stdout.flush()
    if ended.collecting is None:
        tell("stopped before anything was read")
        return
    _say_ended(ended.collecting, ended.counts, ended.signal)
    ended.collecting.leave(0)


def _say_begun(collecting: Collecting) -> None:
    from .output import tell

    plan, backend = collecting.plan, collecting.backend
    devices = [device for device in collecting.devices if device.parent is None]
    instances = len(collecting.devices) - len(devices)
    models = ", ".join(sorted({str(device.row.get("model") or "unknown") for device in devices}))
    shown = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''} ({models})"
    if instances:
        shown += f" with {instances} MIG instances"
    tell(
        f"collecting from {backend.name}: {shown}, every {plan.interval_s:g} s, into {plan.store}; "
        f"{collecting.journal.durability}"
    )
    period = backend.period_ms
    if period is not None and plan.interval_s * 1000 < period:
        tell(
            f"note: the power sensor has a new value every {period} ms; at {plan.interval_s * 1000:g} ms most "
            "readings repeat the one before"
        )


def _status(collecting: Collecting) -> str:
    """What is going on, in one line."""
    sampler = collecting.sampler
    counts, watts = sampler.counts, sampler.watts
    power = "n/a" if watts is None else f"{watts:,.0f} W"
    hanging = f", {len(sampler.stuck_in)} hanging" if sampler.stuck_in else ""
    if sampler.silent:
        hanging += f", {collecting.backend.name} does not answer"
    return (
        f"{many(counts.rows, 'row')}, {power}, {many(counts.missed, 'tick')} missed, "
        f"{many(counts.events, 'event')}{hanging}"
    )


def _say_ended(collecting: Collecting, counts: Counts, came: int | None) -> None:
    from .output import tell

    why = "the duration is over" if came is None else f"{signal.Signals(came).name} received"
    tell(
        f"{why}; stored {many(counts.rows, 'row')} of {many(counts.ticks, 'tick')}, "
        f"{many(counts.missed, 'tick')} missed, {many(counts.events, 'event')}, in {collecting.plan.store}"
    )
