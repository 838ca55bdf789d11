"""The table `latest`: the last reading of every GPU, wherever it is."""

from __future__ import annotations

import time

import pytest

from whorl.store import Store, keys
from whorl.tests.store.journaler import BEGAN, LATER, S, batch, leave_journal, open_journal, segments
from whorl.tests.stores import answers


def last(store: Store) -> dict[str, int]:
    by_whorl = {row["gpu"]: row["power_mw"] for row in store.sql("select gpu, power_mw from latest").to_pylist()}
    assert {row["gpu"]: row["power_mw"] for row in store.latest().to_pylist()} == by_whorl
    return by_whorl


def test_a_gpu_that_fell_silent_keeps_its_last_reading_and_late_rows_are_none(store: Store) -> None:
    leave_journal(store, batch(["silent"], 1, 2), name="other")
    with open_journal(store) as journal:
        for second, power in ((5, 1), (3, 2), (5, 3)):  # a late row, a corrected one
            journal.append_batch(batch(["a"], second, power))
            assert last(store) == {"a": 3 if power == 3 else 1, "silent": 2}
            journal.seal()
        journal.append_batch(batch(["a"], 9, 9))
        assert last(store) == {"a": 9, "silent": 2}
    store.compact(offline=True, now=LATER)
    for found in answers(store, "select gpu, power_mw from latest order by gpu"):
        assert found == [{"gpu": "a", "power_mw": 9}, {"gpu": "silent", "power_mw": 2}]


def test_a_file_that_another_replaced_stays_until_the_next_for_queries_that_began_before(store: Store) -> None:
    with store.journal("n", background=False) as journal:
        for second in range(4):
            journal.append_batch(batch(["a" if second else "silent"], second, second))
            journal.seal()
            assert len(segments(store, "latest")) == min(second + 1, 2)
    assert last(store) == {"silent": 0, "a": 3}


def test_a_reading_of_a_clock_that_was_years_ahead_is_last_only_of_a_gpu_that_has_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = (time.time_ns() - BEGAN) // S + 10 * 366 * 86_400
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 5, 1))
        journal.seal()
        journal.append_batch(batch(["a", "b"], ahead, 99))
        assert last(store) == {"a": 1, "b": 99}
        with monkeypatch.context() as patch:  # sealed while that clock was wrong, too
            patch.setattr(keys, "ahead_us", lambda: 2**62)
            journal.seal()
        assert last(store)["b"] == 99
        journal.append_batch(batch(["a", "b"], 6, 2))
        journal.seal()
        assert last(store) == {"a": 2, "b": 2}
