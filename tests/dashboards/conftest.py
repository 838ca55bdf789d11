"""Fixtures for the tests of the dashboard."""

from __future__ import annotations

import pytest

from whorl.dashboards.app import reading


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for an answer: on a busy machine its first sight would be that it is being made."""
    monkeypatch.setattr(reading, "_WAIT_S", 60.0)
