"""What pages read is kept, and read ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from whorl.analysis.fleet.side_by_side import comparable, runs_of
from whorl.analysis.one_gpu.explain import explain
from whorl.analysis.runs.probing import Probed
from whorl.analysis.verdicts.fingerprint import fingerprints
from whorl.analysis.verdicts.judgements import conclude
from whorl.dashboards.app import first, shell
from whorl.dashboards.app import reading as reading_
from whorl.dashboards.app.fleet import view as fleet_view
from whorl.dashboards.app.fleet.view import choose as ask_fleet
from whorl.dashboards.app.fleet.view import view
from whorl.dashboards.app.gpu import KnownGpu, known
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import PAGES, make_app
from whorl.dashboards.app.state import parse
from whorl.store import Store
from whorl.tests.dashboards.asking import Asked
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(new_store(tmp_path / "store"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """Eight GPUs that were judged and have fingerprints."""
    store, _ = stored(tmp_path_factory.mktemp("fleet") / "store", 8, kinds=("pinned",))
    conclude(store)
    fingerprints(store)
    return Reading(store)


def _read(reading: Reading, *asks: Callable[[], object]) -> None:
    done = threading.Event()
    reading.ahead(iter([*asks, done.set]))
    assert done.wait(30)


@pytest.mark.long
def test_what_is_read_ahead_is_there_when_a_page_asks(reading: Reading) -> None:
    asked = iter([7])
    _read(reading, lambda: reading.kept("a", lambda: next(asked)))
    assert reading.kept("a", lambda: 8) == 7


@pytest.mark.long
def test_an_error_ahead_is_left_to_the_page_and_ends_nothing(reading: Reading) -> None:
    def fail() -> int:
        raise ValueError("no")

    _read(reading, lambda: reading.kept("a", fail), lambda: reading.kept("b", lambda: 7))
    assert reading.kept("a", lambda: 8) == 8
    assert reading.kept("b", lambda: 8) == 7


@pytest.mark.long
def test_what_is_wanted_later_comes_before_the_rest_of_what_was_wanted_first(reading: Reading) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    done = []

    def first() -> Iterator[Callable[[], object]]:
        yield began.set
        yield lambda: go_on.wait(30)
        yield lambda: done.append("the rest")
        yield ended.set

    reading.ahead(first())
    assert began.wait(30)
    reading.ahead(iter([lambda: done.append("later")]))
    go_on.set()
    assert ended.wait(30)
    assert done == ["later", "the rest"]


@pytest.mark.long
def test_pages_read_ahead_what_they_then_show(fleet: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_, "_FRESH_NS", 0)  # what was written a moment ago is kept too
    asks = [ask for page in PAGES for ask in page.ahead(fleet)]
    assert len(asks) > 2
    for ask in asks:
        ask()

    made: list[object] = []
    keep = Reading.kept

    def noted(self: Reading, name: object, make: Callable[[], object], **more: Any) -> object:
        def note() -> object:
            made.append(name)
            return make()

        return keep(self, name, note, **more)

    monkeypatch.setattr(Reading, "kept", noted)
    state, _ = parse("")
    asked, _ = ask_fleet(fleet, state)
    assert asked is not None
    assert view(fleet, asked).beside.measured == 8
    assert made == []


def test_nothing_is_begun_ahead_while_a_person_waits(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_, "_QUIET_S", 0.05)
    begun = threading.Event()
    with reading.attending():
        reading.ahead(iter([begun.set]))
        assert not begun.wait(0.2)
    assert begun.wait(30)
    monkeypatch.setattr(reading_, "_PATIENCE_S", 0.05)
    begun.clear()
    with reading.attending():  # others may wait all the time
        reading.ahead(iter([begun.set]))
        assert begun.wait(30)


def test_what_is_wanted_soon_is_made_beside_the_page_and_its_error_is_left_to_the_page(reading: Reading) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make() -> int:
        begun.set()
        assert go_on.wait(30)
        return 7

    reading.soon(lambda: reading.kept("a", make))
    assert begun.wait(30)
    go_on.set()
    assert reading.kept("a", lambda: 8) == 7
    tried = threading.Event()

    def fail() -> int:
        tried.set()
        raise ValueError("no")

    reading.soon(lambda: reading.kept("b", fail))
    assert tried.wait(30)
    with pytest.raises(ValueError, match="no"):
        reading.kept("b", fail)


class _Large:
    """Something that is held or gone."""


def test_what_is_shared_is_made_once_while_somebody_holds_it(reading: Reading) -> None:
    held = reading.shared("a", _Large)
    assert reading.shared("a", _Large) is held
    assert reading.shared("b", _Large) is not held
    gone = ref(held)
    del held
    assert gone() is None


@pytest.mark.long
def test_the_runs_of_a_probe_are_read_once_for_its_look_and_its_trend(
    fleet: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(store: Store, cluster: str, workload: str, *more: Any) -> Probed:
        read.append(workload)
        return runs_of(store, cluster, workload, *more)

    monkeypatch.setattr(fleet_view, "runs_of", noted)
    anew = Reading(fleet.store)
    (page,) = (page for page in PAGES if page.title == "Fleet")
    for ask in [*page.ahead(anew), *page.ahead(anew)]:
        ask()
    assert len(read) == len(set(read)) == len(comparable(fleet.store)[0].works)


@pytest.mark.long
@pytest.mark.parametrize("opened", [True, False])
def test_an_application_reads_ahead_once_after_the_first_page_or_soon(
    fleet: Reading, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    came: list[int] = []
    begun = threading.Event()

    def note(_: Reading, asks: Iterator[object]) -> None:
        came.append(len(list(asks)))
        begun.set()

    monkeypatch.setattr(Reading, "ahead", note)
    Asked(make_app(fleet)).said("")
    monkeypatch.setattr(shell, "_SOON_S", 60.0 if opened else 0.01)
    app = make_app(fleet, ahead=True)
    if opened:
        for _ in range(2):
            Asked(app).said("")
    assert begun.wait(30)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
            thread.join()
    assert len(came) == 1
    assert came[0] > 0


def test_the_first_page_finds_all_that_it_asks_for_already_read(
    fleet: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_, "_FRESH_NS", 0)  # the store may have been made a moment ago
    anew = Reading(fleet.store)
    first.read(anew)

    def none(*_: object) -> None:
        raise AssertionError("the page asks the store")

    monkeypatch.setattr(Store, "sql", none)
    said = Asked(make_app(anew)).said("")
    assert "Which GPUs" in said
    assert tuple(sorted({need.table for page in PAGES for need in page.needs})) == first.NEEDED


def test_the_page_of_a_gpu_shows_the_past_that_explain_prints(fleet: Reading) -> None:
    reading = Reading(fleet.store)
    for row in known(fleet).head(3).iter_rows(named=True):
        explained = explain(fleet.store, row["gpu"], cluster=row["cluster"], peers=True)
        assert explained.lines
        assert tuple(KnownGpu(reading, row).lines()) == explained.lines
