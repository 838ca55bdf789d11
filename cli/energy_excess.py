"""`whorl energy excess`: what the place of jobs cost."""

from __future__ import annotations

from typing import Any

import click

from .energy_options import joined, shared
from .options import exclusive, json_option


@click.command("excess", short_help="What slow and hungry GPUs cost.")
@shared
@click.option(
    "--by", type=click.Choice(("gpu", "node", "job")), default="gpu", show_default=True, help="What the rows are of."
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.pass_obj
def excess(inherited: dict[str, Any] | None, /, by: str, as_json: bool, as_csv: bool, **given: Any) -> None:
    """Say what the place of jobs cost: energy and time beyond what the median GPU of the model would have needed.

    GPUs are compared by their fingerprints, so measure the fleet first: `whorl campaign`.

    \b
    whorl energy excess --store S --since 30d
    """
    from ..analysis.energy.choices.placed import placed
    from ..dashboards.printed import energy_excess as printed
    from .output import Progress, print_json, show, tell

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(inherited, given)
    store = options.pop("store")
    with Progress() as progress:
        found = placed(store, by, **options, progress=progress.say)
    if as_json:
        print_json(printed.document(found))
        return
    for note in found.notes:
        tell(f"note: {note}")
    if as_csv:
        click.echo(printed.as_csv(found), nl=False)
    else:
        show(printed.answer(found, store))
