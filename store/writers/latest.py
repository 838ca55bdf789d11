"""The table `latest`: the last reading of every GPU, noted by the writers of telemetry.

A note appears in the same step as the rows it was taken from. It can be made again from them (see `missing`).
Readers take the newest row of all files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows import arranging, placing
from ..rows.journal_file import name_in, whole
from ..schema import LATEST, Table, arrow_schema
from ..system import light

if TYPE_CHECKING:
    import pyarrow as pa

Part = tuple[Path, Table, "pa.Table"]


def of_generation(root: Path, name: str, generation: str, rows: pa.Table) -> tuple[Part, list[Path]]:
    """The last reading of each GPU of a journal's rows and of what its writer noted before.

    Returns a file to write, and the files that it replaces.
    """
    import pyarrow as pa

    folder = root / LATEST.name
    parts, earlier = [whole(LATEST.name, placing.last_rows(placing.newest(rows)))], []
    for path in folder.glob(f"{name}-*.parquet"):
        if name_in(path.stem) == name and path.stem != generation:
            with contextlib.suppress(OSError, pa.ArrowException):  # gone, or damaged: a damaged file stays and is named
                parts.append(whole(LATEST.name, light.read(path, arrow_schema(LATEST.name).names)))
                earlier.append(path)
    last = placing.last_rows(placing.newest(pa.concat_tables(parts)))
    return (folder / f"{generation}.parquet", LATEST, arranging.conform(LATEST, last)), earlier


def of_appended(root: Path, name: str, rows: pa.Table, now: int) -> Part:
    """The last reading of each GPU of sorted rows that are appended, as a file to write."""
    last = placing.with_written(placing.last_rows(rows), now)
    return root / LATEST.name / f"{name}.appended.parquet", LATEST, arranging.conform(LATEST, last)


def missing(noted: Sequence[pa.Table], files: Sequence[Path]) -> pa.Table | None:
    """The last readings of those GPUs of telemetry `files` that are not in `noted`; None where there are none.

    A file of `latest` may be damaged. Raises OSError and pyarrow.ArrowException.
    """
    import pyarrow as pa

    known: frozenset[int] = frozenset()
    for data in noted:
        known |= placing.bounds_of(data).gpus or frozenset()
    found: pa.Table | None = None
    dated = [(bounds, path) for path in files if (bounds := placing.bounds(path)) is not None]
    for bounds, path in sorted(dated, key=lambda one: one[0].last, reverse=True):
        absent = (bounds.gpus or frozenset()) - known
        if not absent:
            continue
        rows = placing.last_rows(placing.newest(whole(LATEST.name, light.read(path, arrow_schema(LATEST.name).names))))
        who = zip(rows["cluster"].to_pylist(), rows["gpu"].to_pylist(), strict=True)
        mine = [place for place, pair in enumerate(who) if placing.hashes([pair]) <= absent]
        fresh = rows.take(mine)
        found = fresh if found is None else placing.last_rows(placing.newest(pa.concat_tables([found, fresh])))
    return None if found is None or not len(found) else arranging.conform(LATEST, found)
