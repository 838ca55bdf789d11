"""How many cases a test tries: a sample with `make test`, all of them with `--long` (`make test-all`, CI).

A test has one body and gets its cases from here, so that both sizes prove the same thing:

    for point in sample(points, short=12): ...                        # 12 points, the same ones every time; or all
    @pytest.mark.parametrize("seed", sample(range(200), short=8))
    @settings(max_examples=count(300, short=40))

Marked `@pytest.mark.long`, and run with `--long` only: a test of which no part proves anything, and one that costs a
second where a cheaper one proves the main part. `@pytest.mark.long(short=1)`: all but the first of its cases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

_long = False

T = TypeVar("T")


def choose(*, long: bool) -> None:
    """Choose the size for this process; tests/conftest.py calls it before tests are collected."""
    global _long
    _long = long


def is_long() -> bool:
    """Whether all cases are tried."""
    return _long


def count(everything: int, short: int) -> int:
    """`everything` with `--long`, else `short`."""
    return everything if _long else short


def sample(cases: Iterable[T], short: int) -> list[T]:
    """All cases with `--long`, else `short` of them in their order: the first, the last, and others by a fixed seed."""
    found = list(cases)
    if _long or len(found) <= short:
        return found
    inner = random.Random(20).sample(range(1, len(found) - 1), max(short - 2, 0))
    return [found[i] for i in sorted({0, len(found) - 1, *inner})][:short]
