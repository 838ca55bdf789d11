"""`whorl man`: the manual page and docs/cli.md, made from what `--help` shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from .. import __version__
from .options import PairsOption

_LITERAL = "\b"  # click leaves the lines of such a paragraph as they are
_STATUS = "Exit status"
_SEVERAL = 2
"""Commands of which an option stands once, for all, in docs/cli.md."""
_OTHERS = {"-": "\\-", "\\": "\\e", "\u2212": "\\-", "'": "\\(aq"}


_REFERENCE = """\
# The command line

Made by `whorl man --markdown`. `whorl VERB --help` says the same, with examples and remarks. [json.md](json.md) has
what `--json` prints, [tables.md](tables.md) what SQL can ask.

**Exit status**: 0 done; 1 a check failed, or parts of an answer could not be made; 2 bad input or option, or the
output could not be written; 3 the store cannot be used; 4 a query failed; 5 the scheduler does not answer or refused,
or workers are missing; 6 a GPU failed or cannot be used; 130 interrupted; 141 the reader of a pipe closed it. `check`
has its own: 0 OK, 1 warning, 2 critical, 3 unknown.

**Output**: answers go to standard output; warnings, errors and progress to standard error. Tables fit the terminal; in
a pipe they have their full width. Missing is `n/a` in tables, `NULL` in SQL, `null` in JSON. `NO_COLOR` is respected.

