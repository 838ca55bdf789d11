"""The page over HTTP, from a real server, while a collector writes to the store."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from whorl.dashboards.exported import findings
from whorl.dashboards.exported.exporter import LIMITS, PATH, Exporter, Settings
from whorl.dashboards.serving import Server, address
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.attacks import attacked
from whorl.tests.exported.rows import ago, batch, journal_of, metrics_server


@contextmanager
def serving(store: Store) -> Iterator[str]:
    exporter = Exporter(store, Settings())
    server = metrics_server(exporter)
    exporter.start()
    server.start()
    try:
        yield server.url
    finally:
        server.close()
        exporter.close()


def fetched(url: str, **headers: str) -> tuple[bytes, dict[str, str]]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.read(), dict(answer.headers)


def watts(text: bytes) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.decode().splitlines() if line.startswith("whorl_gpu_power_watts{")]


def test_each_page_has_the_newest_reading(store: Store) -> None:
    with serving(store) as url, journal_of(store) as journal:
        assert watts(fetched(url)[0]) == []
        for milliwatts in (100_000, 250_500):
            journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", "power_mw": milliwatts}]))
            text, headers = fetched(url)
            assert watts(text) == [str(milliwatts / 1000)]
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        packed, headers = fetched(url, **{"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert watts(gzip.decompress(packed)) == watts(text)


def test_a_page_does_not_wait_for_the_findings(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hang here, and the page has the readings all the same."""
    started, go_on = threading.Event(), threading.Event()
    find = findings.find

    def hanging(*arguments: Any) -> findings.Conclusions:
        started.set()
        go_on.wait(60)
        return find(*arguments)

    monkeypatch.setattr(findings, "find", hanging)
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", "power_mw": 5000}]))
        with serving(store) as url:
            assert started.wait(60)
            text = fetched(url)[0]
            go_on.set()
    assert watts(text) == ["5.0"]
    assert b"whorl_export_findings_timestamp_seconds" not in text


def test_other_addresses_are_no_pages(store: Store) -> None:
    with serving(store) as url:
        root = url.removesuffix("/metrics")
        assert b'href="/metrics"' in fetched(root + "/")[0]
        for status, request in (("404", root + "/other"), ("405", urllib.request.Request(url, data=b"x"))):
            with pytest.raises(urllib.error.HTTPError, match=status):
                urllib.request.urlopen(request, timeout=60)
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=30) as answer:
            assert int(answer.headers["Content-Length"]) > 0
            assert answer.read() == b""


def test_a_store_that_is_gone_gives_no_page_and_a_sentence(store: Store) -> None:
    """Prometheus notes that the target is down. Old values would look like new ones."""
    with serving(store) as url:
        fetched(url)
        journals = store.root / "journal"
        shutil.rmtree(journals, ignore_errors=True)
        journals.write_text("no folder")
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            fetched(url)
        assert "cannot read" in caught.value.read().decode()
        journals.unlink()
        journals.mkdir()
        fetched(url)
        away = store.root.rename(store.root.with_name("away"))
        for empty in (False, True):  # as where a file system is unmounted
            if empty:
                store.root.mkdir()
            with pytest.raises(urllib.error.HTTPError, match="503"):
                fetched(url)
        store.root.rmdir()
        away.rename(store.root)
        fetched(url)


def test_an_address_that_cannot_be_listened_at_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        for host, port, sentence in (
            ("127.0.0.1", used, f"port {used}: another program listens there; choose another port"),
            ("192.0.2.1", 0, "this machine has no such address"),
            ("no-such-host.invalid", 0, "nothing is known of the host"),
        ):
            with pytest.raises(InputError, match=sentence):
                Server(lambda *_: [], host, port, LIMITS)


def test_what_an_address_means() -> None:
    for text, place in {
        "127.0.0.1:9500": ("127.0.0.1", 9500),
        "[::1]:9500": ("::1", 9500),
        ":9500": ("", 9500),
    }.items():
        assert address(text) == place


def test_many_clients_that_do_not_end_their_requests_stop_no_other(store: Store) -> None:
    """Some send no byte, some a half request, some a byte now and then. They wait where there is room, and then go."""
    exporter = Exporter(store, Settings())
    with attacked(metrics_server(exporter), clients=200) as ask:
        for _ in range(3):
            assert ask(PATH).startswith(b"HTTP/1.1 200 OK")
        assert ask(PATH, b"Content-Length: 9999\r\n").startswith(b"HTTP/1.1 413")


def test_a_request_that_does_not_end_is_closed(store: Store) -> None:
    limits = replace(LIMITS, arrive_s=0.5)
    server = metrics_server(Exporter(store, Settings()), limits)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as dripping:
        dripping.settimeout(0.05)
        dripping.sendall(b"GET /metrics HTTP/1.1\r\nA: ")
        for _ in range(2_000):
            with contextlib.suppress(TimeoutError):
                assert dripping.recv(1) == b""
                break
            dripping.sendall(b"a")
        else:
            pytest.fail("it is still open")
    server.close()


@pytest.mark.long
def test_a_signal_ends_the_command_in_order(store: Store) -> None:
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": "g1", "power_mw": 7000}]))
    command = [sys.executable, "-m", "whorl", "export", "prometheus", "--store", str(store.root)]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert watts(fetched(line.split()[-1])[0]) == ["7.0"]
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, stderr) == (0, "")
