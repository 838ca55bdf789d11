"""Two processes at once, and processes that die, while a journal becomes files: every row counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whorl.store import Store, commits, journal_file, replacing, sealing, telemetry_files
from whorl.store.system.locks import locked
from whorl.tests.store.journaler import LATER, batch, leave_journal, readings, seen

PACE = replacing.Pace(0.0, 0.0, 60.0)
STEPS = ["stored_keys", "_contested", "files_of", "placing"]
"""What a sealing does one after another; only from the last one on must others wait."""


def seal(store: Store, path: Path) -> None:
    named = journal_file.parse(path)
    assert named is not None
    with locked(path.with_name(f"{named.writer}.lock"), "the journal"):
        sealing.seal(store.root, [named], PACE)


def once_before(monkeypatch: pytest.MonkeyPatch, step: str, act: Any) -> None:
    """Something that happens once, just before a step of the next sealing."""
    real, acts = getattr(telemetry_files, step), iter([act])

    def with_act(*arguments: Any, **options: Any) -> Any:
        for due in acts:
            due()
        return real(*arguments, **options)

    monkeypatch.setattr(telemetry_files, step, with_act)


@pytest.mark.long(short=2)
@pytest.mark.parametrize("step", STEPS[::-1])
@pytest.mark.parametrize("is_newer", [True, False])
def test_two_journals_with_the_same_key_are_sealed_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, is_newer: bool
) -> None:
    names = ("one", "two") if is_newer else ("two", "one")
    paths = {}
    for power, name in enumerate(names, start=1):
        paths[name] = leave_journal(store, batch(["a"], 1, power), batch(["a"], 1 + power, power), name=name)
    once_before(monkeypatch, step, lambda: seal(store, paths["two"]))
    seal(store, paths["one"])
    assert seen(store, plain=True) == {("a", 1): 2, ("a", 2): 1, ("a", 3): 2}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("step", STEPS[::-1])
@pytest.mark.parametrize("has_late", [True, False])
def test_files_that_are_compacted_while_a_journal_is_compared_with_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, has_late: bool
) -> None:
    for first in (0, 10, 20):
        store.append({"telemetry": readings(range(first, first + 10))}, f"x{first}")
    expected = {("a", second): second for second in range(30)} | {("a", 4): 99, ("a", 50): 1}
    if has_late:
        store.append({"telemetry": readings([4, 5], power_mw=[40, 50])}, "late")
        expected["a", 5] = 50
    path = leave_journal(store, batch(["a"], 4, 99), batch(["a"], 50, 1))
    once_before(monkeypatch, step, lambda: Store.open(store.root).compact(offline=True, now=LATER))
    seal(store, path)
    assert seen(store, plain=True) == expected
    Store.open(store.root).compact(offline=True, now=LATER)
    assert seen(store, plain=True) == expected


def test_a_journal_is_compared_with_what_a_killed_process_has_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are in place only after somebody finished the commit: the journal must not be there before them."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    path = leave_journal(store, batch(["a"], 1, 1), batch(["a"], 2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(commits, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            store.append({"telemetry": readings([1], power_mw=[7])}, "killed")
    seal(store, path)
    assert seen(store, plain=True) == {("a", 1): 7, ("a", 2): 2}
