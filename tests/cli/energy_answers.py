"""What `whorl energy` answers, asked in this process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from click.testing import CliRunner, Result

from whorl.cli import cli


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["energy", *arguments], catch_exceptions=False)


@cache
def document(*arguments: str) -> dict[str, Any]:
    """The answer as JSON; the same question is asked once."""
    result = whorl(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))
