"""`whorl energy excess`: what the place of jobs cost."""

from __future__ import annotations

from typing import Any

import click

from .energy_options import joined, shared
from .options import csv_option, exclusive, json_option


@click.command("excess", short_help="What slow and hungry GPUs cost.")
@shared
@click.option(
    "--by", type=click.Choice(("gpu", "node", "job")), default="gpu", show_default=True, help="What the rows are of."
)
@json_option
@csv_option
@click.pass_obj
def excess(inherited: dict[str, Any] | None, /, by: str, as_json: bool, as_csv: bool, **given: Any) -> None:
    """Say what the place of jobs cost: energy and time beyond what the median GPU of the model would have needed.

    GPUs are compared by their fingerprints, so measure the fleet first: `whorl campaign`.

    \b
    whorl energy excess --store S --since 30d
    """
    from ..dashboards.answers.energy import energy_excess
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(inherited, given)
    with ProgressBar() as progress:
        reply = energy_excess(options.pop("store"), by, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)
