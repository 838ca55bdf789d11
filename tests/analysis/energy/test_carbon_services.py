"""Services on the network: a local server in their place; and that nothing is fetched unless one is configured."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from whorl.analysis.energy.billing import cuts, rates_between
from whorl.analysis.energy.outlook import NoStart, WaitingJob, greenest
from whorl.analysis.energy.settings import EnergySettings, read_settings
from whorl.errors import InputError, StoreError, WhorlError
from whorl.tests.endless import SLOW, serving

_HOUR = 3600 * 10**9
_BEGAN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**9

Answer = Callable[[str, dict[str, str]], Any]


class Place:
    """A server on this machine in the place of a service: what was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.answer: Answer = lambda path, question: (200, {})
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urllib.parse.urlsplit(self.path)
                question = dict(urllib.parse.parse_qsl(parts.query))
                place.asked.append(
                    (parts.path, question, {name.lower(): value for name, value in self.headers.items()})
                )
                status, body = place.answer(parts.path, question)
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                with contextlib.suppress(OSError):  # who asked may have gone
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ELECTRICITY_MAPS_KEY", "a-key")
    monkeypatch.setenv("WATTTIME_USER", "me")
    monkeypatch.setenv("WATTTIME_PASSWORD", "secret")
    server = Place()
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


def _settings(folder: Path, url: str, service: str = "electricity_maps", extra: str = "") -> EnergySettings:
    (folder / "energy.toml").write_text(f'zone = "DE"\n[{service}]\nurl = "{url}"\n{extra}\n')
    return read_settings(folder / "energy.toml")


def _of_electricity_maps(path: str, question: dict[str, str]) -> Any:
    began, ended = (datetime.fromisoformat(question[name]) for name in ("start", "end"))
    first, last = (int(moment.timestamp()) // 3600 for moment in (began, ended))
    return 200, {
        "zone": question["zone"],
        "data": [
            {"datetime": datetime.fromtimestamp(hour * 3600, UTC).isoformat(), "carbonIntensity": hour % 24 * 10}
            for hour in range(first, last + 1)
            if hour % 24 != 5
        ],
    }


def test_hours_are_asked_once_and_kept(place: Place, tmp_path: Path) -> None:
    place.answer = _of_electricity_maps
    settings = _settings(tmp_path, place.url)
    steps = rates_between(settings, _BEGAN, _BEGAN + 24 * 12 * _HOUR, ["alpha"])
    assert len(place.asked) == 2  # ten days each
    path, question, headers = place.asked[0]
    assert path == "/carbon-intensity/past-range"
    assert question == {"zone": "DE", "start": "2026-01-01T00:00:00Z", "end": "2026-01-11T00:00:00Z"}
    assert headers["auth-token"] == "a-key"
    assert len(cuts(steps)) == 12 * 24 - 1
    assert steps["g_per_kwh"][4:6].to_list() == [40, 344.14]
    assert steps["source"][4] == "Electricity Maps"
    assert "a-key" not in (tmp_path / "electricity_maps.csv").read_text()
    rates_between(settings, _BEGAN, _BEGAN + 24 * 12 * _HOUR, ["alpha"])
    assert len(place.asked) == 2  # also the hour that the service does not know is not asked again
    rates_between(settings, _BEGAN, _BEGAN + (24 * 12 + 1) * _HOUR, ["alpha"])
    assert place.asked[2][1]["start"] == "2026-01-13T00:00:00Z"


def test_watttime_logs_in_and_gives_pounds(place: Place, tmp_path: Path) -> None:
    def answer(path: str, question: dict[str, str]) -> Any:
        if path == "/login":
            return 200, {"token": "t0"}
        payload = [{"point_time": f"2026-01-01T00:{minute:02}:00+00:00", "value": 1000} for minute in range(0, 60, 5)]
        return 200, {"data": payload, "meta": {"units": "lbs_co2_per_mwh"}}

    place.answer = answer
    settings = _settings(tmp_path, place.url, "watttime", 'zones = { DE = "GRID_1" }')
    steps = rates_between(settings, _BEGAN, _BEGAN + 2 * _HOUR, ["alpha"]).filter(cluster="alpha")
    (login, _, first), (path, question, then) = place.asked
    assert (login, path) == ("/login", "/v3/historical")
    assert base64.b64decode(first["authorization"].split()[1]) == b"me:secret"
    assert then["authorization"] == "Bearer t0"
    assert (question["region"], question["signal_type"]) == ("GRID_1", "co2_aoer")
    assert steps["g_per_kwh"].to_list() == pytest.approx([453.59237, 344.14], rel=1e-5)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ((401, {}), InputError, "refuses the key or this zone (HTTP 401): check ELECTRICITY_MAPS_KEY"),
        ((500, {}), WhorlError, "answers HTTP 500; try again later, or remove [electricity_maps]"),
        ((302, {}), WhorlError, "answers HTTP 302"),
        ((200, b"<html>"), WhorlError, "its answer is not a JSON object"),
        ((200, []), WhorlError, "its answer is not a JSON object"),
        ((200, {"rows": []}), WhorlError, "does not answer as it should: KeyError('data')"),
        ((200, {"data": [{"datetime": "2026-01-01", "carbonIntensity": 1}]}), WhorlError, "00:00:00 has no time zone"),
        (
            (200, {"data": [{"datetime": "2026-01-01T00:00Z", "carbonIntensity": -1}]}),
            WhorlError,
            "-1 g/kWh is no intensity",
        ),
    ],
)
def test_a_wrong_answer_is_one_sentence(
    place: Place, tmp_path: Path, answer: Any, error: type[WhorlError], says: str
) -> None:
    place.answer = lambda path, question: answer
    with pytest.raises(error) as raised:
        rates_between(_settings(tmp_path, place.url), _BEGAN, _BEGAN + _HOUR, ["alpha"])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "a-key" not in str(raised.value)
    assert len(place.asked) == 1
    assert not (tmp_path / "electricity_maps.csv").exists()


