"""Stores readings: telemetry and events in this node's journal, identities in a file of their own."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ..store import Store
from ..store.rows import placing
from ..store.rows.soundness import reason_to_skip
from ..store.schema import GPUS
from ..store.system import files, light
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
        self._journal.append_batch(batch, table, sync=False)

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
    """Store who devices are, and return the rows stored: what the store was told last in the same words is not
    stored again. `node` is where those are whose own row names none."""
    content = json.dumps([cluster, node, [(device.gpu, device.row) for device in devices]], sort_keys=True).encode()
    # Two checksums name the content as well as needed here, and a cryptographic hash brings its whole library.
    name = f"identity-{zlib.crc32(content):08x}{zlib.crc32(content[::-1]):08x}"
    if not devices:
        return 0
    rows = identity_table(devices, cluster, node, seen_ns)
    gpus = placing.gpus_in([rows])
    told = _last_told(store.root, name, gpus)
    if told is not None:
        if not _differs(rows, told):
            return 0
        name += f"-{seen_ns % 2**64:x}"  # a file of the same name would be replaced
    store.append({"gpus": rows}, name + placing.named(gpus))
    return len(devices)


def _last_told(root: Path, name: str, gpus: frozenset[int]) -> list[pa.Table] | None:
    """The identities of GPUs in the file `name` and in those written after it, in this order; None without that file.

    A card or a driver may have come back to what it was: then the file is there, and others say what was in between.
    """
    import pyarrow as pa

    folder = root / GPUS.name
    with files.readable(root):
        paths = [folder / one for one in files.names_in(folder) if one.endswith(".parquet")]
    written: dict[Path, int] = {}
    for path in paths:
        if placing.may_name(path, gpus):
            with contextlib.suppress(OSError):  # compacted just now
                written[path] = path.stat().st_mtime_ns
    own = max((at for path, at in written.items() if path.name.startswith(name)), default=None)
    if own is None:
        return None
    found = []
    since = [path for path, at in written.items() if at >= own]
    for path in sorted(since, key=lambda path: (written[path], not path.name.startswith(name))):
        with contextlib.suppress(OSError, pa.ArrowException):  # damaged, or compacted just now
            if reason_to_skip(path, GPUS.name) is None:
                found.append(light.read(path, [one for one in GPUS.names if one != "first_seen"]))
    return found


def _differs(rows: pa.Table, told: Sequence[pa.Table]) -> bool:
    """Whether the store was last told anything else of these GPUs."""
    key = itemgetter("cluster", "gpu")
    mine = {key(row): row for row in rows.drop_columns(["first_seen"]).to_pylist()}
    last: dict[tuple[str, str], dict[str, object]] = {one: {} for one in mine}
    for row in (row for table in told for row in table.to_pylist()):
        known = last.get((row.get("cluster"), row.get("gpu")))
        if known is not None:
            known.update((column, value) for column, value in row.items() if value is not None)
    return any(
        value is not None and last[one].get(column) != value
        for one, row in mine.items()
        for column, value in row.items()
    )
