"""What the tests of the commands share: stores made in a moment, and a suite of few probes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..sizes import is_long
from ..stores import copied_stores


@pytest.fixture(scope="module", autouse=True)
def stores_are_copied() -> Iterator[None]:
    """Commands called in this process copy an empty store; those in processes of their own make it."""
    with copied_stores():
        yield


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite has two of its probes, for tests of something else; all with `--long`."""
    from whorl.probes import catalogue

    suite = catalogue.suite
    if not is_long():
        monkeypatch.setattr(
            catalogue, "suite", lambda name: tuple(one for one in suite(name) if one.name in ("idle", "gemm-fp32"))
        )