def test_a_service_that_is_silent_or_gone_is_one_sentence(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(SLOW["dripped body"]) as (address, _):
        settings = _settings(tmp_path, f"http://{address}", extra="timeout_s = 0.2")
        with pytest.raises(WhorlError, match=r"does not answer within 0\.2 s"):
            rates_between(settings, _BEGAN, _BEGAN + _HOUR, ["alpha"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = _settings(tmp_path, f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(WhorlError, match="cannot be reached"):
            rates_between(gone, _BEGAN, _BEGAN + _HOUR, ["alpha"])
    monkeypatch.delenv("ELECTRICITY_MAPS_KEY")
    with pytest.raises(InputError, match="set the environment variable ELECTRICITY_MAPS_KEY"):
        rates_between(settings, _BEGAN, _BEGAN + _HOUR, ["alpha"])
    place.answer = _of_electricity_maps
    monkeypatch.setenv("ELECTRICITY_MAPS_KEY", "a-key")
    settings = _settings(tmp_path, place.url)
    assert settings.service is not None
    lost = replace(settings.service, answers=tmp_path / "no folder" / "cache.csv")
    with pytest.raises(StoreError, match="copy the settings to a folder of yours"):
        rates_between(replace(settings, service=lost), _BEGAN, _BEGAN + _HOUR, ["alpha"])
    with pytest.raises(InputError, match="would be asked for 731 days of DEU: ask for a shorter time"):
        rates_between(settings, _BEGAN - 731 * 24 * _HOUR, _BEGAN, ["alpha"])
    (tmp_path / "electricity_maps.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="is not as whorl wrote it"):
        rates_between(_settings(tmp_path, place.url), _BEGAN, _BEGAN + _HOUR, ["alpha"])


def test_nothing_is_fetched_unless_a_service_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("ELECTRICITY_MAPS_KEY", "a-key")
    (tmp_path / "energy.toml").write_text('zone = "US-CAL-CISO"\npue = 1.1\n')
    settings = read_settings(tmp_path / "energy.toml")
    now = time.time_ns()
    assert cuts(rates_between(settings, _BEGAN, _BEGAN + _HOUR, ["alpha"])).tolist() == []
    assert greenest(settings, WaitingJob(60, 100, now, now + _HOUR)).reason is NoStart.NO_HOURS
    # With a service, the same question would open one.
    with pytest.raises(AssertionError, match="a socket was opened"):
        rates_between(_settings(tmp_path, "http://127.0.0.1:9"), _BEGAN, _BEGAN + _HOUR, ["alpha"])
