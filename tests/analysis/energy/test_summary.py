"""The summary of a time has the rows of `whorl energy` and `whorl energy reconcile`, from one reading of telemetry."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from whorl.analysis.energy import answers as module
from whorl.analysis.energy.answers import By, EnergySummary, energy, reconcile, summary
from whorl.analysis.energy.books import EnergyQuestion
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.analysis.energy.stored import NOON, gpu, job, readings, store_of

pytestmark = pytest.mark.usefixtures("stores_are_copied")
HOUR, DAY = 3600, 86_400


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Three GPUs over a midnight, 20 jobs of 20 users on two of them, one over the midnight; a GPU that reads 0 W."""
    seconds = np.arange(0, 15 * HOUR, 30.0)
    jobs = [
        job(number, "ab"[number % 2], number * 1800, number * 1800 + 1500, user=f"u{number}") for number in range(20)
    ]
    jobs.append(job("over", "a", 11 * HOUR, 13 * HOUR, user="late", account="chemistry"))
    busy = np.where((seconds // 1800) % 3 == 2, 50.0, 250.0)
    telemetry = [readings(number, seconds.tolist(), busy.tolist()) for number in "ab"]
    telemetry.append(readings("c", seconds.tolist(), np.zeros_like(seconds).tolist()))
    return store_of(tmp_path_factory.mktemp("two") / "s", [gpu(number) for number in "abc"], telemetry, jobs)


@pytest.fixture(scope="module")
def day_summary(two_days: Store) -> EnergySummary:
    return summary(two_days)


def test_its_books_are_those_of_reconcile_and_its_parts_add_up(day_summary: EnergySummary, two_days: Store) -> None:
    balance = reconcile(two_days)
    assert_frame_equal(day_summary.balance.gpus, balance.gpus)
    assert_frame_equal(day_summary.balance.problems, balance.problems)
    order = balance.gpus["gpu"].to_list()
    places = [order.index(gpu) for gpu in balance.problems["gpu"].drop_nulls()]
    assert places == sorted(places), "in the order of the GPUs, which is that of their names"
    assert day_summary.balance.balances
    assert set(day_summary.parts) == {"job", "idle", "unattributed"}
    assert sum(part["energy_j"] for part in day_summary.parts.values()) == pytest.approx(
        day_summary.total["energy_j"], rel=1e-12
    )
    assert day_summary.total["gpus_no_figure"] == 1


@pytest.mark.long
def test_without_a_time_it_is_of_the_last_readings_and_of_fewer_where_there_are_many(
    day_summary: EnergySummary, two_days: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = datetime(2026, 11, 2, 12) + timedelta(seconds=15 * HOUR - 30)  # noqa: DTZ001 - as the answers say it
    assert not day_summary.cut
    assert day_summary.booked.until == last
    monkeypatch.setattr(module, "READINGS", 3 * 850)  # with the hour before
    few = summary(two_days)
    assert few.cut
    assert (few.booked.since, few.booked.until) == (last - timedelta(hours=6), last)
    hour = summary(two_days, last="1h")
    assert (hour.booked.since, hour.booked.until, hour.cut) == (last - timedelta(hours=1), last, False)
    assert summary(two_days, last="all").booked.since == day_summary.booked.since
    with pytest.raises(InputError, match="last=1y is no time"):
        summary(two_days, last="1y")
    until = NOON + 3 * HOUR * 10**9
    part = summary(two_days, "c", NOON, until)
    assert not part.cut
    assert (part.booked.until - part.booked.since) == timedelta(hours=3)
    assert_frame_equal(
        part.answers[By.JOB].rows,
        energy(two_days, question=EnergyQuestion("c", part.booked.since, part.booked.until)).rows,
    )
