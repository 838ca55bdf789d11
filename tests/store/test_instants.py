"""Times in SQL."""

from __future__ import annotations

import duckdb
import polars as pl
import pytest

from whorl.store.instants import in_sql, times_of_ns


@pytest.mark.parametrize("at_ns", [0, -1, 1, 1_790_000_000_123_456_789, -(2**62), 2**63 - 2, -(2**63 - 2)])
def test_a_time_in_sql_has_every_microsecond(at_ns: int) -> None:
    assert duckdb.execute(f"select epoch_us({in_sql(at_ns)})").fetchall() == [(at_ns // 1000,)]


def test_times_of_tables_are_whole_microseconds_and_give_ns_again() -> None:
    numbers = pl.Series([1_790_000_000_123_456_789, None, -1])
    times = times_of_ns(numbers)
    assert times.dtype == pl.Datetime("us")
    assert times.dt.epoch("ns").to_list() == [1_790_000_000_123_456_000, None, -1000]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_beyond_all_tables_is_the_last_that_they_can_hold(sign: int) -> None:
    assert in_sql(sign * 10**30) == in_sql(sign * (2**63 - 2))
