"""What a site states of its energy: where the machines stand, what a kWh costs, and what else no sensor knows.

A TOML file, `energy.toml` in the folder of the store, or the file that `--settings` names; docs/site/energy.toml
explains its keys. A value that changes is a list of tables with `from` and `until`. Nodes read it too, without Polars.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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

    @property
    def subject(self) -> tuple[str | None, ...]:
        """What it is a value of: two values of one subject may not hold at one time."""
        return (self.cluster,)


@dataclass(frozen=True)
class StatedFactor(Dated):
    """Grams of a kWh as the site states them, for a zone (method location) or for the contract (market)."""

    source: str = ""
    year: int = 0
    method: Method = Method.LOCATION
    zone: str | None = None

    @property
    def subject(self) -> tuple[str | None, ...]:
        return (self.cluster, self.method, self.zone)


@dataclass(frozen=True)
class HoursFile:
    """A file of intensities by hour."""

    path: Path
    zone: str | None = None
    """Of a file without a column of zones."""
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
class NodeFacts:
    """What a site states of the power of its nodes, for `whorl energy calibrate`; None: as is assumed there. 95 % of
    nodes lie within the shares that end in `within_pct`."""

    meter_within_pct: float | None = None
    """How far the gain of a node's meter is from 1."""
    efficiency: float | None = None
    """Of the power supplies."""
    efficiency_within_pct: float = 1.0
    host_pct: float | None = None
    """What hosts draw more for the power of their GPUs, in % of it."""
    host_within_pct: float = 1.0


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
    node: NodeFacts = NodeFacts()
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
        raise InputError(f"{path}: there is no such file; docs/site/energy.toml is one to copy") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    return _settings(table, path, trusted=trusted)


Schema = Mapping[str, Any]
"""The keys of a table and what each holds: text, a date, a time zone, a number within limits, or one of some words. A
key that ends in a question mark may be missing."""

_ENDS = {"from": ALWAYS, "until": NEVER}
_DATES: Schema = {"from?": datetime, "until?": datetime, "cluster?": str}
_DATED: Mapping[str, Schema] = {
    "zone": {"value": str}, "pue": {"value": (1.0, 5.0)}, "price": {"value": (-1e6, math.inf)},
    "host_w": {"value": (0.0, 1e5)},
    "factor": {"zone?": str, "g_per_kwh": (0.0, MOST_G_PER_KWH), "source": str, "year": (1990, 2200),
               "method?": tuple(Method)},
}  # fmt: skip
_HOURS_FILE: Schema = {"file": str, "zone?": str, "column?": str}
_EMBODIED: Schema = {"kg": (0.0, 1e6), "years": (0.1, 100.0), "source": str, "model?": str}
_SENSOR: Schema = {"gain_pct": (0.0, 100.0), "offset_w": (0.0, 1_000.0)}
_NODE: Schema = {
    "meter_within_pct?": (0.0, 50.0), "efficiency?": (0.5, 1.0), "efficiency_within_pct?": (0.0, 50.0),
    "host_pct?": (0.0, 200.0), "host_within_pct?": (0.0, 200.0),
}  # fmt: skip
_SERVICE: Schema = {"url?": str, "timeout_s?": (0.1, 600.0), "zones?": dict}
_SERVICES: Mapping[Service, tuple[str, Schema]] = {
    Service.ELECTRICITY_MAPS: ("https://api.electricitymaps.com/v3", _SERVICE),
    Service.WATTTIME: ("https://api.watttime.org", {**_SERVICE, "signal?": ("co2_aoer", "co2_moer")}),
}
_TOP: Schema = {
    "time_zone?": ZoneInfo, "currency?": str, "method?": tuple(Method),
    **{f"{key}?": Any for key in (*_DATED, "intensity", "embodied", "sensor", "node", *Service)},
}  # fmt: skip


def _settings(table: dict[str, Any], path: Path, *, trusted: bool) -> EnergySettings:
    """The settings of a table. Raises InputError, which names its file and the key."""
    try:
        return _read(table, path, trusted=trusted)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read(table: dict[str, Any], path: Path, *, trusted: bool) -> EnergySettings:
    top = _checked(table, _TOP, "")
    if "price" in top and "currency" not in top:
        raise InputError('price needs a currency: write currency = "EUR"')
    zone = top.get("time_zone", "UTC")
    zones, pue, price, host_w, factors = (tuple(_dated(top, key, zone)) for key in _DATED)
    hours = [values for values, _ in _tables(top, "intensity", _HOURS_FILE, short="file")]
    embodied: list[Embodied] = []
    for values, name in _tables(top, "embodied", _EMBODIED):
        embodied.append(Embodied(**values))
        if embodied[-1].model in [board.model for board in embodied[:-1]]:
            raise InputError(f"{name} names a model for the second time")
    return EnergySettings(
        path, zone, top.get("currency"), top.get("method", Method.LOCATION), zones, pue, price, host_w,
        hours=tuple(HoursFile(path.parent / values.pop("file"), **values) for values in hours),
        factors=tuple(factor for factor in factors if isinstance(factor, StatedFactor)),
        embodied=tuple(embodied),
        sensor=SensorError.stated(**_checked(top["sensor"], _SENSOR, "sensor")) if "sensor" in top else SENSOR_ERROR,
        node=NodeFacts(**_checked(top.get("node", {}), _NODE, "node")),
        service=_service(top, path.parent, trusted=trusted),
    )  # fmt: skip


