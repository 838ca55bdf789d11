"""Metrics for OpenTelemetry, as a receiver over HTTP gets them: names, units, attributes, times; each is sent once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from whorl.dashboards.exported import otlp
from whorl.dashboards.exported.exporter import Exporter, Settings
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.cli.calling import refusal, whorl
from whorl.tests.endless import HUGE, SLOW, serving
from whorl.tests.exported.receiver import Receiver, receiving
from whorl.tests.exported.rows import EVERY, SECOND, ago, batch, journal_of
from whorl.tests.stores import new_store

NOW = 1_800_000_000 * SECOND


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path / "store")
    columns: dict[str, list[Any]] = {
        "cluster": ["c", "c"], "gpu": ["g1", "g2"], "uuid": ["g1", "g2"], "node": ["n1", "n2"], "slot": [0, 0],
        "model": ["H100", "H100"], "serial": ["S1", "S2"], "driver": ["570.1", "570.1"], "vbios": ["96.00", None],
        "memory_total": [80 << 30, None],
    }  # fmt: skip
    store.append({"gpus": arrow_rows("gpus", columns)}, "gpus")
    return store


class Sent:
    """A sender whose clock the test sets."""

    def __init__(self, store: Store, receiver: Receiver) -> None:
        self.now = NOW + SECOND
        exporter = Exporter(store, Settings(), clock=lambda: self.now)
        exporter.refresh()
        self.sender = otlp.Sender(exporter, receiver.url, timeout_s=1.0, now_ns=NOW)
        self._receiver = receiver

    def points(self) -> list[dict[str, Any]]:
        """What arrives of one sending."""
        count = self.sender.send()
        document = self._receiver.points()
        assert len(document) == count
        return document


def only(points: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (point,) = (entry for entry in points if (entry["name"], entry["attributes"]["hw.id"]) == (name, "g1"))
    return point


def test_the_conventions_know_these_names_and_attributes() -> None:
    metrics = {value for name, value in vars(hw_metrics).items() if name.startswith("HW_")}
    names = {value for name, value in vars(hw_attributes).items() if name.startswith("HW_")}
    for entry in otlp.CONVENTIONS.values():
        assert entry.name in metrics
        assert {name for name, _ in entry.attributes if name.startswith("hw.")} <= names
    assert {*otlp._IDENTITY.values(), "hw.id", "hw.type"} <= names


def test_a_name_has_one_unit_and_one_sort_of_data(store: Store, receiver: Receiver) -> None:
    """Else a collector refuses the second."""
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "g1", **EVERY, "quality": "power_slow"}]))
        exporter = Exporter(store, Settings(), clock=lambda: NOW)
        exporter.refresh()
        by_name: dict[str, set[tuple[str, str]]] = {}
        for entry in exporter.series():
            if not entry.name.startswith("export") and entry.kind != "info":
                spelled = otlp.convention(entry)
                by_name.setdefault(spelled.name, set()).add((spelled.unit, spelled.data))
    assert not {name: document for name, document in by_name.items() if len(document) > 1}


@pytest.mark.long
def test_a_point_is_sent_once_with_the_time_of_its_reading(store: Store, receiver: Receiver) -> None:
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "g1", "power_mw": 1000, "fan_speed": 30}]))
        sent = Sent(store, receiver)
        assert {entry["time"] for entry in sent.points() if entry["name"] == "hw.power"} == {NOW}
        assert [entry for entry in sent.points() if entry["attributes"].get("hw.id") == "g1"] == []
        journal.append_batch(batch([{"ts": NOW + 5 * SECOND, "gpu": "g1", "power_mw": 2000, "fan_speed": None}]))
        sent.now += 5 * SECOND
        points = sent.points()
        assert (only(points, "hw.power")["value"], only(points, "hw.power")["time"]) == (2.0, NOW + 5 * SECOND)
        assert not [entry for entry in points if entry["name"] == "whorl.gpu.fan_speed"]


@pytest.mark.long
def test_a_counter_that_fell_begins_anew(store: Store, receiver: Receiver) -> None:
    with journal_of(store) as journal:
        starts = []
        sent = Sent(store, receiver)
        for at, joules in ((1, 500), (2, 600), (3, 10), (4, 20)):
            journal.append_batch(batch([{"ts": NOW + at * SECOND, "gpu": "g1", "energy_mj": 1000 * joules}]))
            sent.now = NOW + at * SECOND
            starts.append((only(sent.points(), "hw.energy")["start"] - NOW) // SECOND)
    assert starts == [0, 0, 2, 2]


def test_what_did_not_arrive_is_sent_again(store: Store, receiver: Receiver) -> None:
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "g1", "power_mw": 1000}]))
        sent = Sent(store, receiver)
        receiver.status = 400
        with pytest.raises(InputError, match=r"does not take the metrics .*400.*: see whether the collector runs"):
            sent.sender.send()
        receiver.status = 200
        assert only(sent.points(), "hw.power")["value"] == 1.0


def test_findings_are_sent_with_their_labels(store: Store, receiver: Receiver) -> None:
    columns: dict[str, list[Any]] = {"ts": [NOW], "cluster": ["c"], "gpu": ["g1"], "kind": ["xid"], "code": [79]}
    store.append({"events": arrow_rows("events", columns)}, "events")
    (event,) = (entry for entry in Sent(store, receiver).points() if entry["name"] == "whorl.gpu.events")
    assert (event["value"], event["data"], event["monotonic"]) == (1, "sum", True)
    assert event["attributes"]["whorl.kind"] == "xid"
    assert event["attributes"]["whorl.code"] == "79"


def test_once_sends_and_says_how_much(store: Store, receiver: Receiver) -> None:
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "g1", "power_mw": 1000}]))
    done = whorl("export otlp --once --max-age 9999d --store", store.root, "--endpoint", receiver.url + "/")
    assert done.exit_code == 0, done.output
    assert f"sent {len(receiver.points())} points to {receiver.url}/v1/metrics" in done.output


def test_packages_that_are_missing_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, otlp.__name__)
    sentence = refusal("export otlp --once --endpoint http://127.0.0.1:9 --store", store.root)
    assert "run pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" in sentence


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://a:1", "http://", "http://a:b", "grpc"])
def test_an_endpoint_that_is_none_is_told(store: Store, endpoint: str) -> None:
    sentence = refusal("export otlp --once --store", store.root, "--endpoint", endpoint)
    assert f"--endpoint {endpoint!r} is no address: write http://HOST:PORT" in sentence


@pytest.mark.parametrize(
    ("attack", "why"), [("dripped headers", "no answer within 1 s"), ("endless body", "more than 65,536 bytes")]
)
def test_a_collector_without_an_end_is_left(store: Store, attack: str, why: str) -> None:
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", "power_mw": 1000}]))
    with serving((SLOW | HUGE)[attack]) as (place, _):
        command = ("export otlp --once --store", store.root, "--endpoint", f"http://{place}")
        assert why in refusal(*command, "--interval", "1s" if attack in SLOW else "60s")


def test_it_goes_on_until_a_signal_and_says_when_the_collector_is_back(store: Store, receiver: Receiver) -> None:
    receiver.status = 400

    def meanwhile() -> None:
        receiver.asked.wait(60)
        receiver.status = 200
        receiver.taken.wait(60)
        time.sleep(0.5)  # its answer arrives, and is told
        os.kill(os.getpid(), signal.SIGTERM)

    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", "power_mw": 1000}]))
    helper = threading.Thread(target=meanwhile)
    helper.start()
    done = whorl("export otlp --interval 1s --store", store.root, "--endpoint", receiver.url)
    helper.join()
    assert done.exit_code == 0, done.output
    first, *lines = done.stderr.splitlines()
    assert first.endswith(f"sending the metrics of {store.root} to {receiver.url}/v1/metrics every 1 s")
    assert [line for line in lines if "does not take the metrics" in line and "tried again every 1 s" in line]
    assert [line for line in lines if "the metrics arrive again" in line]
    assert {point["value"] for point in receiver.points() if point["name"] == "hw.power"} == {1.0}
