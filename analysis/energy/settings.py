"""What a site states of its energy: where the machines stand, what a kWh costs, and what else no sensor knows.

A TOML file, `energy.toml` in the folder of the store, or the file that `--settings` names; docs/carbon.md explains its
keys. A value that changes is a list of tables with `from` and `until`. Nodes read it too, without Polars.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...errors import InputError
from ...store.configuration import configuration
from ...store.instants import nanoseconds
from ...store.power_sensors import SENSOR_ERROR, SensorError
from ...store.vocabulary import Code

FILE = "energy.toml"
ALWAYS, NEVER = -(2**63), 2**63 - 1
MOST_G_PER_KWH = 5_000.0
"""No grid emits more."""


class Method(Code):
    """How the grams of a kWh are found."""

    LOCATION = "location", "what the grid of the zone emitted: hours of a file, else a year's mean"
    MARKET = "market", "what the contract for electricity says"


class Service(Code):
    """A service on the network that knows intensities by zone and hour; `fills` are the variables with its keys."""

    ELECTRICITY_MAPS = "electricity_maps", "Electricity Maps", "ELECTRICITY_MAPS_KEY"
    WATTTIME = "watttime", "WattTime", "WATTTIME_USER", "WATTTIME_PASSWORD"


@dataclass(frozen=True)
class Dated:
    """A value that holds from `began_ns` until `ended_ns` (UTC, the end excluded), on one cluster or on all."""

    value: float | str
    began_ns: int = ALWAYS
    ended_ns: int = NEVER
    cluster: str | None = None


@dataclass(frozen=True)
class StatedFactor(Dated):
    """Grams of a kWh as the site states them, for a zone (method location) or for the contract (market)."""

    source: str = ""
    year: int = 0
    method: Method = Method.LOCATION
    zone: str | None = None


@dataclass(frozen=True)
class HoursFile:
    """A file of intensities by hour."""

    path: Path
    zone: str | None = None
    """Of a file without a column of zones."""
    time_zone: str | None = None
    """Of times that state none; None: that of the settings."""
    source: str | None = None
    column: str | None = None
    """The intensities, where several columns could be."""


@dataclass(frozen=True)
class Embodied:
    """What making a board emitted, in kg CO2e, and over how many years that is spread; without a model, for all."""

    kg: float
    years: float
    source: str
    model: str | None = None


@dataclass(frozen=True)
class ServiceAccess:
    """How a service is asked, and the file beside the settings that has its answers. Keys are in the environment."""

    service: Service
    url: str
    answers: Path
    timeout_s: float
    zones: tuple[tuple[str, str], ...] = ()
    """A zone's name in the settings and at the service, where they differ."""
    signal: str | None = None
    """Of WattTime: co2_aoer is the mean of all plants, co2_moer that of the marginal ones."""

    @property
    def source(self) -> str:
        """What its figures are called."""
        return f"{self.service.meaning} {self.signal}" if self.signal else self.service.meaning


@dataclass(frozen=True)
class EnergySettings:
    """What a site has stated; everything is optional."""

    path: Path | None = None
    time_zone: str = "UTC"
    currency: str | None = None
    method: Method = Method.LOCATION
    zones: tuple[Dated, ...] = ()
    pue: tuple[Dated, ...] = ()
    price: tuple[Dated, ...] = ()
    host_w: tuple[Dated, ...] = ()
    """What the rest of a node draws, for each GPU in it."""
    hours: tuple[HoursFile, ...] = ()
    factors: tuple[StatedFactor, ...] = ()
    embodied: tuple[Embodied, ...] = ()
    sensor: SensorError = SENSOR_ERROR
    service: ServiceAccess | None = None
    offline: bool = False
    """Whether `service` is not to be asked: only what it answered before counts."""

    @property
    def dated(self) -> tuple[Dated, ...]:
        """All that changes with time."""
        return (*self.zones, *self.pue, *self.price, *self.host_w, *self.factors)


D = TypeVar("D", bound=Dated)


def holding(values: Sequence[D], cluster: str | None, at_ns: int) -> D | None:
    """Which of the values holds on a cluster at a time; one for the cluster comes before one for all."""
    holds = [value for value in values if value.began_ns <= at_ns < value.ended_ns and value.cluster in (None, cluster)]
    return min(holds, key=lambda value: value.cluster is None, default=None)


def find_settings(store: Path, settings: EnergySettings | str | Path | None = None) -> EnergySettings:
    """These settings, or those of the file of that name, else of `energy.toml` in the folder of the store, else of
    `[energy]` in whorl.toml, else none. Raises InputError."""
    if isinstance(settings, EnergySettings):
        return settings
    if settings is not None:
        return read_settings(Path(settings))
    if (store / FILE).is_file():
        return read_settings(store / FILE, trusted=False)
    stated = configuration().get("energy")
    return EnergySettings() if stated is None else _settings(stated.value, stated.path, trusted=True)


