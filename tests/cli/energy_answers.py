"""What `whorl energy` answers, asked in this process."""

from __future__ import annotations

from functools import cache
from typing import Any

from click.testing import Result

from whorl.tests.cli import calling


def whorl(*words: str) -> Result:
    return calling.whorl("energy", *words)


@cache
def document(*words: str) -> dict[str, Any]:
    """The answer as JSON; the same question is asked once."""
    return calling.document("energy", *words)
