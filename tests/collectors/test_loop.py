"""The loop over a backend of two methods, which hangs, goes away, repeats itself, and shows other devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.collectors import sampler
from whorl.collectors.backend import BACKENDS, Backend, Device, Reading, Status
from whorl.errors import DeviceError, InputError, StoreError
from whorl.store import Store
from whorl.store.events import Event
from whorl.store.journal_file import Ticks
from whorl.store.metrics import METRICS, ROW
from whorl.store.vocabulary import EventKind
from whorl.tests.collectors.sampling import BUSY, Kept, Turned, sampler_of, sampling
from whorl.tests.stores import ask, new_store

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


class Thermometers(Backend):
    """All that a backend needs."""

    name = "thermometers"

    def devices(self) -> list[Device]:
        return [Device(f"GPU-{number}", {"model": "T"}) for number in range(3)]

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        for number, gpu in enumerate(gpus):
            yield reading(gpu, temperature_c=40 + number)


def reading(gpu: str, ts_ns: int | None = None, **metrics: int | Status) -> Reading:
    """A reading of some metrics: the value of each, or why there is none."""
    values, statuses = [0] * len(METRICS), bytearray([Status.UNREAD]) * len(METRICS)
    for name, value in metrics.items():
        if isinstance(value, Status):
            statuses[ROW[name]] = value
        else:
            values[ROW[name]], statuses[ROW[name]] = value, Status.OK
    return Reading(gpu, values, bytes(statuses), ts_ns)


def register(monkeypatch: pytest.MonkeyPatch, backend: type[Backend] | Callable[..., Backend]) -> None:
    """Make it the backend "thrown"."""
    monkeypatch.setattr(f"{__name__}.thrown", backend, raising=False)
    monkeypatch.setitem(BACKENDS, "thrown", f"{__name__}:thrown")


def collected(store: Path, *options: str) -> Result:
    """The verb in this process, with the backend "thrown"."""
    new_store(store)
    arguments = ["collect", "--store", str(store), "--node", "n1", "--backend", "thrown", "--interval", "0.1"]
    return CliRunner().invoke(cli, [*arguments, *options])


def test_a_backend_is_a_class_of_two_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, Thermometers)
    done = collected(tmp_path / "S", "--duration", "0.5")
    assert done.exit_code == 0, done.stderr
    assert "collecting from thermometers: 3 GPUs (T), every 0.1 s" in done.stderr
    rows = ask(tmp_path / "S", "select gpu, temperature_c t, power_mw p, count(read_us) n from telemetry group by all")
    assert {(row["gpu"], row["t"], row["p"]) for row in rows} == {(f"GPU-{n}", 40 + n, None) for n in range(3)}
    assert all(row["n"] >= 1 for row in rows)
    assert ask(tmp_path / "S", "select count(*) n from gpus") == [{"n": 3}]
    kinds = [row["kind"] for row in ask(tmp_path / "S", "select kind from events order by ts")]
    assert [kind for kind in kinds if kind not in BUSY] == ["collect_began", "collect_ended"]


# A source with a clock of its own

Step = list[Reading | Event] | Exception | Callable[[], list[Reading | Event]]


@dataclass
class Script:
    """What the backends of a test give at each tick, and what became of them. When it is over, nothing is new."""

    steps: list[Step] = field(default_factory=list)
    devices: list[Device] = field(default_factory=lambda: [Device("GPU-a", {"model": "X"}), Device("GPU-b")])
    refusing: Exception | None = None  # what `devices` raises
    made: int = 0
    asked: list[list[str]] = field(default_factory=list)
    looks: int = 0
    closed: list[int] = field(default_factory=list)
    last: list[Event] = field(default_factory=list)
    leave: Callable[[], object] = lambda: None

    def backend(self, *, one_by_one: bool = False) -> Scripted:
        self.made += 1
        return Scripted(self, self.made, one_by_one)


class Scripted(Backend):
    """A backend that plays a script."""

    name = "scripted"

    def __init__(self, script: Script, number: int, one_by_one: bool) -> None:
        self._script, self._number = script, number
        self.one_by_one = one_by_one  # type: ignore[misc]

    def devices(self) -> list[Device]:
        self._script.looks += 1
        if self._script.refusing is not None:
            raise self._script.refusing
        return list(self._script.devices)

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        self._script.asked.append(list(gpus))
        step: Step = self._script.steps.pop(0) if self._script.steps else []
        if isinstance(step, Exception):
            raise step
        yield from step if isinstance(step, list) else step()

    def close(self) -> list[Event]:
        self._script.closed.append(self._number)
        self._script.leave()
        return self._script.last


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets what hangs go on, at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def hanging(released: threading.Event, *readings: Reading) -> Callable[[], list[Reading | Event]]:
    """A step that hangs until it is released."""
    return lambda: [*readings] if released.wait(20) else []


def power(gpu: str, ts_ns: int, mw: int = 300_000) -> Reading:
    return reading(gpu, ts_ns, power_mw=mw)


def played(script: Script, ticks: int | None = None, *, one_by_one: bool = False, **more: Any) -> Kept:
    """What is recorded of a script, on a clock that a test turns, a tick every second."""
    kept = Kept()
    given: dict[str, Any] = {"interval_s": 1.0, "slow_s": 1.0, "clock": Turned(), "fresh": script.backend} | more
    sampler_of(script.backend(one_by_one=one_by_one), kept, **given).run(
        given["interval_s"] * (len(script.steps) if ticks is None else ticks)
    )
    return kept


def instants(kept: Kept, gpu: str = "GPU-a") -> list[int]:
    """When its rows were taken, s after T0."""
    return [(row["ts"] - T0) // SECOND for row in kept.of(gpu)]


def test_a_reading_that_is_given_twice_is_stored_once() -> None:
    times = [0, 0, 1, 2, 2, 1]
    kept = played(Script([[power("GPU-a", T0 + k * SECOND)] for k in times]))
    assert instants(kept) == [0, 1, 2, 1]
    assert {row["read_us"] for row in kept.rows} == {None}


def test_what_has_no_value_is_null_and_told_once() -> None:
    steps: list[Step] = [
        [reading("GPU-a", T0 + k * SECOND, power_mw=7, energy_mj=Status.DENIED, fan_speed=Status.UNSUPPORTED)]
        for k in range(5)
    ]
    kept = played(Script(steps))
    assert {(row["power_mw"], row["energy_mj"], row["fan_speed"]) for row in kept.rows} == {(7, None, None)}
    assert sorted((event["kind"], event["gpu"], event["metric"]) for event in kept.events) == [
        ("not_permitted", "GPU-a", "energy_mj"),
        ("not_supported", "GPU-a", "fan_speed"),
    ]


def test_a_number_beyond_its_column_is_null_and_the_others_stay() -> None:
    odd = reading("GPU-a", T0, power_mw=2**40, energy_mj=2**40, utilization=3, pstate=1)
    unknown = reading("GPU-b", T0, power_mw=2**31 - 1, pstate=32)  # says the driver
    rows = played(Script([[odd, unknown]])).rows
    names = ("power_mw", "energy_mj", "utilization", "pstate")
    assert [[row[name] for name in names] for row in rows] == [[None, 2**40, 3, 1], [2**31 - 1, None, None, None]]


@pytest.mark.parametrize(
    ("status", "kinds"), [(Status.LOST, ["lost", "returned"]), (Status.NEEDS_RESET, ["needs_reset", "returned"])]
)
def test_a_gpu_that_gives_nothing_and_returns(status: Status, kinds: list[str]) -> None:
    there = [power("GPU-a", T0), power("GPU-b", T0)]
    gone = reading("GPU-b", T0 + SECOND, power_mw=status)
    kept = played(Script([[*there], [gone], [gone], [power("GPU-b", T0 + 2 * SECOND)]]))
    assert [row["quality"] for row in kept.of("GPU-b")] == [None, kinds[0], None]
    assert {row["quality"] for row in kept.of("GPU-a")} == {None}
    assert [(event["kind"], event["gpu"]) for event in kept.events] == [(kind, "GPU-b") for kind in kinds]


def test_devices_that_come_later_and_in_another_order() -> None:
    script = Script()
    instance = Device("MIG-1", {"parent": "GPU-b", "mig_profile": "1g.10gb"}, parent="GPU-b")

    def more() -> list[Reading | Event]:
        script.devices = [Device("GPU-c"), instance, Device("GPU-b"), Device("GPU-a", {"model": "X"})]
        return [power("GPU-b", T0 + SECOND)]

    def fewer() -> list[Reading | Event]:
        script.devices.remove(instance)
        return []

    script.steps = [[power("GPU-a", T0), power("GPU-b", T0)], more, [power("GPU-c", T0), power("MIG-1", T0)], fewer, []]
    kept = played(script)
    assert [row["gpu"] for row in kept.rows] == ["GPU-a", "GPU-b", "GPU-b", "GPU-c", "MIG-1"]
    assert script.asked[2] == ["GPU-a", "GPU-b", "GPU-c", "MIG-1"]
    assert [(e["kind"], e["gpu"], e["n"]) for e in kept.events] == [
        ("appeared", "GPU-c", None),
        ("mig", "GPU-b", 1),
        ("mig", "GPU-b", 0),
    ]
    assert "1g.10gb" in next(event["detail"] for event in kept.events if event["kind"] == "mig")
    assert {device.gpu for device in kept.identities[-1]} == {"GPU-a", "GPU-b", "GPU-c", "MIG-1"}


def test_a_gpu_that_is_not_listed_any_more_is_lost_and_named() -> None:
    script = Script(devices=[Device("GPU-a"), Device("GPU-b", {"pci_bus_id": "00000000:3B:00.0"})])
    both = script.devices

    def fewer() -> list[Reading | Event]:
        script.devices = both[:1]
        return [power("GPU-a", T0 + SECOND), power("GPU-b", T0 + SECOND)]

    def again() -> list[Reading | Event]:
        script.devices = both
        return [power("GPU-a", T0 + 3 * SECOND)]

    there = [power("GPU-a", T0), power("GPU-b", T0)]
    script.steps = [[*there], fewer, [], again, [power("GPU-b", T0 + 4 * SECOND)]]
    kept = played(script)
    assert [(row["power_mw"], row["quality"]) for row in kept.of("GPU-b")] == [
        (300_000, None),
        (300_000, None),
        (None, "lost"),
        (300_000, None),
    ]
    assert [(e["kind"], e["gpu"], e["pci_bus_id"]) for e in kept.events] == [
        (kind, "GPU-b", "00000000:3B:00.0") for kind in ("lost", "returned")
    ]


def test_a_gpu_without_a_clock_of_its_own_that_is_not_listed_has_a_row_at_every_tick() -> None:
    script = Script()
    both = script.devices

    def fewer() -> list[Reading | Event]:
        script.devices = both[:1]
        return [reading("GPU-a", power_mw=1), reading("GPU-b", power_mw=1)]

    rest: list[Step] = [[reading("GPU-a", power_mw=1)] for _ in range(3)]
    script.steps = [fewer, *rest]  # it is looked for after the second
    kept = played(script, one_by_one=True)
    assert [row["quality"] for row in kept.of("GPU-b")] == [None, "lost", "lost"]
    assert kept.kinds() == ["lost"]


def test_events_of_the_source_and_of_asides_are_stored_also_beside_one_that_hangs(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.collectors.sampler._LEAVING_S", 0.5)

    class Hanging:
        interval_s = 60.0

        def look(self, devices: Sequence[Device]) -> list[Event]:
            released.wait(20)
            return []

        def close(self) -> None: ...

    class Log:
        interval_s = 60.0

        def look(self, devices: Sequence[Device]) -> list[Event]:
            return [Event(EventKind.XID, devices[0].gpu, "from the log", T0 + 1, code=63)]

    xid = Event(EventKind.XID, "GPU-b", "XID 79: the GPU has fallen off the bus", T0, code=79)
    last = Event(EventKind.HEALTH, "GPU-a", "all in all", T0, code=2)
    kept = played(Script([[power("GPU-a", T0), xid]], last=[last]), asides=[Hanging(), Log()])
    events = [(e["kind"], e["gpu"], e["code"], e["n"], e["node"]) for e in kept.events]
    assert ("xid", "GPU-b", 79, None, "n") in events
    assert ("health", "GPU-a", 2, None, "n") in events
    assert ("xid", "GPU-a", 63, None, "n") in events


def test_of_a_part_of_the_gpus_neither_readings_nor_events_of_others_are_stored() -> None:
    told = [Event(EventKind.XID, gpu, "XID 79", T0, code=79) for gpu in ("GPU-a", "GPU-b", None)]
    last = [Event(EventKind.HEALTH, gpu, "all in all", T0, code=2) for gpu in ("GPU-a", "GPU-b")]
    script = Script([[power("GPU-a", T0), *told]], last=last)
    kept = played(script, among=lambda devices: [device for device in devices if device.gpu == "GPU-a"])
    assert {row["gpu"] for row in kept.rows} == {"GPU-a"}
    events = [(event["kind"], event["gpu"]) for event in kept.events if event["kind"] in ("xid", "health")]
    assert events == [("xid", "GPU-a"), ("xid", None), ("health", "GPU-a")]


def test_marks_of_sensors_reach_the_rows() -> None:
    steps: list[Step] = [
        [
            reading("GPU-a", T0 + k * SECOND, power_mw=250_000, utilization=(k // 10) % 2 * 70),
            reading("GPU-b", T0 + k * SECOND, power_mw=250_000 + k * 7919 % 5003, utilization=(k // 10) % 2 * 70),
        ]
        for k in range(200)
    ]
    kept = played(Script(steps), window_s=120.0)
    assert kept.of("GPU-a")[-1]["quality"] == "power_stuck"
    assert [(event["kind"], event["gpu"]) for event in kept.events] == [("stuck_sensor", "GPU-a")]
    assert {row["quality"] for row in kept.of("GPU-b")} == {None}


# A source that does not answer


def test_a_source_that_is_gone_is_one_event_and_is_tried_once_a_second_until_it_is_back() -> None:
    class Healing(Turned):
        """By which the source answers again after 6 s."""

        def sleep(self, ns: int) -> None:
            super().sleep(ns)
            if self.now > 7 * SECOND and script.refusing is not None:
                script.refusing, script.steps = None, [[power("GPU-a", T0 + SECOND)]]

    def refuse() -> list[Reading | Event]:
        script.refusing = InputError("connection refused")
        raise InputError("the engine has closed the connection")

    script = Script([[power("GPU-a", T0)], refuse])
    kept = played(script, 100, interval_s=0.1, clock=Healing(), slow_s=60.0)
    assert [kind for kind in kept.kinds() if kind not in BUSY] == ["source_gone", "source_back"]
    gone, back = kept.events
    assert gone["detail"] == "the engine has closed the connection"
    assert back["duration_ns"] == pytest.approx(6 * SECOND, rel=0.1)
    assert instants(kept) == [0, 1]
    assert 6 <= script.looks <= 8


def test_a_source_that_hangs_is_left_and_another_connection_goes_on(released: threading.Event) -> None:
    hang, *shown = (power("GPU-a", T0 + second * SECOND) for second in (77, 0, 1, 2))
    script = Script([[shown[0]], hanging(released, hang), [shown[1]], [shown[2]]])
    with sampling(script.backend(), fresh=script.backend, hung_s=0.5, slow_s=60.0) as running:
        running.until(lambda: len(running.kept.rows) == 3)
        assert running.sampler.stuck_in
        released.set()
        running.until(lambda: 1 in script.closed)
        assert not running.sampler.stuck_in
    assert instants(running.kept) == [0, 1, 2]
    assert [(e["kind"], e["gpu"]) for e in running.kept.events if e["kind"] != "missed_ticks"] == [
        ("hung", None),
        ("source_back", None),
    ]
    assert script.made == 2


def test_a_source_that_hangs_whenever_it_is_asked_ends_the_collector(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_MOST_HANGING", 3)
    script, kept = Script([hanging(released)] * 3), Kept()
    loop = sampler_of(script.backend(), kept, fresh=script.backend, hung_s=0.1)
    with pytest.raises(DeviceError, match=r"scripted: 3 connections hang, one after the other; restart"):
        loop.run()
    assert [kind for kind in kept.kinds() if kind != "missed_ticks"] == ["hung"]


@pytest.mark.parametrize("where", ["read", "close"])
def test_a_hanging_source_does_not_keep_it_from_ending(where: str, released: threading.Event) -> None:
    hang = hanging(released, power("GPU-a", T0))
    script = Script([hang] if where == "read" else [], leave=released.wait if where == "close" else lambda: None)
    with sampling(script.backend(), fresh=script.backend, hung_s=1.0) as running:
        running.until(lambda: script.asked)
    assert running.sampler.stuck_in
    assert not running.kept.rows


# The recorder


def test_identities_that_take_long_to_store_cost_no_tick(released: threading.Event) -> None:
    class Slow(Kept):
        def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
            released.wait(20)
            super().identify(devices, seen_ns)

    kept = Slow()
    loop = sampler_of(Thermometers(), kept)
    loop.run(ended=lambda: len(kept.batches) >= 20 and (released.set() or True))  # type: ignore[func-returns-value]
    assert [device.gpu for device in kept.identities[-1]] == ["GPU-0", "GPU-1", "GPU-2"]


def test_identities_that_cannot_be_stored_end_it() -> None:
    class Full(Kept):
        def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
            raise StoreError("no space is left there")

    with pytest.raises(StoreError, match="no space is left"):
        sampler_of(Thermometers(), Full()).run(20.0)


def test_a_store_that_takes_no_more_ends_it() -> None:
    class Full(Kept):
        def append(self, ticks: Ticks) -> None:
            if len(self.batches) == 3:
                raise StoreError("no space is left there")
            super().append(ticks)

    kept = Full()
    loop = sampler_of(Thermometers(), kept, clock=Turned())
    with pytest.raises(StoreError, match="no space is left"):
        loop.run(1.0)
    assert loop.counts.rows == len(kept.rows) == 9


# As `whorl collect` runs it


def test_collect_ends_at_once_where_nothing_but_a_new_process_helps(
    tmp_path: Path, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the library of the source would wait for its threads when a process ends."""
    left: list[int] = []
    script = Script([[power("GPU-a", T0)], hanging(released), hanging(released)])
    register(monkeypatch, script.backend)
    monkeypatch.setattr("whorl.collectors.collect.os._exit", left.append)
    monkeypatch.setattr(sampler, "_MOST_HANGING", 2)
    done = collected(tmp_path / "S", "--set", "hung=0.12")
    assert left == [6]
    assert "scripted: 2 connections hang, one after the other" in done.stderr
    found = Store.open(tmp_path / "S")
    assert found.sql("select count(*) n from telemetry").to_pylist() == [{"n": 1}]
    assert found.sql("select count(*) n from events where kind = 'hung'").to_pylist() == [{"n": 1}]


def test_the_pace_can_be_changed_while_it_runs() -> None:
    with sampling(Thermometers(), clock=Turned(), interval_s=0.1) as running:
        running.ticks(3)
        running.sampler.pace(0.02)
        running.ticks(5)
    stamps = [row["ts"] for row in running.kept.of("GPU-0")]
    assert (stamps[1] - stamps[0], stamps[-1] - stamps[-2]) == (100_000_000, 20_000_000)
    assert "missed_ticks" not in running.kept.kinds()
