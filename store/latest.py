"""The table `latest`: the last reading of every GPU, as those who write telemetry note it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import arranging, light, placing
from .files import failed, remove
from .journal_file import name_in, whole
from .replacing import GRACE_S
from .schema import LATEST, arrow_schema
from .writing import replace_parquet

if TYPE_CHECKING:
    import pyarrow as pa


def note_latest(root: Path, name: str, generation: str, rows: pa.Table) -> None:
    """Note the last reading of each GPU, with what the writer noted before, in a new file. Raises StoreError.

    Other files of the writer that are a while old go: readers take the newest row of all files.
    """
    import pyarrow as pa

    folder = root / LATEST.name
    path = folder / f"{generation}.parquet"
    parts = [whole(LATEST.name, placing.last_rows(placing.newest(rows)))]
    try:
        earlier = [p for p in folder.glob(f"{name}-*.parquet") if name_in(p.stem) == name]
        for one in earlier:
            with contextlib.suppress(OSError, pa.ArrowException):  # torn: its GPUs are in sight elsewhere
                parts.append(whole(LATEST.name, light.read(one, arrow_schema(LATEST.name).names)))
        last = placing.last_rows(placing.newest(pa.concat_tables(parts)))
        replace_parquet(path, LATEST, arranging.conform(LATEST, last))
        for one in earlier:
            if one != path and time.time() - one.stat().st_mtime > GRACE_S:
                remove(one)
    except OSError as error:
        raise failed("write", path, error) from error


def note_appended(root: Path, name: str, rows: pa.Table, now: int) -> None:
    """Note the last reading of each GPU of rows that were appended. It can be made again, so it may fail."""
    last = placing.with_written(placing.last_rows(rows), now)
    with contextlib.suppress(StoreError):
        replace_parquet(root / LATEST.name / f"{name}.appended.parquet", LATEST, arranging.conform(LATEST, last))
