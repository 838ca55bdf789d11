"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

store_option = click.option(
    "--store",
    metavar="DIR",
    required=True,
    envvar="WHORL_STORE",
    show_envvar=True,
    help="The store: a folder of tables.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a `schema` key, for programs.")


def exclusive(*names: str) -> Callable[[dict[str, Any]], None]:
    """A check that at most one of these flags was given."""

    def check(given: dict[str, Any]) -> None:
        used = [name for name in names if given.get(name)]
        if len(used) > 1:
            flags = " and ".join(f"--{name.removeprefix('as_')}" for name in used)
            raise click.UsageError(f"{flags} cannot be used together")

    return check
