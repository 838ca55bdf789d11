"""Everything that is wrong with the files of a store, after reading all of them: for `whorl doctor`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from . import commits, journal_file, parquet, replacing
from .file_names import Bounds
from .parquet import Verified
from .schema import LATE, TABLES
from .system import files

_STRANGE = "it is no regular file; remove it"
_NO_NAME = "its name is not that of a journal, so nothing of it is read: give it its own name again, or remove it"
_ASIDE = (
    "some bytes of it changed on the disk; its other rows are stored: move it out of the store when you have no "
    "further use for it"
)


def check(root: Path) -> dict[Path, str]:
    """The files of a store that are unsound, with the reason. Raises StoreError."""
    reasons: dict[Path, str] = {}
    with files.readable(root):
        reasons |= _journals(root) | commits.damaged(root)
        replacing.newest_note(root, reasons.__setitem__)
        verified = Verified(root, use_log=False)
        for spec in (*TABLES, LATE):
            for path in parquet.paths_in(root, spec, Bounds()):
                with contextlib.suppress(FileNotFoundError):
                    reason = verified.reason(path, spec)
                    if reason is not None:
                        reasons[path] = reason
    return reasons


def _journals(root: Path) -> dict[Path, str]:
    reasons = without_a_journals_name(root)
    for journal in journal_file.journals(root):
        with contextlib.suppress(FileNotFoundError):
            _, reason = journal_file.look(journal.path)
            if reason is not None:
                reasons[journal.path] = reason
    folder = root / journal_file.FOLDER
    aside = [folder / name for name in files.names_in(folder) if name.endswith(journal_file.DAMAGED)]
    return reasons | dict.fromkeys(journal_file.strange(root), _STRANGE) | dict.fromkeys(aside, _ASIDE)


def without_a_journals_name(root: Path) -> dict[Path, str]:
    """What lies in the folder of journals under another name than whorl gives, with the reason. Raises OSError."""
    known = (".lock", journal_file.DAMAGED)
    paths = [root / journal_file.FOLDER / name for name in sorted(files.names_in(root / journal_file.FOLDER))]
    unknown = [path for path in paths if not path.name.startswith(files.TEMPORARY) and not path.name.endswith(known)]
    return {path: _NO_NAME for path in unknown if journal_file.parse(path) is None}
