"""`whorl energy reconcile`: where the metered energy of each GPU went, and what is wrong with readings and jobs."""

from __future__ import annotations

import sys
from typing import Any

import click

from .energy_options import joined, shared
from .options import json_option


@click.command("reconcile", short_help="Whether the books balance, and what is wrong with readings and jobs.")
@shared
@json_option
@click.pass_obj
def reconcile(inherited: dict[str, Any] | None, /, as_json: bool, **given: Any) -> None:
    """Hold what was metered against what was given to jobs, to nobody (idle) and to somebody unknown, GPU by GPU.

    Below stands what is wrong, one sentence each: gaps, stuck sensors, counters that went back, jobs that end before
    they begin, that overlap, or that name an unknown GPU.

    Exit status 1 if the books do not balance.
    """
    from ..dashboards.answers.energy import energy_reconcile
    from .output import ProgressBar, print_reply

    options = joined(inherited, given)
    with ProgressBar() as progress:
        reply = energy_reconcile(options.pop("store"), **options, progress=progress.say)
    print_reply(reply, as_json=as_json)
    if not reply.result.balances:
        sys.exit(1)
