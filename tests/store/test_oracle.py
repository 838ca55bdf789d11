"""Any mix of what can happen to a store equals a table in memory, for every reader."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.schema import arrow_schema
from whorl.tests.stores import new_store, plain_client

S = 10**9
BEGAN = 1_700_006_400 * S  # the beginning of a day
LATER = BEGAN + 20 * 86_400 * S
NAMES = ("power_mw", "energy_mj", "clock_event_reasons", "quality")
COLUMNS = ("ts", "cluster", "gpu", *NAMES)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

Row = tuple[Any, ...]
Key = tuple[str | None, str | None, int]

times = st.sampled_from([BEGAN + n * S for n in (0, 1, 59, 60, 3_600, 86_400)])
rows = st.lists(
    st.tuples(
        times,
        st.sampled_from(["c", "c", "c", "d"]),
        st.sampled_from(["A", "A", "B", None]),
        st.none() | st.integers(0, 5),
        st.none() | st.integers(0, 5),
        st.none() | st.integers(0, 7),
        st.sampled_from([None, "stuck"]),
    ),
    min_size=1,
    max_size=5,
)
writers = st.sampled_from(["n1", "n2"])


def table(some: list[Row]) -> pa.Table:
    schema = arrow_schema("telemetry")
    fields = [schema.field(name) for name in COLUMNS]
    return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in some], schema=pa.schema(fields))


def key(row: Row) -> Key:
    return row[1], row[2], row[0]


def plain(answer: pa.Table) -> list[Row]:
    """Rows with times as integers, sorted."""
    columns = [answer["ts"].cast(pa.int64()), *(answer[name] for name in COLUMNS[1:])]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True), key=repr)


class Mixed(RuleBasedStateMachine):
    """A store, the table that it must equal, and what was pruned of it."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.store = new_store(Path(self.folder.name) / "s")
        self.expected: dict[Key, Row] = {}
        self.minutes: dict[Key, list[Row]] = {}
        self.journals: dict[str, Journal] = {}
        self.number = self.events = 0

    def journal(self, name: str) -> Journal:
        if name not in self.journals:
            self.journals[name] = self.store.journal(name, background=False, offline=True)
        return self.journals[name]

    @rule(some=rows)
    def append(self, some: list[Row]) -> None:
        self.number += 1
        self.store.append({"telemetry": table(some)}, f"a{self.number}")
        self.expected |= {key(row): row for row in some}

    @rule(name=writers, some=rows)
    def journal_append(self, name: str, some: list[Row]) -> None:
        (batch,) = table(some).combine_chunks().to_batches()
        self.journal(name).append_batch(batch)
        self.expected |= {key(row): row for row in some}
        self.events += 1
        self.journal(name).append_batch(pa.RecordBatch.from_pydict({"detail": [f"{self.events}"]}), "events")

    @rule(name=writers)
    def publish(self, name: str) -> None:
        self.journal(name).publish()

    @rule(name=writers)
    def seal(self, name: str) -> None:
        self.journal(name).seal()

    @rule(name=writers)
    def die(self, name: str) -> None:
        """As if killed: nothing is flushed or sealed, and the lock is free."""
        if name in self.journals:
            abandon(self.journals.pop(name))

    @rule()
    def compact(self) -> None:
        self.store.compact(offline=True, now=LATER)

    @rule(cut=st.sampled_from([BEGAN + 60 * S, BEGAN + 3_600 * S, BEGAN + 86_400 * S, LATER]))
    def prune(self, cut: int) -> None:
        for name in ("n1", "n2"):
            self.journal(name).seal()
        done = self.store.prune("1m", offline=True, now=cut + 60 * S)
        assert done.until == cut
        assert done.waiting == 0
        days: dict[int, list[Key]] = {}
        for k in self.expected:
            if k[2] < cut:
                days.setdefault(k[2] // (86_400 * S), []).append(k)
        stay = [keys for keys in days.values() if len(keys) < 1.5 * len({(*k[:2], k[2] // (60 * S)) for k in keys})]
        gone = {k: self.expected[k] for keys in days.values() if keys not in stay for k in keys}
        assert (done.rows, done.sparse) == (len(gone), sum(map(len, stay)))
        for k, row in gone.items():
            del self.expected[k]
            self.minutes.setdefault((k[0], k[1], k[2] // (60 * S) * 60 * S), []).append(row)

    @precondition(lambda self: self.number % 2)
    @rule()
    def look(self) -> None:
        self.check()

    def check(self) -> None:
        expected = sorted(self.expected.values(), key=repr)
        assert plain(self.store.arrow("telemetry")) == expected
        assert plain(self.store.scan("telemetry").collect().to_arrow()) == expected
        assert plain(self.store.sql(f"select {', '.join(COLUMNS)} from telemetry")) == expected
        assert plain(Store.open(self.store.root).sql("from telemetry")) == expected
        for journal in self.journals.values():
            journal.publish()
        # Rows of dead journals are published when they are sealed: by the next of the name, or by compaction.
        if all(name in self.journals for name in ("n1", "n2")):
            with contextlib.closing(plain_client(self.store.root)) as client:
                assert plain(client.sql("from telemetry").to_arrow_table()) == expected
                self.check_history(client.sql(HISTORY).to_arrow_table())
        assert plain(self.store.arrow("telemetry")) == expected
        self.check_history(self.store.sql(HISTORY))
        newest = {k[:2]: max(k[2] for k in [*self.expected, *self.seen()] if k[:2] == j[:2]) for j in self.expected
                  for k in [j]}  # fmt: skip
        latest = self.store.sql("select ts, cluster, gpu from latest")
        found = {(c, g): t for t, c, g in zip(latest["ts"].cast(pa.int64()).to_pylist(), *(
            latest[n].to_pylist() for n in ("cluster", "gpu")), strict=True)}  # fmt: skip
        assert len(latest) == len(found)
        assert {gpu: found[gpu] for gpu in newest} == newest
        happened = [
            self.store.sql("from events"),
            self.store.arrow("events"),
            self.store.scan("events").collect().to_arrow(),
        ]
        for answer in happened:
            assert sorted(int(detail.as_py()) for detail in answer["detail"]) == list(range(1, self.events + 1))
        assert self.store.skipped == {}

    def seen(self) -> list[Key]:
        return [key(row) for some in self.minutes.values() for row in some]

    def check_history(self, answer: pa.Table) -> None:
        groups: dict[Key, list[Row]] = {k: list(some) for k, some in self.minutes.items()}
        for (cluster, gpu, ts), row in self.expected.items():
            groups.setdefault((cluster, gpu, ts // (60 * S) * 60 * S), []).append(row)
        expected = sorted(((*k, *summary(some)) for k, some in groups.items()), key=repr)
        columns = [answer["ts"].cast(pa.int64()), *(answer[n] for n in ("n", "low", "high", "mask", "bad"))]
        names = [answer[n].to_pylist() for n in ("cluster", "gpu")]
        assert sorted(zip(*names, *(c.to_pylist() for c in columns), strict=True), key=repr) == expected

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            for name in ("n1", "n2"):
                self.journal(name)
            self.check()
            for journal in self.journals.values():
                journal.close()
            self.check()
            assert list((self.store.root / "replaced").glob("*.[12].parquet")) == []
            assert list((self.store.root / "journal").glob("*.arrow")) == []
            assert self.store.check() == {}
        finally:
            for journal in self.journals.values():
                abandon(journal)
            self.folder.cleanup()


HISTORY = (
    "select cluster, gpu, time_bucket(interval 1 minute, ts)::timestamp_ns ts, sum(n)::bigint n, "
    "min(power_mw_min) low, max(power_mw_max) high, "
    "bit_or(clock_event_reasons) mask, max(quality) bad from history group by all"
)


def summary(some: list[Row]) -> Row:
    power, _, reasons, bad = ([row[i] for row in some if row[i] is not None] for i in (3, 4, 5, 6))
    mask = None
    for bits in reasons:
        mask = bits if mask is None else mask | bits
    return len(some), min(power, default=None), max(power, default=None), mask, max(bad, default=None)


def abandon(journal: Journal) -> None:
    """Leave a journal as a killed process does."""
    journal._closed = True
    for stream in journal._streams:
        stream.close()
    journal._hold.release()


TestMixed = Mixed.TestCase
TestMixed.settings = settings(
    max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
pytest.mark.long(TestMixed)
