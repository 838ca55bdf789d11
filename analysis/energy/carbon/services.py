"""Asks a service on the network for intensities: Electricity Maps or WattTime. Used only where the settings name one.

Keys are read from the environment. A redirection is refused, as it would give the key to another host.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any

from ....errors import InputError, WhorlError
from ....store.system.network import TooLarge, fetch
from .adapters import Adapter, Service

Row = tuple[int, float]
"""ns UTC of the begin, and g/kWh."""

_LARGEST = 64 << 20  # bytes
_MOST = 5_000.0  # g/kWh
_LB_PER_MWH = 0.45359237  # g/kWh
_LONGEST = {Service.ELECTRICITY_MAPS: timedelta(days=10), Service.WATTTIME: timedelta(days=31)}
"""What one question may cover, as the services state it."""


def ask(adapter: Adapter, zone: str, since: datetime, until: datetime) -> list[Row]:
    """What the service knows of its zone between two times (UTC), in order.

    Raises InputError where a key is missing or refused, WhorlError where the service does not answer as expected.
    """
    keys = [_key(name, adapter) for name in adapter.variables]
    if adapter.service is Service.ELECTRICITY_MAPS:
        headers = {"auth-token": keys[0]}
    else:
        headers = {"Authorization": f"Bearer {_login(adapter, *keys)}"}
    found: dict[int, float] = {}
    while since < until:
        end = min(until, since + _LONGEST[adapter.service])
        read = _electricity_maps if adapter.service is Service.ELECTRICITY_MAPS else _watttime
        found.update(read(adapter, zone, since, end, headers))
        since = end
    return sorted(found.items())


def _key(variable: str, adapter: Adapter) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(
            f"{adapter.service.meaning} needs a key: set the environment variable {variable}, or remove "
            f"[{adapter.service}] from the settings"
        )
    if not value.isascii() or not value.isprintable():
        raise InputError(f"the environment variable {variable} has characters that no key has: set it again")
    return value


def _login(adapter: Adapter, user: str, password: str) -> str:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    answer = _get(adapter, f"{adapter.url}/login", {"Authorization": f"Basic {pair}"})
    token = answer.get("token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise _strange(adapter, "its answer to the login has no token")
    return token


def _electricity_maps(
    adapter: Adapter, zone: str, since: datetime, until: datetime, headers: dict[str, str]
) -> Iterator[Row]:
    question = {"zone": zone, "start": _text(since), "end": _text(until)}
    answer = _get(adapter, f"{adapter.url}/carbon-intensity/past-range?{urllib.parse.urlencode(question)}", headers)
    for row in _rows(adapter, answer, "data"):
        if row.get("carbonIntensity") is not None:
            yield _time(adapter, row.get("datetime")), _grams(adapter, row["carbonIntensity"], 1.0)


def _watttime(adapter: Adapter, zone: str, since: datetime, until: datetime, headers: dict[str, str]) -> Iterator[Row]:
    question = {"region": zone, "start": _text(since), "end": _text(until), "signal_type": str(adapter.signal)}
    answer = _get(adapter, f"{adapter.url}/v3/historical?{urllib.parse.urlencode(question)}", headers)
    meta = answer.get("meta")
    unit = meta.get("units") if isinstance(meta, dict) else None
    if unit != "lbs_co2_per_mwh":
        raise _strange(adapter, f"the unit of its answer is {unit!r}, not 'lbs_co2_per_mwh'")
    for row in _rows(adapter, answer, "data"):
        if row.get("value") is not None:
            yield _time(adapter, row.get("point_time")), _grams(adapter, row["value"], _LB_PER_MWH)


def _text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _get(adapter: Adapter, url: str, headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object at a URL."""
    request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310 - see adapters
    name, host = adapter.service.meaning, urllib.parse.urlsplit(adapter.url).netloc
    try:
        answer = fetch(request, timeout_s=adapter.timeout_s, most_bytes=_LARGEST)
    except TimeoutError:
        raise _unanswered(adapter, f"does not answer within {adapter.timeout_s:g} s") from None
    except TooLarge:
        raise _strange(adapter, "its answer is larger than 64 MiB") from None
    except (OSError, HTTPException, ValueError) as error:  # names that do not resolve, torn answers
        raise _unanswered(adapter, f"cannot be reached ({_why(error)})") from None
    if answer.status in (401, 403):
        variables = " and ".join(adapter.variables)
        raise InputError(
            f"{name} ({host}) refuses the key or this zone (HTTP {answer.status}): check {variables} and the "
            "contract with the service"
        )
    if not 200 <= answer.status < 300:
        raise _unanswered(adapter, f"answers HTTP {answer.status}")
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _strange(adapter, "its answer is not JSON") from None
    if not isinstance(found, dict):
        raise _strange(adapter, "its answer is not a JSON object")
    return found


def _why(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _rows(adapter: Adapter, answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = answer.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _strange(adapter, f"its answer has no list {key!r}")
    return rows


def _time(adapter: Adapter, value: Any) -> int:
    try:
        since = datetime.fromisoformat(value) - datetime(1970, 1, 1, tzinfo=UTC)
    except (TypeError, ValueError):  # no time, or one without a zone
        raise _strange(adapter, f"{value!r} in its answer is not a time with a zone") from None
    return (since.days * 86_400 + since.seconds) * 10**9


def _grams(adapter: Adapter, value: Any, scale: float) -> float:
    number = float(value) * scale if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    if not 0 <= number <= _MOST:
        raise _strange(adapter, f"{value!r} in its answer is not an intensity")
    return number


def _unanswered(adapter: Adapter, what: str) -> WhorlError:
    host = urllib.parse.urlsplit(adapter.url).netloc
    return WhorlError(
        f"{adapter.service.meaning} ({host}) {what}: try again later, or remove [{adapter.service}] from the settings "
        "to use files and the yearly table"
    )


def _strange(adapter: Adapter, what: str) -> WhorlError:
    return _unanswered(adapter, f"does not answer as it should, {what}")
