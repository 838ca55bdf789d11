"""Asks a service on the network for hours that no file has: Electricity Maps or WattTime, where the settings name one.

Its answers are kept in a file of hours beside the settings, and what is in it is not asked again; an hour that the
service does not know stands there without a value. Keys are read from the environment, and a redirection is refused, as
it would give the key to another host.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import datetime
from http.client import HTTPException
from typing import Any

import numpy as np
import polars as pl

from ...errors import InputError, StoreError, WhorlError
from ...store.instants import iso, nanoseconds
from ...store.system.files import put
from ...store.system.network import TooLarge
from ...store.system.network import fetch as fetch_url
from .carbon import canonical, shipped_table
from .grid import HOUR_NS, hourly, site_hours
from .settings import MOST_G_PER_KWH, EnergySettings, Method, Service, ServiceAccess

_SETTLED_NS = 48 * HOUR_NS
"""After that time, an hour that a service does not know is taken as one that it never will."""
_MOST_HOURS = 400 * 24
"""Hours of a zone that are asked for at once: a year and a month."""
_LARGEST = 64 << 20  # bytes
_LB_PER_MWH = 0.45359237  # g/kWh
_DAYS = {Service.ELECTRICITY_MAPS: 10, Service.WATTTIME: 31}
"""What one question may cover, as the services state it."""
_FORM: dict[str, pl.DataType] = {"zone": pl.String(), "time": pl.String(), "g_per_kwh": pl.Float64()}


def ask_for_hours(settings: EnergySettings, since_ns: int, until_ns: int, zones: Sequence[str]) -> None:
    """Ask for the hours of zones between two times that no file has, and keep the answers.

    Nothing is asked without a service in the settings, or with settings that are `offline`. Raises InputError where a
    key is missing or refused, WhorlError where the service does not answer as it should, StoreError where the answers
    cannot be kept.
    """
    access = settings.service
    if access is None or settings.offline or settings.method is Method.MARKET:
        return
    now_ns = time.time_ns()
    asked = np.arange(
        since_ns // HOUR_NS * HOUR_NS, min(until_ns, now_ns // HOUR_NS * HOUR_NS), HOUR_NS, dtype=np.int64
    )
    answers = _read(access)
    for zone in dict.fromkeys(canonical(name) for name in zones):
        known = set(answers.filter(pl.col("zone") == zone)["time"])
        unknown = asked[np.isnan(hourly(site_hours(settings), zone, asked))].tolist()
        missing = [at_ns for at_ns in unknown if iso(at_ns) not in known]
        if not missing:
            continue
        first_ns, last_ns = missing[0], missing[-1] + HOUR_NS
        if last_ns - first_ns > _MOST_HOURS * HOUR_NS:
            raise InputError(
                f"{access.service.meaning} would be asked for {(last_ns - first_ns) // (24 * HOUR_NS):,} days of "
                f"{zone}: ask for a shorter time, or give a file with intensity in the settings"
            )
        grams = _ask(access, zone, first_ns, last_ns)
        rows = [
            (zone, iso(at_ns), grams.get(at_ns)) for at_ns in missing if at_ns in grams or at_ns < now_ns - _SETTLED_NS
        ]
        answers = pl.concat([answers, pl.DataFrame(rows, schema=_FORM, orient="row")]).sort("zone", "time")
        _keep(access, answers)


def _read(access: ServiceAccess) -> pl.DataFrame:
    """What was answered before: columns of `_FORM`. Raises InputError where the file is not as whorl writes it."""
    path = access.answers
    if not path.exists():
        return pl.DataFrame(schema=_FORM)
    try:
        answers = pl.read_csv(path, schema_overrides=_FORM).select(*_FORM)
        return answers.with_columns(pl.col("zone").map_elements(canonical, pl.String))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{path} is not as whorl wrote it, with the columns zone, time and g_per_kwh: repair it, or move it away "
            "to ask the service again"
        ) from error


def _keep(access: ServiceAccess, answers: pl.DataFrame) -> None:
    try:
        put(access.answers, answers.write_csv().encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {access.answers}: {error.strerror}; copy the settings to a folder of yours, and name them "
            "with --settings"
        ) from error


def _ask(access: ServiceAccess, zone: str, since_ns: int, until_ns: int) -> dict[int, float]:
    """What the service knows: g/kWh by the begin of the hour. Of shorter steps, the mean of those that begin in it."""
    factor = shipped_table().get(zone)
    usual = zone if factor is None or factor.code is None else factor.code  # two letters for a country
    place = next((there for name, there in access.zones if canonical(name) == zone), usual)
    keys = [_key(variable, access) for variable in access.service.fills]
    read = _electricity_maps if access.service is Service.ELECTRICITY_MAPS else _watttime
    headers = {"auth-token": keys[0]} if access.service is Service.ELECTRICITY_MAPS else _login(access, *keys)
    hours: dict[int, list[float]] = {}
    longest_ns = _DAYS[access.service] * 24 * HOUR_NS
    for began_ns in range(since_ns, until_ns, longest_ns):
        ended_ns = min(until_ns, began_ns + longest_ns)
        for at_ns, grams in read(access, place, {"start": iso(began_ns), "end": iso(ended_ns)}, headers):
            if began_ns <= at_ns < ended_ns:
                hours.setdefault(at_ns // HOUR_NS * HOUR_NS, []).append(grams)
    return {at_ns: float(f"{np.mean(grams):.6g}") for at_ns, grams in hours.items()}


def _key(variable: str, access: ServiceAccess) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(
            f"{access.service.meaning} needs a key: set the environment variable {variable}, or remove "
            f"[{access.service}] from the settings"
        )
    if not value.isascii() or not value.isprintable():
        raise InputError(f"the environment variable {variable} has characters that no key has: set it again")
    return value


def _login(access: ServiceAccess, user: str, password: str) -> dict[str, str]:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    token = _get(access, "/login", {}, {"Authorization": f"Basic {pair}"}).get("token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise _strange(access, "its answer to the login has no token")
    return {"Authorization": f"Bearer {token}"}


Row = tuple[int, float]
"""ns since 1970, and g/kWh."""


def _electricity_maps(access: ServiceAccess, zone: str, span: dict[str, str], headers: dict[str, str]) -> Iterator[Row]:
    answer = _get(access, "/carbon-intensity/past-range", {"zone": zone, **span}, headers)
    return _rows(access, answer, ("datetime", "carbonIntensity"), 1.0)


def _watttime(access: ServiceAccess, zone: str, span: dict[str, str], headers: dict[str, str]) -> Iterator[Row]:
    answer = _get(access, "/v3/historical", {"region": zone, **span, "signal_type": str(access.signal)}, headers)
    meta = answer.get("meta")
    unit = meta.get("units") if isinstance(meta, dict) else None
    if unit != "lbs_co2_per_mwh":
        raise _strange(access, f"the unit of its answer is {unit!r}, not 'lbs_co2_per_mwh'")
    return _rows(access, answer, ("point_time", "value"), _LB_PER_MWH)


def _rows(access: ServiceAccess, answer: dict[str, Any], names: tuple[str, str], scale: float) -> Iterator[Row]:
    rows = answer.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _strange(access, "its answer has no list 'data'")
    for at, value in ((row.get(names[0]), row.get(names[1])) for row in rows):
        if value is None:
            continue
        try:
            when = datetime.fromisoformat(at)
        except (TypeError, ValueError):
            when = datetime.min  # noqa: DTZ901 - a time without a zone
        if when.tzinfo is None:
            raise _strange(access, f"{at!r} in its answer is not a time with a zone")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * scale <= MOST_G_PER_KWH:
            raise _strange(access, f"{value!r} in its answer is not an intensity")
        yield nanoseconds(when), value * scale


def _get(access: ServiceAccess, path: str, question: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object that the service answers."""
    url = f"{access.url}{path}" + (f"?{urllib.parse.urlencode(question)}" if question else "")
    request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310 - see settings
    try:
        answer = fetch_url(request, timeout_s=access.timeout_s, most_bytes=_LARGEST)
    except TimeoutError:
        raise _unanswered(access, f"does not answer within {access.timeout_s:g} s") from None
    except TooLarge:
        raise _strange(access, "its answer is larger than 64 MiB") from None
    except (OSError, HTTPException, ValueError) as error:  # names that do not resolve, torn answers
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unanswered(access, f"cannot be reached ({reason})") from None
    if answer.status in (401, 403):
        raise InputError(
            f"{access.service.meaning} ({_host(access)}) refuses the key or this zone (HTTP {answer.status}): check "
            f"{' and '.join(access.service.fills)} and the contract with the service"
        )
    if not 200 <= answer.status < 300:
        raise _unanswered(access, f"answers HTTP {answer.status}")
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _strange(access, "its answer is not JSON") from None
    if not isinstance(document, dict):
        raise _strange(access, "its answer is not a JSON object")
    return document


def _host(access: ServiceAccess) -> str:
    return urllib.parse.urlsplit(access.url).netloc


def _unanswered(access: ServiceAccess, what: str) -> WhorlError:
    return WhorlError(
        f"{access.service.meaning} ({_host(access)}) {what}: try again later, or remove [{access.service}] from the "
        "settings to use files and the yearly table"
    )


def _strange(access: ServiceAccess, what: str) -> WhorlError:
    return _unanswered(access, f"does not answer as it should, {what}")
