"""The options that `whorl energy` and its sub-verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import When


def shared(command: Any) -> Any:
    """The options that `whorl energy` and its sub-verbs share. They may stand before the sub-verb too."""
    for option in reversed(
        (
            click.option(
                "--store",
                metavar="DIR",
                envvar="WHORL_STORE",
                show_envvar=True,
                help="The store: a folder of tables.",
            ),
            click.option("--cluster", metavar="NAME", help="Only this cluster."),
            click.option("--since", type=When(), help="Only from this time on: 2026-11-01 (UTC), or 7d ago."),
            click.option("--until", type=When(), help="Only up to this time.  [default: the last reading]"),
            click.option(
                "--settings",
                metavar="FILE",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Carbon, prices and more.  [default: energy.toml in the store's folder]",
            ),
        )
    ):
        command = option(command)
    return command


def joined(inherited: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The shared options of a sub-verb: its own, else those that stand before it. Raises UsageError without a store."""
    both = {**(inherited or {}), **{name: value for name, value in given.items() if value is not None}}
    options = {name: both.get(name) for name in ("store", "cluster", "since", "until", "settings")}
    if not options["store"]:
        raise click.UsageError("Missing option '--store'.")
    if options["since"] and options["until"] and options["until"] <= options["since"]:
        raise click.UsageError("--until must be later than --since")
    return options
