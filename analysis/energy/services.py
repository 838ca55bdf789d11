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
    ended_ns = min(until_ns, now_ns // HOUR_NS * HOUR_NS)
    hours_ns = np.arange(since_ns // HOUR_NS * HOUR_NS, ended_ns, HOUR_NS, dtype=np.int64)
    answers = _read(access)
    for zone in dict.fromkeys(canonical(name) for name in zones):
        answered = set(answers.filter(pl.col("zone") == zone)["time"])
        without = hours_ns[np.isnan(hourly(site_hours(settings), zone, hours_ns))].tolist()
        missing = [at_ns for at_ns in without if iso(at_ns) not in answered]
        if not missing:
            continue
        hours = (missing[-1] - missing[0]) // HOUR_NS + 1
        if hours > _MOST_HOURS:
            raise InputError(
                f"{access.service.meaning} would be asked for {hours // 24:,} days of {zone}: ask for a shorter time, "
                "or give a file with intensity in the settings"
            )
        grams = _ask(access, zone, missing[0], missing[-1] + HOUR_NS)
        settled = [at_ns for at_ns in missing if at_ns in grams or at_ns < now_ns - _SETTLED_NS]
        rows = pl.DataFrame([(zone, iso(at_ns), grams.get(at_ns)) for at_ns in settled], schema=_FORM, orient="row")
        answers = pl.concat([answers, rows]).sort("zone", "time")
        try:
            put(access.answers, answers.write_csv().encode())
        except OSError as error:
            raise StoreError(
                f"cannot write {access.answers}: {error.strerror}; copy the settings to a folder of yours, and name "
                "them with --settings"
            ) from error


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


def _ask(access: ServiceAccess, zone: str, since_ns: int, until_ns: int) -> dict[int, float]:
    """What the service knows: g/kWh by the begin of the hour. Of shorter steps, the mean of those that begin in it."""
    factor = shipped_table().get(zone)
    usual = zone if factor is None or factor.code is None else factor.code  # two letters for a country
    place = next((theirs for name, theirs in access.zones if canonical(name) == zone), usual)
    keys = [_key(variable, access) for variable in access.service.fills]
    watttime = access.service is Service.WATTTIME
    headers = _login(access, *keys) if watttime else {"auth-token": keys[0]}
    hours: dict[int, list[float]] = {}
    for first_ns in range(since_ns, until_ns, _DAYS[access.service] * 24 * HOUR_NS):
        last_ns = min(until_ns, first_ns + _DAYS[access.service] * 24 * HOUR_NS)
        span = {"start": iso(first_ns), "end": iso(last_ns)}
        if watttime:
            question = {"region": place, **span, "signal_type": str(access.signal)}
            answer = _get(access, "/v3/historical", question, headers)
            unit = answer["meta"].get("units") if isinstance(answer.get("meta"), dict) else None
            if unit != "lbs_co2_per_mwh":
                raise _unanswered(access, f"{_STRANGE}, the unit of its answer is {unit!r}, not 'lbs_co2_per_mwh'")
            rows = _rows(access, answer, ("point_time", "value"), _LB_PER_MWH)
        else:
            answer = _get(access, "/carbon-intensity/past-range", {"zone": place, **span}, headers)
            rows = _rows(access, answer, ("datetime", "carbonIntensity"), 1.0)
        for at_ns, grams in rows:
            if first_ns <= at_ns < last_ns:
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
        raise _unanswered(access, f"{_STRANGE}, its answer to the login has no token")
    return {"Authorization": f"Bearer {token}"}


def _rows(
    access: ServiceAccess, answer: dict[str, Any], names: tuple[str, str], scale: float
) -> Iterator[tuple[int, float]]:
    """The rows of an answer with a value: ns since 1970, and g/kWh."""
    rows = answer.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _unanswered(access, f"{_STRANGE}, its answer has no list 'data'")
    for began, value in ([row.get(name) for name in names] for row in rows):
        if value is None:
            continue
        try:
            moment = datetime.fromisoformat(began)
        except (TypeError, ValueError):
            moment = None
        if moment is None or moment.tzinfo is None:
            raise _unanswered(access, f"{_STRANGE}, {began!r} in its answer is not a time with a zone")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * scale <= MOST_G_PER_KWH:
            raise _unanswered(access, f"{_STRANGE}, {value!r} in its answer is not an intensity")
        yield nanoseconds(moment), value * scale


def _get(access: ServiceAccess, path: str, question: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object that the service answers."""
    url = f"{access.url}{path}" + (f"?{urllib.parse.urlencode(question)}" if question else "")
    request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310 - see settings
    try:
        answer = fetch_url(request, timeout_s=access.timeout_s, most_bytes=_LARGEST)
        if answer.status in (401, 403):
            raise InputError(
                f"{access.service.meaning} ({_host(access)}) refuses the key or this zone (HTTP {answer.status}): "
                f"check {' and '.join(access.service.fills)} and the contract with the service"
            )
        if not 200 <= answer.status < 300:
            raise _unanswered(access, f"answers HTTP {answer.status}")
        document = json.loads(answer.body)
    except TimeoutError:
        raise _unanswered(access, f"does not answer within {access.timeout_s:g} s") from None
    except TooLarge:
        raise _unanswered(access, f"{_STRANGE}, its answer is larger than 64 MiB") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise _unanswered(access, f"{_STRANGE}, its answer is not JSON") from None
    except (OSError, HTTPException, ValueError) as error:  # names that do not resolve, torn answers
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _unanswered(access, f"cannot be reached ({reason})") from None
    if not isinstance(document, dict):
        raise _unanswered(access, f"{_STRANGE}, its answer is not a JSON object")
    return document


_STRANGE = "does not answer as it should"


def _host(access: ServiceAccess) -> str:
    return urllib.parse.urlsplit(access.url).netloc


def _unanswered(access: ServiceAccess, fault: str) -> WhorlError:
    return WhorlError(
        f"{access.service.meaning} ({_host(access)}) {fault}: try again later, or remove [{access.service}] from the "
        "settings to use files and the yearly table"
    )
