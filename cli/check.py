"""`whorl check`: the GPUs of this node, now, for people and for monitoring."""

from __future__ import annotations

import sys
from typing import Any

import click

from .options import FAULT_ROW, Span, backend_option, json_option, simulated_rows, store_option


class _Unknown(click.UsageError):
    exit_code = 3


class _FailsOpen(click.Command):
    """A wrong option is "unknown" (3) as well: 2 would be an alarm."""

    wrong = _Unknown

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _Unknown(error.format_message(), ctx) from error


@click.command("check", cls=_FailsOpen, short_help="Check this node's GPUs now; made for monitoring.")
@store_option
@click.option("--quick", is_flag=True, help="Run no probe and store nothing: only ask the driver and the store.")
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
    help="Warning if a GPU takes this much longer than usual.",
)
@click.option(
    "--critical",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Critical if a GPU takes this much longer than usual.",
)
@click.option(
    "--timeout", type=Span(), help="Answer after this time at the latest.  [default: 30s a GPU, at least 60s]"
)
@backend_option(
    "cuda",
    "simulated",
    "auto",
    default="cuda",
    says="cuda or auto: the GPUs of this node; simulated: GPUs that are not there.",
    simulated=(*simulated_rows(64), FAULT_ROW),
)
@json_option
def check(store: str, form: str, as_json: bool, **options: Any) -> None:
    """Check the GPUs of this node now: are all of them there, and is each as fast as is usual for it?

    \b
    whorl check --store S
    whorl check --store S --format nagios
    whorl check --store S --quick            # in a job's prologue

    \b
    Exit status:
    0  OK
    1  warning: a GPU is slow
    2  critical: a GPU is very slow, computes wrong results or is missing,
       or the driver is gone
    3  unknown: no GPU is expected here, there is no store, the driver does
       not answer in time, or an option is wrong

    A GPU is missing if a collector or a campaign saw it on this node within 30 days, none saw it on another node since,
    and the driver does not show it. Simulated GPUs are never missing. If you take a GPU out of the node, run `whorl
    store retire GPU`. The probes take at most 15 s of each GPU.
    """
    from .answers.check import check as check_node
    from .output import print_reply

    given_options = {name: value for name, value in options.items() if value not in (None, ())}
    reply = check_node(store, **given_options)
    if form in ("nagios", "junit") and not as_json:
        click.echo(reply.nagios() if form == "nagios" else reply.junit())
    else:
        print_reply(reply, as_json=as_json or form == "json")
    sys.stdout.flush()
    sys.exit(int(reply.status))
