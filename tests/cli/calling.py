"""Calls of `whorl` in this process: what a person sees, the JSON, and the one sentence of a refusal."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from whorl.cli import cli


def whorl(line: str, *words: object, stdin: str | bytes | None = None, **environment: str) -> Result:
    """Run a command: `line` is its beginning, which is split at spaces; each of `words` is one word after it."""
    return CliRunner().invoke(cli, [*line.split(), *map(str, words)], input=stdin, env=environment)


def document(line: str, *words: object, schema: str = "", status: int = 0) -> dict[str, Any]:
    """The JSON of a command that ends with this status."""
    result = whorl(line, *words, "--json")
    assert result.exit_code == status, result.output
    answer = dict(json.loads(result.stdout))
    assert answer["schema"] == f"whorl.{schema}/1" or not schema, answer["schema"]
    return answer


def refusal(line: str, *words: object, status: int = 2) -> str:
    """The sentence of a command that is refused: nothing else is printed."""
    result = whorl(line, *words)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert "Traceback" not in result.stderr
    *usage, sentence = result.stderr.splitlines()
    assert not usage or usage[0].startswith("Usage: "), result.stderr
    return sentence
