"""`whorl man`: the manual page and docs/cli.md, made from what `--help` shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import click

from .. import __version__
from .options import PairsOption

_LITERAL = "\b"  # click leaves the lines of such a paragraph as they are
_STATUS = "Exit status"
_SEVERAL = 2
"""Commands of which an option stands once, for all, in docs/cli.md."""
_HOW = re.compile(
    r"What is seldom changed: |(?<=\.) Repeatable; `--\w+ help` explains them\.|; `help` explains them(?=\.)"
)
"""What the help of each option of KEY=VALUE says, and the head of docs/cli.md."""
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

**KEY=VALUE**: `--set` has what is seldom changed. Repeat it, or name a TOML file. `--set help` after a verb explains
its keys; so do `--world help` and `--backend help` (`--backend simulated:gpus=4,model=H100`).

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
    commands = [(context, [(names, _in_short(text)) for names, text in _options(context)]) for context in _below(root)]
    common = _common(option for _, options in commands for option in options)
    yield "\n## Options of several commands\n"
    yield "A command that has one of them as it stands here names it under *also*. Brackets hold the default.\n"
    yield from map(_option_line, sorted(common))
    for context, options in commands:
        depth = len(context.command_path.split())
        pieces = [piece for piece in context.command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        takes = [] if isinstance(context.command, click.Group) else pieces
        yield f"\n{'#' * depth} {' '.join([context.command_path, *takes])}\n"
        yield from _markdown(context)
        yield from (_option_line(option) for option in options if option not in common)
        elsewhere = [f"`{names.split()[0].rstrip(',')}`" for names, text in options if (names, text) in common]
        if elsewhere:
            yield f"- also: {', '.join(elsewhere)}"


def _options(context: click.Context, *, keys: bool = False) -> Iterator[tuple[str, str]]:
    """The options of a command: how each is written, and what it does; with `keys` also each key of KEY=VALUE."""
    for parameter in context.command.get_params(context):
        names, text = parameter.get_help_record(context) or ("", "")
        if keys and isinstance(parameter, PairsOption):
            if parameter.purpose:
                yield names, parameter.purpose
            yield from ((f"{option} {key}".replace(": ", ":"), meaning) for option, key, meaning in parameter.records())
        elif text and names != "-h, --help":
            yield names, getattr(parameter, "purpose", "") or text


def _common(options: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The options that stand once for all: of those that are written alike, the text that most commands have."""
    common: dict[str, tuple[str, str]] = {}
    for option, n in Counter(options).most_common():
        if n >= _SEVERAL:
            common.setdefault(option[0], option)
    return {*common.values()}


def _option_line(option: tuple[str, str]) -> str:
    written = re.sub(r"\b(INTEGER|FLOAT)( RANGE)?\b", "N", option[0])
    return f"- `{written}`: {option[1]}"


def _in_short(text: str) -> str:
    """What an option does, without the words that the head of the page has: that brackets hold a default. A
    number of something is not below 0."""
    text = _HOW.sub("", re.sub(r"  +", " ", text)).replace("[default: ", "[").replace("; default: ", "; ")
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
        yield from (f".TP\n.B {_roff(names)}\n{_roff(text)}" for names, text in _options(context, keys=True))


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
