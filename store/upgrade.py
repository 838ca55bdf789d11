"""Bring a store of an older format to the present one: every file is written anew, and all change places at once.

The new files of all tables are put beside the old ones, which one note then hides, as in a compaction (see
`replacing`). Then `store.toml` gets the new number. Until then an older whorl reads the old files, and this whorl
refuses the store; from then on it is the other way round. A process that is killed leaves one of these two, and the
next upgrade goes on from there. Journals are read in their older format, and sealed at the end. Files that an older
whorl stores later are upgraded by the next upgrade.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import commits, file_names, journal_file, keys, parquet, replacing, sealing, snapshot
from .folder import furnish, read_about, write_about
from .formats import other_format, upgrades
from .journal_file import JournalName
from .replacing import Compactor
from .schema import COLUMNS, FORMAT, LATE, TABLES, Table
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass
class Upgraded:
    """What an upgrade did: from which format to which, files and journals that were written anew, and those that cannot
    be read, which stay where they are."""

    older: str
    newer: str = str(FORMAT)
    files: int = 0
    journals: int = 0
    unreadable: list[str] = field(default_factory=list)


def upgrade(root: Path, *, offline: bool = False, progress: Callable[[str], None] = lambda _: None) -> Upgraded:
    """Upgrade the store at `root`; nothing is done where it has the present format already.

    It needs as much space again as the store takes. `offline`: nobody else uses the store, so that nothing waits for
    readers; `progress` is called with what is done next. Raises FormatError where the format cannot be upgraded, and
    StoreError where a writer lives that has an older format, or the store cannot be written; nothing is changed then.
    """
    about = read_about(root, older=True)
    done = Upgraded(str(about["format"]))
    with commits.exclusive(root), files.readable(root):
        pace = replacing.pace_of(root, offline=offline)
        with Compactor(root, pace, done.older) as compactor, _older_journals(root) as journals:
            compactor.most_bytes = math.inf  # all together
            for spec in (*TABLES, LATE):
                for path in snapshot.visible_now(root, spec):
                    compactor.beat()
                    try:
                        older = _older_rows(spec, path)
                    except ValueError as error:
                        done.unreadable.append(f"{path}: {error}")
                        log.warning("left %s alone: %s", path, error)
                        continue
                    if older is None:
                        continue
                    progress(f"{spec.name}: {path.name}")
                    stated, rows = older
                    content = parquet.encode(
                        spec, rows, codec="warm" if path.name.startswith("compacted-") else "fresh"
                    )
                    with compactor.replacing([path]) as part:
                        part.add([(path.with_name(file_names.compose(spec.name, stated, content)), content)])
                    done.files += 1
            if done.older != done.newer:
                about |= {"columns": COLUMNS}
                with compactor.replacing([]) as part:
                    part.then.append(lambda: write_about(root, about, ""))
                compactor.switch()
                try:
                    furnish(root, about)
                except StoreError as error:
                    log.warning("%s; until then other DuckDB clients may be unable to read it", error)
            elif done.files:
                compactor.switch()
            done.journals = len(sealing.seal(root, journals, pace))
    return done


@contextlib.contextmanager
def _older_journals(root: Path) -> Iterator[list[JournalName]]:
    """The journals of older formats, whose writers are dead. Raises StoreError where one of them lives."""
    older = []
    for journal in journal_file.journals(root):
        with contextlib.suppress(FileNotFoundError, ValueError):
            if journal_file.read(journal.path).format != str(FORMAT):
                older.append(journal)
    with sealing.of_dead(older) as dead:
        if living := [journal for journal in older if journal not in dead]:
            raise StoreError(
                f"{living[0].writer} writes to {root} ({living[0].path}): stop it, and run `whorl store upgrade` again"
            )
        yield dead


def _older_rows(spec: Table, path: Path) -> tuple[file_names.FileName, pa.Table] | None:
    """What the name of a file of an older format says, and its rows in the present one; None for one of the present.

    Raises OSError, and ValueError for a file that is damaged or none of a store.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with files.opened(path) as source:
            _, version = parquet.stated_in(pq.read_schema(source).metadata)
            if why := other_format(version, older=True):
                raise ValueError(why)
            if version == str(FORMAT):
                return None
            source.seek(0)
            content = source.read()
    except (OverflowError, MemoryError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"it is not a Parquet file ({reason}); move it out of the store") from error
    stated = file_names.parse(path.name)
    if (
        stated is None
        or stated.dated != spec.partitioned
        or file_names.check_sum(spec.name, content, version=version) != stated.crc
    ):
        raise ValueError("it is damaged, or has another name than whorl gave it; restore it from a backup")
    rows = pq.read_table(pa.BufferReader(content), use_threads=False).replace_schema_metadata()
    for step in upgrades(version):
        rows = step.rows(spec.name, rows)
    return stated, keys.conform(spec, rows, dated=True)
