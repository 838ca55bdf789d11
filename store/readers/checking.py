"""Everything that is wrong with the files of a store, after reading all of them: for `whorl doctor`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows import journal_file, placing
from ..rows.soundness import damage
from ..schema import BOOKKEEPING, TABLES, TELEMETRY
from ..system import files
from ..writers import commits

if TYPE_CHECKING:
    from ..store import Store

_STRANGE = "it is no regular file; remove it"
_ASIDE = (
    "some bytes of it changed on the disk; its other rows are stored: move it out of the store when you have no "
    "further use for it"
)


def check(store: Store) -> dict[Path, str]:
    """The files of a store that are unsound, with the reason. Raises StoreError."""
    found = _journals(store.root)
    with files.readable(store.root):
        found |= commits.damaged(store.root)
    for spec in (*TABLES, *BOOKKEEPING):
        for path in store.files(spec.name):
            with contextlib.suppress(FileNotFoundError):
                reason = damage(path)
                if reason is not None:
                    found[path] = f"{reason}; restore it from a backup or move it out of the store"
    return store.skipped | found | _doubled(store)


def _journals(root: Path) -> dict[Path, str]:
    found = {}
    with files.readable(root):
        parts, strange = journal_file.parts(root), journal_file.strange(root)
        aside = [n for n in files.names_in(root / journal_file.FOLDER) if n.endswith(journal_file.DAMAGED)]
    for part in parts:
        try:
            reason = journal_file.damage(part)
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = f"it cannot be read ({error.strerror}); repair it or move it out of the store"
        if reason is not None:
            found[part.path] = reason
    found |= dict.fromkeys(strange, _STRANGE)
    return found | {root / journal_file.FOLDER / one: _ASIDE for one in aside}


def _doubled(store: Store) -> dict[Path, str]:
    """Files of telemetry with rows that another file has as well."""
    dated = [(bounds, path) for path in store.files(TELEMETRY.name) if (bounds := placing.bounds(path)) is not None]
    open_files: dict[int, list[tuple[int, Path]]] = {}  # by GPU: when the last row is of files that began before
    found: dict[Path, str] = {}
    for bounds, path in sorted(dated, key=lambda one: (one[0].first, one[1])):
        others: set[Path] = set()
        for gpu in bounds.gpus or ():
            still = [one for one in open_files.get(gpu, ()) if one[0] >= bounds.first]
            others |= {other for _, other in still}
            open_files[gpu] = [*still, (bounds.last, path)]
        twice = Counter(dict(_shared(path, sorted(others))))
        if twice:
            where, _ = twice.most_common(1)[0]
            found[path] = (
                f"{max(twice.values()):,} of its rows are in {where} as well, as in a copy that was made while "
                "collectors wrote: run `whorl store compact`, which keeps one of each"
            )
    return found


def _shared(path: Path, others: Iterable[Path]) -> Iterable[tuple[Path, int]]:
    """The files that share rows with one, and how many."""
    mine = None
    for other in others:
        with contextlib.suppress(FileNotFoundError):
            mine = placing.keys_in(path) if mine is None else mine
            theirs = placing.keys_in(other)
            if mine is not None and theirs is not None:
                number = len(mine) - len(placing.without(mine, theirs))
                if number:
                    yield other, number
