"""Which service on the network the settings name, where it is and where its keys are; `services` asks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....store.vocabulary import Code
from . import given


class Service(Code):
    """A service on the network that knows intensities by zone and hour."""

    ELECTRICITY_MAPS = "electricity_maps", "Electricity Maps"
    WATTTIME = "watttime", "WattTime"


@dataclass(frozen=True)
class Adapter:
    """A service on the network that knows intensities. Keys are read from the environment, never from the file."""

    service: Service
    url: str
    cache: Path  # the file that keeps what it answered, a file of intensities by hour
    timeout_s: float
    zones: tuple[tuple[str, str], ...] = ()  # of the settings -> of the service, where they differ
    variables: tuple[str, ...] = ()  # of the environment
    signal: str | None = None  # of WattTime: co2_aoer is the mean of all plants, co2_moer of the marginal ones

    @property
    def source(self) -> str:
        """What the service and its figures are called."""
        return f"{self.service.meaning} {self.signal}" if self.signal else self.service.meaning


_SERVICES = {
    Service.ELECTRICITY_MAPS: ("https://api.electricitymaps.com/v3", ("ELECTRICITY_MAPS_KEY",), None),
    Service.WATTTIME: ("https://api.watttime.org", ("WATTTIME_USER", "WATTTIME_PASSWORD"), "co2_aoer"),
}
_SIGNALS = ("co2_aoer", "co2_moer")
KEYS = tuple(service.value for service in _SERVICES)
"""The keys of the settings that name a service."""


def read_adapter(table: dict[str, Any], folder: Path, *, trusted: bool) -> Adapter | None:
    """The service that the settings name; None where they name none. Raises InputError."""
    named = [service for service in _SERVICES if service in table]
    if not named:
        return None
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} are both given: keep one")
    (service,) = named
    url, variables, signal = _SERVICES[service]
    keys = ("url", "cache", "timeout_s", "zones", "variables", *(("signal",) if signal else ()))
    ((item, where),) = given.tables([table[service]], service, keys)
    if not trusted and not item.keys().isdisjoint({"url", "variables"}):
        raise InputError(
            f"url and variables of {where} count only in a file that you name with --settings: whoever can write to "
            "the store could send your keys elsewhere"
        )
    address = given.text(item, "url", url, where) or url
    if not address.startswith(("https://", "http://")):
        raise InputError(f"url of {where} must begin with https://, not {address!r}")
    signal = given.text(item, "signal", signal, where)
    if signal is not None and signal not in _SIGNALS:
        raise InputError(f"signal of {where} must be {' or '.join(_SIGNALS)}, not {signal!r}")
    cache = given.text(item, "cache", where=where) or f"{service}.csv"
    if Path(cache).name != cache:
        raise InputError(
            f"cache of {where} must be the name of a file, without a folder: it stands beside the settings"
        )
    return Adapter(
        service,
        address.rstrip("/"),
        folder / cache,
        given.number(item, "timeout_s", where, 0.1, 600.0, missing=10.0),
        _zones(item, where),
        _variables(item, variables, where),
        signal,
    )


def _zones(item: dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    zones = item.get("zones", {})
    if not isinstance(zones, dict) or not all(isinstance(one, str) for one in zones.values()):
        raise InputError(f'zones of {where} must be a table of names, as {{ DE = "DE" }}')
    return tuple(sorted(zones.items()))


def _variables(item: dict[str, Any], usual: tuple[str, ...], where: str) -> tuple[str, ...]:
    found = item.get("variables", list(usual))
    if not isinstance(found, list) or len(found) != len(usual) or not all(isinstance(one, str) for one in found):
        number = "1 variable" if len(usual) == 1 else f"{len(usual)} variables"
        raise InputError(f"variables of {where} must be a list of {number} of the environment")
    return tuple(found)
