"""The backend `prometheus`: pages of exporters over a real HTTP server, as rows and events."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from whorl.collectors.backend import Device, Reading, Status
from whorl.collectors.exporter.exporter import ExporterPages
from whorl.collectors.exporter.page import History, PageLimits
from whorl.errors import InputError
from whorl.store.events import Event
from whorl.store.metrics import METRICS, ROW
from whorl.store.vocabulary import EventKind
from whorl.tests.exporter import (
    BLANK,
    NOT_PERMITTED,
    NOT_SUPPORTED,
    SMI_VALUES,
    Answer,
    Exported,
    Exporter,
    exporting,
    page,
    smi_page,
    usual,
    uuid,
)
from whorl.tests.importing.test_damaged_logs import LOGS, damaged
from whorl.tests.sizes import count

BEGAN_NS = 1_763_632_800 * 10**9
_PARTS = {"1g.10gb": ("1g.10gb", "3"), "2g.20gb": ("2g.20gb", "5")}


class Read:
    """A backend that a test reads, and what it gave: rows as dictionaries, and events."""

    def __init__(self, *urls: str, **more: Any) -> None:
        self.backend = ExporterPages(url=urls, **{"interval_s": 1000.0} | more)
        self.devices: list[Device] = []
        self.rows: list[dict[str, Any]] = []
        self.events: list[Event] = []

    def open(self) -> Read:
        _OPEN.append(self.backend)
        self.devices = self.backend.devices()
        return self

    def poll(self) -> list[dict[str, Any]]:
        """The new rows: gpu, ts, each value that is not NULL, and under `status` those that are not OK nor unread."""
        new: list[dict[str, Any]] = []
        for reading in self.backend.read([device.gpu for device in self.devices], slow=True):
            if isinstance(reading, Event):
                self.events.append(reading)
            else:
                new.append(_row(reading))
        self.devices = self.backend.devices()
        self.rows += new
        return new

    def said(self, kind: EventKind) -> list[str]:
        return [event.detail for event in self.events if event.kind == kind]


def _row(reading: Reading) -> dict[str, Any]:
    metrics = list(zip(METRICS, reading.values, reading.statuses, strict=True))
    values = {metric.name: value for metric, value, status in metrics if status == Status.OK}
    other = {metric.name: Status(status) for metric, _, status in metrics if status > Status.UNREAD}
    return {"gpu": reading.gpu, "ts": reading.ts_ns, **values, "status": other}


_OPEN: list[ExporterPages] = []


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("whorl.collectors.exporter.exporter._PATIENCE_S", 20.0)  # this machine may be busy
    yield
    while _OPEN:
        _OPEN.pop().close()


class Pages:
    """What an exporter shows, which a test changes as it goes."""

    def __init__(self, text: str = "") -> None:
        self.now = Answer(text)

    def __call__(self, path: str) -> Answer:
        return self.now


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def exporter(pages: Pages) -> Iterator[Exporter]:
    with exporting(pages) as exporter:
        yield exporter


@pytest.mark.parametrize("version", ["1.x", "2.0", "2.x", "3.x", "4.x"])
def test_row_of_each_gpu_from_every_version(pages: Pages, exporter: Exporter, version: str) -> None:
    names = {"DCGM_FI_DEV_POWER_USAGE": "dcgm_power_usage"} if version == "1.x" else None
    pages.now = Answer(page([Exported(n, usual(100.5 + n)) for n in (0, 1)], version, names=names))
    before = time.time_ns()
    first, second = Read(exporter.url).open().poll()
    assert (first["gpu"], second["gpu"]) == (uuid(0), uuid(1))
    assert before <= first["ts"] <= time.time_ns()
    assert {name: value for name, value in first.items() if name not in ("gpu", "ts")} == {
        "sm_clock_mhz": 1410,
        "mem_clock_mhz": 1215,
        "temperature_c": 41,
        "power_mw": 100500,
        "energy_mj": 123456789012,
        "utilization": 97,
        "memory_used": 3821 << 20,
        "status": {},
    }


def test_who_the_gpus_are(pages: Pages, exporter: Exporter) -> None:
    labels = {"pod": "train-0", "namespace": "team", "container": "c", "hpc_job": "7"}
    pages.now = Answer(page([Exported(2, usual(), labels=labels)], "4.x"))
    (device,) = Read(exporter.url).open().devices
    assert device.gpu == uuid(2)
    assert device.row == {
        "uuid": uuid(2),
        "model": "NVIDIA A100-SXM4-80GB",
        "driver": "580.126.09",
        "pci_bus_id": "00000000:02:00.0",
        "node": "node-a",
        "slot": 2,
    }


def test_page_of_nvidia_gpu_exporter(pages: Pages, exporter: Exporter) -> None:
    pages.now = Answer(smi_page(1) + smi_page(2, "n7"))
    read = Read(exporter.url).open()
    rows = read.poll()
    assert [row["gpu"] for row in rows] == [uuid(1), uuid(2)]
    assert [{name: row[name] for name in row.keys() - {"gpu", "ts", "status"}} for row in rows] == [SMI_VALUES] * 2
    known = {"model": "NVIDIA L4", "driver": "580.1", "vbios": "95.04"}
    assert [device.row for device in read.devices] == [
        {"uuid": uuid(1), **known, "slot": 1},
        {"uuid": uuid(2), **known, "slot": 2, "node": "n7"},
    ]


def test_page_of_a_prometheus_has_many_nodes_and_its_own_times(pages: Pages, exporter: Exporter) -> None:
    now_ms = time.time_ns() // 10**6
    gpus = [
        Exported(n, usual(100 + n, 10**9 + now_ms), node=f"node-{n // 2}", stamp_ms=now_ms - 1000 * (n // 2))
        for n in range(4)
    ]
    pages.now = Answer(page(gpus, "federated"))
    read = Read(exporter.url).open()
    rows = read.poll()
    assert [(row["gpu"], row["ts"]) for row in rows] == [
        (uuid(gpu.number), (gpu.stamp_ms or 0) * 10**6) for gpu in gpus
    ]
    assert [device.row["node"] for device in read.devices] == ["node-0", "node-0", "node-1", "node-1"]
    for gpu in gpus[:2]:
        gpu.stamp_ms = now_ms + 1000
        gpu.values["DCGM_FI_DEV_POWER_USAGE"] = 300
    pages.now = Answer(page(gpus, "federated"))
    assert [(row["gpu"], row["power_mw"]) for row in read.poll()] == [(uuid(0), 300000), (uuid(1), 300000)]


def test_page_with_the_same_numbers_gives_no_row(pages: Pages, exporter: Exporter) -> None:
    """The exporter reads its GPUs now and then: what it shows until then is no new reading."""
    gpus = [Exported(0, usual()), Exported(1, usual())]
    pages.now = Answer(page(gpus))
    read = Read(exporter.url).open()
    assert len(read.poll()) == 2
    assert read.poll() == []
    gpus[1].values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] = 123456789013
    pages.now = Answer(page(gpus))
    assert len(read.poll()) == 2  # the page is new, also for the GPU whose numbers are not


def test_prometheus_that_repeats_an_exporters_numbers_at_new_times(pages: Pages, exporter: Exporter) -> None:
    gpu = Exported(0, usual(), stamp_ms=time.time_ns() // 10**6)
    pages.now = Answer(page([gpu], "federated"))
    read = Read(exporter.url).open()
    assert len(read.poll()) == 1
    assert gpu.stamp_ms is not None
    gpu.stamp_ms += 15_000
    pages.now = Answer(page([gpu], "federated"))
    assert read.poll() == []


def test_page_of_a_clock_far_ahead_is_not_stored_and_that_is_told(pages: Pages, exporter: Exporter) -> None:
    pages.now = Answer(page([Exported(0, usual(), stamp_ms=time.time_ns() // 10**6 + 7_200_000)], "federated"))
    read = Read(exporter.url).open()
    assert read.poll() == []
    (told,) = [event for event in read.events if event.kind == EventKind.EXPORTER]
    assert "more than an hour ahead of this node's clock; its readings are not stored: set the clocks" in told.detail
    assert told.metric == "ts"  # so that who watches the collector hears of it


def test_stuck_exporter_is_told_once_and_its_end_too(pages: Pages, exporter: Exporter) -> None:
    pages.now = Answer(page([Exported(0, usual())]))
    read = Read(exporter.url, stale_s=0.1).open()
    read.poll()
    for _ in range(1000):
        assert read.poll() == []
        if read.said(EventKind.SOURCE_GONE):
            break
    assert read.poll() == []
    (said,) = read.said(EventKind.SOURCE_GONE)
    assert said.startswith(f"{exporter.url} of node-a has shown the same numbers for 0 s")
    pages.now = Answer(page([Exported(0, usual(160))]))
    assert len(read.poll()) == 1
    assert len(read.said(EventKind.SOURCE_BACK)) == 1


def test_a_gpu_is_lost_while_others_of_its_node_are_shown_or_after_a_day() -> None:
    history, second = History("http://n1:9400/metrics", None, 120 * 10**9, PageLimits()), 10**9

    def listed(at_s: int, *numbers: int) -> list[str]:
        text = page([Exported(number, usual(100 + at_s)) for number in numbers])
        history.take(text.encode(), asked_ns=BEGAN_NS + at_s * second, now_ns=at_s * second)
        return [device.gpu for device in history.devices]

    both = [uuid(0), uuid(1)]
    assert listed(1000, 0, 1) == listed(1100, 0) == listed(1120, 0) == both
    assert listed(1121, 0) == [uuid(0)]
    assert listed(1200, 0, 1) == both
    for at_s in range(1300, 87600, 100):
        assert listed(at_s) == both
    assert listed(87601) == []


def test_series_of_a_gpu_that_were_scraped_at_two_times_are_one_row_at_that_of_its_energy(
    pages: Pages, exporter: Exporter
) -> None:
    now_ms = time.time_ns() // 10**6
    values = usual()
    energy = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": values.pop("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")}
    parts = [Exported(0, values, stamp_ms=now_ms), Exported(0, energy, stamp_ms=now_ms - 3000)]
    pages.now = Answer("".join(page([part], "federated") for part in parts))
    read = Read(exporter.url).open()
    (row,) = read.poll()
    assert (row["ts"], row["power_mw"]) == ((now_ms - 3000) * 10**6, 155342)
    parts[0].stamp_ms = now_ms + 1000
    parts[0].values["DCGM_FI_DEV_POWER_USAGE"] = 170
    pages.now = Answer("".join(page([part], "federated") for part in parts))
    (row,) = read.poll()
    assert (row["ts"], row["power_mw"]) == ((now_ms + 1000) * 10**6, 170000)
    assert "energy_mj" not in row  # it is not newer


# -- numbers that are none ----------------------------------------------------------------------------------


def test_blanks_and_strange_numbers_are_null(pages: Pages, exporter: Exporter) -> None:
    values = usual(
        "NaN",
        "9.223372036854776e+18",
        DCGM_FI_DEV_MEMORY_TEMP=NOT_SUPPORTED,
        DCGM_FI_DEV_GPU_UTIL=NOT_PERMITTED,
        DCGM_FI_DEV_SM_CLOCK=BLANK,
        DCGM_FI_DEV_GPU_TEMP="+Inf",
        DCGM_FI_DEV_FB_USED="ERROR - FAILED TO CONVERT TO STRING",
        DCGM_FI_DEV_FAN_SPEED=100000,
    )
    pages.now = Answer(page([Exported(0, values)]))
    read = Read(exporter.url).open()
    (row,) = read.poll()
    assert set(row) - {"gpu", "ts", "status"} == {"mem_clock_mhz"}
    assert row["status"] == {
        "power_mw": Status.FAILED,
        "temperature_c": Status.FAILED,
        "memory_temperature_c": Status.UNSUPPORTED,
        "utilization": Status.DENIED,
        "memory_used": Status.FAILED,
        "fan_speed": Status.FAILED,
    }
    assert read.said(EventKind.EXPORTER) == [f"{exporter.url}: DCGM_FI_DEV_FAN_SPEED cannot be 100000; NULL is stored"]


def test_damaged_lines_cost_only_themselves(pages: Pages, exporter: Exporter) -> None:
    good = page([Exported(0, usual())])
    pages.now = Answer(good + '<p>\nDCGM_FI_DEV_PSTATE{gpu="0\n\x00\xff\n' + good.splitlines()[-1])
    read = Read(exporter.url).open()
    (row,) = read.poll()
    assert row["power_mw"] == 155342
    assert [said.partition(": ")[2] for said in read.said(EventKind.EXPORTER)] == [
        "the page ends within a line, which is left out",
        f"line {good.count(chr(10)) + 1} of the page cannot be read (it does not begin with the name of a metric); "
        "it is left out",
    ]


def test_damaged_pages_never_end_the_collector() -> None:
    """No page is an error of the program, and no number that is stored is one that the metric cannot have."""
    r, history, rows = random.Random(1), History("http://n1:9400/metrics", None, 120 * 10**9, PageLimits()), 0
    for number in range(count(800, short=200)):
        body = damaged(LOGS[r.choice(("page", "federated"))], r)
        for reading in history.take(body, asked_ns=BEGAN_NS + number * 10**9, now_ns=number * 10**9)[0]:
            rows += 1
            values = _row(reading)
            assert all(value >= -60 for name, value in values.items() if name not in ("gpu", "status"))
            assert values.get("power_mw", 0) <= 5_000_000
            assert values.get("utilization", 0) <= 100
    assert rows > number


def test_two_values_of_one_gpu(pages: Pages, exporter: Exporter) -> None:
    """The GPU's own series counts, not what a pod has of it; of two pods nobody knows which."""
    whole, one, two = (
        Exported(0, {"DCGM_FI_DEV_GPU_UTIL": util, "DCGM_FI_DEV_GPU_TEMP": 40}, labels={"pod": pod})
        for util, pod in ((75, ""), (25, "a"), (50, "b"))
    )
    pages.now = Answer(page([one, whole, two]))
    (row,) = Read(exporter.url).open().poll()
    assert row["utilization"] == 75
    pages.now = Answer(page([one, two]))
    read = Read(exporter.url).open()
    (row,) = read.poll()
    assert row["temperature_c"] == 40
    assert row["status"] == {"utilization": Status.FAILED}
    assert "DCGM_FI_DEV_GPU_UTIL has two values for one GPU" in read.said(EventKind.EXPORTER)[0]