def _checked(table: Any, schema: Schema, name: str) -> dict[str, Any]:
    """The values of a table, as its schema wants them. Raises InputError, which names the key."""
    keys = [key.rstrip("?") for key in schema]
    if not isinstance(table, dict):
        raise InputError(f"{name} must be a table with the keys {', '.join(keys)}, not {table!r}")
    for key in table:
        if key not in keys:
            raise InputError(f"there is no key {key!r}{f' in {name}' if name else ''}; there are {', '.join(keys)}")
    values = {}
    for key, holds in zip(keys, schema.values(), strict=True):
        called = name if key == "value" else f"{key} of {name}" if name else key
        if key in table:
            values[key] = _value(table[key], holds, called)
        elif f"{key}?" not in schema:
            raise InputError(f"{called} is missing")
    return values


def _value(value: Any, holds: Any, called: str) -> Any:
    if holds is Any:
        return value
    if holds is dict:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
            raise InputError(f'{called} must be a table of names, as {{ DE = "DE" }}')
        return value
    if holds is datetime:
        if not isinstance(value, date):
            raise InputError(f"{called} must be a date, as 2026-01-31, not {value!r}")
        return value if isinstance(value, datetime) else datetime.combine(value, time())
    if isinstance(holds, tuple) and isinstance(holds[0], str):
        if value not in holds:
            raise InputError(f"{called} must be {' or '.join(holds)}, not {value!r}")
        return holds[holds.index(value)]
    if isinstance(holds, tuple):
        low, high = holds
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{called} must be a number, not {value!r}")
        if not low <= value <= high:
            limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
            raise InputError(f"{called} must be {limits}, not {value:g}")
        return value
    if not isinstance(value, str):
        raise InputError(f"{called} must be a text in quotes, not {value!r}")
    if not value.strip():
        raise InputError(f"{called} is empty: write a name, or leave the line out")
    if holds is ZoneInfo:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InputError(f"there is no time zone {value!r}; an example is Europe/Berlin") from error
    return value.strip()


def _tables(
    top: dict[str, Any], key: str, schema: Schema, *, short: str | None = None
) -> Iterator[tuple[dict[str, Any], str]]:
    """The tables below a key, with what to call each; `short`: the key that a plain value there is of."""
    value = top.get(key, [])
    items = value if isinstance(value, list) else [value]
    for number, item in enumerate(items, start=1):
        name = key if len(items) == 1 else f"{key} number {number}"
        yield _checked({short: item} if short and not isinstance(item, dict | list) else item, schema, name), name


def _dated(top: dict[str, Any], key: str, zone: str) -> Iterator[Dated]:
    """The values below a key, each with its dates; those of one cluster (and zone) may not overlap."""
    earlier: list[Dated] = []
    for values, name in _tables(top, key, {**_DATED[key], **_DATES}, short="value"):
        began_ns, ended_ns = (_instant(values.pop(end, missing), zone) for end, missing in _ENDS.items())
        if ended_ns <= began_ns:
            raise InputError(f"until of {name} is not after from")
        if key == "factor":
            if "zone" not in values and values.get("method") is not Method.MARKET:
                raise InputError(f'zone of {name} is missing: write the zone that it is for, as zone = "DE"')
            dated: Dated = StatedFactor(values.pop("g_per_kwh"), began_ns, ended_ns, **values)
        else:
            dated = Dated(values.pop("value"), began_ns, ended_ns, **values)
        for rival in earlier:
            if rival.subject == dated.subject and began_ns < rival.ended_ns and rival.began_ns < ended_ns:
                raise InputError(f"{name} holds at times at which another {key} holds: give each an end with until")
        earlier.append(dated)
        yield dated


def _instant(moment: datetime | int, zone: str) -> int:
    """ns UTC of a time, which is in `zone` where it names none."""
    if isinstance(moment, int):
        return moment
    at_ns = nanoseconds(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone)))
    return min(max(at_ns, ALWAYS), NEVER)  # the year 9999 is beyond 64 bits


def _service(top: dict[str, Any], folder: Path, *, trusted: bool) -> ServiceAccess | None:
    """The service that the settings name; None where they name none."""
    services = [service for service in Service if service in top]
    if len(services) > 1:
        raise InputError(f"{' and '.join(services)} are both given: keep one")
    for service in services:
        usual_url, schema = _SERVICES[service]
        values = _checked(top[service], schema, service)
        if not trusted and "url" in values:
            raise InputError(
                f"url of {service} counts only in a file that you name with --settings: whoever can write to the store "
                "could send your keys elsewhere"
            )
        url = values.get("url", usual_url)
        if not url.startswith(("https://", "http://")):
            raise InputError(f"url of {service} must begin with https://, not {url!r}")
        signal = values.get("signal", "co2_aoer") if service is Service.WATTTIME else None
        zones = tuple(sorted(values.get("zones", {}).items()))
        timeout_s = values.get("timeout_s", 10.0)
        return ServiceAccess(service, url.rstrip("/"), folder / f"{service}.csv", timeout_s, zones, signal)
    return None
