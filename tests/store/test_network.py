"""Whoever asks a server that never ends is answered in time, reads a bounded number of bytes, and leaves it."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest

from whorl.store.system.network import TooLarge, fetch
from whorl.tests.endless import GIVE_UP_S, HUGE, SLOW, dripped, serving

MOST = 1 << 16


def _asked(url: str, timeout_s: float = 0.3) -> None:
    fetch(urllib.request.Request(url), timeout_s=timeout_s, most_bytes=MOST)


@pytest.mark.parametrize("attack", SLOW)
def test_a_slow_server_is_left_when_the_time_is_over(attack: str) -> None:
    with serving(SLOW[attack]) as (place, _), pytest.raises(TimeoutError):
        _asked(f"http://{place}/")


def test_a_slow_handshake_is_left_when_the_time_is_over() -> None:
    with serving(lambda: dripped(b"\x16\x03\x03\x40\x00", b"\0", b"")) as (place, _), pytest.raises(TimeoutError):
        _asked(f"https://{place}/")


def test_a_name_that_is_not_found_in_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    looked_up = []

    def look_up(host: str, *_: object, **__: object) -> None:
        looked_up.append(host)
        over.wait(GIVE_UP_S)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            _asked("http://node.example/")
    assert looked_up == ["node.example"]  # no thread for each try
    over.set()
    with pytest.raises(socket.gaierror):
        _asked("http://node.example/", GIVE_UP_S)


@pytest.mark.parametrize("attack", HUGE)
def test_no_more_is_read_than_was_allowed(attack: str) -> None:
    with serving(HUGE[attack], pause_s=0) as (place, sent), pytest.raises(TooLarge):
        _asked(f"http://{place}/", GIVE_UP_S)
    assert sent[0] < 64 << 20, "what was read, and what the kernel holds"
