"""Stores readings: telemetry and events in this node's journal, identities in a file of their own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..store import Store
from .backends import Device
from .rows import identity_table

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.journal import Journal
    from ..store.writers.template import Template


class StoreRecorder:
    """The `Recorder` of a store."""

    def __init__(self, store: Store, journal: Journal, *, cluster: str, node: str) -> None:
        self._store, self._journal = store, journal
        self._cluster, self._node = cluster, node

    def append(self, batch: pa.RecordBatch, table: str = "telemetry") -> None:
        self._journal.append(batch, table, sync=False)

    def template(self, batch: pa.RecordBatch) -> Template | None:
        return self._journal.template(batch)

    def append_template(self, template: Template) -> bool:
        return self._journal.append_template(template, sync=False)

    def flush(self) -> None:
        """Begin to make durable what was appended; see `Journal.flush_soon`."""
        self._journal.flush_soon()

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
        """Store who the devices are: see `identify`."""
        identify(self._store, devices, self._cluster, self._node, seen_ns)


def identify(store: Store, devices: Sequence[Device], cluster: str, node: str | None, seen_ns: int) -> int:
    """Store who devices are, and return the rows stored: what the store was told before in the same words is not
    stored again. `node` is where those are whose own row names none."""
    content = json.dumps([cluster, node, [(device.gpu, device.row) for device in devices]], sort_keys=True).encode()
    # Two checksums name the content as well as needed here, and a cryptographic hash brings its whole library.
    name = f"identity-{zlib.crc32(content):08x}{zlib.crc32(content[::-1]):08x}"
    if not devices or (store.root / "gpus" / f"{name}.parquet").exists():
        return 0
    store.append({"gpus": identity_table(devices, cluster, node, seen_ns)}, name)
    return len(devices)
