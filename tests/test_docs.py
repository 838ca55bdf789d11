"""The documentation is true: the tutorial's commands run, and every command and link that a page names exists."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from whorl.cli import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SHELL_WORD = r"'[^']*'|\S+"
INSTALLATION = ["make .venv/.ready", ". .venv/bin/activate"]


def shell_commands(page: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.long
def test_the_example_of_tune_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tune.md").read_text()
    command = page.partition("    whorl tune ")[2].partition("\n")[0]
    [fleet] = re.findall(r"With `(--backend simulated.*)` the first prints", page)
    printed_lines = re.findall(r"^    (.+)$", page.partition("the first prints")[2].partition("![")[0], re.M)
    done = CliRunner().invoke(cli, ["tune", *f"{command} {fleet}".replace(" S ", f" {tmp_path / 'S'} ").split()])
    assert done.exit_code == 0, done.output
    assert len(printed_lines) > 5
    assert [line for line in printed_lines if line not in done.output.splitlines()] == []


@pytest.mark.long
@pytest.mark.usefixtures("stores_are_copied")
def test_after_the_readme_every_command_of_the_tutorial_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in one empty folder. The installation is left out: the tests run in its result."""
    monkeypatch.chdir(tmp_path)
    [first_steps] = re.findall(r"^    make demo .*\n    make test .*$", (ROOT / "README.md").read_text(), re.M)
    assert "demo/report.html" in first_steps
    [recipe] = re.findall(r"whorl (demo --out demo)$", (ROOT / "Makefile").read_text(), re.M)
    assert CliRunner().invoke(cli, recipe.split()).exit_code == 0
    assert (tmp_path / "demo" / "report.html").exists()
    page = (ROOT / "docs" / "tutorial.md").read_text()
    commands = shell_commands(page)
    assert commands[:2] == INSTALLATION
    printed = {}
    for command in commands[2:]:
        program, *arguments = shlex.split(command)
        assert program == "whorl", command
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        printed[command] = done.output
    lines = {line for text in printed.values() for line in text.splitlines()}
    printed_lines = [
        line for block in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()
    ]
    assert printed_lines
    assert [line for line in printed_lines if line not in lines] == []
    assert (tmp_path / "tutorial" / "report.html").exists()
    first, second = (text for command, text in printed.items() if "advise" in command)
    assert "\nExclude c001-1" in first
    assert second == "c001-1\n"
    (times,) = (text for command, text in printed.items() if "figure = 'time'" in command)
    assert len(times.splitlines()) >= 6
    (tmp_path / "fleet").symlink_to(tmp_path / "demo" / "store")
    (tmp_path / "data").symlink_to(tmp_path / "tutorial" / "data")
    for name in ANSWERED:
        for command, answer in answers_shown((ROOT / name).read_text()):
            done = CliRunner().invoke(cli, shlex.split(command)[1:])
            assert [line for line in answer if line not in done.output.splitlines()] == [], (name, command)


ANSWERED = ["README.md", "docs/import.md", "docs/verdicts.md", "docs/advise.md", "docs/energy.md"]
"""Pages that show what their commands answer about the fleet of `make demo`, and about the files of `demo sample`."""


def answers_shown(page: str) -> list[tuple[str, list[str]]]:
    """Each command of a page with the lines of its answer, which may leave others out."""
    examples = re.findall(r"^    (whorl [^\n]*)\n\n```text\n(.*?)^```", page, re.M | re.S)
    assert examples
    return [(command, [line for line in answer.splitlines() if line]) for command, answer in examples]


def commands_named(text: str) -> Iterator[list[str]]:
    """The words after `whorl` in code spans and code blocks, up to a pipe, a redirection or a remark."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    code = [line for block in blocks for line in block.splitlines()]
    code += [line for line in text.splitlines() if line.startswith("    ")]
    for line in [*re.findall(r"`([^`\n]+)`", text), *code]:
        for words in re.findall(r"\b(?:whorl )+((?:\"[^\"]*\"|[^|&;)>#\"`])+)", line):
            yield re.findall(_SHELL_WORD, words)


def complaint(words: list[str]) -> str | None:
    """Why `whorl WORDS` cannot be a command; None if it can."""
    command: click.Command = cli
    for number, word in enumerate(words):
        if isinstance(command, click.Group) and number < 2 and re.fullmatch(r"[a-z]+(-[a-z]+)*", word):
            if word not in command.commands:
                return f"there is no {word!r}"
            command = command.commands[word]
        elif word.startswith("--") and len(word) > 2:
            options = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
            if word.rstrip(".,:").partition("=")[0] not in options:
                return f"{command.name} has no {word}"
    return None


def test_every_command_that_a_page_names_exists() -> None:
    commands = [(page, words) for page in PAGES for words in commands_named(page.read_text())]
    assert not {(page, *words): why for page, words in commands if (why := complaint(words))}


def test_every_command_that_a_help_text_names_exists() -> None:
    lines = [line for text in help_texts(cli) for line in text.splitlines() if line.strip().startswith("whorl ")]
    line_words = [re.findall(_SHELL_WORD, line)[1:] for line in lines]
    assert ["demo"] in [words[:1] for words in line_words]
    assert not {" ".join(words): why for words in line_words if (why := complaint(words))}


def help_texts(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    yield from (parameter.help or "" for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        for name in command.commands:
            yield from help_texts(command.commands[name])


def test_a_command_that_does_not_exist_is_found() -> None:
    page = "Run `whorl nosuch`.\n\n    whorl sql --nosuch\n"
    assert [complaint(words) for words in commands_named(page)] == ["there is no 'nosuch'", "sql has no --nosuch"]


def test_every_link_to_a_file_leads_to_one() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    for page, link in links:
        if not link.startswith("http"):
            name, _, place = link.partition("#")
            leads_to = page.parent / name if name else page
            assert leads_to.exists(), (page, link)
            assert not place or place in headings(leads_to.read_text()), (page, link)


def test_every_name_that_a_page_takes_from_whorl_exists() -> None:
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    for page, block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "whorl":
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], page
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "whorl":
                assert hasattr(importlib.import_module("whorl"), node.attr), (page, node.attr)


def headings(text: str) -> set[str]:
    """The headings of a page as links name them."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
