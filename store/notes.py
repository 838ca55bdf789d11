"""Numbered notes in `replaced/`: which files readers leave out, which process replaces files, and the table logs.

No file system renames several files at once. So a note says at once which files have changed places (see `replacing`),
and the note with the highest number counts. A note appears by link(2), which only one process can do for a number.

The last two notes always stay, so the note that counts follows another one. A note whose number follows none is named
and does not count, until the next process that compacts or prunes removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FormatError, StoreError
from .formats import is_later, other_format
from .schema import FORMAT, LATE, REPLACED, TABLES, arrow_schema
from .system import files

T = TypeVar("T")

_TRIES = 20
_NOTE = re.compile(r"(\d{10})\.parquet")
_OWNER = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{8}-\d{1,10}-[0-9a-f]+")
FOLDER = rf"(?:{'|'.join(spec.name for spec in (*TABLES, LATE))})/(?:day=-?\d+-\d\d-\d\d/)?"
"""A pattern of the folders in which the files of tables lie."""
_KEY = re.compile(rb"whorl\.note\x18([\x80-\xff]{0,4}[\x00-\x7f])")  # and how long the text is, as Parquet says it
_PLACE = re.compile(rf"{FOLDER}[A-Za-z0-9_-][A-Za-z0-9._-]*\.parquet")
"""What a note may name: no file outside the store, and none that whorl needs."""

Skip = Callable[[Path, str], None]
"""Called with a file that cannot be read, and the reason."""


@dataclass(frozen=True)
class TableLog:
    """A table log: when its tables last were those of the store, and what they no longer name.

    Times in s since 1970, of the file system; `moved_on_s` is None of a log that was never completed. `released`:
    replaced files that no table of the log names, with the time of that. `place`: the folder of the store then.
    """

    moved_on_s: float | None = None
    released: Mapping[str, float] = field(default_factory=dict)
    place: str = ""

    def waits_for(self, name: str, now_s: float, grace_s: float) -> bool:
        """Whether a replaced file must stay for the readers of this log."""
        released_s = self.released.get(name)
        return released_s is None or 0 <= now_s - released_s < grace_s


@dataclass(frozen=True)
class ReplacementNote:
    """What a note says: who holds the store (None: nobody), the step, the new files of step 1, and the files that
    readers leave out because others replaced them, with the time (s since 1970, of the file system) of that; and the
    table logs by name, "delta" or "iceberg"."""

    number: int = 0
    owner: str | None = None
    step: int = 0
    new: tuple[str, ...] = ()
    old: Mapping[str, float] = field(default_factory=dict)
    format: str = str(FORMAT)
    logs: Mapping[str, TableLog] = field(default_factory=dict)

    @property
    def hidden(self) -> list[str]:
        """The files that readers leave out, as paths under the root."""
        return [*self.old, *(self.new if self.step == 1 else ())]

    def hidden_in(self, root: Path) -> frozenset[Path]:
        """The files of a store that readers leave out."""
        return frozenset(root / name for name in self.hidden)


def path_of(root: Path, number: int) -> Path:
    return root / REPLACED.name / f"{number:010d}.parquet"


def listed(root: Path) -> tuple[list[int], list[int]]:
    """The numbers of notes, in order: up to the highest one that follows another, and beyond. Raises OSError."""
    matches = (_NOTE.fullmatch(name) for name in files.names_in(root / REPLACED.name))
    listed = sorted(int(match[1]) for match in matches if match)
    followers = [place for place in range(1, len(listed)) if listed[place] == listed[place - 1] + 1]
    upto = followers[-1] + 1 if followers else len(listed)
    return listed[:upto], listed[upto:]


def numbers(root: Path) -> list[int]:
    """The numbers of the notes of a store, in order, up to the highest one that follows another. Raises OSError."""
    return listed(root)[0]


def newest(root: Path, skip: Skip = lambda _path, _reason: None, *, strict: bool = False) -> ReplacementNote:
    """The note that counts. `skip` is told of those that cannot be read or do not count, and the one before counts.

    With `strict` raises FormatError for one of a later format, where else `skip` is told of it. Raises OSError.
    """
    counting, strange = listed(root)
    for number in strange:
        skip(path_of(root, number), "its number follows that of no other note: `whorl store compact` removes it")
    for number in reversed(counting):
        path = path_of(root, number)
        try:
            return _read(path, number)
        except FileNotFoundError:
            continue
        except FormatError as error:
            if strict:  # what it replaced is not for this whorl to judge
                raise FormatError(f"{path}: {error}") from error
            reason = str(error)
        except ValueError as error:
            reason = str(error)
        skip(path, f"{reason}; it says which files were replaced: restore it, or run `whorl store compact`")
    return ReplacementNote()


def _read(path: Path, number: int) -> ReplacementNote:
    """Raises FileNotFoundError, ValueError for a note that is damaged, and FormatError for one of a later format."""
    try:
        with files.opened(path) as source:
            fields = files.parse_json_with_sum(_text_of(source.read()))
        version = str(fields["format"])
        if why := other_format(version, older=True):
            raise (FormatError if is_later(version) else ValueError)(why)
        old = {str(name): float(hidden_since) for name, hidden_since in fields["old"].items()}
        new = tuple(map(str, fields["new"]))
        for name in (*old, *new):
            if not _PLACE.fullmatch(name):
                raise ValueError(f"it names {name!r}, which is not a file that whorl replaces")
        if fields["number"] != number:
            raise ValueError("it is a copy of another note")
        owner = fields["owner"]
        if owner is not None and not _OWNER.fullmatch(owner):
            raise ValueError(f"it names {owner!r}, which is no process")
        logs = {str(name): _log_of(state) for name, state in fields.get("logs", {}).items()}
        return ReplacementNote(number, owner, int(fields["step"]), new, old, version, logs)
    except FileNotFoundError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"it is damaged ({str(error).splitlines()[0] if str(error) else error!r})") from error


def _log_of(state: Mapping[str, Any]) -> TableLog:
    moved_on_s = state["moved_on_s"]
    released = {str(name): float(since_s) for name, since_s in state["released"].items()}
    return TableLog(None if moved_on_s is None else float(moved_on_s), released, str(state["place"]))


def _text_of(content: bytes) -> bytes:
    """The text of a note in the metadata of its file: found by its key, as every reader needs it and not all of them
    Arrow. Raises ValueError."""
    key = _KEY.search(content)
    if key is None:
        raise ValueError("it is damaged")
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(key[1]))
    return content[key.end() : key.end() + length]


def _content(note: ReplacementNote) -> bytes:
    """A note as a Parquet file: rows for plain clients, and the same in its metadata for whorl."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .. import __version__

    schema = arrow_schema(REPLACED.name)
    about = {**(schema.metadata or {}), b"whorl.note": files.json_with_sum(asdict(note) | {"by": __version__})}
    rows = [
        {"number": note.number, "step": note.step, "file": name, "hidden": bool(name)}
        for name in sorted(note.hidden) or [""]  # a row at least: the highest number must be seen
    ]
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema.with_metadata(about)), out)
    return bytes(out.getvalue())


def add(root: Path, note: ReplacementNote) -> None:
    """Make the note of a number, which only one process can. Raises FileExistsError, and OSError."""
    path = path_of(root, note.number)
    temporary = files.write(path, _content(note))
    try:
        with files.held(path.parent) as folder:
            try:
                os.link(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                if path.exists():  # a file system without links: two hosts in the same instant are not told apart
                    raise FileExistsError(errno.EEXIST, "it was made just now", str(path)) from error
                os.rename(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
    finally:
        files.remove(temporary)


def too_fast(root: Path) -> StoreError:
    """The error of who found other files each time that it looked."""
    return StoreError(f"the files of {root} change faster than they can be read; run the command again")


def retried(root: Path, look: Callable[[], T]) -> T:
    """What `look` gives, which is called again where it meets a file that was replaced meanwhile. Raises StoreError."""
    with files.readable(root):
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return look()
    raise too_fast(root)
