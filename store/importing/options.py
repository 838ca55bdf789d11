"""The options of an import."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import polars as pl

from ...errors import InputError

FLEET = pl.Schema(dict.fromkeys(("gpu", "name", "model", "node", "pci_bus_id", "serial"), pl.String()))
"""What an import asks the store of the GPUs of its cluster."""
_OF_FILE = ("model", "node", "at", "every", "header", "job")


@dataclass(frozen=True)
class Options:
    """The options of one import: what the user says about the files."""

    cluster: str = "fleet"
    gpu: str | None = None  # name of the GPU where the file has no identity
    workload: str | None = None  # name of the workload where the file has none
    columns: Mapping[str, str] = field(default_factory=dict)  # --map: column -> meaning[:unit]
    units: Mapping[str, str] = field(default_factory=dict)  # --unit: column -> unit; "" is the time column
    time_zone: str = "UTC"  # of time stamps that state none
    model: str | None = None  # product name of the GPUs where the file has none
    node: str | None = None  # the host of a stream's GPUs where the file has none
    at: str | None = None  # when it was measured where the file has no times
    every: float | None = None  # seconds between two readings of a stream without times
    header: str | None = None  # the names of the columns, separated by commas, where the file has none
    job: str | None = None  # the training job of a timeline
    layout: Path | None = None  # the file that says how the ranks of a timeline are laid out
    ranks: Path | None = None  # the file that says which rank of a timeline has which GPU
    fleet: Callable[[], pl.DataFrame] = FLEET.to_frame  # the cluster's GPUs in the store
    xids: Callable[[], pl.DataFrame] = pl.DataFrame  # gpu, ts, code: the XIDs in the store
    cards: Callable[[], pl.DataFrame] = pl.DataFrame  # name, card, since: of slots in which several cards were
    slurm_order: Callable[[str, datetime], Mapping[int, str]] | None = None  # as `tags.slurm_order` makes it

    def __post_init__(self) -> None:
        for option in ("cluster", "gpu", "workload", "model", "node", "at", "header", "job"):
            name = getattr(self, option)
            if name is not None and not name.strip():
                raise InputError(f"--{option} is empty: give it a name")
        if self.every is not None and not 0 < self.every < float("inf"):
            raise InputError(f"--every {self.every:g} is no time between two readings: give the seconds, for example 1")

    def as_dict(self) -> dict[str, object]:
        """The options that change the meaning of a file, for the provenance."""
        return {
            "cluster": self.cluster,
            "gpu": self.gpu,
            "workload": self.workload,
            "map": dict(sorted(self.columns.items())),
            "unit": dict(sorted(self.units.items())),
            "time_zone": self.time_zone,
            **{name: value for name in _OF_FILE if (value := getattr(self, name)) is not None},
            **{name: _of_content(path) for name in ("layout", "ranks") if (path := getattr(self, name)) is not None},
        }


def _of_content(path: Path) -> str:
    """A file by its name and its content, as the provenance of what was read with it has it. Raises InputError."""
    try:
        return f"{path.name}#{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give the path of a file that can") from error


def typed(flag: str, column: str, value: str) -> str:
    """An option about a column, as a person types it in a shell: `--unit 'power.draw [W]=mW'`."""
    return f"{flag} {shlex.quote(f'{column}={value}')}"
