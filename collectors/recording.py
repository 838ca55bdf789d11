"""Stores readings: telemetry and events in this node's journal, identities in a file of their own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store.system import children
from .backend import Device
from .rows import identity_table

if TYPE_CHECKING:
    from ..store import Store
    from ..store.journal import Journal
    from ..store.journal_file import Ticks


class StoreRecorder:
    """The `Recorder` of the store at `root`. Identities take Arrow: a child process stores them."""

    def __init__(self, root: Path, journal: Journal, *, cluster: str, node: str) -> None:
        self._root, self._journal = root, journal
        self._cluster, self._node = cluster, node

    def append(self, ticks: Ticks) -> None:
        self._journal.append_ticks(ticks)

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        self._journal.append_columns(columns, table)

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
        """Store who the devices are: see `identify`."""
        told = {
            "root": str(self._root),
            "cluster": self._cluster,
            "node": self._node,
            "seen_ns": seen_ns,
            "rows": [(device.gpu, device.row) for device in devices],
        }
        children.run(f"{__name__}:identify_as_child", told)


def make_as_child(path: str) -> None:
    """Make the store at `path` where there is none, or put in order what dead processes left. Raises StoreError."""
    from ..store import Store

    Store.create(path)


def identify_as_child(
    root: str, rows: Sequence[tuple[str, dict[str, Any]]], *, cluster: str, node: str, seen_ns: int
) -> None:
    """What the child of `StoreRecorder.identify` does. Raises StoreError."""
    from ..store import Store

    identify(Store.open(root), [Device(gpu, row) for gpu, row in rows], cluster, node, seen_ns)


def identify(store: Store, devices: Sequence[Device], cluster: str, node: str | None, seen_ns: int) -> int:
    """Store who devices are, and return the rows stored: none where the store was last told the same of each.

    `node` is where those are whose own row names none.
    """
    if not devices:
        return 0
    rows = identity_table(devices, cluster, node, seen_ns)
    last = _last_told(store, cluster, [device.gpu for device in devices])
    new = [
        row
        for row in rows.drop_columns(["first_seen"]).to_pylist()
        if any(value is not None and last.get(row["gpu"], {}).get(name) != value for name, value in row.items())
    ]
    if not new:
        return 0
    # A checksum names the content as well as needed here: a cryptographic hash brings its whole library.
    content = zlib.crc32(json.dumps(new, sort_keys=True, default=str).encode())
    store.append({"gpus": rows}, f"identity-{seen_ns % 2**64:x}-{content:08x}")
    return len(devices)


def _last_told(store: Store, cluster: str, gpus: Sequence[str]) -> dict[str, dict[str, object]]:
    """By GPU: the last value of each column that the store was told."""
    last: dict[str, dict[str, object]] = {}
    rows = store.arrow("gpus", gpus=[(cluster, gpu) for gpu in gpus]).sort_by("first_seen")
    for row in rows.to_pylist():
        if row["cluster"] == cluster:
            last.setdefault(row["gpu"], {}).update((name, value) for name, value in row.items() if value is not None)
    return last
