"""How many cases a test tries: a sample with `make test`, a larger one with `--long` (CI), all of them with `--all`.

A test has one body and gets its cases from here, so that all sizes prove the same thing:

    for point in sample(points, short=12): ...               # 12 points, the same ones every time; or 15, or all
    @pytest.mark.parametrize("seed", sample(range(200), short=8))
    @settings(max_examples=count(300, short=40))

Marked `@pytest.mark.long`, and run with `--long` only: a test of which no part proves anything, and one that costs a
second where a cheaper one proves the main part. `@pytest.mark.long(short=1)`: all but the first of its cases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONGER = 1.25
"""How many times as many cases as in the short form `--long` tries; `--all` tries every case."""
LEAST = 4
"""What `--long` tries at least, of what the short form tries less often."""

_size = "short"


def choose(size: str) -> None:
    """Choose "short", "long" or "all" for this process; tests/conftest.py calls it before tests are collected."""
    global _size
    _size = size


def is_long() -> bool:
    """Whether tests that need long run."""
    return _size != "short"


def is_all() -> bool:
    """Whether every case is tried, for however long."""
    return _size == "all"


def count(everything: int, short: int) -> int:
    """`everything` with `--all`; with `--long` some times as many as `short`, else `short`."""
    if _size == "all":
        return everything
    return min(everything, max(round(LONGER * short), LEAST)) if _size == "long" else short


def sample(cases: Iterable[T], short: int) -> list[T]:
    """`count` of the cases in their order: the first, the last, and others by a fixed seed."""
    listed = list(cases)
    number = count(len(listed), short)
    if len(listed) <= number:
        return listed
    inner = random.Random(20).sample(range(1, len(listed) - 1), max(number - 2, 0))
    return [listed[i] for i in sorted({0, len(listed) - 1, *inner})][:number]
