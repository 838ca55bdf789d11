"""Replace files by others, in one step for every reader.

A few files (a journal and its published rows, or the segments of an hour) are replaced by others with the same rows. No
file system renames several files at once, and DuckDB fixes its list of files when a query begins. So small files in
`replaced/`, the notes, say which files readers leave out. The steps are:

0. an `*.claim` of each old file, which only one replacement can make, also where the file system has no locks;
1. `ID.1.parquet`: leave out the new files; on a network file system so many seconds pass that every host has seen it;
2. the new files are renamed into place, and some seconds pass, so that every query that begins from now on sees them;
3. `ID.2.parquet`: leave out the old files, and no longer the new ones: with this one rename they have changed places;
4. when queries that began before have ended, the old files are removed, and last the two notes.

After a crash, the next process undoes a replacement whose new files are not all there, and finishes the others. A note
lists both the old and the new files, so that a reader that lists files meanwhile notices the replacement.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...errors import StoreError
from ..schema import LATE, LATEST, REPLACED, TABLES, arrow_schema
from ..system import durability, files, locks, processes
from . import writing

log = logging.getLogger(__name__)

SETTLE_S = 5.0
GRACE_S = 60.0
_CACHED_S = 65.0  # NFS shows a folder from memory for 30 to 60 s (acdirmin, acdirmax)
LOCK = "replaced.lock"
_CLAIM = ".claim"
_WORD = "[A-Za-z0-9][A-Za-z0-9._-]*"
_FORM = re.compile(  # the files that a note may name: none outside the store, and none that whorl needs
    rf"(?:(?:{'|'.join(spec.name for spec in (*TABLES, LATE))})/(?:day=-?\d+-\d\d-\d\d/(?:{_WORD}~[0-9a-f]{{8}}/)?)?"
    rf"{_WORD}\.parquet|journal/{_WORD}\.[a-z_]+\.\d+\.arrow)"
)
_SIDES = b"whorl.sides"  # in a note's metadata: the files on both sides, after a checksum
_MARK_S = 600  # hosts remove old files just after multiples of ten minutes: only a query that runs then may miss one
_STALE_S = 86_400.0
_FEW = 16  # with at most this many notes, a process looks after all, also those of others


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait before the switch (s), and after it before old files go (s; 0: at once)."""

    settle_s: float = SETTLE_S
    grace_s: float = GRACE_S
    announce_s: float = 0.0
    """Before the new files appear. On a network file system a host lists a folder from memory for a while."""
    wait: Callable[[float], object] = time.sleep
    """Waits some seconds. It may raise a StoreError; then the replacement is taken back."""


OFFLINE = Pace(0.0, 0.0)
_NETWORK = Pace(_CACHED_S, _CACHED_S + GRACE_S, _CACHED_S)


def pace_of(root: Path) -> Pace:
    """The pace that suits the file system of a store."""
    return _NETWORK if durability.of(root).seconds else Pace()


class EndingError(StoreError):
    """This process ends and does not wait until the files have changed places. Nothing was done."""


class TakenError(StoreError):
    """Another process replaces some of the files, or has replaced them. Nothing was done."""


@dataclass
class _Begun:
    """A replacement of this process: the new files that are in their places, and its claims."""

    root: Path
    id: str
    placed: list[str] = field(default_factory=list)
    claimed: list[Path] = field(default_factory=list)


_left: list[_Begun] = []  # what failed and could not be taken back: the disk failed for a while
_leaving = threading.Lock()


@dataclass(frozen=True)
class Note:
    """One replacement: its steps so far, and the files on both sides, as (table, folder/name)."""

    id: str
    step: int
    old: frozenset[tuple[str, str]]
    new: frozenset[tuple[str, str]]
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "old", "new": paths under the root
    changed: float = 0.0  # s since 1970, by the clock of the file system


def hidden(notes: Iterable[Note]) -> set[tuple[str, str]]:
    """The files that readers leave out. If several notes name a file, one that has switched decides."""
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    for note in notes:
        for side, leave_out in ((note.old, note.step == 2), (note.new, note.step == 1)):
            for one in side:
                found[one] = max(found.get(one, (0, False)), (note.step, leave_out))
    return {one for one, (_, leave_out) in found.items() if leave_out}


def key(root: Path, path: Path) -> tuple[str, str]:
    """How a note names a file: its table and its path in it; outside any day the path begins with the table."""
    return key_of(path.relative_to(root).as_posix())