**Names**: a GPU is `node/slot`, else its UUID. You may give that, the UUID, the serial number, or a part that no other
GPU has. Times are UTC: `2026-11-30`, or how long ago: `30d`. `WHORL_STORE` or a file `whorl.toml` stands in for
`--store` ([site/README.md](site/README.md#whorltoml)).

**Completion**: `eval "$(_WHORL_COMPLETE=bash_source whorl)"` in `~/.bashrc`; `zsh_source` and `fish_source` likewise.
"""


@click.command("man", short_help="Print the manual page.")
@click.option("--markdown", "as_markdown", is_flag=True, hidden=True, help="Print the text of docs/cli.md.")
@click.pass_context
def man(ctx: click.Context, as_markdown: bool) -> None:
    """Print the manual page of all commands.

    \b
    whorl man | man -l -
    mkdir -p ~/.local/share/man/man1
    whorl man > ~/.local/share/man/man1/whorl.1
    """
    root = ctx.find_root()
    click.echo("\n".join(reference(root) if as_markdown else page(root)))


def reference(root: click.Context) -> Iterator[str]:
    """The lines of docs/cli.md: each command with its text and its options; those of several commands stand once."""
    yield re.sub(r"(?<!\n)\n(?!\n)", " ", _REFERENCE).strip()
    commands = [
        (context, [record._replace(text=_in_short(record.text)) for record in _records(context)])
        for context in _below(root)
    ]
    common = _common(record for _, records in commands for record in records)
    yield "\n## Options of several commands\n"
    yield "A command that has one of them as it stands here names it under *also*. Brackets hold the default.\n"
    yield from _option_lines(sorted(common))
    for context, records in commands:
        depth = len(context.command_path.split())
        yield f"\n{'#' * depth} {context.command_path}\n"
        pieces = [piece for piece in context.command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        if pieces and not isinstance(context.command, click.Group):
            yield f"`{context.command_path} {' '.join(pieces)}`\n"
        yield from _markdown(context)
        yield from _option_lines([record for record in records if record not in common])
        elsewhere: dict[str, list[str]] = {}
        for record in records:
            if record in common:
                elsewhere.setdefault(record.option.split()[0].rstrip(","), []).append(record.short())
        if elsewhere:
            yield f"- also: {', '.join(f'`{_together(names)}`' for names in elsewhere.values())}"


class _Record(NamedTuple):
    """An option of a command, or a key of one: how it is written, and what it does."""

    option: str
    """As `--json`, `--since DATE`; of a key `--set`, or `--backend simulated:`."""
    key: str
    """As `seed=integer`; empty for an option without keys."""
    text: str

    def whole(self) -> str:
        """As it is typed: `--set seed=integer`, `--backend simulated:seed=integer`."""
        return f"{self.option} {self.key}".rstrip().replace(": ", ":")

    def short(self) -> str:
        """The name without what it takes, as `--json`, `--set seed` and `--backend simulated:seed`."""
        if not self.key:
            return self.option.split()[0].rstrip(",")
        return f"{self.option} {self.key.partition('=')[0]}".replace(": ", ":")


def _records(context: click.Context) -> Iterator[_Record]:
    """The options of a command; of an option of keys what it is for, and each key."""
    for parameter in context.command.get_params(context):
        names, text = parameter.get_help_record(context) or ("", "")
        if isinstance(parameter, PairsOption):
            if parameter.purpose:
                yield _Record(names, "", parameter.purpose)
            yield from map(_Record._make, parameter.records())
        elif text and names != "-h, --help":
            yield _Record(names, "", text)


def _common(records: Iterable[_Record]) -> set[_Record]:
    """The options that stand once for all: of those that are written alike, the text that most commands have."""
    common: dict[tuple[str, str], _Record] = {}
    for record, n in Counter(records).most_common():
        if n >= _SEVERAL:
            common.setdefault(record[:2], record)
    return {*common.values()}


def _option_lines(records: Sequence[_Record]) -> Iterator[str]:
    """A line for each option; the keys of one below it."""
    above = ""
    for option, key, text in records:
        if key and option != above:
            yield f"- `{option}`"
        above = option
        written = re.sub(r"\b(INTEGER|FLOAT)( RANGE)?\b", "N", key or option)
        yield f"{'  ' if key else ''}- `{written}`: {text}"


def _together(names: Sequence[str]) -> str:
    """The keys of one option after its name, which stands once: `--set replicates, seed`."""
    return ", ".join([names[0], *(re.split("[ :]", name)[-1] for name in names[1:])])


def _in_short(text: str) -> str:
    """What an option does, without the words that the head of the page has: that brackets hold a default. A
    number of something is not below 0."""
    text = re.sub(r"  +", " ", text).replace("[default: ", "[").replace("; default: ", "; ")
    text = re.sub(r"(; |\] \[)x>=[01](?=\])| \[x>=[01]\]", "", text)
    return re.sub(r"\[env var: (WHORL_STORE)(; required)?", r"[\1", text)


def _markdown(context: click.Context) -> Iterator[str]:
    """What a command does, its tables and its exit status; examples and remarks stand in `--help` alone."""
    for number, (is_literal, lines) in enumerate(_paragraphs(context.command.help or "")):
        if is_literal and not any(line.startswith("whorl ") for line in lines):
            yield "\n".join(f"    {line}" for line in lines) + "\n"
        elif not is_literal and (not number or lines[0].startswith(_STATUS)):
            yield " ".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The paragraphs of a help text, and whether click leaves the lines of one as they are."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        is_literal = lines[0] == _LITERAL
        yield is_literal, lines[1:] if is_literal else lines


def page(root: click.Context) -> Iterator[str]:
    """The lines of the page of a command with all commands below it, for `man`."""
    name = root.info_name or ""
    yield f'.TH {name.upper()} 1 "" "{name} {__version__}"'
    yield ".SH NAME"
    yield f"{name} \\- {_roff(_summary(root.command))}"
    yield ".SH SYNOPSIS"
    yield f".B {name}\nCOMMAND [OPTIONS] [ARGUMENTS]"
    yield ".SH DESCRIPTION"
    yield from _text(root.command.help or "")
    yield ".SH COMMANDS"
    for context in _below(root):
        yield f".SS {_roff(context.command_path)}"
        yield f".B {_roff(context.command_path)}\n{_roff(' '.join(context.command.collect_usage_pieces(context)))}"
        yield from _text(context.command.help or "")
        yield from (f".TP\n.B {_roff(record.whole())}\n{_roff(record.text)}" for record in _records(context))


def _below(context: click.Context) -> Iterator[click.Context]:
    command = context.command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        if subcommand is not None and not subcommand.hidden:
            below = type(context)(subcommand, info_name=name, parent=context)
            yield below
            yield from _below(below)


def _summary(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0].rstrip(".")


def _text(text: str) -> Iterator[str]:
    """A help text in paragraphs, for troff."""
    for is_literal, lines in _paragraphs(text):
        yield ".PP"
        yield "\n".join([".nf", *map(_roff, lines), ".fi"]) if is_literal else _roff(" ".join(lines))


def _roff(text: str) -> str:
    """A text as troff takes it: no sign steers it, neither inside nor at the start of a line."""
    plain = "".join(_OTHERS.get(sign, sign) for sign in text)
    return re.sub(r"(?m)^(?=\.)", r"\\&", plain)
