"""`whorl tune`: the setting that saves energy within a bound on time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from .options import Share, Span, json_option


def _pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """Words of the form NAME=VALUE by name."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"--{option} {word}: write it as NAME=VALUE")
        if name in pairs:
            raise click.UsageError(f"--{option}: {name} is given twice")
        pairs[name] = value
    return pairs


@click.command("tune", short_help="The power limit, clock and batch that save energy within a bound.")
@click.option("--sweep", metavar="FILE", help="Choose from a sweep that was measured already: CSV, plain or gzip.")
@click.option("--max-slowdown", type=Share(), help="At most this much slower than the default, as 5%.")
@click.option("--max-latency", type=Span(), help="A unit of work takes at most this, as 16ms.")
@click.option("--across", type=click.Choice(["batch"]), help="With --sweep: choose among the batch sizes too.")
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="COLUMN=MEANING",
    help="With --sweep: what a column is, as watts=power_limit_w. Repeatable.",
)
@json_option
def tune(columns: Sequence[str], as_json: bool, **given: Any) -> None:
    """Find the setting of least energy within a bound on time.

    \b
    whorl tune --sweep zeus.csv --max-slowdown 5%     from a sweep that was measured already

    docs/tune.md has the method.
    """
    from . import output
    from .answers.tuning import tune

    output.print_reply(tune(map=_pairs("map", columns), **given), as_json=as_json)
