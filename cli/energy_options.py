"""The options that `whorl energy` and its sub-verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import When, any_store_option, cluster_option, options

shared = options(
    any_store_option,
    cluster_option,
    click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago."),
    click.option("--until", type=When(), help="Only up to this time.  [default: the last reading]"),
    click.option(
        "--settings",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Carbon, prices and more.  [default: energy.toml in the store's folder]",
    ),
)
"""The options that `whorl energy` and its sub-verbs share. They may stand before the sub-verb too."""


def joined(inherited: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The shared options of a sub-verb: its own, else those that stand before it. Raises UsageError without a store."""
    both = {**(inherited or {}), **{name: value for name, value in given.items() if value is not None}}
    chosen = {name: both.get(name) for name in ("store", "cluster", "since", "until", "settings")}
    if not chosen["store"]:
        raise click.UsageError("Missing option '--store'.")
    if chosen["since"] and chosen["until"] and chosen["until"] <= chosen["since"]:
        raise click.UsageError("--until must be later than --since")
    return chosen
