"""The options that `whorl energy` and its sub-verbs share, and how their answers are printed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .engine_options import engine_of
from .options import When, any_store_option, cluster_option, exclusive, options

if TYPE_CHECKING:
    from ..dashboards.answers.reply import Reply

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


def print_answer(
    answer: Callable[..., Reply[Any]], *arguments: Any, inherited: dict[str, Any] | None = None, **chosen: Any
) -> Reply[Any]:
    """Print what a function of `dashboards.answers.energy` replies to the options of a verb.

    `inherited`: the shared options that stand before the sub-verb. Raises UsageError without a store, and where such an
    option is of other verbs.
    """
    from .output import ProgressBar, print_reply

    formats = {name: chosen.pop(name, False) for name in ("as_json", "as_csv")}
    exclusive(*formats)(formats)
    for name, value in (inherited or {}).items():
        if name not in chosen and value is not None:
            raise click.UsageError(f"No such option of this verb: --{name.replace('_', '-')}")
        if chosen.get(name, value) is None:
            chosen[name] = value
    if not chosen["store"]:
        raise click.UsageError("Missing option '--store'.")
    if chosen["since"] and chosen["until"] and chosen["until"] <= chosen["since"]:
        raise click.UsageError("--until must be later than --since")
    store = chosen.pop("store")
    with engine_of(chosen, store) if "on" in chosen else contextlib.nullcontext() as engine, ProgressBar() as progress:
        if engine is not None:
            chosen["engine"] = engine
        reply = answer(store, *arguments, **chosen, progress=progress.say)
    print_reply(reply, **formats)
    return reply
