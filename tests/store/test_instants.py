"""Times in SQL."""

from __future__ import annotations

import duckdb
import pytest

from whorl.store.instants import in_sql


@pytest.mark.parametrize("at_ns", [0, -1, 1, 1_790_000_000_123_456_789, -(2**62), 2**63 - 2, -(2**63 - 2)])
def test_a_time_in_sql_has_every_nanosecond(at_ns: int) -> None:
    assert duckdb.execute(f"select epoch_ns({in_sql(at_ns)})").fetchall() == [(at_ns,)]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_beyond_all_tables_is_the_last_that_they_can_hold(sign: int) -> None:
    assert in_sql(sign * 10**30) == in_sql(sign * (2**63 - 2))
