"""`whorl collect`: read this node's GPUs into a store until told to stop."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ..store.signals import Noted
from .options import store_option

if TYPE_CHECKING:
    from ..collectors.collecting import Collecting, Plan
    from ..collectors.sampler import Counts

_SPAN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?(ms|s|min|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Span(click.ParamType[float]):
    """A time: 0.1, 100ms, 60s, 5min, 12h, 7d; in seconds."""

    name = "time"

    def __init__(self, **words: float) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        if text in self._words:
            return self._words[text]
        match = _SPAN.fullmatch(text)
        if match is None:
            words = "".join(f", or {word!r}" for word in self._words)
            self.fail(f"{value!r} is no time: give seconds, or a number with ms, s, min, h or d{words}", param, ctx)
        return float(match[1]) * _SECONDS[match[2] or "s"]


@click.command("collect", short_help="Read this node's GPUs into a store until told to stop.")
@store_option
@click.option("--interval", type=Span(), default="1s", show_default=True, help="Time between readings.")
@click.option(
    "--slow-interval", type=Span(), default="10s", show_default=True, help="Time between readings of what moves slowly."
)
@click.option("--duration", type=Span(), help="Stop after this time; without it, at Ctrl-C or SIGTERM.")
@click.option(
    "--backend", type=click.Choice(["nvml", "simulated"]), default="nvml", show_default=True, help="What is read."
)
@click.option("--durable", type=Span(tick=0.0), help="'tick', or how long a reading may wait to be safe on the disk.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: $SLURM_CLUSTER_NAME, else local]")
@click.option("--node", metavar="NAME", help="Name of this node.  [default: its host name]")
@click.option("--hung", type=Span(), help="A driver call that takes longer hangs.  [default: 5s, or ten intervals]")
@click.option("--gpus", type=click.IntRange(1, 1024), help="Simulated: how many GPUs.  [default: 8]")
@click.option("--model", metavar="NAME", help="Simulated: which model.  [default: H100]")
@click.option("--seed", type=int, help="Simulated: which GPUs of that model.  [default: 1]")
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
    gpus: int | None,
    model: str | None,
    seed: int | None,
) -> None:
    """Read every GPU of this node into a store until told to stop.

    Ctrl-C, SIGTERM and SIGHUP end it: what was read is flushed and sealed, and the exit status is 0. Reading changes
    no setting of a GPU; what a probe that crashed left changed is restored first. On a machine without GPUs,
    --backend simulated reads a simulated node.
    """
    from ..collectors.collecting import Plan, give_back, stay_small, this_node
    from ..probes.restore import restore_left_over

    options = {key: value for key, value in (("gpus", gpus), ("model", model), ("seed", seed)) if value is not None}
    if options and backend != "simulated":
        raise click.UsageError(f"--{next(iter(options))} is for --backend simulated only")
    plan = Plan(
        store=store,
        interval_s=interval,
        slow_s=slow_interval,
        duration_s=duration,
        backend=backend,
        durable_s=durable,
        hung_s=hung,
        cluster=cluster or os.environ.get("SLURM_CLUSTER_NAME") or "local",
        node=node or this_node(),
    )
    if backend == "simulated":
        options["node"] = plan.node
    stay_small(backend)
    if backend == "nvml":
        for sentence in restore_left_over():
            click.echo(f"whorl: {sentence}", err=True)
    with Noted() as signals:
        collecting = _begin(plan, options, signals)
        if collecting is None:
            click.echo("whorl: told to end before anything was read", err=True)
            return
        _say_begun(collecting)
        give_back()  # what opening took
        status = _Status(collecting)
        try:
            counts = collecting.run(ended=lambda: bool(signals.came), look=status.show)
        finally:
            status.clear()
        _say_ended(collecting, counts, signals.came[0] if signals.came else None)
        collecting.leave(0)


def _begin(plan: Plan, options: dict[str, Any], signals: Noted) -> Collecting | None:
    from ..collectors.collecting import Collecting
    from ..errors import InputError

    try:
        return Collecting.begin(plan, options, ended=lambda: bool(signals.came))
    except InputError as error:
        if plan.backend != "nvml":
            raise
        raise InputError(f"{error}; on a machine without GPUs: --backend simulated") from error


def _say_begun(collecting: Collecting) -> None:
    plan, backend = collecting.plan, collecting.backend
    devices = [device for device in backend.devices() if device.parent is None]
    instances = len(backend.devices()) - len(devices)
    models = ", ".join(sorted({str(device.row.get("model") or "unknown") for device in devices}))
    shown = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''} ({models})"
    if instances:
        shown += f" with {instances} MIG instances"
    click.echo(
        f"whorl: collecting from {backend.name}: {shown}, every {plan.interval_s:g} s, into {plan.store}; "
        f"{collecting.journal.durability}",
        err=True,
    )
    period = backend.period_ms
    if period is not None and plan.interval_s * 1000 < period:
        click.echo(
            f"whorl: note: the power sensor has a new value every {period} ms; at {plan.interval_s * 1000:g} ms most "
            "readings repeat the one before",
            err=True,
        )


class _Status:
    """One line a second about what is going on, where standard error is a terminal."""

    def __init__(self, collecting: Collecting) -> None:
        self._sampler = collecting.sampler
        self._shown = 0.0
        self._live = sys.stderr.isatty()

    def show(self) -> None:
        now = time.monotonic()
        if not self._live or now - self._shown < 1.0:
            return
        self._shown = now
        counts, watts = self._sampler.counts, self._sampler.watts
        power = "n/a" if watts is None else f"{watts:,.0f} W"
        hanging = f", {len(self._sampler.stuck_in)} hanging" if self._sampler.stuck_in else ""
        text = f"{counts.rows:,} rows, {power}, {counts.missed:,} ticks missed, {counts.events:,} events{hanging}"
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def clear(self) -> None:
        if self._live and self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def _say_ended(collecting: Collecting, counts: Counts, came: int | None) -> None:
    why = "the time is over" if came is None else f"{signal.Signals(came).name} came"
    click.echo(
        f"whorl: {why}; stored {counts.rows:,} rows of {counts.ticks:,} ticks, {counts.missed:,} ticks missed, "
        f"{counts.events:,} events, in {collecting.plan.store}",
        err=True,
    )
