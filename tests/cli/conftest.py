"""What the tests of the commands share: stores made in a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whorl.tests.sizes import count


@pytest.fixture(scope="module", autouse=True)
def every_store_is_copied(stores_are_copied: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="module")
def few_replicates() -> Iterator[None]:
    """Intervals from fewer bootstrap replicates take a tenth of the time, for tests that are not about their width."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whorl.dashboards.report.REPLICATES", count(500, short=50))
        yield
