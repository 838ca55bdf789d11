"""Times in SQL."""

from __future__ import annotations

import duckdb

from whorl.store.instants import in_sql


def test_a_time_in_sql_has_every_microsecond_and_none_lies_beyond_what_tables_can_hold() -> None:
    for at_ns in (0, -1, 1, 1_790_000_000_123_456_789, -(2**62), 2**63 - 2, -(2**63 - 2)):
        assert duckdb.execute(f"select epoch_us({in_sql(at_ns)})").fetchall() == [(at_ns // 1000,)]
    assert in_sql(10**30) == in_sql(2**63 - 2)
    assert in_sql(-(10**30)) == in_sql(-(2**63 - 2))
