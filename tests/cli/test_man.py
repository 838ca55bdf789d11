"""The manual page and the completion of a shell: both are made from the commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.cli.man import _roff


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
