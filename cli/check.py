"""`whorl check`: the GPUs of this node, now, for people and for monitoring."""

from __future__ import annotations

import sys
from typing import Any

import click

from .options import Span, json_option, model_option, seed_option, store_option


class _Unknown(click.UsageError):
    exit_code = 3


class _FailsOpen(click.Command):
    """A wrong option is "unknown" (3) as well: 2 would be an alarm."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _Unknown(error.format_message(), ctx) from error


@click.command("check", cls=_FailsOpen, short_help="This node's GPUs, now: exit status 0 OK, 1, 2, 3 unknown.")
@store_option
@click.option("--quick", is_flag=True, help="Run no probe and store nothing: ask the driver and the store.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "nagios", "junit", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option(
    "--warning",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="Warn from this much slower than the GPU's own level.",
)
@click.option(
    "--critical",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Critical from this much slower.",
)
@click.option(
    "--timeout", type=Span(), help="Answer after this time at the latest.  [default: 30s a GPU, at least 60s]"
)
@click.option(
    "--backend",
    type=click.Choice(["cuda", "simulated", "auto"]),
    default="cuda",
    show_default=True,
    help="Which GPUs: cuda or auto, those here; simulated.",
)
@click.option("--gpus", type=click.IntRange(1, 64), help="Simulated: how many GPUs.  [default: 4]")
@model_option
@seed_option
@click.option(
    "--fault",
    multiple=True,
    metavar="KIND",
    help="Simulated: plant this fault; `whorl sim describe V100` lists them. Repeatable.",
)
@json_option
def check(
    store: str,
    quick: bool,
    form: str,
    warning: float,
    critical: float,
    timeout: float | None,
    backend: str,
    as_json: bool,
    **simulated: Any,
) -> None:
    """Check the GPUs of this node: what is known of them, and a short probe beside their own level.

    \b
    whorl check --store S
    whorl check --store S --format nagios
    whorl check --store S --quick            # in a job's prologue

    Exit status: 0 OK; 1 warning; 2 critical: very slow, a wrong result, or a GPU that is expected here and absent, also
    if the driver is gone; 3 unknown: no GPU is expected here, no store, a hanging call, a wrong option.

    Expected are the GPUs that collectors or campaigns saw on this node within 30 days, and on no other node since;
    simulated ones are not. After you take one out: `whorl store retire GPU`. A probe takes at most 15 s of a GPU.
    """
    from . import check_report
    from .answers.measuring import check as checked
    from .output import print_reply

    given = {name: value for name, value in simulated.items() if value not in (None, ())}
    reply = checked(store, quick=quick, backend=backend, warning=warning, critical=critical, timeout=timeout, **given)
    if form == "nagios" and not as_json:
        click.echo(check_report.nagios(reply.result, warning, critical))
    elif form == "junit" and not as_json:
        click.echo(check_report.junit(reply.result))
    else:
        print_reply(reply, as_json=as_json or form == "json")
    sys.stdout.flush()
    sys.exit(int(reply.status))
