"""The settings of energy: where the machines stand, what a kWh costs, and what else no sensor knows.

A TOML file, `energy.toml` in the folder of the store, or the file that `--settings` names. docs/carbon.md explains each
key. Values that change are lists of tables with `from` and `until`:

    zone = "DE"
    pue = 1.25
    [[price]]
    value = 0.21
    from = 2026-01-01
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....store.configuration import configuration
from ....store.power_sensors import SENSOR_ERROR, SensorError
from ....store.vocabulary import Code
from . import given
from .adapters import KEYS as _OF_ADAPTERS
from .adapters import Adapter, read_adapter
from .dated import ALWAYS, NEVER, Dated, spans_of

FILE = "energy.toml"


class Method(Code):
    """How the grams of a kWh are found."""

    LOCATION = "location", "what the grid of the zone emitted: hours of a file, else a year's mean"
    MARKET = "market", "what the contract for electricity says"


@dataclass(frozen=True)
class HoursFile:
    """A file of intensities by hour. `zone` is for a file without a column of zones."""

    path: Path
    zone: str | None = None
    time_zone: str | None = None  # of times that state none; None: that of the settings
    source: str | None = None
    column: str | None = None  # where several could be the intensity


@dataclass(frozen=True)
class Factor:
    """Grams of a kWh as the site states them, for a zone (of the location) or for the contract (of the market)."""

    g_per_kwh: float
    source: str
    year: int
    method: Method = Method.LOCATION
    zone: str | None = None  # NULL only for the market's
    began: int = ALWAYS
    ended: int = NEVER
    cluster: str | None = None


@dataclass(frozen=True)
class Embodied:
    """What making a board emitted, in kg CO2e, and over how many years it is spread. None: for every model."""

    kg: float
    years: float
    source: str
    model: str | None = None


@dataclass(frozen=True)
class Settings:
    """What a site has stated; everything is optional."""

    path: Path | None = None
    time_zone: str = "UTC"
    currency: str | None = None
    method: Method = Method.LOCATION
    zones: tuple[Dated, ...] = ()
    pue: tuple[Dated, ...] = ()
    price: tuple[Dated, ...] = ()
    host_w: tuple[Dated, ...] = ()  # what the rest of a node draws, for each GPU in it
    hours: tuple[HoursFile, ...] = ()
    factors: tuple[Factor, ...] = ()
    embodied: tuple[Embodied, ...] = ()
    sensor: SensorError = SENSOR_ERROR
    adapter: Adapter | None = None
    offline: bool = False
    """Whether the service of `adapter` is not to be asked: only what it answered before counts."""

    def zones_of(self, cluster: str) -> list[tuple[int, int, str]]:
        """Where a cluster stood: (began, ended, zone) in order."""
        return [(began, ended, str(zone)) for began, ended, zone in spans_of(self.zones, cluster)]


NONE = Settings()
"""Nothing is stated."""


def find_settings(store: Path, given: Settings | str | Path | None = None) -> Settings:
    """The settings: those `given`, or of the file of that name, else of `energy.toml` in the folder of the store, else
    of `[energy]` in whorl.toml, else none. Raises InputError."""
    if isinstance(given, Settings):
        return given
    if given is not None:
        return read_settings(Path(given))
    usual = store / FILE
    if usual.is_file():
        return read_settings(usual, trusted=False)
    stated = configuration().get("energy")
    return NONE if stated is None else _checked_settings(stated.value, stated.path, trusted=True)


def read_settings(path: Path, *, trusted: bool = True) -> Settings:
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
    return _checked_settings(table, path, trusted=trusted)


def _checked_settings(table: dict[str, Any], path: Path, *, trusted: bool) -> Settings:
    """The settings of a table. Raises InputError, which names its file and the key."""
    try:
        return _settings(table, path, trusted=trusted)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


_KEYS = (
    "time_zone", "currency", "method", "zone", "pue", "price", "host_w", "intensity", "factor", "embodied", "sensor",
    *_OF_ADAPTERS,
)  # fmt: skip
_DATES = ("from", "until", "cluster")


def _settings(table: dict[str, Any], path: Path, *, trusted: bool) -> Settings:
    given.only(table, _KEYS)
    zone = given.text(table, "time_zone") or "UTC"
    given.zone_info(zone)
    method = given.code(table, "method", Method, Method.LOCATION)
    settings = Settings(
        path=path,
        time_zone=zone,
        currency=given.text(table, "currency"),
        method=method,
        zones=_dated(table, "zone", zone),
        pue=_dated(table, "pue", zone, low=1.0, high=5.0),
        price=_dated(table, "price", zone, low=-1e6),
        host_w=_dated(table, "host_w", zone, high=1e5),
        hours=tuple(_hours(table, path.parent)),
        factors=tuple(_factors(table, zone)),
        embodied=tuple(_embodied(table)),
        sensor=_sensor(table),
        adapter=read_adapter(table, path.parent, trusted=trusted),
    )
    if settings.price and settings.currency is None:
        raise InputError('price needs a currency: write currency = "EUR"')
    return settings


def _validity(table: dict[str, Any], zone: str, where: str) -> dict[str, Any]:
    began, ended = given.instant(table, "from", zone, ALWAYS, where), given.instant(table, "until", zone, NEVER, where)
    if ended <= began:
        raise InputError(f"until of {where} is not after from")
    return {"began": began, "ended": ended, "cluster": given.text(table, "cluster", where=where)}


def _dated(
    table: dict[str, Any], key: str, zone: str, low: float = 0.0, high: float = float("inf")
) -> tuple[Dated, ...]:
    """A value for all times, or a list of tables of values that are dated. Without limits: texts for `zone`."""
    if key not in table:
        return ()
    items = table[key] if isinstance(table[key], list) else [{"value": table[key]}]
    found: list[Dated] = []
    for item, where in given.tables(items, key, ("value", *_DATES)):
        value: float | str = (
            given.name(item, "value", where) if key == "zone" else given.number(item, "value", where, low, high)
        )
        one = Dated(value, **_validity(item, zone, where))
        if any(one.meets(other) for other in found):
            raise InputError(f"{where} holds at times at which another {key} holds: give each an end with until")
        found.append(one)
    return tuple(found)


def _hours(table: dict[str, Any], folder: Path) -> Iterator[HoursFile]:
    value = table.get("intensity", [])
    items = [value] if isinstance(value, str | dict) else value
    if not isinstance(items, list):
        raise InputError(f"intensity must be the name of a file, not {items!r}")
    items = [{"file": item} if isinstance(item, str) else item for item in items]
    for item, where in given.tables(items, "intensity", ("file", "zone", "time_zone", "source", "column")):
        texts = {key: given.text(item, key, where=where) for key in ("zone", "time_zone", "source", "column")}
        if texts["time_zone"]:
            given.zone_info(texts["time_zone"])
        yield HoursFile(folder / given.name(item, "file", where), **texts)


def _factors(table: dict[str, Any], zone: str) -> Iterator[Factor]:
    found: list[Factor] = []
    for item, where in given.tables(
        table.get("factor", []), "factor", ("zone", "g_per_kwh", "source", "year", "method", *_DATES)
    ):
        method = given.code(item, "method", Method, Method.LOCATION, where)
        name = given.text(item, "zone", where=where)
        if method is Method.LOCATION and name is None:
            raise InputError(f'zone of {where} is missing: write the zone that it is for, as zone = "DE"')
        one = Factor(
            given.number(item, "g_per_kwh", where, 0.0, 5_000.0),
            given.name(item, "source", where),
            int(given.number(item, "year", where, 1990, 2200)),
            method,
            name,
            **_validity(item, zone, where),
        )
        for other in found:
            same = (other.method, other.zone, other.cluster) == (one.method, one.zone, one.cluster)
            if same and one.began < other.ended and other.began < one.ended:
                raise InputError(f"{where} holds at times at which another factor holds: give each an end with until")
        found.append(one)
        yield one


def _embodied(table: dict[str, Any]) -> Iterator[Embodied]:
    value = table.get("embodied", [])
    items: Sequence[Any] = [value] if isinstance(value, dict) else value
    seen = set()
    for item, where in given.tables(items, "embodied", ("kg", "years", "source", "model")):
        one = Embodied(
            given.number(item, "kg", where, 0.0, 1e6),
            given.number(item, "years", where, 0.1, 100.0),
            given.name(item, "source", where),
            given.text(item, "model", where=where),
        )
        if one.model in seen:
            raise InputError(f"{where} names a model for the second time")
        seen.add(one.model)
        yield one


def _sensor(table: dict[str, Any]) -> SensorError:
    if "sensor" not in table:
        return SENSOR_ERROR
    ((item, where),) = given.tables([table["sensor"]], "sensor", ("gain_pct", "offset_w"))
    return SensorError.stated(
        given.number(item, "gain_pct", where, 0.0, 100.0),
        given.number(item, "offset_w", where, 0.0, 1_000.0),
    )
