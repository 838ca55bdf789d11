"""Asks a service on the network for hours that no file has: Electricity Maps or WattTime, where the settings name one.

Its answers are kept in a file of hours beside the settings, and what is in it is not asked again; an hour that the
service does not know stands there without a value. Keys are read from the environment, and a redirection is refused, as
it would give the key to another host.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
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
    if not access.answers.exists():
        return pl.DataFrame(schema=_FORM)
    try:
        answers = pl.read_csv(access.answers, schema_overrides=_FORM).select(*_FORM)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{access.answers} is not as whorl wrote it, with the columns zone, time and g_per_kwh: repair it, or move "
            "it away to ask the service again"
        ) from error
    return answers.with_columns(pl.col("zone").map_elements(canonical, pl.String))


def _ask(access: ServiceAccess, zone: str, since_ns: int, until_ns: int) -> dict[int, float]:
    """What the service knows: g/kWh by the begin of the hour. Of shorter steps, the mean of those that begin in it."""
    factor = shipped_table().get(zone)
    usual = zone if factor is None or factor.code is None else factor.code  # two letters for a country
    place = next((place for name, place in access.zones if canonical(name) == zone), usual)
    keys, longest_ns = (
        [_key(variable, access) for variable in access.service.fills],
        _DAYS[access.service] * 24 * HOUR_NS,
    )
    if access.service is Service.WATTTIME:
        path, names = "/v3/historical", ("point_time", "value")
        question = {"region": place, "signal_type": str(access.signal)}
        login = _get(access, "/login", {}, {"Authorization": f"Basic {b64encode(':'.join(keys).encode()).decode()}"})
        headers = {"Authorization": f"Bearer {login.get('token')}"}
    else:
        path, names = "/carbon-intensity/past-range", ("datetime", "carbonIntensity")
        question, headers = {"zone": place}, {"auth-token": keys[0]}
    longest_ns = _DAYS[access.service] * 24 * HOUR_NS
    hours: dict[int, list[float]] = {}
    for first_ns in range(since_ns, until_ns, longest_ns):
        last_ns = min(until_ns, first_ns + longest_ns)
        answer = _get(access, path, {**question, "start": iso(first_ns), "end": iso(last_ns)}, headers)
        for at_ns, grams in _rows(access, answer, *names):
            if first_ns <= at_ns < last_ns:
                hours.setdefault(at_ns // HOUR_NS * HOUR_NS, []).append(grams)
    return {at_ns: float(f"{np.mean(grams):.6g}") for at_ns, grams in hours.items()}


def _key(variable: str, access: ServiceAccess) -> str:
    value = os.environ.get(variable, "").strip()
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(
            f"{access.service.meaning} needs a key: set the environment variable {variable} to one, in plain letters, "
            f"or remove [{access.service}] from the settings"
        )
    return value


def _rows(access: ServiceAccess, answer: dict[str, Any], begin: str, grams: str) -> list[tuple[int, float]]:
    """The rows of an answer with a value: ns since 1970, and g/kWh."""
    watttime = access.service is Service.WATTTIME
    scale = _LB_PER_MWH if watttime else 1.0
    try:
        unit = answer["meta"]["units"] if watttime else None
        values = [(datetime.fromisoformat(row[begin]), row[grams]) for row in answer["data"]]
        rows = [(moment, value * scale) for moment, value in values if value is not None]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _failed(access, f"does not answer as it should: {error!r}") from error
    faults = [f"{moment} has no time zone" for moment, _ in rows if moment.tzinfo is None]
    faults += [f"{value:g} g/kWh is no intensity" for _, value in rows if not 0 <= value <= MOST_G_PER_KWH]
    faults += [f"its unit is {unit!r}, not 'lbs_co2_per_mwh'"] if watttime and unit != "lbs_co2_per_mwh" else []
    if faults:
        raise _failed(access, f"does not answer as it should: {faults[0]}")
    return [(nanoseconds(moment), value) for moment, value in rows]


def _get(access: ServiceAccess, path: str, question: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object that the service answers."""
    url = f"{access.url}{path}" + (f"?{urllib.parse.urlencode(question)}" if question else "")
    request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310 - see settings
    try:
        answer = fetch_url(request, timeout_s=access.timeout_s, most_bytes=_LARGEST)
    except TimeoutError:
        raise _failed(access, f"does not answer within {access.timeout_s:g} s") from None
    except (OSError, HTTPException, ValueError, TooLarge) as error:  # names that do not resolve, torn answers
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise _failed(access, f"cannot be reached: {reason}") from None
    if answer.status in (401, 403):
        raise InputError(
            f"{access.service.meaning} refuses the key or this zone (HTTP {answer.status}): check "
            f"{' and '.join(access.service.fills)} and the contract with the service"
        )
    if not 200 <= answer.status < 300:
        raise _failed(access, f"answers HTTP {answer.status}")
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _failed(access, "does not answer as it should: its answer is not a JSON object")
    return document


def _failed(access: ServiceAccess, fault: str) -> WhorlError:
    host = urllib.parse.urlsplit(access.url).netloc
    return WhorlError(
        f"{access.service.meaning} ({host}) {fault}; try again later, or remove [{access.service}] from the settings "
        "to use files and the yearly table"
    )
