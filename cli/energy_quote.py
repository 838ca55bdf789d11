"""`whorl energy quote`: the same job on other GPUs, under power caps, at another hour."""

from __future__ import annotations

from typing import Any

import click

from .energy_options import joined, shared
from .options import Span, csv_option, exclusive, json_option


@click.command("quote", short_help="A job on other GPUs, under power caps, at another hour.")
@shared
@click.option("--job", metavar="JOBID", required=True, help="The job.")
@click.option(
    "--deadline", type=Span(), default="24h", show_default=True, help="It must end within this time from now."
)
@json_option
@csv_option
@click.pass_obj
def quote(
    inherited: dict[str, Any] | None, /, job: str, deadline: float, as_json: bool, as_csv: bool, **given: Any
) -> None:
    """Say what a job would have taken elsewhere: time, joules, grams and money, with intervals.

    \b
    usual GPU  median GPU of its model    needs `whorl campaign`
    model      each other model           needs the same workloads on both
    cap        lower power limits         needs workloads under several limits
    start      greenest before deadline   needs hours of a grid (docs/carbon.md)

    An option without such data is n/a, with the reason. "best": no other option is as good in time, energy and grams.
    """
    from ..dashboards.answers.energy import energy_quote
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(inherited, given)
    with ProgressBar() as progress:
        reply = energy_quote(options.pop("store"), job, deadline=deadline, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)
