"""Answers that take long: pages see what is being done, others do not make them twice, old ones stay until asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from whorl.dashboards.app import reading
from whorl.dashboards.app.reading import Say, Slowly


class Gated:
    """Makes numbers, each once the gate was opened for it."""

    def __init__(self) -> None:
        self.gate, self.said, self.began = threading.Semaphore(0), threading.Event(), 0

    def __call__(self, say: Say) -> int:
        self.began += 1
        say(f"making number {self.began}")
        self.said.set()
        assert self.gate.acquire(timeout=30)
        say("almost there")
        return self.began


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_WAIT_S", 0.01)


def _until(ask: Callable[[], reading.Later[Any]]) -> reading.Later[Any]:
    """Ask as a page does, until nothing is being done."""
    deadline = time.monotonic() + 30
    while (found := ask()).doing is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def test_a_page_sees_what_is_done_and_then_the_answer_which_stays_until_it_asks_again() -> None:
    slowly, make = Slowly(), Gated()
    assert slowly.ask("a", make, 1).answer is None
    assert make.said.wait(30)
    assert slowly.ask("a", make, 1).doing == "making number 1"
    make.gate.release()
    first = _until(lambda: slowly.ask("a", make, 1))
    assert first.answer == 1
    assert not first.newer
    kept = slowly.ask("a", make, 2)
    assert kept == replace(first, newer=True), "another version of the store does not make it again; a page says so"
    make.said.clear()
    assert slowly.ask("a", make, 2, again=True).answer == 1, "the old one is shown meanwhile"
    assert make.said.wait(30)
    assert slowly.ask("a", make, 2) == reading.Later(1, "making number 2", first.made_at, newer=True)
    make.gate.release()
    second = _until(lambda: slowly.ask("a", make, 2))
    assert second.answer == make.began == 2
    assert first.made_at is not None
    assert second.made_at is not None
    assert second.made_at > first.made_at


def test_only_who_asks_first_waits_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    slowly, make, waited = Slowly(), Gated(), []
    wait_for = slowly._changed.wait_for

    def noted(*arguments: Any) -> Any:
        waited.append(arguments)
        return wait_for(*arguments)

    monkeypatch.setattr(slowly._changed, "wait_for", noted)
    for _ in range(3):
        assert slowly.ask("a", make, 1).answer is None
        assert len(waited) == 1
    make.gate.release()
    assert _until(lambda: slowly.ask("a", make, 1)).answer == 1


def test_an_old_answer_of_another_version_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slowly, made = Slowly(), []

    def make(_: Say) -> int:
        made.append(1)
        return len(made)

    assert _until(lambda: slowly.ask("a", make, 1)).answer == 1
    monkeypatch.setattr(reading, "_OLD_S", -1.0)
    assert _until(lambda: slowly.ask("a", make, 1)).answer == 1
    slowly.ask("a", make, 2)
    assert _until(lambda: slowly.ask("a", make, 2)).answer == 2


def test_what_failed_is_told_once_and_then_tried_again() -> None:
    slowly, gate = Slowly(), Gated()

    def fail(say: Say) -> int:
        gate(say)
        raise ZeroDivisionError

    assert slowly.ask("a", fail, 1).doing is not None
    gate.gate.release()
    with pytest.raises(ZeroDivisionError):
        _until(lambda: slowly.ask("a", fail, 1))
    assert _until(lambda: slowly.ask("a", lambda _: 7, 1)).answer == 7


def test_what_nobody_asks_for_any_more_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    slowly, abandoned = Slowly(), Gated()
    assert slowly.ask("a", abandoned, 1).answer is None
    assert abandoned.said.wait(30)
    monkeypatch.setattr(reading, "_GIVES_WAY_S", 0.0)
    assert slowly.ask("b", lambda _: 2, 1).doing == "waiting for another answer"
    abandoned.gate.release()  # it says what it does, and hears that it is not wanted
    assert _until(lambda: slowly.ask("b", lambda _: 2, 1)).answer == 2
    abandoned.gate.release()
    assert _until(lambda: slowly.ask("a", abandoned, 1)).answer == 2, "it began again when it was asked for again"


def test_only_a_few_answers_are_kept() -> None:
    slowly, made = Slowly(), []

    def make(_: Say) -> int:
        made.append(1)
        return len(made)

    for name in range(reading._MOST_SLOW_ANSWERS + 1):
        _until(lambda name=name: slowly.ask(name, make, 1))  # type: ignore[misc]
    _until(lambda: slowly.ask(reading._MOST_SLOW_ANSWERS, make, 1))
    assert len(made) == reading._MOST_SLOW_ANSWERS + 1
    _until(lambda: slowly.ask(0, make, 1))
    assert len(made) == reading._MOST_SLOW_ANSWERS + 2
