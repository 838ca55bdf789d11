"""`whorl man`: the manual page, made from what `--help` shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from .. import __version__

_LITERAL = "\b"  # click leaves the lines of such a paragraph as they are
_OTHERS = {"-": "\\-", "\\": "\\e", "\u2212": "\\-", "'": "\\(aq"}


@click.command("man", short_help="Print the manual page.")
@click.pass_context
def man(ctx: click.Context) -> None:
    """Print the manual page of all commands.

    \b
    whorl man | man -l -
    mkdir -p ~/.local/share/man/man1
    whorl man > ~/.local/share/man/man1/whorl.1
    """
    root = ctx.find_root()
    click.echo("\n".join(page(root)))


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
        for parameter in context.command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and record[1]:
                yield f".TP\n.B {_roff(record[0])}\n{_roff(record[1])}"


def _below(context: click.Context) -> Iterator[click.Context]:
    command = context.command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            below = type(context)(found, info_name=name, parent=context)
            yield below
            yield from _below(below)


def _summary(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0].rstrip(".")


def _text(text: str) -> Iterator[str]:
    """A help text in paragraphs; one that begins with the sign for it keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        lines = [line.rstrip() for line in paragraph.splitlines()]
        if lines[0].strip(" ") == _LITERAL:
            yield "\n".join([".nf", *map(_roff, lines[1:]), ".fi"])
        else:
            yield _roff(" ".join(line.strip() for line in lines))


def _roff(text: str) -> str:
    """A text as troff takes it: no sign steers it, neither inside nor at the start of a line."""
    plain = "".join(_OTHERS.get(sign, sign) for sign in text)
    return re.sub(r"(?m)^(?=\.)", r"\\&", plain)
