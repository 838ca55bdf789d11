"""How tables and sentences come out on terminals of several widths, in a pipe, and on a node without `rich`."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import shutil
import subprocess
import termios
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner

from whorl.cli import cli, output
from whorl.cli.man import _roff
from whorl.cli.output import ProgressBar, show, width
from whorl.dashboards.document import Column, Command, Table
from whorl.store import Store
from whorl.tests.cli.calling import whorl

SAID = "takes 12.5 % longer than the median of its peers [+11.9, +13.0]"
FOUND = Table(
    [
        "GPU",
        Column("n", "count"),
        Column("median time", "number", drops=1),
        Column("how much", "sentence"),
        Column("[95 %]", drops=2),
    ],
    [("n1 / 0", 1234, "12.345 ms", SAID, "[11.90, 13.00]"), ("n1 / 1", 7, "1.2 ms", "", "")],
)


Print = Callable[[Table, int | None], str]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """What a table looks like in a terminal of so many columns; None: in a pipe."""

    def text(table: Table, columns: int | None) -> str:
        monkeypatch.setattr(output, "width", lambda: columns)
        show([table])
        return capsys.readouterr().out

    return text


def test_columns_leave_in_the_order_that_the_table_says_and_then_each_row_takes_a_line_per_column(
    printed: Print,
) -> None:
    assert "No room" not in printed(FOUND, 80)
    narrower, narrow = printed(FOUND, 56), printed(FOUND, 40)
    assert ["median time" in narrower.splitlines()[0], "[95 %]" in narrower.splitlines()[0]] == [True, False]
    assert "median time" not in narrow.splitlines()[0]
    assert "No room for median time" in narrow
    assert printed(FOUND, 30).startswith("row 1\n  GPU       n1 / 0\n")
    blank = Table(["policy", "over itself"], [["packed", ""], ["pal", "a sentence of some words"]])
    assert printed(blank, 20).splitlines()[:3] == ["row 1", "  policy       packed", "row 2"]


def test_heads_and_paths_break_before_a_table_is_given_up(printed: Print) -> None:
    """The gains of `whorl replay` are 107 columns wide by one head only."""
    gain = "+12.9 % [+1.0, +22.6]"
    heads = ["gain in avg JCT", "over packed", "over drain-outliers", "over itself without scores"]
    table = Table(heads, [["drain-outliers", gain, gain, gain]])
    assert printed(table, 100).splitlines()[0].split("  ")[0] == heads[0]
    narrow = printed(table, 86)
    assert any(line.count(gain) == 3 for line in narrow.splitlines())
    assert max(map(len, narrow.splitlines())) <= 86
    assert printed(table, 70).startswith("row 1\n  gain in avg JCT             drain-outliers\n")
    text = printed(Table(["works", Column("what", "sentence")], [["no", f"not found in {'/folder' * 12}"]]), 60)
    assert text.startswith("works  what")
    assert max(map(len, text.splitlines())) <= 60
    assert "/folder" * 12 in "".join(text.split())


def test_a_node_without_rich_prints_plain_lines(printed: Print, monkeypatch: pytest.MonkeyPatch) -> None:
    full_text = printed(FOUND, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert printed(FOUND, 200) == full_text
    assert max(map(len, printed(FOUND, 80).splitlines())) <= 80


def test_a_width_of_0_means_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((0, 0)))
    assert width() == 80


def test_sentences_are_filled_and_commands_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command("next: whorl " + "x" * 100)
    monkeypatch.setattr(output, "width", lambda: 40)
    show([SAID, command, f"  {SAID}"])
    lines = capsys.readouterr().out.splitlines()
    assert command in lines
    assert all(len(line) <= 40 for line in lines if line != command)
    assert lines[-1].startswith("    ")
    monkeypatch.setattr(output, "width", lambda: None)
    show([SAID])
    assert capsys.readouterr().out == f"{SAID}\n"


def test_progress_goes_to_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for terminal, line in ((False, ""), (True, "\r\x1b[K1 of 2; gemm-fp32 on n1 / 0\r\x1b[K")):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        with ProgressBar() as progress:
            progress(1, 2, "gemm-fp32 on n1 / 0")
        assert capsys.readouterr() == ("", line)


def test_progress_fits_its_terminal_where_the_answer_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 20))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(controller, "rb", buffering=0) as shown, os.fdopen(terminal, "w") as error:
        monkeypatch.setattr("sys.stderr", error)
        with ProgressBar() as progress:
            progress.say("x" * 100)
        assert shown.read(1000) == b"\r\x1b[K" + b"x" * 19 + b"\r\x1b[K"


def _every(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    for name, entry in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _every(entry, *names, name)


def test_help_fits_80_columns() -> None:
    for names in _every(cli):
        text = CliRunner().invoke(cli, [*names, "--help"], env={"COLUMNS": "80"}).output
        assert text.startswith("Usage:"), names
        lines = [line for line in text.splitlines() if not line.startswith("/")]  # a path is as long as it is
        assert max(map(len, lines)) <= 80, names


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "words",
    [
        ["import", "--store", "S", "a\n\x1b[2J\u202ename.csv"], ["sql", "--store", "S", "\x1b[2J\nselect"],
        ["sql", "--store", "S\n\x9b2J", "select 1"], ["no\nverb\x1b"], ["check", "--for\nmat\x1b"], ["--for\x1bmat"],
    ],
)  # fmt: skip
def test_what_a_name_holds_does_not_steer_the_terminal(
    words: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.root.parent)
    store.root.rename("S")
    done = whorl("", *words)
    assert done.exit_code > 1
    assert not set("\x1b\x9b\u202e") & set(done.output)
    assert "\\n" in done.output or "\\x1b" in done.output


def test_an_error_is_cut_in_the_middle(store: Store) -> None:
    name = "x" * 100_000
    done = whorl("", name)
    assert done.exit_code
    assert "characters ...]" in done.output
    assert max(len(done.output), len(whorl("sql --store", store.root, name).output)) < 3_000


def test_an_option_of_one_value_that_is_given_twice_is_refused_and_others_are_not() -> None:
    for option, status, line in (
        ("--store", 2, "verdicts --store A --store B"),
        ("--by", 2, "energy excess --store A --by gpu --by job"),
        ("--store", 3, "check --store A --store B"),
    ):
        done = whorl(line)
        assert (done.exit_code, f"{option} is given 2 times" in done.stderr) == (status, True), done.stderr
    allowed = "verdicts variability --store /nowhere/S --cluster a --cluster b --json --json"
    assert "is not a store" in whorl(allowed).stderr


# -- man ---------------------------------------------------------------------------------------------------------------
# The manual page and the completion of a shell: both are made from the commands.


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name in command.commands:
            yield (*path, name), command.commands[name]
            yield from commands(command.commands[name], (*path, name))


@pytest.fixture(scope="module")
def page() -> str:
    done = CliRunner().invoke(cli, ["man"], prog_name="whorl")
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_command_and_every_option_is_on_the_page(page: str) -> None:
    sections = dict(re.findall(r"^\.SS whorl ([^\n]+)\n(.*?)(?=^\.SS |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    answer = dict(commands(cli))
    sections = {name.replace("\\-", "-"): text for name, text in sections.items()}
    assert {" ".join(path) for path in answer} == sections.keys()
    for path, command in answer.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert f".B {parameter.opts[0]}".replace("-", "\\-") in sections[" ".join(path)]


def test_nothing_in_a_text_steers_the_page(page: str) -> None:
    assert _roff(".so /etc/passwd\n'x a-b\\n") == "\\&.so /etc/passwd\n\\(aqx a\\-b\\en"
    steering = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert steering == {".TH", ".SH", ".SS", ".B", ".PP", ".TP", ".nf", ".fi"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff on this machine")
def test_groff_sets_the_page_without_a_warning(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=80n"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "whorl verdicts variability" in done.stdout


def test_a_shell_completes_commands_and_options() -> None:
    def offered(words: str, place: int) -> set[str]:
        environment = {"_WHORL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        done = CliRunner().invoke(cli, [], prog_name="whorl", env=environment)
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert offered("whorl verdicts va", 2) == {"variability"}
    assert offered("whorl advise --par", 2) == {"--partition"}
    assert offered("whorl advise --set max-", 3) == {"max-share=", "max-age="}
    for shell in ("bash", "zsh", "fish"):
        script = CliRunner().invoke(cli, [], prog_name="whorl", env={"_WHORL_COMPLETE": f"{shell}_source"}).stdout
        assert "_WHORL_COMPLETE" in script
