"""The settings of a site and of a user: two small files, so that nobody types the same options every day.

    /etc/whorl/whorl.toml             the site's
    ~/.config/whorl/whorl.toml        the user's, which goes first; in XDG_CONFIG_HOME, if that is set

    store = "/shared/fleet"           # --store, also for the collector of a node
    cluster = "alex"                  # the name under which this cluster's rows are stored
    partition = "gpu"                 # --partition of new campaigns, of `jobs wait` and of advice
    account = "hpc-ops"               # --account of campaigns
    price_per_gpu_hour = 0.9          # what an hour of a GPU costs, in the currency of [energy]

    [energy]                          # zone, price of a kWh, and more: the keys of docs/site/energy.toml
    zone = "DE"

An option goes before an environment variable, that before the user's file, and that before the site's. `[energy]` is
for stores without an `energy.toml` of their own, and the user's stands for all of the site's. WHORL_CONFIG names one
file that is read instead of both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError

FILE = "whorl.toml"
SITE_FILE = Path("/etc/whorl") / FILE
TEXT_KEYS = ("store", "cluster", "partition", "account")
NUMBER_KEYS = ("price_per_gpu_hour",)
TABLE_KEYS = ("energy",)
KEYS = (*TEXT_KEYS, *NUMBER_KEYS, *TABLE_KEYS)


class ConfiguredValue(NamedTuple):
    """One value of a site or a user, and the file that states it."""

    key: str
    value: Any
    path: Path


def configuration_files() -> list[Path]:
    """The files that are read where they exist: the site's, then the user's, whose values go first."""
    if only_file := os.environ.get("WHORL_CONFIG"):
        return [Path(only_file)]
    return [SITE_FILE, _user_file()]


def _user_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "whorl" / FILE


def configuration() -> dict[str, ConfiguredValue]:
    """The settings of this site and user, by key. A key that no file states is not in it.

    Raises InputError for a file that cannot be read or says what whorl does not understand; it names the file and key.
    """
    settings: dict[str, ConfiguredValue] = {}
    for path in configuration_files():
        settings |= {key: ConfiguredValue(key, value, path) for key, value in _read(path)}
    return settings


def configured(key: str) -> Any:
    """The value of a key; None where no file states it. Raises InputError, as `configuration` does."""
    setting = configuration().get(key)
    return None if setting is None else setting.value


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    """The keys and values of one file; none where there is no such file."""
    import tomllib

    try:
        table: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get("WHORL_CONFIG"):
            raise InputError(f"there is no file {path}, which WHORL_CONFIG names") from None
        return
    except OSError as error:
        if isinstance(error, PermissionError) and path == _user_file():
            return  # HOME is that of another user, as in a service that root starts for whorl
        raise InputError(f"{path} cannot be read: {error.strerror}; mend its permissions or remove it") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    for key, value in table.items():
        if key not in KEYS:
            raise InputError(f"{path}: whorl knows no key {key}; it knows {', '.join(KEYS)}")
        if key in TEXT_KEYS and not (isinstance(value, str) and value and value.isprintable()):
            raise InputError(f'{path}: {key} must be a text in quotes, as {key} = "name"')
        if key in NUMBER_KEYS and not (type(value) in (int, float) and 0 <= value < 1e6):
            raise InputError(f"{path}: {key} must be a number from 0 on, as {key} = 0.9")
        if key in TABLE_KEYS and not isinstance(value, dict):
            raise InputError(f"{path}: {key} is a table: write [{key}] and its keys below, each on a line")
        if key == "store" and not Path(value).expanduser().is_absolute():
            raise InputError(f"{path}: store must be a whole path that begins with / or ~, not {value}")
        yield key, str(Path(value).expanduser()) if key == "store" else value
