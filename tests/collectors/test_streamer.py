"""The loop that reads a source with a clock of its own: a scripted one, which hangs, goes away, repeats itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.collectors import streaming
from whorl.collectors.backends import Device, Readings, Status, Stream
from whorl.collectors.streaming import Streamer
from whorl.errors import DeviceError, InputError, StoreError
from whorl.store import Store
from whorl.store.events import Event
from whorl.store.journal_file import Ticks
from whorl.store.metrics import METRICS, ROW
from whorl.store.vocabulary import EventKind
from whorl.tests.collectors.sampling import Kept, Running, Turned
from whorl.tests.stores import new_store

SECOND = 1_000_000_000
US = 1000
T0 = 1_790_000_000 * SECOND
Row = tuple[int, int, dict[str, int | Status]]  # device, time, and metrics: a value, or why there is none


def readings(*rows: Row) -> Readings:
    values = np.zeros((len(METRICS), len(rows)), np.int64)
    status = np.full(values.shape, Status.UNREAD, np.uint8)
    for at, (_, _, metrics) in enumerate(rows):
        for name, value in metrics.items():
            if isinstance(value, Status):
                status[ROW[name], at] = value
            else:
                values[ROW[name], at], status[ROW[name], at] = value, Status.OK
    device, ts = ([row[column] for row in rows] for column in (0, 1))
    return Readings(np.array(device, np.intp), np.array(ts, np.int64), values, status)


def power(device: int, ts: int, mw: int = 300_000) -> Row:
    return device, ts, {"power_mw": mw}


Step = Readings | tuple[Readings, list[Event]] | Exception | Callable[[], Readings]


@dataclass
class Script:
    """What the streams of a test do at each poll, and what became of them."""

    steps: list[Step] = field(default_factory=list)
    devices: list[Device] = field(default_factory=lambda: [Device("GPU-a", {"model": "X"}), Device("GPU-b")])
    refusing: Exception | None = None  # what `open` raises
    keeps: bool = False
    made: int = 0
    polls: int = 0
    calls: list[str] = field(default_factory=list)
    leave: Callable[[], object] = lambda: None
    last: list[Event] = field(default_factory=list)

    def stream(self) -> Scripted:
        self.made += 1
        return Scripted(self, self.made)


class Scripted:
    """A stream that plays a script; when it is over, nothing is new."""

    name = "scripted"
    period_ms: int | None = None
    poll_s = 0.02

    def __init__(self, script: Script, number: int) -> None:
        self._script, self._number = script, number
        self.keeps = script.keeps

    def open(self) -> None:
        self._script.calls.append(f"open {self._number}")
        if self._script.refusing is not None:
            raise self._script.refusing

    def devices(self) -> Sequence[Device]:
        return self._script.devices

    def poll(self) -> tuple[Readings, list[Event]]:
        self._script.polls += 1
        step: Step = self._script.steps.pop(0) if self._script.steps else readings()
        if isinstance(step, Exception):
            raise step
        if isinstance(step, tuple):
            return step
        return (step if isinstance(step, Readings) else step()), []

    def end(self) -> list[Event]:
        return self._script.last

    def close(self) -> None:
        self._script.calls.append(f"close {self._number}")
        self._script.leave()


def streamer(script: Script, kept: Kept, **more: Any) -> Streamer:
    first: Stream = script.stream()
    first.open()
    given: dict[str, Any] = {"interval_s": 0.02, "cluster": "c", "node": "n"} | more
    return Streamer(first, script.stream, kept, **given)


def played(script: Script, polls: int | None = None, **more: Any) -> Kept:
    """What is recorded of a script, on a clock that a test turns."""
    kept = Kept()
    number = len(script.steps) if polls is None else polls
    streamer(script, kept, clock=Turned(), **more).run(number * Scripted.poll_s)
    return kept


@contextmanager
def running(script: Script, kept: Kept | None = None, **more: Any) -> Iterator[Running]:
    """A streamer beside the test, on real clocks."""
    kept = kept or Kept()
    one = streamer(script, kept, **more)
    found = Running(one.source, kept, one)
    try:
        yield found
    finally:
        found.end()
    if found.failure is not None:
        raise found.failure


def instants(kept: Kept, gpu: str = "GPU-a") -> list[int]:
    """When its rows were taken, us after T0."""
    return [(row["ts"] - T0) // US for row in kept.of(gpu)]


# Rows


def test_a_poll_brings_rows_of_several_times() -> None:
    script = Script(
        [readings(power(1, T0 + 5 * US), power(0, T0 + 1 * US, 100), power(0, T0 + 3 * US, 200)), readings()]
    )
    kept = played(script)
    assert [(row["gpu"], (row["ts"] - T0) // US, row["power_mw"]) for row in kept.rows] == [
        ("GPU-b", 5, 300_000),
        ("GPU-a", 1, 100),
        ("GPU-a", 3, 200),
    ]
    assert {row["cluster"] for row in kept.rows} == {"c"}
    assert {row["read_us"] for row in kept.rows} == {row["energy_mj"] for row in kept.rows} == {None}
    assert [[device.gpu for device in devices] for devices in kept.identities] == [["GPU-a", "GPU-b"]]
    assert not kept.events


def test_what_has_no_value_is_null_and_told_once() -> None:
    steps: list[Step] = [
        readings((0, T0 + k * US, {"power_mw": 7, "energy_mj": Status.DENIED, "fan_speed": Status.UNSUPPORTED}))
        for k in range(5)
    ]
    kept = played(Script(steps))
    assert {(row["power_mw"], row["energy_mj"], row["fan_speed"]) for row in kept.rows} == {(7, None, None)}
    assert [(event["kind"], event["gpu"], event["metric"]) for event in kept.events] == [
        ("not_supported", "GPU-a", "fan_speed"),
        ("not_permitted", "GPU-a", "energy_mj"),
    ]


def test_rows_that_overlap_are_stored_once() -> None:
    steps: list[Step] = [
        readings(*(power(gpu, T0 + at * US) for gpu in (0, 1) for at in range(k, k + 6))) for k in range(0, 60, 3)
    ]
    kept = played(Script(steps))
    for gpu in ("GPU-a", "GPU-b"):
        assert instants(kept, gpu) == list(range(63))


def test_the_last_rows_of_each_gpu_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_REMEMBERED", 10)
    first, second = ([power(gpu, T0 + at * US) for at in range(25) for gpu in (1, 0)] for _ in range(2))
    twice = [*second[-18:], *second[-18:], power(0, T0 + 25 * US), power(0, T0 + 25 * US)]
    kept = played(Script([readings(*first), readings(*twice), readings(*twice)]))
    assert instants(kept, "GPU-a") == list(range(26))
    assert instants(kept, "GPU-b") == list(range(25))


def test_a_row_that_comes_late_is_stored_and_resets_nothing() -> None:
    def counted(at: int, mj: int) -> Readings:
        return readings((0, T0 + at * SECOND, {"energy_mj": mj}))

    kept = played(Script([counted(1, 1000), counted(3, 3000), counted(2, 2000), counted(4, 4000), counted(5, 50)]))
    assert [row["energy_mj"] for row in kept.rows] == [1000, 3000, 2000, 4000, 50]
    assert [(e["kind"], e["before"], e["value"]) for e in kept.events] == [("counter_reset", 4000.0, 50.0)]


def test_nothing_is_lost_where_the_source_goes_back_in_time() -> None:
    hour = 3600 * SECOND
    steps: list[Step] = [readings(power(0, T0 + k * SECOND)) for k in range(5)]
    steps += [readings((0, T0 - hour + k * SECOND, {"power_mw": Status.LOST})) for k in range(5)]
    kept = played(Script(steps))
    assert len(instants(kept)) == 10
    assert kept.kinds() == ["lost"]


def test_a_gpu_that_is_lost_and_returns() -> None:
    gone: Row = (1, T0 + 2 * US, {"power_mw": Status.LOST})
    script = Script([readings(power(0, T0 + 1 * US), power(1, T0 + 1 * US)), readings(power(0, T0 + 2 * US), gone)])
    script.steps += [readings((1, T0 + 3 * US, {"power_mw": Status.LOST})), readings(power(1, T0 + 4 * US))]
    kept = played(script)
    assert [row["quality"] for row in kept.of("GPU-b")] == [None, "lost", "lost", None]
    assert {row["quality"] for row in kept.of("GPU-a")} == {None}
    assert [(event["kind"], event["gpu"]) for event in kept.events] == [("lost", "GPU-b"), ("returned", "GPU-b")]


def test_gpus_that_come_later_and_in_another_order() -> None:
    script = Script()
    instance = Device("MIG-1", {"parent": "GPU-b", "mig_profile": "1g.10gb"}, parent=2)

    def more() -> Readings:
        script.devices = [Device("GPU-c"), instance, Device("GPU-b"), Device("GPU-a", {"model": "X"})]
        return readings(
            power(0, T0 + 2 * US, 3), power(1, T0 + 2 * US, 9), power(2, T0 + 2 * US, 2), power(3, T0 + 2 * US, 1)
        )

    script.steps = [readings(power(0, T0 + 1 * US, 1), power(1, T0 + 1 * US, 2)), more]
    kept = played(script)
    assert {(row["gpu"], row["power_mw"]) for row in kept.rows} == {
        ("GPU-a", 1),
        ("GPU-b", 2),
        ("GPU-c", 3),
        ("MIG-1", 9),
    }
    assert [(e["kind"], e["gpu"], e["n"]) for e in kept.events] == [("appeared", "GPU-c", None), ("mig", "GPU-b", 1)]
    assert "now there are: 1g.10gb" in kept.detail("mig")
    last = kept.identities[-1]
    assert [device.gpu for device in last] == ["GPU-a", "GPU-b", "GPU-c", "MIG-1"]
    assert last[3].parent == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_a_gpu_that_an_engine_does_not_list_any_more_is_lost(keeps: bool) -> None:
    script = Script([readings(power(0, T0), power(1, T0))], keeps=keeps)
    both = script.devices

    def fewer() -> Readings:
        script.devices = both[:1]
        return readings(power(0, T0 + SECOND))

    def again() -> Readings:
        script.devices = both
        return readings(power(0, T0 + 3 * SECOND), power(1, T0 + 3 * SECOND))

    script.steps += [fewer, readings(power(0, T0 + 2 * SECOND)), again]
    kept = played(script)
    assert len(kept.of("GPU-a")) == 4
    assert [(row["power_mw"], row["quality"]) for row in kept.of("GPU-b")] == [
        (300_000, None),
        *([(None, "lost")] * keeps),
        (300_000, None),
    ]
    assert kept.kinds("GPU-b") == ["lost", "returned"] * keeps


def test_marks_of_sensors_are_those_of_the_sampler() -> None:
    watts = [((k // 10) % 2) * 70 for k in range(400)]  # of utilisation, while the power stands still
    rows = [
        (gpu, T0 + k * SECOND // 10, {"power_mw": 250_000 + gpu * (k * 7919) % 5003, "utilization": used})
        for k, used in enumerate(watts)
        for gpu in (0, 1)
    ]
    steps: list[Step] = [readings(*rows[k : k + 40]) for k in range(0, 800, 40)]
    kept = played(Script(steps), interval_s=0.1, window_s=12.0)
    assert kept.of("GPU-a")[-1]["quality"] == "power_stuck"
    assert kept.kinds() == ["stuck_sensor"]
    assert {row["quality"] for row in kept.of("GPU-b")} == {None}


def test_events_of_the_source_are_stored() -> None:
    event = Event(EventKind.XID, "GPU-b", "XID 79: the GPU has fallen off the bus", T0, code=79)
    kept = played(Script([(readings(power(0, T0)), [event])]))
    assert [(e["kind"], e["gpu"], e["code"], e["ts"], e["node"]) for e in kept.events] == [
        ("xid", "GPU-b", 79, T0, "n")
    ]


def test_what_the_source_tells_at_the_end_is_stored_last() -> None:
    event = Event(EventKind.JOB_STATISTICS, "GPU-a", "all in all", T0, n=2)
    kept = played(Script([readings(power(0, T0))], last=[event]))
    assert [(e["kind"], e["gpu"], e["n"]) for e in kept.events][-1] == ("job_statistics", "GPU-a", 2)


# The grid


@pytest.mark.parametrize(("keeps", "first"), [(False, 0), (True, 20_000_000)])
def test_a_source_that_keeps_its_rows_is_polled_at_the_end_of_each_interval(keeps: bool, first: int) -> None:
    clock, asked = Turned(), []
    began = clock.now

    def ask() -> Readings:
        asked.append(clock.now - began)
        return readings()

    script = Script([ask] * 99, keeps=keeps)
    counts = streamer(script, Kept(), clock=clock).run(0.09)
    end = [90_000_000] if keeps else []
    assert asked == [first + k * 20_000_000 for k in range(4)] + end
    assert counts.ticks == len(asked)


@pytest.mark.parametrize("keeps", [True, False])
def test_polls_that_come_late_are_missed_only_where_the_source_keeps_nothing(keeps: bool) -> None:
    clock = Turned(plans=[(1_100_000_000, "hold", 200_000_000)])
    kept = Kept()
    counts = streamer(Script(keeps=keeps), kept, clock=clock).run(1.0)
    assert counts.missed == (0 if keeps else 10)
    assert kept.kinds() == ([] if keeps else ["missed_ticks"])


def test_what_the_source_has_kept_is_read_at_the_end() -> None:
    script = Script(keeps=True)
    with running(script) as one:
        one.until(lambda: script.polls >= 2)
        script.steps = [readings(power(0, T0 + k * US)) for k in range(1000)]
    assert one.counts is not None
    assert one.counts.ticks == script.polls
    assert len(one.kept.rows) == one.counts.rows >= 1


# A source that does not answer


def test_a_source_that_is_gone_is_one_event_and_is_tried_until_it_is_back() -> None:
    class Healing(Turned):
        """By which the source answers again after 6 s."""

        def sleep(self, ns: int) -> None:
            super().sleep(ns)
            if self.now > 7 * SECOND and script.refusing is not None:
                script.refusing, script.steps = None, [readings(power(0, T0 + 1 * US))]

    def refuse() -> Readings:
        script.refusing = InputError("connection refused")
        raise InputError("the engine has closed the connection")

    script, kept = Script([readings(power(0, T0)), refuse]), Kept()
    one = streamer(script, kept, clock=Healing())
    one.run(10.0)
    assert kept.kinds() == ["source_gone", "source_back"]
    gone, back = kept.events
    assert gone["detail"] == "the engine has closed the connection"
    assert back["duration_ns"] == pytest.approx(6 * SECOND, rel=0.1)
    assert instants(kept) == [0, 1]
    tries = script.calls.count("open 1") - 1
    assert 5 <= tries <= 7  # one a second
    assert script.calls.count("close 1") == tries
    assert one.watts is None  # GPU-b has told none


def test_a_source_that_hangs_is_left_and_another_connection_goes_on() -> None:
    released = threading.Event()

    def hang() -> Readings:
        released.wait(20)
        return readings(power(0, T0 + 77 * US))

    script = Script([readings(power(0, T0)), hang, readings(power(0, T0 + 1 * US)), readings(power(0, T0 + 2 * US))])
    with running(script, hung_s=0.5) as one:
        one.until(lambda: len(one.kept.rows) == 3)
        assert one.sampler.stuck_in
        released.set()
        one.until(lambda: "close 1" in script.calls)
        assert not one.sampler.stuck_in
    assert instants(one.kept) == [0, 1, 2]
    assert [(e["kind"], e["gpu"]) for e in one.kept.events if e["kind"] != "missed_ticks"] == [
        ("hung", None),
        ("source_back", None),
    ]
    assert script.made == 2
    assert [call for call in script.calls if call.startswith("open")] == ["open 1", "open 2"]


def test_a_source_that_hangs_whenever_it_is_asked_ends_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_MOST_HANGING", 3)
    released = threading.Event()

    def hang() -> Readings:
        released.wait(20)
        return readings()

    kept = Kept()
    one = streamer(Script([hang, hang, hang]), kept, hung_s=0.1)
    with pytest.raises(DeviceError, match=r"scripted: 3 connections hang, one after the other; restart"):
        one.run()
    released.set()
    assert [kind for kind in kept.kinds() if kind != "missed_ticks"] == ["hung"]


def test_a_hanging_source_does_not_keep_it_from_ending() -> None:
    released = threading.Event()

    def hang() -> Readings:
        released.wait(20)
        return readings(power(0, T0))

    script = Script([hang], keeps=True)
    with running(script, hung_s=1.0) as one:
        one.until(lambda: script.polls == 1)
    assert one.sampler.stuck_in
    released.set()
    assert not one.kept.rows


def test_a_source_that_hangs_while_it_is_closed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_LEAVING_S", 0.1)
    released = threading.Event()
    script = Script([readings(power(0, T0))], leave=lambda: released.wait(20))
    one = streamer(script, Kept(), clock=Turned())
    one.run(0.02)
    one.close()
    assert one.stuck_in
    released.set()


# The recorder


def test_a_store_that_takes_no_more_ends_it() -> None:
    class Full(Kept):
        def append(self, ticks: Ticks) -> None:
            if len(self.batches) == 3:
                raise StoreError("no space is left there")
            super().append(ticks)

    script, kept = Script([readings(power(0, T0 + k * US)) for k in range(9)]), Full()
    one = streamer(script, kept, clock=Turned())
    with pytest.raises(StoreError, match="no space is left"):
        one.run(1.0)
    assert one.counts.rows == len(kept.rows) == 3


def test_a_store_that_hangs_does_not_keep_it_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    class Hanging(Kept):
        def append(self, ticks: Ticks) -> None:
            if len(self.batches) == 3:
                released.wait(20)
            super().append(ticks)

    script, kept = Script([readings(power(0, T0 + k * US)) for k in range(9)]), Hanging()
    one = streamer(script, kept, hung_s=0.2)
    one.run(ended=lambda: "the store has not answered" in caplog.text)
    assert one.waiting_for_store
    assert one.counts.rows == 3
    released.set()


# As `whorl collect` runs it


def collected(script: Script, store: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """The verb in this process, reading a script in the place of dcgm."""
    given: list[dict[str, Any]] = []

    def made(**more: Any) -> Scripted:
        given.append(more)
        return script.stream()

    monkeypatch.setattr("whorl.collectors.collecting.find_stream", lambda _: made)
    new_store(store)
    arguments = ["collect", "--store", str(store), "--node", "n1", "--backend", "dcgm", *options]
    done = CliRunner().invoke(cli, arguments)
    asked = {"interval_s": 0.1, "slow_s": 10.0} if "0.1" in options else {"interval_s": 1.0, "slow_s": 10.0}
    assert {name: given[0][name] for name in asked} == asked
    assert all(more == given[0] for more in given)
    return done


def test_collect_stores_what_a_stream_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_OFTEN_NS", 100_000_000)
    hour, steps = 3600 * SECOND, list[Step]()
    steps += [readings(*(power(gpu, T0 + k * SECOND + gpu, k) for gpu in (0, 1) for k in (n, n + 1))) for n in range(5)]
    steps += [InputError("the engine has left"), readings(power(0, T0 - hour, 7))]  # and its clock was set back
    store = tmp_path / "S"
    done = collected(Script(steps), store, monkeypatch, "--interval", "0.1", "--duration", "1.5")
    assert done.exit_code == 0, done.stderr
    assert "stored 13 rows" in done.stderr
    assert "collecting from scripted: 2 GPUs (X, unknown), every 0.1 s" in done.stderr
    found = Store.open(store)
    told = found.sql("select gpu, count(*) n, count(distinct ts) d, sum(power_mw) s from telemetry group by gpu")
    assert sorted(map(tuple, (row.values() for row in told.to_pylist()))) == [
        ("GPU-a", 7, 7, 22),
        ("GPU-b", 6, 6, 15),
    ]
    kinds = found.sql("select kind, node from events where kind != 'missed_ticks' order by ts").to_pylist()
    assert [row["kind"] for row in kinds] == ["collect_began", "source_gone", "source_back", "collect_ended"]
    assert {row["node"] for row in kinds} == {"n1"}
    assert found.sql("select count(*) n from gpus").to_pylist() == [{"n": 2}]


def test_collect_says_why_a_stream_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(refusing=InputError("no engine answers at n:5555: is nv-hostengine running?"))
    done = collected(script, tmp_path / "S", monkeypatch)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no engine answers at n:5555: is nv-hostengine running?" in done.stderr
    assert "simulated" not in done.stderr


def test_collect_ends_at_once_where_nothing_but_a_new_process_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the library of the source would wait for its threads when a process ends."""
    released = threading.Event()

    def hang() -> Readings:
        released.wait(20)
        return readings()

    left: list[int] = []
    monkeypatch.setattr("whorl.collectors.collecting.os._exit", left.append)
    monkeypatch.setattr(streaming, "_MOST_HANGING", 2)
    done = collected(Script([readings(power(0, T0)), hang, hang]), tmp_path / "S", monkeypatch, "--hung", "0.12")
    released.set()
    assert left == [6]
    assert "scripted: 2 connections hang, one after the other" in done.stderr
    found = Store.open(tmp_path / "S")
    assert found.sql("select count(*) n from telemetry").to_pylist() == [{"n": 1}]
    assert found.sql("select count(*) n from events where kind = 'hung'").to_pylist() == [{"n": 1}]


def test_collect_ends_where_the_store_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("no space is left on the disk")

    script = Script([readings(power(0, T0))])
    monkeypatch.setattr("whorl.store.journal.Journal.append_columns", full)
    done = collected(script, tmp_path / "S", monkeypatch)
    assert done.exit_code == 3
    assert "no space is left on the disk" in done.stderr
    assert script.calls[-1] == "close 1"