def read_settings(path: Path, *, trusted: bool = True) -> EnergySettings:
    """The settings in a file. Raises InputError, which names the file and the key.

    A file that came with a store is not `trusted`: whoever can write to the store must not say where keys are sent.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; docs/carbon.md says what to write in it") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    return _settings(table, path, trusted=trusted)


_KEYS = ("time_zone", "currency", "method", "zone", "pue", "price", "host_w", "intensity", "factor", "embodied",
         "sensor", *Service)  # fmt: skip
_DATES = ("from", "until", "cluster")


def _settings(table: dict[str, Any], path: Path, *, trusted: bool) -> EnergySettings:
    """The settings of a table. Raises InputError, which names its file and the key."""
    try:
        top = _Table(table, _KEYS)
        if "price" in table:
            top.needed_text("currency")
        zone = top.time_zone() or "UTC"
        return EnergySettings(
            path=path,
            time_zone=zone,
            currency=top.text("currency"),
            method=Method(top.choice("method", tuple(Method), Method.LOCATION)),
            zones=_dated(top, "zone", zone),
            pue=_dated(top, "pue", zone, (1.0, 5.0)),
            price=_dated(top, "price", zone, (-1e6, math.inf)),
            host_w=_dated(top, "host_w", zone, (0.0, 1e5)),
            hours=tuple(_hours_files(top, path.parent)),
            factors=_factors(top, zone),
            embodied=_embodied(top),
            sensor=_sensor(top),
            service=_service(top, path.parent, trusted=trusted),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


class _Table:
    """A table of the file; its values are checked as they are read, and errors name the key."""

    def __init__(self, values: dict[str, Any], keys: Sequence[str], name: str = "") -> None:
        self.values, self.name = values, name
        for key in values:
            if key not in keys:
                raise InputError(f"there is no key {key!r}{f' in {name}' if name else ''}; there are {', '.join(keys)}")

    def called(self, key: str) -> str:
        if key == "value":
            return self.name
        return f"{key} of {self.name}" if self.name else key

    def tables(self, key: str, keys: Sequence[str], short: str | None = None) -> list[_Table]:
        """The tables below a key, which may be one; `short`: what a plain value there stands for."""
        value = self.values.get(key, [])
        items = value if isinstance(value, list) else [value]
        tables = []
        for number, item in enumerate(items, start=1):
            name = key if len(items) == 1 else f"{key} number {number}"
            values = {short: item} if short and not isinstance(item, dict | list) else item
            if not isinstance(values, dict):
                raise InputError(f"{name} must be a table with the keys {', '.join(keys)}, not {item!r}")
            tables.append(_Table(values, keys, name))
        return tables

    def table(self, key: str, keys: Sequence[str]) -> _Table | None:
        """The one table below a key; None where the key is not there."""
        if key not in self.values:
            return None
        if not isinstance(self.values[key], dict):
            raise InputError(f"{key} must be a table with the keys {', '.join(keys)}, not {self.values[key]!r}")
        return _Table(self.values[key], keys, key)

    def text(self, key: str) -> str | None:
        return self.needed_text(key) if key in self.values else None

    def needed_text(self, key: str) -> str:
        value = self._needed(key)
        if not isinstance(value, str):
            raise InputError(f"{self.called(key)} must be a text in quotes, not {value!r}")
        if not value.strip():
            raise InputError(f"{self.called(key)} is empty: write a name, or leave the line out")
        return value.strip()

    def number(self, key: str, low: float, high: float = math.inf) -> float:
        value = self._needed(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{self.called(key)} must be a number, not {value!r}")
        if not low <= value <= high:
            limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
            raise InputError(f"{self.called(key)} must be {limits}, not {value:g}")
        return float(value)

    def choice(self, key: str, choices: Sequence[str], missing: str) -> str:
        value = self.values.get(key, missing)
        if value not in choices:
            raise InputError(f"{self.called(key)} must be {' or '.join(choices)}, not {value!r}")
        return str(value)

    def time_zone(self) -> str | None:
        zone = self.text("time_zone")
        try:
            return zone and ZoneInfo(zone).key
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InputError(f"there is no time zone {zone!r}; an example is Europe/Berlin") from error

    def validity(self, zone: str) -> dict[str, Any]:
        """From when to when, and on which cluster, a value holds; a time without a zone is in `zone`."""
        ends = {"from": ALWAYS, "until": NEVER}
        for key in ends.keys() & self.values.keys():
            value = self.values[key]
            if isinstance(value, date) and not isinstance(value, datetime):
                value = datetime.combine(value, time())
            if not isinstance(value, datetime):
                raise InputError(f"{self.called(key)} must be a date, as 2026-01-31, not {value!r}")
            at_ns = nanoseconds(value if value.tzinfo else value.replace(tzinfo=ZoneInfo(zone)))
            ends[key] = min(max(at_ns, ALWAYS), NEVER)  # the year 9999 is beyond 64 bits
        if ends["until"] <= ends["from"]:
            raise InputError(f"until of {self.name} is not after from")
        return {"began_ns": ends["from"], "ended_ns": ends["until"], "cluster": self.text("cluster")}

    def _needed(self, key: str) -> Any:
        if key not in self.values:
            raise InputError(f"{self.called(key)} is missing")
        return self.values[key]


def _dated(top: _Table, key: str, zone: str, limits: tuple[float, float] | None = None) -> tuple[Dated, ...]:
    """A value for all times, or a list of tables of values with dates: numbers within limits, or texts."""
    values: list[Dated] = []
    for table in top.tables(key, ("value", *_DATES), short="value"):
        value = table.needed_text("value") if limits is None else table.number("value", *limits)
        _append(values, Dated(value, **table.validity(zone)), table.name, key)
    return tuple(values)


def _append(values: list[D], value: D, name: str, key: str) -> None:
    """One more value, which may not hold on the same cluster at the same time as another of its kind."""

    def kind(dated: Dated) -> tuple[str | None, ...]:
        factor = (dated.method, dated.zone) if isinstance(dated, StatedFactor) else ()
        return (dated.cluster, *factor)

    for other in values:
        if kind(other) == kind(value) and value.began_ns < other.ended_ns and other.began_ns < value.ended_ns:
            raise InputError(f"{name} holds at times at which another {key} holds: give each an end with until")
    values.append(value)


def _hours_files(top: _Table, folder: Path) -> Iterator[HoursFile]:
    for table in top.tables("intensity", ("file", "zone", "time_zone", "source", "column"), short="file"):
        zone, source, column = (table.text(key) for key in ("zone", "source", "column"))
        yield HoursFile(folder / table.needed_text("file"), zone, table.time_zone(), source, column)


def _factors(top: _Table, zone: str) -> tuple[StatedFactor, ...]:
    factors: list[StatedFactor] = []
    for table in top.tables("factor", ("zone", "g_per_kwh", "source", "year", "method", *_DATES)):
        method = Method(table.choice("method", tuple(Method), Method.LOCATION))
        if method is Method.LOCATION and "zone" not in table.values:
            raise InputError(f'zone of {table.name} is missing: write the zone that it is for, as zone = "DE"')
        factor = StatedFactor(
            table.number("g_per_kwh", 0.0, MOST_G_PER_KWH),
            source=table.needed_text("source"),
            year=int(table.number("year", 1990, 2200)),
            method=method,
            zone=table.text("zone"),
            **table.validity(zone),
        )
        _append(factors, factor, table.name, "factor")
    return tuple(factors)


def _embodied(top: _Table) -> tuple[Embodied, ...]:
    boards: dict[str | None, Embodied] = {}
    for table in top.tables("embodied", ("kg", "years", "source", "model")):
        model = table.text("model")
        if model in boards:
            raise InputError(f"{table.name} names a model for the second time")
        kg, years = table.number("kg", 0.0, 1e6), table.number("years", 0.1, 100.0)
        boards[model] = Embodied(kg, years, table.needed_text("source"), model)
    return tuple(boards.values())


def _sensor(top: _Table) -> SensorError:
    table = top.table("sensor", ("gain_pct", "offset_w"))
    if table is None:
        return SENSOR_ERROR
    return SensorError.stated(table.number("gain_pct", 0.0, 100.0), table.number("offset_w", 0.0, 1_000.0))


def _service(top: _Table, folder: Path, *, trusted: bool) -> ServiceAccess | None:
    """The service that the settings name; None where they name none."""
    services = [service for service in Service if service in top.values]
    if len(services) > 1:
        raise InputError(f"{' and '.join(services)} are both given: keep one")
    if not services:
        return None
    service, watttime = services[0], services[0] is Service.WATTTIME
    table = top.table(service, ("url", "timeout_s", "zones", *(("signal",) if watttime else ())))
    assert table is not None
    if not trusted and "url" in table.values:
        raise InputError(
            f"url of {table.name} counts only in a file that you name with --settings: whoever can write to the store "
            "could send your keys elsewhere"
        )
    usual_url = "https://api.watttime.org" if watttime else "https://api.electricitymaps.com/v3"
    url = table.text("url") or usual_url
    if not url.startswith(("https://", "http://")):
        raise InputError(f"url of {table.name} must begin with https://, not {url!r}")
    signal = table.choice("signal", ("co2_aoer", "co2_moer"), "co2_aoer") if watttime else None
    zones = table.values.get("zones", {})
    if not isinstance(zones, dict) or not all(isinstance(name, str) for name in zones.values()):
        raise InputError(f'zones of {table.name} must be a table of names, as {{ DE = "DE" }}')
    timeout_s = table.number("timeout_s", 0.1, 600.0) if "timeout_s" in table.values else 10.0
    return ServiceAccess(
        service, url.rstrip("/"), folder / f"{service}.csv", timeout_s, tuple(sorted(zones.items())), signal
    )
