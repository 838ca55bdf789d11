"""What pages read is kept until the store changes, is read ahead, and made beside the pages where it takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from whorl.analysis.one_gpu.explain import whole
from whorl.analysis.verdicts.fingerprint import fingerprints
from whorl.analysis.verdicts.judgements import conclude
from whorl.dashboards.app import reading as reading_
from whorl.dashboards.app import shell
from whorl.dashboards.app.brush import choose, view
from whorl.dashboards.app.gpu import known, read_gpu
from whorl.dashboards.app.reading import Later, Reading, Say, Slowly, Visitors, ahead, judgements, read_first_page
from whorl.dashboards.app.shell import PAGES, make_app
from whorl.dashboards.app.state import parse
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.dashboards.asking import Asked
from whorl.tests.probed_fleet import stored


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """Eight GPUs that were judged and have fingerprints."""
    store, _ = stored(tmp_path_factory.mktemp("fleet") / "store", 8, kinds=("pinned",))
    conclude(store)
    fingerprints(store)
    return Reading(store)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written a moment ago is kept too, and nobody waits."""
    monkeypatch.setattr(reading_, "_FRESH_NS", 0)
    monkeypatch.setattr(reading_, "_WAIT_S", 0.01)


# -- answers that stay -------------------------------------------------------------------------------------------


def test_what_was_read_is_kept_until_the_store_changes(store: Store) -> None:
    reading, calls = Reading(store), []

    def make() -> int:
        calls.append(1)
        return len(calls)

    assert [reading.kept("a", make), reading.kept("a", make), reading.kept("b", make)] == [1, 1, 2]
    assert not reading.has("gpus")
    store.append({"gpus": arrow_rows("gpus", {"cluster": ["c"], "gpu": ["x"]})}, "more")
    assert reading.has("gpus")
    assert reading.kept("a", make) == 3
    assert reading.kept("a", make, tables=("runs",)) == 4


