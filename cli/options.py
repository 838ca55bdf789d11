"""Options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from click.core import ParameterSource

from ..errors import InputError
from ..store.configuration import configured
from ..store.instants import seconds_of, time_of


def configured_option(*names: str, key: str, **options: Any) -> Callable[[Any], Any]:
    """An option whose default is a key of whorl.toml, which is read only where the option is not given."""
    return click.option(*names, default=lambda: configured(key), **options)


def store_choice(says: str = "The store: a folder of tables.", **options: Any) -> Callable[[Any], Any]:
    """The option `--store`: as given, else WHORL_STORE, else what whorl.toml says."""
    options = {"metavar": "DIR", "envvar": "WHORL_STORE", "show_envvar": True, "help": says, **options}
    return configured_option("--store", key="store", **options)


def typed(ctx: click.Context, name: str) -> bool:
    """Whether an option stood on the command line, and not in the environment or in whorl.toml."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def require_store(store: str | None) -> str:
    """The store of a verb that also runs sub-verbs. Raises UsageError where none is named."""
    if not store:
        raise click.UsageError("Missing option '--store'.")
    return store


def refuse_before(ctx: click.Context) -> None:
    """Raise UsageError for an option that stands before a sub-verb, where it would have no effect."""
    for parameter in ctx.command.params:
        if parameter.name is not None and typed(ctx, parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} must follow {ctx.invoked_subcommand}, not precede it")


store_option = store_choice(required=True)

any_store_option = store_choice()
"""Not required, as it may also stand before the sub-verb."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with a `schema` key, for programs.")


csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
model_option = click.option("--model", metavar="NAME", help="Simulated: V100, A100, H100 or H200.  [default: V100]")
seed_option = click.option("--seed", type=click.IntRange(0), help="Simulated: the fleet's seed.  [default: 1]")
fault_option = click.option(
    "--fault",
    "kinds",
    multiple=True,
    metavar="KIND[=SIZE]",
    help="Simulated: plant this fault, as hot=20%; `whorl demo sim --describe` lists them. Repeatable.",
)


def options(*several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one."""

    def decorated(command: Any) -> Any:
        for option in reversed(several):
            command = option(command)
        return command

    return decorated


def suite_option(says: str) -> Callable[[Any], Any]:
    """How thoroughly to measure; quick where nothing is said."""
    suites = click.Choice(["quick", "standard", "full"])
    return click.option("--suite", type=suites, default="quick", show_default=True, help=says)


def exclusive(*names: str) -> Callable[[dict[str, Any]], None]:
    """A check that at most one of these flags was given."""

    def check(given: dict[str, Any]) -> None:
        used = [name for name in names if given.get(name)]
        if len(used) > 1:
            flags = " and ".join(f"--{name.removeprefix('as_')}" for name in used)
            raise click.UsageError(f"{flags} cannot be used together")

    return check


class Share(click.ParamType[float]):
    """A share: 5%, or 0.05."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", str(value))
        share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share: write it as 5% or 0.05", param, ctx)
        return share


class Span(click.ParamType[float]):
    """A time: 0.1, 100ms, 60s, 5min, 12h, 7d, 2w; in seconds."""

    name = "time"

    def __init__(self, *, plain: bool = True, **words: float) -> None:
        """`plain`: whether a number without a unit is taken, for seconds. `words`: what may stand for a time."""
        self._plain, self._words = plain, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        if text in self._words:
            return self._words[text]
        try:
            return seconds_of(text, plain=self._plain)
        except InputError as error:
            self.fail(f"{error}{''.join(f', or {word!r}' for word in self._words)}", param, ctx)


class When(click.ParamType[datetime]):
    """A time, UTC and without zone: 2026-10-01, 2026-10-01T12:00, or how long ago: 30d."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return time_of(value if isinstance(value, datetime) else str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


cluster_option = click.option("--cluster", metavar="NAME", help="Only this cluster.")
