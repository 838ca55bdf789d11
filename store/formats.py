"""The formats of a store: which of them this whorl reads, and what brings files of an older one to the present."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .schema import FORMAT

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Upgrade:
    """How the files of one format become those of the next.

    `names`: of each table, the new names of columns that have other ones; None for a column that goes. `convert`: of a
    table, what makes its rows of rows whose columns have their new names. A column that is new is else NULL.
    """

    older: str
    newer: str
    names: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    convert: Mapping[str, Callable[[pa.Table], pa.Table]] = field(default_factory=dict)

    def rows(self, name: str, rows: pa.Table) -> pa.Table:
        """The rows of a table in the newer format."""
        names = self.names.get(name, {})
        rows = rows.select([column for column in rows.column_names if names.get(column, column) is not None])
        renamed = rows.rename_columns([names.get(column) or column for column in rows.column_names])
        return self.convert[name](renamed) if name in self.convert else renamed


UPGRADES: tuple[Upgrade, ...] = ()
"""One for each format of the store before the present one, see `upgrade`."""


def upgrades(version: str) -> list[Upgrade]:
    """What brings files of this format to the present one, in order; nothing where nothing does."""
    steps: list[Upgrade] = []
    while (step := next((step for step in UPGRADES if step.older == version), None)) is not None:
        steps.append(step)
        version = step.newer
    return steps


def other_format(version: str, *, older: bool = False) -> str | None:
    """Why this whorl does not read what has this format number; None if it does.

    `older`: it also reads what it can upgrade.
    """
    if version == str(FORMAT) or (older and upgrades(version)):
        return None
    if upgrades(version):
        return f"it has format {version}; `whorl store upgrade` brings it to format {FORMAT}"
    if (number := _number(version)) and number < _number(str(FORMAT)):
        return f"it has format {version}, from before the first release of whorl: import or measure again"
    return f"it has format {version or '?'} but this whorl reads format {FORMAT}; install a newer whorl"


def is_later(version: str) -> bool:
    """Whether this is the number of a format that comes after the present one."""
    return _number(version) > _number(str(FORMAT))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", version) else ()