def test_two_who_ask_at_once_wait_for_one_answer_and_an_error_is_not_kept(store: Store) -> None:
    reading, calls, go, began = Reading(store), [], threading.Event(), threading.Event()

    def make() -> int:
        began.set()
        assert go.wait(30)
        calls.append(1)
        return len(calls)

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(reading.kept("a", make))) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert began.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert answers == [1, 1]
    with pytest.raises(ZeroDivisionError):
        reading.kept("error", lambda: 1 // 0)
    assert reading.kept("error", lambda: 2) == 2


def test_an_error_ahead_is_left_to_the_page_and_ends_nothing(store: Store) -> None:
    reading, done = Reading(store), threading.Event()
    ahead([lambda: reading.kept("a", lambda: 1 // 0), lambda: reading.kept("b", lambda: 7), done.set])
    assert done.wait(30)
    assert reading.kept("a", lambda: 8) == 8
    assert reading.kept("b", lambda: 8) == 7


def test_the_page_fleet_opens_with_the_probe_of_the_worst_finding(fleet: Reading) -> None:
    choice, problems = choose(fleet, parse("?probe=nosuch")[0])
    assert choice is not None
    assert choice.workload == judgements(fleet)[0].judgement.rows[0].workloads[0]
    assert problems == [f"The store has no probe 'nosuch' here: {choice.workload} is shown."]


@pytest.mark.long
def test_pages_read_ahead_what_they_then_show(fleet: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in PAGES:
        for ask in page.ahead(fleet):
            ask()
    calls: list[object] = []
    keep = Reading.kept

    def noted(self: Reading, name: object, make: Callable[[], object], **arguments: Any) -> object:
        def note() -> object:
            calls.append(name)
            return make()

        return keep(self, name, note, **arguments)

    monkeypatch.setattr(Reading, "kept", noted)
    choice, _ = choose(fleet, parse("")[0])
    assert choice is not None
    for work in choice.cluster.works:
        assert view(fleet, replace(choice, workload=work.name)).beside.measured == 8
    assert calls == []


def test_what_is_read_ahead_waits_while_somebody_is_answered() -> None:
    visitors, done = Visitors(0.0, first_s=0.0), threading.Event()
    visitors.came()
    ahead([done.set], visitors)
    assert not done.wait(0.5)
    visitors.left()
    assert done.wait(30)


@pytest.mark.long
def test_an_application_reads_ahead_when_who_came_has_left(fleet: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, Visitors]] = []
    monkeypatch.setattr(shell, "read_ahead", lambda asks, visitors: started.append((len(list(asks)), visitors)))
    monkeypatch.setattr(shell, "_FIRST_S", 60.0)
    monkeypatch.setattr(shell, "_QUIET_S", 0.01)
    Asked(make_app(fleet)).said("")
    assert started == []
    app = make_app(fleet, ahead=True, token="t" * 16)
    [(asks, visitors)] = started
    assert asks > 0
    assert app.server.test_client().get("/").status_code >= 400  # it was refused, and left
    waiting = threading.Thread(target=visitors.wait_until_quiet, daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


def test_the_first_page_finds_all_that_it_asks_for_already_read(
    fleet: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew = Reading(fleet.store)
    read_first_page(anew)

    def none(*_: object) -> None:
        raise AssertionError("the page asks the store")

    monkeypatch.setattr(Store, "sql", none)
    text = Asked(make_app(anew)).said("")
    assert "Which GPUs" in text
    assert tuple(sorted({need.table for page in PAGES for need in page.needs})) == reading_.NEEDED


def test_the_page_of_a_gpu_reads_what_its_report_does(fleet: Reading) -> None:
    for row in known(fleet).head(3).iter_rows(named=True):
        page, report = read_gpu(fleet, row), whole(fleet.store, row["gpu"], row["cluster"])
        assert page.lines
        same = ("lines", "places", "found", "events", "stands", "alike", "marks", "shared")
        assert [name for name in same if getattr(page, name) != getattr(report, name)] == []


# -- answers that take long --------------------------------------------------------------------------------------


class Gated:
    """Makes numbers, each once the gate was opened for it."""

    def __init__(self) -> None:
        self.gate, self.said, self.began = threading.Semaphore(0), threading.Event(), 0

    def __call__(self, say: Say) -> int:
        self.began += 1
        say(f"making number {self.began}")
        self.said.set()
        assert self.gate.acquire(timeout=30)
        return self.began


def _until(ask: Callable[[], Later[Any]]) -> Later[Any]:
    """Ask as a page does, until nothing is being done."""
    deadline = time.monotonic() + 30
    while (later := ask()).doing is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return later


def test_a_page_sees_what_is_done_and_then_the_answer_which_stays_until_it_asks_again() -> None:
    slowly, make = Slowly(), Gated()
    assert slowly.ask("a", make, 1).answer is None
    assert make.said.wait(30)
    assert slowly.ask("a", make, 1).doing == "making number 1"
    make.gate.release()
    first = _until(lambda: slowly.ask("a", make, 1))
    assert (first.answer, first.newer) == (1, False)
    answers = slowly.ask("a", make, 2)
    assert answers == replace(first, newer=True), "another version of the store does not make it again; a page says so"
    make.said.clear()
    assert slowly.ask("a", make, 2, again=True).answer == 1, "the old one is shown meanwhile"
    assert make.said.wait(30)
    assert slowly.ask("a", make, 2) == Later(1, "making number 2", first.made_at, newer=True)
    assert slowly.ask("b", lambda _: 3, 1).doing == "waiting for another answer"
    make.gate.release()
    second = _until(lambda: slowly.ask("a", make, 2))
    assert (second.answer, make.began, second.newer) == (2, 2, False)
    assert _until(lambda: slowly.ask("b", lambda _: 4, 1)).answer == 3


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


def test_only_a_few_answers_are_kept() -> None:
    slowly, calls = Slowly(), []

    def make(_: Say) -> int:
        calls.append(1)
        return len(calls)

    most = reading_._MOST_SLOW_ANSWERS
    for name in [*range(most + 1), most]:
        _until(lambda name=name: slowly.ask(name, make, 1))  # type: ignore[misc]
    assert len(calls) == most + 1
    _until(lambda: slowly.ask(0, make, 1))
    assert len(calls) == most + 2
