"""Options that several verbs share, and those of KEY=VALUE: `--set`, `--world`, and what follows `--backend NAME:`."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ..errors import InputError
from ..store.configuration import configured
from ..store.instants import seconds_of, time_of
from ..store.system.signals import Unwinding

if TYPE_CHECKING:
    from ..analysis.engines import Engine
    from ..dashboards.answers.reply import Reply


def configured_option(*names: str, key: str, **options: Any) -> Callable[[Any], Any]:
    """An option whose default is a key of whorl.toml, which is read only where the option is not given."""
    return click.option(*names, default=lambda: configured(key), callback=_needed, **options)


def _needed(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value; MissingParameter where an option that is required has none: click takes a default that is a function
    for a value, also where the function returns None."""
    if value is None and option.required and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=option)
    return value


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


SUITES = click.Choice(["quick", "standard", "full"])
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
model_option = click.option("--model", metavar="NAME", help="Simulated: V100, A100, H100 or H200.  [default: V100]")
seed_option = click.option("--seed", type=click.IntRange(0), help="Simulated: the fleet's seed.  [default: 1]")


def fault_option(says: str, usual: str) -> Callable[[Any], Any]:
    """The option `--fault`, of which a number is the argument `faults` of the verb, and names are `kinds`."""

    def read(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
        numbers = [int(text) for text in texts if text.isdecimal()]
        if len(numbers) > 1:
            raise click.BadParameter("it takes one number", ctx, param_hint="'--fault'")
        ctx.params["faults"] = numbers[0] if numbers else None
        return tuple(text for text in texts if not text.isdecimal())

    text = f"{says}; `whorl demo sim --describe` lists them. Repeatable.  [default: {usual}]"
    return click.option("--fault", "kinds", multiple=True, metavar="N|KIND[=SIZE]", callback=read, help=text)


def options(*several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one."""

    def decorated(command: Any) -> Any:
        for option in reversed(several):
            command = option(command)
        return command

    return decorated


def exclusive(**flags: bool) -> None:
    """Raise UsageError where more than one of these flags was given."""
    used = [f"--{name.removeprefix('as_')}" for name, is_given in flags.items() if is_given]
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} cannot be used together")


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


# -- options of KEY=VALUE ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionKey:
    """One key of an option of KEY=VALUE. The verb gets it as an argument, as it gets any option."""

    key: str
    type: click.ParamType[Any]
    help: str
    default: Any = None
    """What it is where it is left out; a text is read as what is typed."""
    metavar: str = ""
    name: str = ""
    """Of the argument; the key where it is left out."""
    multiple: bool = False
    """Whether it may be given several times; then the argument is a tuple."""

    @property
    def argument(self) -> str:
        return self.name or self.key.replace("-", "_")

    def row(self) -> list[str]:
        """Its key, what it takes, and what it means, for people."""
        if isinstance(self.type, click.Choice):
            takes = "|".join(self.type.choices)
        else:
            takes = self.metavar or {"boolean": "yes|no"}.get(self.type.name, self.type.name.partition(" ")[0])
        default = {"None": "", "False": "no", "True": "yes"}.get(f"{self.default}", _shown(self.default))
        return [self.key, takes, f"{self.help}{f'  [default: {default}]' if default else ''}"]

    def value(self, ctx: click.Context, texts: Sequence[str], spelling: str) -> Any:
        """What was typed, or the default. Raises BadParameter, which names it as `spelling`."""
        if len(texts) > 1 and not self.multiple:
            raise click.BadParameter(f"it is given {len(texts)} times, and takes one value", ctx, param_hint=spelling)
        try:
            if self.multiple:
                return tuple(self.type.convert(text, None, ctx) for text in texts)
            value = texts[0] if texts else self.default
            return None if value is None else self.type.convert(value, None, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(error.message, ctx, param_hint=spelling) from error


def _shown(default: Any) -> str:
    return f"{default:.3g}" if isinstance(default, float) else f"{default}"


class PairsOption(click.Option):
    """An option that gives the verb several arguments, one for each key of its rows."""

    tables: Mapping[str, Mapping[str, OptionKey]]
    """The rows by key; of several groups by their name."""
    purpose: str
    """What it is for, without its keys; empty where the keys say all."""

    def records(self) -> Iterator[tuple[str, str, str]]:
        """The option that each key stands behind, how the key is written, and what it means, as the manual has it."""
        written = set()
        for table, rows in self.tables.items():
            for row in rows.values():
                if row not in written:
                    key, takes, meaning = row.row()
                    yield f"{self.opts[0]} {table}:" if table else self.opts[0], f"{key}={takes}", meaning
                written.add(row)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if not ctx.resilient_parsing and "help" in ((value,) if isinstance(value, str) else value or ()):
            from ..dashboards.document import Column, Table
            from .output import show

            rows = list(dict.fromkeys(tuple(row.row()) for rows in self.tables.values() for row in rows.values()))
            show([Table(["key", "takes", Column("meaning", "sentence")], rows)])
            ctx.exit()
        return super().type_cast_value(ctx, value)

    def take(self, ctx: click.Context, table: str, pairs: Sequence[str], spelling: str) -> None:
        """Give the verb the values of one group. Raises BadParameter for a key or a value that cannot be."""
        rows = self.tables[table]
        typed_texts: dict[str, list[str]] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            key = key.strip().replace("_", "-")
            if key not in rows:
                raise click.BadParameter(f"there is no {key!r}; there are {', '.join(rows)}", ctx, param_hint=spelling)
            if not equals:
                raise click.BadParameter(f"{pair!r} has no value: write {key}=VALUE", ctx, param_hint=spelling)
            typed_texts.setdefault(key, []).append(value)
        apart = ":" if table else " "
        for key, row in rows.items():
            texts = typed_texts.get(key, [])
            ctx.params[row.argument] = row.value(ctx, texts, f"{spelling}{apart}{key}")
            source = ParameterSource.COMMANDLINE if texts else ParameterSource.DEFAULT
            ctx.set_parameter_source(row.argument, source)


class SettingsOption(PairsOption):
    """A repeatable option of KEY=VALUE. `help` explains the keys; a TOML file may have several."""

    def __init__(self, names: Sequence[str], *, rows: Sequence[OptionKey], says: str, **attributes: Any) -> None:
        self.tables, self.purpose = {"": {row.key: row for row in rows}}, ""
        text = f"{says}: {', '.join(self.tables[''])}. Repeatable; `{names[0]} help` explains them."
        super().__init__(names, multiple=True, metavar="KEY=VALUE", expose_value=False, help=text, **attributes)
        self.callback = self._read

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The keys that begin like what is typed."""
        keys = [CompletionItem(f"{key}=") for key in self.tables[""] if key.startswith(incomplete)]
        return keys or super().shell_complete(ctx, incomplete)

    def _read(self, ctx: click.Context, _: click.Parameter, texts: Sequence[str]) -> None:
        spelling = self.opts[0]
        pairs = [pair for text in texts for pair in (_in_file(text, spelling) if _is_file(text) else [text])]
        self.take(ctx, "", pairs, spelling)


class BackendOption(PairsOption):
    """`--backend NAME`, or with more: `simulated:gpus=4,model=V100`. Repeatable: keys add up. `help` explains them."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        backends: Sequence[str],
        rows: Mapping[str, Sequence[OptionKey]],
        default: str | None,
        several: bool,
        says: str,
        **attributes: Any,
    ) -> None:
        self.backends, self.usual, self.several = backends, default, several
        self.tables = {backend: {row.key: row for row in keys} for backend, keys in rows.items()}
        alike: dict[str, list[str]] = {}
        for backend, keys in self.tables.items():
            alike.setdefault(", ".join(keys), []).append(f"{backend}:KEY=VALUE,...")
        takes = "; ".join(f"{' or '.join(words)} takes {keys}" for keys, words in alike.items())
        usual = f"  [default: {default}]" if default else ""
        self.purpose = f"{says}{usual}"
        text = f"{says} {takes}; `help` explains them.{usual}"
        super().__init__(names, metavar="NAME", multiple=True, help=text, **attributes)
        self.callback = self._read

    def _read(self, ctx: click.Context, _: click.Parameter, texts: Sequence[str]) -> str | None:
        pairs: dict[str, list[str]] = {}
        for text in texts:
            backend, colon, words = text.partition(":")
            if self.backends and backend not in self.backends:
                raise click.BadParameter(f"{backend!r} is not one of {', '.join(self.backends)}", ctx, self)
            if colon and backend not in self.tables:
                raise click.BadParameter(f"{backend} takes nothing more: leave out {colon}{words}", ctx, self)
            pairs.setdefault(backend, []).extend(words.split(",") if words else ())
        if len(pairs) > 1 and not self.several:
            raise click.BadParameter(f"{' and '.join(pairs)} cannot be used together", ctx, self)
        for backend in sorted(self.tables, key=lambda name: name in pairs):  # those that were typed go last
            self.take(ctx, backend, pairs.get(backend, []), f"{self.opts[0]} {backend}")
        return next(iter(pairs), self.usual)


def settings(*rows: OptionKey, name: str = "--set", says: str = "What is seldom changed") -> Callable[[Any], Any]:
    """The option `--set` of a verb, or one of another name, with a row for each key."""
    return click.option(name, cls=SettingsOption, rows=rows, says=says)


def _is_file(text: str) -> bool:
    return text.endswith(".toml") and "=" not in text


def _in_file(name: str, spelling: str) -> Iterator[str]:
    """The pairs of a TOML file. Raises BadParameter where it cannot be read."""
    try:
        table = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise click.BadParameter(f"{name} cannot be read: {why}", param_hint=spelling) from error
    for key, value in table.items():
        for single in value if isinstance(value, list) else [value]:
            yield f"{key}={str(single).lower() if isinstance(single, bool) else single}"


# -- simulated GPUs ---------------------------------------------------------------------------------------------------


def simulated_rows(most: int, default: str = "4", model: str = "V100") -> tuple[OptionKey, ...]:
    """How simulated GPUs are drawn: the keys of `--backend simulated:` that each verb has."""
    return (
        OptionKey("gpus", click.IntRange(1, most), f"How many GPUs.  [default: {default}]"),
        OptionKey("model", click.STRING, f"V100, A100, H100 or H200.  [default: {model}]", metavar="NAME"),
        OptionKey("seed", click.IntRange(0), "The fleet's seed.  [default: 1]"),
    )


DCGM_ROWS = (
    OptionKey("host", click.STRING, "The engine.  [default: this node's, else its own]", metavar="HOST:PORT"),
    OptionKey("socket", click.STRING, "The engine, by its Unix socket.", metavar="PATH"),
)
EXPORTER_ROWS = (
    OptionKey("url", click.STRING, "The page of an exporter. May be repeated.", metavar="URL", multiple=True),
)
FAULT_ROW = OptionKey(
    "fault",
    click.STRING,
    "Plant this fault, as hot=20%; `whorl demo sim --describe` lists them. May be repeated.",
    metavar="KIND[=SIZE]",
    multiple=True,
)


def backend_option(
    *backends: str, says: str, default: str | None = None, several: bool = False, **rows: Sequence[OptionKey]
) -> Callable[[Any], Any]:
    """The option `--backend`, with what each backend takes: one of `backends`, or any where none is stated.

    `several`: whether more than one may be named.
    """
    attributes = {"backends": backends, "rows": rows, "default": default, "several": several, "says": says}
    return click.option("--backend", cls=BackendOption, **attributes)


NAMES = ("on", "workers", "account")
"""The arguments of a verb that has `place_options`."""

place_options = options(
    click.option(
        "--on",
        metavar="WHERE",
        help="Where telemetry is read: here, dask://HOST:PORT, slurm or slurm:PARTITION; or `slurm,here`: here if no "
        "workers can be had.  [default: here]",
    ),
    click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="How many: jobs of Slurm, or threads here.  [default: 4]"
    ),
    click.option("--account", metavar="NAME", help="Slurm account of the workers.  [default: whorl.toml]"),
)
"""Where the parts of an answer are made: docs/store.md."""


def respond(
    answer: Callable[..., Reply[Any]], *arguments: Any, store: str, says: str = "", **chosen: Any
) -> Reply[Any]:
    """Print what a function of `dashboards.answers` replies to the options of a verb, which are its arguments.

    `says`: what the line of progress begins with. Of the options, --json and --csv are not the function's, and in place
    of `place_options` it gets an `engine`.
    """
    from .output import ProgressBar, print_reply

    formats = {name: chosen.pop(name) for name in ("as_json", "as_csv") if name in chosen}
    exclusive(**formats)
    place = engine_of(chosen, store) if "on" in chosen else contextlib.nullcontext()
    with place as engine, ProgressBar() as progress:
        if says:
            progress.say(says)
        chosen |= {} if engine is None else {"engine": engine}
        reply = answer(store, *arguments, **chosen, progress=progress.say)
    print_reply(reply, **formats)
    return reply


@contextlib.contextmanager
def engine_of(chosen: dict[str, Any], store: str) -> Iterator[Engine]:
    """The engine that `place_options` name, which are taken out of `chosen`; its jobs end with the block.

    Raises UsageError for options that belong to another place, EngineError where its workers cannot be had, and before
    anything is started, StoreError where there is no store.
    """
    from ..jobs.workers import engine
    from ..store import Store
    from .output import tell

    place = {name: chosen.pop(name) for name in NAMES}
    on, *instead = str(place["on"] or "here").split(",")
    if instead not in ([], ["here"]):
        raise click.UsageError(f"--on {place['on']}: write a place, or a place and `,here`, as in slurm,here")
    if place["on"] is None:
        for name, value in place.items():
            if value:
                flag = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{flag} says nothing without a place: give --on slurm, too")
    if place["on"] is not None:
        Store.open(store)
    on, _, partition = on.partition(":") if on.startswith("slurm:") else (on, "", "")
    account = place["account"]
    if on == "slurm":
        account, partition = account or configured("account"), partition or configured("partition")
    with (
        Unwinding((signal.SIGTERM, signal.SIGHUP), apart_s=math.inf),
        engine(
            on, workers=place["workers"], or_here=bool(instead), tell=tell, account=account, partition=partition or None
        ) as opened,  # fmt: skip
    ):
        yield opened