def test_mig_instances_have_rows_of_their_own_and_power_is_of_the_whole_gpu(pages: Pages, exporter: Exporter) -> None:
    parts = [
        Exported(
            0,
            usual(52.1 + number, DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.25 * (number + 1), DCGM_FI_DEV_FB_USED=100 + number),
            instance=part,
        )
        for number, part in enumerate(_PARTS.values())
    ]
    pages.now = Answer(page(parts, "4.x"))
    read = Read(exporter.url).open()
    whole, small, large = read.poll()
    assert (whole["gpu"], whole["power_mw"], whole["energy_mj"]) == (uuid(0), 52100, 123456789012)
    assert not {"gr_engine_active_ppm", "memory_used", "utilization"} & whole.keys()
    of_parts = [{key: row[key] for key in row.keys() - {"gpu", "ts", "status"}} for row in (small, large)]
    assert of_parts == [
        {"gr_engine_active_ppm": 250_000, "memory_used": 100 << 20},
        {"gr_engine_active_ppm": 500_000, "memory_used": 101 << 20},
    ]
    devices = read.devices
    assert [(d.gpu, d.parent, d.row.get("parent"), d.row.get("mig_profile")) for d in devices] == [
        (uuid(0), None, None, None),
        (f"{uuid(0)}:GI3", uuid(0), uuid(0), "1g.10gb"),
        (f"{uuid(0)}:GI5", uuid(0), uuid(0), "2g.20gb"),
    ]