def key_of(name: str) -> tuple[str, str]:
    """As `key`, of a path under the root."""
    table, _, rest = name.partition("/")
    return table, rest if "/" in rest else name


def steps(root: Path, begins: str = "", wanted: Callable[[str], bool] = lambda _: True) -> dict[str, int]:
    """The identities of the notes that begin with a text and are wanted, with their last step. Raises OSError."""
    found: dict[str, int] = {}
    for name in sorted(files.names_in(root / REPLACED.name)):
        one, _, rest = name.rpartition(".parquet")[0].rpartition(".")
        if rest in ("1", "2") and one.startswith(begins) and wanted(one):
            found[one] = int(rest)  # step 2 sorts after step 1
    return found


def notes(root: Path, begins: str = "", wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Note]:
    """The replacements under way whose identity begins with a text and is wanted. Raises OSError."""
    return read_notes(root, steps(root, begins, wanted))


def read_notes(root: Path, wanted: Mapping[str, int]) -> dict[str, Note]:
    """The notes of some replacements, without those that cannot be read or have gone meanwhile."""
    found: dict[str, Note] = {}
    for one, last in wanted.items():
        for step in range(last, 0, -1):  # the last note that can be read says all
            with contextlib.suppress(FileNotFoundError):  # removed since the listing
                note = _read(_path(root, one, step), one, step)
                if note is not None:
                    found[one] = note
                    break
    return found


def is_there(root: Path, one: str, step: int) -> bool:
    """Whether a note is still there."""
    return _path(root, one, step).exists()


def _read(path: Path, one: str, step: int) -> Note | None:
    import pyarrow as pa

    from .footers import stamp

    try:
        _, changed = stamp(path)
        sides = _sides(path)
        for name in (*sides["old"], *sides["new"]):
            if not _FORM.fullmatch(name):
                raise ValueError(f"it names {name!r}, which is not a file that whorl replaces")  # noqa: TRY301
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, pa.ArrowException) as error:
        _say_once(f"left {path} alone: {str(error).splitlines()[0]}")
        return None
    old, new = (frozenset(map(key_of, sides[side])) for side in ("old", "new"))
    return Note(one, step, old, new, sides, changed / 1e9)


def _sides(path: Path) -> dict[str, tuple[str, ...]]:
    """The old and the new files of a note, from its metadata: reading its rows would take five times as long.

    Raises OSError, pyarrow.ArrowException and what damaged content raises.
    """
    from ..system import light
    from .soundness import reason_to_skip

    about = light.metadata(path).metadata or {}
    said = about.get(_SIDES)
    own = arrow_schema(REPLACED.name).metadata
    if said is not None and said[:8] == _check(said[8:]) and all(about.get(name) == own[name] for name in own):
        return {side: tuple(map(str, names)) for side, names in files.parse_json(said[8:]).items()}
    if (reason := reason_to_skip(path, REPLACED.name)) is not None:
        raise ValueError(reason)
    sides: dict[str, list[str]] = {"old": [], "new": []}
    for row in light.read(path).to_pylist():
        if key_of(row["path"]) != (row["table_name"], row["file"]):
            raise ValueError(f"it names {row['path']!r}, which is not a file that whorl replaces")
        sides[row["side"]].append(row["path"])
    return {side: tuple(names) for side, names in sides.items()}


