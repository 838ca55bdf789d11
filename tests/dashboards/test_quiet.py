"""A page that asks by itself, and fails, stays quiet until a person does something."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whorl.dashboards.app.reading import Reading
from whorl.errors import WhorlError
from whorl.store import Store
from whorl.tests.dashboards.asking import Asked

_INTERVALS = {"energy-poll", "gpu-again", "overview-again", "placement-poll", "telemetry-tick"}


def _disabled(name: str, answer: Any) -> bool | None:
    """Whether the answer stops the interval or starts it; None where it leaves it as it is."""
    states = {**answer["response"].get(name, {}), **answer.get("sideUpdate", {}).get(name, {})}
    return states.get("disabled")


@pytest.mark.parametrize(
    ("error", "says"), [(OSError("/gone"), "This did not work (OSError)."), (WhorlError("No such store."), "No such")]
)
def test_after_a_failure_no_page_asks_again_by_itself(
    error: Exception, says: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    calls = Asked(store)
    for name in ("answer", "kept", "version"):
        monkeypatch.setattr(Reading, name, fail)
    monkeypatch.setattr("whorl.dashboards.app.overview.fleet_now", fail)
    monkeypatch.setattr("whorl.dashboards.app.gpu.newest_reading", fail)
    answers = list(calls.by_itself({"url.search": "?gpu=x"}))
    assert {name for name, _ in answers} == _INTERVALS
    for name, answer in answers:
        assert says in json.dumps(answer), name
        assert _disabled(name, answer) is True, name