# -- XIDs, names --------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [[43, 43, 0, 79, 79], [None, 79, None, 79]])
def test_new_xid_is_an_event(pages: Pages, exporter: Exporter, shown: list[int | None]) -> None:
    """What was there at first happened before; some exporters have no series of XIDs before the first one."""
    read = Read(exporter.url)
    for number, xid in enumerate(shown):
        values = usual(100 + number) | {"DCGM_FI_DEV_XID_ERRORS": xid or 0}
        if xid is None:
            del values["DCGM_FI_DEV_XID_ERRORS"]
        pages.now = Answer(page([Exported(0, values)]))
        if not number:
            read.open()
        read.poll()
    xids = [event for event in read.events if event.kind == EventKind.XID]
    assert [(event.gpu, event.code) for event in xids] == [(uuid(0), 79)]


def test_metric_that_is_not_on_the_page_any_more_is_told_once(pages: Pages, exporter: Exporter) -> None:
    read = Read(exporter.url)
    pages.now = Answer(page([Exported(0, usual())], names={"DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_WATTS"}))
    assert "power_mw" not in read.open().poll()[0]
    names = {"DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_GPU_TEMP": "DCGM_FI_DEV_HEAT"}
    for watts in (160, 161):
        pages.now = Answer(page([Exported(0, usual(watts))], names=names))
        (row,) = read.poll()
        assert row["power_mw"] == 1000 * watts
        assert "temperature_c" not in row
    events = [event for event in read.events if event.kind == EventKind.EXPORTER]
    assert [(event.metric, event.detail.partition(": ")[2]) for event in events] == [
        (column, f"{name} is not on the page, so {column} is NULL; on it, and unknown to whorl: {other}")
        for column, name, other in (
            ("power_mw", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_WATTS"),
            ("temperature_c", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_HEAT"),
        )
    ]


# -- servers that do not give a page ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer("oops", 500), "it answers 500 Internal Server Error; look into the exporter's log"),
        (Answer("", 404), "it answers 404 Not Found; dcgm-exporter's page is /metrics"),
        (Answer("", 401), "it answers 401 Unauthorized; give a user and a password"),
        (
            Answer("<html>", headers={"Content-Type": "text/html"}),
            "its page is text/html, not the text that Prometheus",
        ),
        (Answer(page([Exported(0, usual())]), cut=40), "its page is cut short"),
        (Answer(page([Exported(0, usual())]), packed=True), "its page is packed (gzip)"),
        (
            Answer("", 302, {"Location": "/there"}),
            "it answers 302 Found; redirections are not followed: give the address",
        ),
        (Answer(""), "shows no GPU: it has no metric of DCGM"),
        (
            Answer("# HELP DCGM_FI_DEV_SM_CLOCK x\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"),
            "shows no GPU: it has no metric",
        ),
        (Answer('DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1\n'), "shows no GPU: its series have no UUID"),
        (
            Answer('DCGM_FI_NEW{gpu="0",UUID="GPU-1"} 1\n'),
            "shows no GPU: whorl knows none of its metrics (DCGM_FI_NEW)",
        ),
        (Answer("node_load1 0.5\n"), "shows no GPU: it has no metric of DCGM"),
        (Answer("<p>hello\n"), "shows no GPU: line 1 cannot be read"),
    ],
)
def test_no_page_is_one_sentence(pages: Pages, exporter: Exporter, answer: Answer, why: str) -> None:
    pages.now = answer
    with pytest.raises(InputError) as error:
        Read(exporter.url).open()
    assert str(error.value).startswith(exporter.url)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "it closed the connection without an answer"),
        (b"220 mail.site.org ESMTP\r\n", "it does not speak HTTP; check the port"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "shows no GPU"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"A: " + b"a" * 70_000 + b"\r\n\r\n",
            "got more than 65536 bytes when reading header line",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", "its page is cut short"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc", "its page is cut short"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\nabc", "its page is cut short"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc\n", "shows no GPU"),
    ],
)
def test_server_of_anything_is_one_sentence(sent: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection = server.accept()[0]
            connection.recv(4096)
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(4096)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(InputError) as error:
            Read(f"http://127.0.0.1:{server.getsockname()[1]}/metrics").open()
        assert why in str(error.value)
        thread.join(10)


def test_addresses_without_a_server() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/metrics"
        with pytest.raises(InputError, match="nothing listens there"):
            Read(url).open()
    no_address = "is no address of a page; an example is http://localhost:9400/metrics"
    urls = ("node:9400", "ftp://node/metrics", "http://", "http://node:x/", "http://no de/", "")
    for addresses, sentence in (
        (["http://no-such-host.invalid:9400"], r"its host is not known .*; check the name"),
        (["http://node..site:9400"], "its host cannot be a name; check it"),
        *(([url], no_address) for url in urls),
        ([], "write prometheus:url="),
    ):
        with pytest.raises(InputError, match=sentence):
            Read(*addresses).open()


def test_password_is_sent_and_never_shown(pages: Pages, exporter: Exporter) -> None:
    pages.now = Answer("", 403)
    with pytest.raises(InputError) as error:
        Read(exporter.url.replace("//", "//me:se%40cret@")).open()
    assert exporter.asked[0][1]["Authorization"] == "Basic bWU6c2VAY3JldA=="
    assert "cret" not in str(error.value)


def test_one_of_several_exporters_is_down(pages: Pages, exporter: Exporter) -> None:
    pages.now = Answer(page([Exported(0, usual())]))
    other = Pages(page([Exported(1, usual(), node="node-b")]))
    with exporting(other) as second:
        read = Read(exporter.url, second.url).open()
        assert {row["gpu"] for row in read.poll()} == {uuid(0), uuid(1)}
        good, other.now = other.now, Answer("", 500)
        for watts in (200, 201):
            pages.now = Answer(page([Exported(0, usual(watts))]))
            assert [row["gpu"] for row in read.poll()] == [uuid(0)]
        assert read.said(EventKind.SOURCE_GONE) == [
            f"{second.url}: it answers 500 Internal Server Error; look into the exporter's log"
        ]
        other.now = Answer(page([Exported(1, usual(170), node="node-b")]))
        assert [row["gpu"] for row in read.poll()] == [uuid(1)]
        assert len(read.said(EventKind.SOURCE_BACK)) == 1
        pages.now = other.now = Answer("", 500)
        with pytest.raises(InputError) as error:
            read.poll()
        assert str(error.value).count("it answers 500") == 2
        assert good.body


def test_columns_of_the_page_are_all_read(pages: Pages, exporter: Exporter) -> None:
    """Each metric that an exporter can print arrives in its column, under its newest and under its oldest name."""
    for which in (0, -1):
        values: dict[str, float | int | str] = {m.prometheus[which]: 1 for m in METRICS if m.prometheus}
        pages.now = Answer(page([Exported(0, values)]))
        (row,) = Read(exporter.url).open().poll()
        expected = {m.name for m in METRICS if m.prometheus}
        assert row.keys() - {"gpu", "ts", "status"} == expected
        assert row["power_mw"] == 1000
        assert ROW["power_mw"] == 0
