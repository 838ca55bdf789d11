"""`whorl energy calibrate`: what the power sensor of each board is wrong by, learnt from the power of its node."""

from __future__ import annotations

from typing import Any

import click

from .energy_options import joined, shared
from .options import csv_option, exclusive, json_option


@click.command("calibrate", short_help="What power sensors are wrong by, from the power of nodes.")
@shared
@click.option("--dry-run", is_flag=True, help="Store nothing.")
@json_option
@csv_option
@click.pass_obj
def calibrate(inherited: dict[str, Any] | None, /, dry_run: bool, as_json: bool, as_csv: bool, **given: Any) -> None:
    """Learn gain and offset of each board from the power of its node, store them, and show them with intervals.

    \b
    whorl energy calibrate --store S --since 7d

    It needs the power of nodes (`whorl import`, `whorl collect`) beside telemetry of all their GPUs. From then on,
    energy is that of calibrated boards, with narrower intervals. Other boards have the error that measured boards of
    their model, or of other models, have. docs/calibration.md explains it.
    """
    from ..dashboards.answers.energy import energy_calibrate
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(inherited, given)
    with ProgressBar() as progress:
        reply = energy_calibrate(options.pop("store"), dry_run=dry_run, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)