def _check(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


@functools.lru_cache(maxsize=1024)
def _say_once(text: str) -> None:
    """Notes are read before and after every listing."""
    log.warning("%s", text)


def replace(
    root: Path,
    old: Iterable[Path],
    new: Mapping[Path, Path],
    pace: Pace,
    *,
    inside: Callable[[], None] = lambda: None,
) -> None:
    """Replace files by others: `new` maps temporary files, which are durable, to their places.

    `inside` runs when the new files are in their places and still hidden, before the wait. Raises StoreError. The next
    process that opens the store then finishes or undoes what was begun.
    """
    one = f"{processes.owner()}-{uuid4().hex[:8]}"
    sides = [("old", path) for path in old] + [("new", path) for path in new.values()]
    begun = _Begun(root, one)
    try:
        _undo_left(root)
        _claim_all(root, one, [side[1] for side in sides if side[0] == "old"], begun.claimed)
        _write(root, one, 1, sides)
        if pace.announce_s:
            pace.wait(pace.announce_s)
        for temporary, final in new.items():
            begun.placed.append(str(final.relative_to(root)))  # it may be there although the rename fails
            files.rename(temporary, final)
        for folder in {final.parent for final in new.values()}:
            files.sync_folder(folder)
        inside()
        if pace.settle_s:
            pace.wait(pace.settle_s)
        _write(root, one, 2, sides)
    except BaseException as error:
        switched = False
        try:
            switched = not _undo(begun)  # and nothing that was there before
        except OSError:
            _left.append(begun)
        if switched:  # from here on the files are replaced, whatever failed afterwards
            if not isinstance(error, OSError | StoreError):
                raise
            log.warning("%s; the files were replaced all the same", error)
            return
        for path in new:
            files.remove(path)
        if isinstance(error, OSError):
            raise files.failed("write", root, error) from error
        raise
    if not pace.grace_s:
        with contextlib.suppress(OSError):
            note = notes(root).get(one)  # none: somebody else has finished it
            if note is not None:
                remove_old(root, note)
                _end(root, note)


def _undo(begun: _Begun) -> bool:
    """Take back a replacement that failed; False if it has switched, because then it stands. Raises OSError."""
    if _path(begun.root, begun.id, 2).exists():
        return False
    take_back(begun.root, begun.id, begun.placed)
    while begun.claimed:
        begun.claimed[-1].unlink(missing_ok=True)
        del begun.claimed[-1]  # from here on it may be another's
    return True


def _undo_left(root: Path) -> None:
    """Take back what this process could not take back when it failed. Raises OSError.

    Nobody else does it while this process lives. Its claims would refuse every further attempt. If its note stayed when
    a further attempt succeeds with the same names, somebody would take that back later, and remove its files.
    """
    with _leaving:
        for begun in [one for one in _left if one.root == root]:
            _undo(begun)
            _left.remove(begun)


def _claim_all(root: Path, one: str, old: list[Path], claimed: list[Path]) -> None:
    """Claim the old files of a replacement, and look whether they are there still. Raises TakenError, and OSError."""
    said = files.temporary_name(root / REPLACED.name / "claim")
    try:
        with os.fdopen(files.create(said), "w") as file:  # the next one who replaces these files may be another user
            file.write(one)
        for path in old:
            if path.parent.name != LATEST.name:  # then every row could be there twice
                claimed.append(_claim(root, path, said))  # noqa: PERF401 - known where the next one fails
    finally:
        files.remove(said)
    for path in old:
        if not _is_there(path):
            raise _taken(root, path)


def _claim(root: Path, old: Path, said: Path) -> Path:
    """Claim a file for the replacement that `said` names. Raises TakenError, and OSError.

    Only one process can link a name to a file, on NFS, too; and the link has the content at once.
    """
    claim = _claim_of(root, str(old.relative_to(root)))
    for _ in range(2):
        try:
            _link(said, claim)
        except FileExistsError:
            if not _is_stale(root, claim):
                break
            files.remove(claim)
            continue
        return claim
    raise _taken(root, old)


def _link(said: Path, claim: Path) -> None:
    try:
        with files.held(claim.parent) as folder:
            os.link(said.name, claim.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        with os.fdopen(files.create(claim), "w") as file:  # a file system without links
            file.write(said.read_text())


def _claim_of(root: Path, name: str) -> Path:
    # Two checksums name a file as well as needed here; a cryptographic hash brings 4 MB of its library.
    content = name.encode()
    return root / REPLACED.name / f"{zlib.crc32(content):08x}{zlib.crc32(content[::-1]):08x}{_CLAIM}"


def _is_stale(root: Path, claim: Path) -> bool:
    """Whether a claim is stale: its replacement is over, or its process died before it began."""
    try:
        with os.fdopen(files.open_regular(claim), "rb") as file:
            one, changed = file.read(1000).decode("utf-8", "replace"), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return True
    if one in notes(root):
        return False
    living = processes.owner_alive(one)
    return not living if living is not None else abs(files.clock(claim.parent) - changed) > _STALE_S


def _is_there(path: Path) -> bool:
    """Whether a file is there. It opens the file, because that asks the server of a network file system."""
    try:
        os.close(files.open_regular(path))
    except OSError:
        return False
    return True


def _taken(root: Path, path: Path) -> TakenError:
    return TakenError(
        f"another process has replaced {path}, or is about to: one process at a time should compact or prune {root}; "
        f"run the command again"
    )


def _end(root: Path, note: Note) -> None:
    """Remove what is left of a replacement whose old files are gone. Raises OSError."""
    for name in note.paths["old"]:
        _claim_of(root, name).unlink(missing_ok=True)  # if that fails, the note stays, and with it who tries again
    remove_notes(root, note.id)


def take_back(root: Path, one: str, new: Iterable[str]) -> None:
    """Undo a replacement that has not switched.

    It removes the new files first, while they are hidden. Raises OSError.
    """
    for name in new:
        with contextlib.suppress(FileNotFoundError):
            files.remove_inside(root, name)
    remove_notes(root, one)


def _write(root: Path, one: str, step: int, sides: list[tuple[str, Path]]) -> None:
    import pyarrow as pa

    rows = [
        {
            "table_name": key(root, path)[0],
            "file": key(root, path)[1],
            "side": side,
            "hidden": side == ("new" if step == 1 else "old"),
            "step": step,
            "path": str(path.relative_to(root)),
        }
        for side, path in sides
    ]
    said = json.dumps({at: [row["path"] for row in rows if row["side"] == at] for at in ("old", "new")}).encode()
    schema = arrow_schema(REPLACED.name)
    schema = schema.with_metadata({**(schema.metadata or {}), _SIDES: _check(said) + said})
    table = pa.Table.from_pylist(rows, schema=schema)
    writing.replace_parquet(_path(root, one, step), REPLACED, table)
    try:
        files.sync_folder(root / REPLACED.name)
    except OSError as error:
        raise files.failed("write", root / REPLACED.name, error) from error


def remove_old(root: Path, note: Note) -> bool:
    """Remove the old files of a replacement that has switched; says whether there were any. Raises OSError."""
    found = False
    # Published rows are removed before their journal: a reader that sees the journal knows what is missing.
    for name in sorted(note.paths["old"], key=lambda name: name.startswith("journal/")):
        with contextlib.suppress(FileNotFoundError):
            files.remove_inside(root, name)
            found = True
    return found


def remove_notes(root: Path, one: str) -> None:
    for step in (1, 2):
        _path(root, one, step).unlink(missing_ok=True)


def _path(root: Path, one: str, step: int) -> Path:
    return root / REPLACED.name / f"{one}.{step}.parquet"


def due(note: Note, now: float, grace_s: float = GRACE_S) -> float:
    """When the old files of a switched replacement are removed, in seconds since 1970."""
    if not grace_s or note.changed - now > _STALE_S:  # the clock was far ahead then: nobody waits until that time
        return now
    then = note.changed + grace_s
    return then if grace_s < GRACE_S else math.ceil(then / _MARK_S) * _MARK_S


def recover(root: Path, grace_s: float = GRACE_S, *, every: bool = False) -> None:
    """Finish or undo what dead processes began, and remove old files whose time has come.

    If there are many notes, it looks only after those of this process and of dead processes of this host, unless
    `every` is true. Otherwise a thousand collectors would read millions of notes a minute. Does nothing, silently, if
    this user may not write.
    """
    with contextlib.suppress(OSError, StoreError):
        _undo_left(root)
        mine = f"{processes.owner()}-"
        here = f"{processes.host()}-{processes.pid_namespace()}-"
        many = not every and len(files.names_in(root / REPLACED.name)) > _FEW

        def wanted(one: str) -> bool:
            known = one.startswith(here) and (one.startswith(mine) or processes.owner_alive(one) is False)
            return known or not many

        if not notes(root, wanted=wanted):
            return
        # One process at a time: between the check and the action nobody else may finish it and replace the files again.
        with locks.locked(root / LOCK, "the replacements of this store"):
            for note in notes(root, wanted=wanted).values():
                _recover_one(root, note, grace_s)


def _recover_one(root: Path, note: Note, grace_s: float) -> None:
    now = files.clock(root / REPLACED.name)
    if note.step == 2:
        if now >= due(note, now, grace_s) and (not remove_old(root, note) or not grace_s):
            _end(root, note)
        return
    pace = pace_of(root)
    waits = pace.announce_s + 2 * pace.settle_s
    if not _abandoned(note, now) or (grace_s and 0 <= now - note.changed < waits):  # queries began before the renames
        return
    if not all((root / name).exists() for name in note.paths["new"]):
        take_back(root, note.id, note.paths["new"])
        _end(root, note)
        return
    _write(root, note.id, 2, [(side, root / name) for side in ("old", "new") for name in note.paths[side]])
    if not grace_s:
        remove_old(root, note)
        _end(root, note)


def _abandoned(note: Note, now: float) -> bool:
    """Whether the process that made a note is dead, or the note a day away from now."""
    owned = processes.owner_alive(note.id)
    return abs(now - note.changed) > _STALE_S if owned is None else not owned
